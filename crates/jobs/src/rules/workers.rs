//! Workers: registration, liveness, and the state that an operator wants.
//!
//! Each registration gets a new id. A process that restarts under the same name is another worker, so it cannot hide
//! the end of the first. Always: liveness is the store's time of the last heartbeat.

use baton_store::Error as StoreError;
use baton_types::{PartitionId, Timestamp};

use crate::model::error::Error;
use crate::model::ids::{JobId, WorkerId};
use crate::model::keys;
use crate::model::limits::{WORKER_FOR, WORKER_STOPS_MAX, WORKERS_MAX};
use crate::model::worker::{Desired, NewWorker, Worker};
use crate::storage::{Abort, JobsTx};

/// A worker by id.
pub fn find(tx: &mut JobsTx<'_>, id: WorkerId) -> Result<Option<Worker>, Abort> {
    let Some(value) = tx.record(&keys::worker(id.0))? else { return Ok(None) };
    let worker = serde_json::from_slice(&value)
        .map_err(|error| StoreError::Corrupt(format!("a worker cannot be read: {error}")))?;
    Ok(Some(worker))
}

/// A worker by id, or an error that says what to do.
pub fn expect(tx: &mut JobsTx<'_>, id: WorkerId) -> Result<Worker, Abort> {
    let message = || Error::NotFound(format!("there is no worker {id}: register with POST /api/v1/workers"));
    find(tx, id)?.ok_or_else(|| message().into())
}

/// Writes a worker's record, which expires a while after its last heartbeat.
pub fn put(tx: &mut JobsTx<'_>, id: WorkerId, worker: &Worker) -> Result<(), Abort> {
    let value = serde_json::to_vec(worker)
        .map_err(|error| StoreError::Corrupt(format!("a worker cannot be written: {error}")))?;
    // Rounded to hours, so that heartbeats move the record in the expiry index only once an hour.
    let hour = i64::try_from(WORKER_FOR.as_micros()).unwrap_or(i64::MAX);
    let until = Timestamp::from_micros((worker.seen_at.micros() / hour + 2) * hour);
    tx.put(keys::worker(id.0), value, Some(until));
    Ok(())
}

/// Registers a worker under a new id for these queues.
pub fn register(
    tx: &mut JobsTx<'_>,
    id: WorkerId,
    registration: &NewWorker,
    partitions: &[PartitionId],
) -> Result<(), Abort> {
    if tx.stored(keys::WORKERS, None, WORKERS_MAX)?.len() >= WORKERS_MAX {
        return Err(Error::Full(format!("there are {WORKERS_MAX} workers, which is the limit")).into());
    }
    let now = tx.now();
    let worker = Worker {
        registration: registration.clone(),
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
    put(tx, id, &worker)
}

/// Removes a worker that leaves. Its jobs go to others when their leases end.
pub fn deregister(tx: &mut JobsTx<'_>, id: WorkerId) -> Result<(), Abort> {
    expect(tx, id)?;
    tx.remove(keys::worker(id.0));
    Ok(())
}

/// Asks a worker to stop a job, and answers its waiting heartbeat.
pub fn request_stop(tx: &mut JobsTx<'_>, id: WorkerId, job: JobId) -> Result<(), Abort> {
    let Some(mut worker) = find(tx, id)? else { return Ok(()) };
    worker.has_news = true;
    if worker.to_stop.len() < WORKER_STOPS_MAX && !worker.to_stop.contains(&job) {
        worker.to_stop.push(job);
    }
    tx.effects.called.push(id);
    put(tx, id, &worker)
}

/// Sets the wanted state of a worker. A waiting heartbeat is answered at once, otherwise the next one.
pub fn set_desired(tx: &mut JobsTx<'_>, id: WorkerId, desired: Desired, grace_ms: u64) -> Result<(), Abort> {
    let mut worker = expect(tx, id)?;
    (worker.desired, worker.grace_ms, worker.has_news) = (desired, grace_ms, true);
    tx.effects.called.push(id);
    put(tx, id, &worker)
}
