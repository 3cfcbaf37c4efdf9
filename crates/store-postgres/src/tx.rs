//! The transaction on what was fetched.
//!
//! A read that misses a row notes it and stops the decision. A write has no way to say so: it notes the row and
//! breaks the decision off by unwinding ([`Missing`]), which is caught right outside. Rules read before they write,
//! so that is rare.
//!
//! What decisions touch has a module for each kind of it, with the methods of [`Tx`] that concern it.

mod cursor;
mod group;
mod letter;
mod message;
mod partition;
mod queue;
mod record;

use std::sync::Arc;
use std::time::Duration;

use baton_store::{
    Appended, Block, Bounds, Cache, Cursor, DeadLetter, DeadLetterKey, Durability, Group, GroupSpec,
    MessageView, Partition, Queue, QueueSpec, Record, RememberedId, Start, Stop, Tx,
};
use baton_types::{GroupId, IdHash, LeaseId, Offset, PartitionId, QueueId, Timestamp};
use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::memory::Memory;
use crate::remembered::Remembered;
use crate::room::Room;

/// Rows fetched beyond what a page asked for, because some of them may have been removed or run out meanwhile.
const SPARE_ROWS: usize = 8;

/// From names to numbers, kept over groups: a partition never changes its number.
pub type Names = FxHashMap<QueueId, FxHashMap<Arc<str>, PartitionId>>;

/// What a write unwinds with that missed a row.
pub struct Missing;

fn break_off() -> ! {
    std::panic::resume_unwind(Box::new(Missing))
}

/// A look at memory, and the writes of one decision.
pub struct PostgresTx<'a> {
    pub memory: &'a mut Memory,
    pub names: &'a Names,
    pub remembered: &'a Remembered,
    pub cache: &'a Cache,
    pub room: &'a Room,
    /// Numbers that the decision has taken.
    pub ids: u64,
}

impl PostgresTx<'_> {
    fn write(&mut self, durability: Durability) {
        self.memory.changed.marks.any = true;
        self.memory.changed.marks.now |= durability == Durability::Now;
        self.memory.undo(|_| ());
    }

    /// A number for something new. A block of them was fetched before the decision.
    fn fresh_id(&mut self) -> u64 {
        match self.memory.ids.pop() {
            Some(id) => {
                self.ids += 1;
                self.memory.undo(move |memory| memory.ids.push(id));
                id
            }
            None => {
                self.memory.wanted.ids += 2 * self.ids + 1;
                break_off()
            }
        }
    }

    /// Makes sure that the partition can be changed.
    fn need(&mut self, id: PartitionId) {
        if !self.memory.has_all_of(id) {
            break_off();
        }
    }

    /// Makes sure that all partitions of a queue are here.
    fn need_whole(&mut self, queue: QueueId) {
        if !self.memory.all_of.contains(&queue) {
            self.memory.wanted.all_of.insert(queue);
            break_off();
        }
    }

    /// A partition that can be read, or `None` when there is none.
    fn row(&mut self, id: PartitionId) -> Result<Option<Partition>, Stop> {
        if !self.memory.partitions.contains_key(&id) {
            self.memory.wanted.partitions.insert(id);
            return Err(Stop::Load);
        }
        self.memory.relied.insert(id);
        Ok(self.memory.entry(id).map(|entry| entry.row.clone()))
    }
}

