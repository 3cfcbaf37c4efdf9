//! The state of a commit batch: the rows that its decisions have read and written.
//!
//! Rows are fetched for the whole batch or come from the last one (`row_cache`). Decisions change them here,
//! and one transaction writes what changed. Always: a partition's row stands for everything in it, its
//! slots, segments and remembered ids. The commit fails when another server has changed a partition that a
//! decision read, because the row is locked or its version is validated. Every change pushes an undo step,
//! so a decision that stops half-way leaves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use baton_store::{
    DeadLetter, DeadLetterKey, Event, GroupStart, Partition, Record, RememberedId, Segment, SegmentHeader,
};
use baton_types::{GroupId, IdHash, LeaseId, Offset, PartitionId, QueueId, Timestamp};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::state::catalog::Catalog;
use crate::state::dedup::DedupRun;
use crate::state::group_slot::GroupSlot;
use crate::state::hybrid_clock::{HybridClock, to_number};
use crate::state::missing_rows::{DeadLetterPosition, MissingRows};

type UndoStep = Box<dyn FnOnce(&mut BatchState) + Send>;

/// A partition with the slots of its groups.
#[derive(Clone, Debug)]
pub struct PartitionEntry {
    pub row: Partition,
    pub slots: FxHashMap<GroupId, GroupSlot>,
    /// The version that the last change of anything in it gave.
    pub version: i64,
    /// Whether the commit fails when another server changes it first: it is locked, or its version is
    /// validated.
    pub is_guarded: bool,
    /// Whether `slots` has the slots of all groups.
    pub has_all_slots: bool,
    /// Whether this batch creates it.
    pub is_new: bool,
    /// The row as it was fetched.
    pub original: Partition,
    /// For each group, the number of unfinished messages when the slot was fetched.
    pub original_unfinished: FxHashMap<GroupId, u64>,
}

impl PartitionEntry {
    /// A fetched partition.
    pub fn from_database(row: Partition, version: i64, held: bool, complete: bool) -> Self {
        let original = row.clone();
        let (slots, original_unfinished) = Default::default();
        Self {
            row,
            slots,
            version,
            is_guarded: held,
            has_all_slots: complete,
            is_new: false,
            original,
            original_unfinished,
        }
    }

    /// A partition that this batch creates.
    pub fn new_partition(row: Partition) -> Self {
        Self { is_new: true, ..Self::from_database(row, 0, true, true) }
    }

    /// Whether the slot of a group is in the database.
    pub fn has_stored_slot(&self, group: GroupId) -> bool {
        self.original_unfinished.contains_key(&group)
    }
}

/// The messages of one partition in this batch, on their way into one segment.
#[derive(Clone)]
pub struct OpenSegment {
    pub header: SegmentHeader,
    /// Room for the header, followed by the encoded messages.
    pub bytes: Vec<u8>,
}

impl OpenSegment {
    pub fn end(&self) -> Offset {
        self.header.base.plus(self.header.count.into())
    }
}

/// A group's part of the ready index, as far as it was fetched.
#[derive(Debug)]
pub struct ReadyIndex {
    pub entries: BTreeSet<(i64, PartitionId)>,
    /// Up to this key no entry is missing.
    pub complete_up_to: i64,
    /// How many entries the last fetch asked for.
    pub requested: usize,
    /// The entries after `complete_up_to`, as they were fetched.
    pub upcoming: Option<UpcomingEntries>,
    /// Whether it comes from an earlier batch.
    pub is_cached: bool,
}

impl Default for ReadyIndex {
    fn default() -> Self {
        Self {
            entries: BTreeSet::new(),
            complete_up_to: i64::MIN,
            requested: 0,
            upcoming: None,
            is_cached: false,
        }
    }
}

/// The next entries of the ready index that are not ready yet.
#[derive(Debug)]
pub struct UpcomingEntries {
    pub entries: Vec<(i64, PartitionId)>,
    /// Whether there are no more.
    pub is_complete: bool,
}

/// What is known of a fetched page of records or dead letters.
#[derive(Debug)]
pub struct FetchedPage<P> {
    pub rows: usize,
    /// The position of the last row.
    pub last: Option<P>,
    /// Whether there are no more.
    pub is_last_page: bool,
}

