//! Retention: which messages are given up, by age alone or once everyone has finished them.
//!
//! A pop hides what is too old the moment it is; this frees the space. Whole segments go, a page of partitions
//! per decision, so that no call waits long.

use std::sync::Arc;

use baton_store::{GroupStart, Partition, Queue, Store, Tx, TxError, collect_misses, run};
use baton_types::{Offset, PartitionId, QueueId};

/// Partitions looked at in one decision.
const PAGE: usize = 500;

/// Looks through all queues that give up messages, and trims them. Tells how many messages went. A queue that fails does
/// not hold up the others.
pub async fn sweep(store: &dyn Store) -> Result<u64, baton_store::Error> {
    let queues = run(store, |tx| {
        let forgetful = |queue: &&Arc<Queue>| {
            let options = &queue.spec.options;
            options.deliverable_for().is_some() || options.completed_retention().is_some()
        };
        Ok(tx.queues()?.iter().filter(forgetful).cloned().collect::<Vec<_>>())
    })
    .await?;
    let (mut gone, mut failed) = (0, None);
    for queue in queues {
        if let Err(error) = sweep_queue(store, queue.id, &mut gone).await {
            tracing::warn!(%error, queue = &*queue.spec.name, "could not give up old messages of a queue");
            failed = Some(error);
        }
    }
    failed.filter(|_| gone == 0).map_or(Ok(gone), Err)
}

async fn sweep_queue(store: &dyn Store, queue: QueueId, gone: &mut u64) -> Result<(), baton_store::Error> {
    let mut after = None;
    loop {
        let (count, last) = run(store, move |tx| sweep_page(tx, queue, after)).await?;
        *gone += count;
        match last {
            Some(last) => after = Some(last),
            None => return Ok(()),
        }
    }
}

/// Trims one page of partitions; tells how many messages went and where the next page begins.
fn sweep_page(
    tx: &mut dyn Tx,
    queue: QueueId,
    after: Option<PartitionId>,
) -> Result<(u64, Option<PartitionId>), TxError> {
    let Some(queue) = tx.queue_by_id(queue)? else { return Ok((0, None)) };
    let page = tx.partitions(queue.id, after, PAGE)?;
    let mut trims = Vec::new();
    collect_misses(page.iter().filter(|partition| partition.start < partition.tail), |partition| {
        let start = first_kept(tx, &queue, partition)?;
        if start > partition.start {
            trims.push((partition.id, start, start.since(partition.start)));
        }
        Ok(())
    })?;
    let mut gone = 0;
    collect_misses(trims, |(partition, start, count)| {
        tx.trim(partition, start)?;
        gone += count;
        Ok(())
    })?;
    Ok((gone, page.last().map(|partition| partition.id)))
}

/// The rule: the first message of a partition that is kept.
fn first_kept(tx: &mut dyn Tx, queue: &Queue, partition: &Partition) -> Result<Offset, TxError> {
    let (now, options) = (tx.now(), &queue.spec.options);
    let mut first = partition.start;
    if let Some(life) = options.deliverable_for().filter(|life| partition.first_at < now.before(*life)) {
        first = first.max(tx.offset_at(partition.id, now.before(life))?);
    }
    if let Some(life) = options.completed_retention().filter(|life| partition.first_at < now.before(*life)) {
        let old = tx.offset_at(partition.id, now.before(life))?;
        if let Some(finished) = finished_by_all(tx, queue, partition)? {
            first = first.max(old.min(finished));
        }
    }
    Ok(first)
}

/// The first message that some group has not finished; `None` when no group reads the queue.
fn finished_by_all(tx: &mut dyn Tx, queue: &Queue, partition: &Partition) -> Result<Option<Offset>, TxError> {
    let mut lowest = None;
    collect_misses(tx.groups(queue.id)?, |group| {
        let next = match (tx.cursor(group.id, partition.id)?, group.start) {
            (Some(cursor), _) => cursor.next,
            (None, GroupStart::Oldest) => partition.start,
            (None, GroupStart::At(at)) => tx.offset_at(partition.id, at)?,
        };
        lowest = Some(lowest.map_or(next, |other: Offset| other.min(next)));
        Ok(())
    })?;
    Ok(lowest)
}
