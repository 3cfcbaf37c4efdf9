//! The transaction over the rows of a batch.
//!
//! A read that misses a row notes the row and stops the decision. A write cannot return an error, so it notes
//! the row and unwinds ([`MissingRow`]); the decider catches that. Rules read before they write, so it is rare.
//!
//! Each kind of row has a module with the methods of [`Tx`] that concern it.

mod cursor;
mod dead_letter;
mod group;
mod message;
mod partition;
mod queue;
mod record;

use std::sync::Arc;
use std::time::Duration;

use baton_store::{
    Appended, Cursor, DeadLetter, DeadLetterKey, Durability, Group, GroupSpec, GroupStart, MessageBlock,
    Partition, Queue, QueueSpec, Record, RememberedId, SegmentCache, StoreLimits, StoredMessage, Tx, TxError,
};
use baton_types::{GroupId, IdHash, LeaseId, Offset, PartitionId, QueueId, Timestamp};
use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::state::batch::BatchState;
use crate::state::dedup::DedupIndex;
use crate::state::partition_limit::PartitionLimit;

/// Rows fetched beyond a page, because some may have been removed or expired meanwhile.
const SPARE_ROWS: usize = 8;

/// Numbers of partitions by queue and name, kept across batches: a partition never changes its number.
pub type PartitionNames = FxHashMap<QueueId, FxHashMap<Arc<str>, PartitionId>>;

/// The payload with which a write unwinds when it misses a row.
pub struct MissingRow;

fn unwind_for_missing_row() -> ! {
    std::panic::resume_unwind(Box::new(MissingRow))
}

/// The transaction of one decision.
pub struct PostgresTx<'a> {
    pub batch: &'a mut BatchState,
    pub names: &'a PartitionNames,
    pub dedup_index: &'a DedupIndex,
    pub cache: &'a SegmentCache,
    pub partition_limit: &'a PartitionLimit,
    /// How many new numbers the decision has taken.
    pub ids_taken: u64,
}

impl PostgresTx<'_> {
    fn mark_write(&mut self, durability: Durability) {
        self.batch.writes.summary.is_any = true;
        self.batch.writes.summary.needs_sync |= durability == Durability::Now;
        self.batch.push_undo(|_| ());
    }

    /// A number for a new queue, partition or group, from a block fetched before the decision.
    fn fresh_id(&mut self) -> u64 {
        match self.batch.ids.pop() {
            Some(id) => {
                self.ids_taken += 1;
                self.batch.push_undo(move |batch| batch.ids.push(id));
                id
            }
            None => {
                self.batch.missing.ids += 2 * self.ids_taken + 1;
                unwind_for_missing_row()
            }
        }
    }

    /// Unwinds unless the partition can be changed.
    fn require_partition(&mut self, id: PartitionId) {
        if !self.batch.prepare_to_change(id) {
            unwind_for_missing_row();
        }
    }

    /// Unwinds unless all partitions of a queue are in memory.
    fn require_whole_queue(&mut self, queue: QueueId) {
        if !self.batch.whole_queues.contains(&queue) {
            self.batch.missing.whole_queues.insert(queue);
            unwind_for_missing_row();
        }
    }

    /// The row of a partition, or `None` if it does not exist.
    fn read_partition(&mut self, id: PartitionId) -> Result<Option<Partition>, TxError> {
        if !self.batch.partitions.contains_key(&id) {
            self.batch.missing.partitions.insert(id);
            return Err(TxError::RowsMissing);
        }
        self.batch.read_partitions.insert(id);
        Ok(self.batch.entry(id).map(|entry| entry.row.clone()))
    }
}

