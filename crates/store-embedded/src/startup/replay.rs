//! Replaying the log: the index and the dedup index get the commits since the checkpoint.

use std::sync::Arc;

use baton_store::Error;
use bytes::Bytes;
use fjall::{Database, Keyspace};
use rustc_hash::FxHashMap;

use crate::dedup::{DedupIndex, SliceFiles};
use crate::index::{Tables, engine_error};
use crate::options::Options;
use crate::rows::{COUNTERS_KEY, Counters, DEDUP_FILES_KEY, LOG_FILE_KEYS, corrupt_row};
use crate::wal::{Frame, Log, SegmentPlace};

/// Reads the transaction ids of the last checkpoint.
pub fn load_dedup_index(options: &Options, db: &Database, tables: &Tables) -> Result<DedupIndex, Error> {
    let (files, now) = (Arc::new(SliceFiles::open(&options.directory)?), options.clock.now());
    let mut dedup = DedupIndex::load(files.clone(), now, options.remembered_max)?;
    if let Some(lengths) = tables.meta.get(DEDUP_FILES_KEY).map_err(engine_error)? {
        files.check_lengths(&lengths)?;
    }
    dedup.migrate_legacy(db, now)?;
    Ok(dedup)
}

/// Opens the log, and applies the commits since the checkpoint to the index and the dedup index.
pub fn replay_log(
    options: &Options,
    db: &Database,
    tables: &Tables,
    dedup: &mut DedupIndex,
) -> Result<Log, Error> {
    let now = options.clock.now();
    let by_name: FxHashMap<&[u8], &Keyspace> =
        tables.all().into_iter().map(|table| (table.name().as_bytes(), table)).collect();
    let apply = |frame: &Frame, file: u64, at: u64| {
        let mut batch = db.batch();
        for segment in &frame.segments {
            let mut place = Vec::with_capacity(SegmentPlace::BYTES);
            segment.place(file, at).encode(&mut place);
            batch.insert(&tables.segments, Bytes::copy_from_slice(segment.key()), place);
        }
        for row in frame.rows().ok_or_else(|| corrupt_row("log"))? {
            let key = Bytes::copy_from_slice(&row.key);
            match (by_name.get(&row.table[..]), row.value) {
                (Some(table), Some(value)) => batch.insert(table, key, Bytes::copy_from_slice(&value)),
                (Some(table), None) => batch.remove(table, key),
                (None, Some(value)) if dedup.replay_row(&row.table, &value, now)? => {}
                _ => return Err(corrupt_row("log")),
            }
        }
        batch.commit().map_err(engine_error)
    };
    // A commit is applied to the index after its fsync, so the log must still have it.
    let known = tables.meta.get(COUNTERS_KEY).map_err(engine_error)?;
    let known = known.map(|row| Counters::decode(&row)).transpose()?.unwrap_or_default().synced;
    let mut log = Log::open(&options.directory, options.log_file_bytes, known, apply)?;
    for entry in tables.meta.prefix(LOG_FILE_KEYS) {
        let (key, row) = entry.into_inner().map_err(engine_error)?;
        if !log.usage_mut().restore(&key, &row)? {
            tables.meta.remove(key).map_err(engine_error)?;
        }
    }
    Ok(log)
}
