//! The transaction of one operation: reads memory, and adds what it writes to the batch that is filling.
//!
//! Every read records the last batch that changed what it read (`depends_on`): the answer must wait until that batch is
//! durable. Each kind of row has a module with the methods of [`Tx`] that concern it.

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
    Partition, Queue, QueueSpec, Record, RememberedId, StoreLimits, StoredMessage, Tx, TxError,
};
use baton_types::{GroupId, IdHash, LeaseId, Offset, PartitionId, QueueId, Timestamp};
use bytes::Bytes;

use super::writer::Writer;

/// The transaction of one operation.
pub struct EmbeddedTx<'a> {
    writer: &'a mut Writer,
    /// Whether the operation has written anything.
    pub wrote: bool,
    /// Whether the operation has written something that must be on disk before its answer.
    pub needs_sync: bool,
    /// The batch that must be on disk before an answer with what the operation has read.
    pub depends_on: u64,
    /// Whether the operation may write below the reserve of the disk.
    uses_reserve: bool,
}

impl<'a> EmbeddedTx<'a> {
    pub fn new(writer: &'a mut Writer) -> Self {
        Self { writer, wrote: false, needs_sync: false, depends_on: 0, uses_reserve: false }
    }

    /// A number for a new queue, partition or group.
    fn fresh_id(&mut self) -> u64 {
        self.writer.counters.next_id += 1;
        self.writer.counters.next_id - 1
    }

    /// The operation reads what `batch` wrote.
    fn depend_on(&mut self, batch: u64) {
        self.depends_on = self.depends_on.max(batch);
    }

    fn depend_on_partition(&mut self, partition: PartitionId) {
        self.depend_on(self.writer.state.changed_in(partition));
    }

    /// The operation reads a queue or a group, or finds that it does not exist.
    fn depend_on_catalog(&mut self) {
        self.depend_on(self.writer.catalog_changed_in);
    }

    /// The operation reads something that many writes determine.
    fn depend_on_everything(&mut self) {
        let batch = &self.writer.batch;
        self.depend_on(if batch.needs_sync() { batch.seq() } else { batch.seq() - 1 });
    }

    fn mark_durable_write(&mut self) {
        (self.wrote, self.needs_sync) = (true, true);
    }

    fn mark_catalog_change(&mut self) {
        self.mark_durable_write();
        self.writer.shared.context.bump_catalog_version();
        self.writer.catalog_changed_in = self.writer.batch.seq();
    }

    fn mark_partition_change(&mut self, partition: PartitionId) {
        self.mark_durable_write();
        self.writer.batch.changed_partitions.insert(partition);
        self.writer.state.mark_changed(partition, self.writer.batch.seq());
    }
}