/// A fetched page of the keys of dead letters.
#[derive(Debug)]
pub struct DeadLetterKeyPage {
    /// Each with the time when the message was given up.
    pub keys: Vec<(DeadLetterKey, Timestamp)>,
    /// Whether there are no more.
    pub is_last_page: bool,
}

/// The result of a search for the first message at or after a time: it holds for times after `after` and up
/// to `until`.
#[derive(Clone, Copy, Debug)]
pub struct TimeLookup {
    pub after: Timestamp,
    pub until: Timestamp,
    pub offset: Offset,
}

/// The state of a commit batch.
pub struct BatchState {
    pub clock: HybridClock,
    /// The database's time when the batch began.
    pub start_time: Timestamp,
    pub now: Timestamp,
    pub catalog: Catalog,
    pub ids: Vec<u64>,
    pub partitions: FxHashMap<PartitionId, Option<PartitionEntry>>,
    /// The partitions that decisions have read, changed or not.
    pub read_partitions: BTreeSet<PartitionId>,
    /// Whether `partitions` has entries that the row cache must not keep: absent or not guarded.
    pub has_uncacheable_partitions: bool,
    /// Whether another server has changed a partition that a decision has read.
    pub has_conflict: bool,
    pub names: FxHashMap<(QueueId, Arc<str>), Option<PartitionId>>,
    /// Queues of which every partition is in memory.
    pub whole_queues: FxHashSet<QueueId>,
    pub partition_pages: FxHashMap<(QueueId, Option<PartitionId>, usize), Vec<PartitionId>>,
    pub ready_indexes: FxHashMap<GroupId, ReadyIndex>,
    /// Whether a decision relied on the end of a cached ready index, which the commit must validate.
    pub reads_ready_index: bool,
    pub message_counts: FxHashMap<QueueId, u64>,
    pub partition_counts: FxHashMap<QueueId, u64>,
    pub backlogs: FxHashMap<GroupId, u64>,
    pub leases: FxHashMap<LeaseId, Vec<PartitionId>>,
    pub open_segments: FxHashMap<PartitionId, OpenSegment>,
    pub closed_segments: Vec<(PartitionId, OpenSegment)>,
    pub dedup_runs: Vec<(std::time::Duration, DedupRun)>,
    pub new_dedup_ids: FxHashMap<(PartitionId, IdHash), (RememberedId, Timestamp)>,
    pub segments: BTreeMap<(PartitionId, Offset), Segment>,
    pub absent_segments: FxHashSet<(PartitionId, Offset)>,
    pub segment_times: FxHashMap<(PartitionId, Offset), Option<Timestamp>>,
    pub time_lookups: FxHashMap<PartitionId, Vec<TimeLookup>>,
    pub records: BTreeMap<String, Option<Record>>,
    /// The version of the records when they were fetched.
    pub records_version: Option<i64>,
    /// Whether a decision has read any record.
    pub reads_records: bool,
    /// Bytes of records that were fetched or written.
    pub record_bytes: usize,
    /// Keys that were fetched and have no record.
    pub absent_records: Vec<String>,
    pub record_pages: BTreeMap<(String, Option<String>), FetchedPage<String>>,
    pub dead_letters: FxHashMap<DeadLetterKey, Option<DeadLetter>>,
    pub dead_letter_pages: BTreeMap<(QueueId, Option<DeadLetterPosition>), FetchedPage<DeadLetterPosition>>,
    pub dead_letter_key_pages: BTreeMap<(QueueId, Option<DeadLetterKey>), DeadLetterKeyPage>,
    pub trimmed: BTreeMap<PartitionId, Offset>,
    pub missing: MissingRows,
    pub writes: WriteSet,
    pub events: Vec<Event>,
    undo_log: Vec<UndoStep>,
}

