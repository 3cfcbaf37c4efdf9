//! `POST /api/v1/jobs` and `/api/v1/jobs:batch`.

use std::borrow::Cow;
use std::time::Duration;

use baton_jobs::{
    Dependency, Enqueued, NORMAL, NewJob, OnConflict, PRIORITIES, Retry, Spec, Unique, UniqueScope, When,
};
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::call::{Answer, Call};
use crate::error::{Error, Kind};
use crate::query;
use crate::reply::Reply;

/// A job as it was sent.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::routes) struct RawJob<'a> {
    #[serde(borrow)]
    job_type: Cow<'a, str>,
    #[serde(borrow)]
    queue: Option<Cow<'a, str>>,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
    priority: Option<Priority>,
    run_at: Option<String>,
    delay_ms: Option<u64>,
    timeout_ms: Option<u64>,
    retry: Option<Retry>,
    unique_key: Option<String>,
    unique_scope: Option<UniqueScope>,
    unique_window_ms: Option<u64>,
    on_conflict: Option<OnConflict>,
    concurrency_key: Option<String>,
    concurrency_limit: Option<u32>,
    correlation_id: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    parent_id: Option<String>,
    #[serde(default)]
    depends_on: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Priority {
    Number(u8),
    Name(String),
}

impl Priority {
    fn number(&self) -> Result<u8, Error> {
        let named = |name: &String| PRIORITIES.iter().zip(0u8..).find(|(known, _)| *known == name);
        match self {
            Self::Number(number) => Some(*number),
            Self::Name(name) => named(name).map(|(_, number)| number),
        }
        .filter(|number| usize::from(*number) < PRIORITIES.len())
        .ok_or_else(|| Error::unprocessable("priority is 0 to 3, or low, normal, high or critical"))
    }
}

impl RawJob<'_> {
    /// Checks what only HTTP knows of; the rest is checked with the rules.
    pub(in crate::routes) fn checked(self) -> Result<NewJob, Error> {
        let priority = self.priority.as_ref().map_or(Ok(NORMAL), Priority::number)?;
        let when = match (self.run_at, self.delay_ms) {
            (Some(_), Some(_)) => return Err(Error::unprocessable("give runAt or delayMs, not both")),
            (Some(at), None) => When::At(query::moment("runAt", &at).map_err(Error::of_body)?),
            (None, Some(delay)) => When::After(Duration::from_millis(delay)),
            (None, None) => When::Now,
        };
        let window = Duration::from_millis(self.unique_window_ms.unwrap_or(0));
        let scope = self.unique_scope;
        let unique = self.unique_key.map(|key| Unique {
            key,
            scope: scope.unwrap_or(if window.is_zero() { UniqueScope::Active } else { UniqueScope::Window }),
            window,
            on_conflict: self.on_conflict.unwrap_or_default(),
        });
        let parent = |text: &str| {
            text.parse().map_err(|_| Error::unprocessable(format!("parentId {text:?} is no job id")))
        };
        let mut spec = Spec::new(self.job_type);
        spec.timeout_ms = self.timeout_ms.unwrap_or(spec.timeout_ms);
        spec.retry = self.retry.unwrap_or_default();
        spec.concurrency_key = self.concurrency_key;
        spec.concurrency_limit = self.concurrency_limit;
        spec.correlation_id = self.correlation_id;
        spec.tags = self.tags;
        spec.parent_id = self.parent_id.as_deref().map(parent).transpose()?;
        Ok(NewJob {
            queue: self.queue.map_or_else(|| "default".to_owned(), Cow::into_owned),
            spec,
            args: Bytes::copy_from_slice(self.args.map_or("{}", RawValue::get).as_bytes()),
            priority,
            when,
            unique,
            depends_on: self.depends_on.iter().map(|text| dependency(text)).collect::<Result<_, Error>>()?,
        })
    }
}

/// A job's id, or `#` and the place of another job of the same call.
fn dependency(text: &str) -> Result<Dependency, Error> {
    let wrong = || {
        Error::unprocessable(format!(
            "dependsOn names {text:?}: give a job's id, or # and a place in the call"
        ))
    };
    match text.strip_prefix('#') {
        Some(place) => place.parse().map(Dependency::Item).map_err(|_| wrong()),
        None => text.parse().map(Dependency::Job).map_err(|_| wrong()),
    }
}

