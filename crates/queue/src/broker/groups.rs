//! Groups: how far they are, moving and deleting them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use baton_store::{Group, GroupStart, Queue, Tx, TxError, collect_misses};
use baton_types::{GroupId, PartitionId, Timestamp};

use super::queues::FEW;
use super::{Broker, PAGE};
use crate::rules::group;
use crate::rules::group_lag::{PartitionEnds, Unread};
use crate::rules::maintenance::is_hidden;
use crate::rules::push::check_name;
use crate::{Error, GroupOverview, GroupPartition, Position};

impl Broker {
    /// Every group of every queue.
    pub async fn groups(&self) -> Result<Vec<GroupOverview>, Error> {
        let queues = self.matching_queues(None, None, None).await?;
        let few = |tx: &mut dyn Tx, queue: &Arc<Queue>| group::describe_few(tx, queue, FEW, |_| true);
        let described = self.look_at_queues(&queues, few).await?;
        let mut found = Vec::new();
        for (queue, described) in queues.iter().zip(described) {
            if let Some(described) = described {
                found.extend(described.into_iter().map(|(overview, _)| overview));
                continue;
            }
            let id = queue.id;
            let (groups, partition_count) =
                self.run(move |tx| Ok((tx.groups(id)?, tx.partition_count(id)?))).await?;
            let mut ends = None;
            for group in groups {
                let of_group = group.id;
                let (placed, now) =
                    self.run(move |tx| Ok((tx.placed_partitions(of_group)?, tx.now()))).await?;
                let (partitions, unread) = match placed {
                    Some(placed) => {
                        let unread = self.ends_of(queue, &mut ends).await?.unread(&group, &placed);
                        let ids = [&placed[..], &unread.middles].concat();
                        (self.describe_some(queue, &group, &ids, usize::MAX, |_| true).await?, unread)
                    }
                    None => (self.describe(queue, &group).await?, Unread::default()),
                };
                let overview = group::summarise(queue, &group, partition_count, now, &partitions);
                found.push(overview.with_unread(&unread, now));
            }
        }
        Ok(found)
    }