impl Tx for PostgresTx<'_> {
    fn now(&self) -> Timestamp {
        self.memory.now
    }

    fn fresh_token(&mut self) -> u64 {
        self.memory.changed.marks.any = true;
        self.memory.clock.number().cast_unsigned()
    }

    fn admit(&self, _bytes: usize) -> Result<(), Stop> {
        Ok(())
    }

    fn record(&mut self, key: &str) -> Result<Option<Record>, Stop> {
        record::get(self, key)
    }

    fn put_record(&mut self, key: &str, value: Bytes, expires_at: Option<Timestamp>) -> Result<u64, Stop> {
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
    ) -> Result<Vec<(String, Record)>, Stop> {
        record::page(self, prefix, after, limit)
    }

    fn bounds(&self) -> Bounds {
        self.room.bounds
    }

    fn queue(&mut self, name: &str) -> Result<Option<Arc<Queue>>, Stop> {
        Ok(self.memory.structure.queue(name))
    }

    fn queue_by_id(&mut self, id: QueueId) -> Result<Option<Arc<Queue>>, Stop> {
        Ok(self.memory.structure.queue_by_id(id))
    }

    fn queues(&mut self) -> Result<Vec<Arc<Queue>>, Stop> {
        Ok(self.memory.structure.queues())
    }

    fn queue_count(&mut self) -> Result<u64, Stop> {
        Ok(self.memory.structure.queue_count())
    }

    fn put_queue(&mut self, spec: QueueSpec) -> Result<Arc<Queue>, Stop> {
        queue::put(self, spec)
    }

    fn remove_queue(&mut self, id: QueueId) {
        queue::remove(self, id)
    }

    fn partition(&mut self, queue: QueueId, name: &str) -> Result<Option<Partition>, Stop> {
        partition::named(self, queue, name)
    }

    fn partition_by_id(&mut self, id: PartitionId) -> Result<Option<Partition>, Stop> {
        self.row(id)
    }

    fn partitions(
        &mut self,
        queue: QueueId,
        after: Option<PartitionId>,
        limit: usize,
    ) -> Result<Vec<Partition>, Stop> {
        partition::page(self, queue, after, limit)
    }

    fn partition_count(&mut self, queue: QueueId) -> Result<u64, Stop> {
        partition::count(self, queue)
    }

    fn has_room(&mut self, queue: QueueId, partitions: u64) -> Result<bool, Stop> {
        partition::has_room(self, queue, partitions)
    }

    fn create_partition(&mut self, queue: QueueId, name: &str) -> PartitionId {
        partition::create(self, queue, name)
    }

    fn append(&mut self, partition: PartitionId, block: &Block, remember: Duration) -> Appended {
        message::append(self, partition, block, remember)
    }

    fn remembered(&mut self, partition: PartitionId, id: IdHash) -> Result<Option<RememberedId>, Stop> {
        message::remembered(self, partition, id)
    }

    fn message(&mut self, partition: PartitionId, offset: Offset) -> Result<Option<MessageView>, Stop> {
        message::get(self, partition, offset)
    }

    fn offset_at(&mut self, partition: PartitionId, at: Timestamp) -> Result<Offset, Stop> {
        message::offset_at(self, partition, at)
    }

    fn delete_message(&mut self, partition: PartitionId, offset: Offset) {
        message::delete(self, partition, offset)
    }

    fn trim(&mut self, partition: PartitionId, start: Offset) -> Result<(), Stop> {
        message::trim(self, partition, start)
    }

    fn group(&mut self, queue: QueueId, name: &str) -> Result<Option<Arc<Group>>, Stop> {
        Ok(self.memory.structure.group(queue, name))
    }

    fn group_by_id(&mut self, id: GroupId) -> Result<Option<Arc<Group>>, Stop> {
        Ok(self.memory.structure.group_by_id(id))
    }

    fn groups(&mut self, queue: QueueId) -> Result<Vec<Arc<Group>>, Stop> {
        Ok(self.memory.structure.groups(queue))
    }

    fn group_count(&mut self, queue: QueueId) -> Result<u64, Stop> {
        Ok(self.memory.structure.group_count(queue))
    }

    fn put_group(&mut self, queue: QueueId, spec: &GroupSpec<'_>) -> Arc<Group> {
        group::put(self, queue, spec)
    }

    fn set_start(&mut self, id: GroupId, start: Start) {
        group::set_start(self, id, start)
    }

    fn remove_group(&mut self, id: GroupId) {
        group::remove(self, id)
    }

    fn cursor(&mut self, group: GroupId, partition: PartitionId) -> Result<Option<Cursor>, Stop> {
        cursor::get(self, group, partition)
    }

    fn put_cursor(&mut self, group: GroupId, partition: PartitionId, cursor: Cursor, durability: Durability) {
        cursor::put(self, group, partition, cursor, durability)
    }

    fn candidates(&mut self, group: GroupId, limit: usize) -> Result<Vec<PartitionId>, Stop> {
        cursor::candidates(self, group, limit)
    }

    fn next_available(&mut self, group: GroupId) -> Result<Option<Timestamp>, Stop> {
        cursor::next_available(self, group)
    }

    fn leased(&mut self, lease: LeaseId) -> Result<Vec<(GroupId, PartitionId)>, Stop> {
        cursor::leased(self, lease)
    }

    fn backlog(&mut self, group: GroupId) -> Result<u64, Stop> {
        group::backlog(self, group)
    }

    fn kept(&mut self, queue: QueueId) -> Result<u64, Stop> {
        queue::kept(self, queue)
    }

    fn put_dead_letter(&mut self, letter: DeadLetter) {
        letter::put(self, letter)
    }

    fn dead_letter(&mut self, key: &DeadLetterKey) -> Result<Option<DeadLetter>, Stop> {
        letter::get(self, key)
    }

    fn remove_dead_letter(&mut self, key: &DeadLetterKey) {
        letter::remove(self, key)
    }

    fn dead_letters(
        &mut self,
        queue: QueueId,
        after: Option<&DeadLetter>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, Stop> {
        letter::page(self, queue, after, limit)
    }

    fn dead_letter_keys(
        &mut self,
        queue: QueueId,
        after: Option<&DeadLetterKey>,
        limit: usize,
    ) -> Result<Vec<(DeadLetterKey, Timestamp)>, Stop> {
        letter::keys(self, queue, after, limit)
    }
}
