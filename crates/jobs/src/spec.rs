//! What is to be done: a job as a caller describes it, and its specification as it is kept.

use std::sync::Arc;
use std::time::Duration;

use baton_store::Error as StoreError;
use baton_types::Timestamp;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::codec::Writer;
use crate::error::Error;
use crate::id::JobId;
use crate::limits::{
    ARGS_BYTES_MAX, DELAY_MAX, DEPENDS_MAX, NAME_BYTES_MAX, PERMITS_MAX, RETRIES_MAX, TAGS_MAX, TIMEOUT,
    TIMEOUT_MAX, WINDOW_MAX,
};
use crate::payload;

/// How often and when a job that failed is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Retry {
    /// How often after the first attempt.
    pub max_retries: u32,
    /// The pause before the first.
    pub initial_delay_ms: u64,
    /// By how much each pause is longer than the one before.
    pub multiplier: f64,
    /// The longest pause.
    pub max_delay_ms: u64,
    /// By which part of itself a pause may be shorter or longer.
    pub jitter: f64,
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_retries: 3, initial_delay_ms: 10_000, multiplier: 2.0, max_delay_ms: 600_000, jitter: 0.2 }
    }
}

impl Retry {
    /// The pause after `attempt` attempts; `chance` is what decides within the jitter.
    pub fn pause(&self, attempt: u32, chance: u64) -> Duration {
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        #[expect(clippy::cast_precision_loss, reason = "a pause is not that precise")]
        let (first, most, chance) = (self.initial_delay_ms as f64, self.max_delay_ms as f64, chance as f64);
        let pause = (first * self.multiplier.powi(exponent)).min(most);
        #[expect(clippy::cast_precision_loss, reason = "a pause is not that precise")]
        let spread = 1.0 + self.jitter * (2.0 * chance / u64::MAX as f64 - 1.0);
        Duration::try_from_secs_f64(pause * spread / 1000.0).unwrap_or(Duration::ZERO)
    }

    fn check(&self) -> Result<(), Error> {
        let longest = u64::try_from(DELAY_MAX.as_millis()).unwrap_or(u64::MAX);
        if self.max_retries > RETRIES_MAX {
            return Err(Error::invalid(format!("retry.maxRetries is at most {RETRIES_MAX}")));
        }
        if !(1.0..=100.0).contains(&self.multiplier) || !(0.0..=1.0).contains(&self.jitter) {
            return Err(Error::invalid("retry.multiplier is 1 to 100 and retry.jitter 0 to 1"));
        }
        if self.initial_delay_ms > longest || self.max_delay_ms > longest {
            return Err(Error::invalid(format!("a retry's delay is at most {longest} ms")));
        }
        Ok(())
    }
}

/// For how long a unique key keeps others out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UniqueScope {
    /// Until the job has ended.
    #[default]
    Active,
    /// For a time, whatever becomes of the job.
    Window,
}

/// What becomes of a job whose unique key is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// The caller is told of the job that is there.
    #[default]
    Return,
    /// The caller is refused.
    Reject,
    /// The job that is there is called off, if no worker has it yet.
    Replace,
}

/// A key that only one job may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unique {
    /// The key, within its queue.
    pub key: String,
    /// For how long.
    pub scope: UniqueScope,
    /// The time, when the scope is one.
    pub window: Duration,
    /// What becomes of the second.
    pub on_conflict: OnConflict,
}

/// When a job is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// As soon as it can.
    #[default]
    Now,
    /// So long after it was accepted.
    After(Duration),
    /// At a moment.
    At(Timestamp),
}

/// A job that another one waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependency {
    /// One that was accepted before.
    Job(JobId),
    /// One of the same call, by its place there.
    Item(usize),
}

/// What is kept of a job's description.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// What kind of work it is.
    pub job_type: Arc<str>,
    /// How long it may run; zero is for ever.
    #[serde(default = "timeout_ms", skip_serializing_if = "is_usual_timeout")]
    pub timeout_ms: u64,
    /// How it is tried again.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub retry: Retry,
    /// A key that only one active job has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// Jobs of one key are limited together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_key: Option<String>,
    /// How many of them may be under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_limit: Option<u32>,
    /// What the caller knows it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// What it is found by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The job that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<JobId>,
    /// What it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<JobId>,
    /// The schedule that fired it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
    /// The moment that the schedule fired it for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_for: Option<Timestamp>,
}

pub(crate) fn timeout_ms() -> u64 {
    u64::try_from(TIMEOUT.as_millis()).unwrap_or(u64::MAX)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
pub(crate) fn is_usual_timeout(given: &u64) -> bool {
    *given == timeout_ms()
}

pub(crate) fn is_usual(retry: &Retry) -> bool {
    *retry == Retry::default()
}

impl Spec {
    /// The specification of a job of a type, with nothing special about it.
    pub fn new(job_type: impl Into<Arc<str>>) -> Self {
        Self {
            job_type: job_type.into(),
            timeout_ms: timeout_ms(),
            retry: Retry::default(),
            unique_key: None,
            concurrency_key: None,
            concurrency_limit: None,
            correlation_id: None,
            tags: Vec::new(),
            parent_id: None,
            depends_on: Vec::new(),
            schedule_id: None,
            scheduled_for: None,
        }
    }

    /// The specification and the arguments as they are kept.
    pub(crate) fn encode(&self, args: &[u8]) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(64 + args.len()));
        payload::encode(&mut out, self, self.unique_key.as_deref(), &self.depends_on, args);
        out.0
    }

    /// Reads both back.
    pub(crate) fn decode(kept: &Bytes) -> Result<(Self, Bytes), StoreError> {
        payload::decode(kept)
    }
}

