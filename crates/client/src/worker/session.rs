//! One registration, with the loops that lease jobs and send heartbeats.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_env::{BootClock, Clock, Stopwatch};
use bytes::Bytes;
use http::Method;
use serde_json::Value;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::Worker;
use super::context::{Execution, StopReason};
use super::execute::execute;
use super::handler::Handlers;
use super::log::LogBuffer;
use super::report::{self, PendingReport, ReportAnswer};
use super::wire::{
    HeartbeatRequest, HeartbeatResponse, JobLease, LeaseRequest, LeaseResponse, Outcome, Progress,
    RegistrationRequest, RegistrationResponse, RunningJob, millis,
};
use crate::connection::ApiCall;
use crate::path::PathBuilder;
use crate::retry::{self, RetryPolicy};
use crate::{Client, Error};

/// How long one lease call waits at the server, at most.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// The extra time of a long poll beyond its wait.
const WAIT_GRACE: Duration = Duration::from_secs(5);
/// The shortest time between two empty lease calls, for servers that answer at once although asked to wait.
const EMPTY_LEASE_MIN: Duration = Duration::from_millis(100);
/// Jobs of one lease call.
const LEASES_MAX: usize = 1_000;
/// Reports that wait to be sent.
const REPORTS_WAITING_MAX: usize = 10_000;
/// The least time between two progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// How long handlers have to stop at the end of a drain.
const STOP_WAIT: Duration = Duration::from_secs(20);

/// The statistics of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// Jobs that it completed.
    pub succeeded: u64,
    /// Jobs that failed, timed out or were cancelled.
    pub failed: u64,
    /// Jobs that it released.
    pub released: u64,
    /// Jobs that were lost, or whose report was refused.
    pub lost: u64,
}

/// Why a session ended.
enum SessionEnd {
    Stopped,
    /// The server has deleted this worker's registration.
    Forgotten,
}

/// Registers and runs, again when the server has deleted the registration, until stopped.
pub(super) async fn run(worker: Worker) -> Result<WorkerStats, Error> {
    let worked = Arc::new(WorkerCounters::default());
    let mut registered = register(&worker).await?;
    loop {
        let session = Session::new(&worker, &registered, Arc::clone(&worked));
        match session.work().await? {
            SessionEnd::Stopped => return Ok(worked.read()),
            SessionEnd::Forgotten => registered = register_again(&worker).await?,
        }
    }
}

async fn register(worker: &Worker) -> Result<RegistrationResponse, Error> {
    let registration = RegistrationRequest {
        name: &worker.name,
        queues: &worker.queues,
        job_types: worker.handlers.types(),
        max_concurrency: worker.concurrency,
        labels: &worker.labels,
        version: env!("CARGO_PKG_VERSION"),
    };
    worker.client.post(PathBuilder::new("/api/v1/workers").build()?, &registration, "").await?.parse()
}

async fn register_again(worker: &Worker) -> Result<RegistrationResponse, Error> {
    let mut tries = 0;
    loop {
        match register(worker).await {
            Err(error) if error.is_temporary() => {
                baton_env::sleep(retry::backoff(tries, &error, baton_env::random_u64())).await;
                tries += 1;
            }
            outcome => return outcome,
        }
    }
}

#[derive(Debug, Default)]
struct WorkerCounters {
    succeeded: AtomicU64,
    failed: AtomicU64,
    released: AtomicU64,
    lost: AtomicU64,
}

impl WorkerCounters {
    fn read(&self) -> WorkerStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WorkerStats {
            succeeded: read(&self.succeeded),
            failed: read(&self.failed),
            released: read(&self.released),
            lost: read(&self.lost),
        }
    }
}

/// One registration.
pub(super) struct Session {
    client: Client,
    id: String,
    incarnation: Value,
    heartbeat: Duration,
    /// How long one lease call waits. A lease is trusted from before the call, so this is only part of it.
    wait: Duration,
    concurrency: usize,
    drain: Duration,
    is_exclusive: bool,
    handlers: Handlers,
    clock: BootClock,
    running: Mutex<HashMap<String, Arc<Execution>>>,
    reports: mpsc::Sender<PendingReport>,
    /// Notified when there is progress to send.
    beat: Arc<Notify>,
    /// Cancelled when the worker takes no more jobs.
    draining: CancellationToken,
    /// Cancelled when the server has deleted the registration.
    forgotten: CancellationToken,
    tally: Arc<WorkerCounters>,
}

