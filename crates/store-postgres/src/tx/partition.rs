//! Partitions of a queue.

use std::sync::Arc;

use baton_store::{Durability, Partition, Stop, Tx};
use baton_types::{Offset, PartitionId, QueueId, Timestamp};

use super::PostgresTx;
use crate::memory::Entry;

pub fn named(tx: &mut PostgresTx<'_>, queue: QueueId, name: &str) -> Result<Option<Partition>, Stop> {
    if !tx.memory.structure.has_queue(queue) {
        return Ok(None);
    }
    let name: Arc<str> = name.into();
    let key = (queue, name.clone());
    let known = match tx.memory.names.get(&key) {
        // One that was created in a decision that was taken back is not there.
        Some(Some(id)) if matches!(tx.memory.partitions.get(id), Some(None)) => Some(None),
        Some(known) => Some(*known),
        None => tx.names.get(&queue).and_then(|names| names.get(&name)).map(|id| Some(*id)),
    };
    match known {
        Some(Some(id)) => tx.row(id),
        Some(None) => Ok(None),
        None if tx.memory.all_of.contains(&queue) => Ok(None),
        None => {
            tx.memory.wanted.names.insert(key);
            Err(Stop::Load)
        }
    }
}

pub fn page(
    tx: &mut PostgresTx<'_>,
    queue: QueueId,
    after: Option<PartitionId>,
    limit: usize,
) -> Result<Vec<Partition>, Stop> {
    if !tx.memory.structure.has_queue(queue) {
        return Ok(Vec::new());
    }
    let mut ids: Vec<PartitionId> = if tx.memory.all_of.contains(&queue) {
        tx.memory.entries_of(queue).map(|entry| entry.row.id).collect()
    } else if let Some(page) = tx.memory.pages.get(&(queue, after, limit)) {
        let fresh = tx.memory.changed_of(queue).filter(|entry| entry.fresh).map(|entry| entry.row.id);
        page.iter().copied().chain(fresh).collect()
    } else {
        tx.memory.wanted.pages.insert((queue, after, limit));
        return Err(Stop::Load);
    };
    ids.sort_unstable();
    ids.retain(|id| after.is_none_or(|after| *id > after));
    ids.truncate(limit);
    tx.memory.relied.extend(&ids);
    Ok(ids.into_iter().filter_map(|id| tx.memory.entry(id).map(|entry| entry.row.clone())).collect())
}

pub fn count(tx: &mut PostgresTx<'_>, queue: QueueId) -> Result<u64, Stop> {
    if !tx.memory.structure.has_queue(queue) {
        return Ok(0);
    }
    if tx.memory.all_of.contains(&queue) {
        return Ok(tx.memory.entries_of(queue).count() as u64);
    }
    let Some(stored) = tx.memory.counts.get(&queue).copied() else {
        tx.memory.wanted.counts.insert(queue);
        return Err(Stop::Load);
    };
    Ok(stored + tx.memory.changed_of(queue).filter(|entry| entry.fresh).count() as u64)
}

pub fn has_room(tx: &mut PostgresTx<'_>, queue: QueueId, more: u64) -> Result<bool, Stop> {
    let is_counted = tx.memory.all_of.contains(&queue) || tx.memory.counts.contains_key(&queue);
    if let Some(has_room) = tx.room.has(queue, more).filter(|_| !is_counted) {
        return Ok(has_room);
    }
    let count = count(tx, queue)?;
    tx.room.counted(queue, count);
    Ok(tx.room.fits(count, more))
}

pub fn create(tx: &mut PostgresTx<'_>, queue: QueueId, name: &str) -> PartitionId {
    let id = PartitionId(tx.fresh_id());
    let now = tx.now();
    let row = Partition {
        id,
        queue,
        name: name.into(),
        start: Offset(0),
        tail: Offset(0),
        created_at: now,
        first_at: now,
        last_at: Timestamp::MIN,
        deleted: Default::default(),
    };
    tx.write(Durability::Now);
    tx.room.created(queue);
    let key = (queue, row.name.clone());
    let old = tx.memory.names.insert(key.clone(), Some(id));
    tx.memory.undo(move |memory| match old {
        Some(old) => drop(memory.names.insert(key, old)),
        None => drop(memory.names.remove(&key)),
    });
    tx.memory.put_entry(id, Some(Entry::fresh(row)));
    tx.memory.changed.partitions.insert(id);
    tx.memory.changed.created = true;
    id
}
