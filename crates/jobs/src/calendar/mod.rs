//! When a schedule fires: cron expressions in a time zone, intervals, single moments.
//!
//! A calendar is a set of moments, the *nominal times*, that depends on nothing but its text: not on when it is
//! asked, not on the server, not on the machine's own time-zone files. So two servers that look at one schedule agree
//! on every fire, and a fire can be named by its nominal time. Always: [`Calendar::next`] is later than what it was
//! asked with and skips nothing; [`Calendar::last`] walks the same moments backwards; both end. Deliberately absent:
//! what time it is, whether a schedule is paused, and what a fire does. Start at [`Calendar`]; what a clock change
//! does to a cron expression is in `zone`, what became of missed fires in `misfire`.

mod cron;
mod field;
mod interval;
mod jitter;
mod misfire;
mod zone;

use std::time::Duration;

use baton_types::Timestamp;

pub use cron::Cron;
pub use interval::Interval;
pub use jitter::jitter;
pub use misfire::{CatchUp, FIRES_MAX, GRACE, Misfire, catch_up};
pub use zone::{DstGap, DstOverlap, Zone, database_version};

/// A text that is no calendar, and what would be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// What of the schedule is wrong, as the API calls it.
    pub field: &'static str,
    /// What is wrong and what to do.
    pub problem: String,
}

impl Invalid {
    fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}

/// How the moments follow each other.
#[derive(Clone, Debug)]
pub enum Rule {
    /// By a cron expression on the wall clock of a zone.
    Cron {
        /// The expression.
        cron: Cron,
        /// Whose clock.
        zone: Zone,
        /// When the clock jumps over a fire.
        gap: DstGap,
        /// When the clock shows the time of a fire twice.
        overlap: DstOverlap,
    },
    /// Evenly.
    Interval(Interval),
    /// Once.
    Once(Timestamp),
}

/// The moments at which a schedule fires.
#[derive(Clone, Debug)]
pub struct Calendar {
    rule: Rule,
    start: Timestamp,
    end: Timestamp,
}

impl Calendar {
    /// The moments of `rule` from `start` to `end`, both included.
    pub fn new(rule: Rule, start: Option<Timestamp>, end: Option<Timestamp>) -> Result<Self, Invalid> {
        let (start, end) = (start.unwrap_or(Timestamp::MIN), end.unwrap_or(Timestamp::MAX));
        if end < start {
            return Err(Invalid::new(
                "endAt",
                "it lies before startAt; leave it out for a schedule without end",
            ));
        }
        Ok(Self { rule, start, end })
    }

    /// The first moment after `after`.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let after = after.max(self.start.before(Duration::from_micros(1)));
        let next = match &self.rule {
            Rule::Cron { cron, zone, gap, overlap } => zone.next(cron, *gap, *overlap, after),
            Rule::Interval(interval) => interval.next(after),
            Rule::Once(at) => Some(*at).filter(|at| *at > after),
        };
        next.filter(|next| *next <= self.end)
    }

    /// The last moment that is not after `until`.
    pub fn last(&self, until: Timestamp) -> Option<Timestamp> {
        let until = until.min(self.end);
        let last = match &self.rule {
            Rule::Cron { cron, zone, gap, overlap } => zone.last(cron, *gap, *overlap, until),
            Rule::Interval(interval) => interval.last(until),
            Rule::Once(at) => Some(*at).filter(|at| *at <= until),
        };
        last.filter(|last| *last >= self.start)
    }

    /// The moments after `after`, in order.
    pub fn upcoming(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        std::iter::successors(self.next(after), |fire| self.next(*fire))
    }
}
