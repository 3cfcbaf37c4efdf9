//! How many partitions a queue has room for, without counting them each time.
//!
//! The database counts the partitions of a queue when it is first asked; from then on this server adds those that it
//! creates. It has them counted anew when it has created many itself, so that those of other servers come in, and
//! before it says no: a decision that ran twice has added its partitions twice. A queue never loses a partition, so
//! what was counted stays true as a lower bound.

use std::sync::{Mutex, PoisonError};

use baton_store::Bounds;
use baton_types::QueueId;
use rustc_hash::FxHashMap;

/// Partitions that are created before a count is taken anew, in a queue that has few, and
const COUNTED_FOR: u64 = 1_000;
/// the share of the count in one that has many.
const COUNTED_SHARE: u64 = 10;
/// Queues whose counts are kept.
const QUEUES_MAX: usize = 100_000;

/// The room that queues have.
#[derive(Debug)]
pub struct Room {
    pub bounds: Bounds,
    counts: Mutex<FxHashMap<QueueId, Count>>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    counted: u64,
    created: u64,
}

impl Room {
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, counts: Mutex::default() }
    }

    /// Whether a queue has room for so many partitions more; `None` when they must be counted first.
    pub fn has(&self, queue: QueueId, more: u64) -> Option<bool> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let Count { counted, created } = *counts.get(&queue)?;
        let fits = self.fits(counted + created, more);
        let is_young = created <= COUNTED_FOR + counted / COUNTED_SHARE;
        ((fits && is_young) || created == 0).then_some(fits)
    }

    pub fn fits(&self, count: u64, more: u64) -> bool {
        count.saturating_add(more) <= self.bounds.partitions
    }

    /// The partitions of a queue were counted.
    pub fn counted(&self, queue: QueueId, counted: u64) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= QUEUES_MAX {
            counts.clear();
        }
        counts.insert(queue, Count { counted, created: 0 });
    }

    /// A partition is created.
    pub fn created(&self, queue: QueueId) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&queue) {
            count.created += 1;
        }
    }
}
