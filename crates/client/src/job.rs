//! Jobs for producers: enqueue, read, cancel and retry them.
//!
//! Always: an enqueue carries an idempotency key, so that a retried call makes no second job. The server defines a
//! job's JSON. Not here: running jobs ([`worker`](crate::worker)). Start at [`Client::job`].

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::uri::PathAndQuery;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::connection::ApiCall;
use crate::path::PathBuilder;
use crate::retry::RetryPolicy;
use crate::{Client, Error, Timestamp};

/// The extra time of a long poll beyond its wait.
const WAIT_GRACE: Duration = Duration::from_secs(5);

/// A job under construction, sent by [`enqueue`](Self::enqueue).
#[derive(Clone, Debug)]
#[must_use = "nothing is enqueued until it is sent"]
pub struct Enqueue {
    client: Client,
    fields: Map<String, Value>,
    problem: Option<String>,
}

/// The answer to an enqueue.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Enqueued {
    /// Its id.
    pub job_id: String,
    /// Its state.
    pub state: String,
    /// Whether it existed already.
    #[serde(default)]
    pub deduplicated: bool,
}

impl Enqueue {
    fn set(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.into(), value.into());
        self
    }

    /// Its queue; `default` by default.
    pub fn queue(self, queue: impl Into<String>) -> Self {
        self.set("queue", queue.into())
    }

    /// Its arguments.
    pub fn args(mut self, args: &impl Serialize) -> Self {
        match serde_json::to_value(args) {
            Ok(args) => self.set("args", args),
            Err(error) => {
                self.problem = Some(format!("the arguments are no JSON: {error}"));
                self
            }
        }
    }

    /// From 0, low, to 3, critical; 1 by default.
    pub fn priority(self, priority: u8) -> Self {
        self.set("priority", priority)
    }

    /// Runs it after this delay at the earliest.
    pub fn delay(self, delay: Duration) -> Self {
        self.set("delayMs", millis(delay))
    }

    /// Runs it at this time at the earliest.
    pub fn run_at(self, at: Timestamp) -> Self {
        self.set("runAt", at.to_iso_millis())
    }

    /// The timeout of one execution.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.set("timeoutMs", millis(timeout))
    }

    /// How often it is retried after a failure.
    pub fn retries(mut self, retries: u32) -> Self {
        let retry = self.fields.entry("retry").or_insert_with(|| json!({}));
        retry["maxRetries"] = retries.into();
        self
    }

    /// Allows no second job with this key until the first has ended.
    pub fn unique_key(self, key: impl Into<String>) -> Self {
        self.set("uniqueKey", key.into())
    }

    /// At most `limit` jobs with this key run at once.
    pub fn concurrency_key(self, key: impl Into<String>, limit: u32) -> Self {
        self.set("concurrencyKey", key.into()).set("concurrencyLimit", limit)
    }

    /// Adds a tag for searches.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        let tags = self.fields.entry("tags").or_insert_with(|| json!([]));
        if let Some(tags) = tags.as_array_mut() {
            tags.push(tag.into().into());
        }
        self
    }

    /// Your own id for it.
    pub fn correlation_id(self, id: impl Into<String>) -> Self {
        self.set("correlationId", id.into())
    }

    /// Sets any other field of the API.
    pub fn field(self, name: &str, value: Value) -> Self {
        self.set(name, value)
    }

    /// Sends it.
    pub async fn enqueue(self) -> Result<Enqueued, Error> {
        if let Some(problem) = self.problem {
            return Err(Error::Invalid(problem));
        }
        let path = PathAndQuery::from_static("/api/v1/jobs");
        let answer = self.client.post_once(path, &self.fields, "").await?;
        answer.parse()
    }
}

/// Which jobs to list.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// Parameters of the listing, as the API names them: `state`, `queue`, `jobType`, `tag`, `scheduleId`, …
    pub terms: Vec<(&'static str, String)>,
    /// The cursor of an earlier page.
    pub cursor: Option<String>,
    /// Jobs of one page.
    pub limit: Option<u64>,
}

