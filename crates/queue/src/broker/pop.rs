//! Messages for a consumer: what a pop was granted, read and handed over.
//!
//! Always: who was granted something and is not there to take it gives it back; a delivery is remembered before anybody can
//! ack it. Start at [`Broker::pop`].

use std::sync::Arc;

use baton_env::Stopwatch;
use baton_store::{Segment, StoredMessage};
use baton_types::{Offset, limits};

use super::{Broker, Shared};
use crate::Error;
use crate::broker::metrics::Kind;
use crate::rules::pop::{self, Claim, PopRequest, Popped, Range, Subscription};
use crate::rules::push::check_name;
use crate::rules::undecryptable::{self, Unreadable};
use crate::wait::Watched;
use crate::wait::service::{Granted, ImmediatePop};

impl Broker {
    /// Messages for a consumer; `None` when there are none, or none came in time. Dropping the future ends the
    /// wait at once, and what it was granted goes to the next.
    pub async fn pop(&self, request: PopRequest) -> Result<Option<Popped>, Error> {
        check_pop(&request)?;
        if self.shared.keeper.pops_are_stopped().await? {
            return Ok(None);
        }
        let (watch, request) = (Stopwatch::start(), Arc::new(request));
        let creates_queue = self.shared.pop_creates_queue;
        let granted = ImmediatePop::run(&self.shared.store, request.clone(), creates_queue).await?;
        if !granted.decided.claims.is_empty() {
            // Boxed, here and below, so that a parked pop does not hold it.
            let delivered = Box::pin(self.deliver(granted, &request)).await;
            self.shared.meters.took(Kind::Pop, watch.elapsed());
            return delivered;
        }
        self.shared.meters.took(Kind::Pop, watch.elapsed());
        let queue = request.target.queue().filter(|_| !granted.decided.looked_at.is_empty());
        let Some(wait) = request.wait else {
            self.shared.meters.popped_nothing(queue);
            return Ok(None);
        };
        let watched =
            Watched { queues: granted.decided.looked_at.clone(), partition: granted.decided.partition };
        let parked = match request.subscription {
            // It has begun, also in a queue that is created while it waits.
            Subscription::New => {
                let subscription = Subscription::From(granted.decided.at);
                Arc::new(PopRequest { subscription, ..PopRequest::clone(&request) })
            }
            _ => request.clone(),
        };
        drop(granted);
        let wait = wait.min(limits::POP_WAIT_MAX);
        match Box::pin(self.shared.parking.wait(parked, watched, wait)).await? {
            Some(granted) => Box::pin(self.deliver(granted, &request)).await,
            None => {
                self.shared.meters.popped_nothing(queue);
                Ok(None)
            }
        }
    }

    /// Reads what was granted, as far as it fits into an answer; the rest is given back.
    async fn deliver(&self, mut granted: Granted, request: &PopRequest) -> Result<Option<Popped>, Error> {
        let (lease, conflation) = (granted.lease, granted.decided.conflation);
        let (mut claims, mut bytes, mut is_cut) = (Vec::new(), 0, false);
        let mut ends = Vec::with_capacity(granted.decided.claims.len());
        for range in &granted.decided.claims {
            let bytes_max = limits::POP_BYTES_MAX.saturating_sub(bytes);
            let (messages, end) = match bytes_max {
                0 => (Vec::new(), range.from),
                _ => self.read_range(range, bytes_max, bytes == 0).await?,
            };
            is_cut |= end < range.to;
            bytes += answer_bytes(&messages);
            ends.push((range.partition, end));
            claims.push(claim(range, messages));
        }
        let unreadable = self.open(&mut claims)?;
        if request.auto_ack {
            let finished = self.run(move |tx| pop::finish_before(tx, lease, &ends)).await?;
            claims.retain(|claim| finished.contains(&claim.partition));
        } else if is_cut {
            self.run(move |tx| pop::cut_short(tx, lease, &ends)).await?;
        }
        let lease = (!request.auto_ack).then_some(lease);
        if !unreadable.is_empty() {
            let group = request.group.clone();
            self.run(move |tx| undecryptable::bury(tx, &group, lease, &unreadable)).await?;
        }
        granted.accept();
        claims.retain(|claim| !claim.messages.is_empty());
        let popped = Popped { lease, claims, conflation };
        self.shared.note(&popped);
        Ok((!popped.claims.is_empty()).then_some(popped))
    }