impl Tx for EmbeddedTx<'_> {
    fn now(&self) -> Timestamp {
        self.writer.last_now
    }

    fn fresh_token(&mut self) -> u64 {
        self.writer.counters.next_token(&mut self.writer.tokens)
    }

    fn admit_bytes(&self, _bytes: usize) -> Result<(), TxError> {
        self.writer.shared.check_free_space();
        Ok(self.writer.shared.free_space.admit_messages()?)
    }

    fn admit_update(&self) -> Result<(), TxError> {
        if self.wrote || self.uses_reserve {
            return Ok(());
        }
        self.writer.shared.check_free_space();
        Ok(self.writer.shared.free_space.admit_update()?)
    }

    fn use_reserve(&mut self) {
        self.uses_reserve = true;
    }

    fn limits(&self) -> StoreLimits {
        self.writer.shared.context.options.bounds
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

    fn queue(&mut self, name: &str) -> Result<Option<Arc<Queue>>, TxError> {
        self.depend_on_catalog();
        Ok(self.writer.state.queue(name))
    }

    fn queue_by_id(&mut self, id: QueueId) -> Result<Option<Arc<Queue>>, TxError> {
        self.depend_on_catalog();
        Ok(self.writer.state.queue_by_id(id))
    }

    fn queues(&mut self) -> Result<Vec<Arc<Queue>>, TxError> {
        self.depend_on_catalog();
        Ok(self.writer.state.queues())
    }

    fn queue_count(&mut self) -> Result<u64, TxError> {
        self.depend_on_catalog();
        Ok(self.writer.state.queue_count())
    }

    fn put_queue(&mut self, spec: QueueSpec) -> Result<Arc<Queue>, TxError> {
        queue::put(self, spec)
    }

    fn remove_queue(&mut self, id: QueueId) {
        queue::remove(self, id)
    }

    fn message_count(&mut self, queue: QueueId) -> Result<u64, TxError> {
        self.depend_on_everything();
        Ok(self.writer.state.message_count(queue))
    }

    fn partition(&mut self, queue: QueueId, name: &str) -> Result<Option<Partition>, TxError> {
        partition::find_by_name(self, queue, name)
    }

    fn partition_id(&mut self, queue: QueueId, name: &str) -> Result<Option<PartitionId>, TxError> {
        partition::find_id(self, queue, name)
    }

    fn partition_ids(&mut self, queue: QueueId, names: &[&str]) -> Result<Vec<Option<PartitionId>>, TxError> {
        partition::find_ids(self, queue, names)
    }

    fn partition_by_id(&mut self, id: PartitionId) -> Result<Option<Partition>, TxError> {
        self.depend_on_partition(id);
        Ok(self.writer.state.partition(id))
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
        self.depend_on_everything();
        Ok(self.writer.state.partition_count(queue))
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
        self.depend_on_partition(partition);
        Ok(self.writer.dedup.find(self.now(), partition, id))
    }

    fn find_all_remembered(
        &mut self,
        partition: PartitionId,
        block: &MessageBlock,
    ) -> Result<Vec<(usize, RememberedId)>, TxError> {
        self.depend_on_partition(partition);
        Ok(self.writer.dedup.find_all(self.now(), partition, block.hashes()))
    }

    fn message(&mut self, partition: PartitionId, offset: Offset) -> Result<Option<StoredMessage>, TxError> {
        message::read(self, partition, offset)
    }

    fn offset_at(&mut self, partition: PartitionId, at: Timestamp) -> Result<Offset, TxError> {
        message::find_offset_at(self, partition, at)
    }

    fn delete_message(&mut self, partition: PartitionId, offset: Offset) {
        message::delete(self, partition, offset)
    }

    fn trim(&mut self, partition: PartitionId, start: Offset) -> Result<(), TxError> {
        message::trim(self, partition, start)
    }

    fn group(&mut self, queue: QueueId, name: &str) -> Result<Option<Arc<Group>>, TxError> {
        self.depend_on_catalog();
        Ok(self.writer.state.group(queue, name))
    }

    fn group_by_id(&mut self, id: GroupId) -> Result<Option<Arc<Group>>, TxError> {
        self.depend_on_catalog();
        Ok(self.writer.state.group_by_id(id))
    }

    fn groups(&mut self, queue: QueueId) -> Result<Vec<Arc<Group>>, TxError> {
        self.depend_on_catalog();
        Ok(self.writer.state.groups(queue))
    }

    fn group_count(&mut self, queue: QueueId) -> Result<u64, TxError> {
        self.depend_on_catalog();
        Ok(self.writer.state.group_count(queue))
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

    fn backlog(&mut self, group: GroupId) -> Result<u64, TxError> {
        self.depend_on_everything();
        Ok(self.writer.state.backlog(group))
    }

    fn cursor(&mut self, group: GroupId, partition: PartitionId) -> Result<Option<Cursor>, TxError> {
        cursor::get(self, group, partition)
    }

    fn placed_partitions(&mut self, group: GroupId) -> Result<Option<Vec<PartitionId>>, TxError> {
        self.depend_on_everything();
        Ok(Some(self.writer.state.placed_partitions(group)))
    }

    fn put_cursor(&mut self, group: GroupId, partition: PartitionId, cursor: Cursor, durability: Durability) {
        cursor::put(self, group, partition, cursor, durability)
    }

    fn ready_partitions(&mut self, group: GroupId, limit: usize) -> Result<Vec<PartitionId>, TxError> {
        let now = self.now();
        Ok(self.writer.state.ready_partitions(group, now, limit))
    }

    fn next_ready_at(&mut self, group: GroupId) -> Result<Option<Timestamp>, TxError> {
        let now = self.now();
        Ok(self.writer.state.next_ready_at(group, now))
    }

    fn leased_partitions(&mut self, lease: LeaseId) -> Result<Vec<(GroupId, PartitionId)>, TxError> {
        cursor::leased_partitions(self, lease)
    }

    fn put_dead_letter(&mut self, letter: DeadLetter) {
        dead_letter::put(self, &letter)
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
        dead_letter::key_page(self, queue, after, limit)
    }
}
