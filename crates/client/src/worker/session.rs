//! What runs: one registration, with the loops that lease and beat for its jobs.

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
use super::context::{End, Execution};
use super::execute::execute;
use super::handler::Handlers;
use super::log::Log;
use super::report::{self, Entry, Verdict};
use super::wire::{
    Ask, Beat, Beaten, Lease, Leases, Outcome, Progress, Pulse, Registered, Registration, millis,
};
use crate::connection::Call;
use crate::path::Path;
use crate::retry::{self, Repeat};
use crate::{Client, Error};

/// How long one call for jobs waits at the server, at most.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// What a long poll may take beyond its wait.
const WAIT_GRACE: Duration = Duration::from_secs(5);
/// The shortest time between two calls that find nothing, for servers that answer at once although asked to wait.
const EMPTY_LEASE_MIN: Duration = Duration::from_millis(100);
/// Jobs of one call.
const LEASES_MAX: usize = 1_000;
/// Outcomes that wait to be reported.
const REPORTS_WAITING_MAX: usize = 10_000;
/// Progress is told at most this often.
const BEAT_MIN: Duration = Duration::from_secs(1);
/// How long handlers have that are told to stop at the end of a drain.
const FAREWELL: Duration = Duration::from_secs(20);

/// What a worker has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Worked {
    /// Jobs that it completed.
    pub succeeded: u64,
    /// Jobs that failed, ran out of time or were called off.
    pub failed: u64,
    /// Jobs that it gave back.
    pub released: u64,
    /// Jobs that were lost, or whose outcome was refused.
    pub lost: u64,
}

/// Why a session ended.
enum Over {
    Stopped,
    /// The server does not know this worker any more.
    Forgotten,
}

/// Registers and works, again when the server has forgotten the worker, until stopped.
pub(super) async fn run(worker: Worker) -> Result<Worked, Error> {
    let worked = Arc::new(Tally::default());
    let mut registered = register(&worker).await?;
    loop {
        let session = Session::new(&worker, &registered, Arc::clone(&worked));
        match session.work().await? {
            Over::Stopped => return Ok(worked.read()),
            Over::Forgotten => registered = register_again(&worker).await?,
        }
    }
}

async fn register(worker: &Worker) -> Result<Registered, Error> {
    let registration = Registration {
        name: &worker.name,
        queues: &worker.queues,
        job_types: worker.handlers.types(),
        max_concurrency: worker.concurrency,
        labels: &worker.labels,
        version: env!("CARGO_PKG_VERSION"),
    };
    worker.client.post(Path::new("/api/v1/workers").build()?, &registration, "").await?.read()
}

