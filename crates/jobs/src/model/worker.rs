//! Workers: the client programs that run jobs, as the store keeps them.

use std::collections::BTreeMap;

use baton_types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::error::Error;
use crate::model::ids::JobId;
use crate::model::limits::{WORKER_KINDS_MAX, WORKER_QUEUES_MAX};
use crate::model::names::check_name;

/// What is wanted of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Desired {
    /// That it takes jobs.
    #[default]
    Active,
    /// That it takes no more, ends those it has, and gives back what it cannot end in time.
    Draining,
    /// That it gives back at once what it has.
    Stopping,
}

/// What a process says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NewWorker {
    /// Its name, which need not be its own.
    pub name: String,
    /// The queues it serves.
    pub queues: Vec<String>,
    /// The job types it knows; all when empty.
    pub job_types: Vec<String>,
    /// How many jobs it runs at once.
    pub max_concurrency: u32,
    /// Whatever else an operator may want to know.
    pub labels: BTreeMap<String, String>,
    /// What it is a version of.
    pub version: String,
}

impl NewWorker {
    /// Says what is wrong with it, if something is.
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

/// A worker as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    /// What it said of itself.
    #[serde(flatten)]
    pub told: NewWorker,
    /// The numbers of its queues.
    pub partitions: Vec<u64>,
    /// When it registered.
    pub registered_at: Timestamp,
    /// When it was last heard.
    pub seen_at: Timestamp,
    /// When it last asked for jobs.
    pub leased_at: Timestamp,
    /// How many jobs it said it has.
    pub running: u32,
    /// What is wanted of it.
    pub desired: Desired,
    /// How long it may take to drain, in milliseconds.
    pub grace_ms: u64,
    /// Whether there is something that no heartbeat has been answered with.
    #[serde(default)]
    pub has_news: bool,
    /// The jobs that it is to stop, of this news. A hint: each heartbeat looks at the jobs that it names anyway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to_stop: Vec<JobId>,
}
