//! A job as a caller describes it, before it is accepted.

use std::sync::Arc;
use std::time::Duration;

use baton_types::Timestamp;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::model::error::Error;
use crate::model::ids::JobId;
use crate::model::limits::{
    ARGS_BYTES_MAX, DELAY_MAX, DEPENDS_MAX, PERMITS_MAX, TAGS_MAX, TIMEOUT_MAX, WINDOW_MAX,
};
use crate::model::names::check_name;
use crate::model::spec::Spec;

/// How long a unique key excludes other jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UniqueScope {
    /// Until the job has ended.
    #[default]
    Active,
    /// For a time, even after the job has ended.
    Window,
}

/// What happens when a unique key is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// The call returns the existing job.
    #[default]
    Return,
    /// The call is refused.
    Reject,
    /// The existing job is cancelled, if no worker has it yet.
    Replace,
}

/// A key that only one job may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unique {
    /// The key, within its queue.
    pub key: String,
    /// For how long.
    pub scope: UniqueScope,
    /// The window, for [`UniqueScope::Window`].
    pub window: Duration,
    /// What happens to a second job with the key.
    pub on_conflict: OnConflict,
}

/// When a job should run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// As soon as possible.
    #[default]
    Now,
    /// After a delay.
    After(Duration),
    /// At a time.
    At(Timestamp),
}

/// A job that another job depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependency {
    /// A job that was accepted before.
    Job(JobId),
    /// A job of the same call, by its index.
    Item(usize),
}

/// A job as a caller describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// The queue it goes to.
    pub queue: Arc<str>,
    /// What is stored of it besides its arguments.
    pub spec: Spec,
    /// Its arguments, as JSON.
    pub args: Bytes,
    /// 0 to 3.
    pub priority: u8,
    /// When it is to run.
    pub when: When,
    /// A key that only one job may have.
    pub unique: Option<Unique>,
    /// The jobs it depends on.
    pub depends_on: Vec<Dependency>,
}

/// Low, normal, high, critical.
pub const PRIORITIES: [&str; 4] = ["low", "normal", "high", "critical"];
/// The default priority.
pub const NORMAL: u8 = 1;

impl NewJob {
    /// A job with default options.
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

    /// Refuses a job that is not valid.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_out_of_bounds_is_refused_by_name() {
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
