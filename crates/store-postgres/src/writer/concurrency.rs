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
const ANSWERS_MIN: u64 = 24;
/// Another number of lanes must make the wait at least this much shorter.
const GAIN_MIN: f64 = 0.95;
/// Windows between two trials: at first, and after many that were in vain.
const PAUSE_FIRST: u32 = 2;
const PAUSE_MAX: u32 = 64;

/// What happened in a window.
#[derive(Clone, Copy, Debug, Default)]
pub struct WindowStats {
    /// How many callers were answered.
    pub answers: u64,
    /// How long all of them together had waited.
    pub total_wait: Duration,
    /// How many lanes they could have been spread over.
    pub shards: usize,
}

impl WindowStats {
    fn mean_wait(&self) -> f64 {
        self.total_wait.as_secs_f64() / self.answers.max(1) as f64
    }
}

/// See the module.
#[derive(Debug)]
pub struct ConcurrencyController {
    writers: usize,
    writers_max: usize,
    tries_more: bool,
    /// Windows until the next trial, and how many it was last time.
    windows_to_trial: u32,
    pause: u32,
    trial: Option<Trial>,
}

/// One number of lanes beside another. The first window of each is not counted: what is answered in it was mostly
/// submitted before.
#[derive(Debug)]
struct Trial {
    writers: usize,
    windows: u32,
    mean_wait: f64,
}

impl ConcurrencyController {
    /// Starts with one lane of at most so many, which are two or more.
    pub fn new(most: usize) -> Self {
        Self {
            writers: 1,
            writers_max: most,
            tries_more: true,
            windows_to_trial: PAUSE_FIRST,
            pause: PAUSE_FIRST,
            trial: None,
        }
    }

    /// How many lanes to use in the next window.
    pub fn writers_for_next_window(&mut self, seen: WindowStats) -> usize {
        if seen.answers < ANSWERS_MIN {
            *self = Self::new(self.writers_max);
            return self.writers;
        }
        self.writers = self.writers.min(seen.shards.max(1));
        let Some(trial) = &mut self.trial else {
            self.windows_to_trial = self.windows_to_trial.saturating_sub(1);
            if self.windows_to_trial == 0 {
                return self.begin_trial(self.writers_max.min(seen.shards));
            }
            return self.writers;
        };
        trial.windows += 1;
        match trial.windows {
            1 => trial.writers,
            2 => {
                trial.mean_wait = seen.mean_wait();
                self.writers
            }
            3 => self.writers,
            _ => {
                let (other, is_better) = (trial.writers, trial.mean_wait < GAIN_MIN * seen.mean_wait());
                self.trial = None;
                self.end_trial(other, is_better);
                self.writers
            }
        }
    }

    fn begin_trial(&mut self, most: usize) -> usize {
        if most <= 1 {
            return self.writers;
        }
        if self.writers == 1 || self.writers == most {
            self.tries_more = self.writers == 1;
        }
        let other = if self.tries_more { self.writers + 1 } else { self.writers - 1 };
        self.trial = Some(Trial { writers: other, windows: 0, mean_wait: 0.0 });
        other
    }

    fn end_trial(&mut self, other: usize, is_better: bool) {
        if is_better {
            self.writers = other;
            self.pause = PAUSE_FIRST;
        } else {
            self.tries_more = !self.tries_more;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        self.windows_to_trial = self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs against a database where `wait` tells how long callers wait with so many lanes; how often each was used.
    fn run(wait: impl Fn(usize) -> u64, windows: usize) -> Vec<usize> {
        let (mut pace, mut lanes, mut used) = (ConcurrencyController::new(8), 1, vec![0; 9]);
        for _ in 0..windows {
            used[lanes] += 1;
            let seen =
                WindowStats { answers: 100, total_wait: Duration::from_micros(100 * wait(lanes)), shards: 8 };
            lanes = pace.writers_for_next_window(seen);
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
            let mut pace = ConcurrencyController::new(8);
            let seen = |lanes: usize| WindowStats {
                answers: 100,
                total_wait: Duration::from_millis(100 / lanes as u64),
                shards: spread,
            };
            let mut lanes = 1;
            for _ in 0..200 {
                lanes = pace.writers_for_next_window(seen(lanes));
                assert!(lanes <= spread.max(1), "{lanes} lanes for {spread}");
            }
            assert_eq!(lanes, spread.max(1));
        }
    }

    #[test]
    fn follows_a_load_that_changes_and_goes_back_to_one_lane_without_any() {
        let mut pace = ConcurrencyController::new(8);
        let mut lanes = 1;
        let busy = |lanes: usize| WindowStats {
            answers: 100,
            total_wait: Duration::from_millis(100 / lanes as u64),
            shards: 8,
        };
        for _ in 0..200 {
            lanes = pace.writers_for_next_window(busy(lanes));
        }
        assert!(lanes >= 7, "{lanes}");
        let crowded = |lanes: usize| WindowStats {
            answers: 100,
            total_wait: Duration::from_millis(100 * lanes as u64),
            shards: 8,
        };
        for _ in 0..400 {
            lanes = pace.writers_for_next_window(crowded(lanes));
        }
        assert!(lanes <= 2, "{lanes}");
        assert_eq!(pace.writers_for_next_window(WindowStats::default()), 1);
    }
}