impl Session {
    fn new(worker: &Worker, registered: &RegistrationResponse, tally: Arc<WorkerCounters>) -> Arc<Self> {
        let (reports, entries) = mpsc::channel(REPORTS_WAITING_MAX);
        // Ends with the session, when the last sender is gone.
        tokio::spawn(report::run(worker.client.clone(), entries));
        Arc::new(Self {
            client: worker.client.clone(),
            id: registered.worker_id.clone(),
            incarnation: registered.incarnation.clone(),
            heartbeat: Duration::from_millis(registered.heartbeat_ms.max(100)),
            wait: WAIT_MAX.min(Duration::from_millis(registered.lease_ms) / 3),
            concurrency: worker.concurrency,
            drain: worker.drain,
            is_exclusive: worker.is_exclusive,
            handlers: worker.handlers.clone(),
            clock: BootClock::default(),
            running: Mutex::default(),
            reports,
            beat: Arc::new(Notify::new()),
            draining: worker.stop.child_token(),
            forgotten: CancellationToken::new(),
            tally,
        })
    }

    async fn work(self: &Arc<Self>) -> Result<SessionEnd, Error> {
        let tasks = TaskTracker::new();
        // Dropping a worker instead of stopping it drops its jobs.
        let dropped = CancellationToken::new();
        let _drop = dropped.clone().drop_guard();
        let beating = AbortOnDropHandle::new(tokio::spawn(Arc::clone(self).run_heartbeats()));
        let leasing = self.lease_jobs(&tasks, &dropped).await;
        tasks.close();
        if self.forgotten.is_cancelled() || leasing.is_err() {
            self.end_all(StopReason::Lost);
            tasks.wait().await;
            return leasing.map(|()| SessionEnd::Forgotten);
        }
        // Jobs that do not finish in time are stopped and released.
        if tokio::time::timeout(self.drain, tasks.wait()).await.is_err() {
            self.end_all(StopReason::Drained);
            if tokio::time::timeout(STOP_WAIT, tasks.wait()).await.is_err() {
                tracing::warn!("some jobs could not be given back; they go to others when their leases end");
            }
        }
        drop(beating);
        self.deregister().await;
        Ok(SessionEnd::Stopped)
    }