/// A job as a caller describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// The queue it goes to.
    pub queue: Arc<str>,
    /// What is kept of it.
    pub spec: Spec,
    /// Its arguments, as JSON.
    pub args: Bytes,
    /// 0 to 3.
    pub priority: u8,
    /// When it is to run.
    pub when: When,
    /// A key that only one job may have.
    pub unique: Option<Unique>,
    /// What it waits for.
    pub depends_on: Vec<Dependency>,
}

/// Low, normal, high, critical.
pub const PRIORITIES: [&str; 4] = ["low", "normal", "high", "critical"];
/// The priority of a job that does not say which.
pub const NORMAL: u8 = 1;

impl NewJob {
    /// A job with nothing special about it.
    pub fn new(queue: impl Into<Arc<str>>, job_type: impl Into<Arc<str>>, args: impl Into<Bytes>) -> Self {
        Self {
            queue: queue.into(),
            spec: Spec::new(job_type),
            args: args.into(),
            priority: NORMAL,
            when: When::Now,
            unique: None,
            depends_on: Vec::new(),
        }
    }

    /// Says what is wrong with it, if something is.
    pub fn check(&self) -> Result<(), Error> {
        check_name("queue", &self.queue)?;
        check_name("jobType", &self.spec.job_type)?;
        self.spec.retry.check()?;
        if self.args.len() > ARGS_BYTES_MAX {
            let message = format!("args have {} bytes: at most {ARGS_BYTES_MAX} fit a job", self.args.len());
            return Err(Error::TooLarge(message));
        }
        if usize::from(self.priority) >= PRIORITIES.len() {
            return Err(Error::invalid("priority is 0 to 3, or low, normal, high or critical"));
        }
        if Duration::from_millis(self.spec.timeout_ms) > TIMEOUT_MAX {
            return Err(Error::invalid(format!("timeoutMs is at most {}", TIMEOUT_MAX.as_millis())));
        }
        if let When::After(delay) = self.when
            && delay > DELAY_MAX
        {
            return Err(Error::invalid(format!("delayMs is at most {}", DELAY_MAX.as_millis())));
        }
        if self.spec.tags.len() > TAGS_MAX || self.depends_on.len() > DEPENDS_MAX {
            return Err(Error::invalid(format!(
                "a job has at most {TAGS_MAX} tags and {DEPENDS_MAX} in dependsOn"
            )));
        }
        let named = self.spec.tags.iter().map(|tag| ("tag", tag));
        let keys = [
            ("uniqueKey", self.unique.as_ref().map(|unique| &unique.key)),
            ("concurrencyKey", self.spec.concurrency_key.as_ref()),
            ("correlationId", self.spec.correlation_id.as_ref()),
        ];
        for (what, name) in named.chain(keys.into_iter().filter_map(|(what, key)| Some((what, key?)))) {
            check_name(what, name)?;
        }
        match (&self.spec.concurrency_key, self.spec.concurrency_limit) {
            (None, Some(_)) => return Err(Error::invalid("concurrencyLimit needs a concurrencyKey")),
            (Some(_), Some(limit)) if !(1..=PERMITS_MAX).contains(&limit) => {
                return Err(Error::invalid(format!("concurrencyLimit is 1 to {PERMITS_MAX}")));
            }
            _ => {}
        }
        match &self.unique {
            Some(unique) if unique.scope == UniqueScope::Window && unique.window.is_zero() => {
                Err(Error::invalid("uniqueScope window needs a uniqueWindowMs"))
            }
            Some(unique) if unique.window > WINDOW_MAX => {
                Err(Error::invalid(format!("uniqueWindowMs is at most {}", WINDOW_MAX.as_millis())))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses a name that is empty, too long, or holds what a key cannot.
pub fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid(format!("{what} has {} bytes: give 1 to {NAME_BYTES_MAX}", name.len())));
    }
    if name.chars().any(char::is_control) {
        return Err(Error::invalid(format!("{what} holds a control character: leave it out")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_spread() {
        let retry = Retry { jitter: 0.0, ..Retry::default() };
        let seconds = |attempt| retry.pause(attempt, 0).as_secs();
        assert_eq!([seconds(1), seconds(2), seconds(3), seconds(30)], [10, 20, 40, 600]);
        let spread = |chance| Retry::default().pause(1, chance).as_millis();
        assert_eq!((spread(0), spread(u64::MAX)), (8_000, 12_000));
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_by_name() {
        let job = NewJob::new("q", "t", "{}");
        assert!(job.check().is_ok());
        let wrong = |job: NewJob| job.check().unwrap_err().to_string();
        assert!(wrong(NewJob { queue: "".into(), ..job.clone() }).contains("queue"));
        assert!(wrong(NewJob { priority: 4, ..job.clone() }).contains("priority"));
        let mut limited = job.clone();
        limited.spec.concurrency_limit = Some(1);
        assert!(wrong(limited).contains("concurrencyKey"));
        assert!(wrong(NewJob { args: vec![b'1'; ARGS_BYTES_MAX + 1].into(), ..job }).contains("args"));
    }
}
