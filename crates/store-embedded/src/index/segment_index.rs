//! Which place in the log each segment has: the engine's table, and rows that are not in it yet.
//!
//! With a million partitions nearly every message is a segment, and a row of its own in the engine's write buffer is a
//! sixth of the cost of a message. So new rows wait in memory until a reader needs the table or there are many. Many
//! rows are sorted and become a sorted file of the engine at once, past its journal and its buffer. Always: a reader of
//! the table sees every row that was added before, or an error; of several rows with one key the last one counts. Not
//! here: rows that a crash takes away, which the log replays (`startup::replay`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use baton_store::Error;
use bytes::Bytes;
use fjall::{Database, Keyspace};

use super::engine_error;
use crate::rows::SEGMENT_KEY_BYTES;
use crate::wal::SegmentPlace;

/// With this many times `flush_at` rows in memory, the thread that adds rows flushes them itself.
const MEMORY_FACTOR: usize = 4;
/// From this fraction of `flush_at` on a sorted file is worth its fsyncs; fewer rows go through the engine's buffer.
const FILE_FRACTION: usize = 4;
/// Rows that share one allocation while they are written.
const ROWS_PER_BUFFER: usize = 1 << 10;
const ROW_BYTES: usize = SEGMENT_KEY_BYTES + SegmentPlace::BYTES;

/// A segment's key and its place in the log.
#[derive(Clone, Copy)]
pub struct SegmentRow {
    pub key: [u8; SEGMENT_KEY_BYTES],
    pub place: SegmentPlace,
}

pub struct SegmentIndex {
    db: Database,
    table: Keyspace,
    /// A flush is due at this many rows, of 48 bytes each.
    flush_at: usize,
    /// Rows that are not in the table yet, in the order of the commits.
    pending: Mutex<Vec<SegmentRow>>,
    /// Held during a flush. True if a panic lost rows during one.
    lost: Mutex<bool>,
    /// Whether a file is being ingested. Meanwhile the engine blocks all other callers.
    busy: AtomicBool,
}

impl SegmentIndex {
    pub fn new(db: Database, table: Keyspace, flush_at: usize) -> Self {
        let (pending, lost, busy) = Default::default();
        Self { db, table, flush_at, pending, lost, busy }
    }

    /// The engine's table, with every row that was added.
    pub fn table(&self) -> Result<&Keyspace, Error> {
        self.flush()?;
        Ok(&self.table)
    }

    /// Adds rows, which a later flush writes.
    pub fn add(&self, rows: impl Iterator<Item = SegmentRow>) -> Result<(), Error> {
        let len = {
            let mut pending = self.pending();
            pending.extend(rows);
            pending.len()
        };
        if len < MEMORY_FACTOR * self.flush_at { Ok(()) } else { self.flush() }
    }

    /// Whether so many rows are pending that it is time for a flush.
    pub fn is_flush_due(&self) -> bool {
        self.pending().len() >= self.flush_at
    }

    /// Whether a call to the engine would block now.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Writes all pending rows to the table.
    pub fn flush(&self) -> Result<(), Error> {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if *lost {
            return Err(Error::Closed("rows of the segment index were lost".into()));
        }
        let mut rows = std::mem::take(&mut *self.pending());
        if rows.is_empty() {
            return Ok(());
        }
        *lost = true;
        // The rows of a commit are in order already, which makes this sort fast.
        rows.sort_by_key(|row| key_numbers(row.key));
        rows.dedup_by(|later, kept| {
            let is_same = later.key == kept.key;
            if is_same {
                *kept = *later;
            }
            is_same
        });
        let few = rows.len() < self.flush_at / FILE_FRACTION;
        let written = if few { self.write_through_buffer(&rows) } else { self.ingest_file(&rows) };
        if written.is_err() {
            // Readers must not miss these rows, and the next flush may succeed.
            let mut pending = self.pending();
            rows.append(&mut pending);
            *pending = rows;
        }
        *lost = false;
        written.map_err(engine_error)
    }

    /// Writes rows through the engine's write buffer.
    fn write_through_buffer(&self, rows: &[SegmentRow]) -> fjall::Result<()> {
        let mut batch = self.db.batch();
        for (key, place) in encode_rows(rows) {
            batch.insert(&self.table, key, place);
        }
        batch.commit()
    }

