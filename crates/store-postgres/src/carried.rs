//! What a lane carries over from one group to the next, so that the next need not fetch it.
//!
//! Always: nothing of it is trusted. A commit fails, and an answer is not given, unless everything that decisions
//! looked at is still as it was. So another server that changes the same rows costs a try, never a wrong answer; and
//! after such a try a lane locks what it reads for a while, as if it carried nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use baton_store::Record;
use baton_types::{GroupId, PartitionId};
use rustc_hash::FxHashMap;

use crate::clock::number_of;
use crate::memory::{Entry, Line, Memory, Page};
use crate::structure::Structure;

/// Partitions are fetched again after this: by then others have had time to change them, and nobody was in a hurry. Of
/// records it is then asked before anything else whether they have changed: servers that nobody calls look at the same
/// few again and again.
pub const FOR: Duration = Duration::from_millis(50);
/// Partitions that are carried over.
const PARTITIONS_MAX: usize = 20_000;
/// Records, their pages and their bytes that are carried over.
const RECORDS_MAX: usize = 50_000;
const PAGES_MAX: usize = 1_000;
const RECORD_BYTES_MAX: usize = 32 << 20;

/// See the module.
#[derive(Default)]
pub struct Carried {
    partitions: FxHashMap<PartitionId, Option<Entry>>,
    lines: FxHashMap<GroupId, Line>,
    records: Records,
}

#[derive(Default)]
struct Records {
    rows: BTreeMap<String, Option<Record>>,
    pages: BTreeMap<(String, Option<String>), Page<String>>,
    number: Option<i64>,
    bytes: usize,
}

/// The numbers that a commit has given.
pub struct Numbers {
    pub version: i64,
    pub records: Option<i64>,
}

impl Carried {
    pub fn forget_partitions(&mut self) {
        (self.partitions, self.lines) = Default::default();
    }

    pub fn forget_records(&mut self) {
        self.records = Records::default();
    }

    pub fn has_records(&self) -> bool {
        self.records.number.is_some()
    }

    /// Puts it into the memory of the next group.
    pub fn hand_to(mut self, memory: &mut Memory) {
        let now = number_of(memory.base);
        for line in self.lines.values_mut() {
            // What comes later was told together with what is ready by then.
            line.later = line.later.take().filter(|_| line.covered >= now);
        }
        let Records { rows, pages, number, bytes } = self.records;
        memory.partitions = self.partitions;
        memory.lines = self.lines;
        memory.records = rows;
        memory.record_pages = pages;
        memory.records_number = number;
        memory.record_bytes = bytes;
    }

    /// Takes it from a group that is over, with the numbers of its commit if it had one.
    pub fn take_from(memory: &mut Memory, numbers: Option<&Numbers>) -> Self {
        let mut carried = Self::default();
        if memory.partitions.len() <= PARTITIONS_MAX {
            (carried.partitions, carried.lines) = (partitions(memory, numbers), lines(memory));
        }
        if memory.records.len() <= RECORDS_MAX
            && memory.record_pages.len() <= PAGES_MAX
            && memory.record_bytes <= RECORD_BYTES_MAX
        {
            carried.records = records(memory, numbers);
        }
        carried
    }
}

fn partitions(memory: &mut Memory, numbers: Option<&Numbers>) -> FxHashMap<PartitionId, Option<Entry>> {
    let mut partitions = std::mem::take(&mut memory.partitions);
    if let Some(numbers) = numbers {
        for id in &memory.changed.partitions {
            if let Some(Some(entry)) = partitions.get_mut(id) {
                settle(entry, numbers.version, &memory.structure);
            }
        }
    }
    if memory.has_strays {
        let lines = &mut memory.lines;
        partitions.retain(|id, entry| {
            let is_sure = entry.as_ref().is_some_and(|entry| entry.held);
            for (group, slot) in entry.iter().filter(|_| !is_sure).flat_map(|entry| &entry.slots) {
                if let (Some(place), Some(line)) = (slot.line, lines.get_mut(group)) {
                    line.places.remove(&(place, *id));
                }
            }
            is_sure
        });
    }
    partitions
}

/// From now on the database has it like this.
fn settle(entry: &mut Entry, version: i64, structure: &Structure) {
    entry.original = entry.row.clone();
    (entry.version, entry.fresh) = (version, false);
    for (group, slot) in &entry.slots {
        if let Some(group) = structure.group_by_id(*group) {
            entry.original_unfinished.insert(group.id, slot.unfinished(group.start, &entry.row));
        }
    }
}

fn lines(memory: &mut Memory) -> FxHashMap<GroupId, Line> {
    let mut lines = std::mem::take(&mut memory.lines);
    for line in lines.values_mut() {
        (line.asked, line.is_carried) = (0, true);
    }
    lines
}

fn records(memory: &mut Memory, numbers: Option<&Numbers>) -> Records {
    let mut rows = std::mem::take(&mut memory.records);
    // What is not there is told by pages, and otherwise asked for again.
    for key in memory.changed.records.iter().chain(&memory.absent) {
        if let Some(None) = rows.get(key) {
            rows.remove(key);
        }
    }
    let number = numbers.and_then(|numbers| numbers.records).or(memory.records_number);
    Records { rows, pages: std::mem::take(&mut memory.record_pages), number, bytes: memory.record_bytes }
}