    /// Where groups are behind by `min_seconds` or more, at most `limit` partitions.
    pub async fn lagging_partitions(
        &self,
        min_seconds: u64,
        limit: usize,
    ) -> Result<Vec<GroupPartition>, Error> {
        let is_behind =
            |partition: &GroupPartition| partition.lag > 0 && partition.time_lag_seconds >= min_seconds;
        let queues = self.matching_queues(None, None, None).await?;
        let few = |tx: &mut dyn Tx, queue: &Arc<Queue>| group::describe_few(tx, queue, FEW, |_| true);
        let described = self.look_at_queues(&queues, few).await?;
        let mut found = Vec::new();
        for (queue, described) in queues.iter().zip(described) {
            if let Some(described) = described {
                found.extend(described.into_iter().flat_map(|(_, partitions)| partitions).filter(is_behind));
                continue;
            }
            let (id, mut ends) = (queue.id, None);
            for group in self.run(move |tx| tx.groups(id)).await? {
                if found.len() >= limit {
                    break;
                }
                let of_group = group.id;
                let (placed, now) =
                    self.run(move |tx| Ok((tx.placed_partitions(of_group)?, tx.now()))).await?;
                let Some(mut ids) = placed else {
                    found.extend(self.describe(queue, &group).await?.into_iter().filter(is_behind));
                    continue;
                };
                let until = now.before(Duration::from_secs(min_seconds));
                let unread = self.ends_of(queue, &mut ends).await?.unread_by(&group, &ids, until);
                ids.extend(unread);
                ids.sort_unstable();
                let left = limit - found.len();
                found.extend(self.describe_some(queue, &group, &ids, left, is_behind).await?);
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// The partitions that are leased now, at most `limit`. Of a queue with many partitions, only groups are looked at that held a
    /// lease when the numbers were counted last, so a lease in a group that held none is found a few seconds later.
    pub async fn leased_partitions(&self, limit: usize) -> Result<Vec<GroupPartition>, Error> {
        let numbers = self.numbers().await?;
        let with_leases: HashSet<_> = numbers
            .groups
            .iter()
            .filter(|group| group.leases > 0)
            .map(|group| (&*group.queue, &*group.name))
            .collect();
        let is_leased = |partition: &GroupPartition| partition.lease.is_some();
        let queues = self.matching_queues(None, None, None).await?;
        let few = |tx: &mut dyn Tx, queue: &Arc<Queue>| group::describe_few(tx, queue, FEW, |_| true);
        let described = self.look_at_queues(&queues, few).await?;
        let mut found = Vec::new();
        for (queue, described) in queues.iter().zip(described) {
            if let Some(described) = described {
                found.extend(described.into_iter().flat_map(|(_, partitions)| partitions).filter(is_leased));
                continue;
            }
            let id = queue.id;
            for group in self.run(move |tx| tx.groups(id)).await? {
                if found.len() >= limit {
                    break;
                }
                if !with_leases.contains(&(&*queue.spec.name, &*group.name)) {
                    continue;
                }
                let of_group = group.id;
                match self.run(move |tx| tx.placed_partitions(of_group)).await? {
                    Some(ids) => {
                        let left = limit - found.len();
                        found.extend(self.describe_some(queue, &group, &ids, left, is_leased).await?);
                    }
                    None => found.extend(self.describe(queue, &group).await?.into_iter().filter(is_leased)),
                }
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// How far a group is, partition by partition.
    pub async fn group_partitions(&self, name: &str) -> Result<Vec<GroupPartition>, Error> {
        let queues = self.matching_queues(None, None, None).await?;
        let only = name.to_owned();
        let few = move |tx: &mut dyn Tx, queue: &Arc<Queue>| {
            group::describe_few(tx, queue, FEW, |group| *group.name == *only)
        };
        let described = self.look_at_queues(&queues, few).await?;
        let mut found = Vec::new();
        for (queue, described) in queues.iter().zip(described) {
            if let Some(described) = described {
                found.extend(described.into_iter().flat_map(|(_, partitions)| partitions));
                continue;
            }
            let (id, name) = (queue.id, name.to_owned());
            if let Some(group) = self.run(move |tx| tx.group(id, &name)).await? {
                found.extend(self.describe(queue, &group).await?);
            }
        }
        Ok(found)
    }

    /// The ends of a queue's partitions, which are read once.
    async fn ends_of<'e>(
        &self,
        queue: &Queue,
        known: &'e mut Option<PartitionEnds>,
    ) -> Result<&'e PartitionEnds, Error> {
        if known.is_none() {
            let (id, mut ends, mut after) = (queue.id, PartitionEnds::default(), None);
            loop {
                let page = self.run(move |tx| tx.partitions(id, after, PAGE)).await?;
                ends.add(&page);
                let Some(last) = page.last() else { break };
                after = Some(last.id);
            }
            *known = Some(ends.sorted());
        }
        Ok(known.get_or_insert_default())
    }

    async fn describe(&self, queue: &Arc<Queue>, group: &Arc<Group>) -> Result<Vec<GroupPartition>, Error> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let (queue, group) = (queue.clone(), group.clone());
            let (page, last) = self
                .run(move |tx| {
                    let partitions = tx.partitions(queue.id, after, PAGE)?;
                    let mut page = Vec::new();
                    collect_misses(&partitions, |partition| {
                        page.extend(group::describe(tx, &queue, &group, partition)?);
                        Ok(())
                    })?;
                    Ok((page, partitions.last().map(|partition| partition.id)))
                })
                .await?;
            found.extend(page);
            match last {
                Some(last) => after = Some(last),
                None => return Ok(found),
            }
        }
    }

    /// How far a group is in some partitions, at most `limit` of those that are `wanted`.
    async fn describe_some(
        &self,
        queue: &Arc<Queue>,
        group: &Arc<Group>,
        ids: &[PartitionId],
        limit: usize,
        wanted: impl Fn(&GroupPartition) -> bool,
    ) -> Result<Vec<GroupPartition>, Error> {
        let mut found = Vec::new();
        for ids in ids.chunks(PAGE) {
            if found.len() >= limit {
                break;
            }
            let (queue, group, ids) = (queue.clone(), group.clone(), ids.to_vec());
            let page = self
                .run(move |tx| {
                    let mut page = Vec::new();
                    collect_misses(&ids, |id| {
                        if let Some(partition) = tx.partition_by_id(*id)? {
                            page.extend(group::describe(tx, &queue, &group, &partition)?);
                        }
                        Ok(())
                    })?;
                    Ok(page)
                })
                .await?;
            found.extend(page.into_iter().filter(&wanted));
        }
        Ok(found)
    }

    /// How many partitions a group has read.
    async fn partitions_read(&self, queue: &Queue, group: &Group) -> Result<u64, Error> {
        let (queue, group) = (queue.id, group.id);
        let (mut read, mut after) = (0, None);
        if let Some(placed) = self.run(move |tx| tx.placed_partitions(group)).await? {
            for ids in placed.chunks(PAGE) {
                let ids = ids.to_vec();
                read += self.run(move |tx| count_read(tx, group, ids.iter().copied())).await?;
            }
            return Ok(read);
        }
        loop {
            let (count, last) = self
                .run(move |tx| {
                    let page = tx.partitions(queue, after, PAGE)?;
                    let count = count_read(tx, group, page.iter().map(|partition| partition.id))?;
                    Ok((count, page.last().map(|partition| partition.id)))
                })
                .await?;
            read += count;
            match last {
                Some(last) => after = Some(last),
                None => return Ok(read),
            }
        }
    }

    /// Deletes a group, from one queue or from all; how many partitions it had read. With
    /// `keep_subscription` it begins again where it first did, otherwise as a new group.
    pub async fn delete_group(
        &self,
        name: &str,
        queue: Option<&str>,
        keep_subscription: bool,
    ) -> Result<u64, Error> {
        let mut gone = 0;
        let queues = self.matching_queues(queue.map(String::from), None, None).await?;
        let group = name.to_string();
        let groups = self.look_at_queues(&queues, move |tx, queue| tx.group(queue.id, &group)).await?;
        for (queue, group) in queues.iter().zip(groups) {
            let Some(group) = group else { continue };
            gone += self.partitions_read(queue, &group).await?;
            self.run(move |tx| {
                group::delete(tx, &group, keep_subscription);
                Ok(())
            })
            .await?;
        }
        Ok(gone)
    }

    /// Changes where a group begins in partitions it has not read; how many subscriptions were changed.
    pub async fn resubscribe(&self, name: &str, at: Timestamp) -> Result<u64, Error> {
        let name = name.to_string();
        self.run(move |tx| {
            let mut changed = 0;
            for queue in tx.queues()? {
                if let Some(group) = tx.group(queue.id, &name)? {
                    tx.admit_update()?;
                    tx.set_group_start(group.id, GroupStart::At(at));
                    changed += 1;
                }
            }
            Ok(changed)
        })
        .await
    }

    /// Moves a group in every partition; `None` when there is no such queue, else how many there are.
    pub async fn seek(&self, name: &str, queue: &str, to: Position) -> Result<Option<u64>, Error> {
        check_name("group", name)?;
        if is_hidden(queue) {
            return Ok(None);
        }
        let (name, queue) = (name.to_string(), queue.to_string());
        self.run(move |tx| match tx.queue(&queue)? {
            Some(queue) => group::seek(tx, &queue, &name, to).map(Some),
            None => Ok(None),
        })
        .await
    }

    /// Moves a group in one partition; `None` when there is no such partition, else when the message before
    /// its new place was stored.
    pub async fn seek_partition(
        &self,
        name: &str,
        queue: &str,
        partition: &str,
        to: Position,
    ) -> Result<Option<Option<Timestamp>>, Error> {
        check_name("group", name)?;
        if is_hidden(queue) {
            return Ok(None);
        }
        let (name, queue, partition) = (name.to_string(), queue.to_string(), partition.to_string());
        self.run(move |tx| {
            let Some(queue) = tx.queue(&queue)? else { return Ok(None) };
            let Some(partition) = tx.partition(queue.id, &partition)? else { return Ok(None) };
            group::seek_partition(tx, &queue, &name, &partition, to).map(Some)
        })
        .await
    }
}

/// In how many of these partitions a group has read.
fn count_read(
    tx: &mut dyn Tx,
    group: GroupId,
    partitions: impl Iterator<Item = PartitionId>,
) -> Result<u64, TxError> {
    let mut count = 0;
    collect_misses(partitions, |partition| {
        let cursor = tx.cursor(group, partition)?;
        count += u64::from(cursor.is_some_and(|cursor| cursor.last_pop_at > Timestamp::default()));
        Ok(())
    })?;
    Ok(count)
}
