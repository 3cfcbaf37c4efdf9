//! `POST /api/v1/jobs` and `/api/v1/jobs:batch`.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use baton_http::{Reply, moment};
use baton_jobs::limits::{BATCH_JOBS_MAX, DEPENDS_MAX, TAGS_MAX};
use baton_jobs::{
    Dependency, Enqueued, NORMAL, NewJob, OnConflict, PRIORITIES, Retry, Spec, Unique, UniqueScope, When,
};
use baton_store::IdempotencyKey;
use baton_types::Timestamp;
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};
use serde_json::value::RawValue;

use crate::call::{Answer, Call};
use crate::error::{Error, Kind};
use crate::json::{self, Kept, List};
use crate::routes::idempotency;
use crate::unknown;

/// A string that is copied only when it holds an escape.
#[derive(Debug, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl From<Text<'_>> for String {
    fn from(text: Text<'_>) -> Self {
        text.0.into_owned()
    }
}

/// A job as it was sent.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::routes) struct RawJob<'a> {
    #[serde(borrow)]
    job_type: Text<'a>,
    #[serde(borrow)]
    queue: Option<Text<'a>>,
    #[serde(borrow)]
    args: Option<Kept<'a>>,
    priority: Option<Priority>,
    run_at: Option<String>,
    delay_ms: Option<u64>,
    timeout_ms: Option<u64>,
    retry: Option<Retry>,
    unique_key: Option<String>,
    unique_scope: Option<UniqueScope>,
    unique_window_ms: Option<u64>,
    on_conflict: Option<OnConflict>,
    #[serde(borrow)]
    concurrency_key: Option<Text<'a>>,
    concurrency_limit: Option<u32>,
    correlation_id: Option<String>,
    #[serde(default, deserialize_with = "json::up_to::<_, _, TAGS_READ>")]
    tags: Vec<String>,
    parent_id: Option<String>,
    #[serde(default, deserialize_with = "json::up_to::<_, _, DEPENDS_READ>")]
    depends_on: Vec<String>,
}

/// One more than the rules allow, so that they say what is wrong.
const TAGS_READ: usize = TAGS_MAX + 1;
const DEPENDS_READ: usize = DEPENDS_MAX + 1;

/// Names that jobs of one call mostly share.
#[derive(Default)]
struct Names {
    queue: Option<Arc<str>>,
    job_type: Option<Arc<str>>,
}

/// The last name again, if it is the same.
fn shared(last: &mut Option<Arc<str>>, name: &str) -> Arc<str> {
    match last {
        Some(last) if **last == *name => Arc::clone(last),
        _ => Arc::clone(last.insert(name.into())),
    }
}

#[derive(Debug)]
enum Priority {
    Number(u8),
    Name(String),
}

impl<'de> Deserialize<'de> for Priority {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = Priority;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a name")
            }

            fn visit_u64<E>(self, number: u64) -> Result<Priority, E> {
                Ok(Priority::Number(u8::try_from(number).unwrap_or(u8::MAX)))
            }

            fn visit_str<E>(self, name: &str) -> Result<Priority, E> {
                Ok(Priority::Name(name.into()))
            }
        }

        deserializer.deserialize_any(Either)
    }
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
        self.checked_among(&mut Names::default())
    }

    fn checked_among(self, names: &mut Names) -> Result<NewJob, Error> {
        let priority = self.priority.as_ref().map_or(Ok(NORMAL), Priority::number)?;
        let when = match (self.run_at, self.delay_ms) {
            (Some(_), Some(_)) => return Err(Error::unprocessable("give runAt or delayMs, not both")),
            (Some(at), None) => When::At(moment("runAt", &at).map_err(|error| Error::from(error).of_body())?),
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
        let mut spec = Spec::new(shared(&mut names.job_type, &self.job_type.0));
        spec.timeout_ms = self.timeout_ms.unwrap_or(spec.timeout_ms);
        spec.retry = self.retry.unwrap_or_default();
        spec.concurrency_key = self.concurrency_key.map(String::from);
        spec.concurrency_limit = self.concurrency_limit;
        spec.correlation_id = self.correlation_id;
        spec.tags = self.tags;
        spec.parent_id = self.parent_id.as_deref().map(parent).transpose()?;
        Ok(NewJob {
            queue: shared(&mut names.queue, self.queue.as_ref().map_or("default", |queue| &queue.0)),
            spec,
            args: Bytes::copy_from_slice(self.args.map_or("{}", Kept::get).as_bytes()),
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
    serde_json::from_slice(text)
        .map_err(|e| Error::new(Kind::BadBody, format!("{what} is not a job: {}", unknown::explain(&e))))
}

fn write(out: &mut Vec<u8>, enqueued: &Enqueued) {
    out.extend_from_slice(b"{\"jobId\":");
    json::uuid(out, enqueued.job_id.as_uuid());
    out.extend_from_slice(b",\"state\":");
    json::string(out, enqueued.state.word());
    out.extend_from_slice(b",\"runAt\":");
    json::string_or_null(out, enqueued.run_at.map(Timestamp::to_iso_millis).as_deref());
    out.extend_from_slice(b",\"deduplicated\":");
    json::boolean(out, enqueued.deduplicated);
    out.push(b'}');
}

/// Answers with a list of items, each written by `write`.
fn items<T>(items: &[T], mut write: impl FnMut(&mut Vec<u8>, &T)) -> Reply {
    let mut out = Vec::with_capacity(16 + items.len() * 112);
    out.extend_from_slice(b"{\"items\":[");
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(&mut out, item);
    }
    out.extend_from_slice(b"]}");
    Reply::json(StatusCode::CREATED, out)
}

/// Accepts one job.
pub(in crate::routes) fn one(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let key = idempotency::key(&call, "jobs", &body)?;
        let job = read(&body, "the body")?.checked()?;
        let enqueued = call.jobs().enqueue(vec![job], key).await?;
        let Some(enqueued) = enqueued.first() else {
            return Err(Error::new(Kind::Internal, "a job was accepted and not told"));
        };
        let status = if enqueued.deduplicated { StatusCode::OK } else { StatusCode::CREATED };
        let mut out = Vec::with_capacity(128);
        write(&mut out, enqueued);
        Ok(Reply::json(status, out))
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "T: Deserialize<'de>"))]
struct Batch<T> {
    #[serde(alias = "items")]
    jobs: List<T, BATCH_JOBS_MAX>,
    atomic: Option<bool>,
}

