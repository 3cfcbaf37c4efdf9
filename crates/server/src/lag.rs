//! How late the runtime wakes a task that asked to be woken: what every request waits for besides its own work.
//!
//! A task sleeps for a moment again and again, and notes by how much it overslept. What is told is of the last minute,
//! and is kept with each minute (`baton_queue`'s series), over restarts.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_queue::Minute;
use tokio_util::sync::CancellationToken;

/// How long the task sleeps: often enough to see a stall, seldom enough to cost nothing.
const EVERY: Duration = Duration::from_millis(250);
/// Naps of a minute.
const NAPS: usize = 240;

const AVERAGE: &str = "loopLagAverageMs";
const LONGEST: &str = "loopLagLongestMs";

/// By how much naps were longer than they should have been.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lag {
    /// On average.
    pub average_ms: f64,
    /// At most.
    pub longest_ms: f64,
}

impl Lag {
    /// What was kept with a minute.
    pub fn of(minute: &Minute) -> Self {
        let gauge = |name: &str| minute.gauges.get(name).copied().unwrap_or(0.0);
        Self { average_ms: gauge(AVERAGE), longest_ms: gauge(LONGEST) }
    }
}

/// The naps of the last minute.
#[derive(Debug, Default)]
pub struct Naps(Mutex<VecDeque<f64>>);

impl Naps {
    fn note(&self, overslept: Duration) {
        let mut naps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        naps.truncate(NAPS - 1);
        naps.push_front((overslept.as_secs_f64() * 1e6).round() / 1e3);
    }

    /// What they come to.
    pub fn lag(&self) -> Lag {
        let naps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sum: f64 = naps.iter().sum();
        let average = if naps.is_empty() { 0.0 } else { sum / naps.len() as f64 };
        Lag {
            average_ms: (average * 1e3).round() / 1e3,
            longest_ms: naps.iter().copied().fold(0.0, f64::max),
        }
    }

    /// The same by name, as it is kept with each minute.
    pub fn gauges(&self) -> BTreeMap<Arc<str>, f64> {
        let lag = self.lag();
        [(AVERAGE.into(), lag.average_ms), (LONGEST.into(), lag.longest_ms)].into()
    }

    /// Naps until the server stops.
    pub async fn keep(self: Arc<Self>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let watch = Stopwatch::start();
            tokio::select! {
                () = stop.cancelled() => return,
                () = baton_env::sleep(EVERY) => self.note(watch.elapsed().saturating_sub(EVERY)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_minute_is_told_and_nothing_before_it() {
        let naps = Naps::default();
        assert_eq!(naps.lag(), Lag::default());
        naps.note(Duration::from_millis(500));
        naps.note(Duration::from_millis(100));
        assert_eq!(naps.lag(), Lag { average_ms: 300.0, longest_ms: 500.0 });
        (0..NAPS).for_each(|_| naps.note(Duration::from_micros(1500)));
        assert_eq!(naps.lag(), Lag { average_ms: 1.5, longest_ms: 1.5 });
    }
}
