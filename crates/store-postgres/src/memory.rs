//! What a group of decisions has read and written so far.
//!
//! Rows are fetched for the whole group, or carried over from the last one (`carried`), decisions change them here, and
//! what changed is written in one transaction. Always: a partition's row stands for everything in it, its slots,
//! segments and remembered ids; the commit fails when anybody else has changed one that a decision relied on, because
//! its row is locked, or because its version is compared. Every change notes how to take it back, so a decision that
//! stops half-way leaves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use baton_store::{
    DeadLetter, DeadLetterKey, Event, Partition, Record, RememberedId, Segment, SegmentHeader, Start,
};
use baton_types::{GroupId, IdHash, LeaseId, Offset, PartitionId, QueueId, Timestamp};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::clock::{Hybrid, number_of};
use crate::remembered::Run;
use crate::slot::Slot;
use crate::structure::Structure;
use crate::wanted::{LetterPlace, Wanted};

type Undo = Box<dyn FnOnce(&mut Memory) + Send>;

/// A partition with what groups know of it.
#[derive(Clone, Debug)]
pub struct Entry {
    pub row: Partition,
    pub slots: FxHashMap<GroupId, Slot>,
    /// The number of the last commit that changed anything of it.
    pub version: i64,
    /// Whether the commit fails when anybody else changes it before: it is locked or compared then.
    pub held: bool,
    /// Whether `slots` holds those of all groups.
    pub complete: bool,
    /// Whether it is not in the database yet.
    pub fresh: bool,
    /// The row as it was read.
    pub original: Partition,
    /// For each group the unfinished messages when it was read.
    pub original_unfinished: FxHashMap<GroupId, u64>,
}

impl Entry {
    /// As the database told it.
    pub fn stored(row: Partition, version: i64, held: bool, complete: bool) -> Self {
        let original = row.clone();
        let (slots, original_unfinished) = Default::default();
        Self { row, slots, version, held, complete, fresh: false, original, original_unfinished }
    }

    /// One that is not in the database yet.
    pub fn fresh(row: Partition) -> Self {
        Self { fresh: true, ..Self::stored(row, 0, true, true) }
    }

    /// Whether the slot of a group is in the database.
    pub fn is_stored(&self, group: GroupId) -> bool {
        self.original_unfinished.contains_key(&group)
    }
}

/// Messages of one partition that are filling a segment.
#[derive(Clone)]
pub struct Open {
    pub header: SegmentHeader,
    /// Room for the header, then the encoded messages.
    pub bytes: Vec<u8>,
}

impl Open {
    pub fn end(&self) -> Offset {
        self.header.base.plus(self.header.count.into())
    }
}

/// A group's line as far as it is known.
#[derive(Debug)]
pub struct Line {
    pub places: BTreeSet<(i64, PartitionId)>,
    /// Up to this place in line nothing is missing.
    pub covered: i64,
    /// How many were asked for.
    pub asked: usize,
    /// What comes after `covered`, as the database told it.
    pub later: Option<Later>,
    /// Whether an earlier group was told so.
    pub is_carried: bool,
}

impl Default for Line {
    fn default() -> Self {
        Self { places: BTreeSet::new(), covered: i64::MIN, asked: 0, later: None, is_carried: false }
    }
}

/// The first places in line that lie ahead.
#[derive(Debug)]
pub struct Later {
    pub places: Vec<(i64, PartitionId)>,
    /// Whether there are no more.
    pub all: bool,
}

/// A page of records or letters as the database told it.
#[derive(Debug)]
pub struct Page<P> {
    pub rows: usize,
    /// Where the last row stands.
    pub end: Option<P>,
    /// Whether there are no more.
    pub all: bool,
}

/// A page of the keys of dead letters as the database told it.
#[derive(Debug)]
pub struct LetterKeys {
    /// Each with the moment when the message was given up.
    pub keys: Vec<(DeadLetterKey, Timestamp)>,
    /// Whether there are no more.
    pub all: bool,
}

/// Where the first message at or after a moment was found, and for which moments that holds.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub after: Timestamp,
    pub until: Timestamp,
    pub offset: Offset,
}

