//! Rows that the decisions of a batch miss. One round trip fetches all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use baton_store::DeadLetterKey;
use baton_types::{GroupId, LeaseId, Offset, PartitionId, QueueId, Timestamp};

/// Everything that the next round trip fetches.
#[derive(Clone, Debug, Default)]
pub struct MissingRows {
    /// Partitions by number, each with the slots of all groups; locked after a conflict.
    pub partitions: BTreeSet<PartitionId>,
    /// Partitions by queue and name, fetched in the same way.
    pub names: BTreeSet<(QueueId, Arc<str>)>,
    /// Queues of which every partition is fetched in the same way.
    pub whole_queues: BTreeSet<QueueId>,
    /// Pages of partitions, never locked: queue, after, limit.
    pub partition_pages: BTreeSet<(QueueId, Option<PartitionId>, usize)>,
    /// How many ready partitions of a group; locked after a conflict.
    pub ready: BTreeMap<GroupId, usize>,
    /// How many partitions that become ready for a group later.
    pub upcoming: BTreeMap<GroupId, usize>,
    /// How many new numbers for queues, partitions and groups.
    pub ids: u64,
    pub message_counts: BTreeSet<QueueId>,
    pub partition_counts: BTreeSet<QueueId>,
    pub backlogs: BTreeSet<GroupId>,
    pub leases: BTreeSet<LeaseId>,
    /// Transaction ids of a partition from an offset on.
    pub dedup_ids: BTreeMap<PartitionId, Offset>,
    /// Partition and an offset in the segment.
    pub segments: BTreeSet<(PartitionId, Offset)>,
    /// Partition and an offset in the segment whose time is missing.
    pub segment_times: BTreeSet<(PartitionId, Offset)>,
    /// The offset of the first message at or after a time: partition, from, to, time.
    pub times: BTreeSet<(PartitionId, Offset, Offset, Timestamp)>,
    pub records: BTreeSet<String>,
    /// Prefix and the key before the page, with the limit.
    pub record_pages: BTreeMap<(String, Option<String>), usize>,
    pub dead_letters: BTreeSet<DeadLetterKey>,
    /// Queue and the position before the page, with the limit; newest first.
    pub dead_letter_pages: BTreeMap<(QueueId, Option<DeadLetterPosition>), usize>,
    /// Queue and the key before the page, with the limit; keys only.
    pub dead_letter_key_pages: BTreeMap<(QueueId, Option<DeadLetterKey>), usize>,
}

impl MissingRows {
    /// Whether it names partitions that a pessimistic batch locks.
    pub fn has_partitions_to_lock(&self) -> bool {
        let Self { partitions, names, whole_queues: all_of, ready, .. } = self;
        !(partitions.is_empty() && names.is_empty() && all_of.is_empty() && ready.is_empty())
    }

    /// Adds the partitions that `other` names.
    pub fn add_partitions(&mut self, other: &Self) {
        self.partitions.extend(&other.partitions);
        self.names.extend(other.names.iter().cloned());
        self.whole_queues.extend(&other.whole_queues);
    }

    /// Whether all partitions come after `last` in lock order, so that waiting for their locks cannot
    /// deadlock.
    pub fn is_after_lock_on(&self, last: PartitionId) -> bool {
        let Self { partitions, names, whole_queues: all_of, .. } = self;
        names.is_empty() && all_of.is_empty() && partitions.first().is_none_or(|first| *first > last)
    }

    /// About how many rows it asks for.
    pub fn row_estimate(&self) -> usize {
        let Self {
            partitions,
            names,
            whole_queues: all_of,
            partition_pages: pages,
            ready,
            upcoming: later,
            ids: _,
            ..
        } = self;
        let of_partitions = partitions.len() + names.len() + all_of.len() + pages.len();
        let lines = ready.values().chain(later.values()).sum::<usize>();
        let numbers =
            self.message_counts.len() + self.partition_counts.len() + self.backlogs.len() + self.leases.len();
        let messages =
            self.dedup_ids.len() + self.segments.len() + self.segment_times.len() + self.times.len();
        let records = self.records.len() + self.record_pages.values().sum::<usize>();
        let pages = self.dead_letter_pages.values().chain(self.dead_letter_key_pages.values()).sum::<usize>();
        let letters = self.dead_letters.len() + pages;
        // Each round counts at least one row, so that endless rounds reach the limit.
        1 + of_partitions + lines + numbers + messages + records + letters
    }
}

/// The position of a dead letter among those of its queue, newest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadLetterPosition {
    pub failed_at: std::cmp::Reverse<Timestamp>,
    pub partition: PartitionId,
    pub offset: std::cmp::Reverse<Offset>,
    pub group: Arc<str>,
}

impl DeadLetterPosition {
    pub fn new(key: &DeadLetterKey, failed_at: Timestamp) -> Self {
        Self {
            failed_at: std::cmp::Reverse(failed_at),
            partition: key.partition,
            offset: std::cmp::Reverse(key.offset),
            group: key.group.clone(),
        }
    }
}
