//! Consumers: pop, run the handler, ack, and repeat until stopped.
//!
//! Always: within one batch and partition the handler sees messages one after the other, in order. After one fails it
//! sees none of that partition's later ones, because they are delivered again after it. A stop lets the running
//! handler finish and sends its ack. The consumer waits for a server that is away. Not here: exactly once (a crash
//! between handler and ack delivers again; use a transaction), retry counting (the server's). Start at
//! [`Consume::each`].

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_types::limits;
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::pop::PreparedPop;
use crate::pop_source::PopSource;
use crate::{
    AckStatus, Acknowledgement, Client, Error, LabelledQueues, Message, Pop, Queue, Subscription, retry,
};

/// The default wait of a pop.
const POLL_WAIT: Duration = Duration::from_secs(30);

/// Acks are sent at the end of a batch, but at most this long after the first waiting ack, so that a crash in a slow
/// batch repeats little.
const ACK_AFTER: Duration = Duration::from_secs(1);

/// The shortest time between two empty pops, for servers that answer at once although asked to wait.
const EMPTY_POP_MIN: Duration = Duration::from_millis(100);

/// A renewal extends the lease by this many intervals, so that one renewal may be lost.
const RENEWAL_INTERVALS: u32 = 3;

/// The limit of workers of one consumer; use more processes beyond it.
const CONCURRENCY_MAX: usize = 1_000;

/// A consumer under construction, run by [`each`](Self::each) or [`batches`](Self::batches).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # let server = baton_server::testing().await?;
/// # let baton = baton_client::Client::new(server.url())?;
/// use baton_client::{CancellationToken, Error};
///
/// baton.queue("orders").push(&"the first").send().await?;
///
/// let stop = CancellationToken::new();
/// let consumed = baton
///     .queue("orders")
///     .group("billing")
///     .consume()
///     .batch(10)
///     .concurrency(4)
///     .limit(1)
///     .stop_on(stop.clone())
///     .each(|message| async move {
///         let order: serde_json::Value = message.data()?;
///         println!("{order}");
///         Ok::<_, Error>(())
///     })
///     .await?;
/// assert_eq!((consumed.completed, consumed.failed), (1, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is consumed until it is given a handler"]
pub struct Consume {
    source: PopSource,
    pop: Pop,
    batch: u32,
    wait: Duration,
    concurrency: usize,
    auto_ack: bool,
    renew_every: Option<Duration>,
    limit: Option<u64>,
    idle: Option<Duration>,
    stop: CancellationToken,
}

impl Queue {
    /// Pops messages and passes them to a handler, until stopped.
    pub fn consume(&self) -> Consume {
        Consume::new(PopSource::Queue(self.clone()))
    }
}

impl LabelledQueues {
    /// Pops messages and passes them to a handler, until stopped.
    pub fn consume(&self) -> Consume {
        Consume::new(PopSource::Labelled(self.clone()))
    }
}

impl Consume {
    pub(crate) fn new(source: PopSource) -> Self {
        Self {
            pop: Pop::new(source.clone()),
            source,
            batch: 1,
            wait: POLL_WAIT,
            concurrency: 1,
            auto_ack: true,
            renew_every: None,
            limit: None,
            idle: None,
            stop: CancellationToken::new(),
        }
    }

    /// Pops up to this many messages at once; 1 by default.
    pub fn batch(mut self, messages: u32) -> Self {
        self.batch = messages;
        self
    }

