//! Workers: programs that lease jobs, run them and report their outcomes.
//!
//! A worker registers, leases as many jobs as it has room for, and sends heartbeats for them until each is reported.
//! Always: only a server's answer makes a job lost, so jobs run on while no server answers, and are reported when one
//! does. An exclusive worker stops a job before its lease ends and releases it; it trusts a lease from before it was
//! requested, on this machine's clock. A lost job is not reported. A stop lets running jobs finish, and releases
//! those that do not; a handler that does not stop when asked is dropped. Not here: when a job is retried (the server
//! decides), exactly-once effects (a worker that dies between work and report sees the job run again: use the fence).
//! Start at [`Worker`]; `session` holds what runs.

mod context;
mod execute;
mod failure;
mod handler;
mod log;
mod report;
mod session;
mod wire;

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

pub use context::{Context, StopReason};
pub use failure::Failure;
pub use handler::{HandlerFuture, HandlerResult, Next};
pub use session::WorkerStats;
pub use wire::Level;

use handler::Handlers;

use crate::{Client, Error};

/// The default queue.
const QUEUE: &str = "default";
/// Jobs at once by default.
const CONCURRENCY: usize = 10;
/// The limit of jobs at once; use more processes beyond it.
const CONCURRENCY_MAX: usize = 10_000;
/// How long running jobs may go on after the stop.
const DRAIN: Duration = Duration::from_secs(30);

/// A worker under construction; [`run`](Self::run) starts it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # let server = baton_server::testing().await?;
/// # let baton = baton_client::Client::new(server.url())?;
/// use baton_client::{CancellationToken, worker::Failure};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Mail {
///     to: String,
/// }
///
/// let job = baton.job("email.send").args(&Mail { to: "a@example.com".into() }).enqueue().await?;
///
/// let stop = CancellationToken::new();
/// # let stopped = stop.clone();
/// baton
///     .worker()
///     .handle("email.send", move |mail: Mail, context| {
///         # let stop = stopped.clone();
///         async move {
///             context.info(format!("sending to {}", mail.to)).await;
///             context.progress(50.0, "half way");
///             # stop.cancel();
///             Ok::<_, Failure>("sent")
///         }
///     })
///     .stop_on(stop)
///     .run()
///     .await?;
/// let job = baton.jobs().get(&job.job_id).await?;
/// assert_eq!(job["state"], "completed");
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is worked on until it is run"]
#[derive(Clone)]
pub struct Worker {
    client: Client,
    name: String,
    queues: Vec<String>,
    labels: BTreeMap<String, String>,
    concurrency: usize,
    drain: Duration,
    is_exclusive: bool,
    stop: CancellationToken,
    handlers: Handlers,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("name", &self.name)
            .field("queues", &self.queues)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A worker of this server.
    pub fn worker(&self) -> Worker {
        Worker {
            client: self.clone(),
            name: "worker".into(),
            queues: Vec::new(),
            labels: BTreeMap::new(),
            concurrency: CONCURRENCY,
            drain: DRAIN,
            is_exclusive: false,
            stop: CancellationToken::new(),
            handlers: Handlers::default(),
        }
    }
}

impl Worker {
    /// A display name, which need not be unique.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Serves this queue; call it again for more. `default` when none is given.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queues.push(queue.into());
        self
    }

    /// Adds a label for operators.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// Runs this many jobs at once; 10 by default.
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.concurrency = jobs;
        self
    }

    /// How long running jobs may go on after the stop, before they are released; 30 seconds by default.
    pub fn drain(mut self, longest: Duration) -> Self {
        self.drain = longest;
        self
    }

    /// Stops a job before its lease ends when no server answers, and releases it as soon as one does. So no two
    /// workers run it at once, as long as its handler stops when asked. Otherwise a job runs on until a server says
    /// that it is lost: an outage of all servers costs nothing, but a worker that alone is cut off runs its job
    /// beside the next worker.
    pub fn exclusive(mut self) -> Self {
        self.is_exclusive = true;
        self
    }

    /// Stops when this token is cancelled.
    pub fn stop_on(mut self, token: CancellationToken) -> Self {
        self.stop = token;
        self
    }

    /// Stops at SIGTERM and at SIGINT.
    pub fn stop_on_signals(self) -> Result<Self, Error> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen =
            |kind| signal(kind).map_err(|error| Error::Invalid(format!("cannot hear signals: {error}")));
        let (mut terminate, mut interrupt) =
            (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let stop = self.stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            stop.cancel();
        });
        Ok(self)
    }

    /// Handles jobs of this type. `Ok` completes a job with a result, `Err` fails it.
    pub fn handle<A, R, F, W>(mut self, job_type: impl Into<String>, handler: F) -> Self
    where
        A: DeserializeOwned + Send,
        R: Serialize,
        F: Fn(A, Context) -> W + Send + Sync + 'static,
        W: Future<Output = Result<R, Failure>> + Send + 'static,
    {
        self.handlers.add(job_type.into(), handler);
        self
    }

    /// Handles jobs of this type, with raw JSON arguments and result.
    pub fn handle_raw<F, W>(mut self, job_type: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Context) -> W + Send + Sync + 'static,
        W: Future<Output = HandlerResult> + Send + 'static,
    {
        self.handlers.add_raw(job_type.into(), handler);
        self
    }

    /// Handles jobs of every type without a handler of its own.
    pub fn handle_any<F, W>(mut self, handler: F) -> Self
    where
        F: Fn(Context) -> W + Send + Sync + 'static,
        W: Future<Output = HandlerResult> + Send + 'static,
    {
        self.handlers.set_any(handler);
        self
    }

    /// Wraps every handler: sees the job before it and the outcome after it, and may change both. The middleware that
    /// is added first is the outermost.
    pub fn wrap<F, W>(mut self, middleware: F) -> Self
    where
        F: Fn(Context, Next) -> W + Send + Sync + 'static,
        W: Future<Output = HandlerResult> + Send + 'static,
    {
        self.handlers.wrap(middleware);
        self
    }

    /// Runs until stopped. An unreachable server is an error at the start, and is waited for later.
    pub async fn run(mut self) -> Result<WorkerStats, Error> {
        if self.handlers.is_empty() {
            return Err(Error::Invalid("a worker needs a handler".into()));
        }
        if !(1..=CONCURRENCY_MAX).contains(&self.concurrency) {
            let given = self.concurrency;
            return Err(Error::Invalid(format!(
                "concurrency is between 1 and {CONCURRENCY_MAX}, not {given}"
            )));
        }
        if self.queues.is_empty() {
            self.queues.push(QUEUE.into());
        }
        session::run(self).await
    }
}
