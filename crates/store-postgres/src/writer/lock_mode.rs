//! Decides whether batches read partitions optimistically (validated at the commit) or with locks.
//!
//! A conflict costs a whole batch, so after one the writer locks partitions for a while. How long depends on
//! how long optimism worked before: a single conflict, as when a queue moves to another server, costs a few
//! locking batches. Where servers contend for the same partitions all the time, most batches lock.

/// Batches that lock after the first conflict, and at most. PostgreSQL logs each conflict, so servers that
/// contend for the same partitions all the time try optimism rarely.
const LOCKED_BATCHES_FIRST: u32 = if cfg!(test) { 1 } else { 4 };
const LOCKED_BATCHES_MAX: u32 = if cfg!(test) { 1 } else { 512 };
/// After so many optimistic batches without a conflict the past is forgotten.
const FORGET_CONFLICT_AFTER: u32 = 256;

/// Counts batches since the last conflict.
#[derive(Default)]
pub struct LockMode {
    /// How many more batches lock.
    locked_batches_left: u32,
    /// How many batches locked after the last conflict.
    last_locked_batches: u32,
    /// Optimistic batches since then.
    optimistic_batches: u32,
}

impl LockMode {
    /// Records a conflict.
    pub fn on_conflict(&mut self) {
        self.last_locked_batches =
            (self.last_locked_batches * 2).clamp(LOCKED_BATCHES_FIRST, LOCKED_BATCHES_MAX);
        (self.locked_batches_left, self.optimistic_batches) = (self.last_locked_batches, 0);
    }

    /// Whether the next batch does not lock.
    pub fn is_optimistic(&self) -> bool {
        self.locked_batches_left == 0
    }

    /// Counts a batch. Returns whether it is optimistic.
    pub fn begin_batch(&mut self) -> bool {
        if !self.is_optimistic() {
            self.locked_batches_left -= 1;
            return false;
        }
        self.optimistic_batches = self.optimistic_batches.saturating_add(1);
        if self.optimistic_batches >= FORGET_CONFLICT_AFTER {
            self.last_locked_batches = 0;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many batches lock before an optimistic one.
    fn locked(trust: &mut LockMode) -> u32 {
        (0..).take_while(|_| !trust.begin_batch()).count() as u32
    }

    #[test]
    fn it_is_whole_at_first_and_lost_for_a_while() {
        let mut trust = LockMode::default();
        assert_eq!(locked(&mut trust), 0);
        trust.on_conflict();
        assert!(!trust.is_optimistic());
        assert_eq!(locked(&mut trust), LOCKED_BATCHES_FIRST);
        assert!(trust.is_optimistic());
    }

    #[test]
    fn it_is_lost_for_longer_when_it_is_lost_again_and_for_a_while_only_in_the_end() {
        let mut trust = LockMode::default();
        let mut lost = || {
            trust.on_conflict();
            locked(&mut trust)
        };
        let times: Vec<u32> = (0..8).map(|_| lost()).collect();
        assert!(times.is_sorted(), "{times:?}");
        assert_eq!(times.last(), Some(&LOCKED_BATCHES_MAX));
        assert!((0..FORGET_CONFLICT_AFTER).all(|_| trust.begin_batch()));
        trust.on_conflict();
        assert_eq!(locked(&mut trust), LOCKED_BATCHES_FIRST);
    }
}
