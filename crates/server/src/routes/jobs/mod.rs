//! Jobs over HTTP: what producers, operators and workers do.
//!
//! Always: every answer to a worker says under which fence; what shows an old fence is told so and changes nothing;
//! an argument or a result is the caller's bytes, never parsed. Start at [`enqueue::one`], then [`workers`].

pub(super) mod change;
pub(super) mod dead_letters;
pub(super) mod enqueue;
pub(super) mod executions;
pub(super) mod logs;
pub(super) mod nodes;
pub(super) mod queues;
pub(super) mod read;
pub(super) mod rider;
pub(super) mod workers;

use baton_jobs::{JobDetail, JobError, JobId, JobView};
use baton_types::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::call::Call;
use crate::error::{Error, Kind};
use crate::unknown;

impl From<baton_jobs::Error> for Error {
    fn from(error: baton_jobs::Error) -> Self {
        use baton_jobs::Error as Jobs;
        let message = error.to_string();
        match error {
            Jobs::Invalid(_) => Self::unprocessable(message),
            Jobs::NotFound(_) => Self::not_found(message),
            Jobs::Conflict { code, .. } => Self::refused(Kind::Conflict, code, message),
            Jobs::TooLarge(_) => Self::new(Kind::PayloadTooLarge, message),
            Jobs::Full(_) => Self::new(Kind::LimitReached, message),
            Jobs::Store(error) => error.into(),
        }
    }
}

/// The body as what it should be; a body that is left out counts as `{}`.
pub(super) fn parsed<T: DeserializeOwned>(call: &mut Call, expected: &str) -> Result<T, Error> {
    let body = call.body()?;
    let text: &[u8] = if body.is_empty() { b"{}" } else { &body };
    serde_json::from_slice(text).map_err(|e| {
        Error::new(Kind::BadBody, format!("the body is not {expected}: {}", unknown::explain(&e)))
    })
}

/// The job that the path names.
fn job_id(call: &Call, place: usize) -> Result<JobId, Error> {
    let text = call.parameter(place);
    text.parse().map_err(|_| Error::not_found(format!("there is no job {text:?}: a job's id is a UUID")))
}

fn moment(at: Option<Timestamp>) -> Value {
    at.map_or(Value::Null, |at| at.to_iso_millis().into())
}

/// JSON that a caller sent, as it is.
fn raw(bytes: &[u8]) -> Value {
    let text = std::str::from_utf8(bytes).unwrap_or("null");
    serde_json::from_str::<&RawValue>(text)
        .ok()
        .and_then(|raw| serde_json::to_value(raw).ok())
        .unwrap_or(Value::Null)
}

fn error(error: Option<&JobError>) -> Value {
    error.map_or(Value::Null, |error| json!({"type": error.kind, "message": error.message}))
}

/// A job as a listing shows it.
fn row(job: &JobView) -> Value {
    let spec = &job.spec;
    json!({
        "jobId": job.id,
        "jobType": spec.job_type,
        "queue": job.queue,
        "state": job.state,
        "waitReason": job.wait_reason,
        "priority": job.priority,
        "args": raw(&job.args),
        "createdAt": job.created_at.to_iso_millis(),
        "runAt": moment(job.run_at),
        "startedAt": moment(job.started_at),
        "endedAt": moment(job.ended_at),
        "deadAt": moment(job.dead_at),
        "attempts": job.attempts,
        "executions": job.executions,
        "losses": job.losses,
        "fence": job.fence,
        "workerId": job.worker,
        "timeoutMs": spec.timeout_ms,
        "retry": spec.retry,
        "uniqueKey": spec.unique_key,
        "concurrencyKey": spec.concurrency_key,
        "concurrencyLimit": spec.concurrency_limit,
        "correlationId": spec.correlation_id,
        "tags": spec.tags,
        "parentId": spec.parent_id,
        "dependsOn": spec.depends_on,
        "error": error(job.error.as_ref()),
        "scheduleId": spec.schedule_id,
        "scheduledFor": moment(spec.scheduled_for),
    })
}

/// A job with everything that is known of it.
fn detail(detail: &JobDetail, owner: Option<&baton_jobs::Owner>) -> Value {
    let mut shown = row(&detail.job);
    let attempt = |attempt: &baton_jobs::Attempt| {
        json!({
            "executionId": attempt.execution,
            "number": attempt.number,
            "workerId": attempt.worker,
            "startedAt": attempt.started_at.to_iso_millis(),
            "endedAt": moment(attempt.ended_at),
            "outcome": attempt.outcome,
            "error": error(attempt.error.as_ref()),
        })
    };
    shown["history"] = detail.history.iter().map(attempt).collect::<Vec<_>>().into();
    shown["hasResult"] = detail.result.is_some().into();
    shown["progress"] = progress(detail.progress.as_ref());
    shown["owner"] = owner.map_or(Value::Null, |owner| json!({"nodeId": &*owner.node, "epoch": owner.epoch}));
    shown
}

fn progress(progress: Option<&baton_jobs::ProgressAt>) -> Value {
    progress.map_or(Value::Null, |told| {
        json!({"percent": told.progress.percent, "message": told.progress.message, "at": told.at.to_iso_millis()})
    })
}