async fn register_again(worker: &Worker) -> Result<Registered, Error> {
    let mut tries = 0;
    loop {
        match register(worker).await {
            Err(error) if error.is_temporary() => {
                baton_env::sleep(retry::wait(tries, &error, baton_env::random_u64())).await;
                tries += 1;
            }
            outcome => return outcome,
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    succeeded: AtomicU64,
    failed: AtomicU64,
    released: AtomicU64,
    lost: AtomicU64,
}

impl Tally {
    fn read(&self) -> Worked {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Worked {
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
    /// How long one call for jobs waits. A lease is trusted from before the call, so this is a part of it only.
    wait: Duration,
    concurrency: usize,
    drain: Duration,
    is_exclusive: bool,
    handlers: Handlers,
    clock: BootClock,
    running: Mutex<HashMap<String, Arc<Execution>>>,
    reports: mpsc::Sender<Entry>,
    /// Rung when there is progress to tell.
    beat: Arc<Notify>,
    /// Cancelled when no more jobs are to be taken.
    draining: CancellationToken,
    /// Cancelled when the server does not know this worker any more.
    forgotten: CancellationToken,
    tally: Arc<Tally>,
}

impl Session {
    fn new(worker: &Worker, registered: &Registered, tally: Arc<Tally>) -> Arc<Self> {
        let (reports, entries) = mpsc::channel(REPORTS_WAITING_MAX);
        // Ends when the session does, with the last sender.
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

    async fn work(self: &Arc<Self>) -> Result<Over, Error> {
        let tasks = TaskTracker::new();
        // Whoever drops a worker instead of stopping it drops its jobs.
        let dropped = CancellationToken::new();
        let _drop = dropped.clone().drop_guard();
        let beating = AbortOnDropHandle::new(tokio::spawn(Arc::clone(self).keep_beating()));
        let leasing = self.keep_leasing(&tasks, &dropped).await;
        tasks.close();
        if self.forgotten.is_cancelled() || leasing.is_err() {
            self.end_all(End::Lost);
            tasks.wait().await;
            return leasing.map(|()| Over::Forgotten);
        }
        // Those that do not end in time are told to, and given back.
        if tokio::time::timeout(self.drain, tasks.wait()).await.is_err() {
            self.end_all(End::Drained);
            if tokio::time::timeout(FAREWELL, tasks.wait()).await.is_err() {
                tracing::warn!("some jobs could not be given back; they go to others when their leases end");
            }
        }
        drop(beating);
        self.deregister().await;
        Ok(Over::Stopped)
    }

    /// Takes jobs while there is room, until the worker drains or is forgotten.
    async fn keep_leasing(
        self: &Arc<Self>,
        tasks: &TaskTracker,
        dropped: &CancellationToken,
    ) -> Result<(), Error> {
        let places = Arc::new(Semaphore::new(self.concurrency));
        let mut failures = 0;
        loop {
            let place = tokio::select! {
                biased;
                () = self.over() => return Ok(()),
                place = Arc::clone(&places).acquire_owned() => place,
            };
            let Ok(place) = place else { return Ok(()) };
            let max = (1 + places.available_permits()).min(LEASES_MAX);
            let asked = Stopwatch::start();
            match self.lease(max).await {
                Ok(leased) if leased.is_empty() => {
                    failures = 0;
                    let rest = EMPTY_LEASE_MIN.saturating_sub(asked.elapsed());
                    let _ = tokio::time::timeout(rest, self.over()).await;
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
                    let wait = retry::wait(failures, &error, baton_env::random_u64());
                    let _ = tokio::time::timeout(wait, self.over()).await;
                    failures += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn over(&self) {
        tokio::select! {
            () = self.draining.cancelled() => {}
            () = self.forgotten.cancelled() => {}
        }
    }

    /// One call for jobs. A worker that drains meanwhile says so, upon which the server lets the call end: to hang up
    /// instead might lose jobs that are on their way.
    async fn lease(&self, max: usize) -> Result<Vec<(Lease, Duration)>, Error> {
        let body = serde_json::to_vec(&Ask { max, wait_ms: millis(self.wait) }).map_err(Error::Payload)?;
        let asked_at = self.clock.elapsed();
        let call = Call {
            method: Method::POST,
            path: self.path("/lease")?,
            body: body.into(),
            timeout: self.wait + WAIT_GRACE,
            repeat: Repeat::Unsent,
            key: &self.id,
            once: None,
        };
        let mut answer = std::pin::pin!(self.client.connection().call(call));
        let answer = tokio::select! {
            answer = &mut answer => answer,
            () = self.draining.cancelled() => {
                self.tell_drain().await;
                answer.await
            }
        };
        let leases = answer?.read::<Leases>()?.leases;
        let trusted = |lease: Lease| {
            let until = asked_at + Duration::from_millis(lease.lease_ms).saturating_sub(self.margin());
            (lease, until)
        };
        Ok(leases.into_iter().map(trusted).collect())
    }

    /// Takes a job on; what is returned runs it, in its place.
    fn start(
        self: &Arc<Self>,
        lease: Lease,
        trusted_until: Duration,
        place: Option<OwnedSemaphorePermit>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let log = Log::new(self.client.clone(), lease.execution_id.clone());
        let execution = Arc::new(Execution::new(lease, trusted_until, Arc::clone(&self.beat), log));
        self.running().insert(execution.lease.job_id.clone(), Arc::clone(&execution));
        if self.draining.is_cancelled() {
            execution.end(End::Drained);
        }
        let session = Arc::clone(self);
        async move {
            execute(session, execution).await;
            drop(place);
        }
    }

    /// Renews the leases of all jobs, and hears what is wanted of them.
    async fn keep_beating(self: Arc<Self>) {
        tokio::select! {
            () = self.keep_hearing() => {}
            () = self.keep_telling() => {}
        }
    }

    /// Beats, one call after the other. Each waits at the server for something to do.
    async fn keep_hearing(&self) {
        loop {
            // The answer renews leases from when it was asked for, so with jobs it is not waited for that long.
            let is_idle = self.running().is_empty();
            let wait = if is_idle { self.heartbeat } else { self.heartbeat / 2 };
            let asked = Stopwatch::start();
            let is_news = match self.beat_once(wait).await {
                Ok(is_news) => is_news,
                Err(Error::NotFound(_)) => {
                    self.forgotten.cancel();
                    self.end_all(End::Lost);
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

    /// Tells progress soon, but not at every word.
    async fn keep_telling(&self) {
        loop {
            self.beat.notified().await;
            baton_env::sleep(BEAT_MIN).await;
            if let Err(error) = self.beat_once(Duration::ZERO).await {
                tracing::warn!(%error, "cannot tell progress");
            }
        }
    }

    /// Beats, and waits at the server for something to do; returns whether there is.
    async fn beat_once(&self, wait: Duration) -> Result<bool, Error> {
        let executions: Vec<_> = self.running().values().cloned().collect();
        let told: Vec<_> = executions.iter().map(|execution| execution.take_progress()).collect();
        let pulse = |(execution, progress): (&Arc<Execution>, &Option<Progress>)| Pulse {
            job_id: execution.lease.job_id.clone(),
            fence: execution.lease.fence,
            progress: progress.clone(),
        };
        let running = executions.iter().zip(&told).map(pulse).collect();
        let asked_at = self.clock.elapsed();
        let beat = Beat { incarnation: &self.incarnation, wait_ms: millis(wait), running };
        let body = serde_json::to_vec(&beat).map_err(Error::Payload)?;
        let call = Call {
            method: Method::POST,
            path: self.path("/heartbeat")?,
            body: body.into(),
            // A beat that takes longer is worth less than the next one.
            timeout: wait + self.heartbeat,
            repeat: Repeat::Poll,
            key: &self.id,
            once: None,
        };
        let beaten = match self.client.connection().call(call).await {
            Ok(answer) => answer.read::<Beaten>()?,
            Err(error) => {
                for (execution, progress) in executions.iter().zip(told) {
                    progress.into_iter().for_each(|progress| execution.restore_progress(progress));
                }
                return Err(error);
            }
        };
        self.hear(&beaten, &executions, asked_at);
        Ok(!beaten.cancel.is_empty() || !beaten.lost.is_empty())
    }

    /// Does what the answer to a beat asks for.
    fn hear(&self, beaten: &Beaten, executions: &[Arc<Execution>], asked_at: Duration) {
        for execution in executions {
            let id = &execution.lease.job_id;
            if beaten.lost.contains(id) {
                execution.end(End::Lost);
                continue;
            }
            let life = Duration::from_millis(execution.lease.lease_ms).saturating_sub(self.margin());
            execution.trust(asked_at + life);
        }
        // Among them may be jobs that came after the beat.
        let cancelled = {
            let running = self.running();
            beaten.cancel.iter().filter_map(|id| running.get(id).cloned()).collect::<Vec<_>>()
        };
        cancelled.iter().for_each(|execution| execution.end(End::Cancelled));
        match beaten.desired_state.as_str() {
            "draining" => self.draining.cancel(),
            "stopping" => {
                self.draining.cancel();
                executions.iter().for_each(|execution| execution.end(End::Drained));
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

    async fn tell_drain(&self) {
        let told = async { self.client.post(self.path("/drain")?, &serde_json::json!({}), &self.id).await };
        if let Err(error) = told.await {
            tracing::debug!(%error, "the server was not told of the drain");
        }
    }

    fn path(&self, rest: &str) -> Result<http::uri::PathAndQuery, Error> {
        Path::new("/api/v1/workers").segment(&self.id).plain(rest).build()
    }

    fn running(&self) -> MutexGuard<'_, HashMap<String, Arc<Execution>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_all(&self, why: End) {
        let executions: Vec<_> = self.running().values().cloned().collect();
        executions.iter().for_each(|execution| execution.end(why));
    }

    /// Takes note of an execution's end; no verdict when it was lost.
    pub(super) fn ended(&self, execution: &Arc<Execution>, verdict: Option<(Outcome, Verdict)>) {
        let mut running = self.running();
        // The same job may have come back under a new fence.
        if running.get(&execution.lease.job_id).is_some_and(|other| Arc::ptr_eq(other, execution)) {
            running.remove(&execution.lease.job_id);
        }
        let counter = match verdict {
            Some((Outcome::Succeeded, Verdict::Accepted)) => &self.tally.succeeded,
            Some((Outcome::Released, Verdict::Accepted)) => &self.tally.released,
            Some((_, Verdict::Accepted)) => &self.tally.failed,
            _ => &self.tally.lost,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) async fn report(&self, entry: Entry) {
        // The reporter lives as long as the session.
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

    /// How long before its end a lease is not trusted any more.
    pub(super) fn margin(&self) -> Duration {
        self.heartbeat / 2
    }
}
