//! Cursors and leases.

use baton_store::{Cursor, Durability, Tx, TxError};
use baton_types::{GroupId, LeaseId, PartitionId};

use super::{EmbeddedTx, Writer};

pub fn get(
    tx: &mut EmbeddedTx<'_>,
    group: GroupId,
    partition: PartitionId,
) -> Result<Option<Cursor>, TxError> {
    tx.depend_on_partition(partition);
    tx.depend_on_catalog();
    Ok(tx.writer.state.cursor(group, partition))
}

pub fn put(
    tx: &mut EmbeddedTx<'_>,
    group: GroupId,
    partition: PartitionId,
    cursor: Cursor,
    durability: Durability,
) {
    let now = tx.now();
    let Writer { state, events, batch, .. } = &mut *tx.writer;
    state.put_cursor(group, partition, cursor, now, |event| events.push(event));
    batch.changed_cursors.insert((group, partition));
    tx.wrote = true;
    if durability == Durability::Now {
        tx.mark_durable_write();
        tx.writer.state.mark_changed(partition, tx.writer.batch.seq());
    }
}

pub fn leased_partitions(
    tx: &mut EmbeddedTx<'_>,
    lease: LeaseId,
) -> Result<Vec<(GroupId, PartitionId)>, TxError> {
    let held = tx.writer.state.leased_partitions(lease);
    if held.is_empty() {
        tx.depend_on_everything();
    }
    Ok(held)
}
