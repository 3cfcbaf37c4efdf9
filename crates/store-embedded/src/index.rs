//! Where segments are in the log: the engine's table of them, and the rows that it has not got yet.
//!
//! With a million partitions nearly every message is a segment, and a row of its own in the engine's buffer is a sixth
//! of all that it costs. So rows are kept here as they come, until somebody looks, or they are many: many are
//! sorted and become a sorted file of the engine at once, past its journal and its buffer. Always: whoever reads the
//! table sees every row that was kept before, or an error; the last one kept under a key counts. Not here: what a crash
//! leaves out, which the log tells again (`loading`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use baton_store::Error;
use bytes::Bytes;
use fjall::{Database, Keyspace};

use crate::log::Place;
use crate::tables::{SEGMENT_KEY_BYTES, engine_error};

/// So many times as many as are to be kept cannot wait for the thread that usually writes them.
const TOO_MANY: usize = 4;
/// From this part of them on a sorted file is worth its syncs; fewer go through the engine's buffer.
const WORTH_A_FILE: usize = 4;
/// Rows that share memory while they are written.
const AT_ONCE: usize = 1 << 10;
const ROW_BYTES: usize = SEGMENT_KEY_BYTES + Place::BYTES;

/// A segment's key, and where it is.
#[derive(Clone, Copy)]
pub struct Row {
    pub key: [u8; SEGMENT_KEY_BYTES],
    pub place: Place,
}

pub struct Index {
    db: Database,
    table: Keyspace,
    /// So many rows, of 48 bytes each, are kept, before they are written without need.
    many: usize,
    /// In the order they came.
    young: Mutex<Vec<Row>>,
    /// Held while they are written. Whether some were lost by that, in a panic.
    lost: Mutex<bool>,
    /// Whether many are, for which the engine keeps everybody else waiting.
    busy: AtomicBool,
}

impl Index {
    pub fn new(db: Database, table: Keyspace, many: usize) -> Self {
        let (young, lost, busy) = Default::default();
        Self { db, table, many, young, lost, busy }
    }

    /// The engine's table with everything that was kept.
    pub fn table(&self) -> Result<&Keyspace, Error> {
        self.write()?;
        Ok(&self.table)
    }

    /// Keeps rows for later.
    pub fn keep(&self, rows: impl Iterator<Item = Row>) -> Result<(), Error> {
        let len = {
            let mut young = self.young();
            young.extend(rows);
            young.len()
        };
        if len < TOO_MANY * self.many { Ok(()) } else { self.write() }
    }

    /// Whether it is time to write what was kept.
    pub fn is_much(&self) -> bool {
        self.young().len() >= self.many
    }

    /// Whether the engine is better left alone for a moment.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Gives the engine what was kept.
    pub fn write(&self) -> Result<(), Error> {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if *lost {
            return Err(Error::Closed("some of what tells where messages are was lost".into()));
        }
        let mut rows = std::mem::take(&mut *self.young());
        if rows.is_empty() {
            return Ok(());
        }
        *lost = true;
        // Rows of one commit are in order, which this kind of sorting makes use of.
        rows.sort_by_key(|row| numbers(row.key));
        rows.dedup_by(|later, kept| {
            let is_same = later.key == kept.key;
            if is_same {
                *kept = *later;
            }
            is_same
        });
        let few = rows.len() < self.many / WORTH_A_FILE;
        let written = if few { self.buffer(&rows) } else { self.make_file(&rows) };
        if written.is_err() {
            // Nobody may miss them, and it may work the next time.
            let mut young = self.young();
            rows.append(&mut young);
            *young = rows;
        }
        *lost = false;
        written.map_err(engine_error)
    }

    /// Through the engine's buffer.
    fn buffer(&self, rows: &[Row]) -> fjall::Result<()> {
        let mut batch = self.db.batch();
        for (key, place) in encoded(rows) {
            batch.insert(&self.table, key, place);
        }
        batch.commit()
    }

    /// As a file of their own.
    fn make_file(&self, rows: &[Row]) -> fjall::Result<()> {
        self.busy.store(true, Ordering::Relaxed);
        let write = || {
            let mut file = self.table.start_ingestion()?;
            for (key, place) in encoded(rows) {
                file.write(key, place)?;
            }
            file.finish()
        };
        let written = write();
        self.busy.store(false, Ordering::Relaxed);
        written
    }

    fn young(&self) -> MutexGuard<'_, Vec<Row>> {
        self.young.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The numbers of a key, which sort as it does.
fn numbers(key: [u8; SEGMENT_KEY_BYTES]) -> [u64; 3] {
    std::array::from_fn(|at| {
        let mut number = [0; 8];
        number.copy_from_slice(&key[8 * at..8 * (at + 1)]);
        u64::from_be_bytes(number)
    })
}

/// Keys and places as the engine has them, some at a time in memory that they share.
fn encoded(rows: &[Row]) -> impl Iterator<Item = (Bytes, Bytes)> {
    rows.chunks(AT_ONCE).flat_map(|some| {
        let mut bytes = Vec::with_capacity(ROW_BYTES * some.len());
        for row in some {
            bytes.extend_from_slice(&row.key);
            row.place.put(&mut bytes);
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
    use crate::tables::segment_key;

    fn row(partition: u64, at: u64) -> Row {
        let key = segment_key(PartitionId(partition), Offset(partition % 7), Timestamp::from_micros(5));
        Row { key, place: Place { file: 1, at, length: 9 } }
    }

    fn open(directory: &tempfile::TempDir) -> Index {
        let db = Database::builder(directory.path()).open().unwrap();
        let table = db.keyspace("segments", KeyspaceCreateOptions::default).unwrap();
        Index::new(db, table, 64)
    }

    fn read(index: &Index) -> BTreeMap<Vec<u8>, Place> {
        let rows = index.table().unwrap().iter().map(|row| row.into_inner().unwrap());
        rows.map(|(key, place)| (key.to_vec(), Place::read(&place).unwrap())).collect()
    }

    #[test]
    fn whoever_looks_sees_what_was_kept_last_whichever_way_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let (index, mut expected, mut number) = (open(&directory), BTreeMap::new(), 1u64);
        for step in 0..300 {
            // Few and many at a time, some again; every so often one goes.
            let rows: Vec<_> = (0..step % 40)
                .map(|at| {
                    number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    row((number >> 33) % 500, step * 100 + at)
                })
                .collect();
            expected.extend(rows.iter().map(|row| (row.key.to_vec(), row.place)));
            index.keep(rows.into_iter()).unwrap();
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
    fn says_when_it_is_time_and_does_not_wait_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let index = open(&directory);
        index.keep((0..63).map(|at| row(at, at))).unwrap();
        assert!(!index.is_much());
        index.keep((63..64).map(|at| row(at, at))).unwrap();
        assert!(index.is_much());
        index.keep((64..255).map(|at| row(at, at))).unwrap();
        assert_eq!(index.young().len(), 255);
        index.keep((255..256).map(|at| row(at, at))).unwrap();
        assert_eq!(index.young().len(), 0);
        assert_eq!(read(&index).len(), 256);
    }
}