/// What the commit writes. A row whose change was undone may stay in here; it is written unchanged.
#[derive(Default)]
pub struct WriteSet {
    pub queues: BTreeSet<QueueId>,
    pub groups: BTreeSet<GroupId>,
    pub partitions: BTreeSet<PartitionId>,
    pub slots: BTreeSet<(PartitionId, GroupId)>,
    pub records: BTreeSet<String>,
    pub dead_letters: FxHashSet<DeadLetterKey>,
    pub creates_partitions: bool,
    pub summary: WriteSummary,
}

/// A summary of what the decisions of a batch have written.
#[derive(Clone, Copy, Default)]
pub struct WriteSummary {
    /// Whether anything was written, or a number drawn.
    pub is_any: bool,
    /// Whether a write must be durable before its answer.
    pub needs_sync: bool,
    /// Bytes of messages.
    pub message_bytes: usize,
}

impl BatchState {
    pub fn new(clock: HybridClock, structure: Catalog, ids: Vec<u64>) -> Self {
        Self {
            clock,
            start_time: clock.last(),
            now: clock.last(),
            catalog: structure,
            ids,
            partitions: FxHashMap::default(),
            read_partitions: BTreeSet::new(),
            has_uncacheable_partitions: false,
            has_conflict: false,
            names: FxHashMap::default(),
            whole_queues: FxHashSet::default(),
            partition_pages: FxHashMap::default(),
            ready_indexes: FxHashMap::default(),
            reads_ready_index: false,
            message_counts: FxHashMap::default(),
            partition_counts: FxHashMap::default(),
            backlogs: FxHashMap::default(),
            leases: FxHashMap::default(),
            open_segments: FxHashMap::default(),
            closed_segments: Vec::new(),
            dedup_runs: Vec::new(),
            new_dedup_ids: FxHashMap::default(),
            segments: BTreeMap::new(),
            absent_segments: FxHashSet::default(),
            segment_times: FxHashMap::default(),
            time_lookups: FxHashMap::default(),
            records: BTreeMap::new(),
            records_version: None,
            reads_records: false,
            record_bytes: 0,
            absent_records: Vec::new(),
            record_pages: BTreeMap::new(),
            dead_letters: FxHashMap::default(),
            dead_letter_pages: BTreeMap::new(),
            dead_letter_key_pages: BTreeMap::new(),
            trimmed: BTreeMap::new(),
            missing: MissingRows::default(),
            writes: WriteSet::default(),
            events: Vec::new(),
            undo_log: Vec::new(),
        }
    }

    // Operations.

    /// Begins an operation at a time of its own.
    pub fn begin_operation(&mut self) {
        self.undo_log.clear();
        self.now = self.clock.next_time(self.start_time);
    }

    /// Whether the operation has written anything.
    pub fn has_written(&self) -> bool {
        !self.undo_log.is_empty()
    }

    /// Undoes everything that the operation has done.
    pub fn undo_operation(&mut self) {
        while let Some(undo) = self.undo_log.pop() {
            undo(self);
        }
    }

    pub fn push_undo(&mut self, undo: impl FnOnce(&mut Self) + Send + 'static) {
        self.undo_log.push(Box::new(undo));
    }

    pub fn record_event(&mut self, event: Event) {
        let before = self.events.len();
        self.events.push(event);
        self.push_undo(move |batch| batch.events.truncate(before));
    }

    // Partitions and slots.

    /// A partition in memory, if its queue still exists.
    pub fn entry(&self, id: PartitionId) -> Option<&PartitionEntry> {
        let entry = self.partitions.get(&id)?.as_ref()?;
        self.catalog.has_queue(entry.row.queue).then_some(entry)
    }

    /// Whether the partition can be changed: it is guarded and has all slots, or is known not to exist. If
    /// not, notes it as missing.
    pub fn prepare_to_change(&mut self, id: PartitionId) -> bool {
        let here = match self.partitions.get(&id) {
            Some(Some(entry)) => entry.is_guarded && entry.has_all_slots,
            Some(None) => true,
            None => false,
        };
        if here {
            self.read_partitions.insert(id);
        } else {
            self.missing.partitions.insert(id);
        }
        here
    }