    /// Pops from up to this many partitions; 1 by default.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.pop = self.pop.partitions(partitions);
        self
    }

    /// Runs this many handlers at once, each on its own batch; 1 by default.
    pub fn concurrency(mut self, workers: usize) -> Self {
        self.concurrency = workers;
        self
    }

    /// How long one poll waits at the server; 30 seconds by default.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.wait = longest;
        self
    }

    /// Leases a batch for this long instead of the queue's lease time.
    pub fn lease(mut self, duration: Duration) -> Self {
        self.pop = self.pop.lease(duration);
        self
    }

    /// Where the group starts when it is new to the queue; with the oldest message by default.
    pub fn subscription(mut self, subscription: Subscription) -> Self {
        self.pop = self.pop.subscription(subscription);
        self
    }

    /// Whether the consumer acks messages by the handler's result; yes by default.
    pub fn auto_ack(mut self, auto_ack: bool) -> Self {
        self.auto_ack = auto_ack;
        self
    }

    /// Acks at delivery: nothing is delivered again, so a crash loses messages.
    pub fn at_most_once(mut self) -> Self {
        self.pop = self.pop.auto_ack(true);
        self.auto_ack = false;
        self
    }

    /// Renews the lease of a batch at this interval while its handler runs.
    pub fn renew_lease(mut self, every: Duration) -> Self {
        self.renew_every = Some(every.max(Duration::from_millis(100)));
        self
    }

    /// Stops after this many messages.
    pub fn limit(mut self, messages: u64) -> Self {
        self.limit = Some(messages);
        self
    }

    /// Stops when no message came for this long.
    pub fn idle(mut self, longest: Duration) -> Self {
        self.idle = Some(longest);
        self
    }

    /// Stops when this token is cancelled: polls end at once, running handlers finish.
    pub fn stop_on(mut self, token: CancellationToken) -> Self {
        self.stop = token;
        self
    }

    /// Passes messages one by one. `Ok` completes a message, `Err` fails it, with its text as the reason.
    pub async fn each<F, R, E>(self, handler: F) -> Result<ConsumerStats, Error>
    where
        F: Fn(Message) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send,
        E: Display + Send,
    {
        self.run(MessageHandler(handler)).await
    }

    /// Passes whole batches. `Ok` completes all messages of the batch, `Err` fails all.
    pub async fn batches<F, R, E>(self, handler: F) -> Result<ConsumerStats, Error>
    where
        F: Fn(Vec<Message>) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send,
        E: Display + Send,
    {
        self.run(BatchHandler(handler)).await
    }

    async fn run(self, handler: impl Handler) -> Result<ConsumerStats, Error> {
        if !(1..=CONCURRENCY_MAX).contains(&self.concurrency) {
            return Err(Error::Invalid(format!(
                "concurrency is between 1 and {CONCURRENCY_MAX}, not {}",
                self.concurrency
            )));
        }
        let consumer = Arc::new(Consumer::new(self)?);
        let handler = Arc::new(handler);
        let mut workers = JoinSet::new();
        for _ in 0..consumer.settings.concurrency {
            let (consumer, handler) = (Arc::clone(&consumer), Arc::clone(&handler));
            workers.spawn(async move { consumer.run_worker(&*handler).await });
        }
        let mut outcome = Ok(());
        while let Some(ended) = workers.join_next().await {
            match ended {
                Ok(Ok(())) => {}
                // The other workers would get the same error: let them finish.
                Ok(Err(error)) => {
                    consumer.stop.cancel();
                    outcome = Err(error);
                }
                Err(join) if join.is_panic() => std::panic::resume_unwind(join.into_panic()),
                Err(_) => {}
            }
        }
        outcome.map(|()| consumer.counters.snapshot())
    }
}

/// The statistics of a consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumerStats {
    /// Messages whose handler succeeded.
    pub completed: u64,
    /// Messages whose handler failed.
    pub failed: u64,
    /// Acks that the server refused, usually because the lease expired: those messages are delivered again.
    pub refused: u64,
}

#[derive(Debug, Default)]
struct ConsumerCounters {
    completed: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
}

