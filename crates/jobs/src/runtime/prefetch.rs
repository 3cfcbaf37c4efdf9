//! What decisions are likely to look at next, so that a store that has to fetch rows fetches them along with the first
//! that it misses, and not one look after the other.
//!
//! Everything here is a hint, from what this server saw last. A wrong one costs a few rows that nobody looks at; a
//! missing one costs a round trip. A store that has all rows at hand never asks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use baton_types::PartitionId;
use rustc_hash::FxHashMap;

use crate::model::ids::Place;
use crate::model::keys;
use crate::model::limits::WORKERS_MAX;

/// Chunks from which the next jobs are likely given out: what several workers take at once.
const CHUNKS_AHEAD: u64 = 64;
/// Pages of concurrency keys that are fetched without knowing which are needed.
const PERMIT_PAGES_MAX: u64 = 16;

/// See the module.
#[derive(Debug, Default)]
pub struct Likely {
    queues: RwLock<FxHashMap<PartitionId, Ends>>,
    permit_pages: AtomicU64,
}

/// Between which chunks the jobs of a queue are that wait.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    given_out: u64,
    accepted: u64,
}

impl Likely {
    /// Jobs were given out up to here.
    pub fn note_given_out(&self, place: Place) {
        self.note(place, |ends, chunk| ends.given_out = chunk);
    }

    /// Jobs were accepted up to here.
    pub fn note_accepted(&self, place: Place) {
        self.note(place, |ends, chunk| ends.accepted = chunk);
    }

    /// Concurrency keys were found on so many pages.
    pub fn note_permits(&self, pages: u64) {
        self.permit_pages.store(pages, Ordering::Relaxed);
    }

    fn note(&self, place: Place, set: impl FnOnce(&mut Ends, u64)) {
        let (queue, chunk) = place.chunk();
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        if queues.len() >= WORKERS_MAX && !queues.contains_key(&queue) {
            queues.clear();
        }
        set(queues.entry(queue).or_default(), chunk);
    }

    fn ends(&self, queue: PartitionId) -> Option<Ends> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).get(&queue).copied()
    }

    /// What giving out jobs of these queues is likely to need.
    pub fn of_leases(&self, queues: &[PartitionId]) -> Vec<String> {
        let chunks = |queue: &PartitionId| {
            let (queue, ends) = (*queue, self.ends(*queue).unwrap_or_default());
            let end = (ends.given_out + CHUNKS_AHEAD).min(ends.accepted.max(ends.given_out) + 1);
            (ends.given_out..end).map(move |number| keys::chunk(queue, number))
        };
        queues.iter().flat_map(chunks).collect()
    }

    /// What accepting jobs in these queues is likely to need.
    pub fn of_acceptance(&self, queues: &[PartitionId]) -> Vec<String> {
        let ends = queues.iter().filter_map(|queue| Some((*queue, self.ends(*queue)?)));
        ends.map(|(queue, ends)| keys::chunk(queue, ends.accepted)).collect()
    }

    /// What taking and giving back permits is likely to need.
    pub fn of_permits(&self) -> Vec<String> {
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
        let (likely, queue) = (Likely::default(), PartitionId(7));
        assert_eq!(likely.of_leases(&[queue]), [keys::chunk(queue, 0)]);
        assert!(likely.of_acceptance(&[queue]).is_empty() && likely.of_permits().is_empty());
        likely.note_accepted(Place::new(queue, 300));
        likely.note_given_out(Place::new(queue, 128));
        let chunk = |number| keys::chunk(queue, number);
        assert_eq!(likely.of_leases(&[queue]), [chunk(2), chunk(3), chunk(4)]);
        assert_eq!(likely.of_acceptance(&[queue]), [chunk(4)]);
        likely.note_accepted(Place::new(queue, 1 << 30));
        assert_eq!(likely.of_leases(&[queue]).len() as u64, CHUNKS_AHEAD);
        likely.note_permits(2);
        assert_eq!(likely.of_permits(), [keys::permits(0), keys::permits(1), keys::PERMITS.to_owned()]);
        likely.note_permits(PERMIT_PAGES_MAX + 1);
        assert!(likely.of_permits().is_empty());
    }
}
