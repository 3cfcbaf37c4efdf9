//! Workers: the client programs that run jobs, as the store records them.

use std::collections::BTreeMap;

use baton_types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::error::Error;
use crate::model::ids::JobId;
use crate::model::limits::{WORKER_KINDS_MAX, WORKER_QUEUES_MAX};
use crate::model::names::check_name;

/// The state that an operator wants a worker to be in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Desired {
    /// It takes jobs.
    #[default]
    Active,
    /// It takes no more jobs, finishes those it has, and releases what it cannot finish in time.
    Draining,
    /// It releases its jobs at once.
    Stopping,
}

/// The registration of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NewWorker {
    /// Its name, which need not be unique.
    pub name: String,
    /// The queues it serves.
    pub queues: Vec<String>,
    /// The job types it accepts; all when empty.
    pub job_types: Vec<String>,
    /// How many jobs it runs at once.
    pub max_concurrency: u32,
    /// Labels for operators.
    pub labels: BTreeMap<String, String>,
    /// The version of its program.
    pub version: String,
}

impl NewWorker {
    /// Refuses a registration that is not valid.
    pub fn check(&self) -> Result<(), Error> {
        check_name("name", &self.name)?;
        if self.queues.is_empty() || self.queues.len() > WORKER_QUEUES_MAX {
            return Err(Error::invalid(format!("queues names 1 to {WORKER_QUEUES_MAX} queues")));
        }
        if self.job_types.len() > WORKER_KINDS_MAX || self.labels.len() > 32 || self.version.len() > 255 {
            let message =
                format!("a worker has at most {WORKER_KINDS_MAX} jobTypes, 32 labels, 255 bytes of version");
            return Err(Error::invalid(message));
        }
        self.queues.iter().try_for_each(|queue| check_name("queue", queue))?;
        self.job_types.iter().try_for_each(|kind| check_name("jobType", kind))?;
        let labels = self.labels.iter().flat_map(|(name, value)| [name, value]);
        labels.filter(|text| !text.is_empty()).try_for_each(|text| check_name("label", text))
    }
}

/// The record of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    /// Its registration.
    #[serde(flatten)]
    pub registration: NewWorker,
    /// The partitions of its queues.
    pub partitions: Vec<u64>,
    /// When it registered.
    pub registered_at: Timestamp,
    /// The time of its last heartbeat.
    pub seen_at: Timestamp,
    /// When it last asked for jobs.
    pub leased_at: Timestamp,
    /// How many jobs its last heartbeat listed.
    pub running: u32,
    /// The wanted state.
    pub desired: Desired,
    /// How long it may take to drain, in milliseconds.
    pub grace_ms: u64,
    /// Whether a change was not yet sent in a heartbeat reply.
    #[serde(default)]
    pub has_news: bool,
    /// The jobs that it should stop, of this change. A hint: each heartbeat checks the jobs that it lists anyway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to_stop: Vec<JobId>,
}
