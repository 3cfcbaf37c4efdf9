//! The transaction: reads and writes of a decision.

use std::sync::Arc;
use std::time::Duration;

use baton_types::{GroupId, IdHash, LeaseId, Offset, PartitionId, QueueId, Timestamp};
use bytes::Bytes;

use crate::{
    Cursor, DeadLetter, DeadLetterKey, Error, Group, GroupStart, MessageBlock, Partition, Queue, QueueSpec,
    Record, StoreLimits, StoredMessage,
};

/// Why a decision stopped early.
#[derive(Debug)]
pub enum TxError {
    /// A row is not in memory. The backend fetches it and runs the decision again from the start.
    RowsMissing,
    /// The decision failed.
    Failed(Error),
}

impl From<Error> for TxError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Processes every item before it reports missing rows, so that a backend fetches the rows of all items together.
/// Otherwise the decision would run once per item.
pub fn collect_misses<T>(
    items: impl IntoIterator<Item = T>,
    mut look: impl FnMut(T) -> Result<(), TxError>,
) -> Result<(), TxError> {
    let mut misses = false;
    for item in items {
        match look(item) {
            Err(TxError::RowsMissing) => misses = true,
            // It may succeed once all rows are there.
            Err(TxError::Failed(_)) if misses => {}
            outcome => outcome?,
        }
    }
    if misses { Err(TxError::RowsMissing) } else { Ok(()) }
}

/// When a write must be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Before the decision is answered.
    Now,
    /// With the next durable write, or a little later. For writes whose loss in a crash costs only a repetition.
    Soon,
}

/// The position of appended messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The offset of the first; the others follow.
    pub first: Offset,
    /// Their stored time: now, or that of messages that share a segment with them.
    pub created_at: Timestamp,
}

/// An entry of the dedup index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RememberedId {
    /// The offset of the message, which may be trimmed.
    pub offset: Offset,
    /// When it was stored, to the millisecond at least. Earlier versions stored no time and fewer bits of the hash:
    /// then only the message itself shows whether it has this id.
    pub created_at: Option<Timestamp>,
}

/// The description of a group by its caller.
#[derive(Clone, Debug)]
pub struct GroupSpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where it starts.
    pub start: GroupStart,
    /// When it was first seen.
    pub subscribed_at: Timestamp,
    /// Whether it gets only the newest message of a partition.
    pub conflation: bool,
}

/// A transaction: one consistent read of the tables, and the writes that follow.
///
/// A decision reads what it needs, decides, and then writes. It checks everything, including stored sizes, before its
/// first write. If it fails or panics after that, the backend rolls it back, which may be slow, and only its caller
/// gets the error. Reads see the writes of the same and of every earlier decision. A read may return
/// [`TxError::RowsMissing`], which the decision propagates with `?`; the backend then runs it again, so it must have
/// no effects other than its writes. A run that will be retried may see an inconsistent snapshot, so a decision
/// returns an error for impossible states instead of panicking.
///
/// To be correct, an implementation must
/// - run decisions as if serially;
/// - keep all writes of a decision or none, also over a crash, and none of a failed one;
/// - answer a decision only when its own writes with [`Durability::Now`], and the writes that it has read, are
///   durable;
/// - let [`now`](Tx::now) rise strictly from one decision to the next, also over a restart, and issue no token twice.
pub trait Tx {
    /// The store's time, which alone expires anything. Strictly later than in any earlier decision.
    fn now(&self) -> Timestamp;

    /// A token higher than every one before.
    fn fresh_token(&mut self) -> u64;

    /// Refuses `bytes` more of messages if the disk is nearly full.
    fn admit_bytes(&self, bytes: usize) -> Result<(), TxError>;

    /// Refuses when only the disk reserve is left, which is for writes that free space. A decision that frees none
    /// calls this before its first write, unless that is [`put_record`](Tx::put_record) or
    /// [`put_queue`](Tx::put_queue), which refuse by themselves. After the first write it refuses nothing.
    fn admit_update(&self) -> Result<(), TxError> {
        Ok(())
    }

    /// Lets this decision use the disk reserve: it frees space in the end, or a server cannot work without it.
    fn use_reserve(&mut self) {}