    /// Leases jobs while there is room, until the worker drains or its registration is deleted.
    async fn lease_jobs(
        self: &Arc<Self>,
        tasks: &TaskTracker,
        dropped: &CancellationToken,
    ) -> Result<(), Error> {
        let places = Arc::new(Semaphore::new(self.concurrency));
        let mut failures = 0;
        loop {
            let place = tokio::select! {
                biased;
                () = self.until_draining_or_forgotten() => return Ok(()),
                place = Arc::clone(&places).acquire_owned() => place,
            };
            let Ok(place) = place else { return Ok(()) };
            let max = (1 + places.available_permits()).min(LEASES_MAX);
            let asked = Stopwatch::start();
            match self.lease(max).await {
                Ok(leased) if leased.is_empty() => {
                    failures = 0;
                    let rest = EMPTY_LEASE_MIN.saturating_sub(asked.elapsed());
                    let _ = tokio::time::timeout(rest, self.until_draining_or_forgotten()).await;
                }
                Ok(leased) => {
                    failures = 0;
                    let mut place = Some(place);
                    for (lease, trusted_until) in leased {
                        let free = || Arc::clone(&places).try_acquire_owned().ok();
                        let job = self.start(lease, trusted_until, place.take().or_else(free));
                        tasks.spawn(dropped.clone().run_until_cancelled_owned(job));
                    }
                }
                Err(Error::NotFound(_)) => self.forgotten.cancel(),
                Err(error) if error.is_temporary() => {
                    tracing::warn!(%error, "cannot lease jobs; trying again");
                    let wait = retry::backoff(failures, &error, baton_env::random_u64());
                    let _ = tokio::time::timeout(wait, self.until_draining_or_forgotten()).await;
                    failures += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn until_draining_or_forgotten(&self) {
        tokio::select! {
            () = self.draining.cancelled() => {}
            () = self.forgotten.cancelled() => {}
        }
    }

    /// One lease call. A worker that starts to drain announces it, and the server ends the call: to abandon the call
    /// might lose jobs in flight.
    async fn lease(&self, max: usize) -> Result<Vec<(JobLease, Duration)>, Error> {
        let body =
            serde_json::to_vec(&LeaseRequest { max, wait_ms: millis(self.wait) }).map_err(Error::Payload)?;
        let asked_at = self.clock.elapsed();
        let call = ApiCall {
            method: Method::POST,
            path: self.path("/lease")?,
            body: body.into(),
            timeout: self.wait + WAIT_GRACE,
            retry_policy: RetryPolicy::Unsent,
            routing_key: &self.id,
            idempotency_key: None,
        };
        let mut answer = std::pin::pin!(self.client.transport().call(call));
        let answer = tokio::select! {
            answer = &mut answer => answer,
            () = self.draining.cancelled() => {
                self.announce_drain().await;
                answer.await
            }
        };
        let leases = answer?.parse::<LeaseResponse>()?.leases;
        let trusted = |lease: JobLease| {
            let until = asked_at + Duration::from_millis(lease.lease_ms).saturating_sub(self.margin());
            (lease, until)
        };
        Ok(leases.into_iter().map(trusted).collect())
    }

    /// Takes a job on; returns the future that runs it.
    fn start(
        self: &Arc<Self>,
        lease: JobLease,
        trusted_until: Duration,
        place: Option<OwnedSemaphorePermit>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let log = LogBuffer::new(self.client.clone(), lease.execution_id.clone());
        let execution = Arc::new(Execution::new(lease, trusted_until, Arc::clone(&self.beat), log));
        self.lock_running().insert(execution.lease.job_id.clone(), Arc::clone(&execution));
        if self.draining.is_cancelled() {
            execution.stop_handler(StopReason::Drained);
        }
        let session = Arc::clone(self);
        async move {
            execute(session, execution).await;
            drop(place);
        }
    }

    /// Renews the leases of all jobs, and applies the answers.
    async fn run_heartbeats(self: Arc<Self>) {
        tokio::select! {
            () = self.poll_heartbeats() => {}
            () = self.send_progress() => {}
        }
    }

    /// Sends heartbeats, one call after the other. Each waits at the server for a change.
    async fn poll_heartbeats(&self) {
        loop {
            // The answer renews leases from the time of the request, so with jobs the call waits less.
            let is_idle = self.lock_running().is_empty();
            let wait = if is_idle { self.heartbeat } else { self.heartbeat / 2 };
            let asked = Stopwatch::start();
            let is_news = match self.send_heartbeat(wait).await {
                Ok(is_news) => is_news,
                Err(Error::NotFound(_)) => {
                    self.forgotten.cancel();
                    self.end_all(StopReason::Lost);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot beat");
                    false
                }
            };
            // A server that does not wait, or stops, answers early.
            let rest = if is_news { EMPTY_LEASE_MIN } else { wait };
            baton_env::sleep(rest.saturating_sub(asked.elapsed())).await;
        }
    }

    /// Sends progress soon, but not every report.
    async fn send_progress(&self) {
        loop {
            self.beat.notified().await;
            baton_env::sleep(PROGRESS_INTERVAL).await;
            if let Err(error) = self.send_heartbeat(Duration::ZERO).await {
                tracing::warn!(%error, "cannot tell progress");
            }
        }
    }

    /// Sends a heartbeat, and waits at the server for a change. Returns whether there is one.
    async fn send_heartbeat(&self, wait: Duration) -> Result<bool, Error> {
        let executions: Vec<_> = self.lock_running().values().cloned().collect();
        let told: Vec<_> = executions.iter().map(|execution| execution.take_progress()).collect();
        let pulse = |(execution, progress): (&Arc<Execution>, &Option<Progress>)| RunningJob {
            job_id: execution.lease.job_id.clone(),
            fence: execution.lease.fence,
            progress: progress.clone(),
        };
        let running = executions.iter().zip(&told).map(pulse).collect();
        let asked_at = self.clock.elapsed();
        let beat = HeartbeatRequest { incarnation: &self.incarnation, wait_ms: millis(wait), running };
        let body = serde_json::to_vec(&beat).map_err(Error::Payload)?;
        let call = ApiCall {
            method: Method::POST,
            path: self.path("/heartbeat")?,
            body: body.into(),
            // A heartbeat that takes longer is worth less than the next one.
            timeout: wait + self.heartbeat,
            retry_policy: RetryPolicy::Poll,
            routing_key: &self.id,
            idempotency_key: None,
        };
        let beaten = match self.client.transport().call(call).await {
            Ok(answer) => answer.parse::<HeartbeatResponse>()?,
            Err(error) => {
                for (execution, progress) in executions.iter().zip(told) {
                    progress.into_iter().for_each(|progress| execution.restore_progress(progress));
                }
                return Err(error);
            }
        };
        self.apply_heartbeat(&beaten, &executions, asked_at);
        Ok(!beaten.cancel.is_empty() || !beaten.lost.is_empty())
    }

    /// Applies the answer to a heartbeat.
    fn apply_heartbeat(&self, beaten: &HeartbeatResponse, executions: &[Arc<Execution>], asked_at: Duration) {
        for execution in executions {
            let id = &execution.lease.job_id;
            if beaten.lost.contains(id) {
                execution.stop_handler(StopReason::Lost);
                continue;
            }
            let life = Duration::from_millis(execution.lease.lease_ms).saturating_sub(self.margin());
            execution.extend_trust(asked_at + life);
        }
        // Some of them may have arrived after the heartbeat.
        let cancelled = {
            let running = self.lock_running();
            beaten.cancel.iter().filter_map(|id| running.get(id).cloned()).collect::<Vec<_>>()
        };
        cancelled.iter().for_each(|execution| execution.stop_handler(StopReason::Cancelled));
        match beaten.desired_state.as_str() {
            "draining" => self.draining.cancel(),
            "stopping" => {
                self.draining.cancel();
                executions.iter().for_each(|execution| execution.stop_handler(StopReason::Drained));
            }
            _ => {}
        }
    }

    async fn deregister(&self) {
        let told = async { self.client.call(Method::DELETE, self.path("")?, Bytes::new(), &self.id).await };
        if let Err(error) = told.await {
            tracing::debug!(%error, "the worker was not deregistered; it is forgotten in time");
        }
    }

    async fn announce_drain(&self) {
        let told = async { self.client.post(self.path("/drain")?, &serde_json::json!({}), &self.id).await };
        if let Err(error) = told.await {
            tracing::debug!(%error, "the server was not told of the drain");
        }
    }

    fn path(&self, rest: &str) -> Result<http::uri::PathAndQuery, Error> {
        PathBuilder::new("/api/v1/workers").segment(&self.id).literal(rest).build()
    }

    fn lock_running(&self) -> MutexGuard<'_, HashMap<String, Arc<Execution>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_all(&self, why: StopReason) {
        let executions: Vec<_> = self.lock_running().values().cloned().collect();
        executions.iter().for_each(|execution| execution.stop_handler(why));
    }

    /// Removes an execution that has ended; no answer when it was lost.
    pub(super) fn finish_execution(
        &self,
        execution: &Arc<Execution>,
        verdict: Option<(Outcome, ReportAnswer)>,
    ) {
        let mut running = self.lock_running();
        // The same job may have returned under a new fence.
        if running.get(&execution.lease.job_id).is_some_and(|other| Arc::ptr_eq(other, execution)) {
            running.remove(&execution.lease.job_id);
        }
        let counter = match verdict {
            Some((Outcome::Succeeded, ReportAnswer::Accepted)) => &self.tally.succeeded,
            Some((Outcome::Released, ReportAnswer::Accepted)) => &self.tally.released,
            Some((_, ReportAnswer::Accepted)) => &self.tally.failed,
            _ => &self.tally.lost,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) async fn report(&self, entry: PendingReport) {
        // The report task lives as long as the session.
        let _ = self.reports.send(entry).await;
    }

    pub(super) fn handlers(&self) -> &Handlers {
        &self.handlers
    }

    /// How much longer a job may run without an answer of a server.
    pub(super) fn trusted_for(&self, execution: &Execution) -> Duration {
        if self.is_exclusive {
            execution.trusted_until().saturating_sub(self.clock.elapsed())
        } else {
            Duration::MAX
        }
    }

    /// How long before its end a lease is no longer trusted.
    pub(super) fn margin(&self) -> Duration {
        self.heartbeat / 2
    }
}
