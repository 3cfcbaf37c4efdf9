//! The store: runs decisions, reads messages, tells what happened.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use baton_types::{GroupId, Offset, PartitionId, QueueId, Timestamp};
use tokio::sync::oneshot;

use crate::{Distribution, Error, Segment, Tx, TxError};

/// Something that may let a waiting pop go on. A hint: it may come twice, early, or for nothing.
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

/// Receives events, once what they tell of is decided or later. It is called where decisions are made and must return
/// at once. It may submit: that is decided after what the event tells of, where the backend can before that is kept, and
/// answered, as every decision, when what it rests on is.
pub type Listener = Arc<dyn Fn(Event) + Send + Sync>;

/// A decision on its way through a store.
pub trait Operation: Send {
    /// Decides. May be run several times; see [`Tx`].
    fn apply(&mut self, tx: &mut dyn Tx) -> Result<(), TxError>;

    /// Hands over the answer, once: the decision is kept, or it failed and nothing of it is.
    fn finish(self: Box<Self>, outcome: Result<(), Error>);
}

/// Numbers about a store's work since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// Commits.
    pub commits: u64,
    /// Commits that were forced to disk.
    pub syncs: u64,
    /// Decisions in all commits.
    pub operations: u64,
    /// Commit batches that were run again because another server was in the way.
    pub repeats: u64,
    /// Those of them that were part of a deadlock.
    pub deadlocks: u64,
    /// Decisions that failed after their first write and were undone.
    pub undone: u64,
    /// Missing slots of groups in partitions with messages for them that were found and added.
    pub missing_slots: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Transaction ids remembered.
    pub remembered: u64,
    /// How long a commit that was forced to disk took, in microseconds.
    pub commit_micros: Distribution,
    /// How many decisions such a commit kept.
    pub commit_operations: Distribution,
}

/// A future that a trait object can return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A backend.
///
/// To be correct, an implementation must run decisions as [`Tx`] says, and [`snapshot`](Store::read) must return
/// every kept message of the range it was asked for, in order, and never anything that was not written.
pub trait Store: Send + Sync + 'static {
    /// Takes in a decision. At a full intake it is finished at once with [`Error::Busy`].
    fn submit(&self, operation: Box<dyn Operation>);

    /// The segments that hold messages from `from` up to, not including, `to`. Stops after the segment with
    /// which more than `bytes_max` bytes are reached, so at least one segment is returned if there is one.
    fn read(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Segment>, Error>>;

    /// Sets who hears of events.
    fn set_listener(&self, listener: Listener);

    /// How often something has changed that a pop may rest on and that no event tells of: queues and groups. While
    /// this stays the same, whoever has heard every event need not look again. `None` where somebody else may change
    /// the store, or where events may get lost.
    fn catalog_version(&self) -> Option<u64> {
        None
    }

    /// The store's time, roughly: that of the last decision or later.
    fn now(&self) -> Timestamp;

    /// Numbers about its work.
    fn statistics(&self) -> Statistics;

    /// Why the store has stopped working, once it has.
    fn failure(&self) -> Option<String>;

    /// Why the store cannot work just now, though it will again without anyone's help.
    fn outage(&self) -> Option<String> {
        None
    }

    /// Finishes what was taken in, and closes.
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

/// Takes a decision in at once, before the future that waits for its answer is polled. So decisions begun one
/// after the other are run in that order, perhaps in one commit.
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
        // A caller that has gone away does not want the answer.
        let _ = self.reply.send(outcome.and(answer));
    }
}
