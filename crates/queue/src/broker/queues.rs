//! Queues: listing, counting, emptying and deleting them.

use std::sync::Arc;

use baton_store::{Partition, Queue, Tx, TxError, collect_misses};
use baton_types::PartitionId;

use super::{Broker, PAGE};
use crate::rules::dedup_release::Withdrawal;
use crate::rules::inspect;
use crate::rules::maintenance;
use crate::wait::hint::News;
use crate::{Error, PartitionSummary, QueueSummary};

/// Queues looked at in one decision while many are listed. As each is looked at only if it has [`FEW`] rows, one
/// decision looks at about a page of rows.
const QUEUES_AT_ONCE: usize = 100;
/// Rows of a queue that are looked at together with those of others; a queue that has more is listed page by page.
pub(super) const FEW: usize = PAGE / QUEUES_AT_ONCE;

/// Pages of partitions that one call empties.
const CLEARED_PAGES_MAX: usize = 100;

/// What emptying a queue came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Partitions that are empty now.
    pub partitions: u64,
    /// The partition after which the next call goes on; `None` when the queue is empty.
    pub next: Option<PartitionId>,
}

impl Broker {
    /// The queues of this name and with these labels, as far as those are given; in the order of their creation.
    pub async fn matching_queues(
        &self,
        name: Option<String>,
        namespace: Option<String>,
        task: Option<String>,
    ) -> Result<Vec<Arc<Queue>>, Error> {
        let matches = |wanted: &Option<String>, have: &str| wanted.as_deref().is_none_or(|w| w == have);
        let only = name.clone();
        let queues = self
            .run(move |tx| match &only {
                Some(name) => Ok(tx.queue(name)?.into_iter().collect()),
                None => tx.queues(),
            })
            .await?;
        let wanted = queues.into_iter().filter(|queue| {
            !maintenance::is_hidden(&queue.spec.name)
                && matches(&namespace, &queue.spec.namespace)
                && matches(&task, &queue.spec.task)
        });
        Ok(wanted.collect())
    }

    /// Whether a queue does not remember transaction ids, so that a repeated push is stored twice.
    pub async fn forgets_ids(&self, queue: &str) -> Result<bool, Error> {
        let name = queue.to_owned();
        let queue = self.run(move |tx| tx.queue(&name)).await?;
        Ok(queue.is_some_and(|queue| queue.spec.options.dedup_window_seconds == 0))
    }

    /// All queues, the newest first.
    pub async fn queues(&self) -> Result<Vec<QueueSummary>, Error> {
        let queues = self.matching_queues(None, None, None).await?;
        let small = self.look_at_queues(&queues, |tx, queue| inspect::summarise_few(tx, queue, FEW)).await?;
        let mut found = Vec::with_capacity(queues.len());
        for (queue, summary) in queues.iter().zip(small) {
            found.push(match summary {
                Some(summary) => summary,
                None => self.summarise(queue).await?.0,
            });
        }
        found.reverse();
        Ok(found)
    }

    /// Looks at many queues, several in one decision.
    pub(super) async fn look_at_queues<R, F>(&self, queues: &[Arc<Queue>], look: F) -> Result<Vec<R>, Error>
    where
        R: Send + 'static,
        F: Fn(&mut dyn Tx, &Arc<Queue>) -> Result<R, TxError> + Clone + Send + 'static,
    {
        let mut found = Vec::with_capacity(queues.len());
        for queues in queues.chunks(QUEUES_AT_ONCE) {
            let (queues, look) = (queues.to_vec(), look.clone());
            let look_at_some = move |tx: &mut dyn Tx| {
                let mut found = Vec::with_capacity(queues.len());
                collect_misses(&queues, |queue| {
                    found.push(look(tx, queue)?);
                    Ok(())
                })?;
                Ok(found)
            };
            found.extend(self.run(look_at_some).await?);
        }
        Ok(found)
    }

    /// One queue with its partitions.
    pub async fn queue(&self, name: &str) -> Result<Option<(QueueSummary, Vec<PartitionSummary>)>, Error> {
        match self.matching_queues(Some(name.into()), None, None).await?.first() {
            Some(queue) => self.summarise(queue).await.map(Some),
            None => Ok(None),
        }
    }

