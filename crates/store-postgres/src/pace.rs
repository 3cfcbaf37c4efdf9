//! How many lanes are used: as many as make callers wait least, found out by trying.
//!
//! More lanes use more of the database and of this machine; but each has groups of its own, so all of them cost more,
//! and where there is nothing left to use everyone waits longer. How long callers wait tells which it is, whatever the
//! reason: so now and then one lane more, or one less, is used for a moment and compared with the moment after. What TCP
//! Vegas does with packets under way; only that the shortest time that was ever measured is of no use here, because it
//! is that of another load.
//!
//! Always: without load, or with a single queue, there is one lane. Pure: what happened comes in, a number of lanes goes out.

use std::time::Duration;

/// How often to think about it.
pub const WINDOW: Duration = Duration::from_millis(150);
/// Answers in a window that say something.
const ENOUGH: u64 = 24;
/// Another number of lanes must make the wait at least this much shorter.
const GAIN: f64 = 0.95;
/// Windows between two trials: at first, and after many that were in vain.
const REST_FIRST: u32 = 2;
const REST_MAX: u32 = 64;

/// What happened in a window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// How many callers were answered.
    pub answers: u64,
    /// How long all of them together had waited.
    pub waited: Duration,
    /// How many lanes they could have been spread over.
    pub spread: usize,
}

impl Seen {
    fn mean(&self) -> f64 {
        self.waited.as_secs_f64() / self.answers.max(1) as f64
    }
}

/// See the module.
#[derive(Debug)]
pub struct Pace {
    lanes: usize,
    most: usize,
    upwards: bool,
    /// Windows until the next trial, and how many it was last time.
    rest: u32,
    rested: u32,
    trial: Option<Trial>,
}

/// One number of lanes beside another. The first window of each is not counted: what is answered in it was mostly
/// submitted before.
#[derive(Debug)]
struct Trial {
    other: usize,
    windows: u32,
    wait: f64,
}

impl Pace {
    /// Starts with one lane of at most so many, which are two or more.
    pub fn new(most: usize) -> Self {
        Self { lanes: 1, most, upwards: true, rest: REST_FIRST, rested: REST_FIRST, trial: None }
    }

    /// How many lanes to use in the next window.
    pub fn next(&mut self, seen: Seen) -> usize {
        if seen.answers < ENOUGH {
            *self = Self::new(self.most);
            return self.lanes;
        }
        self.lanes = self.lanes.min(seen.spread.max(1));
        let Some(trial) = &mut self.trial else {
            self.rest = self.rest.saturating_sub(1);
            if self.rest == 0 {
                return self.begin(self.most.min(seen.spread));
            }
            return self.lanes;
        };
        trial.windows += 1;
        match trial.windows {
            1 => trial.other,
            2 => {
                trial.wait = seen.mean();
                self.lanes
            }
            3 => self.lanes,
            _ => {
                let (other, is_better) = (trial.other, trial.wait < GAIN * seen.mean());
                self.trial = None;
                self.end(other, is_better);
                self.lanes
            }
        }
    }

    fn begin(&mut self, most: usize) -> usize {
        if most <= 1 {
            return self.lanes;
        }
        if self.lanes == 1 || self.lanes == most {
            self.upwards = self.lanes == 1;
        }
        let other = if self.upwards { self.lanes + 1 } else { self.lanes - 1 };
        self.trial = Some(Trial { other, windows: 0, wait: 0.0 });
        other
    }

    fn end(&mut self, other: usize, is_better: bool) {
        if is_better {
            self.lanes = other;
            self.rested = REST_FIRST;
        } else {
            self.upwards = !self.upwards;
            self.rested = (self.rested * 2).min(REST_MAX);
        }
        self.rest = self.rested;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs against a database where `wait` tells how long callers wait with so many lanes; how often each was used.
    fn run(wait: impl Fn(usize) -> u64, windows: usize) -> Vec<usize> {
        let (mut pace, mut lanes, mut used) = (Pace::new(8), 1, vec![0; 9]);
        for _ in 0..windows {
            used[lanes] += 1;
            let seen = Seen { answers: 100, waited: Duration::from_micros(100 * wait(lanes)), spread: 8 };
            lanes = pace.next(seen);
        }
        used
    }

    #[test]
    fn finds_the_number_of_lanes_that_makes_callers_wait_least() {
        for best in 1..=8usize {
            let used = run(|lanes| 1_000 + 300 * lanes.abs_diff(best) as u64, 1_000);
            assert!(used[best] > 850, "{best} lanes are best, used were {used:?}");
        }
    }

    #[test]
    fn stays_with_one_lane_where_more_gain_nothing() {
        assert!(run(|_| 1_000, 1_000)[1] > 930);
    }

    #[test]
    fn never_tries_more_lanes_than_there_is_something_for() {
        for spread in 0..=3 {
            let mut pace = Pace::new(8);
            let seen = |lanes: usize| Seen {
                answers: 100,
                waited: Duration::from_millis(100 / lanes as u64),
                spread,
            };
            let mut lanes = 1;
            for _ in 0..200 {
                lanes = pace.next(seen(lanes));
                assert!(lanes <= spread.max(1), "{lanes} lanes for {spread}");
            }
            assert_eq!(lanes, spread.max(1));
        }
    }

    #[test]
    fn follows_a_load_that_changes_and_goes_back_to_one_lane_without_any() {
        let mut pace = Pace::new(8);
        let mut lanes = 1;
        let busy = |lanes: usize| Seen {
            answers: 100,
            waited: Duration::from_millis(100 / lanes as u64),
            spread: 8,
        };
        for _ in 0..200 {
            lanes = pace.next(busy(lanes));
        }
        assert!(lanes >= 7, "{lanes}");
        let crowded = |lanes: usize| Seen {
            answers: 100,
            waited: Duration::from_millis(100 * lanes as u64),
            spread: 8,
        };
        for _ in 0..400 {
            lanes = pace.next(crowded(lanes));
        }
        assert!(lanes <= 2, "{lanes}");
        assert_eq!(pace.next(Seen::default()), 1);
    }
}
