//! Calendars: the nominal times of a schedule, from its start to its end.

use std::time::Duration;

use baton_types::Timestamp;

use crate::cron::Cron;
use crate::error::InvalidSchedule;
use crate::interval::Interval;
use crate::zone::{DstGap, DstOverlap, Zone};

/// How the fires of a schedule recur.
#[derive(Clone, Debug)]
pub enum Recurrence {
    /// By a cron expression on the wall clock of a zone.
    Cron {
        /// The expression.
        cron: Cron,
        /// The zone whose wall clock the expression reads.
        zone: Zone,
        /// The policy for fires that a clock change skips.
        gap: DstGap,
        /// The policy for fires whose wall-clock time a clock change repeats.
        overlap: DstOverlap,
    },
    /// At even distances.
    Interval(Interval),
    /// Once.
    Once(Timestamp),
}

/// The moments at which a schedule fires.
#[derive(Clone, Debug)]
pub struct Calendar {
    recurrence: Recurrence,
    start: Timestamp,
    end: Timestamp,
}

impl Calendar {
    /// The moments of `recurrence` from `start` to `end`, both included.
    pub fn new(
        recurrence: Recurrence,
        start: Option<Timestamp>,
        end: Option<Timestamp>,
    ) -> Result<Self, InvalidSchedule> {
        let (start, end) = (start.unwrap_or(Timestamp::MIN), end.unwrap_or(Timestamp::MAX));
        if end < start {
            return Err(InvalidSchedule::new(
                "endAt",
                "it lies before startAt; leave it out for a schedule without end",
            ));
        }
        Ok(Self { recurrence, start, end })
    }

    /// The first moment after `after`.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let after = after.max(self.start.before(Duration::from_micros(1)));
        let next = match &self.recurrence {
            Recurrence::Cron { cron, zone, gap, overlap } => zone.next(cron, *gap, *overlap, after),
            Recurrence::Interval(interval) => interval.next(after),
            Recurrence::Once(at) => Some(*at).filter(|at| *at > after),
        };
        next.filter(|next| *next <= self.end)
    }

    /// The last moment that is not after `until`.
    pub fn last(&self, until: Timestamp) -> Option<Timestamp> {
        let until = until.min(self.end);
        let last = match &self.recurrence {
            Recurrence::Cron { cron, zone, gap, overlap } => zone.last(cron, *gap, *overlap, until),
            Recurrence::Interval(interval) => interval.last(until),
            Recurrence::Once(at) => Some(*at).filter(|at| *at <= until),
        };
        last.filter(|last| *last >= self.start)
    }

    /// The moments after `after`, in order.
    pub fn upcoming(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        std::iter::successors(self.next(after), |fire| self.next(*fire))
    }
}
