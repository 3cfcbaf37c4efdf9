//! `/api/v1/workers…`: what workers say and hear, and what operators see of them.

use std::collections::BTreeMap;
use std::time::Duration;

use baton_http::Reply;
use baton_jobs::{
    Desired, ExecutionId, Heartbeat, HeldJob, Leased, NewWorker, Policy, Progress, Worker, WorkerId,
};
use baton_types::Timestamp;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::parsed;
use crate::call::{Answer, Call};
use crate::error::{Error, Kind};
use crate::json;
use crate::unknown;

fn worker_id(call: &Call) -> Result<WorkerId, Error> {
    let text = call.parameter(0);
    text.parse().map_err(|_| {
        Error::not_found(format!("there is no worker {text:?}: register with POST /api/v1/workers"))
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A worker as it was sent.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct RawWorker {
    name: String,
    queues: Vec<String>,
    job_types: Vec<String>,
    max_concurrency: u32,
    labels: BTreeMap<String, String>,
    version: String,
}

impl From<RawWorker> for NewWorker {
    fn from(raw: RawWorker) -> Self {
        let RawWorker { name, queues, job_types, max_concurrency, labels, version } = raw;
        Self { name, queues, job_types, max_concurrency, labels, version }
    }
}

/// Registers a worker.
pub(in crate::routes) fn register(mut call: Call) -> Answer {
    Box::pin(async move {
        let mut told: RawWorker = parsed(&mut call, "a worker: {\"name\": text, \"queues\": [text], ...}")?;
        if told.queues.is_empty() {
            told.queues.push("default".into());
        }
        if told.name.is_empty() {
            told.name = "worker".into();
        }
        let registered = call.jobs().register(told.into()).await?;
        let policy = &registered.policy;
        Reply::of(
            StatusCode::CREATED,
            &json!({
                "workerId": registered.worker,
                "incarnation": registered.worker.0,
                "heartbeatMs": millis(policy.heartbeat),
                "leaseMs": millis(policy.lease),
                "cancelGraceMs": millis(policy.cancel_grace),
                "defaultTimeoutMs": millis(baton_jobs::limits::TIMEOUT),
            }),
        )
    })
}

fn shown(id: WorkerId, worker: &Worker, now: Timestamp, policy: &Policy) -> Value {
    let silent = now.since(worker.seen_at);
    let state = match worker.desired {
        _ if silent > policy.lease => "offline",
        Desired::Active => "active",
        Desired::Draining => "draining",
        Desired::Stopping => "stopping",
    };
    json!({
        "workerId": id,
        "name": worker.registration.name,
        "queues": worker.registration.queues,
        "jobTypes": worker.registration.job_types,
        "maxConcurrency": worker.registration.max_concurrency,
        "labels": worker.registration.labels,
        "version": worker.registration.version,
        "state": state,
        "running": worker.running,
        "registeredAt": worker.registered_at.to_iso_millis(),
        "seenAt": worker.seen_at.to_iso_millis(),
        "leaseUntil": worker.seen_at.after(policy.lease).to_iso_millis(),
        "leasedAt": worker.leased_at.to_iso_millis(),
        // One that is heard and takes no work is ill, however alive it looks.
        "takesWork": silent <= policy.lease && now.since(worker.leased_at) <= policy.lease.max(Duration::from_secs(90)),
    })
}

/// Forgets a worker that leaves.
pub(in crate::routes) fn deregister(mut call: Call) -> Answer {
    Box::pin(async move {
        unknown::check_empty(&call.body()?)?;
        call.jobs().deregister(worker_id(&call)?).await?;
        Ok(Reply::nothing())
    })
}

/// All workers that were heard lately.
pub(in crate::routes) fn list(call: Call) -> Answer {
    Box::pin(async move {
        let workers = call.jobs().workers().await?;
        let (now, policy) = (call.jobs().now(), call.jobs().policy());
        let rows: Vec<_> = workers.iter().map(|(id, worker)| shown(*id, worker, now, &policy)).collect();
        Reply::ok(&json!({"workers": rows}))
    })
}

/// One worker.
pub(in crate::routes) fn one(call: Call) -> Answer {
    Box::pin(async move {
        let id = worker_id(&call)?;
        let worker = call.jobs().worker(id).await?;
        Reply::ok(&shown(id, &worker, call.jobs().now(), &call.jobs().policy()))
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Drain {
    mode: Option<DrainMode>,
    grace_ms: Option<u64>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DrainMode {
    Graceful,
    Immediate,
    Off,
}

/// Asks a worker to take no more jobs.
pub(in crate::routes) fn drain(mut call: Call) -> Answer {
    Box::pin(async move {
        let id = worker_id(&call)?;
        let wish: Drain =
            parsed(&mut call, "{\"mode\": \"graceful\", \"immediate\" or \"off\", \"graceMs\": number}")?;
        let desired = match wish.mode.unwrap_or(DrainMode::Graceful) {
            DrainMode::Graceful => Desired::Draining,
            DrainMode::Immediate => Desired::Stopping,
            DrainMode::Off => Desired::Active,
        };
        let grace = Duration::from_millis(wish.grace_ms.unwrap_or(30_000).min(3_600_000));
        call.jobs().set_desired(id, desired, grace).await?;
        Reply::ok(&json!({"workerId": id, "desiredState": desired}))
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Lease {
    max: Option<usize>,
    wait_ms: Option<u64>,
    incarnation: Option<u64>,
}

/// Gives jobs to a worker; waits for the first.
pub(in crate::routes) fn lease(mut call: Call) -> Answer {
    Box::pin(async move {
        let id = worker_id(&call)?;
        let wish: Lease = parsed(&mut call, "{\"max\": number, \"waitMs\": number}")?;
        check_incarnation(id, wish.incarnation)?;
        let wait = Duration::from_millis(wish.wait_ms.unwrap_or(0));
        let stopped = call.app().stopped();
        let leases = tokio::select! {
            leases = call.jobs().lease(id, wish.max.unwrap_or(1), wait) => leases?,
            () = stopped => return Reply::ok(&json!({"leases": [], "desiredState": "active"})),
        };
        let mut out = Vec::with_capacity(64 + leases.jobs.len() * 320);
        out.extend_from_slice(b"{\"leases\":[");
        for (index, leased) in leases.jobs.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            write_lease(&mut out, leased);
        }
        out.extend_from_slice(b"],\"desiredState\":");
        out.extend_from_slice(&serde_json::to_vec(&leases.desired).unwrap_or_default());
        out.push(b'}');
        Ok(Reply::json(StatusCode::OK, out))
    })
}

/// Writes an execution's id, without going through formatting.
fn write_execution(out: &mut Vec<u8>, execution: ExecutionId) {
    json::uuid(out, execution.job.as_uuid());
    // The id goes on where the string of the job's id would end.
    out.pop();
    out.push(b'.');
    json::number(out, execution.fence);
    out.push(b'"');
}

fn write_lease(out: &mut Vec<u8>, leased: &Leased) {
    out.extend_from_slice(b"{\"jobId\":");
    json::uuid(out, leased.id.as_uuid());
    out.extend_from_slice(b",\"executionId\":");
    write_execution(out, leased.execution);
    out.extend_from_slice(b",\"fence\":");
    json::number(out, leased.execution.fence);
    out.extend_from_slice(b",\"attempt\":");
    json::number(out, leased.attempt.into());
    out.extend_from_slice(b",\"leaseMs\":");
    json::number(out, millis(leased.lease));
    out.extend_from_slice(b",\"deadlineMs\":");
    match leased.timeout {
        Some(timeout) => json::number(out, millis(timeout)),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"jobType\":");
    json::string(out, &leased.spec.job_type);
    out.extend_from_slice(b",\"correlationId\":");
    json::string_or_null(out, leased.spec.correlation_id.as_deref());
    out.extend_from_slice(b",\"scheduleId\":");
    json::string_or_null(out, leased.spec.schedule_id.as_deref());
    out.extend_from_slice(b",\"scheduledFor\":");
    json::string_or_null(out, leased.spec.scheduled_for.map(Timestamp::to_iso_millis).as_deref());
    out.extend_from_slice(b",\"args\":");
    out.extend_from_slice(if leased.args.is_empty() { b"null" } else { &leased.args });
    out.push(b'}');
}

fn check_incarnation(id: WorkerId, given: Option<u64>) -> Result<(), Error> {
    match given {
        Some(given) if given != id.0 => {
            let message = "this incarnation of the worker has ended; register again";
            Err(Error::refused(Kind::Conflict, "stale_incarnation", message))
        }
        _ => Ok(()),
    }
}

/// One more than the rules allow, so that they say what is wrong.
const BEAT_JOBS_READ: usize = baton_jobs::limits::BEAT_JOBS_MAX + 1;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HeartbeatBody {
    incarnation: Option<u64>,
    wait_ms: Option<u64>,
    #[serde(default, deserialize_with = "json::up_to::<_, _, BEAT_JOBS_READ>")]
    running: Vec<Running>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Running {
    job_id: baton_jobs::JobId,
    fence: u64,
    progress: Option<RawProgress>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProgress {
    percent: f64,
    message: Option<String>,
}

impl From<RawProgress> for Progress {
    fn from(RawProgress { percent, message }: RawProgress) -> Self {
        Self { percent, message }
    }
}

/// Hears a worker: its leases run on. May wait until there is something new for it to do.
pub(in crate::routes) fn heartbeat(mut call: Call) -> Answer {
    Box::pin(async move {
        let worker = worker_id(&call)?;
        let told: HeartbeatBody =
            parsed(&mut call, "{\"running\": [{\"jobId\": id, \"fence\": number}], \"waitMs\": number}")?;
        check_incarnation(worker, told.incarnation)?;
        let held = |one: Running| HeldJob {
            job: one.job_id,
            fence: one.fence,
            progress: one.progress.map(Progress::from),
        };
        let running = told.running.into_iter().map(held).collect();
        let (beat, wait) = (Heartbeat { worker, running }, Duration::from_millis(told.wait_ms.unwrap_or(0)));
        let stopped = call.app().stopped();
        let heard = tokio::select! {
            heard = call.jobs().heartbeat(beat.clone(), wait) => heard?,
            () = stopped => call.jobs().heartbeat(beat, Duration::ZERO).await?,
        };
        Reply::ok(&json!({
            "desiredState": heard.desired,
            "graceMs": heard.grace_ms,
            "lost": heard.lost,
            "cancel": heard.cancel,
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_execution_is_written_as_it_is_read() {
        let execution: ExecutionId = "01900000-0000-7000-8000-000000000001.42".parse().unwrap();
        let mut out = Vec::new();
        write_execution(&mut out, execution);
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), execution.to_string());
    }
}
