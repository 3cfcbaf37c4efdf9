//! Consumer groups from the outside: listing, moving, deleting.
//!
//! Moving or deleting a group gives it a new number, so that every cursor and lease of the old one is void at
//! once, however many partitions there are.

use std::sync::Arc;
use std::time::Duration;

use baton_store::{
    Cursor, Durability, Group, GroupSpec, GroupStart, Partition, Queue, Tx, TxError, collect_misses,
};
use baton_types::{LeaseId, Offset, PartitionId, Timestamp};

use crate::rules::cursor::{current_cursor, passed_over};
use crate::rules::group_lag::Unread;
use crate::rules::quota;

/// Where to move a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Behind the newest message.
    End,
    /// Behind the last message stored at or before this moment.
    After(Timestamp),
}

impl Position {
    fn start(self, now: Timestamp) -> GroupStart {
        match self {
            Self::End => GroupStart::At(now),
            Self::After(at) => GroupStart::At(Timestamp::from_micros(at.micros().saturating_add(1))),
        }
    }
}

/// One group of one queue.
#[derive(Clone, Debug)]
pub struct GroupOverview {
    /// Its name.
    pub name: Arc<str>,
    /// The queue's name.
    pub queue: Arc<str>,
    /// Partitions it has a place in: those it has read, or all once a moment decides where it begins.
    pub members: u64,
    /// Partitions of which it holds messages.
    pub leases: u64,
    /// Partitions with messages it has not finished.
    pub partitions_with_lag: u64,
    /// Messages it has not finished.
    pub total_lag: u64,
    /// Seconds since the oldest of them was stored.
    pub time_lag_seconds: u64,
    /// Whether it has ever finished a message.
    pub ever_consumed: bool,
    /// How long ago it was first seen.
    pub age: Duration,
    /// `all`, `new` or `timestamp`.
    pub subscription_mode: &'static str,
    /// Where it began, unless at the oldest message.
    pub subscription_timestamp: Option<Timestamp>,
    /// When it was first seen.
    pub subscribed_at: Timestamp,
    /// Whether it is only ever given the newest message of a partition.
    pub conflation: bool,
}

impl GroupOverview {
    /// The same, with what the group has not read in partitions that it has no place in.
    pub fn with_unread(mut self, unread: &Unread, now: Timestamp) -> Self {
        self.partitions_with_lag += unread.partitions;
        self.total_lag += unread.messages;
        let seconds = unread.oldest.map_or(0, |at| now.since(at).as_secs());
        self.time_lag_seconds = self.time_lag_seconds.max(seconds);
        self
    }
}

/// A live lease of a group on messages of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// The group.
    pub group: Arc<str>,
    /// The id that the consumer shows.
    pub id: LeaseId,
    /// Its fencing token.
    pub token: u64,
    /// When it was given.
    pub since: Timestamp,
    /// When it runs out.
    pub until: Timestamp,
    /// The first offset that is not held.
    pub end: Offset,
}

impl LeaseView {
    /// The live lease of a group by its cursor, if there is one.
    pub fn of(group: &Group, cursor: &Cursor, now: Timestamp) -> Option<Self> {
        let lease = cursor.lease.as_ref().filter(|lease| lease.until > now)?;
        // While a lease lives the group gets no other message of the partition.
        let (since, group) = (cursor.last_pop_at, group.name.clone());
        Some(Self { group, id: lease.id, token: lease.token, since, until: lease.until, end: lease.end })
    }
}

/// How far a group is in one partition.
#[derive(Clone, Debug)]
pub struct GroupPartition {
    /// The queue's name.
    pub queue: Arc<str>,
    /// The group's name.
    pub group: Arc<str>,
    /// The partition.
    pub partition: PartitionId,
    /// Its name.
    pub partition_name: Arc<str>,
    /// Messages not finished and not deleted.
    pub lag: u64,
    /// Seconds since the oldest of them was stored.
    pub time_lag_seconds: u64,
    /// When the oldest of them was stored.
    pub oldest_unfinished_at: Option<Timestamp>,
    /// When the group last got a message.
    pub last_pop_at: Option<Timestamp>,
    /// Messages finished.
    pub consumed: u64,
    /// The live lease.
    pub lease: Option<LeaseView>,
    /// The first unfinished offset.
    pub next: Offset,
}

/// How far a group is in one partition; `None` when it has neither read it nor anything to read.
pub fn describe(
    tx: &mut dyn Tx,
    queue: &Queue,
    group: &Group,
    partition: &Partition,
) -> Result<Option<GroupPartition>, TxError> {
    let has_cursor = tx.cursor(group.id, partition.id)?.is_some();
    let cursor = current_cursor(tx, group, partition)?;
    let passed = passed_over(&cursor, partition);
    let lag = partition.tail.since(cursor.next).saturating_sub(passed.len_from(cursor.next));
    let first = passed.first_missing(cursor.next);
    if !has_cursor && lag == 0 {
        return Ok(None);
    }
    // The row of a partition has the times of its ends; a read of the log for each group and partition would be dear.
    let oldest = match lag {
        0 => None,
        _ if first == partition.start => Some(partition.first_at),
        _ if first.plus(1) == partition.tail => Some(partition.last_at),
        _ => tx.message(partition.id, first)?.map(|message| message.created_at),
    };
    let now = tx.now();
    Ok(Some(GroupPartition {
        queue: queue.spec.name.clone(),
        group: group.name.clone(),
        partition: partition.id,
        partition_name: partition.name.clone(),
        lag,
        time_lag_seconds: oldest.map_or(0, |at| now.since(at).as_secs()),
        oldest_unfinished_at: oldest,
        last_pop_at: Some(cursor.last_pop_at).filter(|at| *at > Timestamp::default()),
        consumed: cursor.consumed,
        lease: LeaseView::of(group, &cursor, now),
        next: cursor.next,
    }))
}

