//! The limit of partitions per queue, without a count in the database for each new partition.
//!
//! The database counts the partitions of a queue once; then this server adds those that it creates. It counts
//! anew after it has created many itself, to include those of other servers, and before it refuses: a
//! decision that ran twice has counted its partitions twice. A queue never loses a partition, so a count
//! stays a lower bound.

use std::sync::{Mutex, PoisonError};

use baton_store::StoreLimits;
use baton_types::QueueId;
use rustc_hash::FxHashMap;

/// Partitions created before a recount, in a queue with few partitions.
const RECOUNT_AFTER: u64 = 1_000;
/// In a queue with many, the recount comes after this share of them.
const RECOUNT_SHARE: u64 = 10;
/// Queues with a count in memory at most.
const COUNTED_QUEUES_MAX: usize = 100_000;

/// The limit, and the counts of partitions per queue.
#[derive(Debug)]
pub struct PartitionLimit {
    pub bounds: StoreLimits,
    counts: Mutex<FxHashMap<QueueId, PartitionCount>>,
}

#[derive(Clone, Copy, Debug)]
struct PartitionCount {
    stored: u64,
    created: u64,
}

impl PartitionLimit {
    pub fn new(bounds: StoreLimits) -> Self {
        Self { bounds, counts: Mutex::default() }
    }

    /// Whether a queue may have `more` partitions; `None` when they must be counted first.
    pub fn has_room(&self, queue: QueueId, more: u64) -> Option<bool> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let PartitionCount { stored: counted, created } = *counts.get(&queue)?;
        let fits = self.fits(counted + created, more);
        let is_young = created <= RECOUNT_AFTER + counted / RECOUNT_SHARE;
        ((fits && is_young) || created == 0).then_some(fits)
    }

    pub fn fits(&self, count: u64, more: u64) -> bool {
        count.saturating_add(more) <= self.bounds.partitions
    }

    /// Stores a count from the database.
    pub fn set_count(&self, queue: QueueId, counted: u64) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= COUNTED_QUEUES_MAX {
            counts.clear();
        }
        counts.insert(queue, PartitionCount { stored: counted, created: 0 });
    }

    /// Counts a partition that this server creates.
    pub fn count_created(&self, queue: QueueId) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&queue) {
            count.created += 1;
        }
    }
}
