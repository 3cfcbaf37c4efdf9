//! The rows that decisions found missing, of a whole group, so that they are fetched together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use baton_store::DeadLetterKey;
use baton_types::{GroupId, LeaseId, Offset, PartitionId, QueueId, Timestamp};

/// Everything that is to be fetched in the next round trip.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Partitions with all their slots, locked.
    pub partitions: BTreeSet<PartitionId>,
    /// The same by name.
    pub names: BTreeSet<(QueueId, Arc<str>)>,
    /// The same for whole queues.
    pub all_of: BTreeSet<QueueId>,
    /// Pages of partitions, not locked: queue, after, limit.
    pub pages: BTreeSet<(QueueId, Option<PartitionId>, usize)>,
    /// How many partitions that are ready for a group, locked.
    pub ready: BTreeMap<GroupId, usize>,
    /// How many partitions that become ready for a group later.
    pub later: BTreeMap<GroupId, usize>,
    /// Numbers for what is new.
    pub ids: u64,
    pub kept: BTreeSet<QueueId>,
    pub counts: BTreeSet<QueueId>,
    pub backlogs: BTreeSet<GroupId>,
    pub leases: BTreeSet<LeaseId>,
    /// Transaction ids of a partition, from an offset on.
    pub remembered: BTreeMap<PartitionId, Offset>,
    /// The segment around an offset.
    pub segments: BTreeSet<(PartitionId, Offset)>,
    /// The time of the segment around an offset.
    pub times: BTreeSet<(PartitionId, Offset)>,
    /// The first message at or after a moment, between two offsets.
    pub moments: BTreeSet<(PartitionId, Offset, Offset, Timestamp)>,
    pub records: BTreeSet<String>,
    /// Prefix, after, limit.
    pub record_pages: BTreeMap<(String, Option<String>), usize>,
    pub letters: BTreeSet<DeadLetterKey>,
    /// Queue, after, limit.
    pub letter_pages: BTreeMap<(QueueId, Option<LetterPlace>), usize>,
    /// The same by key.
    pub letter_keys: BTreeMap<(QueueId, Option<DeadLetterKey>), usize>,
}

impl Wanted {
    /// Whether rows are to be locked.
    pub fn locks(&self) -> bool {
        let Self { partitions, names, all_of, ready, .. } = self;
        !(partitions.is_empty() && names.is_empty() && all_of.is_empty() && ready.is_empty())
    }

    /// Wants the partitions too that `other` names.
    pub fn add_partitions(&mut self, other: &Self) {
        self.partitions.extend(&other.partitions);
        self.names.extend(other.names.iter().cloned());
        self.all_of.extend(&other.all_of);
    }

    /// Whether a lock on each of the partitions it names comes after one on `last` in the order of locks.
    pub fn comes_after(&self, last: PartitionId) -> bool {
        let Self { partitions, names, all_of, .. } = self;
        names.is_empty() && all_of.is_empty() && partitions.first().is_none_or(|first| *first > last)
    }

    /// How many rows it asks for, roughly.
    pub fn len(&self) -> usize {
        let Self { partitions, names, all_of, pages, ready, later, ids: _, .. } = self;
        let of_partitions = partitions.len() + names.len() + all_of.len() + pages.len();
        let lines = ready.values().chain(later.values()).sum::<usize>();
        let numbers = self.kept.len() + self.counts.len() + self.backlogs.len() + self.leases.len();
        let messages = self.remembered.len() + self.segments.len() + self.times.len() + self.moments.len();
        let records = self.records.len() + self.record_pages.values().sum::<usize>();
        let pages = self.letter_pages.values().chain(self.letter_keys.values()).sum::<usize>();
        let letters = self.letters.len() + pages;
        // A round without any of them, which is not to be, counts too.
        1 + of_partitions + lines + numbers + messages + records + letters
    }
}

/// Where a letter stands among those of its queue, the newest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LetterPlace {
    pub failed_at: std::cmp::Reverse<Timestamp>,
    pub partition: PartitionId,
    pub offset: std::cmp::Reverse<Offset>,
    pub group: Arc<str>,
}

impl LetterPlace {
    pub fn new(key: &DeadLetterKey, failed_at: Timestamp) -> Self {
        Self {
            failed_at: std::cmp::Reverse(failed_at),
            partition: key.partition,
            offset: std::cmp::Reverse(key.offset),
            group: key.group.clone(),
        }
    }
}
