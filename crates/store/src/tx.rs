//! The transaction: what a decision may read and write.

use std::sync::Arc;
use std::time::Duration;

use baton_types::{GroupId, IdHash, LeaseId, Offset, PartitionId, QueueId, Timestamp};
use bytes::Bytes;

use crate::{
    Cursor, DeadLetter, DeadLetterKey, Error, Group, GroupStart, MessageBlock, Partition, Queue, QueueSpec,
    Record, StoreLimits, StoredMessage,
};

/// Why a decision stopped before its end.
#[derive(Debug)]
pub enum TxError {
    /// A row is not at hand. The backend fetches it and runs the decision again from the start.
    RowsMissing,
    /// It cannot be done.
    Failed(Error),
}

impl From<Error> for TxError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Looks at every item before it tells that rows are missing, so that a backend fetches those of all of them together:
/// a decision that stops at each in turn would be run as often as there are items.
pub fn collect_misses<T>(
    items: impl IntoIterator<Item = T>,
    mut look: impl FnMut(T) -> Result<(), TxError>,
) -> Result<(), TxError> {
    let mut misses = false;
    for item in items {
        match look(item) {
            Err(TxError::RowsMissing) => misses = true,
            // It may look different once everything is there.
            Err(TxError::Failed(_)) if misses => {}
            outcome => outcome?,
        }
    }
    if misses { Err(TxError::RowsMissing) } else { Ok(()) }
}

/// When a write must be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Before the decision is answered.
    Now,
    /// Along with the next write that must be, or a little later. For what may be forgotten in a crash at no
    /// worse cost than doing it again.
    Soon,
}

/// Where appended messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The offset of the first; the others follow.
    pub first: Offset,
    /// When they count as stored: now, or the moment of messages that share a segment with them.
    pub created_at: Timestamp,
}

/// What is remembered of a transaction id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RememberedId {
    /// Where its message is, or was.
    pub offset: Offset,
    /// When that was stored, to the millisecond at least. An earlier version did not write it, and fewer bits of the
    /// hash: then only the message itself tells whether it has this id.
    pub created_at: Option<Timestamp>,
}

/// What a caller says of a group.
#[derive(Clone, Debug)]
pub struct GroupSpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where it begins.
    pub start: GroupStart,
    /// When it was first seen.
    pub subscribed_at: Timestamp,
    /// Whether it is only ever given the newest message of a partition.
    pub conflation: bool,
}

/// One atomic look at the tables, and the writes that follow from it.
///
/// A decision reads what it needs, decides, and then writes. It checks everything before its first write, sizes as they
/// are stored included. If it fails after that all the same, or panics, the backend undoes it, and only its caller gets
/// the error. Undo may be slow. Reads see the writes of the same and of every earlier decision. A read may answer
/// [`TxError::RowsMissing`], which the decision passes on with `?`; it is then run again, so it must have no effect
/// other than its writes. A try that is to count for nothing may have been shown rows of different moments, so a
/// decision refuses what cannot be, and does not rest on its never being seen.
///
/// To be correct, an implementation must
/// - run decisions as if one after the other;
/// - keep all writes of a decision or none, also over a crash, and none of one that failed;
/// - answer a decision only when its own writes made with [`Durability::Now`], and the writes it has read, are
///   on disk;
/// - let [`now`](Tx::now) rise strictly from one decision to the next, also over a restart, and give out no
///   token twice.
pub trait Tx {
    /// The store's time, the only one that expires anything. Strictly later than in any decision before.
    fn now(&self) -> Timestamp;

    /// A number higher than every one given before.
    fn fresh_token(&mut self) -> u64;

    /// Says whether `bytes` more of messages can be taken in.
    fn admit_bytes(&self, bytes: usize) -> Result<(), TxError>;

    /// Refuses when so little of the disk is left that only what frees space may be written. A decision that frees none calls
    /// this before its first write, unless that is [`put_record`](Tx::put_record) or [`put_queue`](Tx::put_queue), which
    /// refuse by themselves. After the first write it refuses nothing.
    fn admit_update(&self) -> Result<(), TxError> {
        Ok(())
    }

    /// From now on [`admit_update`](Tx::admit_update) refuses nothing: the decision frees space in the end, or a server
    /// cannot work without it.
    fn use_reserve(&mut self) {}

    /// The record under `key`, unless it has expired.
    fn record(&mut self, key: &str) -> Result<Option<Record>, TxError>;

    /// Writes a record and tells its version, which is higher than that of any record written before.
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