/// See the module.
pub struct Memory {
    pub clock: Hybrid,
    /// The database's time at the group's beginning.
    pub base: Timestamp,
    pub now: Timestamp,
    pub structure: Structure,
    pub ids: Vec<u64>,
    pub partitions: FxHashMap<PartitionId, Option<Entry>>,
    /// Those that a decision has looked at, changed or not.
    pub relied: BTreeSet<PartitionId>,
    /// Whether some of them must not be carried over: not there, or not held.
    pub has_strays: bool,
    /// Whether another server has changed one that a decision has looked at.
    pub is_outdated: bool,
    pub names: FxHashMap<(QueueId, Arc<str>), Option<PartitionId>>,
    /// Queues of which every partition is here.
    pub all_of: FxHashSet<QueueId>,
    pub pages: FxHashMap<(QueueId, Option<PartitionId>, usize), Vec<PartitionId>>,
    pub lines: FxHashMap<GroupId, Line>,
    /// Whether a decision has found that there is nothing more in a line that was carried over.
    pub relies_on_lines: bool,
    pub kept: FxHashMap<QueueId, u64>,
    pub counts: FxHashMap<QueueId, u64>,
    pub backlogs: FxHashMap<GroupId, u64>,
    pub leases: FxHashMap<LeaseId, Vec<PartitionId>>,
    pub open: FxHashMap<PartitionId, Open>,
    pub closed: Vec<(PartitionId, Open)>,
    pub runs: Vec<(std::time::Duration, Run)>,
    pub fresh_ids: FxHashMap<(PartitionId, IdHash), (RememberedId, Timestamp)>,
    pub segments: BTreeMap<(PartitionId, Offset), Segment>,
    pub no_segment: FxHashSet<(PartitionId, Offset)>,
    pub times: FxHashMap<(PartitionId, Offset), Option<Timestamp>>,
    pub moments: FxHashMap<PartitionId, Vec<Moment>>,
    pub records: BTreeMap<String, Option<Record>>,
    /// The number that the records had when they were read.
    pub records_number: Option<i64>,
    /// Whether a decision has looked at any of them.
    pub relies_on_records: bool,
    /// Bytes of records that came here, as far as they were counted.
    pub record_bytes: usize,
    /// Records that were looked for in vain.
    pub absent: Vec<String>,
    pub record_pages: BTreeMap<(String, Option<String>), Page<String>>,
    pub letters: FxHashMap<DeadLetterKey, Option<DeadLetter>>,
    pub letter_pages: BTreeMap<(QueueId, Option<LetterPlace>), Page<LetterPlace>>,
    pub letter_key_pages: BTreeMap<(QueueId, Option<DeadLetterKey>), LetterKeys>,
    pub trimmed: BTreeMap<PartitionId, Offset>,
    pub wanted: Wanted,
    pub changed: Changed,
    pub events: Vec<Event>,
    undo: Vec<Undo>,
}

/// What is to be written. Something that was taken back may stay in here: it is written as it was.
#[derive(Default)]
pub struct Changed {
    pub queues: BTreeSet<QueueId>,
    pub groups: BTreeSet<GroupId>,
    pub partitions: BTreeSet<PartitionId>,
    pub slots: BTreeSet<(PartitionId, GroupId)>,
    pub records: BTreeSet<String>,
    pub letters: FxHashSet<DeadLetterKey>,
    pub created: bool,
    pub marks: Marks,
}

/// What decisions have done as a whole.
#[derive(Clone, Copy, Default)]
pub struct Marks {
    /// Whether anything was written at all, or a number drawn.
    pub any: bool,
    /// Whether something must be on disk before the answer.
    pub now: bool,
    /// Bytes of messages.
    pub bytes: usize,
}

impl Memory {
    pub fn new(clock: Hybrid, structure: Structure, ids: Vec<u64>) -> Self {
        Self {
            clock,
            base: clock.last(),
            now: clock.last(),
            structure,
            ids,
            partitions: FxHashMap::default(),
            relied: BTreeSet::new(),
            has_strays: false,
            is_outdated: false,
            names: FxHashMap::default(),
            all_of: FxHashSet::default(),
            pages: FxHashMap::default(),
            lines: FxHashMap::default(),
            relies_on_lines: false,
            kept: FxHashMap::default(),
            counts: FxHashMap::default(),
            backlogs: FxHashMap::default(),
            leases: FxHashMap::default(),
            open: FxHashMap::default(),
            closed: Vec::new(),
            runs: Vec::new(),
            fresh_ids: FxHashMap::default(),
            segments: BTreeMap::new(),
            no_segment: FxHashSet::default(),
            times: FxHashMap::default(),
            moments: FxHashMap::default(),
            records: BTreeMap::new(),
            records_number: None,
            relies_on_records: false,
            record_bytes: 0,
            absent: Vec::new(),
            record_pages: BTreeMap::new(),
            letters: FxHashMap::default(),
            letter_pages: BTreeMap::new(),
            letter_key_pages: BTreeMap::new(),
            trimmed: BTreeMap::new(),
            wanted: Wanted::default(),
            changed: Changed::default(),
            events: Vec::new(),
            undo: Vec::new(),
        }
    }

