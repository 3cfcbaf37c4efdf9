//! A schedule as a caller describes it: when it fires, and which jobs it enqueues.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_schedules::{
    Calendar, DstGap, DstOverlap, GRACE, Interval, InvalidSchedule, Misfire, Overlap, Recurrence, Zone,
    jitter,
};
use baton_types::Timestamp;
use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::model::error::Error;
use crate::model::new_job::{NORMAL, NewJob, PRIORITIES, When};
use crate::model::spec::Spec;

/// The default time zone.
const ZONE: &str = "UTC";
/// The default queue.
const QUEUE: &str = "default";
/// Bytes of the arguments: they share a record with the rest of the schedule.
const ARGS_BYTES_MAX: usize = 256 << 10;
/// The longest jitter.
const JITTER_MAX: Duration = Duration::from_secs(24 * 3600);
/// The longest misfire grace.
const GRACE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// The kinds of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// By `cron`.
    Cron,
    /// By `everyMs`.
    Interval,
    /// Once, at `at`.
    Once,
}

/// A time in ISO 8601 form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(pub Timestamp);

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_iso_micros())
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

/// The description of a schedule.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScheduleSpec {
    /// Its kind.
    pub kind: Kind,
    /// Its cron expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Its interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<u64>,
    /// Its only fire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Moment>,
    /// The time zone of the expression.
    #[serde(default = "zone")]
    pub time_zone: String,
    /// No fire happens before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Moment>,
    /// No fire happens after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_at: Option<Moment>,
    /// The largest random delay of a job after its fire, to spread the load.
    #[serde(default)]
    pub jitter_ms: u64,
    /// What happens to missed fires.
    #[serde(default)]
    pub misfire: Misfire,
    /// How late a fire may be before it counts as missed.
    #[serde(default = "grace_ms")]
    pub misfire_grace_ms: u64,
    /// What happens while the last job is running.
    #[serde(default)]
    pub overlap: Overlap,
    /// What happens to a fire that daylight saving skips.
    #[serde(default)]
    pub dst_gap: DstGap,
    /// What happens to a fire that daylight saving repeats.
    #[serde(default)]
    pub dst_overlap: DstOverlap,
    /// Whether it fires.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// The jobs it enqueues.
    pub job: Template,
}

fn zone() -> String {
    ZONE.into()
}

fn yes() -> bool {
    true
}

fn grace_ms() -> u64 {
    u64::try_from(GRACE.as_millis()).unwrap_or(u64::MAX)
}

impl From<InvalidSchedule> for Error {
    fn from(invalid: InvalidSchedule) -> Self {
        Self::Invalid(invalid.to_string())
    }
}

