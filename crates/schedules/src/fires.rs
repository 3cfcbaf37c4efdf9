//! Which fires happen while an earlier run is still active: the overlap policies. Pure functions.

use std::time::Duration;

use baton_types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::calendar::Calendar;
use crate::misfire::{Misfire, catch_up};

/// What happens when a schedule fires while its last run is active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// It runs again, side by side.
    #[default]
    Allow,
    /// The fire is dropped.
    Skip,
    /// One fire waits until the last run has ended; further fires before that are dropped.
    QueueOne,
    /// It runs again, and the last run is asked to stop.
    Replace,
}

/// Where a schedule stands, and its policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FireState {
    /// The oldest nominal time that is not decided yet.
    pub next: Option<Timestamp>,
    /// The fire that waits for the last run to end.
    pub waiting: Option<Timestamp>,
    /// The policy for missed fires.
    pub misfire: Misfire,
    /// How late a fire may be without counting as missed.
    pub grace: Duration,
    /// The policy for fires during a run.
    pub overlap: Overlap,
    /// Whether the last run has not ended.
    pub is_active: bool,
}

/// What a check of a schedule decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirePlan {
    /// The nominal times to fire for, in order.
    pub fires: Vec<Timestamp>,
    /// Whether the active run must be cancelled.
    pub replaces: bool,
    /// The fire that waits for the last run to end.
    pub waiting: Option<Timestamp>,
    /// The next nominal time.
    pub next: Option<Timestamp>,
    /// Fires that the overlap policy dropped.
    pub overlapped: u64,
    /// Whether fires were missed.
    pub is_misfire: bool,
}

/// Decides what a schedule does now; `None` if nothing is due.
pub fn plan_fires(state: &FireState, calendar: &Calendar, now: Timestamp) -> Option<FirePlan> {
    let due = state.next.and_then(|next| catch_up(calendar, next, now, state.misfire, state.grace));
    let may_end_wait = state.waiting.is_some() && !state.is_active;
    if due.is_none() && !may_end_wait {
        return None;
    }
    let (fires, is_misfire, next) = match due {
        Some(due) => (due.fires, due.is_misfire, due.next),
        None => (Vec::new(), false, state.next),
    };
    let plan = FirePlan { next, is_misfire, ..FirePlan::default() };
    Some(match state.overlap {
        Overlap::Allow => FirePlan { fires, ..plan },
        Overlap::Skip => fire_newest(plan, &fires, state.is_active),
        Overlap::Replace => {
            let plan = fire_newest(plan, &fires, false);
            FirePlan { replaces: state.is_active && !plan.fires.is_empty(), ..plan }
        }
        Overlap::QueueOne => fire_in_turn(plan, state, &fires),
    })
}

/// Fires for the newest due time alone, unless a run is active.
fn fire_newest(plan: FirePlan, due: &[Timestamp], is_active: bool) -> FirePlan {
    let fires: Vec<_> = due.last().copied().filter(|_| !is_active).into_iter().collect();
    FirePlan { overlapped: (due.len() - fires.len()) as u64, fires, ..plan }
}

/// Fires once if no run is active, keeps one more fire waiting, and drops the others.
fn fire_in_turn(plan: FirePlan, state: &FireState, due: &[Timestamp]) -> FirePlan {
    let mut queue = state.waiting.into_iter().chain(due.iter().copied());
    let fires: Vec<_> = if state.is_active { None } else { queue.next() }.into_iter().collect();
    let waiting = queue.next();
    FirePlan { overlapped: queue.count() as u64, fires, waiting, ..plan }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calendar::Recurrence;
    use crate::interval::Interval;
    use crate::misfire::GRACE;

    const START: i64 = 1_767_225_600;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros((START + second) * 1_000_000)
    }

    /// What a check at `now` decides, in seconds after the start of a schedule that fires every ten seconds.
    fn check(overlap: Overlap, waiting: Option<i64>, is_active: bool, now: i64) -> Option<FirePlan> {
        let interval = Interval::new(Duration::from_secs(10), at(0)).unwrap();
        let calendar = Calendar::new(Recurrence::Interval(interval), Some(at(0)), None).unwrap();
        let (misfire, grace) = (Misfire::Once, GRACE);
        let waiting = waiting.map(at);
        let state = FireState { next: Some(at(0)), waiting, misfire, grace, overlap, is_active };
        plan_fires(&state, &calendar, at(now))
    }

    /// Fires, whether they replace a run, what waits, and how many were dropped; in seconds after the start.
    type Outcome = (Vec<i64>, bool, Option<i64>, u64);

    fn outcome(plan: FirePlan) -> Outcome {
        let second = |at: Timestamp| at.micros() / 1_000_000 - START;
        (
            plan.fires.into_iter().map(second).collect(),
            plan.replaces,
            plan.waiting.map(second),
            plan.overlapped,
        )
    }

    #[test]
    fn the_overlap_policy_decides_which_fires_happen() {
        let table: &[(Overlap, bool, Option<i64>, Outcome)] = &[
            (Overlap::Allow, true, None, (vec![0, 10, 20], false, None, 0)),
            (Overlap::Skip, false, None, (vec![20], false, None, 2)),
            (Overlap::Skip, true, None, (vec![], false, None, 3)),
            (Overlap::Replace, false, None, (vec![20], false, None, 2)),
            (Overlap::Replace, true, None, (vec![20], true, None, 2)),
            (Overlap::QueueOne, false, None, (vec![0], false, Some(10), 1)),
            (Overlap::QueueOne, true, None, (vec![], false, Some(0), 2)),
            (Overlap::QueueOne, true, Some(-10), (vec![], false, Some(-10), 3)),
            (Overlap::QueueOne, false, Some(-10), (vec![-10], false, Some(0), 2)),
        ];
        for (overlap, is_active, waiting, expected) in table {
            let plan = check(*overlap, *waiting, *is_active, 25).unwrap();
            assert_eq!(plan.next, Some(at(30)), "{overlap:?}");
            assert_eq!(&outcome(plan), expected, "{overlap:?} {is_active} {waiting:?}");
        }
    }

    #[test]
    fn nothing_happens_before_a_fire_is_due() {
        assert_eq!(check(Overlap::Allow, None, false, -1), None);
        assert_eq!(check(Overlap::QueueOne, Some(-10), true, -1), None);
        let waited = check(Overlap::QueueOne, Some(-10), false, -1).unwrap();
        assert_eq!((waited.next, outcome(waited.clone()).0), (Some(at(0)), vec![-10]));
    }
}