    // Decisions.

    /// A decision begins.
    pub fn begin(&mut self) {
        self.undo.clear();
        self.now = self.clock.next(self.base);
    }

    /// Whether the decision has done anything.
    pub fn has_done(&self) -> bool {
        !self.undo.is_empty()
    }

    /// Takes back everything that the decision has done.
    pub fn take_back(&mut self) {
        while let Some(undo) = self.undo.pop() {
            undo(self);
        }
    }

    pub fn undo(&mut self, undo: impl FnOnce(&mut Self) + Send + 'static) {
        self.undo.push(Box::new(undo));
    }

    pub fn tell(&mut self, event: Event) {
        let before = self.events.len();
        self.events.push(event);
        self.undo(move |memory| memory.events.truncate(before));
    }

    // Partitions and slots.

    /// A partition that is here, of a queue that exists.
    pub fn entry(&self, id: PartitionId) -> Option<&Entry> {
        let entry = self.partitions.get(&id)?.as_ref()?;
        self.structure.has_queue(entry.row.queue).then_some(entry)
    }

    /// Whether the partition can be changed: it is held with all its slots, or known not to exist.
    pub fn has_all_of(&mut self, id: PartitionId) -> bool {
        let here = match self.partitions.get(&id) {
            Some(Some(entry)) => entry.held && entry.complete,
            Some(None) => true,
            None => false,
        };
        if here {
            self.relied.insert(id);
        } else {
            self.wanted.partitions.insert(id);
        }
        here
    }

    /// Adds a row as the database told it, unless one that is as good is here. One of another version is out of date: it
    /// gives way, or the commit would fail.
    pub fn load(&mut self, told: Entry) {
        let (id, queue, name) = (told.row.id, told.row.queue, told.row.name.clone());
        self.clock.see(told.row.last_at);
        self.clock.see(told.row.created_at);
        self.clock.see_number(told.version);
        self.has_strays |= !told.held;
        let is_used = self.relied.contains(&id) || self.changed.partitions.contains(&id);
        match self.partitions.get_mut(&id) {
            Some(Some(entry)) if entry.held && told.held && entry.version != told.version && is_used => {
                self.is_outdated = true;
            }
            Some(Some(entry)) if !told.held || (entry.held && entry.version == told.version) => {
                entry.complete |= told.complete && entry.held == told.held
            }
            _ => {
                self.names.insert((queue, name), Some(id));
                if let Some(Some(old)) = self.partitions.insert(id, Some(told)) {
                    for (group, slot) in old.slots {
                        if let (Some(place), Some(line)) = (slot.line, self.lines.get_mut(&group)) {
                            line.places.remove(&(place, id));
                        }
                    }
                }
            }
        }
    }

    /// Adds a slot as the database told it, unless a younger one is here.
    pub fn load_slot(&mut self, partition: PartitionId, group: GroupId, slot: Slot) {
        let Some(row) = self.structure.group_by_id(group) else { return };
        let Some(Some(entry)) = self.partitions.get_mut(&partition) else { return };
        if entry.slots.contains_key(&group) {
            return;
        }
        self.clock.see(slot.cursor.last_pop_at);
        if let Some(lease) = &slot.cursor.lease {
            self.clock.see_number(lease.token.min(i64::MAX as u64).cast_signed());
        }
        entry.original_unfinished.insert(group, slot.unfinished(row.start, &entry.original));
        if let Some(place) = slot.line {
            self.lines.entry(group).or_default().places.insert((place, partition));
        }
        entry.slots.insert(group, slot);
    }

    /// Replaces a partition's row.
    pub fn put_row(&mut self, row: Partition) {
        let id = row.id;
        let Some(Some(entry)) = self.partitions.get_mut(&id) else { return };
        let old = std::mem::replace(&mut entry.row, row);
        self.changed.partitions.insert(id);
        self.undo(move |memory| {
            if let Some(Some(entry)) = memory.partitions.get_mut(&id) {
                entry.row = old;
            }
        });
    }

    /// Adds a partition that was not there, or takes one out.
    pub fn put_entry(&mut self, id: PartitionId, entry: Option<Entry>) {
        self.has_strays |= entry.is_none();
        let old = self.partitions.insert(id, entry);
        self.undo(move |memory| match old {
            Some(old) => drop(memory.partitions.insert(id, old)),
            None => drop(memory.partitions.remove(&id)),
        });
    }

