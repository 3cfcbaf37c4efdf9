//! A consumer group in memory: where it is in each partition, and which of them have work for it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use baton_store::{Cursor, Group, Start};
use baton_types::{Offset, PartitionId, Timestamp};

use super::PartitionState;
use crate::dense::DenseMap;

pub struct GroupState {
    pub row: Arc<Group>,
    pub slots: DenseMap<PartitionId, Slot>,
    pub ready: VecDeque<PartitionId>,
    pub later: BTreeSet<(Timestamp, PartitionId)>,
    pub backlog: u64,
}

/// One partition as one group sees it.
#[derive(Default)]
pub struct Slot {
    pub cursor: Cursor,
    /// Whether `cursor` was written; otherwise the group's start counts.
    pub written: bool,
    /// Whether the place in `cursor` is known to be where the group begins, though nobody wrote it.
    pub placed: bool,
    /// Whether the partition stands in the group's `ready` line.
    pub queued: bool,
}

impl Slot {
    /// The first message that the group may not have finished, if there is one. For a group that begins in the
    /// middle of a partition without a cursor, that is the oldest kept.
    fn first_unfinished(&self, start: Start, partition: &PartitionState) -> Option<Offset> {
        let known = self.written || self.placed;
        if !known && matches!(start, Start::At(at) if partition.last_at < at) {
            return None;
        }
        let place = if known { self.cursor.next } else { Offset(0) };
        Some(place.max(partition.start)).filter(|place| *place < partition.tail)
    }

    /// Whether there is a message that the group has not finished. It may be a deleted one, which the group
    /// must still move over.
    pub fn has_work(&self, start: Start, partition: &PartitionState) -> bool {
        let Some(from) = self.first_unfinished(start, partition) else { return false };
        let finished = self.cursor.finished.as_deref().map_or(0, |finished| finished.len_from(from));
        partition.tail.since(from) > finished
    }

    /// Messages of the partition that the group has not finished and that are not deleted.
    pub fn unfinished(&self, start: Start, partition: &PartitionState) -> u64 {
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
        Self { row, slots: DenseMap::default(), ready: VecDeque::new(), later: BTreeSet::new(), backlog: 0 }
    }

    /// Counts and lines up the partitions that the group has no cursor on.
    pub fn begin(
        &mut self,
        members: &[PartitionId],
        partitions: &DenseMap<PartitionId, PartitionState>,
        now: Timestamp,
    ) {
        for id in members {
            let Some(partition) = partitions.get(id) else { continue };
            if self.slots.get(id).is_some_and(|slot| slot.written) {
                continue;
            }
            let slot = Slot::default();
            if slot.has_work(self.row.start, partition) {
                self.backlog += slot.unfinished(self.row.start, partition);
                self.slots.get_or_insert(*id, slot);
                self.place(*id, partition, now);
            }
        }
    }

    /// Puts a partition into the line it belongs to after something about it changed; tells whether it is
    /// newly in the line of those that are available.
    pub fn place(&mut self, id: PartitionId, partition: &PartitionState, now: Timestamp) -> bool {
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