    /// Adds a fetched partition, unless the one in memory is as good. A cached entry of another version is
    /// out of date: it is replaced, or the batch has a conflict if a decision has used it.
    pub fn add_fetched_partition(&mut self, fetched: PartitionEntry) {
        let (id, queue, name) = (fetched.row.id, fetched.row.queue, fetched.row.name.clone());
        self.clock.observe(fetched.row.last_at);
        self.clock.observe(fetched.row.created_at);
        self.clock.observe_number(fetched.version);
        self.has_uncacheable_partitions |= !fetched.is_guarded;
        let is_used = self.read_partitions.contains(&id) || self.writes.partitions.contains(&id);
        match self.partitions.get_mut(&id) {
            Some(Some(entry))
                if entry.is_guarded && fetched.is_guarded && entry.version != fetched.version && is_used =>
            {
                self.has_conflict = true;
            }
            Some(Some(entry))
                if !fetched.is_guarded || (entry.is_guarded && entry.version == fetched.version) =>
            {
                entry.has_all_slots |= fetched.has_all_slots && entry.is_guarded == fetched.is_guarded
            }
            _ => {
                self.names.insert((queue, name), Some(id));
                if let Some(Some(old)) = self.partitions.insert(id, Some(fetched)) {
                    for (group, slot) in old.slots {
                        if let (Some(key), Some(index)) = (slot.ready_at, self.ready_indexes.get_mut(&group))
                        {
                            index.entries.remove(&(key, id));
                        }
                    }
                }
            }
        }
    }

    /// Adds a fetched slot, unless one is in memory.
    pub fn add_fetched_slot(&mut self, partition: PartitionId, group: GroupId, slot: GroupSlot) {
        let Some(row) = self.catalog.group_by_id(group) else { return };
        let Some(Some(entry)) = self.partitions.get_mut(&partition) else { return };
        if entry.slots.contains_key(&group) {
            return;
        }
        self.clock.observe(slot.cursor.last_pop_at);
        if let Some(lease) = &slot.cursor.lease {
            self.clock.observe_number(lease.token.min(i64::MAX as u64).cast_signed());
        }
        entry.original_unfinished.insert(group, slot.unfinished_count(row.start, &entry.original));
        if let Some(key) = slot.ready_at {
            self.ready_indexes.entry(group).or_default().entries.insert((key, partition));
        }
        entry.slots.insert(group, slot);
    }

    /// Replaces a partition's row.
    pub fn replace_row(&mut self, row: Partition) {
        let id = row.id;
        let Some(Some(entry)) = self.partitions.get_mut(&id) else { return };
        let old = std::mem::replace(&mut entry.row, row);
        self.writes.partitions.insert(id);
        self.push_undo(move |batch| {
            if let Some(Some(entry)) = batch.partitions.get_mut(&id) {
                entry.row = old;
            }
        });
    }

    /// Adds or removes a partition.
    pub fn put_entry(&mut self, id: PartitionId, entry: Option<PartitionEntry>) {
        self.has_uncacheable_partitions |= entry.is_none();
        let old = self.partitions.insert(id, entry);
        self.push_undo(move |batch| match old {
            Some(old) => drop(batch.partitions.insert(id, old)),
            None => drop(batch.partitions.remove(&id)),
        });
    }

    /// Replaces a slot and updates the ready index.
    pub fn put_slot(&mut self, partition: PartitionId, group: GroupId, slot: GroupSlot) {
        let old = self.set_slot(partition, group, Some(slot));
        self.writes.slots.insert((partition, group));
        self.writes.partitions.insert(partition);
        self.push_undo(move |batch| drop(batch.set_slot(partition, group, old)));
    }

    fn set_slot(
        &mut self,
        partition: PartitionId,
        group: GroupId,
        slot: Option<GroupSlot>,
    ) -> Option<GroupSlot> {
        let entry = self.partitions.get_mut(&partition)?.as_mut()?;
        let index = self.ready_indexes.entry(group).or_default();
        let key = slot.as_ref().and_then(|slot| slot.ready_at);
        let old = match slot {
            Some(slot) => entry.slots.insert(group, slot),
            None => entry.slots.remove(&group),
        };
        if let Some(key) = old.as_ref().and_then(|slot| slot.ready_at) {
            index.entries.remove(&(key, partition));
        }
        if let Some(key) = key {
            index.entries.insert((key, partition));
        }
        old
    }

