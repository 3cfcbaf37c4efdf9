//! A consumer group in memory: its cursors, and which partitions have work for it.
//!
//! Always: a partition takes memory in a group only after it was offered to the group, or if the group's offset in it
//! differs from the group's start. So a group that reads little of a queue with very many partitions costs little.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use baton_store::{Cursor, Group, GroupStart};
use baton_types::{Offset, PartitionId, Timestamp};

use super::dense_map::DenseMap;
use super::memory::PartitionState;

pub struct GroupState {
    pub row: Arc<Group>,
    /// Partitions from this one on were never offered to the group. They are not in `ready` or `later` unless they have
    /// a slot.
    unseen_from: PartitionId,
    pub slots: DenseMap<PartitionId, PartitionSlot>,
    pub ready: VecDeque<PartitionId>,
    pub later: BTreeSet<(Timestamp, PartitionId)>,
    pub backlog: u64,
}

/// One partition as one group sees it.
#[derive(Default)]
pub struct PartitionSlot {
    pub cursor: Cursor,
    /// Whether `cursor` was written. Otherwise the group's start counts.
    pub written: bool,
    /// Whether `cursor` has the offset at which the group begins, though no consumer wrote it.
    pub has_start: bool,
    /// Whether the partition is in the group's `ready` list.
    pub queued: bool,
}

impl PartitionSlot {
    /// The first message that the group may not have finished. For a group that begins in the middle of a partition
    /// and has no cursor, that is the oldest message.
    fn first_unfinished(&self, start: GroupStart, partition: &PartitionState) -> Option<Offset> {
        let known = self.written || self.has_start;
        if !known && matches!(start, GroupStart::At(at) if partition.last_at < at) {
            return None;
        }
        let next = if known { self.cursor.next } else { Offset(0) };
        Some(next.max(partition.start)).filter(|next| *next < partition.tail)
    }

    /// Whether there is a message that the group has not finished. It may be a deleted one, which the group must skip.
    pub fn has_work(&self, start: GroupStart, partition: &PartitionState) -> bool {
        let Some(from) = self.first_unfinished(start, partition) else { return false };
        let finished = self.cursor.finished.as_deref().map_or(0, |finished| finished.len_from(from));
        partition.tail.since(from) > finished
    }

    /// Messages of the partition that the group has not finished and that are not deleted.
    pub fn unfinished(&self, start: GroupStart, partition: &PartitionState) -> u64 {
        let Some(from) = self.first_unfinished(start, partition) else { return 0 };
        let done = match (self.cursor.finished.as_deref(), partition.deleted.as_deref()) {
            (None, None) => 0,
            (Some(one), None) | (None, Some(one)) => one.len_from(from),
            (Some(finished), Some(deleted)) => {
                let mut both = finished.clone();
                for (start, end) in deleted.ranges() {
                    both.insert_range(Offset(*start), Offset(*end));
                }
                both.len_from(from)
            }
        };
        partition.tail.since(from).saturating_sub(done)
    }
}

impl GroupState {
    pub fn new(row: Arc<Group>) -> Self {
        Self {
            row,
            unseen_from: PartitionId(0),
            slots: DenseMap::default(),
            ready: VecDeque::new(),
            later: BTreeSet::new(),
            backlog: 0,
        }
    }

    /// Counts the backlog anew and offers every partition again, after a change of the group's start.
    pub fn reset(
        &mut self,
        members: &[PartitionId],
        partitions: &DenseMap<PartitionId, PartitionState>,
        now: Timestamp,
    ) {
        (self.backlog, self.unseen_from) = (0, PartitionId(0));
        for id in members {
            let Some(partition) = partitions.get(id) else { continue };
            if let Some(slot) = self.slots.get_mut(id).filter(|slot| !slot.written) {
                slot.has_start = false;
            }
            self.backlog += self.unfinished(*id, partition);
            self.enqueue(*id, partition, now);
        }
    }

    fn unfinished(&self, id: PartitionId, partition: &PartitionState) -> u64 {
        let start = self.row.start;
        self.slots.get(&id).map_or_else(
            || PartitionSlot::default().unfinished(start, partition),
            |s| s.unfinished(start, partition),
        )
    }

    /// Counts messages that were appended to a partition, from `first` on, and enqueues the partition unless it will be
    /// offered anyway. Returns whether the group got a start offset in the partition that must be stored.
    pub fn count_append(
        &mut self,
        id: PartitionId,
        partition: &PartitionState,
        first: Offset,
        was_last_at: Timestamp,
        now: Timestamp,
    ) -> bool {
        let slot = self.slots.get(&id);
        let (has_slot, is_known) = (slot.is_some(), slot.is_some_and(|slot| slot.written || slot.has_start));
        let mut start = None;
        if let GroupStart::At(at) = self.row.start
            && !is_known
        {
            if partition.last_at < at {
                return false;
            }
            // All earlier messages are older than the group's start, so it begins exactly here.
            start = Some(first).filter(|first| was_last_at < at && *first > partition.start);
        }
        self.backlog += partition.tail.since(first);
        if !has_slot && start.is_none() && id >= self.unseen_from {
            return false;
        }
        let slot = self.slots.get_or_insert(id, PartitionSlot::default());
        if let Some(start) = start {
            (slot.has_start, slot.cursor.next) = (true, start);
        }
        self.enqueue(id, partition, now);
        start.is_some()
    }

