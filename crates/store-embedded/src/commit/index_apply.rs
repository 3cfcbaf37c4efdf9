//! Applying commits to the index: after the fsync, many at once, off the path of answers.
//!
//! Always: commits are applied in their order, by one thread at a time. A thread that only adds a commit never waits for
//! that. After a commit that could not be applied no other is, so that the index has no gap.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use baton_store::Error;
use fjall::Database;
use rustc_hash::FxHashMap;

use crate::dedup::{PackedIds, append_to_files};
use crate::index::{RowWrite, SegmentIndex, SegmentRow, engine_error};
use crate::wal::{IndexedSegment, LogPosition, SegmentPlace};

/// This many commits are applied at once. Most of them write the same rows, of which the index gets only the last.
const COMMITS_AT_ONCE: usize = 32;
/// Or fewer with this many bytes, as their messages stay in memory until then.
const BYTES_AT_ONCE: u64 = 1 << 20;
/// With this many bytes commits are applied even if the engine is busy.
const BYTES_MAX: u64 = 32 << 20;

/// A commit that is in the log and not in the index.
pub struct PendingCommit {
    pub seq: u64,
    /// Bytes of its segments and rows.
    pub bytes: u64,
    /// The end of the log after it.
    pub end: LogPosition,
    pub writes: Vec<RowWrite>,
    pub ids: Vec<PackedIds>,
    pub segments: Vec<IndexedSegment>,
    /// Where its segments begin in the log.
    pub first: SegmentPlace,
    /// Whether it deletes or moves segments.
    pub frees: bool,
}

impl PendingCommit {
    /// Applies consecutive commits, of which only the first may free segments. Of several writes to a row only the last is
    /// applied.
    pub fn apply_all(commits: &[Self], db: &Database, index: &SegmentIndex) -> Result<(), Error> {
        if commits.first().is_some_and(|first| first.frees) {
            // A row must not be inserted after its removal.
            index.flush()?;
        }
        let writes = commits.iter().flat_map(|commit| &commit.writes);
        let last: FxHashMap<_, _> = writes.map(|write| ((write.table.id(), &write.key), write)).collect();
        let mut batch = db.batch();
        for write in last.into_values() {
            match &write.value {
                Some(value) => batch.insert(&write.table, write.key.clone(), value.clone()),
                None => batch.remove(&write.table, write.key.clone()),
            }
        }
        batch.commit().map_err(engine_error)?;
        append_to_files(commits.iter().flat_map(|commit| &commit.ids))?;
        commits.iter().try_for_each(|commit| index.add(commit.segment_rows()))
    }

    fn segment_rows(&self) -> impl Iterator<Item = SegmentRow> {
        self.segments.iter().map(|segment| {
            let place = SegmentPlace { at: self.first.at + segment.at, length: segment.length, ..self.first };
            SegmentRow { key: segment.key, place }
        })
    }
}

/// Commits that are durable in the log and not yet in the index.
pub struct ApplyQueue {
    pending: Mutex<Vec<PendingCommit>>,
    /// Held while commits are applied. True after a failure: a commit was begun and neither ended nor undone, not even by
    /// a panic.
    broken: Mutex<bool>,
    /// The last batch in the index.
    applied: AtomicU64,
    /// The end of the log after that batch.
    applied_end: Mutex<LogPosition>,
}

impl ApplyQueue {
    /// For an index that has the log up to `end`.
    pub fn new(end: LogPosition) -> Self {
        let (pending, broken, applied) = Default::default();
        Self { pending, broken, applied, applied_end: Mutex::new(end) }
    }

    /// Adds a commit that is in the log.
    pub fn push(&self, commit: PendingCommit) {
        self.pending().push(commit);
    }

    /// Whether enough commits are pending to apply them.
    pub fn is_due(&self) -> bool {
        let pending = self.pending();
        pending.len() >= COMMITS_AT_ONCE || sum_bytes(&pending) >= BYTES_AT_ONCE
    }

    /// Whether so many bytes are pending that applying them cannot wait.
    pub fn is_overdue(&self) -> bool {
        sum_bytes(&self.pending()) >= BYTES_MAX
    }

    /// Applies all pending commits to the index.
    pub fn apply_to_index(&self, db: &Database, index: &SegmentIndex) -> Result<(), Error> {
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        if *broken {
            return Err(Error::Closed("an earlier commit was not applied to it".into()));
        }
        let pending = std::mem::take(&mut *self.pending());
        for commits in pending.chunk_by(|_, next| !next.frees) {
            *broken = true;
            PendingCommit::apply_all(commits, db, index)?;
            *broken = false;
            if let Some(last) = commits.last() {
                self.applied.store(last.seq, Ordering::Release);
                *self.applied_end.lock().unwrap_or_else(PoisonError::into_inner) = last.end;
            }
        }
        Ok(())
    }