    /// One queue with up to `limit` of its partitions in the order of their creation, those after `after`; or with the one of
    /// that name. Their dead letters are not counted, as that would read those of the whole queue.
    pub async fn queue_page(
        &self,
        queue: &str,
        partition: Option<String>,
        after: Option<PartitionId>,
        limit: usize,
    ) -> Result<Option<(Arc<Queue>, Vec<PartitionSummary>)>, Error> {
        let found = self.matching_queues(Some(queue.into()), None, None).await?;
        let Some(queue) = found.into_iter().next() else { return Ok(None) };
        let of_queue = queue.clone();
        let page = self.run(move |tx| {
            let group = inspect::counting_group(tx, &of_queue)?;
            let partitions = match &partition {
                Some(name) => tx.partition(of_queue.id, name)?.into_iter().collect(),
                None => tx.partitions(of_queue.id, after, limit)?,
            };
            let mut page = Vec::with_capacity(partitions.len());
            collect_misses(&partitions, |partition| {
                page.push(inspect::summarise(tx, group.as_deref(), partition)?);
                Ok(())
            })?;
            Ok(page)
        });
        Ok(Some((queue, page.await?)))
    }

    async fn summarise(&self, queue: &Arc<Queue>) -> Result<(QueueSummary, Vec<PartitionSummary>), Error> {
        let (mut partitions, mut after) = (Vec::new(), None);
        let of_queue = queue.clone();
        let group = self.run(move |tx| inspect::counting_group(tx, &of_queue)).await?;
        loop {
            let (queue, group) = (queue.clone(), group.clone());
            let page = self
                .run(move |tx| {
                    let mut page = Vec::new();
                    collect_misses(tx.partitions(queue.id, after, PAGE)?, |partition| {
                        page.push(inspect::summarise(tx, group.as_deref(), &partition)?);
                        Ok(())
                    })?;
                    Ok(page)
                })
                .await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            partitions.extend(page);
        }
        let letters = self.dead_letter_keys(queue.id).await?;
        inspect::count_dead_letters(&mut partitions, group.as_deref(), &letters);
        Ok((QueueSummary::of(queue, &partitions), partitions))
    }

    /// Deletes a queue with everything in it; whether there was one.
    pub async fn delete_queue(&self, name: &str) -> Result<bool, Error> {
        if maintenance::is_hidden(name) {
            return Ok(false);
        }
        self.shared.sealer.note(name, false);
        self.give_up_spooled(name, None).await?;
        let name = name.to_string();
        let of_streams = name.clone();
        let removed = self
            .run(move |tx| {
                let Some(queue) = tx.queue(&name)? else { return Ok(None) };
                let partitions = tx.partition_count(queue.id)?;
                tx.remove_queue(queue.id);
                Ok(Some((queue.id, partitions)))
            })
            .await?;
        if let Some((queue, partitions)) = removed {
            self.shared.meters.deleted(&of_streams, partitions);
            self.shared.parking.tell(News::Deleted { queue, name: &of_streams });
            self.shared.parking.wake(queue);
            self.forget_traces(queue).await?;
            self.forget_source(&of_streams).await?;
        }
        Ok(removed.is_some())
    }

    /// Deletes all messages of a queue, after the partition `after`, or of one of its partitions; `None` when there is no such
    /// queue. Options, groups and dead letters stay.
    pub async fn clear_queue(
        &self,
        name: &str,
        partition: Option<&str>,
        mut after: Option<PartitionId>,
    ) -> Result<Option<Cleared>, Error> {
        let Some(queue) = self.matching_queues(Some(name.into()), None, None).await?.pop() else {
            return Ok(None);
        };
        self.give_up_spooled(name, partition).await?;
        let mut cleared = Cleared::default();
        for _ in 0..CLEARED_PAGES_MAX {
            let (id, only) = (queue.id, partition.map(String::from));
            let (count, last) = self
                .run(move |tx| {
                    let Some(queue) = tx.queue_by_id(id)? else { return Ok((0, None)) };
                    match &only {
                        Some(only) => {
                            let found = tx.partition(id, only)?;
                            empty(tx, &queue, found.as_slice()).map(|count| (count, None))
                        }
                        None => {
                            let page = tx.partitions(id, after, PAGE)?;
                            let last =
                                page.last().filter(|_| page.len() == PAGE).map(|partition| partition.id);
                            empty(tx, &queue, &page).map(|count| (count, last))
                        }
                    }
                })
                .await?;
            cleared.partitions += count;
            after = last;
            if after.is_none() {
                break;
            }
        }
        cleared.next = after;
        Ok(Some(cleared))
    }
}

/// Deletes the messages of partitions, whose transaction ids are then accepted again.
fn empty(tx: &mut dyn Tx, queue: &Queue, partitions: &[Partition]) -> Result<u64, TxError> {
    let mut withdrawals = Vec::new();
    collect_misses(partitions, |partition| {
        withdrawals.extend(Withdrawal::of_all(tx, queue, partition.id, partition.tail)?);
        Ok(())
    })?;
    collect_misses(partitions, |partition| tx.trim(partition.id, partition.tail))?;
    withdrawals.into_iter().try_for_each(|withdrawal| withdrawal.write(tx))?;
    Ok(partitions.len() as u64)
}