    /// Up to `limit` partitions with available work: first those never offered, then those offered longest ago.
    pub fn take_candidates(
        &mut self,
        members: &[PartitionId],
        partitions: &DenseMap<PartitionId, PartitionState>,
        now: Timestamp,
        limit: usize,
    ) -> Vec<PartitionId> {
        while let Some((_, id)) = self.later.first().copied().filter(|(at, _)| *at <= now) {
            self.later.pop_first();
            if let Some(partition) = partitions.get(&id) {
                self.enqueue(id, partition, now);
            }
        }
        let offered_before = self.ready.len();
        let mut found = self.offer_unseen(members, partitions, limit);
        for _ in 0..offered_before {
            if found.len() >= limit {
                break;
            }
            let Some(id) = self.ready.pop_front() else { break };
            let (Some(slot), Some(partition)) = (self.slots.get_mut(&id), partitions.get(&id)) else {
                continue;
            };
            if slot.cursor.available_at > now || !slot.has_work(self.row.start, partition) {
                slot.queued = false;
                continue;
            }
            self.ready.push_back(id);
            found.push(id);
        }
        found
    }

    /// Up to `limit` partitions with work that were never offered. From now on they are in `ready`.
    fn offer_unseen(
        &mut self,
        members: &[PartitionId],
        partitions: &DenseMap<PartitionId, PartitionState>,
        limit: usize,
    ) -> Vec<PartitionId> {
        let mut found = Vec::new();
        let first = members.partition_point(|id| *id < self.unseen_from);
        for id in &members[first..] {
            if found.len() >= limit {
                break;
            }
            self.unseen_from = PartitionId(id.0 + 1);
            let has_work =
                partitions.get(id).is_some_and(|p| PartitionSlot::default().has_work(self.row.start, p));
            if has_work && !self.slots.contains_key(id) {
                self.slots.get_or_insert(*id, PartitionSlot { queued: true, ..PartitionSlot::default() });
                self.ready.push_back(*id);
                found.push(*id);
            }
        }
        found
    }

    /// Puts a changed partition into `ready` or `later`, where it belongs. Returns whether it is new in `ready`.
    pub fn enqueue(&mut self, id: PartitionId, partition: &PartitionState, now: Timestamp) -> bool {
        let start = self.row.start;
        let Some(slot) = self.slots.get_mut(&id) else { return false };
        if !slot.has_work(start, partition) {
            return false;
        }
        if slot.cursor.available_at > now {
            self.later.insert((slot.cursor.available_at, id));
            return false;
        }
        let newly = !slot.queued;
        if newly {
            slot.queued = true;
            self.ready.push_back(id);
        }
        newly
    }
}

#[cfg(test)]
mod tests {
    use baton_store::{Partition, Queue, QueueSpec};
    use baton_types::{GroupId, QueueId};

    use super::super::MemoryState;
    use super::*;

    const QUEUE: QueueId = QueueId(1);

    fn partitions(state: &mut MemoryState, ids: std::ops::Range<u64>) {
        for id in ids.map(PartitionId) {
            let created_at = Timestamp::from_micros(0);
            assert!(state.put_partition(Partition {
                id,
                queue: QUEUE,
                name: id.0.to_string().into(),
                start: Offset(0),
                tail: Offset(0),
                created_at,
                first_at: created_at,
                last_at: Timestamp::MIN,
                deleted: Default::default(),
            }));
        }
    }

    fn append(state: &mut MemoryState, ids: std::ops::Range<u64>, at: i64) {
        let at = Timestamp::from_micros(at);
        for id in ids {
            state.append(PartitionId(id), 2, at, at, 0, |_| ());
        }
    }

    fn group(state: &mut MemoryState, id: u64, start: GroupStart) -> GroupId {
        let (id, name) = (GroupId(id), id.to_string().into());
        let subscribed_at = Timestamp::from_micros(10);
        let row = Group { id, queue: QUEUE, name, start, subscribed_at, conflation: false };
        state.put_group(Arc::new(row), subscribed_at);
        id
    }

    #[test]
    fn a_group_takes_memory_only_for_partitions_that_it_was_offered() {
        let mut state = MemoryState::default();
        let spec = QueueSpec {
            name: "q".into(),
            namespace: "".into(),
            task: "".into(),
            options: Default::default(),
        };
        let created_at = Timestamp::from_micros(0);
        state.put_queue(Arc::new(Queue { id: QUEUE, created_at, spec }));
        partitions(&mut state, 0..1000);
        append(&mut state, 0..1000, 5);
        let all = group(&mut state, 1, GroupStart::Oldest);
        let new = group(&mut state, 2, GroupStart::At(Timestamp::from_micros(10)));
        let slots = |state: &MemoryState, group: GroupId| state.groups[&group].slots.len();
        let now = Timestamp::from_micros(20);
        assert_eq!((state.backlog(all), state.backlog(new)), (2000, 0));
        assert_eq!(state.ready_partitions(all, now, 3), [0, 1, 2].map(PartitionId));
        assert_eq!(state.ready_partitions(new, now, 3), []);
        assert_eq!((slots(&state, all), slots(&state, new)), (3, 0));
        partitions(&mut state, 1000..2000);
        append(&mut state, 500..2000, 20);
        assert_eq!((state.backlog(all), state.backlog(new)), (5000, 3000));
        // In partitions that the new group was past, it begins in the middle.
        assert_eq!((slots(&state, all), slots(&state, new)), (3, 500));
        let mut seen = BTreeSet::new();
        while seen.len() < 2000 {
            let found = state.ready_partitions(all, now, 300);
            assert!(!found.is_empty(), "{} of 2000 were offered", seen.len());
            seen.extend(found);
        }
        assert_eq!(state.ready_partitions(new, now, 5000).len(), 1500);
        state.remove_group(all);
        assert!(!state.groups.contains_key(&all) && state.ready_partitions(all, now, 1).is_empty());
    }
}
