//! Prefetch hints: rows that decisions will probably read, so that a store that has to fetch rows gets them with the
//! first miss.
//!
//! Each hint comes from what this server saw last. A wrong hint costs a few unused rows; a missing one costs a round
//! trip. A store with all rows in memory never asks for hints.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use baton_types::PartitionId;
use rustc_hash::FxHashMap;

use crate::model::ids::JobPosition;
use crate::model::keys;
use crate::model::limits::WORKERS_MAX;

/// Chunks that probably hold the next jobs to lease, for several workers at once.
const CHUNKS_AHEAD: u64 = 64;
/// Pages of concurrency keys that are fetched without knowing which are needed.
const PERMIT_PAGES_MAX: u64 = 16;

/// See the module.
#[derive(Debug, Default)]
pub struct PrefetchHints {
    queues: RwLock<FxHashMap<PartitionId, Ends>>,
    permit_pages: AtomicU64,
}

/// The chunks between which the waiting jobs of a queue are.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    given_out: u64,
    accepted: u64,
}

impl PrefetchHints {
    /// Records that jobs were leased up to here.
    pub fn note_given_out(&self, position: JobPosition) {
        self.note(position, |ends, chunk| ends.given_out = chunk);
    }

    /// Records that jobs were enqueued up to here.
    pub fn note_accepted(&self, position: JobPosition) {
        self.note(position, |ends, chunk| ends.accepted = chunk);
    }

    /// Records the number of pages of concurrency keys.
    pub fn note_permits(&self, pages: u64) {
        self.permit_pages.store(pages, Ordering::Relaxed);
    }

    fn note(&self, position: JobPosition, set: impl FnOnce(&mut Ends, u64)) {
        let (queue, chunk) = position.chunk();
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        if queues.len() >= WORKERS_MAX && !queues.contains_key(&queue) {
            queues.clear();
        }
        set(queues.entry(queue).or_default(), chunk);
    }

    fn ends(&self, queue: PartitionId) -> Option<Ends> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).get(&queue).copied()
    }

    /// Rows for leasing jobs of these queues.
    pub fn for_leases(&self, queues: &[PartitionId]) -> Vec<String> {
        let chunks = |queue: &PartitionId| {
            let (queue, ends) = (*queue, self.ends(*queue).unwrap_or_default());
            let end = (ends.given_out + CHUNKS_AHEAD).min(ends.accepted.max(ends.given_out) + 1);
            (ends.given_out..end).map(move |number| keys::chunk(queue, number))
        };
        queues.iter().flat_map(chunks).collect()
    }

    /// Rows for enqueuing jobs in these queues.
    pub fn for_acceptance(&self, queues: &[PartitionId]) -> Vec<String> {
        let ends = queues.iter().filter_map(|queue| Some((*queue, self.ends(*queue)?)));
        ends.map(|(queue, ends)| keys::chunk(queue, ends.accepted)).collect()
    }

    /// Rows for acquiring and releasing permits.
    pub fn for_permits(&self) -> Vec<String> {
        match self.permit_pages.load(Ordering::Relaxed) {
            pages @ 1..=PERMIT_PAGES_MAX => {
                let pages = (0..pages).map(keys::permits);
                pages.chain([keys::PERMITS.to_owned()]).collect()
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_between_the_ends_is_likely_next() {
        let (hints, queue) = (PrefetchHints::default(), PartitionId(7));
        assert_eq!(hints.for_leases(&[queue]), [keys::chunk(queue, 0)]);
        assert!(hints.for_acceptance(&[queue]).is_empty() && hints.for_permits().is_empty());
        hints.note_accepted(JobPosition::new(queue, 300));
        hints.note_given_out(JobPosition::new(queue, 128));
        let chunk = |number| keys::chunk(queue, number);
        assert_eq!(hints.for_leases(&[queue]), [chunk(2), chunk(3), chunk(4)]);
        assert_eq!(hints.for_acceptance(&[queue]), [chunk(4)]);
        hints.note_accepted(JobPosition::new(queue, 1 << 30));
        assert_eq!(hints.for_leases(&[queue]).len() as u64, CHUNKS_AHEAD);
        hints.note_permits(2);
        assert_eq!(hints.for_permits(), [keys::permits(0), keys::permits(1), keys::PERMITS.to_owned()]);
        hints.note_permits(PERMIT_PAGES_MAX + 1);
        assert!(hints.for_permits().is_empty());
    }
}