    /// The record under `key`, unless it has expired.
    fn record(&mut self, key: &str) -> Result<Option<Record>, TxError>;

    /// Writes a record. Returns its version, which is higher than that of any earlier write.
    fn put_record(&mut self, key: &str, value: Bytes, expires_at: Option<Timestamp>) -> Result<u64, TxError>;

    /// Removes a record.
    fn remove_record(&mut self, key: &str);

    /// Up to `limit` records whose keys begin with `prefix` and sort after `after`, in order.
    fn records(
        &mut self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Record)>, TxError>;

    /// Limits of queues, partitions and groups. Rules check them before they create any.
    fn limits(&self) -> StoreLimits;

    /// A queue by name.
    fn queue(&mut self, name: &str) -> Result<Option<Arc<Queue>>, TxError>;

    /// A queue by number.
    fn queue_by_id(&mut self, id: QueueId) -> Result<Option<Arc<Queue>>, TxError>;

    /// All queues, in the order of their creation.
    fn queues(&mut self) -> Result<Vec<Arc<Queue>>, TxError>;

    /// How many queues there are.
    fn queue_count(&mut self) -> Result<u64, TxError>;

    /// Creates a queue, or changes the one of that name.
    fn put_queue(&mut self, spec: QueueSpec) -> Result<Arc<Queue>, TxError>;

    /// Removes a queue with everything in it.
    fn remove_queue(&mut self, id: QueueId);

    /// A partition by name.
    fn partition(&mut self, queue: QueueId, name: &str) -> Result<Option<Partition>, TxError>;

    /// The number of a partition by name.
    fn partition_id(&mut self, queue: QueueId, name: &str) -> Result<Option<PartitionId>, TxError> {
        Ok(self.partition(queue, name)?.map(|partition| partition.id))
    }

    /// A partition by number.
    fn partition_by_id(&mut self, id: PartitionId) -> Result<Option<Partition>, TxError>;

    /// The partitions by name, which a backend may find faster together.
    fn partition_ids(&mut self, queue: QueueId, names: &[&str]) -> Result<Vec<Option<PartitionId>>, TxError> {
        let mut found = Vec::with_capacity(names.len());
        collect_misses(names, |name| {
            found.push(self.partition_id(queue, name)?);
            Ok(())
        })?;
        Ok(found)
    }

    /// Up to `limit` partitions of a queue, in the order of numbers, after `after`.
    fn partitions(
        &mut self,
        queue: QueueId,
        after: Option<PartitionId>,
        limit: usize,
    ) -> Result<Vec<Partition>, TxError>;

    /// How many partitions a queue has.
    fn partition_count(&mut self, queue: QueueId) -> Result<u64, TxError>;

    /// Whether a queue may have so many partitions more. The cost does not depend on their number; it may miss
    /// concurrent creations by other servers.
    fn has_partition_room(&mut self, queue: QueueId, partitions: u64) -> Result<bool, TxError>;

    /// Creates a partition that does not exist yet.
    fn create_partition(&mut self, queue: QueueId, name: &str) -> PartitionId;

    /// Appends messages and remembers their transaction ids for `remember` (at most twice as long). Returns their
    /// position.
    fn append(&mut self, partition: PartitionId, block: &MessageBlock, remember: Duration) -> Appended;

    /// The newest remembered message with a transaction id of this hash, even if retention has removed the message.
    fn find_remembered(
        &mut self,
        partition: PartitionId,
        id: IdHash,
    ) -> Result<Option<RememberedId>, TxError>;

    /// The remembered messages for all ids of a block: the index in the block, and the other message. A backend does
    /// this faster than one by one.
    fn find_all_remembered(
        &mut self,
        partition: PartitionId,
        block: &MessageBlock,
    ) -> Result<Vec<(usize, RememberedId)>, TxError> {
        let mut found = Vec::new();
        collect_misses(block.hashes().enumerate(), |(index, id)| {
            let Some(id) = id else { return Ok(()) };
            found.extend(self.find_remembered(partition, id)?.map(|known| (index, known)));
            Ok(())
        })?;
        Ok(found)
    }

    /// One message, if it is kept.
    fn message(&mut self, partition: PartitionId, offset: Offset) -> Result<Option<StoredMessage>, TxError>;

