//! Whether partitions are read without a lock, in the trust that no other server changes them before the commit.
//!
//! A commit that is in vain costs a whole group, so after one partitions are locked for a while. How long follows from
//! how long it went well before: a single meeting, as when a queue moves from one lane or server to another, costs a few
//! groups; where servers use the same partitions all the time, most groups lock.

/// Groups that lock after the first commit in vain, and at most.
const LOCKED_FIRST: u32 = if cfg!(test) { 1 } else { 4 };
const LOCKED_MAX: u32 = if cfg!(test) { 1 } else { 64 };
/// After so many groups in a row that went well it is as if nothing had happened.
const FORGOTTEN_AFTER: u32 = 256;

/// See the module.
#[derive(Default)]
pub struct Trust {
    /// Groups that still lock.
    locked: u32,
    /// How many there were after the last commit in vain.
    last: u32,
    /// Groups since then that did not.
    well: u32,
}

impl Trust {
    /// Another server was faster.
    pub fn is_betrayed(&mut self) {
        self.last = (self.last * 2).clamp(LOCKED_FIRST, LOCKED_MAX);
        (self.locked, self.well) = (self.last, 0);
    }

    /// Whether nothing is locked at present.
    pub fn is_whole(&self) -> bool {
        self.locked == 0
    }

    /// Whether the next group trusts.
    pub fn next(&mut self) -> bool {
        if !self.is_whole() {
            self.locked -= 1;
            return false;
        }
        self.well = self.well.saturating_add(1);
        if self.well >= FORGOTTEN_AFTER {
            self.last = 0;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many groups lock before one trusts again.
    fn locked(trust: &mut Trust) -> u32 {
        (0..).take_while(|_| !trust.next()).count() as u32
    }

    #[test]
    fn it_is_whole_at_first_and_lost_for_a_while() {
        let mut trust = Trust::default();
        assert_eq!(locked(&mut trust), 0);
        trust.is_betrayed();
        assert!(!trust.is_whole());
        assert_eq!(locked(&mut trust), LOCKED_FIRST);
        assert!(trust.is_whole());
    }

    #[test]
    fn it_is_lost_for_longer_when_it_is_lost_again_and_for_a_while_only_in_the_end() {
        let mut trust = Trust::default();
        let mut lost = || {
            trust.is_betrayed();
            locked(&mut trust)
        };
        let times: Vec<u32> = (0..8).map(|_| lost()).collect();
        assert!(times.is_sorted(), "{times:?}");
        assert_eq!(times.last(), Some(&LOCKED_MAX));
        assert!((0..FORGOTTEN_AFTER).all(|_| trust.next()));
        trust.is_betrayed();
        assert_eq!(locked(&mut trust), LOCKED_FIRST);
    }
}
