//! Groups: how far they are, moving and deleting them.

use std::sync::Arc;

use baton_store::{Group, GroupStart, Queue, Tx, collect_misses};
use baton_types::Timestamp;

use super::queues::FEW;
use super::{Broker, PAGE};
use crate::rules::group;
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
            let (groups, partition_count, now) = self
                .run(move |tx| {
                    let mut groups = Vec::new();
                    for group in tx.groups(id)? {
                        let backlog = tx.backlog(group.id)?;
                        groups.push((group, backlog));
                    }
                    Ok((groups, tx.partition_count(id)?, tx.now()))
                })
                .await?;
            for (group, backlog) in groups {
                let partitions = self.describe(queue, &group).await?;
                found.push(group::summarise(queue, &group, partition_count, backlog, now, &partitions));
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
        self.described_partitions(None, is_behind, limit).await
    }

    /// How far groups are, partition by partition: the named one, or all.
    pub async fn group_partitions(&self, name: Option<&str>) -> Result<Vec<GroupPartition>, Error> {
        self.described_partitions(name, |_| true, usize::MAX).await
    }

    async fn described_partitions(
        &self,
        name: Option<&str>,
        wanted: impl Fn(&GroupPartition) -> bool + Send + Sync,
        limit: usize,
    ) -> Result<Vec<GroupPartition>, Error> {
        let queues = self.matching_queues(None, None, None).await?;
        let only = name.map(String::from);
        let few = move |tx: &mut dyn Tx, queue: &Arc<Queue>| {
            group::describe_few(tx, queue, FEW, |group| {
                only.as_deref().is_none_or(|name| *group.name == *name)
            })
        };
        let described = self.look_at_queues(&queues, few).await?;
        let mut found = Vec::new();
        for (queue, described) in queues.iter().zip(described) {
            if let Some(described) = described {
                found.extend(described.into_iter().flat_map(|(_, partitions)| partitions).filter(&wanted));
                continue;
            }
            let id = queue.id;
            for group in self.run(move |tx| tx.groups(id)).await? {
                if found.len() >= limit {
                    break;
                }
                if name.is_none_or(|name| *group.name == *name) {
                    found.extend(self.describe(queue, &group).await?.into_iter().filter(&wanted));
                }
            }
        }
        found.truncate(limit);
        Ok(found)
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

    /// How many partitions a group has read.
    async fn partitions_read(&self, queue: &Queue, group: &Group) -> Result<u64, Error> {
        let (queue, group) = (queue.id, group.id);
        let (mut read, mut after) = (0, None);
        loop {
            let (count, last) = self
                .run(move |tx| {
                    let page = tx.partitions(queue, after, PAGE)?;
                    let mut count = 0;
                    collect_misses(&page, |partition| {
                        let cursor = tx.cursor(group, partition.id)?;
                        count += u64::from(cursor.is_some_and(|c| c.last_pop_at > Timestamp::default()));
                        Ok(())
                    })?;
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
