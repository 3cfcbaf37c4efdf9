//! Intervals: evenly spaced moments. They count from a fixed anchor, so late fires do not accumulate.

use std::time::Duration;

use baton_types::Timestamp;

use crate::error::InvalidSchedule;

/// The shortest interval: the leader checks schedules about once a second.
const EVERY_MIN: Duration = Duration::from_secs(1);
/// The longest interval.
const EVERY_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);

/// Evenly spaced moments from an anchor on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    every: i64,
    anchor: i64,
}

impl Interval {
    /// A moment at `anchor` and at every multiple of `every` after it.
    pub fn new(every: Duration, anchor: Timestamp) -> Result<Self, InvalidSchedule> {
        if !(EVERY_MIN..=EVERY_MAX).contains(&every) {
            return Err(InvalidSchedule::new(
                "everyMs",
                "an interval is at least 1000 ms and at most ten years",
            ));
        }
        let every = i64::try_from(every.as_micros()).unwrap_or(i64::MAX);
        Ok(Self { every, anchor: anchor.micros() })
    }

    pub(crate) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        if after.micros() < self.anchor {
            return Some(Timestamp::from_micros(self.anchor));
        }
        let rounds = after.micros().checked_sub(self.anchor)? / self.every + 1;
        self.at(rounds)
    }

    pub(crate) fn last(&self, until: Timestamp) -> Option<Timestamp> {
        let since = until.micros().saturating_sub(self.anchor);
        (since >= 0).then(|| self.at(since / self.every))?
    }

    fn at(&self, round: i64) -> Option<Timestamp> {
        let micros = self.every.checked_mul(round)?.checked_add(self.anchor)?;
        Some(Timestamp::from_micros(micros))
    }
}
