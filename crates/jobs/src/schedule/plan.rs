//! What a fire does, given where the schedule and its last job stand. Pure.

use baton_types::Timestamp;

use super::{Overlap, Schedule};
use crate::calendar::{Calendar, catch_up};

/// What is to be done at a look at a schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The nominal times to make jobs for, in order.
    pub jobs: Vec<Timestamp>,
    /// Whether the last job is to be called off.
    pub replaces: bool,
    /// The fire that waits for the last job to end.
    pub waiting: Option<Timestamp>,
    /// The next fire.
    pub next: Option<Timestamp>,
    /// Fires that make no job because of the last one.
    pub overlapped: u64,
    /// Whether some fires were missed.
    pub is_misfire: bool,
}

/// What is to be done with a schedule now, if anything; `is_active` says that its last job has not ended.
pub fn plan(schedule: &Schedule, calendar: &Calendar, now: Timestamp, is_active: bool) -> Option<Plan> {
    let spec = &schedule.spec;
    let due = schedule.next.and_then(|next| catch_up(calendar, next, now, spec.misfire, spec.grace()));
    let may_end_wait = schedule.waiting.is_some() && !is_active;
    if due.is_none() && !may_end_wait {
        return None;
    }
    let (fires, is_misfire, next) = match due {
        Some(due) => (due.fires, due.is_misfire, due.next),
        None => (Vec::new(), false, schedule.next),
    };
    let plan = Plan { next, is_misfire, waiting: schedule.waiting, ..Plan::default() };
    Some(match spec.overlap {
        Overlap::Allow => Plan { jobs: fires, waiting: None, ..plan },
        Overlap::Skip => only_newest(Plan { waiting: None, ..plan }, &fires, is_active),
        Overlap::Replace => {
            let plan = only_newest(Plan { waiting: None, ..plan }, &fires, false);
            Plan { replaces: is_active && !plan.jobs.is_empty(), ..plan }
        }
        Overlap::QueueOne => in_line(plan, &fires, is_active),
    })
}

/// The newest fire alone makes a job, unless one is under way.
fn only_newest(plan: Plan, fires: &[Timestamp], is_active: bool) -> Plan {
    let jobs: Vec<_> = fires.last().copied().filter(|_| !is_active).into_iter().collect();
    Plan { overlapped: (fires.len() - jobs.len()) as u64, jobs, ..plan }
}

/// One fire makes a job when none is under way, one more waits, and the others make none.
fn in_line(plan: Plan, fires: &[Timestamp], is_active: bool) -> Plan {
    let mut line = plan.waiting.into_iter().chain(fires.iter().copied());
    let jobs: Vec<_> = if is_active { None } else { line.next() }.into_iter().collect();
    let waiting = line.next();
    Plan { overlapped: line.count() as u64, jobs, waiting, ..plan }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::ScheduleSpec;

    const START: i64 = 1_767_225_600;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros((START + second) * 1_000_000)
    }

    /// A schedule that fires every ten seconds, and what a look at it 25 seconds after its start comes to.
    fn look(overlap: &str, waiting: Option<i64>, is_active: bool, now: i64) -> Option<Plan> {
        let text = format!(
            r#"{{"kind": "interval", "everyMs": 10000, "startAt": "2026-01-01T00:00:00Z", "overlap": "{overlap}",
                "job": {{"jobType": "t"}}}}"#
        );
        let spec = ScheduleSpec::parse(&text).unwrap();
        let calendar = spec.calendar(at(0)).unwrap();
        let mut schedule = Schedule::new(spec, at(0)).unwrap();
        schedule.waiting = waiting.map(at);
        plan(&schedule, &calendar, at(now), is_active)
    }

    /// Jobs, whether they replace, what waits, and how many overlapped; in seconds after the start.
    type Outcome = (Vec<i64>, bool, Option<i64>, u64);

    fn outcome(plan: Plan) -> Outcome {
        let second = |at: Timestamp| at.micros() / 1_000_000 - START;
        (
            plan.jobs.into_iter().map(second).collect(),
            plan.replaces,
            plan.waiting.map(second),
            plan.overlapped,
        )
    }

    #[test]
    fn overlap_decides_which_fires_make_jobs() {
        let table: &[(&str, bool, Option<i64>, Outcome)] = &[
            ("allow", true, None, (vec![0, 10, 20], false, None, 0)),
            ("skip", false, None, (vec![20], false, None, 2)),
            ("skip", true, None, (vec![], false, None, 3)),
            ("replace", false, None, (vec![20], false, None, 2)),
            ("replace", true, None, (vec![20], true, None, 2)),
            ("queue_one", false, None, (vec![0], false, Some(10), 1)),
            ("queue_one", true, None, (vec![], false, Some(0), 2)),
            ("queue_one", true, Some(-10), (vec![], false, Some(-10), 3)),
            ("queue_one", false, Some(-10), (vec![-10], false, Some(0), 2)),
        ];
        for (overlap, is_active, waiting, expected) in table {
            let plan = look(overlap, *waiting, *is_active, 25).unwrap();
            assert_eq!(plan.next, Some(at(30)), "{overlap}");
            assert_eq!(&outcome(plan), expected, "{overlap} {is_active} {waiting:?}");
        }
    }

    #[test]
    fn nothing_is_done_before_there_is_something_to_do() {
        assert_eq!(look("allow", None, false, -1), None);
        assert_eq!(look("queue_one", Some(-10), true, -1), None);
        let waited = look("queue_one", Some(-10), false, -1).unwrap();
        assert_eq!((waited.next, outcome(waited.clone()).0), (Some(at(0)), vec![-10]));
    }
}