    /// Replaces a slot and keeps the group's line right.
    pub fn put_slot(&mut self, partition: PartitionId, group: GroupId, slot: Slot) {
        let old = self.set_slot(partition, group, Some(slot));
        self.changed.slots.insert((partition, group));
        self.changed.partitions.insert(partition);
        self.undo(move |memory| drop(memory.set_slot(partition, group, old)));
    }

    fn set_slot(&mut self, partition: PartitionId, group: GroupId, slot: Option<Slot>) -> Option<Slot> {
        let entry = self.partitions.get_mut(&partition)?.as_mut()?;
        let line = self.lines.entry(group).or_default();
        let place = slot.as_ref().and_then(|slot| slot.line);
        let old = match slot {
            Some(slot) => entry.slots.insert(group, slot),
            None => entry.slots.remove(&group),
        };
        if let Some(place) = old.as_ref().and_then(|slot| slot.line) {
            line.places.remove(&(place, partition));
        }
        if let Some(place) = place {
            line.places.insert((place, partition));
        }
        old
    }

    /// Where a slot is to stand in line after something about it changed. `turn` puts it behind all others.
    pub fn place(&mut self, slot: &Slot, start: Start, row: &Partition, turn: bool) -> Option<i64> {
        if !slot.has_work(start, row) {
            return None;
        }
        if slot.cursor.available_at > self.now {
            return Some(number_of(slot.cursor.available_at));
        }
        match slot.line {
            Some(place) if !turn => Some(place),
            _ => Some(self.clock.number()),
        }
    }

    /// Puts every slot of a partition where it belongs after the partition changed.
    pub fn place_all(&mut self, id: PartitionId) {
        let Some(Some(entry)) = self.partitions.get(&id) else { return };
        let (row, slots) = (entry.row.clone(), entry.slots.clone());
        for (group, mut slot) in slots {
            let Some(start) = self.structure.group_by_id(group).map(|group| group.start) else { continue };
            slot.line = self.place(&slot, start, &row, false);
            self.put_slot(id, group, slot);
        }
    }

    /// The entries of a queue.
    pub fn entries_of(&self, queue: QueueId) -> impl Iterator<Item = &Entry> {
        let here = self.partitions.values().flatten();
        here.filter(move |entry| entry.row.queue == queue && self.structure.has_queue(queue))
    }

    /// The entries of a queue that were changed, or looked as if they would be.
    pub fn changed_of(&self, queue: QueueId) -> impl Iterator<Item = &Entry> {
        let changed = self.changed.partitions.iter().filter_map(|id| self.entry(*id));
        changed.filter(move |entry| entry.row.queue == queue)
    }

    /// Segments of a partition that are not in the database yet, oldest first.
    pub fn young(&self, partition: PartitionId) -> impl Iterator<Item = &Open> {
        let closed = self.closed.iter().filter(move |(id, _)| *id == partition).map(|(_, open)| open);
        closed.chain(self.open.get(&partition))
    }

    /// From now on appends get a time of their own.
    pub fn close_open(&mut self) {
        let open = std::mem::take(&mut self.open);
        let (before, opened) = (self.closed.len(), open.clone());
        self.closed.extend(open);
        self.undo(move |memory| {
            memory.closed.truncate(before);
            memory.open = opened;
        });
    }

    /// Lines that were told before may lack something by now.
    pub fn doubt_lines(&mut self) {
        for line in self.lines.values_mut() {
            (line.covered, line.later) = (i64::MIN, None);
        }
    }

    // Records and letters.

    /// Whether the number of the records is here, which their next change is to follow.
    pub fn knows_records(&mut self) -> bool {
        self.relies_on_records = true;
        self.records_number.is_some()
    }

    pub fn put_record(&mut self, key: &str, record: Option<Record>) {
        self.record_bytes += record.as_ref().map_or(0, |record| record.value.len());
        let old = self.records.insert(key.to_owned(), record);
        self.changed.records.insert(key.to_owned());
        let key = key.to_owned();
        self.undo(move |memory| match old {
            Some(old) => drop(memory.records.insert(key, old)),
            None => drop(memory.records.remove(&key)),
        });
    }

    pub fn put_letter(&mut self, key: DeadLetterKey, letter: Option<DeadLetter>) {
        let old = self.letters.insert(key.clone(), letter);
        self.changed.letters.insert(key.clone());
        self.undo(move |memory| match old {
            Some(old) => drop(memory.letters.insert(key, old)),
            None => {
                memory.letters.remove(&key);
                memory.changed.letters.remove(&key);
            }
        });
    }
}

/// Messages kept in a partition.
pub fn kept(row: &Partition) -> u64 {
    row.tail.since(row.start).saturating_sub(row.deleted.len())
}
