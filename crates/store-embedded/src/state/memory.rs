//! Every queue, partition, consumer group and cursor, and the ready index: which partitions have work for which group.
//!
//! Only the thread that decides touches it, so it needs no lock. Always: a group's `ready` list has every partition that
//! was offered to the group before, has messages for it and is available, and perhaps some that no longer are. Its `later`
//! set has exactly the partitions with messages whose cursor is not available yet. Its `backlog` is the sum of unfinished
//! messages over all partitions. Not here: what is on disk (`rows`, `index`), what a lease means (`baton-queue`).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use baton_store::{Cursor, Event, Group, GroupStart, OffsetRanges, Partition, Queue};
use baton_types::{GroupId, LeaseId, Offset, PartitionId, QueueId, Timestamp};
use bytes::Bytes;
use hashbrown::HashTable;
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::xxh3_64;

use super::consumer_group::{GroupState, PartitionSlot};
use super::dense_map::DenseMap;
use super::inline_name::InlineName;
use super::partition_tail::{CHUNK_PARTITIONS, PartitionTail, TailChunk};
use crate::rows::{PartitionFields, encode_cursor, encode_partition, encode_start_offset};

/// Everything in memory.
#[derive(Default)]
pub struct MemoryState {
    queues: BTreeMap<QueueId, QueueState>,
    names: FxHashMap<Arc<str>, QueueId>,
    partitions: DenseMap<PartitionId, PartitionState>,
    pub(super) groups: FxHashMap<GroupId, GroupState>,
    leases: FxHashMap<LeaseId, Vec<(GroupId, PartitionId)>>,
}

struct QueueState {
    row: Arc<Queue>,
    /// By name. The name itself is stored in the partition.
    by_name: HashTable<PartitionId>,
    /// In the order of their ids.
    members: Vec<PartitionId>,
    groups: BTreeMap<Arc<str>, GroupId>,
    messages: u64,
}

/// A partition, and the last batch that changed it or a cursor on it.
pub struct PartitionState {
    queue: QueueId,
    name: InlineName,
    pub start: Offset,
    pub tail: Offset,
    created_at: Timestamp,
    first_at: Timestamp,
    pub last_at: Timestamp,
    pub deleted: Option<Box<OffsetRanges>>,
    changed_in: u64,
}

impl PartitionState {
    fn row(&self, id: PartitionId) -> Partition {
        Partition {
            id,
            queue: self.queue,
            name: self.name.as_str().into(),
            start: self.start,
            tail: self.tail,
            created_at: self.created_at,
            first_at: self.first_at,
            last_at: self.last_at,
            deleted: self.deleted.as_deref().cloned().unwrap_or_default(),
        }
    }

    fn message_count(&self) -> u64 {
        let deleted = self.deleted.as_deref().map_or(0, OffsetRanges::len);
        self.tail.since(self.start).saturating_sub(deleted)
    }
}

impl MemoryState {
    // Queues.

    pub fn queue(&self, name: &str) -> Option<Arc<Queue>> {
        self.names.get(name).and_then(|id| self.queue_by_id(*id))
    }

    pub fn queue_by_id(&self, id: QueueId) -> Option<Arc<Queue>> {
        self.queues.get(&id).map(|queue| queue.row.clone())
    }

    pub fn queues(&self) -> Vec<Arc<Queue>> {
        self.queues.values().map(|queue| queue.row.clone()).collect()
    }

    pub fn queue_count(&self) -> u64 {
        self.queues.len() as u64
    }

    pub fn put_queue(&mut self, row: Arc<Queue>) {
        self.names.insert(row.spec.name.clone(), row.id);
        let fresh = QueueState {
            row: row.clone(),
            by_name: HashTable::new(),
            members: Vec::new(),
            groups: BTreeMap::new(),
            messages: 0,
        };
        let id = row.id;
        self.queues.entry(id).or_insert(fresh).row = row;
    }

