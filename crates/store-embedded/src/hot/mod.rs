//! What is kept in memory: every queue, partition, group and cursor, and which partitions have work for whom.
//!
//! Only the deciding thread touches it, so it needs no lock. Always: a group's `ready` line holds every
//! partition that was offered to it before, has messages for it and is available, and perhaps some that no longer are; its `later` set
//! holds exactly those that have messages and whose cursor says "not before"; its `backlog` is the sum of what
//! is unfinished in each partition. Not here: what is on disk (`tables`), what a lease
//! means (`baton-queue`).

mod group;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use baton_store::{Cursor, Event, Group, GroupStart, OffsetRanges, Partition, Queue};
use baton_types::{GroupId, LeaseId, Offset, PartitionId, QueueId, Timestamp};
use bytes::Bytes;
use hashbrown::HashTable;
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::xxh3_64;

use self::group::{GroupState, Slot};
use crate::dense::DenseMap;
use crate::name::Name;
use crate::tables::{cursor_value, partition_row, place_value};
use crate::tails::{CHUNK, Chunk, Tail};

/// Everything in memory.
#[derive(Default)]
pub struct Hot {
    queues: BTreeMap<QueueId, QueueState>,
    names: FxHashMap<Arc<str>, QueueId>,
    partitions: DenseMap<PartitionId, PartitionState>,
    groups: FxHashMap<GroupId, GroupState>,
    leases: FxHashMap<LeaseId, Vec<(GroupId, PartitionId)>>,
}

struct QueueState {
    row: Arc<Queue>,
    /// By name; the name itself stands in the partition.
    by_name: HashTable<PartitionId>,
    /// In the order of their ids.
    members: Vec<PartitionId>,
    groups: BTreeMap<Arc<str>, GroupId>,
    kept: u64,
}

/// A partition, and the last group of operations that changed it or a cursor on it.
struct PartitionState {
    queue: QueueId,
    name: Name,
    start: Offset,
    tail: Offset,
    created_at: Timestamp,
    first_at: Timestamp,
    last_at: Timestamp,
    deleted: Option<Box<OffsetRanges>>,
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

    fn kept(&self) -> u64 {
        let deleted = self.deleted.as_deref().map_or(0, OffsetRanges::len);
        self.tail.since(self.start).saturating_sub(deleted)
    }
}