impl ScheduleSpec {
    /// Parses a description. Time zones get their canonical names.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut spec: Self = serde_json::from_str(text).map_err(|error| Error::Invalid(error.to_string()))?;
        spec.time_zone = spec.time_zone.parse::<Zone>()?.name().to_owned();
        spec.calendar(Timestamp::default())?;
        if spec.jitter() > JITTER_MAX {
            return Err(Error::Invalid(format!("jitterMs is at most {}", JITTER_MAX.as_millis())));
        }
        if spec.grace() > GRACE_MAX {
            return Err(Error::Invalid(format!("misfireGraceMs is at most {}", GRACE_MAX.as_millis())));
        }
        Ok(spec)
    }

    /// Its calendar. An interval without a start counts from the schedule's creation.
    pub fn calendar(&self, created_at: Timestamp) -> Result<Calendar, Error> {
        let given = (&self.cron, self.every_ms, self.at);
        let rule = match (self.kind, given) {
            (Kind::Cron, (Some(cron), None, None)) => Recurrence::Cron {
                cron: cron.parse()?,
                zone: self.time_zone.parse()?,
                gap: self.dst_gap,
                overlap: self.dst_overlap,
            },
            (Kind::Interval, (None, Some(millis), None)) => {
                // The API shows milliseconds, so milliseconds count.
                let created_at = Timestamp::from_micros(created_at.millis() * 1000);
                let anchor = self.start_at.map_or(created_at, |start| start.0);
                Recurrence::Interval(Interval::new(Duration::from_millis(millis), anchor)?)
            }
            (Kind::Once, (None, None, Some(at))) => Recurrence::Once(at.0),
            _ => {
                let problem = "a schedule of kind cron has cron, of kind interval everyMs, of kind once at, and \
                               none of the others";
                return Err(Error::Invalid(problem.into()));
            }
        };
        let (start, end) = (self.start_at.map(|start| start.0), self.end_at.map(|end| end.0));
        Ok(Calendar::new(rule, start, end)?)
    }

    /// The first fire of a schedule created at `now`. It may be in the past if the schedule has a start or a single
    /// time.
    pub fn first(&self, calendar: &Calendar, now: Timestamp) -> Option<Timestamp> {
        let is_dated = self.start_at.is_some() || self.kind == Kind::Once;
        calendar.next(if is_dated { Timestamp::MIN } else { now })
    }

    /// Whether two schedules fire at the same times.
    pub fn has_the_moments_of(&self, other: &Self) -> bool {
        let moments = |spec: &Self| {
            let (start, end) = (spec.start_at, spec.end_at);
            (spec.kind, spec.cron.clone(), spec.every_ms, spec.at, spec.time_zone.clone(), start, end)
        };
        moments(self) == moments(other)
            && (self.dst_gap, self.dst_overlap) == (other.dst_gap, other.dst_overlap)
    }

    /// See `misfireGraceMs`.
    pub fn grace(&self) -> Duration {
        Duration::from_millis(self.misfire_grace_ms)
    }

    fn jitter(&self) -> Duration {
        Duration::from_millis(self.jitter_ms)
    }

    /// The job of a fire.
    pub fn job(&self, schedule: &str, fire: Timestamp) -> NewJob {
        let delay = jitter(schedule, fire, self.jitter());
        let when = if delay.is_zero() { When::Now } else { When::At(fire.after(delay)) };
        NewJob { when, ..self.job_now(schedule, fire) }
    }

    /// The job of a fire, without jitter.
    pub fn job_now(&self, schedule: &str, fire: Timestamp) -> NewJob {
        let Template { queue, priority, args, spec } = &self.job;
        let args = Bytes::copy_from_slice(args.get().as_bytes());
        let (schedule_id, scheduled_for) = (Some(schedule.to_owned()), Some(fire));
        let spec = Spec { schedule_id, scheduled_for, ..spec.clone() };
        NewJob {
            queue: queue.as_str().into(),
            spec,
            args,
            priority: *priority,
            when: When::Now,
            unique: None,
            depends_on: Vec::new(),
        }
    }
}

/// The part that all jobs of a schedule share.
#[derive(Clone, Debug)]
pub struct Template {
    /// Their queue.
    pub queue: String,
    /// 0 to 3.
    pub priority: u8,
    /// Their arguments.
    pub args: Box<RawValue>,
    /// Everything else.
    pub spec: Spec,
}

/// The fields of a job that a schedule may set.
const TEMPLATE_FIELDS: [&str; 10] = [
    "jobType",
    "queue",
    "priority",
    "args",
    "timeoutMs",
    "retry",
    "concurrencyKey",
    "concurrencyLimit",
    "correlationId",
    "tags",
];

#[derive(Deserialize)]
#[serde(untagged)]
enum Priority {
    Number(u8),
    Word(String),
}

