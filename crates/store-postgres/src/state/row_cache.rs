//! The row cache: rows that a writer keeps from one batch to the next, so that the next need not fetch them.
//!
//! Always: no cached row is trusted. A commit fails, and no answer is given, unless the whole read set is
//! unchanged. So a change by another server costs a retry, never a wrong answer. After such a conflict the
//! writer locks what it reads for some batches, without the cache.

use std::collections::BTreeMap;
use std::time::Duration;

use baton_store::Record;
use baton_types::{GroupId, PartitionId};
use rustc_hash::FxHashMap;

use crate::state::batch::{BatchState, FetchedPage, PartitionEntry, ReadyIndex};
use crate::state::catalog::Catalog;
use crate::state::hybrid_clock::to_number;

/// Partitions are fetched again after this time, because other servers may have changed them and the load is
/// low. Records stay cached, but their version is checked before anything else: idle servers read the same
/// few records again and again.
pub const CACHED_FOR: Duration = Duration::from_millis(50);
/// Cached partitions at most.
const CACHED_PARTITIONS_MAX: usize = 20_000;
/// Cached records, their pages and their bytes at most.
const CACHED_RECORDS_MAX: usize = 50_000;
const CACHED_RECORD_PAGES_MAX: usize = 1_000;
const CACHED_RECORD_BYTES_MAX: usize = 32 << 20;

/// Rows kept for the next batch.
#[derive(Default)]
pub struct RowCache {
    partitions: FxHashMap<PartitionId, Option<PartitionEntry>>,
    ready_indexes: FxHashMap<GroupId, ReadyIndex>,
    records: CachedRecords,
}

#[derive(Default)]
struct CachedRecords {
    rows: BTreeMap<String, Option<Record>>,
    pages: BTreeMap<(String, Option<String>), FetchedPage<String>>,
    version: Option<i64>,
    bytes: usize,
}

/// The versions that a commit gave to what it wrote.
pub struct CommitVersions {
    pub partitions: i64,
    pub records: Option<i64>,
}

impl RowCache {
    pub fn forget_partitions(&mut self) {
        (self.partitions, self.ready_indexes) = Default::default();
    }

    /// Forgets which partitions are ready, as the commit of any other server may change that. The entries of cached
    /// partitions stay: a fetch does not bring them again.
    pub fn forget_ready_indexes(&mut self) {
        for index in self.ready_indexes.values_mut() {
            (index.complete_up_to, index.upcoming, index.is_cached) = (i64::MIN, None, false);
        }
    }

    pub fn forget_records(&mut self) {
        self.records = CachedRecords::default();
    }

    pub fn has_records(&self) -> bool {
        self.records.version.is_some()
    }

    /// Moves the cached rows into the next batch.
    pub fn move_into(mut self, batch: &mut BatchState) {
        let now = to_number(batch.start_time);
        for index in self.ready_indexes.values_mut() {
            // Upcoming entries were fetched together with the entries before them, so they hold only while
            // those are complete.
            index.upcoming = index.upcoming.take().filter(|_| index.complete_up_to >= now);
        }
        let CachedRecords { rows, pages, version: number, bytes } = self.records;
        batch.partitions = self.partitions;
        batch.ready_indexes = self.ready_indexes;
        batch.records = rows;
        batch.record_pages = pages;
        batch.records_version = number;
        batch.record_bytes = bytes;
    }

    /// Takes the rows of a finished batch, with the versions that its commit gave.
    pub fn from_batch(batch: &mut BatchState, numbers: Option<&CommitVersions>) -> Self {
        let mut cache = Self::default();
        if batch.partitions.len() <= CACHED_PARTITIONS_MAX {
            (cache.partitions, cache.ready_indexes) =
                (cached_partitions(batch, numbers), cached_ready_indexes(batch));
        }
        if batch.records.len() <= CACHED_RECORDS_MAX
            && batch.record_pages.len() <= CACHED_RECORD_PAGES_MAX
            && batch.record_bytes <= CACHED_RECORD_BYTES_MAX
        {
            cache.records = cached_records(batch, numbers);
        }
        cache
    }
}

fn cached_partitions(
    batch: &mut BatchState,
    numbers: Option<&CommitVersions>,
) -> FxHashMap<PartitionId, Option<PartitionEntry>> {
    let mut partitions = std::mem::take(&mut batch.partitions);
    if let Some(numbers) = numbers {
        for id in &batch.writes.partitions {
            if let Some(Some(entry)) = partitions.get_mut(id) {
                mark_as_stored(entry, numbers.partitions, &batch.catalog);
            }
        }
    }
    if batch.has_uncacheable_partitions {
        let lines = &mut batch.ready_indexes;
        partitions.retain(|id, entry| {
            let is_sure = entry.as_ref().is_some_and(|entry| entry.is_guarded);
            for (group, slot) in entry.iter().filter(|_| !is_sure).flat_map(|entry| &entry.slots) {
                if let (Some(key), Some(index)) = (slot.ready_at, lines.get_mut(group)) {
                    index.entries.remove(&(key, *id));
                }
            }
            is_sure
        });
    }
    partitions
}

/// Marks the partition's present state as the stored one.
fn mark_as_stored(entry: &mut PartitionEntry, version: i64, structure: &Catalog) {
    entry.original = entry.row.clone();
    (entry.version, entry.is_new) = (version, false);
    for (group, slot) in &entry.slots {
        if let Some(group) = structure.group_by_id(*group) {
            entry.original_unfinished.insert(group.id, slot.unfinished_count(group.start, &entry.row));
        }
    }
}

fn cached_ready_indexes(batch: &mut BatchState) -> FxHashMap<GroupId, ReadyIndex> {
    let mut lines = std::mem::take(&mut batch.ready_indexes);
    for index in lines.values_mut() {
        (index.requested, index.is_cached) = (0, true);
    }
    lines
}

fn cached_records(batch: &mut BatchState, numbers: Option<&CommitVersions>) -> CachedRecords {
    let mut rows = std::mem::take(&mut batch.records);
    // Absent records are known from pages; others are fetched again.
    for key in batch.writes.records.iter().chain(&batch.absent_records) {
        if let Some(None) = rows.get(key) {
            rows.remove(key);
        }
    }
    let number = numbers.and_then(|numbers| numbers.records).or(batch.records_version);
    CachedRecords {
        rows,
        pages: std::mem::take(&mut batch.record_pages),
        version: number,
        bytes: batch.record_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_partition_stays_ready_when_ready_indexes_are_forgotten() {
        let (group, ready) = (GroupId(1), (5, PartitionId(2)));
        let index = ReadyIndex {
            entries: [ready].into(),
            complete_up_to: 10,
            is_cached: true,
            ..ReadyIndex::default()
        };
        let mut cache =
            RowCache { ready_indexes: [(group, index)].into_iter().collect(), ..RowCache::default() };
        cache.forget_ready_indexes();
        let index = &cache.ready_indexes[&group];
        assert!(index.entries.contains(&ready), "no fetch brings it again while its partition is cached");
        assert!(index.complete_up_to < ready.0 && !index.is_cached, "others are fetched again");
    }
}