impl Tx for PostgresTx<'_> {
    fn now(&self) -> Timestamp {
        self.batch.now
    }

    fn fresh_token(&mut self) -> u64 {
        self.batch.writes.summary.is_any = true;
        self.batch.clock.next_number().cast_unsigned()
    }

    fn admit_bytes(&self, _bytes: usize) -> Result<(), TxError> {
        Ok(())
    }

    fn record(&mut self, key: &str) -> Result<Option<Record>, TxError> {
        record::get(self, key)
    }

    fn put_record(&mut self, key: &str, value: Bytes, expires_at: Option<Timestamp>) -> Result<u64, TxError> {
        record::put(self, key, value, expires_at)
    }

    fn remove_record(&mut self, key: &str) {
        record::remove(self, key)
    }

    fn records(
        &mut self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Record)>, TxError> {
        record::page(self, prefix, after, limit)
    }

    fn limits(&self) -> StoreLimits {
        self.partition_limit.bounds
    }

    fn queue(&mut self, name: &str) -> Result<Option<Arc<Queue>>, TxError> {
        Ok(self.batch.catalog.queue(name))
    }

    fn queue_by_id(&mut self, id: QueueId) -> Result<Option<Arc<Queue>>, TxError> {
        Ok(self.batch.catalog.queue_by_id(id))
    }

    fn queues(&mut self) -> Result<Vec<Arc<Queue>>, TxError> {
        Ok(self.batch.catalog.queues())
    }

    fn queue_count(&mut self) -> Result<u64, TxError> {
        Ok(self.batch.catalog.queue_count())
    }

    fn put_queue(&mut self, spec: QueueSpec) -> Result<Arc<Queue>, TxError> {
        queue::put(self, spec)
    }

    fn remove_queue(&mut self, id: QueueId) {
        queue::remove(self, id)
    }

    fn partition(&mut self, queue: QueueId, name: &str) -> Result<Option<Partition>, TxError> {
        partition::find_by_name(self, queue, name)
    }

    fn partition_by_id(&mut self, id: PartitionId) -> Result<Option<Partition>, TxError> {
        self.read_partition(id)
    }

    fn partitions(
        &mut self,
        queue: QueueId,
        after: Option<PartitionId>,
        limit: usize,
    ) -> Result<Vec<Partition>, TxError> {
        partition::page(self, queue, after, limit)
    }

    fn partition_count(&mut self, queue: QueueId) -> Result<u64, TxError> {
        partition::count(self, queue)
    }

    fn has_partition_room(&mut self, queue: QueueId, partitions: u64) -> Result<bool, TxError> {
        partition::has_room(self, queue, partitions)
    }

    fn create_partition(&mut self, queue: QueueId, name: &str) -> PartitionId {
        partition::create(self, queue, name)
    }

    fn append(&mut self, partition: PartitionId, block: &MessageBlock, remember: Duration) -> Appended {
        message::append(self, partition, block, remember)
    }

    fn find_remembered(
        &mut self,
        partition: PartitionId,
        id: IdHash,
    ) -> Result<Option<RememberedId>, TxError> {
        message::remembered(self, partition, id)
    }

    fn message(&mut self, partition: PartitionId, offset: Offset) -> Result<Option<StoredMessage>, TxError> {
        message::get(self, partition, offset)
    }

    fn offset_at(&mut self, partition: PartitionId, at: Timestamp) -> Result<Offset, TxError> {
        message::offset_at(self, partition, at)
    }

    fn delete_message(&mut self, partition: PartitionId, offset: Offset) {
        message::delete(self, partition, offset)
    }

    fn trim(&mut self, partition: PartitionId, start: Offset) -> Result<(), TxError> {
        message::trim(self, partition, start)
    }

    fn group(&mut self, queue: QueueId, name: &str) -> Result<Option<Arc<Group>>, TxError> {
        Ok(self.batch.catalog.group(queue, name))
    }

    fn group_by_id(&mut self, id: GroupId) -> Result<Option<Arc<Group>>, TxError> {
        Ok(self.batch.catalog.group_by_id(id))
    }

    fn groups(&mut self, queue: QueueId) -> Result<Vec<Arc<Group>>, TxError> {
        Ok(self.batch.catalog.groups(queue))
    }

    fn group_count(&mut self, queue: QueueId) -> Result<u64, TxError> {
        Ok(self.batch.catalog.group_count(queue))
    }

    fn put_group(&mut self, queue: QueueId, spec: &GroupSpec<'_>) -> Arc<Group> {
        group::put(self, queue, spec)
    }

    fn set_group_start(&mut self, id: GroupId, start: GroupStart) {
        group::set_start(self, id, start)
    }

    fn remove_group(&mut self, id: GroupId) {
        group::remove(self, id)
    }

    fn cursor(&mut self, group: GroupId, partition: PartitionId) -> Result<Option<Cursor>, TxError> {
        cursor::get(self, group, partition)
    }

    fn put_cursor(&mut self, group: GroupId, partition: PartitionId, cursor: Cursor, durability: Durability) {
        cursor::put(self, group, partition, cursor, durability)
    }

    fn ready_partitions(&mut self, group: GroupId, limit: usize) -> Result<Vec<PartitionId>, TxError> {
        cursor::candidates(self, group, limit)
    }

    fn next_ready_at(&mut self, group: GroupId) -> Result<Option<Timestamp>, TxError> {
        cursor::next_available(self, group)
    }

    fn leased_partitions(&mut self, lease: LeaseId) -> Result<Vec<(GroupId, PartitionId)>, TxError> {
        cursor::leased(self, lease)
    }

    fn backlog(&mut self, group: GroupId) -> Result<u64, TxError> {
        group::backlog(self, group)
    }

    fn message_count(&mut self, queue: QueueId) -> Result<u64, TxError> {
        queue::message_count(self, queue)
    }

    fn put_dead_letter(&mut self, letter: DeadLetter) {
        dead_letter::put(self, letter)
    }

    fn dead_letter(&mut self, key: &DeadLetterKey) -> Result<Option<DeadLetter>, TxError> {
        dead_letter::get(self, key)
    }

    fn remove_dead_letter(&mut self, key: &DeadLetterKey) {
        dead_letter::remove(self, key)
    }

    fn dead_letters(
        &mut self,
        queue: QueueId,
        after: Option<&DeadLetter>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, TxError> {
        dead_letter::page(self, queue, after, limit)
    }

    fn dead_letter_keys(
        &mut self,
        queue: QueueId,
        after: Option<&DeadLetterKey>,
        limit: usize,
    ) -> Result<Vec<(DeadLetterKey, Timestamp)>, TxError> {
        dead_letter::keys(self, queue, after, limit)
    }
}