    /// The messages of a range, and the end of what was read of it.
    async fn read_range(
        &self,
        range: &Range,
        bytes_max: usize,
        is_first: bool,
    ) -> Result<(Vec<StoredMessage>, Offset), Error> {
        let segments = self.shared.store.read(range.partition, range.from, range.to, bytes_max).await?;
        let (messages, complete) = wanted(range, &segments, bytes_max, is_first)?;
        let end = messages.last().map_or(range.from, |message| message.offset.plus(1));
        Ok((messages, if complete { range.to } else { end }))
    }

    /// Opens sealed messages. Those whose key is gone are taken out and become dead letters, so that they block no
    /// consumer. A server without any key refuses instead: its operator probably forgot to set one.
    fn open(&self, claims: &mut [Claim]) -> Result<Vec<Unreadable>, Error> {
        let (mut unreadable, sealer) = (Vec::new(), &self.shared.sealer);
        let mut opener = sealer.opener();
        for claim in claims {
            let (queue, partition) = (&claim.queue, &claim.partition_name);
            claim.messages.retain_mut(|message| match opener.open_message(queue, partition, message) {
                Ok(()) => true,
                Err(reason) => {
                    let (partition, offset) = (message.partition, message.offset);
                    unreadable.push(Unreadable { partition, offset, reason });
                    false
                }
            });
        }
        let Some(first) = unreadable.first() else { return Ok(unreadable) };
        if !sealer.can_seal() {
            return Err(Error::KeyMissing(first.reason.clone()));
        }
        tracing::error!(
            partition = first.partition.0,
            offset = first.offset.0,
            messages = unreadable.len(),
            reason = first.reason,
            "messages cannot be decrypted and become dead letters"
        );
        Ok(unreadable)
    }
}

impl Shared {
    /// Counts what is about to be handed over, and remembers it for its acks.
    fn note(&self, popped: &Popped) {
        if let Some(lease) = popped.lease {
            for claim in &popped.claims {
                self.deliveries.add(lease, claim.partition, &claim.messages);
            }
        }
        self.meters.popped(popped, self.store.now());
    }
}

/// The messages of a range, and whether these are all of it. The first of an answer is read, however large.
fn wanted(
    range: &Range,
    segments: &[Segment],
    bytes_max: usize,
    is_first: bool,
) -> Result<(Vec<StoredMessage>, bool), Error> {
    let (mut messages, mut bytes) = (Vec::new(), 0);
    for message in segments.iter().flat_map(Segment::messages) {
        let message = message.map_err(baton_store::Error::from)?;
        let is_wanted = range.from <= message.offset
            && message.offset < range.to
            && !range.except.as_ref().is_some_and(|except| except.contains(message.offset));
        if !is_wanted {
            continue;
        }
        bytes += message.kept_bytes();
        if bytes > bytes_max && !(is_first && messages.is_empty()) {
            return Ok((messages, false));
        }
        messages.push(message);
    }
    let complete = segments.last().is_some_and(|segment| segment.end() >= range.to);
    Ok((messages, complete))
}

fn answer_bytes(messages: &[StoredMessage]) -> usize {
    messages.iter().map(StoredMessage::kept_bytes).sum()
}

fn claim(range: &Range, messages: Vec<StoredMessage>) -> Claim {
    Claim {
        queue: range.queue.clone(),
        partition: range.partition,
        partition_name: range.partition_name.clone(),
        attempt: range.attempt,
        messages,
    }
}

fn check_pop(request: &PopRequest) -> Result<(), Error> {
    check_name("group", &request.group)?;
    match &request.target {
        pop::Target::Queue(queue) => check_name("queue", queue),
        pop::Target::Partition { queue, partition } => {
            check_name("queue", queue).and_then(|()| check_name("partition", partition))
        }
        pop::Target::Labels { namespace, task } => {
            namespace.iter().chain(task).try_for_each(|label| check_name("namespace or task", label))
        }
    }
}