impl Template {
    fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |error: serde_json::Error| Error::Invalid(format!("job: {error}"));
        let mut fields: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text).map_err(wrong)?;
        if let Some(other) = fields.keys().find(|name| !TEMPLATE_FIELDS.contains(&name.as_str())) {
            // In the words of serde.
            let known = TEMPLATE_FIELDS.join("`, `");
            let problem = format!("job: unknown field `{other}`, expected one of `{known}`");
            return Err(Error::Invalid(problem));
        }
        let queue = fields.remove("queue").map(|queue| serde_json::from_str(queue.get()).map_err(wrong));
        let priority =
            fields.remove("priority").map(|given| serde_json::from_str(given.get()).map_err(wrong));
        let priority = match priority.transpose()? {
            None => Some(NORMAL),
            Some(Priority::Number(number)) => Some(number),
            Some(Priority::Word(word)) => {
                let position = PRIORITIES.iter().position(|known| *known == word);
                position.and_then(|position| u8::try_from(position).ok())
            }
        };
        let none = || RawValue::from_string("{}".into()).map_err(wrong);
        let args = fields.remove("args").map_or_else(none, Ok)?;
        let spec =
            serde_json::to_string(&fields).and_then(|text| serde_json::from_str(&text)).map_err(wrong)?;
        let template = Self {
            queue: queue.transpose()?.unwrap_or_else(|| QUEUE.into()),
            priority: priority.unwrap_or(u8::MAX),
            args,
            spec,
        };
        template.check()?;
        Ok(template)
    }

    fn check(&self) -> Result<(), Error> {
        if self.args.get().len() > ARGS_BYTES_MAX {
            let problem = format!("job: the args of a schedule have at most {ARGS_BYTES_MAX} bytes");
            return Err(Error::TooLarge(problem));
        }
        let mut job = NewJob::new(self.queue.as_str(), Arc::clone(&self.spec.job_type), Bytes::new());
        (job.spec, job.priority) = (self.spec.clone(), self.priority);
        job.check()
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        Self::parse(text.get()).map_err(D::Error::custom)
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            queue: &'a str,
            priority: u8,
            args: &'a RawValue,
            #[serde(flatten)]
            spec: &'a Spec,
        }
        let Self { queue, priority, args, spec } = self;
        Shown { queue, priority: *priority, args, spec }.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ScheduleSpec, String> {
        ScheduleSpec::parse(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_description_is_read_and_written_alike() {
        let text = r#"{"kind": "cron", "cron": "0 3 * * *", "timeZone": "europe/berlin", "startAt": "2026-01-01T00:00:00Z",
            "job": {"jobType": "backup", "args": {"b": 1, "a": 12345678901234567890}, "priority": "high", "timeoutMs": 7}}"#;
        let spec = parse(text).unwrap();
        assert_eq!(
            (spec.time_zone.as_str(), spec.misfire_grace_ms, spec.enabled),
            ("Europe/Berlin", 60_000, true)
        );
        let job = spec.job("nightly", Timestamp::from_micros(5));
        assert_eq!(&job.args[..], br#"{"b": 1, "a": 12345678901234567890}"#);
        assert_eq!((&*job.queue, job.priority, job.spec.timeout_ms), ("default", 2, 7));
        assert_eq!(job.spec.schedule_id.as_deref(), Some("nightly"));
        let plain = r#"{"kind": "interval", "everyMs": 5000, "job": {"jobType": "t"}}"#;
        assert_eq!(
            &parse(plain).unwrap().job("s", Timestamp::MIN).args[..],
            b"{}",
            "as in POST /api/v1/jobs"
        );
        let again = parse(&serde_json::to_string(&spec).unwrap()).unwrap();
        assert!(again.has_the_moments_of(&spec));
        assert_eq!(serde_json::to_string(&again).unwrap(), serde_json::to_string(&spec).unwrap());
    }

    #[test]
    fn an_invalid_field_is_refused_by_name() {
        let table = [
            (r#"{"kind": "cron", "cron": "0 3 * * *"}"#, "missing field `job`"),
            (r#"{"kind": "cron", "job": {"jobType": "t"}}"#, "of kind cron has cron"),
            (
                r#"{"kind": "interval", "everyMs": 5000, "cron": "@daily", "job": {"jobType": "t"}}"#,
                "none of the others",
            ),
            (
                r#"{"kind": "interval", "everyMs": 5, "job": {"jobType": "t"}}"#,
                "everyMs: an interval is at least",
            ),
            (
                r#"{"kind": "cron", "cron": "0 3 * *", "job": {"jobType": "t"}}"#,
                "cron: an expression has 5 fields",
            ),
            (
                r#"{"kind": "cron", "cron": "@daily", "timeZone": "Berlin", "job": {"jobType": "t"}}"#,
                "did you mean",
            ),
            (r#"{"kind": "once", "at": "soon", "job": {"jobType": "t"}}"#, "ISO-8601"),
            (
                r#"{"kind": "cron", "cron": "@daily", "retries": 1, "job": {"jobType": "t"}}"#,
                "unknown field `retries`",
            ),
            (
                r#"{"kind": "cron", "cron": "@daily", "job": {"jobType": "t", "delayMs": 5}}"#,
                "unknown field `delayMs`",
            ),
            (r#"{"kind": "cron", "cron": "@daily", "job": {"jobType": ""}}"#, "jobType"),
            (
                r#"{"kind": "cron", "cron": "@daily", "job": {"jobType": "t", "priority": "urgent"}}"#,
                "priority is 0 to 3",
            ),
            (
                r#"{"kind": "cron", "cron": "@daily", "jitterMs": 90000000, "job": {"jobType": "t"}}"#,
                "jitterMs is at most",
            ),
        ];
        for (text, journal_entries) in table {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(journal_entries), "{text}: {problem}");
        }
    }
}
