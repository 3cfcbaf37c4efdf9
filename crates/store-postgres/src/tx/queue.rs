//! Queues.

use std::sync::Arc;

use baton_store::{Durability, Queue, QueueSpec, Tx, TxError};
use baton_types::{PartitionId, QueueId};

use super::PostgresTx;
use crate::state::batch;

pub fn put(tx: &mut PostgresTx<'_>, spec: QueueSpec) -> Result<Arc<Queue>, TxError> {
    let old = tx.batch.catalog.queue(&spec.name);
    let queue = Arc::new(match &old {
        Some(old) => Queue { spec, ..(**old).clone() },
        None => Queue { id: QueueId(tx.fresh_id()), created_at: tx.now(), spec },
    });
    tx.mark_write(Durability::Now);
    let id = queue.id;
    tx.batch.catalog.put_queue(queue.clone());
    tx.batch.writes.queues.insert(id);
    if old.is_none() {
        tx.batch.whole_queues.insert(id);
    }
    tx.batch.push_undo(move |batch| match old {
        Some(old) => drop(batch.catalog.put_queue(old)),
        None => drop(batch.catalog.remove_queue(id)),
    });
    Ok(queue)
}

pub fn remove(tx: &mut PostgresTx<'_>, id: QueueId) {
    tx.mark_write(Durability::Now);
    let of_queue: Vec<PartitionId> = tx.batch.partitions_of(id).map(|entry| entry.row.id).collect();
    for partition in of_queue {
        tx.batch.put_entry(partition, None);
    }
    let (queue, groups) = tx.batch.catalog.remove_queue(id);
    let Some(queue) = queue else { return };
    tx.batch.writes.queues.insert(id);
    tx.batch.writes.groups.extend(groups.iter().map(|group| group.id));
    tx.batch.push_undo(move |batch| {
        batch.catalog.put_queue(queue);
        for group in groups {
            batch.catalog.put_group(group);
        }
    });
}

pub fn message_count(tx: &mut PostgresTx<'_>, queue: QueueId) -> Result<u64, TxError> {
    if !tx.batch.catalog.has_queue(queue) {
        return Ok(0);
    }
    if tx.batch.whole_queues.contains(&queue) {
        return Ok(tx.batch.partitions_of(queue).map(|entry| batch::message_count(&entry.row)).sum());
    }
    let Some(stored) = tx.batch.message_counts.get(&queue).copied() else {
        tx.batch.missing.message_counts.insert(queue);
        return Err(TxError::RowsMissing);
    };
    let now: u64 = tx.batch.changed_partitions_of(queue).map(|entry| batch::message_count(&entry.row)).sum();
    let stored_before = tx.batch.changed_partitions_of(queue).filter(|entry| !entry.is_new);
    let before: u64 = stored_before.map(|entry| batch::message_count(&entry.original)).sum();
    Ok((stored + now).saturating_sub(before))
}