    /// The `ready_at` of a slot after a change. `turn` moves it behind all other ready entries.
    pub fn ready_at_after_change(
        &mut self,
        slot: &GroupSlot,
        start: GroupStart,
        row: &Partition,
        turn: bool,
    ) -> Option<i64> {
        if !slot.has_work(start, row) {
            return None;
        }
        if slot.cursor.available_at > self.now {
            return Some(to_number(slot.cursor.available_at));
        }
        match slot.ready_at {
            Some(key) if !turn => Some(key),
            _ => Some(self.clock.next_number()),
        }
    }

    /// Updates `ready_at` of every slot of a partition that changed.
    pub fn update_ready_ats(&mut self, id: PartitionId) {
        let Some(Some(entry)) = self.partitions.get(&id) else { return };
        let (row, slots) = (entry.row.clone(), entry.slots.clone());
        for (group, mut slot) in slots {
            let Some(start) = self.catalog.group_by_id(group).map(|group| group.start) else { continue };
            slot.ready_at = self.ready_at_after_change(&slot, start, &row, false);
            self.put_slot(id, group, slot);
        }
    }

    /// The partitions of a queue that are in memory.
    pub fn partitions_of(&self, queue: QueueId) -> impl Iterator<Item = &PartitionEntry> {
        let here = self.partitions.values().flatten();
        here.filter(move |entry| entry.row.queue == queue && self.catalog.has_queue(queue))
    }

    /// The partitions of a queue in the write set.
    pub fn changed_partitions_of(&self, queue: QueueId) -> impl Iterator<Item = &PartitionEntry> {
        let changed = self.writes.partitions.iter().filter_map(|id| self.entry(*id));
        changed.filter(move |entry| entry.row.queue == queue)
    }

    /// The segments of a partition that this batch writes, oldest first.
    pub fn unwritten_segments(&self, partition: PartitionId) -> impl Iterator<Item = &OpenSegment> {
        let closed =
            self.closed_segments.iter().filter(move |(id, _)| *id == partition).map(|(_, open)| open);
        closed.chain(self.open_segments.get(&partition))
    }

    /// Closes open segments, so that later appends get a later time.
    pub fn close_open_segments(&mut self) {
        let open = std::mem::take(&mut self.open_segments);
        let (before, opened) = (self.closed_segments.len(), open.clone());
        self.closed_segments.extend(open);
        self.push_undo(move |batch| {
            batch.closed_segments.truncate(before);
            batch.open_segments = opened;
        });
    }

    /// Marks the cached ready indexes as incomplete, because another server has committed.
    pub fn invalidate_ready_indexes(&mut self) {
        for index in self.ready_indexes.values_mut() {
            (index.complete_up_to, index.upcoming) = (i64::MIN, None);
        }
    }

    // Records and dead letters.

    /// Whether the version of the records is known, which a write needs.
    pub fn prepare_to_write_records(&mut self) -> bool {
        self.reads_records = true;
        self.records_version.is_some()
    }

    pub fn put_record(&mut self, key: &str, record: Option<Record>) {
        self.record_bytes += record.as_ref().map_or(0, |record| record.value.len());
        let old = self.records.insert(key.to_owned(), record);
        self.writes.records.insert(key.to_owned());
        let key = key.to_owned();
        self.push_undo(move |batch| match old {
            Some(old) => drop(batch.records.insert(key, old)),
            None => drop(batch.records.remove(&key)),
        });
    }

    pub fn put_dead_letter(&mut self, key: DeadLetterKey, letter: Option<DeadLetter>) {
        let old = self.dead_letters.insert(key.clone(), letter);
        self.writes.dead_letters.insert(key.clone());
        self.push_undo(move |batch| match old {
            Some(old) => drop(batch.dead_letters.insert(key, old)),
            None => {
                batch.dead_letters.remove(&key);
                batch.writes.dead_letters.remove(&key);
            }
        });
    }
}

/// How many messages a partition keeps.
pub fn message_count(row: &Partition) -> u64 {
    row.tail.since(row.start).saturating_sub(row.deleted.len())
}
