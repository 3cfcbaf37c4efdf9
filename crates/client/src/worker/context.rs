//! The context of a handler: its job, cancellation, progress and log.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::log::LogBuffer;
use super::wire::{JobLease, Level, Progress};

/// Why an execution must stop before its handler is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The job was cancelled.
    Cancelled,
    /// It exceeded its timeout.
    TimedOut,
    /// The worker stops; the job is released and goes to another.
    Drained,
    /// No server answered for almost a whole lease; the job is released. Only for
    /// [`exclusive`](super::Worker::exclusive) workers.
    Unrenewed,
    /// The server says that the lease is over: another worker has the job, or none.
    Lost,
}

/// One execution.
pub(super) struct Execution {
    pub lease: JobLease,
    pub args: Box<RawValue>,
    /// Cancelled when the handler must stop.
    pub stop: CancellationToken,
    /// Notified when there is progress to send soon.
    pub progress_changed: Arc<Notify>,
    pub log: LogBuffer,
    inner: Mutex<ExecutionState>,
}

struct ExecutionState {
    end: Option<StopReason>,
    /// Until when the lease is trusted, on the worker's clock.
    trusted_until: Duration,
    progress: Option<Progress>,
}

impl Execution {
    pub(super) fn new(
        mut lease: JobLease,
        trusted_until: Duration,
        beat: Arc<Notify>,
        log: LogBuffer,
    ) -> Self {
        let args = lease.args.take().unwrap_or_else(|| RawValue::NULL.to_owned());
        let inner = Mutex::new(ExecutionState { end: None, trusted_until, progress: None });
        Self { lease, args, stop: CancellationToken::new(), progress_changed: beat, log, inner }
    }

    fn lock(&self) -> MutexGuard<'_, ExecutionState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the handler to stop. A lost lease outweighs every other reason; otherwise the first counts.
    pub(super) fn stop_handler(&self, why: StopReason) {
        let mut inner = self.lock();
        if inner.end.is_none() || why == StopReason::Lost {
            inner.end = Some(why);
        }
        drop(inner);
        if why == StopReason::Lost {
            self.log.lease_over.cancel();
        }
        self.stop.cancel();
    }

    pub(super) fn stop_reason(&self) -> Option<StopReason> {
        self.lock().end
    }

    pub(super) fn trusted_until(&self) -> Duration {
        self.lock().trusted_until
    }

    pub(super) fn extend_trust(&self, until: Duration) {
        let mut inner = self.lock();
        inner.trusted_until = inner.trusted_until.max(until);
    }

    /// The progress that was not sent yet.
    pub(super) fn take_progress(&self) -> Option<Progress> {
        self.lock().progress.take()
    }

    /// Puts back progress that could not be sent, unless there is newer.
    pub(super) fn restore_progress(&self, progress: Progress) {
        self.lock().progress.get_or_insert(progress);
    }
}

/// A job, for its handler. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    execution: Arc<Execution>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("execution_id", &self.execution_id()).finish_non_exhaustive()
    }
}

impl Context {
    pub(super) fn new(execution: Arc<Execution>) -> Self {
        Self { execution }
    }

    /// The job's id.
    pub fn job_id(&self) -> &str {
        &self.execution.lease.job_id
    }

    /// The id of this execution; a retry has another.
    pub fn execution_id(&self) -> &str {
        &self.execution.lease.execution_id
    }

    /// Rises with every execution of the job. Pass it to the resource that the job changes, so that a stale execution
    /// cannot undo the work of a later one.
    pub fn fence(&self) -> u64 {
        self.execution.lease.fence
    }

    /// The job's type.
    pub fn job_type(&self) -> &str {
        &self.execution.lease.job_type
    }

    /// The number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.execution.lease.attempt
    }

    /// The job's timeout, if it has one.
    pub fn time_limit(&self) -> Option<Duration> {
        self.execution.lease.deadline_ms.map(Duration::from_millis)
    }

    /// The schedule that enqueued the job.
    pub fn schedule_id(&self) -> Option<&str> {
        self.execution.lease.schedule_id.as_deref()
    }

    /// The nominal time of the schedule's fire, as ISO-8601.
    pub fn scheduled_for(&self) -> Option<&str> {
        self.execution.lease.scheduled_for.as_deref()
    }

    /// The job's arguments as raw JSON.
    pub fn args(&self) -> &RawValue {
        &self.execution.args
    }

    /// Cancelled when the handler must stop, for any reason. A handler that goes on is dropped a little later.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.execution.stop
    }

    /// Why the handler must stop, once it must.
    pub fn ended(&self) -> Option<StopReason> {
        self.execution.stop_reason()
    }

    /// Reports progress. Only the newest report counts; it is sent within about a second.
    pub fn progress(&self, percent: f64, message: impl Into<String>) {
        let progress = Progress { percent: percent.clamp(0.0, 100.0), message: message.into() };
        self.execution.lock().progress = Some(progress);
        self.execution.progress_changed.notify_one();
    }

    /// Adds a line to the job's log. Waits when lines come faster than the server accepts them.
    pub async fn log(&self, level: Level, message: impl Into<String>) {
        self.execution.log.add(level, message.into()).await;
    }

    /// Adds a line at level info.
    pub async fn info(&self, message: impl Into<String>) {
        self.log(Level::Info, message).await;
    }

    /// Adds a line at level error.
    pub async fn error(&self, message: impl Into<String>) {
        self.log(Level::Error, message).await;
    }
}