    /// Makes one sorted file of the rows.
    fn ingest_file(&self, rows: &[SegmentRow]) -> fjall::Result<()> {
        self.busy.store(true, Ordering::Relaxed);
        let write = || {
            let mut file = self.table.start_ingestion()?;
            for (key, place) in encode_rows(rows) {
                file.write(key, place)?;
            }
            file.finish()
        };
        let written = write();
        self.busy.store(false, Ordering::Relaxed);
        written
    }

    fn pending(&self) -> MutexGuard<'_, Vec<SegmentRow>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The key as numbers that sort like it.
fn key_numbers(key: [u8; SEGMENT_KEY_BYTES]) -> [u64; 3] {
    std::array::from_fn(|at| {
        let mut number = [0; 8];
        number.copy_from_slice(&key[8 * at..8 * (at + 1)]);
        u64::from_be_bytes(number)
    })
}

/// Keys and places as the engine stores them. Some rows at a time share one allocation.
fn encode_rows(rows: &[SegmentRow]) -> impl Iterator<Item = (Bytes, Bytes)> {
    rows.chunks(ROWS_PER_BUFFER).flat_map(|some| {
        let mut bytes = Vec::with_capacity(ROW_BYTES * some.len());
        for row in some {
            bytes.extend_from_slice(&row.key);
            row.place.encode(&mut bytes);
        }
        let bytes = Bytes::from(bytes);
        (0..some.len()).map(move |at| {
            let row = bytes.slice(at * ROW_BYTES..(at + 1) * ROW_BYTES);
            (row.slice(..SEGMENT_KEY_BYTES), row.slice(SEGMENT_KEY_BYTES..))
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use baton_types::{Offset, PartitionId, Timestamp};
    use fjall::KeyspaceCreateOptions;

    use super::*;
    use crate::rows::segment_key;

    fn row(partition: u64, at: u64) -> SegmentRow {
        let key = segment_key(PartitionId(partition), Offset(partition % 7), Timestamp::from_micros(5));
        SegmentRow { key, place: SegmentPlace { file: 1, at, length: 9 } }
    }

    fn open(directory: &tempfile::TempDir) -> SegmentIndex {
        let db = Database::builder(directory.path()).open().unwrap();
        let table = db.keyspace("segments", KeyspaceCreateOptions::default).unwrap();
        SegmentIndex::new(db, table, 64)
    }

    fn read(index: &SegmentIndex) -> BTreeMap<Vec<u8>, SegmentPlace> {
        let rows = index.table().unwrap().iter().map(|row| row.into_inner().unwrap());
        rows.map(|(key, place)| (key.to_vec(), SegmentPlace::decode(&place).unwrap())).collect()
    }

    #[test]
    fn a_reader_sees_the_last_row_of_each_key_whichever_way_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let (index, mut expected, mut number) = (open(&directory), BTreeMap::new(), 1u64);
        for step in 0..300 {
            // Few and many rows at a time, some keys again; from time to time a row is removed.
            let rows: Vec<_> = (0..step % 40)
                .map(|at| {
                    number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    row((number >> 33) % 500, step * 100 + at)
                })
                .collect();
            expected.extend(rows.iter().map(|row| (row.key.to_vec(), row.place)));
            index.add(rows.into_iter()).unwrap();
            if step % 5 == 0 {
                assert_eq!(read(&index), expected);
            }
            if let Some(gone) = expected.keys().nth(11).filter(|_| step % 9 == 0).cloned() {
                index.table().unwrap().remove(&*gone).unwrap();
                expected.remove(&gone);
            }
        }
        assert_eq!(read(&index), expected);
        drop(index);
        let index = open(&directory);
        assert_eq!(read(&index), expected);
        let half: Vec<_> = expected.keys().step_by(2).cloned().collect();
        for gone in half {
            index.table().unwrap().remove(&*gone).unwrap();
            expected.remove(&gone);
        }
        drop(index);
        assert_eq!(read(&open(&directory)), expected);
    }

    #[test]
    fn a_flush_is_due_at_the_limit_and_happens_by_itself_far_beyond_it() {
        let directory = tempfile::tempdir().unwrap();
        let index = open(&directory);
        index.add((0..63).map(|at| row(at, at))).unwrap();
        assert!(!index.is_flush_due());
        index.add((63..64).map(|at| row(at, at))).unwrap();
        assert!(index.is_flush_due());
        index.add((64..255).map(|at| row(at, at))).unwrap();
        assert_eq!(index.pending().len(), 255);
        index.add((255..256).map(|at| row(at, at))).unwrap();
        assert_eq!(index.pending().len(), 0);
        assert_eq!(read(&index).len(), 256);
    }
}