    /// Removes a queue. Returns the partitions and groups that were removed with it.
    pub fn remove_queue(&mut self, id: QueueId) -> (Vec<PartitionId>, Vec<GroupId>) {
        let Some(queue) = self.queues.remove(&id) else { return Default::default() };
        self.names.remove(&queue.row.spec.name);
        let groups: Vec<_> = queue.groups.into_values().collect();
        for group in &groups {
            self.drop_group(*group);
        }
        for partition in &queue.members {
            self.partitions.remove(partition);
        }
        (queue.members, groups)
    }

    #[cfg(test)]
    pub fn message_count_of_all(&self) -> u64 {
        self.queues.values().map(|queue| queue.messages).sum()
    }

    pub fn message_count(&self, queue: QueueId) -> u64 {
        self.queues.get(&queue).map_or(0, |queue| queue.messages)
    }

    // Partitions.

    pub fn partition_id(&self, queue: QueueId, name: &str) -> Option<PartitionId> {
        let same =
            |id: &PartitionId| self.partitions.get(id).is_some_and(|p| p.name.as_bytes() == name.as_bytes());
        self.queues.get(&queue)?.by_name.find(xxh3_64(name.as_bytes()), same).copied()
    }

    /// The partitions with these names. Among a million partitions most of the time goes into cache misses; here each
    /// step runs for all names, so that the misses overlap.
    pub fn partition_ids(&self, queue: QueueId, names: &[&str]) -> Vec<Option<PartitionId>> {
        let Some(state) = self.queues.get(&queue) else { return vec![None; names.len()] };
        let by_hash = |name: &&str| state.by_name.find(xxh3_64(name.as_bytes()), |_| true).copied();
        let mut found: Vec<_> = names.iter().map(by_hash).collect();
        for (id, name) in found.iter_mut().zip(names) {
            let has_name = |id: &PartitionId| {
                self.partitions.get(id).is_some_and(|p| p.name.as_bytes() == name.as_bytes())
            };
            if !id.as_ref().is_some_and(has_name) {
                *id = self.partition_id(queue, name);
            }
        }
        found
    }

    pub fn partition(&self, id: PartitionId) -> Option<Partition> {
        self.partitions.get(&id).map(|partition| partition.row(id))
    }

    /// The row of a partition.
    pub fn encode_partition(&self, id: PartitionId) -> Option<Bytes> {
        let partition = self.partitions.get(&id)?;
        Some(encode_partition(&PartitionFields {
            queue: partition.queue,
            name: partition.name.as_str(),
            start: partition.start,
            tail: partition.tail,
            created_at: partition.created_at,
            first_at: partition.first_at,
            last_at: partition.last_at,
            deleted: partition.deleted.as_deref().unwrap_or(&OffsetRanges::default()),
        }))
    }

    pub fn has_partition(&self, id: PartitionId) -> bool {
        self.partitions.contains_key(&id)
    }

    pub fn partitions_len(&self) -> usize {
        self.partitions.len()
    }

    pub fn partition_tail(&self, id: PartitionId) -> Option<PartitionTail> {
        let partition = self.partitions.get(&id)?;
        let (tail, first_at, last_at) = (partition.tail, partition.first_at, partition.last_at);
        Some(PartitionTail { partition: id, tail, first_at, last_at })
    }

    /// Moves the tail of a partition to a stored one, unless it is further already. The queue must not have groups yet.
    pub fn restore_tail(&mut self, found: PartitionTail) {
        let Some(partition) = self.partitions.get_mut(&found.partition) else { return };
        let Some(queue) = self.queues.get_mut(&partition.queue) else { return };
        if found.tail <= partition.tail {
            return;
        }
        if partition.start == partition.tail {
            partition.first_at = found.first_at;
        }
        queue.messages += found.tail.since(partition.tail);
        (partition.tail, partition.last_at) = (found.tail, found.last_at);
    }

    /// The first chunk from `from` on that has partitions, and its partitions.
    pub fn tail_chunk(&self, from: TailChunk) -> Option<(TailChunk, &[PartitionId])> {
        self.queues.range(from.0..).find_map(|(id, queue)| {
            let index = if *id == from.0 { from.1 } else { 0 };
            let rest = queue.members.get(usize::try_from(index).ok()?.checked_mul(CHUNK_PARTITIONS)?..)?;
            (!rest.is_empty()).then(|| ((*id, index), &rest[..rest.len().min(CHUNK_PARTITIONS)]))
        })
    }

