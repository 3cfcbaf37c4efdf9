//! Firing: the commits that enqueue the jobs of schedules.

use std::time::Duration;

use baton_schedules::{FirePlan, FireState, Overlap, plan_fires};
use baton_types::Timestamp;

use crate::model::error::Error;
use crate::model::new_job::NewJob;
use crate::rules::enqueue::{self, Enqueued};
use crate::rules::schedules::{FIRES, FireOutcome, LastFire, Schedule, expect, find, read_fire, write};
use crate::rules::{cancellation, queues};
use crate::storage::{Abort, JobsTx};

/// Schedules that one decision lists.
pub const DUE_MAX: usize = 100;
/// Jobs that one backfill may enqueue.
pub const BACKFILL_MAX: usize = 1_000;
/// How soon a schedule is checked again whose fire waits for a job to end.
const WAITING_AGAIN: Duration = Duration::from_secs(1);
/// The delay after a first failure; it doubles up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Schedules that are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueSchedules {
    /// Schedules to check, each in a commit of its own.
    pub schedules: Vec<String>,
    /// When the next one is due.
    pub next: Option<Timestamp>,
}

/// Finds the schedules to check now.
pub fn find_due(tx: &mut JobsTx<'_>) -> Result<DueSchedules, Abort> {
    let (now, mut due) = (tx.now(), DueSchedules::default());
    for (entry, _) in tx.stored(FIRES, None, DUE_MAX + 1)? {
        let Some((at, id)) = read_fire(&entry) else {
            tx.remove(entry);
            continue;
        };
        if at > now || due.schedules.len() == DUE_MAX {
            due.next = Some(at);
            break;
        }
        due.schedules.push(id.to_owned());
    }
    Ok(due)
}

/// Fires a schedule if it is due. Always: no nominal time is decided twice, because `next` advances past it in the
/// same commit. Returns the nominal times that got jobs.
pub fn fire(tx: &mut JobsTx<'_>, id: &str) -> Result<Vec<Timestamp>, Abort> {
    let Some(mut schedule) = find(tx, id)?.filter(|schedule| schedule.spec.enabled) else {
        return Ok(Vec::new());
    };
    let (now, calendar) = (tx.now(), schedule.calendar()?);
    let is_active = is_active(tx, &schedule)?;
    let state = FireState {
        next: schedule.next,
        waiting: schedule.waiting,
        misfire: schedule.spec.misfire,
        grace: schedule.spec.grace(),
        overlap: schedule.spec.overlap,
        is_active,
    };
    let Some(plan) = plan_fires(&state, &calendar, now) else {
        let check_at = next_look(&schedule, now);
        write(tx, id, &mut schedule, check_at)?;
        return Ok(Vec::new());
    };
    if plan.replaces
        && let Some(job) = schedule.last_job
    {
        cancellation::cancel(tx, job, false, Some("its schedule fired again"))?;
    }
    let jobs = plan.fires.iter().map(|fire| schedule.spec.job(id, *fire)).collect();
    let made = make(tx, jobs)?;
    settle(&mut schedule, &plan, now, &made);
    let counts = &mut tx.effects.counts;
    counts.fired.extend(plan.fires.iter().map(|fire| now.since(*fire)));
    counts.misfires += u64::from(plan.is_misfire);
    counts.overlapped += plan.overlapped;
    let check_at = next_look(&schedule, now);
    write(tx, id, &mut schedule, check_at)?;
    Ok(plan.fires)
}

/// Whether the last job is still running. Reads it only if the overlap policy needs it.
fn is_active(tx: &mut JobsTx<'_>, schedule: &Schedule) -> Result<bool, Abort> {
    let Some(job) = schedule.last_job.filter(|_| schedule.spec.overlap != Overlap::Allow) else {
        return Ok(false);
    };
    let Some(position) = tx.find(job)? else { return Ok(false) };
    Ok(tx.slot(position)?.is_some_and(|slot| !slot.state.is_terminal()))
}

fn make(tx: &mut JobsTx<'_>, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, Abort> {
    let Some(name) = jobs.first().map(|job| job.queue.clone()) else { return Ok(Vec::new()) };
    let partition = queues::find(tx, &name)?;
    let partition = partition.ok_or_else(|| Error::NotFound(format!("there is no job queue {name:?}")))?;
    let jobs: Vec<_> = jobs.into_iter().map(|job| (partition, job)).collect();
    enqueue::add_all(tx, &jobs)
}

