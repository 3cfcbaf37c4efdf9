//! Workers: who runs jobs, from a registration to silence.
//!
//! A worker's id is given by the server, one for each registration, so a process that starts again under the same name
//! is another worker and cannot hide the end of the first. Always: liveness is the store's time of the last heartbeat.

use std::collections::BTreeMap;

use baton_store::Error as StoreError;
use baton_types::{PartitionId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::book::{Book, Halt};
use crate::error::Error;
use crate::id::{JobId, WorkerId};
use crate::key;
use crate::limits::{WORKER_FOR, WORKER_KINDS_MAX, WORKER_QUEUES_MAX, WORKER_STOPS_MAX, WORKERS_MAX};
use crate::spec::check_name;

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

/// A worker that is known.
pub fn find(book: &mut Book<'_>, id: WorkerId) -> Result<Option<Worker>, Halt> {
    let Some(value) = book.record(&key::worker(id.0))? else { return Ok(None) };
    let worker = serde_json::from_slice(&value)
        .map_err(|error| StoreError::Corrupt(format!("a worker cannot be read: {error}")))?;
    Ok(Some(worker))
}

/// The same, or an error that says what to do.
pub fn expect(book: &mut Book<'_>, id: WorkerId) -> Result<Worker, Halt> {
    let message = || Error::NotFound(format!("there is no worker {id}: register with POST /api/v1/workers"));
    find(book, id)?.ok_or_else(|| message().into())
}

/// Keeps a worker for as long as it is heard, and a while longer.
pub fn put(book: &mut Book<'_>, id: WorkerId, worker: &Worker) -> Result<(), Halt> {
    let value = serde_json::to_vec(worker)
        .map_err(|error| StoreError::Corrupt(format!("a worker cannot be written: {error}")))?;
    // Hours instead of moments, so that a heartbeat moves it in the order of expiry once an hour.
    let hour = i64::try_from(WORKER_FOR.as_micros()).unwrap_or(i64::MAX);
    let until = Timestamp::from_micros((worker.seen_at.micros() / hour + 2) * hour);
    book.put(key::worker(id.0), value, Some(until));
    Ok(())
}

/// Registers a worker under a new id for the queues with these numbers.
pub fn register(
    book: &mut Book<'_>,
    id: WorkerId,
    told: &NewWorker,
    partitions: &[PartitionId],
) -> Result<(), Halt> {
    if book.stored(key::WORKERS, None, WORKERS_MAX)?.len() >= WORKERS_MAX {
        return Err(
            Error::Full(format!("there are {WORKERS_MAX} workers, which is as many as may be")).into()
        );
    }
    let now = book.now();
    let worker = Worker {
        told: told.clone(),
        partitions: partitions.iter().map(|partition| partition.0).collect(),
        registered_at: now,
        seen_at: now,
        leased_at: now,
        running: 0,
        desired: Desired::Active,
        grace_ms: 0,
        has_news: false,
        to_stop: Vec::new(),
    };
    put(book, id, &worker)
}

/// Forgets a worker that leaves. Jobs that it still has go to others when their leases end.
pub fn deregister(book: &mut Book<'_>, id: WorkerId) -> Result<(), Halt> {
    expect(book, id)?;
    book.remove(key::worker(id.0));
    Ok(())
}

/// Has a heartbeat that waits be answered: the worker is to stop a job.
pub fn call_off(book: &mut Book<'_>, id: WorkerId, job: JobId) -> Result<(), Halt> {
    let Some(mut worker) = find(book, id)? else { return Ok(()) };
    worker.has_news = true;
    if worker.to_stop.len() < WORKER_STOPS_MAX && !worker.to_stop.contains(&job) {
        worker.to_stop.push(job);
    }
    book.news.called.push(id);
    put(book, id, &worker)
}

/// Says what is wanted of a worker. A heartbeat that waits is answered at once, otherwise the next one says it.
pub fn want(book: &mut Book<'_>, id: WorkerId, desired: Desired, grace_ms: u64) -> Result<(), Halt> {
    let mut worker = expect(book, id)?;
    (worker.desired, worker.grace_ms, worker.has_news) = (desired, grace_ms, true);
    book.news.called.push(id);
    put(book, id, &worker)
}