impl ConsumerCounters {
    fn snapshot(&self) -> ConsumerStats {
        ConsumerStats {
            completed: self.completed.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// The state that the workers share.
struct Consumer {
    settings: Consume,
    full_pop: PreparedPop,
    /// A child of the caller's token: an error stops this consumer only.
    stop: CancellationToken,
    /// Messages that may still be popped. A worker reserves its batch before it pops and returns what it did not get,
    /// so the limit is never exceeded.
    remaining: AtomicU64,
    since_start: Stopwatch,
    /// When the last message came, in microseconds on `since_start`.
    last_message: AtomicU64,
    counters: ConsumerCounters,
}

impl Consumer {
    fn new(settings: Consume) -> Result<Self, Error> {
        let wait =
            settings.idle.map_or(settings.wait, |idle| settings.wait.min(idle)).min(limits::POP_WAIT_MAX);
        let settings = Consume { pop: settings.pop.clone().wait(wait), ..settings };
        Ok(Self {
            full_pop: settings.pop.clone().batch(settings.batch).prepare()?,
            stop: settings.stop.child_token(),
            remaining: AtomicU64::new(settings.limit.unwrap_or(u64::MAX)),
            since_start: Stopwatch::start(),
            last_message: AtomicU64::new(0),
            counters: ConsumerCounters::default(),
            settings,
        })
    }

    async fn run_worker(&self, handler: &impl Handler) -> Result<(), Error> {
        let mut failures = 0;
        while !self.stop.is_cancelled() && !self.is_idle() {
            let wanted = self.reserve();
            if wanted == 0 {
                return Ok(());
            }
            let started = Stopwatch::start();
            let popped = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(()),
                popped = self.pop(wanted) => popped,
            };
            let got = popped.as_ref().map_or(0, Vec::len) as u64;
            self.remaining.fetch_add(u64::from(wanted).saturating_sub(got), Ordering::SeqCst);
            match popped {
                Ok(messages) if messages.is_empty() => {
                    failures = 0;
                    self.pause(EMPTY_POP_MIN.saturating_sub(started.elapsed())).await;
                }
                Ok(messages) => {
                    failures = 0;
                    self.record_activity();
                    self.process(handler, messages).await;
                    self.record_activity();
                }
                Err(error) if error.is_temporary() => {
                    tracing::warn!(source = self.settings.source.name(), %error, "cannot pop; trying again");
                    self.pause(retry::backoff(failures, &error, baton_env::random_u64())).await;
                    failures += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn pop(&self, wanted: u32) -> Result<Vec<Message>, Error> {
        if wanted == self.settings.batch {
            return self.full_pop.send().await;
        }
        self.settings.pop.clone().batch(wanted).send().await
    }

    async fn process(&self, handler: &impl Handler, messages: Vec<Message>) {
        let _renewal = self.settings.renew_every.and_then(|every| self.renew(every, &messages));
        let mut acks = AckBatch {
            client: self.settings.source.client(),
            enabled: self.settings.auto_ack,
            tally: &self.counters,
            waiting: Vec::with_capacity(messages.len()),
            oldest: None,
        };
        handler.process(messages, &mut acks).await;
        acks.send().await;
    }

    /// Renews the lease until dropped. A task of its own, so that a handler that blocks its thread does not block
    /// renewals.
    fn renew(&self, every: Duration, messages: &[Message]) -> Option<AbortOnDropHandle<()>> {
        let receipt = messages.first().filter(|m| m.lease_id().is_some())?.receipt().clone();
        let client = self.settings.source.client().clone();
        let renewal = async move {
            loop {
                baton_env::sleep(every).await;
                let ahead = (every * RENEWAL_INTERVALS).max(Duration::from_secs(1));
                if let Err(error) = client.extend_lease(&receipt, ahead).await {
                    tracing::warn!(%error, "cannot renew the lease");
                    if !error.is_temporary() {
                        return;
                    }
                }
            }
        };
        Some(AbortOnDropHandle::new(tokio::spawn(renewal)))
    }

    /// Reserves a batch of the limit.
    fn reserve(&self) -> u32 {
        let batch = u64::from(self.settings.batch);
        let take = |left: u64| Some(left - left.min(batch));
        let before = self.remaining.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).unwrap_or(0);
        u32::try_from(before.min(batch)).unwrap_or(u32::MAX)
    }

    fn is_idle(&self) -> bool {
        let last = Duration::from_micros(self.last_message.load(Ordering::Relaxed));
        self.settings.idle.is_some_and(|idle| self.since_start.elapsed().saturating_sub(last) >= idle)
    }

    fn record_activity(&self) {
        let now = u64::try_from(self.since_start.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last_message.fetch_max(now, Ordering::Relaxed);
    }

    async fn pause(&self, wait: Duration) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = baton_env::sleep(wait) => {}
        }
    }
}

/// Acks that are sent together.
struct AckBatch<'a> {
    client: &'a Client,
    enabled: bool,
    tally: &'a ConsumerCounters,
    waiting: Vec<Acknowledgement>,
    oldest: Option<Stopwatch>,
}

impl AckBatch<'_> {
    /// Adds an ack, and sends when acks have waited long enough.
    async fn record_ack(&mut self, ack: Acknowledgement) {
        let counter = match ack.status {
            AckStatus::Completed => &self.tally.completed,
            _ => &self.tally.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if !self.enabled {
            return;
        }
        self.waiting.push(ack);
        if self.oldest.get_or_insert_with(Stopwatch::start).elapsed() >= ACK_AFTER {
            self.send().await;
        }
    }

    async fn send(&mut self) {
        #[derive(Deserialize)]
        struct Outcome {
            success: bool,
        }
        self.oldest = None;
        let acks = std::mem::take(&mut self.waiting);
        if acks.is_empty() {
            return;
        }
        let answer = self.client.send_acks(&acks).await;
        let refused = match answer.and_then(|answer| answer.parse::<Vec<Outcome>>()) {
            Ok(outcomes) => outcomes.iter().filter(|outcome| !outcome.success).count(),
            Err(error) => {
                tracing::warn!(%error, messages = acks.len(), "cannot ack; the messages will come again");
                acks.len()
            }
        };
        self.tally.refused.fetch_add(refused as u64, Ordering::Relaxed);
    }
}

/// A handler of messages or of batches.
trait Handler: Send + Sync + 'static {
    fn process(&self, messages: Vec<Message>, acks: &mut AckBatch<'_>) -> impl Future<Output = ()> + Send;
}

struct MessageHandler<F>(F);

impl<F, R, E> Handler for MessageHandler<F>
where
    F: Fn(Message) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), E>> + Send,
    E: Display + Send,
{
    async fn process(&self, messages: Vec<Message>, acks: &mut AckBatch<'_>) {
        let mut failed = None;
        for message in messages {
            let receipt = message.receipt().clone();
            if failed.as_ref() == Some(&receipt.origin) {
                continue;
            }
            let ack = match (self.0)(message).await {
                Ok(()) => Acknowledgement::new(&receipt, AckStatus::Completed),
                Err(error) => {
                    failed = Some(Arc::clone(&receipt.origin));
                    Acknowledgement::new(&receipt, AckStatus::Failed).because(error.to_string())
                }
            };
            acks.record_ack(ack).await;
        }
    }
}

struct BatchHandler<F>(F);

impl<F, R, E> Handler for BatchHandler<F>
where
    F: Fn(Vec<Message>) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), E>> + Send,
    E: Display + Send,
{
    async fn process(&self, messages: Vec<Message>, acks: &mut AckBatch<'_>) {
        let receipts: Vec<_> = messages.iter().map(|m| m.receipt().clone()).collect();
        let error = (self.0)(messages).await.err().map(|e| e.to_string());
        for receipt in receipts {
            let ack = match &error {
                None => Acknowledgement::new(receipt, AckStatus::Completed),
                Some(error) => Acknowledgement::new(receipt, AckStatus::Failed).because(error.as_str()),
            };
            acks.record_ack(ack).await;
        }
    }
}
