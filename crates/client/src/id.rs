//! Transaction ids: version 7 UUIDs, drawn at intervals and incremented in between, because a random draw is a system
//! call and every message needs an id.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use baton_env::Stopwatch;
use uuid::Uuid;

/// How long one draw is used, so that the time in an id is about right.
const BLOCK_AGE_MAX: Duration = Duration::from_secs(1);

/// How many ids one draw gives: far fewer than its last four bytes can count, so that draws do not collide.
const BLOCK_IDS_MAX: u32 = 1 << 16;

/// A source of ids.
#[derive(Debug, Default)]
pub(crate) struct IdGenerator(Mutex<Option<IdBlock>>);

#[derive(Debug)]
struct IdBlock {
    bits: u128,
    used: u32,
    since: Stopwatch,
}

impl IdGenerator {
    /// A unique id.
    pub fn next_id(&self) -> Uuid {
        let mut draw = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        draw.take_if(|draw| draw.used == BLOCK_IDS_MAX || draw.since.elapsed() >= BLOCK_AGE_MAX);
        draw.get_or_insert_with(IdBlock::new).next()
    }
}

impl IdBlock {
    fn new() -> Self {
        Self { bits: baton_env::fresh_uuid().as_u128(), used: 0, since: Stopwatch::start() }
    }

    fn next(&mut self) -> Uuid {
        let low = u128::from(u32::MAX);
        let counted = (self.bits & low).wrapping_add(self.used.into()) & low;
        self.used += 1;
        Uuid::from_u128((self.bits & !low) | counted)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_differ_also_over_many_draws() {
        let (one, other) = (IdGenerator::default(), IdGenerator::default());
        let ids: HashSet<_> = (0..100_000).flat_map(|_| [one.next_id(), other.next_id()]).collect();
        assert_eq!(ids.len(), 200_000);
        assert!(ids.iter().all(|id| id.get_version_num() == 7));
    }

    #[test]
    fn counting_up_never_leaves_the_last_four_bytes() {
        let mut draw = IdBlock { bits: u128::MAX, used: 0, since: Stopwatch::start() };
        assert_eq!(draw.next().as_u128(), u128::MAX);
        assert_eq!(draw.next().as_u128(), u128::MAX - u128::from(u32::MAX));
    }
}