impl Hot {
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
            kept: 0,
        };
        let id = row.id;
        self.queues.entry(id).or_insert(fresh).row = row;
    }

    /// Takes out a queue and tells which partitions and groups went with it.
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
    pub fn kept_in_all(&self) -> u64 {
        self.queues.values().map(|queue| queue.kept).sum()
    }

    pub fn kept(&self, queue: QueueId) -> u64 {
        self.queues.get(&queue).map_or(0, |queue| queue.kept)
    }

    // Partitions.

    pub fn partition_id(&self, queue: QueueId, name: &str) -> Option<PartitionId> {
        let same =
            |id: &PartitionId| self.partitions.get(id).is_some_and(|p| p.name.as_bytes() == name.as_bytes());
        self.queues.get(&queue)?.by_name.find(xxh3_64(name.as_bytes()), same).copied()
    }

    /// The same for many names. Among a million partitions most of the time is spent waiting for memory; step by step
    /// for all of them, instead of one after the other, these waits overlap.
    pub fn partition_ids(&self, queue: QueueId, names: &[&str]) -> Vec<Option<PartitionId>> {
        let Some(state) = self.queues.get(&queue) else { return vec![None; names.len()] };
        let likely = |name: &&str| state.by_name.find(xxh3_64(name.as_bytes()), |_| true).copied();
        let mut found: Vec<_> = names.iter().map(likely).collect();
        for (id, name) in found.iter_mut().zip(names) {
            let is_it = |id: &PartitionId| {
                self.partitions.get(id).is_some_and(|p| p.name.as_bytes() == name.as_bytes())
            };
            if !id.as_ref().is_some_and(is_it) {
                *id = self.partition_id(queue, name);
            }
        }
        found
    }

    pub fn partition(&self, id: PartitionId) -> Option<Partition> {
        self.partitions.get(&id).map(|partition| partition.row(id))
    }

    /// A partition as it is to stand on disk.
    pub fn partition_value(&self, id: PartitionId) -> Option<Bytes> {
        let partition = self.partitions.get(&id)?;
        let nothing = OffsetRanges::default();
        Some(partition_row(
            partition.queue,
            partition.name.as_str(),
            [partition.start, partition.tail],
            [partition.created_at, partition.first_at, partition.last_at],
            partition.deleted.as_deref().unwrap_or(&nothing),
        ))
    }

    pub fn has_partition(&self, id: PartitionId) -> bool {
        self.partitions.contains_key(&id)
    }

    pub fn partitions_len(&self) -> usize {
        self.partitions.len()
    }

    /// Where a partition ends.
    pub fn tail(&self, id: PartitionId) -> Option<Tail> {
        let partition = self.partitions.get(&id)?;
        let (tail, first_at, last_at) = (partition.tail, partition.first_at, partition.last_at);
        Some(Tail { partition: id, tail, first_at, last_at })
    }

    /// Moves the end of a partition to where it was once, if it is not further already. Not for a queue that has
    /// groups.
    pub fn restore_tail(&mut self, found: Tail) {
        let Some(partition) = self.partitions.get_mut(&found.partition) else { return };
        let Some(queue) = self.queues.get_mut(&partition.queue) else { return };
        if found.tail <= partition.tail {
            return;
        }
        if partition.start == partition.tail {
            partition.first_at = found.first_at;
        }
        queue.kept += found.tail.since(partition.tail);
        (partition.tail, partition.last_at) = (found.tail, found.last_at);
    }

    /// The first chunk from `from` on that has partitions, and these.
    pub fn chunk(&self, from: Chunk) -> Option<(Chunk, &[PartitionId])> {
        self.queues.range(from.0..).find_map(|(id, queue)| {
            let index = if *id == from.0 { from.1 } else { 0 };
            let rest = queue.members.get(usize::try_from(index).ok()?.checked_mul(CHUNK)?..)?;
            (!rest.is_empty()).then(|| ((*id, index), &rest[..rest.len().min(CHUNK)]))
        })
    }

    /// The first offset that a partition keeps.
    pub fn start(&self, id: PartitionId) -> Option<Offset> {
        self.partitions.get(&id).map(|partition| partition.start)
    }

    /// The last group of operations that changed the partition or a cursor on it.
    pub fn changed_in(&self, id: PartitionId) -> u64 {
        self.partitions.get(&id).map_or(0, |partition| partition.changed_in)
    }

    pub fn mark_changed(&mut self, id: PartitionId, group: u64) {
        if let Some(partition) = self.partitions.get_mut(&id) {
            partition.changed_in = group;
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

    /// Adds a partition; `false` when its queue is gone.
    pub fn put_partition(&mut self, row: Partition) -> bool {
        let Some(queue) = self.queues.get_mut(&row.queue) else { return false };
        let state = PartitionState {
            queue: row.queue,
            name: Name::new(&row.name),
            start: row.start,
            tail: row.tail,
            created_at: row.created_at,
            first_at: row.first_at,
            last_at: row.last_at,
            deleted: Some(row.deleted).filter(|d| !d.is_empty()).map(Box::new),
            changed_in: 0,
        };
        queue.kept += state.kept();
        queue.members.push(row.id);
        self.partitions.get_or_insert(row.id, state);
        let hash_of = |id: &PartitionId| self.partitions.get(id).map_or(0, |p| xxh3_64(p.name.as_bytes()));
        queue.by_name.insert_unique(xxh3_64(row.name.as_bytes()), row.id, hash_of);
        true
    }

    /// Moves the tail over `count` new messages stored at `created_at`. Tells the offset of the first, and the groups
    /// that begin exactly there.
    pub fn append(
        &mut self,
        id: PartitionId,
        count: u64,
        created_at: Timestamp,
        now: Timestamp,
        seq: u64,
        mut notify: impl FnMut(Event),
    ) -> (Offset, Vec<GroupId>) {
        let mut placed = Vec::new();
        let Some(partition) = self.partitions.get_mut(&id) else { return (Offset(0), placed) };
        let Some(queue) = self.queues.get_mut(&partition.queue) else { return (Offset(0), placed) };
        let (first, was_last_at) = (partition.tail, partition.last_at);
        if partition.start == partition.tail {
            partition.first_at = created_at;
        }
        partition.tail = first.plus(count);
        partition.last_at = created_at;
        partition.changed_in = seq;
        queue.kept += count;
        for group in queue.groups.values() {
            let Some(group) = self.groups.get_mut(group) else { continue };
            if group.append(id, partition, first, was_last_at, now) {
                placed.push(group.row.id);
            }
        }
        notify(Event::Appended { queue: partition.queue, partition: id });
        (first, placed)
    }

    /// Gives up the messages before `start`; the oldest kept one was stored at `first_at`.
    pub fn trim(&mut self, id: PartitionId, start: Offset, first_at: Timestamp) {
        self.reduce(id, |partition| {
            partition.start = start.min(partition.tail).max(partition.start);
            partition.first_at = first_at;
            if let Some(mut deleted) = partition.deleted.take() {
                deleted.remove_below(partition.start);
                partition.deleted = Some(deleted).filter(|deleted| !deleted.is_empty());
            }
        });
    }

    /// Marks a kept message as deleted.
    pub fn delete_message(&mut self, id: PartitionId, offset: Offset) {
        self.reduce(id, |partition| {
            if (partition.start..partition.tail).contains(&offset) {
                partition.deleted.get_or_insert_default().insert(offset);
            }
        });
    }

    /// Makes a change by which a partition holds less, and keeps all counters right.
    fn reduce(&mut self, id: PartitionId, change: impl FnOnce(&mut PartitionState)) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let Some(queue) = self.queues.get_mut(&partition.queue) else { return };
        let nobody = Slot::default();
        for group in queue.groups.values() {
            let Some(group) = self.groups.get_mut(group) else { continue };
            let slot = group.slots.get(&id).unwrap_or(&nobody);
            group.backlog = group.backlog.saturating_sub(slot.unfinished(group.row.start, partition));
        }
        queue.kept = queue.kept.saturating_sub(partition.kept());
        change(partition);
        queue.kept += partition.kept();
        for group in queue.groups.values() {
            let Some(group) = self.groups.get_mut(group) else { continue };
            let slot = group.slots.get(&id).unwrap_or(&nobody);
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

    /// Adds a group that has no cursors yet; `false` when its queue is gone. Tells which one it replaced.
    pub fn put_group(&mut self, row: Arc<Group>, now: Timestamp) -> (bool, Option<GroupId>) {
        let Some(queue) = self.queues.get_mut(&row.queue) else { return (false, None) };
        let replaced = queue.groups.insert(row.name.clone(), row.id);
        let mut group = GroupState::new(row.clone());
        match row.start {
            GroupStart::Oldest => group.backlog = queue.kept,
            GroupStart::At(_) => group.restart(&queue.members, &self.partitions, now),
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
        group.restart(&queue.members, &self.partitions, now);
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
                self.unlease(lease.id, id, partition);
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

    /// A group's place in a partition as it is to stand on disk.
    pub fn cursor_value(&self, group: GroupId, partition: PartitionId) -> Option<Bytes> {
        let group = self.groups.get(&group)?;
        let slot = group.slots.get(&partition)?;
        match group.row.start {
            _ if slot.written => Some(cursor_value(&slot.cursor)),
            GroupStart::At(at) if slot.placed => Some(place_value(slot.cursor.next, at)),
            _ => None,
        }
    }

    /// Takes back where a group that begins at a moment begins in a partition, if it still begins at that moment.
    pub fn restore_place(
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
        let slot = group.slots.get_or_insert(id, Slot::default());
        group.backlog = group.backlog.saturating_sub(slot.unfinished(GroupStart::At(at), partition));
        (slot.placed, slot.cursor.next) = (true, next);
        group.backlog += slot.unfinished(GroupStart::At(at), partition);
        group.place(id, partition, now);
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
        let slot = group.slots.get_or_insert(id, Slot::default());
        let before = slot.unfinished(start, partition);
        let had = slot.cursor.available_at <= now && slot.has_work(start, partition);
        let old = std::mem::replace(&mut slot.cursor, cursor);
        slot.written = true;
        let after = slot.unfinished(start, partition);
        group.backlog = (group.backlog + after).saturating_sub(before);
        let new_lease = slot.cursor.lease.as_ref().map(|lease| lease.id);
        let has = slot.cursor.available_at <= now && slot.has_work(start, partition);
        group.later.remove(&(old.available_at, id));
        if group.place(id, partition, now) || (has && !had) {
            notify(Event::Freed { queue: partition.queue, group: group_id, partition: id });
        }
        let old_lease = old.lease.map(|lease| lease.id);
        if old_lease != new_lease {
            if let Some(old) = old_lease {
                self.unlease(old, group_id, id);
            }
            if let Some(new) = new_lease {
                self.leases.entry(new).or_default().push((group_id, id));
            }
        }
    }

    /// Up to `limit` partitions with work that is available: those never offered first, then those offered longest ago.
    pub fn candidates(&mut self, group: GroupId, now: Timestamp, limit: usize) -> Vec<PartitionId> {
        let Some(group) = self.groups.get_mut(&group) else { return Vec::new() };
        let Some(queue) = self.queues.get(&group.row.queue) else { return Vec::new() };
        group.candidates(&queue.members, &self.partitions, now, limit)
    }

    pub fn next_available(&self, group: GroupId, now: Timestamp) -> Option<Timestamp> {
        let later = &self.groups.get(&group)?.later;
        later
            .range((Bound::Excluded((now, PartitionId(u64::MAX))), Bound::Unbounded))
            .next()
            .map(|(at, _)| *at)
    }

    pub fn leased(&self, lease: LeaseId) -> Vec<(GroupId, PartitionId)> {
        self.leases.get(&lease).cloned().unwrap_or_default()
    }

    fn unlease(&mut self, lease: LeaseId, group: GroupId, partition: PartitionId) {
        if let Some(places) = self.leases.get_mut(&lease) {
            places.retain(|place| *place != (group, partition));
            if places.is_empty() {
                self.leases.remove(&lease);
            }
        }
    }
}
