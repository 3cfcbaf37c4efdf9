//! Pops messages.

use std::time::Duration;

use baton_types::wire::PopResponseRef;
use baton_types::{Timestamp, limits};
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Method, StatusCode};

use crate::connection::ApiCall;
use crate::pop_source::PopSource;
use crate::retry::RetryPolicy;
use crate::{Error, LabelledQueues, Message, Queue, message};

/// The extra time of a long poll beyond its wait.
const ANSWER_GRACE: Duration = Duration::from_secs(5);

/// Where a group starts that is new to the queue, or where [`Queue::seek`](crate::Queue::seek) moves one. A known
/// group continues at its cursor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subscription {
    /// With the oldest message.
    #[default]
    All,
    /// With messages pushed from now on.
    New,
    /// With messages stored at this time or later.
    From(Timestamp),
}

/// One pop, sent by [`send`](Self::send). The messages are leased until they are acked.
#[derive(Clone, Debug)]
#[must_use = "nothing is taken until it is sent"]
pub struct Pop {
    source: PopSource,
    batch: u32,
    partitions: u32,
    wait: Duration,
    lease: Option<Duration>,
    auto_ack: bool,
    subscription: Subscription,
}

impl Queue {
    /// Pops messages.
    pub fn pop(&self) -> Pop {
        Pop::new(PopSource::Queue(self.clone()))
    }
}

impl LabelledQueues {
    /// Pops messages, from queues with a higher priority first.
    pub fn pop(&self) -> Pop {
        Pop::new(PopSource::Labelled(self.clone()))
    }
}

impl Pop {
    pub(crate) fn new(source: PopSource) -> Self {
        Self {
            source,
            batch: 1,
            partitions: 1,
            wait: Duration::ZERO,
            lease: None,
            auto_ack: false,
            subscription: Subscription::All,
        }
    }

    /// Pops up to this many messages; 1 by default.
    pub fn batch(mut self, messages: u32) -> Self {
        self.batch = messages;
        self
    }

    /// Pops from up to this many partitions; 1 by default.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = partitions;
        self
    }

    /// Waits this long for a message when there is none; not at all by default.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.wait = longest;
        self
    }

    /// Leases the messages for this long (rounded to seconds) instead of the queue's lease time.
    pub fn lease(mut self, duration: Duration) -> Self {
        self.lease = Some(duration);
        self
    }

    /// Acks at delivery: nothing is delivered again.
    pub fn auto_ack(mut self, auto_ack: bool) -> Self {
        self.auto_ack = auto_ack;
        self
    }

    /// Where the group starts when it is new to the queue; with the oldest message by default.
    pub fn subscription(mut self, subscription: Subscription) -> Self {
        self.subscription = subscription;
        self
    }

    /// Pops messages; an empty list when there are none. Those of one partition are adjacent and in order.
    pub async fn send(&self) -> Result<Vec<Message>, Error> {
        self.prepare()?.send().await
    }

    /// Validates it and builds its path, for a pop that is sent many times.
    pub(crate) fn prepare(&self) -> Result<PreparedPop, Error> {
        check_range("batch", self.batch.into(), limits::POP_BATCH_MAX.into())?;
        check_range("partitions", self.partitions.into(), limits::POP_PARTITIONS_MAX.into())?;
        if self.wait > limits::POP_WAIT_MAX {
            return Err(Error::Invalid(format!(
                "a pop waits at most {:?}, not {:?}",
                limits::POP_WAIT_MAX,
                self.wait
            )));
        }
        let timeout = if self.wait.is_zero() {
            self.source.client().transport().timeout
        } else {
            self.wait + ANSWER_GRACE
        };
        Ok(PreparedPop { source: self.source.clone(), path: self.path()?, timeout })
    }

    fn path(&self) -> Result<PathAndQuery, Error> {
        let mut path = self.source.pop_path().number_query("batch", self.batch.into());
        if self.partitions > 1 {
            path = path.number_query("partitions", self.partitions.into());
        }
        if !self.wait.is_zero() {
            path = path.query("wait", "true").number_query("timeout", millis(self.wait));
        }
        path = path.optional_query("consumerGroup", self.source.group_name());
        if self.auto_ack {
            path = path.query("autoAck", "true");
        }
        if let Some(lease) = self.lease {
            path = path.number_query("leaseSeconds", lease.as_secs().max(1));
        }
        match self.subscription {
            Subscription::All => path,
            Subscription::New => path.query("subscriptionMode", "new"),
            Subscription::From(moment) => path.query("subscriptionFrom", &moment.to_iso_micros()),
        }
        .build()
    }
}

/// A pop that can be sent any number of times.
#[derive(Clone, Debug)]
pub(crate) struct PreparedPop {
    source: PopSource,
    path: PathAndQuery,
    timeout: Duration,
}

impl PreparedPop {
    pub async fn send(&self) -> Result<Vec<Message>, Error> {
        let call = ApiCall {
            method: Method::GET,
            path: self.path.clone(),
            body: Bytes::new(),
            timeout: self.timeout,
            retry_policy: RetryPolicy::Poll,
            routing_key: self.source.name(),
            idempotency_key: None,
        };
        let answer = self.source.client().transport().call(call).await?;
        if answer.status == StatusCode::NO_CONTENT || answer.body.is_empty() {
            return Ok(Vec::new());
        }
        let response: PopResponseRef<'_> = answer.parse()?;
        Ok(message::from_wire(response.messages, self.source.name()))
    }
}

fn check_range(name: &str, value: u64, max: u64) -> Result<(), Error> {
    if (1..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::Invalid(format!("{name} is between 1 and {max}, not {value}")))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    fn queue() -> Queue {
        Client::new("http://127.0.0.1:1").unwrap().queue("orders")
    }

    #[test]
    fn a_pop_asks_for_no_more_than_it_was_told() {
        let plain = queue().pop().prepare().unwrap();
        assert_eq!(plain.path.as_str(), "/api/v1/pop/queue/orders?batch=1");
        let full = queue()
            .partition("p/1")
            .group("billing")
            .pop()
            .batch(10)
            .partitions(4)
            .wait(Duration::from_secs(20))
            .lease(Duration::from_secs(9))
            .auto_ack(true)
            .subscription(Subscription::New)
            .prepare()
            .unwrap();
        assert_eq!(
            full.path.as_str(),
            "/api/v1/pop/queue/orders/partition/p%2F1?batch=10&partitions=4&wait=true&timeout=20000\
             &consumerGroup=billing&autoAck=true&leaseSeconds=9&subscriptionMode=new"
        );
        assert_eq!(full.timeout, Duration::from_secs(25));
    }

    #[test]
    fn labels_take_the_place_of_a_queue() {
        let client = Client::new("http://127.0.0.1:1").unwrap();
        let billing = client.namespace("bill&ing");
        assert_eq!(
            billing.pop().prepare().unwrap().path.as_str(),
            "/api/v1/pop?namespace=bill%26ing&batch=1"
        );
        let both = client.task("invoice").namespace("billing").group("g").pop().prepare().unwrap();
        assert_eq!(both.path.as_str(), "/api/v1/pop?namespace=billing&task=invoice&batch=1&consumerGroup=g");
    }

    #[test]
    fn what_no_server_would_grant_is_refused_here() {
        assert!(queue().pop().batch(0).prepare().is_err());
        assert!(queue().pop().batch(limits::POP_BATCH_MAX + 1).prepare().is_err());
        assert!(queue().pop().partitions(0).prepare().is_err());
        assert!(queue().pop().wait(Duration::from_secs(301)).prepare().is_err());
    }
}
