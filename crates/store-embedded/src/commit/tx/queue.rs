//! Queues.

use std::sync::Arc;

use baton_store::{Queue, QueueSpec, Tx, TxError};
use baton_types::{Offset, QueueId};

use super::EmbeddedTx;
use crate::rows::{encode_queue, number_key};

pub fn put(tx: &mut EmbeddedTx<'_>, spec: QueueSpec) -> Result<Arc<Queue>, TxError> {
    tx.admit_update()?;
    let queue = match tx.writer.state.queue(&spec.name) {
        Some(old) => Queue { spec, ..(*old).clone() },
        None => Queue { id: QueueId(tx.fresh_id()), created_at: tx.now(), spec },
    };
    let queue = Arc::new(queue);
    tx.mark_catalog_change();
    tx.writer.state.put_queue(queue.clone());
    let tables = &tx.writer.shared.tables;
    tx.writer.batch.put(&tables.queues, number_key(queue.id.0), encode_queue(&queue));
    Ok(queue)
}

pub fn remove(tx: &mut EmbeddedTx<'_>, id: QueueId) {
    tx.mark_catalog_change();
    let writer = &mut *tx.writer;
    let (partitions, groups) = writer.state.remove_queue(id);
    let tables = &writer.shared.tables;
    writer.batch.remove(&tables.queues, number_key(id.0));
    for group in &groups {
        writer.batch.remove(&tables.groups, number_key(group.0));
    }
    for partition in &partitions {
        // Its row and its segments need not be written any more.
        writer.batch.changed_partitions.remove(partition);
        writer.shared.segments.cache.remove_before(*partition, Offset(u64::MAX));
    }
    let state = &writer.state;
    writer.batch.segments.retain_partitions(|partition| state.has_partition(partition));
    writer.deletes.partitions.extend(partitions);
    writer.deletes.groups.extend(groups);
    writer.deletes.queues.push(id);
}