/// Lines of a job's log.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogPage {
    /// The lines, in order.
    pub lines: Vec<Value>,
    /// The position of the last line, to ask for the lines after it.
    pub after: u64,
    /// Whether there are more.
    pub more: bool,
    /// The job's state.
    pub state: String,
}

/// The jobs of a server.
#[derive(Clone, Debug)]
pub struct Jobs {
    client: Client,
}

impl Client {
    /// A job of this type.
    pub fn job(&self, job_type: impl Into<String>) -> Enqueue {
        let fields = Map::from_iter([("jobType".to_owned(), Value::String(job_type.into()))]);
        Enqueue { client: self.clone(), fields, problem: None }
    }

    /// The jobs of this server.
    pub fn jobs(&self) -> Jobs {
        Jobs { client: self.clone() }
    }

    /// All workers.
    pub async fn workers(&self) -> Result<Vec<Value>, Error> {
        let path = PathAndQuery::from_static("/api/v1/workers");
        let mut answer: Value = self.call(Method::GET, path, Bytes::new(), "").await?.parse()?;
        Ok(answer["workers"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }
}

impl Jobs {
    fn path(id: &str) -> PathBuilder {
        PathBuilder::new("/api/v1/jobs").segment(id)
    }

    /// One job with its attempts.
    pub async fn get(&self, id: &str) -> Result<Value, Error> {
        self.client.call(Method::GET, Self::path(id).build()?, Bytes::new(), "").await?.parse()
    }

    /// The result of a job.
    pub async fn result(&self, id: &str) -> Result<Value, Error> {
        let path = Self::path(id).literal("/result").build()?;
        self.client.call(Method::GET, path, Bytes::new(), "").await?.parse()
    }

    /// A page of jobs, the newest first: `jobs`, and `nextCursor` when there are more.
    pub async fn list(&self, filter: &JobFilter) -> Result<Value, Error> {
        let mut path = PathBuilder::new("/api/v1/jobs");
        for (name, value) in &filter.terms {
            path = path.query(name, value);
        }
        path = path.optional_query("cursor", filter.cursor.as_deref());
        if let Some(limit) = filter.limit {
            path = path.number_query("limit", limit);
        }
        self.client.call(Method::GET, path.build()?, Bytes::new(), "").await?.parse()
    }

    /// The job once it has ended, or its present state when `longest` has passed.
    pub async fn wait(&self, id: &str, longest: Duration) -> Result<Value, Error> {
        let call = ApiCall {
            method: Method::GET,
            path: Self::path(id).literal("/wait").number_query("timeoutMs", millis(longest)).build()?,
            body: Bytes::new(),
            timeout: longest + WAIT_GRACE,
            retry_policy: RetryPolicy::Poll,
            routing_key: "",
            idempotency_key: None,
        };
        self.client.transport().call(call).await?.parse()
    }

    /// Cancels a job; `force` does not wait for its worker.
    pub async fn cancel(&self, id: &str, reason: Option<&str>, force: bool) -> Result<Value, Error> {
        let path = Self::path(id).literal("/cancel").build()?;
        self.client.post(path, &json!({"reason": reason, "force": force}), "").await?.parse()
    }

    /// Retries a job that has ended.
    pub async fn retry(&self, id: &str) -> Result<Value, Error> {
        let path = Self::path(id).literal("/retry").build()?;
        self.client.post_once(path, &json!({"resetAttempts": true}), "").await?.parse()
    }

    /// Lines of a job's log after a position.
    pub async fn logs(&self, id: &str, after: u64) -> Result<LogPage, Error> {
        let path = Self::path(id).literal("/logs").number_query("after", after);
        self.client.call(Method::GET, path.build()?, Bytes::new(), "").await?.parse()
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