/// The overview of a group, from the partitions that [`describe`] tells of and the number of all.
pub fn summarise(
    queue: &Queue,
    group: &Group,
    partition_count: u64,
    now: Timestamp,
    partitions: &[GroupPartition],
) -> GroupOverview {
    let (mode, timestamp) = match group.start {
        GroupStart::Oldest => ("all", None),
        GroupStart::At(at) if at == group.subscribed_at => ("new", Some(at)),
        GroupStart::At(at) => ("timestamp", Some(at)),
    };
    GroupOverview {
        name: group.name.clone(),
        queue: queue.spec.name.clone(),
        members: match group.start {
            GroupStart::Oldest => partitions.iter().filter(|p| p.last_pop_at.is_some()).count() as u64,
            GroupStart::At(_) => partition_count,
        },
        leases: partitions.iter().filter(|p| p.lease.is_some()).count() as u64,
        partitions_with_lag: partitions.iter().filter(|p| p.lag > 0).count() as u64,
        total_lag: partitions.iter().map(|p| p.lag).sum(),
        time_lag_seconds: partitions.iter().map(|p| p.time_lag_seconds).max().unwrap_or(0),
        ever_consumed: partitions.iter().any(|p| p.consumed > 0),
        age: now.since(group.subscribed_at),
        subscription_mode: mode,
        subscription_timestamp: timestamp,
        subscribed_at: group.subscribed_at,
        conflation: group.conflation,
    }
}

/// Groups, each with the partitions that [`describe`] tells of.
type Described = Vec<(GroupOverview, Vec<GroupPartition>)>;

/// Every group of a queue that is `wanted`, with the partitions that [`describe`] tells of; `None` when those are more
/// than `few`.
pub fn describe_few(
    tx: &mut dyn Tx,
    queue: &Queue,
    few: usize,
    wanted: impl Fn(&Group) -> bool,
) -> Result<Option<Described>, TxError> {
    let mut groups = tx.groups(queue.id)?;
    groups.retain(|group| wanted(group));
    if groups.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let page = tx.partitions(queue.id, None, few + 1)?;
    if page.len().max(1) * groups.len() > few {
        return Ok(None);
    }
    let mut found = Vec::with_capacity(groups.len());
    collect_misses(groups, |group| {
        let mut partitions = Vec::new();
        collect_misses(&page, |partition| {
            partitions.extend(describe(tx, queue, &group, partition)?);
            Ok(())
        })?;
        let overview = summarise(queue, &group, page.len() as u64, tx.now(), &partitions);
        found.push((overview, partitions));
        Ok(())
    })?;
    Ok(Some(found))
}

/// Removes a group from a queue, or lets it begin again where it first did.
pub fn delete(tx: &mut dyn Tx, group: &Group, keep_subscription: bool) {
    if keep_subscription {
        restart(tx, group, group.start);
    } else {
        tx.remove_group(group.id);
    }
}

/// Lets a group begin anew at `start`, in every partition.
pub fn restart(tx: &mut dyn Tx, group: &Group, start: GroupStart) {
    let (subscribed_at, conflation) = (group.subscribed_at, group.conflation);
    let spec = GroupSpec { name: &group.name, start, subscribed_at, conflation };
    tx.put_group(group.queue, &spec);
}

/// Moves a group in every partition of a queue.
pub fn seek(tx: &mut dyn Tx, queue: &Queue, name: &str, to: Position) -> Result<u64, TxError> {
    let (now, group) = (tx.now(), tx.group(queue.id, name)?);
    tx.admit_update()?;
    let start = to.start(now);
    match group {
        Some(group) => restart(tx, &group, start),
        None => {
            quota::for_groups(tx, queue, 1)?;
            tx.put_group(queue.id, &GroupSpec { name, start, subscribed_at: now, conflation: false });
        }
    }
    tx.partition_count(queue.id)
}

/// Moves a group in one partition; tells when the last message before its new place was stored.
pub fn seek_partition(
    tx: &mut dyn Tx,
    queue: &Queue,
    name: &str,
    partition: &Partition,
    to: Position,
) -> Result<Option<Timestamp>, TxError> {
    let next = match to {
        Position::End => partition.tail,
        Position::After(at) => {
            tx.offset_at(partition.id, Timestamp::from_micros(at.micros().saturating_add(1)))?
        }
    };
    let before = match next.0.checked_sub(1).map(Offset).filter(|offset| *offset >= partition.start) {
        Some(offset) => tx.message(partition.id, offset)?.map(|message| message.created_at),
        None => None,
    };
    if tx.group(queue.id, name)?.is_none() {
        quota::for_groups(tx, queue, 1)?;
    }
    place(tx, queue, name, partition, next)?;
    Ok(before)
}

/// Sets the next offset that a group reads of a partition. A live lease on it ends.
pub fn place(
    tx: &mut dyn Tx,
    queue: &Queue,
    name: &str,
    partition: &Partition,
    next: Offset,
) -> Result<(), TxError> {
    tx.admit_update()?;
    let now = tx.now();
    let group = match tx.group(queue.id, name)? {
        Some(group) => group,
        None => {
            let (start, conflation) = (GroupStart::Oldest, false);
            tx.put_group(queue.id, &GroupSpec { name, start, subscribed_at: now, conflation })
        }
    };
    let consumed = tx.cursor(group.id, partition.id)?.map_or(0, |cursor| cursor.consumed);
    let cursor = Cursor { next, available_at: now, consumed, last_pop_at: now, ..Cursor::default() };
    tx.put_cursor(group.id, partition.id, cursor, Durability::Now);
    Ok(())
}
