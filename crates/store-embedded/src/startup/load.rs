//! Rebuilding memory from the rows of the index.

use std::sync::Arc;

use baton_store::Error;
use baton_types::{GroupId, PartitionId, QueueId, Timestamp};

use crate::index::{Tables, engine_error};
use crate::rows::{
    TRIM_KEYS, decode_cursor, decode_group, decode_partition, decode_queue, decode_start_offset, number_key,
    read_number, read_pair,
};
use crate::state::{DeferredDeletes, MemoryState, TailLog};

/// Rebuilds memory from the rows. Also returns deleted data that still takes space.
pub fn load_state(tables: &Tables, now: Timestamp) -> Result<(MemoryState, TailLog, DeferredDeletes), Error> {
    let (mut state, mut deletes) = (MemoryState::default(), DeferredDeletes::default());
    for entry in tables.queues.iter() {
        state.put_queue(Arc::new(decode_queue(&entry.value().map_err(engine_error)?)?));
    }
    for entry in tables.partitions.iter() {
        let (key, value) = entry.into_inner().map_err(engine_error)?;
        let row = decode_partition(read_number(&key)?, &value)?;
        let id = row.id;
        if !state.put_partition(row) {
            deletes.partitions.push(id);
        }
    }
    let tails = tables.tails.iter().map(|entry| entry.into_inner().map_err(engine_error));
    let (tail_log, with_chunks) = TailLog::load(tails, &mut state)?;
    for entry in tables.groups.iter() {
        let row = Arc::new(decode_group(&entry.value().map_err(engine_error)?)?);
        state.put_group(row, now);
    }
    for entry in tables.cursors.iter() {
        let (key, value) = entry.into_inner().map_err(engine_error)?;
        let (group, partition) = read_pair(&key)?;
        let (group, partition) = (GroupId(group), PartitionId(partition));
        if state.group_by_id(group).is_some() {
            if let Some(start) = decode_start_offset(&value) {
                state.restore_start_offset(group, partition, start, now);
                continue;
            }
            state.put_cursor(group, partition, decode_cursor(&value)?, now, |_| ());
        } else if deletes.groups.last() != Some(&group) {
            deletes.groups.push(group);
        }
    }
    for entry in tables.meta.prefix(TRIM_KEYS) {
        let key = entry.key().map_err(engine_error)?;
        deletes.trimmed.push(PartitionId(read_number(&key[TRIM_KEYS.len()..])?));
    }
    deletes.queues = queues_with_dead_letters(tables)?;
    deletes.queues.retain(|queue| state.queue_by_id(*queue).is_none());
    deletes.queues.extend(with_chunks);
    Ok((state, tail_log, deletes))
}

/// Jumps from queue to queue, without reading every dead letter.
fn queues_with_dead_letters(tables: &Tables) -> Result<Vec<QueueId>, Error> {
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some(entry) = tables.letter_times.range(number_key(from)..).next() {
        let key = entry.key().map_err(engine_error)?;
        let queue = read_number(key.get(..8).unwrap_or_default())?;
        found.push(QueueId(queue));
        from = queue + 1;
    }
    Ok(found)
}
