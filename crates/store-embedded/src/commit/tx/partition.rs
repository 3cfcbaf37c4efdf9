//! Partitions.

use baton_store::{Partition, Tx, TxError};
use baton_types::{Offset, PartitionId, QueueId, Timestamp};

use super::EmbeddedTx;

pub fn find_by_name(
    tx: &mut EmbeddedTx<'_>,
    queue: QueueId,
    name: &str,
) -> Result<Option<Partition>, TxError> {
    tx.depend_on_catalog();
    let id = tx.writer.state.partition_id(queue, name);
    id.map_or(Ok(None), |id| tx.partition_by_id(id))
}

pub fn find_id(tx: &mut EmbeddedTx<'_>, queue: QueueId, name: &str) -> Result<Option<PartitionId>, TxError> {
    tx.depend_on_catalog();
    let id = tx.writer.state.partition_id(queue, name);
    if let Some(id) = id {
        tx.depend_on_partition(id);
    }
    Ok(id)
}

pub fn find_ids(
    tx: &mut EmbeddedTx<'_>,
    queue: QueueId,
    names: &[&str],
) -> Result<Vec<Option<PartitionId>>, TxError> {
    tx.depend_on_catalog();
    let found = tx.writer.state.partition_ids(queue, names);
    found.iter().flatten().for_each(|id| tx.depend_on_partition(*id));
    Ok(found)
}

pub fn page(
    tx: &mut EmbeddedTx<'_>,
    queue: QueueId,
    after: Option<PartitionId>,
    limit: usize,
) -> Result<Vec<Partition>, TxError> {
    tx.depend_on_everything();
    let state = &tx.writer.state;
    Ok(state.members(queue, after, limit).into_iter().filter_map(|id| state.partition(id)).collect())
}

pub fn has_room(tx: &mut EmbeddedTx<'_>, queue: QueueId, partitions: u64) -> Result<bool, TxError> {
    tx.depend_on_everything();
    Ok(tx.writer.state.partition_count(queue).saturating_add(partitions) <= tx.limits().partitions)
}

pub fn create(tx: &mut EmbeddedTx<'_>, queue: QueueId, name: &str) -> PartitionId {
    let id = PartitionId(tx.fresh_id());
    let now = tx.now();
    tx.writer.state.put_partition(Partition {
        id,
        queue,
        name: name.into(),
        start: Offset(0),
        tail: Offset(0),
        created_at: now,
        first_at: now,
        last_at: Timestamp::MIN,
        deleted: Default::default(),
    });
    tx.mark_partition_change(id);
    id
}
