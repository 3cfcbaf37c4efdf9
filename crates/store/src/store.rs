//! The store trait: runs decisions, reads messages, publishes events.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use baton_types::{GroupId, Offset, PartitionId, QueueId, Timestamp};
use tokio::sync::oneshot;

use crate::{Distribution, Error, Segment, Tx, TxError};

/// An event that may let a waiting pop continue. A hint: it may come twice, early, or without cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A partition has a new message.
    Appended {
        /// The queue.
        queue: QueueId,
        /// The partition.
        partition: PartitionId,
    },
    /// A partition is free again for a group.
    Freed {
        /// The queue.
        queue: QueueId,
        /// The group.
        group: GroupId,
        /// The partition.
        partition: PartitionId,
    },
}

/// Receives events, after the decision that caused them. It is called on the thread that runs decisions and must
/// return at once. It may submit decisions, which see the event's changes.
pub type Listener = Arc<dyn Fn(Event) + Send + Sync>;

/// A decision to run.
pub trait Operation: Send {
    /// Runs the decision. May run several times; see [`Tx`].
    fn apply(&mut self, tx: &mut dyn Tx) -> Result<(), TxError>;

    /// Delivers the answer, once: the decision is durable, or it failed and changed nothing.
    fn finish(self: Box<Self>, outcome: Result<(), Error>);
}

/// Counters since the store was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// Commits.
    pub commits: u64,
    /// Commits with an fsync.
    pub syncs: u64,
    /// Decisions in all commits.
    pub operations: u64,
    /// Commit batches that ran again because of a conflict with another server.
    pub repeats: u64,
    /// Those of them that were caused by a deadlock.
    pub deadlocks: u64,
    /// Decisions that failed after their first write and were rolled back.
    pub undone: u64,
    /// Missing slots of groups, in partitions with messages for them, that were found and added.
    pub missing_slots: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Remembered transaction ids.
    pub remembered: u64,
    /// The latency of commits with an fsync, in microseconds.
    pub commit_micros: Distribution,
    /// The number of decisions of such a commit.
    pub commit_operations: Distribution,
}

/// A boxed future, for trait objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A backend.
///
/// To be correct, an implementation must run decisions as [`Tx`] says, and [`read`](Store::read) must return every
/// kept message of the requested range, in order, and nothing that was never written.
pub trait Store: Send + Sync + 'static {
    /// Submits a decision. If the queue is full, the decision finishes at once with [`Error::Busy`].
    fn submit(&self, operation: Box<dyn Operation>);

    /// The segments with messages from `from` up to `to`, exclusive. Stops after the segment that exceeds
    /// `bytes_max`, so it returns at least one segment if there is one.
    fn read(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Segment>, Error>>;

    /// Sets the receiver of events.
    fn set_listener(&self, listener: Listener);

    /// Counts changes of queues and groups, for which there are no events. While it stays the same, a caller that
    /// received every event need not recheck. `None` if another server may change the store, or events may get lost.
    fn catalog_version(&self) -> Option<u64> {
        None
    }

    /// The store's time, approximately: that of the last decision or later.
    fn now(&self) -> Timestamp;

    /// The counters.
    fn statistics(&self) -> Statistics;

    /// Why the store has failed, if it has.
    fn failure(&self) -> Option<String>;

    /// Why the store is temporarily unavailable, if it is.
    fn outage(&self) -> Option<String> {
        None
    }

    /// Finishes all submitted decisions, and closes.
    fn close(&self) -> BoxFuture<'_, Result<(), Error>>;
}

/// Runs a decision and waits for its answer.
pub async fn run<R, F>(store: &dyn Store, decide: F) -> Result<R, Error>
where
    R: Send + 'static,
    F: FnMut(&mut dyn Tx) -> Result<R, TxError> + Send + 'static,
{
    submit(store, decide).await
}

/// Submits a decision at once, before the returned future is polled. So decisions run in the order of these calls,
/// perhaps in one commit.
pub fn submit<R, F>(store: &dyn Store, decide: F) -> impl Future<Output = Result<R, Error>> + Send + use<R, F>
where
    R: Send + 'static,
    F: FnMut(&mut dyn Tx) -> Result<R, TxError> + Send + 'static,
{
    let (reply, answer) = oneshot::channel();
    store.submit(Box::new(ClosureOperation { decide, answer: None, reply }));
    async { answer.await.unwrap_or_else(|_| Err(Error::Closed("the operation was dropped".into()))) }
}

struct ClosureOperation<R, F> {
    decide: F,
    answer: Option<R>,
    reply: oneshot::Sender<Result<R, Error>>,
}

impl<R, F> Operation for ClosureOperation<R, F>
where
    R: Send,
    F: FnMut(&mut dyn Tx) -> Result<R, TxError> + Send,
{
    fn apply(&mut self, tx: &mut dyn Tx) -> Result<(), TxError> {
        self.answer = Some((self.decide)(tx)?);
        Ok(())
    }

    fn finish(self: Box<Self>, outcome: Result<(), Error>) {
        let answer = self.answer.ok_or_else(|| Error::Closed("the operation was never run".into()));
        // The caller may have gone away.
        let _ = self.reply.send(outcome.and(answer));
    }
}