    /// The oldest offset of a partition.
    pub fn start_offset(&self, id: PartitionId) -> Option<Offset> {
        self.partitions.get(&id).map(|partition| partition.start)
    }

    /// The last batch that changed the partition or a cursor on it.
    pub fn changed_in(&self, id: PartitionId) -> u64 {
        self.partitions.get(&id).map_or(0, |partition| partition.changed_in)
    }

    pub fn mark_changed(&mut self, id: PartitionId, batch: u64) {
        if let Some(partition) = self.partitions.get_mut(&id) {
            partition.changed_in = batch;
        }
    }

    pub fn partition_count(&self, queue: QueueId) -> u64 {
        self.queues.get(&queue).map_or(0, |queue| queue.members.len() as u64)
    }

    pub fn members(&self, queue: QueueId, after: Option<PartitionId>, limit: usize) -> Vec<PartitionId> {
        let Some(queue) = self.queues.get(&queue) else { return Vec::new() };
        let from = after.map_or(0, |after| queue.members.partition_point(|id| *id <= after));
        queue.members[from..].iter().take(limit).copied().collect()
    }

    /// Adds a partition; `false` if its queue does not exist.
    pub fn put_partition(&mut self, row: Partition) -> bool {
        let Some(queue) = self.queues.get_mut(&row.queue) else { return false };
        let state = PartitionState {
            queue: row.queue,
            name: InlineName::new(&row.name),
            start: row.start,
            tail: row.tail,
            created_at: row.created_at,
            first_at: row.first_at,
            last_at: row.last_at,
            deleted: Some(row.deleted).filter(|d| !d.is_empty()).map(Box::new),
            changed_in: 0,
        };
        queue.messages += state.message_count();
        queue.members.push(row.id);
        self.partitions.get_or_insert(row.id, state);
        let hash_of = |id: &PartitionId| self.partitions.get(id).map_or(0, |p| xxh3_64(p.name.as_bytes()));
        queue.by_name.insert_unique(xxh3_64(row.name.as_bytes()), row.id, hash_of);
        true
    }

    /// Moves the tail over `count` new messages stored at `created_at`. Returns the offset of the first, and the groups
    /// that begin exactly there.
    pub fn append(
        &mut self,
        id: PartitionId,
        count: u64,
        created_at: Timestamp,
        now: Timestamp,
        batch: u64,
        mut notify: impl FnMut(Event),
    ) -> (Offset, Vec<GroupId>) {
        let mut starting = Vec::new();
        let Some(partition) = self.partitions.get_mut(&id) else { return (Offset(0), starting) };
        let Some(queue) = self.queues.get_mut(&partition.queue) else { return (Offset(0), starting) };
        let (first, was_last_at) = (partition.tail, partition.last_at);
        if partition.start == partition.tail {
            partition.first_at = created_at;
        }
        partition.tail = first.plus(count);
        partition.last_at = created_at;
        partition.changed_in = batch;
        queue.messages += count;
        for group in queue.groups.values() {
            let Some(group) = self.groups.get_mut(group) else { continue };
            if group.count_append(id, partition, first, was_last_at, now) {
                starting.push(group.row.id);
            }
        }
        notify(Event::Appended { queue: partition.queue, partition: id });
        (first, starting)
    }

    /// Drops the messages before `start`. The oldest one left was stored at `first_at`.
    pub fn trim(&mut self, id: PartitionId, start: Offset, first_at: Timestamp) {
        self.shrink_partition(id, |partition| {
            partition.start = start.min(partition.tail).max(partition.start);
            partition.first_at = first_at;
            if let Some(mut deleted) = partition.deleted.take() {
                deleted.remove_below(partition.start);
                partition.deleted = Some(deleted).filter(|deleted| !deleted.is_empty());
            }
        });
    }

    /// Marks a message as deleted.
    pub fn delete_message(&mut self, id: PartitionId, offset: Offset) {
        self.shrink_partition(id, |partition| {
            if (partition.start..partition.tail).contains(&offset) {
                partition.deleted.get_or_insert_default().insert(offset);
            }
        });
    }