/// Applies a plan to the schedule.
fn settle(schedule: &mut Schedule, plan: &FirePlan, now: Timestamp, made: &[Enqueued]) {
    let was_waiting = schedule.waiting;
    (schedule.next, schedule.waiting) = (plan.next, plan.waiting);
    schedule.jobs += made.len() as u64;
    schedule.overlapped += plan.overlapped;
    schedule.misfires += u64::from(plan.is_misfire);
    schedule.problem = None;
    schedule.last_job = made.last().map(|job| job.job_id).or(schedule.last_job);
    let outcome = match plan {
        FirePlan { fires, .. } if !fires.is_empty() => FireOutcome::Fired,
        FirePlan { waiting, .. } if waiting.is_some() && *waiting != was_waiting => FireOutcome::Waiting,
        FirePlan { overlapped, .. } if *overlapped > 0 => FireOutcome::Overlapped,
        _ => FireOutcome::Missed,
    };
    let at = plan.fires.last().copied().unwrap_or(now);
    schedule.last_fire = Some(LastFire { at, fired_at: now, outcome });
}

fn next_look(schedule: &Schedule, now: Timestamp) -> Option<Timestamp> {
    let again = schedule.waiting.map(|_| now.after(WAITING_AGAIN));
    schedule.next.into_iter().chain(again).min()
}

/// Records that a schedule could not fire, and checks it again later. What is due stays due.
pub fn postpone(tx: &mut JobsTx<'_>, id: &str, why: &str) -> Result<(), Abort> {
    let Some(mut schedule) = find(tx, id)? else { return Ok(()) };
    let failures = schedule.problem.as_ref().map_or(0, |(_, failures)| *failures);
    let pause = RETRY_FIRST.saturating_mul(1 << failures.min(6)).min(RETRY_MAX);
    schedule.problem = Some((why.to_owned(), failures.saturating_add(1)));
    let check_at = Some(tx.now().after(pause));
    write(tx, id, &mut schedule, check_at)
}

/// Fires now, in addition to its times, even if the schedule is paused; the overlap policy applies. Returns no job if
/// the fire waits for the last job.
pub fn trigger(tx: &mut JobsTx<'_>, id: &str) -> Result<Vec<Enqueued>, Abort> {
    let mut schedule = expect(tx, id)?;
    let now = tx.now();
    if is_active(tx, &schedule)? {
        match schedule.spec.overlap {
            Overlap::Skip => {
                let message = "its last job is still running, and the schedule's overlap policy is skip";
                return Err(Error::conflict("overlap", message).into());
            }
            Overlap::QueueOne => {
                schedule.waiting.get_or_insert(now);
                let check_at = next_look(&schedule, now);
                write(tx, id, &mut schedule, check_at)?;
                return Ok(Vec::new());
            }
            Overlap::Replace => {
                if let Some(job) = schedule.last_job {
                    cancellation::cancel(tx, job, false, Some("its schedule was triggered"))?;
                }
            }
            Overlap::Allow => {}
        }
    }
    let made = make(tx, vec![schedule.spec.job_now(id, now)])?;
    schedule.jobs += made.len() as u64;
    schedule.last_job = made.last().map(|job| job.job_id).or(schedule.last_job);
    schedule.last_fire = Some(LastFire { at: now, fired_at: now, outcome: FireOutcome::Fired });
    let check_at = schedule.indexed;
    write(tx, id, &mut schedule, check_at)?;
    Ok(made)
}

/// The nominal times of a past period, and whether there are more than `max`.
pub fn fires_between(
    tx: &mut JobsTx<'_>,
    id: &str,
    (from, to): (Timestamp, Timestamp),
    max: usize,
) -> Result<(Vec<Timestamp>, bool), Abort> {
    let schedule = expect(tx, id)?;
    if max == 0 || max > BACKFILL_MAX {
        return Err(Error::invalid(format!("max is 1 to {BACKFILL_MAX}")).into());
    }
    if from > to || to > tx.now() {
        return Err(Error::invalid("from must be before to, and to must be in the past").into());
    }
    let calendar = schedule.calendar()?;
    let fires = calendar.upcoming(from.before(Duration::from_micros(1))).take_while(|fire| *fire <= to);
    let mut fires: Vec<_> = fires.take(max + 1).collect();
    let is_cut = fires.len() > max;
    fires.truncate(max);
    Ok((fires, is_cut))
}

/// Enqueues a job for each of these nominal times. The overlap policy does not apply.
pub fn backfill(tx: &mut JobsTx<'_>, id: &str, fires: &[Timestamp]) -> Result<Vec<Enqueued>, Abort> {
    let mut schedule = expect(tx, id)?;
    let made = make(tx, fires.iter().map(|fire| schedule.spec.job_now(id, *fire)).collect())?;
    schedule.jobs += made.len() as u64;
    let check_at = schedule.indexed;
    write(tx, id, &mut schedule, check_at)?;
    Ok(made)
}
