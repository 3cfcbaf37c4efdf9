//! Partitions of a queue.

use std::sync::Arc;

use baton_store::{Durability, Partition, Tx, TxError};
use baton_types::{Offset, PartitionId, QueueId, Timestamp};

use super::PostgresTx;
use crate::state::batch::PartitionEntry;

pub fn find_by_name(
    tx: &mut PostgresTx<'_>,
    queue: QueueId,
    name: &str,
) -> Result<Option<Partition>, TxError> {
    if !tx.batch.catalog.has_queue(queue) {
        return Ok(None);
    }
    let name: Arc<str> = name.into();
    let key = (queue, name.clone());
    let known = match tx.batch.names.get(&key) {
        // A partition whose creation was undone does not exist.
        Some(Some(id)) if matches!(tx.batch.partitions.get(id), Some(None)) => Some(None),
        Some(known) => Some(*known),
        None => tx.names.get(&queue).and_then(|names| names.get(&name)).map(|id| Some(*id)),
    };
    match known {
        Some(Some(id)) => tx.read_partition(id),
        Some(None) => Ok(None),
        None if tx.batch.whole_queues.contains(&queue) => Ok(None),
        None => {
            tx.batch.missing.names.insert(key);
            Err(TxError::RowsMissing)
        }
    }
}

pub fn page(
    tx: &mut PostgresTx<'_>,
    queue: QueueId,
    after: Option<PartitionId>,
    limit: usize,
) -> Result<Vec<Partition>, TxError> {
    if !tx.batch.catalog.has_queue(queue) {
        return Ok(Vec::new());
    }
    let mut ids: Vec<PartitionId> = if tx.batch.whole_queues.contains(&queue) {
        tx.batch.partitions_of(queue).map(|entry| entry.row.id).collect()
    } else if let Some(page) = tx.batch.partition_pages.get(&(queue, after, limit)) {
        let fresh =
            tx.batch.changed_partitions_of(queue).filter(|entry| entry.is_new).map(|entry| entry.row.id);
        page.iter().copied().chain(fresh).collect()
    } else {
        tx.batch.missing.partition_pages.insert((queue, after, limit));
        return Err(TxError::RowsMissing);
    };
    ids.sort_unstable();
    ids.retain(|id| after.is_none_or(|after| *id > after));
    ids.truncate(limit);
    tx.batch.read_partitions.extend(&ids);
    Ok(ids.into_iter().filter_map(|id| tx.batch.entry(id).map(|entry| entry.row.clone())).collect())
}

pub fn count(tx: &mut PostgresTx<'_>, queue: QueueId) -> Result<u64, TxError> {
    if !tx.batch.catalog.has_queue(queue) {
        return Ok(0);
    }
    if tx.batch.whole_queues.contains(&queue) {
        return Ok(tx.batch.partitions_of(queue).count() as u64);
    }
    let Some(stored) = tx.batch.partition_counts.get(&queue).copied() else {
        tx.batch.missing.partition_counts.insert(queue);
        return Err(TxError::RowsMissing);
    };
    Ok(stored + tx.batch.changed_partitions_of(queue).filter(|entry| entry.is_new).count() as u64)
}

pub fn has_room(tx: &mut PostgresTx<'_>, queue: QueueId, more: u64) -> Result<bool, TxError> {
    let is_counted = tx.batch.whole_queues.contains(&queue) || tx.batch.partition_counts.contains_key(&queue);
    if let Some(has_room) = tx.partition_limit.has_room(queue, more).filter(|_| !is_counted) {
        return Ok(has_room);
    }
    let count = count(tx, queue)?;
    tx.partition_limit.set_count(queue, count);
    Ok(tx.partition_limit.fits(count, more))
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
    tx.mark_write(Durability::Now);
    tx.partition_limit.count_created(queue);
    let key = (queue, row.name.clone());
    let old = tx.batch.names.insert(key.clone(), Some(id));
    tx.batch.push_undo(move |batch| match old {
        Some(old) => drop(batch.names.insert(key, old)),
        None => drop(batch.names.remove(&key)),
    });
    tx.batch.put_entry(id, Some(PartitionEntry::new_partition(row)));
    tx.batch.writes.partitions.insert(id);
    tx.batch.writes.creates_partitions = true;
    id
}
