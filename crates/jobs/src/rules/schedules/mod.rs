//! Schedules: enqueue jobs at given times.
//!
//! A schedule is one record and one entry in the index of next checks. A fire is one commit that enqueues the jobs,
//! moves the schedule and its entry to the next nominal time, and is guarded by the leader's lease. Commits are
//! serializable, so one server fires each nominal time once, and a crash loses none. Always: a schedule that cannot
//! fire (its queue is full, say) delays no other, and is retried; a paused one does nothing. Not here: calendars,
//! misfires and overlap (`baton-schedules`). Start at [`firing::find_due`].

pub mod firing;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
pub(crate) mod simulated;
mod spec;

use baton_schedules::{Calendar, Overlap, database_version};
use baton_store::Error as StoreError;
use baton_types::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use firing::BACKFILL_MAX;
pub use spec::{Kind, Moment, ScheduleSpec, Template};

use crate::model::error::Error;
use crate::model::ids::JobId;
use crate::model::names::check_name;
use crate::storage::{Abort, JobsTx};

/// The limit of schedules.
pub const SCHEDULES_MAX: u64 = 100_000;
/// Future fires that a view lists.
const NEXT_FIRES: usize = 5;

const SCHEDULES: &str = "jobs/schedule/";
/// The index of next checks.
const FIRES: &str = "jobs/fire/";
/// The number of schedules.
const COUNT: &str = "jobs/schedules";

fn schedule_key(id: &str) -> String {
    format!("{SCHEDULES}{id}")
}

fn fire_key(at: Timestamp, id: &str) -> String {
    format!("{FIRES}{:020}/{id}", at.micros().max(0))
}

fn read_fire(entry: &str) -> Option<(Timestamp, &str)> {
    let (at, id) = entry.strip_prefix(FIRES)?.split_once('/')?;
    Some((Timestamp::from_micros(at.parse().ok()?), id))
}

/// The result of the last fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FireOutcome {
    /// It enqueued jobs.
    Fired,
    /// It enqueued none because the last job was still running.
    Overlapped,
    /// It waits for the last job to end.
    Waiting,
    /// It was missed, and the misfire policy skipped it.
    Missed,
}

/// The last fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastFire {
    /// Its nominal time.
    pub at: Timestamp,
    /// When it happened.
    pub fired_at: Timestamp,
    /// Its result.
    pub outcome: FireOutcome,
}

/// The record of a schedule.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Schedule {
    /// The description that a caller gave.
    pub spec: ScheduleSpec,
    /// Rises with each change by a caller.
    pub revision: u64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When a caller changed it last.
    pub updated_at: Timestamp,
    /// The oldest nominal time that is not decided yet.
    pub next: Option<Timestamp>,
    /// The fire that waits for the last job to end.
    pub waiting: Option<Timestamp>,
    /// The newest job.
    pub last_job: Option<JobId>,
    /// The last fire.
    pub last_fire: Option<LastFire>,
    /// Why the last check failed, and how many checks in a row have failed.
    pub problem: Option<(String, u32)>,
    /// Jobs that it enqueued.
    pub jobs: u64,
    /// Fires that enqueued none because of the last job.
    pub overlapped: u64,
    /// Checks that found missed fires.
    pub misfires: u64,
    /// The time of its index entry.
    indexed: Option<Timestamp>,
}

impl Schedule {
    /// A new schedule.
    pub fn new(spec: ScheduleSpec, now: Timestamp) -> Result<Self, Error> {
        let calendar = spec.calendar(now)?;
        let next = spec.first(&calendar, now);
        Ok(Self {
            spec,
            revision: 1,
            created_at: now,
            updated_at: now,
            next,
            waiting: None,
            last_job: None,
            last_fire: None,
            problem: None,
            jobs: 0,
            overlapped: 0,
            misfires: 0,
            indexed: None,
        })
    }

    fn calendar(&self) -> Result<Calendar, Error> {
        self.spec.calendar(self.created_at)
    }

    /// The schedule with a new description. What is due stays due unless the times change.
    fn changed(self, spec: ScheduleSpec, now: Timestamp) -> Result<Self, Error> {
        let calendar = spec.calendar(self.created_at)?;
        let stays = spec.has_the_moments_of(&self.spec) && self.spec.enabled;
        let next = if stays { self.next } else { calendar.next(now) };
        let waiting = self.waiting.filter(|_| spec.enabled && spec.overlap == Overlap::QueueOne);
        Ok(Self { revision: self.revision + 1, updated_at: now, next, waiting, problem: None, spec, ..self })
    }

    /// The schedule as the API shows it.
    pub fn show(&self, id: &str, now: Timestamp) -> Value {
        let mut shown = serde_json::to_value(&self.spec).unwrap_or_default();
        let from = self.next.map_or(now, |next| next.before(std::time::Duration::from_micros(1)));
        let fires: Vec<_> = match self.calendar() {
            Ok(calendar) if self.spec.enabled && self.next.is_some() => {
                calendar.upcoming(from).take(NEXT_FIRES).map(Timestamp::to_iso_millis).collect()
            }
            _ => Vec::new(),
        };
        let last = self.last_fire.map(|last| {
            json!({
                "at": last.at.to_iso_millis(), "firedAt": last.fired_at.to_iso_millis(), "jobId": self.last_job,
            })
        });
        let more = [
            ("id", json!(id)),
            ("revision", json!(self.revision)),
            ("createdAt", json!(self.created_at.to_iso_millis())),
            ("updatedAt", json!(self.updated_at.to_iso_millis())),
            ("nextFires", json!(fires)),
            ("lastFire", json!(last)),
            ("lastOutcome", json!(self.last_fire.map(|last| last.outcome))),
            ("waiting", json!(self.waiting.map(Timestamp::to_iso_millis))),
            ("problem", json!(self.problem.as_ref().map(|(problem, _)| problem))),
            ("jobs", json!(self.jobs)),
            ("overlapped", json!(self.overlapped)),
            ("misfires", json!(self.misfires)),
            ("tzdb", json!(database_version())),
        ];
        for (name, value) in more {
            shown[name] = value;
        }
        shown
    }
}