    /// How many queues, partitions and groups there may be. Rules ask before they create any.
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

    /// The same for many names, which a backend may find faster together.
    fn partition_ids(&mut self, queue: QueueId, names: &[&str]) -> Result<Vec<Option<PartitionId>>, TxError> {
        let mut found = Vec::with_capacity(names.len());
        collect_misses(names, |name| {
            found.push(self.partition_id(queue, name)?);
            Ok(())
        })?;
        Ok(found)
    }

    /// Up to `limit` partitions of a queue, by number, after `after`.
    fn partitions(
        &mut self,
        queue: QueueId,
        after: Option<PartitionId>,
        limit: usize,
    ) -> Result<Vec<Partition>, TxError>;

    /// How many partitions a queue has.
    fn partition_count(&mut self, queue: QueueId) -> Result<u64, TxError>;

    /// Whether a queue may have so many partitions more. This takes no longer when it has many; what other servers
    /// create at about the same time may be missed.
    fn has_partition_room(&mut self, queue: QueueId, partitions: u64) -> Result<bool, TxError>;

    /// Creates a partition that does not exist yet.
    fn create_partition(&mut self, queue: QueueId, name: &str) -> PartitionId;

    /// Appends messages, remembers their transaction ids for `remember` (perhaps longer, but less than twice as
    /// long), and tells where they now are.
    fn append(&mut self, partition: PartitionId, block: &MessageBlock, remember: Duration) -> Appended;

    /// The newest message stored under a transaction id with this hash that is still remembered, also when retention
    /// has removed the message.
    fn find_remembered(
        &mut self,
        partition: PartitionId,
        id: IdHash,
    ) -> Result<Option<RememberedId>, TxError>;

    /// The same for all messages of a block that have an id: which of them, and where the other is. To look for many at
    /// once takes a backend less time than one after the other.
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

    /// Gives up whole segments of messages before `start`.
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

    /// Changes where a group begins in partitions it has no cursor on.
    fn set_group_start(&mut self, id: GroupId, start: GroupStart);

    /// Removes a group with its cursors and leases.
    fn remove_group(&mut self, id: GroupId);

    /// How far a group is in a partition; `None` before its first [`put_cursor`](Tx::put_cursor).
    fn cursor(&mut self, group: GroupId, partition: PartitionId) -> Result<Option<Cursor>, TxError>;

    /// The partitions where a group's place is more than where the group begins, by number: it has a cursor there, or its
    /// first message follows older ones. `None` if the backend stores a row for each group and partition anyway, so that
    /// looking at every partition costs no more.
    fn placed_partitions(&mut self, _group: GroupId) -> Result<Option<Vec<PartitionId>>, TxError> {
        Ok(None)
    }

    /// Writes a cursor.
    fn put_cursor(&mut self, group: GroupId, partition: PartitionId, cursor: Cursor, durability: Durability);

    /// Up to `limit` partitions that may have something for the group now: messages beyond its place, and
    /// `available_at` reached. The one that was offered longest ago comes first. Each that is offered must be
    /// answered with [`put_cursor`](Tx::put_cursor).
    fn ready_partitions(&mut self, group: GroupId, limit: usize) -> Result<Vec<PartitionId>, TxError>;

    /// When the next partition that has messages for the group, and is not available now, becomes so.
    fn next_ready_at(&mut self, group: GroupId) -> Result<Option<Timestamp>, TxError>;

    /// Where a lease is held.
    fn leased_partitions(&mut self, lease: LeaseId) -> Result<Vec<(GroupId, PartitionId)>, TxError>;

    /// Messages that a group has not finished and that are not deleted. Where a group begins in the middle of a
    /// partition and has no cursor there yet, the older messages may be counted too.
    fn backlog(&mut self, group: GroupId) -> Result<u64, TxError>;

    /// Messages kept in a queue and not deleted.
    fn message_count(&mut self, queue: QueueId) -> Result<u64, TxError>;

    /// Writes a dead letter, in place of an earlier one with the same key.
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

    /// Keys of up to `limit` dead letters of a queue after the key `after`, each with the moment when the message was given
    /// up. No payload is read. They come by partition, the oldest message of each first. The order
    /// of partitions is the backend's own.
    fn dead_letter_keys(
        &mut self,
        queue: QueueId,
        after: Option<&DeadLetterKey>,
        limit: usize,
    ) -> Result<Vec<(DeadLetterKey, Timestamp)>, TxError>;
}