    /// The offset of the first kept message stored at or after `at`; the tail when there is none.
    fn offset_at(&mut self, partition: PartitionId, at: Timestamp) -> Result<Offset, TxError>;

    /// Marks a kept message as deleted for every group.
    fn delete_message(&mut self, partition: PartitionId, offset: Offset);

    /// Removes whole segments of messages before `start`.
    fn trim(&mut self, partition: PartitionId, start: Offset) -> Result<(), TxError>;

    /// A group of a queue by name.
    fn group(&mut self, queue: QueueId, name: &str) -> Result<Option<Arc<Group>>, TxError>;

    /// A group by number.
    fn group_by_id(&mut self, id: GroupId) -> Result<Option<Arc<Group>>, TxError>;

    /// All groups of a queue, by name.
    fn groups(&mut self, queue: QueueId) -> Result<Vec<Arc<Group>>, TxError>;

    /// How many groups a queue has.
    fn group_count(&mut self, queue: QueueId) -> Result<u64, TxError>;

    /// Creates a group. One of the same name is replaced: its cursors and leases are void.
    fn put_group(&mut self, queue: QueueId, spec: &GroupSpec<'_>) -> Arc<Group>;

    /// Changes where a group starts in partitions without a cursor.
    fn set_group_start(&mut self, id: GroupId, start: GroupStart);

    /// Removes a group with its cursors and leases.
    fn remove_group(&mut self, id: GroupId);

    /// The cursor of a group in a partition; `None` before its first [`put_cursor`](Tx::put_cursor).
    fn cursor(&mut self, group: GroupId, partition: PartitionId) -> Result<Option<Cursor>, TxError>;

    /// The partitions, by number, where a group has a cursor or starts after older messages. `None` if the backend
    /// stores a row for each group and partition anyway, so that reading every partition costs no more.
    fn placed_partitions(&mut self, _group: GroupId) -> Result<Option<Vec<PartitionId>>, TxError> {
        Ok(None)
    }

    /// Writes a cursor.
    fn put_cursor(&mut self, group: GroupId, partition: PartitionId, cursor: Cursor, durability: Durability);

    /// Up to `limit` partitions that may have messages for the group now: messages beyond its cursor, and
    /// `available_at` reached. The one that was offered longest ago comes first. The decision must answer each with
    /// [`put_cursor`](Tx::put_cursor).
    fn ready_partitions(&mut self, group: GroupId, limit: usize) -> Result<Vec<PartitionId>, TxError>;

    /// When the next partition with messages for the group, which is not available now, becomes available.
    fn next_ready_at(&mut self, group: GroupId) -> Result<Option<Timestamp>, TxError>;

    /// The partitions of a lease.
    fn leased_partitions(&mut self, lease: LeaseId) -> Result<Vec<(GroupId, PartitionId)>, TxError>;

    /// Unfinished messages of a group, without deleted ones. Where a group starts in the middle of a partition
    /// without a cursor, older messages may be counted, too.
    fn backlog(&mut self, group: GroupId) -> Result<u64, TxError>;

    /// Messages kept in a queue and not deleted.
    fn message_count(&mut self, queue: QueueId) -> Result<u64, TxError>;

    /// Writes or replaces a dead letter.
    fn put_dead_letter(&mut self, letter: DeadLetter);

    /// One dead letter.
    fn dead_letter(&mut self, key: &DeadLetterKey) -> Result<Option<DeadLetter>, TxError>;

    /// Removes a dead letter.
    fn remove_dead_letter(&mut self, key: &DeadLetterKey);

    /// Up to `limit` dead letters of a queue, the newest first, after the letter `after`.
    fn dead_letters(
        &mut self,
        queue: QueueId,
        after: Option<&DeadLetter>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, TxError>;

    /// Keys of up to `limit` dead letters of a queue after the key `after`, each with the time when the group gave up
    /// the message, without payloads. They come by partition, the oldest message of each first. The order of
    /// partitions depends on the backend.
    fn dead_letter_keys(
        &mut self,
        queue: QueueId,
        after: Option<&DeadLetterKey>,
        limit: usize,
    ) -> Result<Vec<(DeadLetterKey, Timestamp)>, TxError>;
}
