//! Whether to let those go first who were just answered, before this thread does anything else.
//!
//! An answer wakes its reader, and when that is a program of this machine it is put in line, as a rule, behind the
//! thread that wrote the answer: it runs when that sleeps. Stepping aside lets it run at once. But where others want the
//! processor as well, it is they who run, for milliseconds. So stepping aside is a guess that its price tells about: when
//! it was dear of late, nobody steps aside for a while.

use std::time::Duration;

/// Longer than it takes to read an answer and send the next request; shorter than the turn of somebody who computes.
const DEAR: Duration = Duration::from_millis(1);
/// How long it is left alone after that: what it costs at worst are a few turns in all this time.
const LEFT_ALONE_FOR: Duration = Duration::from_secs(2);
/// The last time counts for one in so many.
const WEIGHT: u32 = 4;

/// What stepping aside has cost.
#[derive(Default)]
pub struct Courtesy {
    left_alone_until: Duration,
    /// What it has cost of late.
    usual: Duration,
}

impl Courtesy {
    /// Steps aside if that is cheap. `now` tells the time.
    pub fn step_aside(&mut self, now: impl Fn() -> Duration) {
        let before = now();
        if self.is_cheap(before) {
            std::thread::yield_now();
            self.took(before, now());
        }
    }

    fn is_cheap(&self, now: Duration) -> bool {
        now >= self.left_alone_until
    }

    fn took(&mut self, before: Duration, after: Duration) {
        self.usual = self.usual * (WEIGHT - 1) / WEIGHT + after.saturating_sub(before) / WEIGHT;
        if self.usual >= DEAR {
            *self = Self { left_alone_until: after + LEFT_ALONE_FOR, ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_dear_times_nobody_steps_aside_for_a_while() {
        let (mut courtesy, at) = (Courtesy::default(), Duration::from_secs);
        (0..100).for_each(|_| courtesy.took(at(5), at(5) + DEAR * 9 / 10));
        assert!(courtesy.is_cheap(at(6)));
        courtesy.took(at(6), at(6) + 2 * DEAR);
        assert!(!courtesy.is_cheap(at(7)));
        assert!(courtesy.is_cheap(at(7) + LEFT_ALONE_FOR));
    }

    #[test]
    fn one_dear_time_among_cheap_ones_is_borne() {
        let (mut courtesy, at) = (Courtesy::default(), Duration::from_secs);
        courtesy.took(at(5), at(5) + 3 * DEAR);
        assert!(courtesy.is_cheap(at(6)));
        (0..2).for_each(|_| courtesy.took(at(6), at(6) + 3 * DEAR));
        assert!(!courtesy.is_cheap(at(7)));
    }
}