pub(in crate::routes) fn read<'a>(text: &'a [u8], what: &str) -> Result<RawJob<'a>, Error> {
    serde_json::from_slice(text).map_err(|e| Error::new(Kind::BadBody, format!("{what} is not a job: {e}")))
}

pub(in crate::routes) fn shown(enqueued: &Enqueued) -> Value {
    json!({
        "jobId": enqueued.job_id,
        "state": enqueued.state,
        "runAt": super::moment(enqueued.run_at),
        "deduplicated": enqueued.deduplicated,
    })
}

/// The key under which a call may be repeated: a header, or a query parameter.
pub(in crate::routes) fn idempotency_key(call: &Call) -> Result<Option<String>, Error> {
    let key = match call.idempotency_key() {
        Some(key) => Some(key.to_owned()),
        None => call.query()?.owned("idempotencyKey"),
    };
    if key.as_ref().is_some_and(|key| key.len() > 255) {
        return Err(Error::invalid("an idempotency key has at most 255 bytes"));
    }
    Ok(key)
}

/// Accepts one job.
pub(in crate::routes) fn one(mut call: Call) -> Answer {
    Box::pin(async move {
        let key = idempotency_key(&call)?;
        let body = call.body()?;
        let job = read(&body, "the body")?.checked()?;
        let enqueued = call.jobs().enqueue(vec![job], key).await?;
        let Some(enqueued) = enqueued.first() else {
            return Err(Error::new(Kind::Internal, "a job was accepted and not told"));
        };
        let status = if enqueued.deduplicated { StatusCode::OK } else { StatusCode::CREATED };
        Reply::of(status, &shown(enqueued))
    })
}

#[derive(Deserialize)]
struct Batch<'a> {
    #[serde(borrow, alias = "items")]
    jobs: Vec<&'a RawValue>,
    atomic: Option<bool>,
}

/// Accepts several: all or none, or each by itself.
pub(in crate::routes) fn batch(mut call: Call) -> Answer {
    Box::pin(async move {
        let key = idempotency_key(&call)?;
        let body = call.body()?;
        let batch: Batch<'_> = serde_json::from_slice(&body)
            .map_err(|e| Error::new(Kind::BadBody, format!("the body is not {{\"jobs\": [...]}}: {e}")))?;
        let job = |(index, raw): (usize, &&RawValue)| {
            read(raw.get().as_bytes(), &format!("jobs[{index}]")).and_then(RawJob::checked)
        };
        let jobs = batch.jobs.iter().enumerate().map(job);
        if batch.atomic == Some(false) {
            return each(&call, jobs.collect()).await;
        }
        let enqueued = call.jobs().enqueue(jobs.collect::<Result<_, Error>>()?, key).await?;
        Reply::of(StatusCode::CREATED, &json!({"items": enqueued.iter().map(shown).collect::<Vec<_>>()}))
    })
}

async fn each(call: &Call, jobs: Vec<Result<NewJob, Error>>) -> Result<Reply, Error> {
    if jobs.len() > baton_jobs::limits::BATCH_JOBS_MAX {
        let message =
            format!("a call enqueues at most {} jobs; split it", baton_jobs::limits::BATCH_JOBS_MAX);
        return Err(Error::new(Kind::PayloadTooLarge, message));
    }
    let mut items = Vec::with_capacity(jobs.len());
    for job in jobs {
        let outcome = match job {
            Ok(job) => call.jobs().enqueue(vec![job], None).await.map_err(Error::from),
            Err(error) => Err(error),
        };
        items.push(match outcome.as_ref().map(|enqueued| enqueued.first()) {
            Ok(Some(enqueued)) => shown(enqueued),
            Ok(None) => Value::Null,
            Err(error) => json!({"error": error.to_string(), "code": error.kind().row().code}),
        });
    }
    Reply::of(StatusCode::CREATED, &json!({"items": items}))
}
