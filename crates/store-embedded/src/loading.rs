//! What an opening has to read: the end of the log, and the rows that memory is rebuilt from.
//!
//! Always: no message is read, but those of commits that the engine may not have been told of. Start at [`open_log`].

use std::sync::Arc;

use baton_store::Error;
use baton_types::{GroupId, PartitionId, QueueId, Timestamp};
use bytes::Bytes;
use fjall::{Database, Keyspace};
use rustc_hash::FxHashMap;

use crate::hot::Hot;
use crate::id_files::IdFiles;
use crate::leftovers::Leftovers;
use crate::log::{Frame, Log, Place};
use crate::remembered::Remembered;
use crate::store::Options;
use crate::tables::{
    COUNTERS_KEY, Counters, IDS_KEY, LOG_USAGE, TRIM_NOTES, Tables, corrupt, engine_error, number_key,
    read_cursor, read_group, read_number, read_pair, read_partition, read_place, read_queue,
};
use crate::tails::Tails;

/// Reads the remembered ids of the last checkpoint.
pub fn open_remembered(options: &Options, db: &Database, tables: &Tables) -> Result<Remembered, Error> {
    let (files, now) = (Arc::new(IdFiles::open(&options.directory)?), options.clock.now());
    let mut remembered = Remembered::load(files.clone(), now, options.remembered_max)?;
    if let Some(marks) = tables.meta.get(IDS_KEY).map_err(engine_error)? {
        files.check(&marks)?;
    }
    remembered.adopt_legacy(db, now)?;
    Ok(remembered)
}

/// Opens the log, and tells the engine, and the remembered ids, what they do not know of it.
pub fn open_log(
    options: &Options,
    db: &Database,
    tables: &Tables,
    remembered: &mut Remembered,
) -> Result<Log, Error> {
    let now = options.clock.now();
    let named: FxHashMap<&[u8], &Keyspace> =
        tables.all().into_iter().map(|table| (table.name().as_bytes(), table)).collect();
    let apply = |frame: &Frame, file: u64, at: u64| {
        let mut batch = db.batch();
        for entry in &frame.entries {
            let mut place = Vec::with_capacity(Place::BYTES);
            entry.place(file, at).put(&mut place);
            batch.insert(&tables.segments, Bytes::copy_from_slice(entry.key()), place);
        }
        for row in frame.rows().ok_or_else(|| corrupt("log"))? {
            let key = Bytes::copy_from_slice(&row.key);
            match (named.get(&row.table[..]), row.value) {
                (Some(table), Some(value)) => batch.insert(table, key, Bytes::copy_from_slice(&value)),
                (Some(table), None) => batch.remove(table, key),
                (None, Some(value)) if remembered.replay(&row.table, &value, now)? => {}
                _ => return Err(corrupt("log")),
            }
        }
        batch.commit().map_err(engine_error)
    };
    // The engine is told of a commit after it was synced, so the log must have it still.
    let known = tables.meta.get(COUNTERS_KEY).map_err(engine_error)?;
    let known = known.map(|row| Counters::read(&row)).transpose()?.unwrap_or_default().synced;
    let mut log = Log::open(&options.directory, options.log_file_bytes, known, apply)?;
    for entry in tables.meta.prefix(LOG_USAGE) {
        let (key, row) = entry.into_inner().map_err(engine_error)?;
        if !log.restore_usage(&key, &row)? {
            tables.meta.remove(key).map_err(engine_error)?;
        }
    }
    Ok(log)
}

/// Rebuilds memory from the rows; also tells what is still to be cleared away.
pub fn load(tables: &Tables, now: Timestamp) -> Result<(Hot, Tails, Leftovers), Error> {
    let (mut hot, mut leftovers) = (Hot::default(), Leftovers::default());
    for entry in tables.queues.iter() {
        hot.put_queue(Arc::new(read_queue(&entry.value().map_err(engine_error)?)?));
    }
    for entry in tables.partitions.iter() {
        let (key, value) = entry.into_inner().map_err(engine_error)?;
        let row = read_partition(read_number(&key)?, &value)?;
        let id = row.id;
        if !hot.put_partition(row) {
            leftovers.partitions.push(id);
        }
    }
    let tails = tables.tails.iter().map(|entry| entry.into_inner().map_err(engine_error));
    let (tails, with_chunks) = Tails::load(tails, &mut hot)?;
    for entry in tables.groups.iter() {
        let row = Arc::new(read_group(&entry.value().map_err(engine_error)?)?);
        hot.put_group(row, now);
    }
    for entry in tables.cursors.iter() {
        let (key, value) = entry.into_inner().map_err(engine_error)?;
        let (group, partition) = read_pair(&key)?;
        let (group, partition) = (GroupId(group), PartitionId(partition));
        if hot.group_by_id(group).is_some() {
            if let Some(place) = read_place(&value) {
                hot.restore_place(group, partition, place, now);
                continue;
            }
            hot.put_cursor(group, partition, read_cursor(&value)?, now, |_| ());
        } else if leftovers.groups.last() != Some(&group) {
            leftovers.groups.push(group);
        }
    }
    for entry in tables.meta.prefix(TRIM_NOTES) {
        let key = entry.key().map_err(engine_error)?;
        leftovers.trimmed.push(PartitionId(read_number(&key[TRIM_NOTES.len()..])?));
    }
    leftovers.queues = queues_with_letters(tables)?;
    leftovers.queues.retain(|queue| hot.queue_by_id(*queue).is_none());
    leftovers.queues.extend(with_chunks);
    Ok((hot, tails, leftovers))
}

/// Jumps from queue to queue, without looking at every letter.
fn queues_with_letters(tables: &Tables) -> Result<Vec<QueueId>, Error> {
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some(entry) = tables.letter_times.range(number_key(from)..).next() {
        let key = entry.key().map_err(engine_error)?;
        let queue = read_number(key.get(..8).unwrap_or_default())?;
        found.push(QueueId(queue));
        from = queue + 1;
    }
    Ok(found)
}