impl<T> Batch<T> {
    fn jobs(self) -> Result<Vec<T>, Error> {
        match self.jobs {
            List::Is(jobs) => Ok(jobs),
            List::Not => Err(Error::new(Kind::BadBody, "the body is not {\"jobs\": [...]}: jobs is no list")),
            List::TooLong => {
                let message = format!("a call enqueues at most {BATCH_JOBS_MAX} jobs; split it");
                Err(Error::new(Kind::PayloadTooLarge, message))
            }
        }
    }
}

/// The jobs of a batch, each checked by itself, and whether all or none are to be accepted.
fn read_batch(body: &[u8]) -> Result<(Vec<Result<NewJob, Error>>, bool), Error> {
    let mut names = Names::default();
    // In one go; where that fails, job by job, to tell which of them is wrong.
    if let Ok(batch) = serde_json::from_slice::<Batch<RawJob<'_>>>(body) {
        let all = batch.atomic != Some(false);
        let jobs = batch.jobs()?.into_iter().map(|job| job.checked_among(&mut names));
        return Ok((jobs.collect(), all));
    }
    let batch: Batch<&RawValue> = serde_json::from_slice(body).map_err(|e| {
        Error::new(Kind::BadBody, format!("the body is not {{\"jobs\": [...]}}: {}", unknown::explain(&e)))
    })?;
    let all = batch.atomic != Some(false);
    let jobs = batch.jobs()?.into_iter().enumerate().map(|(index, raw)| {
        read(raw.get().as_bytes(), &format!("jobs[{index}]")).and_then(|job| job.checked_among(&mut names))
    });
    Ok((jobs.collect(), all))
}

/// Accepts several: all or none, or each by itself.
pub(in crate::routes) fn batch(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let key = idempotency::key(&call, "jobs:batch", &body)?;
        let (jobs, atomic) = read_batch(&body)?;
        if !atomic {
            return each(&call, jobs, key).await;
        }
        let enqueued = call.jobs().enqueue(jobs.into_iter().collect::<Result<_, Error>>()?, key).await?;
        Ok(items(&enqueued, write))
    })
}

async fn each(
    call: &Call,
    jobs: Vec<Result<NewJob, Error>>,
    key: Option<IdempotencyKey>,
) -> Result<Reply, Error> {
    if key.is_some() {
        // The key belongs to the call: another call is refused before any of its jobs is accepted.
        call.jobs().enqueue(Vec::new(), key.clone()).await?;
    }
    let mut outcomes = Vec::with_capacity(jobs.len());
    for (number, job) in jobs.into_iter().enumerate() {
        let key = key.as_ref().map(|key| key.part(number));
        outcomes.push(match job {
            Ok(job) => call.jobs().enqueue(vec![job], key).await.map_err(Error::from),
            Err(error) => Err(error),
        });
    }
    Ok(items(&outcomes, |out, outcome| match outcome.as_ref().map(|enqueued| enqueued.first()) {
        Ok(Some(enqueued)) => write(out, enqueued),
        Ok(None) => out.extend_from_slice(b"null"),
        Err(error) => {
            out.extend_from_slice(b"{\"error\":");
            json::string(out, &error.to_string());
            out.extend_from_slice(b",\"code\":");
            json::string(out, error.kind().row().code);
            out.push(b'}');
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_read_whole_or_the_job_that_is_wrong_is_named() {
        let (jobs, atomic) = read_batch(
            br#"{"jobs": [{"jobType": "a", "concurrencyKey": "k\u0031"}, {"jobType": "a", "queue": "q"}]}"#,
        )
        .unwrap();
        let jobs: Vec<NewJob> = jobs.into_iter().map(Result::unwrap).collect();
        assert!(atomic && Arc::ptr_eq(&jobs[0].spec.job_type, &jobs[1].spec.job_type));
        assert_eq!((&*jobs[0].queue, &*jobs[1].queue), ("default", "q"));
        assert_eq!(jobs[0].spec.concurrency_key.as_deref(), Some("k1"));
        let (jobs, atomic) =
            read_batch(br#"{"items": [{"jobType": "a"}, {"jobType": 5}], "atomic": false}"#).unwrap();
        assert!(!atomic && jobs[0].is_ok());
        assert!(jobs[1].as_ref().unwrap_err().to_string().starts_with("jobs[1] is not a job"));
        assert!(read_batch(b"[]").is_err());
    }

    #[test]
    fn an_answer_is_what_it_says() {
        let job_id = "01900000-0000-7000-8000-000000000001".parse().unwrap();
        let run_at = Some(Timestamp::from_micros(1_500_000));
        let accepted = Enqueued { job_id, state: baton_jobs::State::Scheduled, run_at, deduplicated: true };
        let mut out = Vec::new();
        write(&mut out, &accepted);
        let told: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let expected = serde_json::json!({
            "jobId": job_id, "state": "scheduled", "runAt": "1970-01-01T00:00:01.500Z", "deduplicated": true,
        });
        assert_eq!(told, expected);
    }
}