    /// The last batch in the index.
    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// The end of the log after the last batch in the index.
    pub fn applied_end(&self) -> LogPosition {
        *self.applied_end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self) -> MutexGuard<'_, Vec<PendingCommit>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sum_bytes(commits: &[PendingCommit]) -> u64 {
    commits.iter().map(|commit| commit.bytes).sum()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use baton_types::{Offset, PartitionId, Timestamp};

    use super::super::batch::CommitBatch;
    use super::super::group_commit::append_batch;
    use super::*;
    use crate::index::Tables;
    use crate::rows::segment_key;
    use crate::wal::{BatchSegments, Log};

    /// A log, an engine in the folder `engine`, and an empty queue.
    fn open_parts(directory: &Path) -> (Log, Database, Tables, SegmentIndex, ApplyQueue) {
        let log = Log::open(directory, 32 << 20, 0, |_, _, _| Ok(())).unwrap();
        let db = Database::builder(directory.join("engine")).open().unwrap();
        let tables = Tables::open(&db, 1 << 20).unwrap();
        let index = SegmentIndex::new(db.clone(), tables.segments.clone(), 4);
        let queue = ApplyQueue::new(log.end());
        (log, db, tables, index, queue)
    }

    #[test]
    fn after_a_commit_that_was_not_applied_no_other_is() {
        let directory = tempfile::tempdir().unwrap();
        let engine = directory.path().join("engine");
        let (mut log, db, tables, index, queue) = open_parts(directory.path());
        let mut commit = |seq: u64, freed: Vec<SegmentPlace>| {
            let mut segments = BatchSegments::default();
            segments
                .add(segment_key(PartitionId(seq), Offset(0), Timestamp::from_micros(1)), vec![1; 9].into());
            let batch = CommitBatch { seq, number: seq, segments, freed, ..CommitBatch::default() };
            queue.push(append_batch(&tables, &mut log, batch).unwrap());
        };
        commit(1, vec![]);
        queue.apply_to_index(&db, &index).unwrap();
        let end = queue.applied_end();
        assert_eq!(queue.applied(), 1);

        // The engine cannot create files.
        let (there, away) = (engine.join("keyspaces"), directory.path().join("away"));
        fs::rename(&there, &away).unwrap();
        commit(2, vec![SegmentPlace { file: 0, at: 0, length: 9 }]);
        commit(3, vec![]);
        assert!(queue.apply_to_index(&db, &index).is_err());
        assert_eq!((queue.applied(), queue.applied_end()), (1, end));

        // It can again, but the third commit must not be applied before the second.
        fs::rename(&away, &there).unwrap();
        commit(4, vec![]);
        assert!(queue.apply_to_index(&db, &index).is_err());
        assert_eq!((queue.applied(), queue.applied_end()), (1, end));
        assert_eq!(index.table().unwrap().iter().count(), 1, "the first commit is applied");
    }

    #[test]
    fn of_several_writes_to_a_row_the_last_is_applied() {
        let directory = tempfile::tempdir().unwrap();
        let (mut log, db, tables, index, queue) = open_parts(directory.path());
        let mut commit = |seq: u64, rows: &[(&[u8], Option<&[u8]>)], freed: Vec<SegmentPlace>| {
            let write = |(key, value): &(&[u8], Option<&[u8]>)| RowWrite {
                table: tables.records.clone(),
                key: (*key).into(),
                value: value.map(Into::into),
            };
            let batch = CommitBatch {
                seq,
                number: seq,
                writes: rows.iter().map(write).collect(),
                freed,
                ..CommitBatch::default()
            };
            queue.push(append_batch(&tables, &mut log, batch).unwrap());
        };
        let place = || vec![SegmentPlace { file: 0, at: 0, length: 9 }];
        commit(1, &[(b"again", Some(b"1")), (b"gone", Some(b"1")), (b"back", Some(b"1"))], vec![]);
        commit(2, &[(b"again", Some(b"2")), (b"back", None)], vec![]);
        commit(3, &[(b"again", Some(b"3")), (b"gone", None)], place());
        commit(4, &[(b"again", Some(b"4")), (b"back", Some(b"4"))], vec![]);
        queue.apply_to_index(&db, &index).unwrap();
        let get = |key: &str| tables.records.get(key).unwrap().map(|value| value.to_vec());
        assert_eq!((get("again"), get("gone"), get("back")), (Some(b"4".into()), None, Some(b"4".into())));
        assert_eq!((queue.applied(), queue.applied_end()), (4, log.end()));
    }
}