    /// Makes a change after which a partition has fewer messages, and updates all counters.
    fn shrink_partition(&mut self, id: PartitionId, change: impl FnOnce(&mut PartitionState)) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let Some(queue) = self.queues.get_mut(&partition.queue) else { return };
        let unseen = PartitionSlot::default();
        for group in queue.groups.values() {
            let Some(group) = self.groups.get_mut(group) else { continue };
            let slot = group.slots.get(&id).unwrap_or(&unseen);
            group.backlog = group.backlog.saturating_sub(slot.unfinished(group.row.start, partition));
        }
        queue.messages = queue.messages.saturating_sub(partition.message_count());
        change(partition);
        queue.messages += partition.message_count();
        for group in queue.groups.values() {
            let Some(group) = self.groups.get_mut(group) else { continue };
            let slot = group.slots.get(&id).unwrap_or(&unseen);
            group.backlog += slot.unfinished(group.row.start, partition);
            if !slot.has_work(group.row.start, partition) {
                group.later.remove(&(slot.cursor.available_at, id));
            }
        }
    }

    // Groups.

    pub fn group(&self, queue: QueueId, name: &str) -> Option<Arc<Group>> {
        let id = self.queues.get(&queue)?.groups.get(name)?;
        self.group_by_id(*id)
    }

    pub fn group_by_id(&self, id: GroupId) -> Option<Arc<Group>> {
        self.groups.get(&id).map(|group| group.row.clone())
    }

    pub fn groups(&self, queue: QueueId) -> Vec<Arc<Group>> {
        let Some(queue) = self.queues.get(&queue) else { return Vec::new() };
        queue.groups.values().filter_map(|id| self.group_by_id(*id)).collect()
    }

    pub fn group_count(&self, queue: QueueId) -> u64 {
        self.queues.get(&queue).map_or(0, |queue| queue.groups.len() as u64)
    }

    /// Adds a group without cursors; `false` if its queue does not exist. Also returns the group that it replaced.
    pub fn put_group(&mut self, row: Arc<Group>, now: Timestamp) -> (bool, Option<GroupId>) {
        let Some(queue) = self.queues.get_mut(&row.queue) else { return (false, None) };
        let replaced = queue.groups.insert(row.name.clone(), row.id);
        let mut group = GroupState::new(row.clone());
        match row.start {
            GroupStart::Oldest => group.backlog = queue.messages,
            GroupStart::At(_) => group.reset(&queue.members, &self.partitions, now),
        }
        if let Some(replaced) = replaced {
            self.drop_group(replaced);
        }
        self.groups.insert(row.id, group);
        (true, replaced)
    }

    /// Replaces a group's row; its cursors stay.
    pub fn change_group(&mut self, row: Arc<Group>, now: Timestamp) {
        let Some(group) = self.groups.get_mut(&row.id) else { return };
        let Some(queue) = self.queues.get(&row.queue) else { return };
        group.row = row;
        group.reset(&queue.members, &self.partitions, now);
    }

    pub fn remove_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.get(&id) else { return };
        if let Some(queue) = self.queues.get_mut(&group.row.queue) {
            queue.groups.remove(&group.row.name);
        }
        self.drop_group(id);
    }

    fn drop_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.remove(&id) else { return };
        for (partition, slot) in group.slots.into_entries() {
            if let Some(lease) = slot.cursor.lease {
                self.remove_lease(lease.id, id, partition);
            }
        }
    }

    pub fn backlog(&self, group: GroupId) -> u64 {
        self.groups.get(&group).map_or(0, |group| group.backlog)
    }

    // Cursors.

    pub fn cursor(&self, group: GroupId, partition: PartitionId) -> Option<Cursor> {
        self.written_cursor(group, partition).cloned()
    }

    pub fn written_cursor(&self, group: GroupId, partition: PartitionId) -> Option<&Cursor> {
        let slot = self.groups.get(&group)?.slots.get(&partition)?;
        slot.written.then_some(&slot.cursor)
    }

    /// The partitions where a group has a cursor or a start offset, by number.
    pub fn placed_partitions(&self, group: GroupId) -> Vec<PartitionId> {
        let Some(group) = self.groups.get(&group) else { return Vec::new() };
        let placed = group.slots.iter().filter(|(_, slot)| slot.written || slot.has_start);
        let mut ids: Vec<_> = placed.map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    /// The row of a cursor, or of a start offset where no cursor was written.
    pub fn encode_cursor(&self, group: GroupId, partition: PartitionId) -> Option<Bytes> {
        let group = self.groups.get(&group)?;
        let slot = group.slots.get(&partition)?;
        match group.row.start {
            _ if slot.written => Some(encode_cursor(&slot.cursor)),
            GroupStart::At(at) if slot.has_start => Some(encode_start_offset(slot.cursor.next, at)),
            _ => None,
        }
    }

    /// Restores the start offset of a group in a partition, if the group still begins at that moment.
    pub fn restore_start_offset(
        &mut self,
        group: GroupId,
        id: PartitionId,
        (next, at): (Offset, Timestamp),
        now: Timestamp,
    ) {
        let Some(partition) = self.partitions.get(&id) else { return };
        let Some(group) = self.groups.get_mut(&group).filter(|group| group.row.start == GroupStart::At(at))
        else {
            return;
        };
        let slot = group.slots.get_or_insert(id, PartitionSlot::default());
        group.backlog = group.backlog.saturating_sub(slot.unfinished(GroupStart::At(at), partition));
        (slot.has_start, slot.cursor.next) = (true, next);
        group.backlog += slot.unfinished(GroupStart::At(at), partition);
        group.enqueue(id, partition, now);
    }

    pub fn put_cursor(
        &mut self,
        group_id: GroupId,
        id: PartitionId,
        cursor: Cursor,
        now: Timestamp,
        notify: impl FnOnce(Event),
    ) {
        let Some(partition) = self.partitions.get(&id) else { return };
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let start = group.row.start;
        let slot = group.slots.get_or_insert(id, PartitionSlot::default());
        let before = slot.unfinished(start, partition);
        let had = slot.cursor.available_at <= now && slot.has_work(start, partition);
        let old = std::mem::replace(&mut slot.cursor, cursor);
        slot.written = true;
        let after = slot.unfinished(start, partition);
        group.backlog = (group.backlog + after).saturating_sub(before);
        let new_lease = slot.cursor.lease.as_ref().map(|lease| lease.id);
        let has = slot.cursor.available_at <= now && slot.has_work(start, partition);
        group.later.remove(&(old.available_at, id));
        if group.enqueue(id, partition, now) || (has && !had) {
            notify(Event::Freed { queue: partition.queue, group: group_id, partition: id });
        }
        let old_lease = old.lease.map(|lease| lease.id);
        if old_lease != new_lease {
            if let Some(old) = old_lease {
                self.remove_lease(old, group_id, id);
            }
            if let Some(new) = new_lease {
                self.leases.entry(new).or_default().push((group_id, id));
            }
        }
    }

    /// Up to `limit` partitions with available work: first those never offered, then those offered longest ago.
    pub fn ready_partitions(&mut self, group: GroupId, now: Timestamp, limit: usize) -> Vec<PartitionId> {
        let Some(group) = self.groups.get_mut(&group) else { return Vec::new() };
        let Some(queue) = self.queues.get(&group.row.queue) else { return Vec::new() };
        group.take_candidates(&queue.members, &self.partitions, now, limit)
    }

    pub fn next_ready_at(&self, group: GroupId, now: Timestamp) -> Option<Timestamp> {
        let later = &self.groups.get(&group)?.later;
        later
            .range((Bound::Excluded((now, PartitionId(u64::MAX))), Bound::Unbounded))
            .next()
            .map(|(at, _)| *at)
    }

    pub fn leased_partitions(&self, lease: LeaseId) -> Vec<(GroupId, PartitionId)> {
        self.leases.get(&lease).cloned().unwrap_or_default()
    }

    fn remove_lease(&mut self, lease: LeaseId, group: GroupId, partition: PartitionId) {
        if let Some(places) = self.leases.get_mut(&lease) {
            places.retain(|place| *place != (group, partition));
            if places.is_empty() {
                self.leases.remove(&lease);
            }
        }
    }
}