/// A schedule by id.
pub fn find(tx: &mut JobsTx<'_>, id: &str) -> Result<Option<Schedule>, Abort> {
    let value = tx.record(&schedule_key(id))?;
    Ok(value.map(|value| decode(&value)).transpose()?)
}

/// A schedule by id, or an error.
pub fn expect(tx: &mut JobsTx<'_>, id: &str) -> Result<Schedule, Abort> {
    find(tx, id)?.ok_or_else(|| Error::NotFound(format!("there is no schedule {id:?}")).into())
}

/// Schedules after `after`, by id, and whether there are more.
pub fn list(
    tx: &mut JobsTx<'_>,
    after: Option<&str>,
    limit: usize,
) -> Result<(Vec<(String, Schedule)>, bool), Abort> {
    let after = after.map(schedule_key);
    let rows = tx.stored(SCHEDULES, after.as_deref(), limit)?;
    let is_full = rows.len() == limit;
    let named = rows.into_iter().map(|(key, record)| {
        let id = key.strip_prefix(SCHEDULES).unwrap_or_default().to_owned();
        Ok((id, decode(&record.value)?))
    });
    Ok((named.collect::<Result<_, StoreError>>()?, is_full))
}

/// The error code for a change that expects another revision.
pub const OTHER_REVISION: &str = "revision";

/// Creates or changes a schedule. Returns whether it is new. With a `revision`, only if the schedule has that
/// revision; zero means that it must not exist.
pub fn put(
    tx: &mut JobsTx<'_>,
    id: &str,
    spec: &ScheduleSpec,
    revision: Option<u64>,
) -> Result<(Schedule, bool), Abort> {
    check_name("the id of a schedule", id)?;
    let (old, now) = (find(tx, id)?, tx.now());
    check_revision(old.as_ref(), revision)?;
    let is_new = old.is_none();
    let mut schedule = match old {
        Some(old) => old.changed(spec.clone(), now)?,
        None => {
            count(tx, true)?;
            Schedule::new(spec.clone(), now)?
        }
    };
    let check_at = schedule.next;
    write(tx, id, &mut schedule, check_at)?;
    Ok((schedule, is_new))
}

/// Pauses a schedule, or resumes it with the fires after now.
pub fn enable(tx: &mut JobsTx<'_>, id: &str, enabled: bool) -> Result<Schedule, Abort> {
    let mut schedule = expect(tx, id)?;
    if schedule.spec.enabled != enabled {
        let spec = ScheduleSpec { enabled, ..schedule.spec.clone() };
        schedule = schedule.changed(spec, tx.now())?;
        let check_at = schedule.next;
        write(tx, id, &mut schedule, check_at)?;
    }
    Ok(schedule)
}

/// Removes a schedule. Its jobs stay.
pub fn remove(tx: &mut JobsTx<'_>, id: &str, revision: Option<u64>) -> Result<(), Abort> {
    let schedule = expect(tx, id)?;
    check_revision(Some(&schedule), revision)?;
    if let Some(at) = schedule.indexed {
        tx.remove(fire_key(at, id));
    }
    tx.remove(schedule_key(id));
    count(tx, false)
}

fn check_revision(there: Option<&Schedule>, wanted: Option<u64>) -> Result<(), Error> {
    let revision = there.map_or(0, |schedule| schedule.revision);
    match wanted {
        Some(wanted) if wanted != revision => {
            let message = format!("the schedule has revision {revision}, not {wanted}; read it again");
            Err(Error::conflict(OTHER_REVISION, message))
        }
        _ => Ok(()),
    }
}

fn count(tx: &mut JobsTx<'_>, one_more: bool) -> Result<(), Abort> {
    let value = tx.record(COUNT)?;
    let count: u64 = value.and_then(|value| std::str::from_utf8(&value).ok()?.parse().ok()).unwrap_or(0);
    if one_more && count >= SCHEDULES_MAX {
        let message = format!("there are {SCHEDULES_MAX} schedules, which is the limit; delete some");
        return Err(Error::Full(message).into());
    }
    let count = if one_more { count + 1 } else { count.saturating_sub(1) };
    tx.put(COUNT.to_owned(), count.to_string(), None);
    Ok(())
}

/// Writes a schedule, and its index entry at `check_at` unless it is paused.
fn write(
    tx: &mut JobsTx<'_>,
    id: &str,
    schedule: &mut Schedule,
    check_at: Option<Timestamp>,
) -> Result<(), Abort> {
    let check_at = check_at.filter(|_| schedule.spec.enabled);
    if schedule.indexed != check_at {
        if let Some(old) = schedule.indexed {
            tx.remove(fire_key(old, id));
        }
        if let Some(at) = check_at {
            tx.put(fire_key(at, id), Vec::new(), None);
        }
        schedule.indexed = check_at;
    }
    tx.effects.fires = true;
    let value = serde_json::to_vec(schedule)
        .map_err(|error| StoreError::Corrupt(format!("a schedule cannot be written: {error}")))?;
    tx.put(schedule_key(id), value, None);
    Ok(())
}

fn decode(value: &[u8]) -> Result<Schedule, StoreError> {
    serde_json::from_slice(value)
        .map_err(|error| StoreError::Corrupt(format!("a schedule cannot be read: {error}")))
}
