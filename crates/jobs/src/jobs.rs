//! The handle: every operation on jobs, run on a store.
//!
//! It finds out which queue a request means, runs the rule, reads what was granted, and wakes who waits. The rules are
//! in the modules beside it; HTTP is not known here.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_store::{Stop, Store, Tx, run};
use baton_types::{Offset, PartitionId, Timestamp};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::beat::{Beat, Heard, beat};
use crate::book::{Book, Changes, Halt, News};
use crate::cancel;
use crate::cluster::follower::{self, Standing};
use crate::cluster::{Times, channel};
use crate::duties;
use crate::enqueue::{self, Enqueued};
use crate::error::Error;
use crate::head::QueueSettings;
use crate::id::{ExecutionId, JobId, Place, WorkerId};
use crate::idempotency;
use crate::leader::{self, Term};
use crate::lease::{self, Grant, Granted};
use crate::limits::{LEASE_BYTES_MAX, LEASE_JOBS_MAX, PAGE_MAX, WAIT_MAX};
use crate::machine::Cancelled;
use crate::meter::{Meter, Numbers};
use crate::policy::Policy;
use crate::queue::{self, QueueView};
use crate::report::{self, Report, Reported};
use crate::spec::{NewJob, Spec, check_name};
use crate::state::{Outcome, State};
use crate::view::JobView;
use crate::wait::{Bells, Watch};
use crate::worker::{self, Desired, NewWorker, Worker};

/// How a server runs jobs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of this node, which it keeps over starts.
    pub name: Arc<str>,
    /// The name of this start of it.
    pub node: Arc<str>,
    /// Whether no other node uses the store.
    pub sole: bool,
    /// What holds unless a job says otherwise.
    pub policy: Policy,
    /// How often a worker that waits looks by itself.
    pub look_every: Duration,
    /// Whether this node may run the duties and own jobs.
    pub duties: bool,
    /// How long nodes wait for each other.
    pub times: Times,
    /// What the names of channels begin with.
    pub channels: Arc<str>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "baton".into(),
            node: format!("baton-{:x}", baton_env::random_u64()).into(),
            sole: false,
            policy: Policy::default(),
            look_every: Duration::from_secs(1),
            duties: true,
            times: Times::default(),
            channels: "orchestrix".into(),
        }
    }
}

/// The jobs of one store. Cheap to clone.
#[derive(Clone)]
pub struct Jobs {
    pub(crate) shared: Arc<Shared>,
}

/// What all handles share.
pub struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: Options,
    pub(crate) meter: Meter,
    pub(crate) bells: Arc<Bells>,
    /// Rung when something is due earlier than was known.
    pub(crate) alarm: Notify,
    rung: AtomicBool,
    rung_for_schedules: AtomicBool,
    /// When the clock will be looked at anyway, in microseconds.
    pub(crate) next_due: AtomicI64,
    /// Queues never change their number.
    queues: RwLock<FxHashMap<Arc<str>, PartitionId>>,
    /// How this node stands among the others.
    pub(crate) standing: Standing,
    /// Whether somebody watches a channel.
    pub(crate) watched: AtomicBool,
    pub(crate) stop: CancellationToken,
    tasks: TaskTracker,
}

/// A job as a worker gets it.
#[derive(Clone, Debug, PartialEq)]
pub struct Leased {
    /// The job.
    pub id: JobId,
    /// What it must be reported under.
    pub execution: ExecutionId,
    /// Which attempt it is, from 1.
    pub attempt: u32,
    /// How long the worker may be silent.
    pub lease: Duration,
    /// How long it may run; `None` is for ever.
    pub timeout: Option<Duration>,
    /// What it is.
    pub spec: Spec,
    /// Its arguments.
    pub args: Bytes,
}

/// See [`Jobs::within`].
#[derive(Clone, Debug)]
pub struct Within {
    placed: Vec<(PartitionId, NewJob)>,
    policy: Policy,
}

impl Within {
    /// Reads what is needed, without writing; or says why the jobs are refused.
    pub fn prepare(&self, tx: &mut dyn Tx) -> Result<Result<(Vec<Enqueued>, Changes), Error>, Stop> {
        let mut book = Book::new(tx, self.policy);
        match enqueue::add_all(&mut book, &self.placed) {
            Ok(enqueued) => Ok(Ok((enqueued, book.close()?))),
            Err(Halt::Refused(error)) => Ok(Err(error)),
            Err(Halt::Stop(stop)) => Err(stop),
        }
    }
}

/// What a worker is told when it registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Its id, which no other registration has.
    pub worker: WorkerId,
    /// What holds for it.
    pub policy: Policy,
}

/// Jobs for a worker, and what is wanted of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leases {
    /// The jobs.
    pub jobs: Vec<Leased>,
    /// What is wanted of the worker.
    pub desired: Desired,
}

impl Shared {
    pub(crate) const CLOCK: &'static str = "clock";
    pub(crate) const SCHEDULES: &'static str = "schedules";

    /// Whether a duty has been called for.
    pub(crate) fn is_rung(&self, duty: &str) -> bool {
        match duty {
            Self::CLOCK => self.rung.swap(false, Ordering::SeqCst),
            Self::SCHEDULES => self.rung_for_schedules.swap(false, Ordering::SeqCst),
            _ => false,
        }
    }

    /// What rules go by now.
    fn policy(&self) -> Policy {
        Policy { watched: self.watched.load(Ordering::Relaxed), ..self.options.policy }
    }

    /// Runs a rule in one commit and does what follows from it.
    pub(crate) async fn decide<R: Send + 'static>(
        &self,
        mut rule: impl FnMut(&mut Book<'_>) -> Result<R, Halt> + Send + 'static,
    ) -> Result<R, Error> {
        let policy = self.policy();
        let decided = run(&*self.store, move |tx| decide(tx, policy, &mut rule)).await?;
        let (answer, news) = decided?;
        self.spread(&news);
        Ok(answer)
    }

    /// The same, only as long as `term` is the one that counts.
    pub(crate) async fn decide_guarded<R: Send + 'static>(
        &self,
        term: Term,
        mut rule: impl FnMut(&mut Book<'_>) -> Result<R, Halt> + Send + 'static,
    ) -> Result<R, Error> {
        let policy = self.policy();
        let decided = run(&*self.store, move |tx| {
            if !term.guard(tx)? {
                return Ok(Err(duties::not_leader()));
            }
            decide(tx, policy, &mut rule)
        })
        .await?;
        let (answer, news) = decided?;
        self.spread(&news);
        Ok(answer)
    }

    /// Wakes and counts.
    pub(crate) fn spread(&self, news: &News) {
        self.meter.add(&news.counts);
        for (partition, jobs) in &news.ready {
            self.bells.ready(*partition, *jobs);
        }
        self.bells.changed(&news.changed);
        if news.due.is_some_and(|due| due.micros() < self.next_due.load(Ordering::SeqCst)) {
            self.rung.store(true, Ordering::SeqCst);
            self.alarm.notify_one();
        }
        if news.fires {
            self.rung_for_schedules.store(true, Ordering::SeqCst);
            self.alarm.notify_one();
        }
    }

    fn known_queue(&self, name: &str) -> Option<PartitionId> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    /// The number of a queue, which is created if it is not there.
    pub(crate) async fn queue(&self, name: &str) -> Result<PartitionId, Error> {
        if let Some(partition) = self.known_queue(name) {
            return Ok(partition);
        }
        check_name("queue", name)?;
        let wanted = name.to_owned();
        let partition = run(&*self.store, move |tx| queue::create(tx, &wanted)).await??;
        self.queues.write().unwrap_or_else(PoisonError::into_inner).insert(name.into(), partition);
        Ok(partition)
    }

    /// The number of a queue that is there.
    pub(crate) async fn existing_queue(&self, name: &str) -> Result<PartitionId, Error> {
        if let Some(partition) = self.known_queue(name) {
            return Ok(partition);
        }
        let wanted = name.to_owned();
        let found = self.decide(move |book| queue::find(book, &wanted)).await?;
        found.ok_or_else(|| Error::NotFound(format!("there is no job queue {name:?}")))
    }

    /// The numbers of all queues.
    pub(crate) async fn all_queues(&self) -> Result<Vec<PartitionId>, Error> {
        let (mut all, mut after) = (Vec::new(), None::<String>);
        loop {
            let from = after.clone();
            let page = run(&*self.store, move |tx| tx.records(crate::key::QUEUES, from.as_deref(), PAGE_MAX))
                .await?;
            let is_last = page.len() < PAGE_MAX;
            after = page.last().map(|(key, _)| key.clone());
            let number = |value: &Bytes| std::str::from_utf8(value).ok()?.parse().ok().map(PartitionId);
            all.extend(page.iter().filter_map(|(_, record)| number(&record.value)));
            if is_last {
                return Ok(all);
            }
        }
    }
}

/// A rule within a decision of the store: its answer and its news, or why it was refused.
pub(crate) fn decide<R>(
    tx: &mut dyn Tx,
    policy: Policy,
    rule: &mut dyn FnMut(&mut Book<'_>) -> Result<R, Halt>,
) -> Result<Result<(R, News), Error>, Stop> {
    let mut book = Book::new(tx, policy);
    match rule(&mut book) {
        Ok(answer) => {
            let news = book.commit()?;
            Ok(Ok((answer, news)))
        }
        Err(Halt::Refused(error)) => Ok(Err(error)),
        Err(Halt::Stop(stop)) => Err(stop),
    }
}

impl Jobs {
    /// Starts the duties. Needs a tokio runtime.
    pub fn start(store: Arc<dyn Store>, mut options: Options) -> Self {
        options.policy.shared = !options.sole;
        let shared = Arc::new(Shared {
            store,
            options,
            meter: Meter::default(),
            bells: Arc::default(),
            alarm: Notify::new(),
            rung: AtomicBool::new(false),
            rung_for_schedules: AtomicBool::new(false),
            next_due: AtomicI64::new(i64::MAX),
            queues: RwLock::default(),
            standing: Standing::default(),
            watched: AtomicBool::new(false),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        if shared.options.duties {
            shared.tasks.spawn(duties::keep(Arc::clone(&shared)));
            if shared.options.sole {
                shared.tasks.spawn(channel::keep_alone(Arc::clone(&shared)));
            } else {
                shared.tasks.spawn(follower::keep(Arc::clone(&shared)));
            }
        }
        Self { shared }
    }

    /// Ends the duties and lets nobody wait any more.
    pub async fn shutdown(&self) {
        self.shared.stop.cancel();
        self.shared.bells.wake_all();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    /// Takes the lead, if it can be had, and does everything that is due now; tells whether it led.
    pub async fn sweep(&self) -> Result<bool, Error> {
        duties::once(&self.shared).await
    }

    /// Waits until a job has ended, or for so long; tells how it stands.
    pub async fn wait(&self, id: JobId, wait: Duration) -> Result<JobView, Error> {
        let (wait, watch) = (wait.min(WAIT_MAX), Stopwatch::start());
        let Some(place) = id.place() else { return Err(Error::no_job(id)) };
        let watching = self.shared.bells.watch(place);
        loop {
            let bell = watching.bell();
            let mut ring = Box::pin(bell.notified());
            ring.as_mut().enable();
            let job = self.get(id).await?;
            let left = wait.saturating_sub(watch.elapsed());
            if job.state.is_terminal() || left.is_zero() || self.shared.stop.is_cancelled() {
                return Ok(job);
            }
            tokio::select! {
                () = ring => {}
                () = baton_env::sleep(left.min(self.shared.options.look_every)) => {}
            }
        }
    }

    /// Hears of a job's changes on this server. How long to wait for one is up to the caller: another server may have
    /// changed it, of which nothing is heard.
    pub fn watch(&self, place: Place) -> Watch {
        self.shared.bells.watch(place)
    }

    /// How often somebody who waits for news should look by himself.
    pub fn look_every(&self) -> Duration {
        self.shared.options.look_every
    }

    /// How many watch jobs on this server.
    pub fn watchers(&self) -> usize {
        self.shared.bells.watchers()
    }

    /// The store's time, roughly.
    pub fn now(&self) -> Timestamp {
        self.shared.store.now()
    }

    /// What holds unless a job says otherwise.
    pub fn policy(&self) -> Policy {
        self.shared.options.policy
    }

    /// Who leads, and under which token.
    pub async fn leader(&self) -> Result<Option<baton_store::lease::Holder>, Error> {
        Ok(run(&*self.shared.store, leader::look).await?)
    }

    /// What was counted on this server.
    pub fn numbers(&self) -> Numbers {
        self.shared.meter.numbers()
    }

    // Producers.

    /// Finds or creates the queues of jobs, which must be done before they can be accepted.
    pub async fn placed(&self, jobs: Vec<NewJob>) -> Result<Vec<(PartitionId, NewJob)>, Error> {
        enqueue::check(&jobs)?;
        let mut placed = Vec::with_capacity(jobs.len());
        for job in jobs {
            placed.push((self.shared.queue(&job.queue).await?, job));
        }
        Ok(placed)
    }

    /// Accepts jobs, all or none; the same `key` again is answered as the first time.
    pub async fn enqueue(&self, jobs: Vec<NewJob>, key: Option<String>) -> Result<Vec<Enqueued>, Error> {
        let placed = self.placed(jobs).await?;
        self.shared
            .decide(move |book| {
                idempotency::once(book, key.as_deref(), |book| enqueue::add_all(book, &placed))
            })
            .await
    }

    /// Jobs that are to be accepted within a decision that does other things, too.
    pub async fn within(&self, jobs: Vec<NewJob>) -> Result<Within, Error> {
        Ok(Within { placed: self.placed(jobs).await?, policy: self.shared.policy() })
    }

    /// Wakes and counts after such a decision.
    pub fn spread(&self, news: &News) {
        self.shared.spread(news);
    }

    /// Calls a job off.
    pub async fn cancel(&self, id: JobId, force: bool, reason: Option<String>) -> Result<Cancelled, Error> {
        self.shared.decide(move |book| cancel::cancel(book, id, force, reason.as_deref())).await
    }

    /// Gives an ended job another try.
    pub async fn retry(&self, id: JobId, reset_attempts: bool, args: Option<Bytes>) -> Result<State, Error> {
        self.shared.decide(move |book| cancel::retry(book, id, reset_attempts, args.as_ref())).await
    }

    // Queues.

    /// All queues.
    pub async fn queues(&self) -> Result<Vec<QueueView>, Error> {
        let (mut all, mut after) = (Vec::<QueueView>::new(), None::<Arc<str>>);
        loop {
            let from = after.clone();
            let (page, more) = self.shared.decide(move |book| queue::list(book, from.as_deref())).await?;
            after = page.last().map(|queue| queue.name.clone());
            all.extend(page);
            if !more {
                return Ok(all);
            }
        }
    }

    /// One queue.
    pub async fn queue(&self, name: &str) -> Result<QueueView, Error> {
        let partition = self.shared.existing_queue(name).await?;
        self.shared.decide(move |book| queue::view(book, partition)).await
    }

    /// Says what holds for a queue, which is created if it is not there.
    pub async fn set_queue(&self, name: &str, settings: QueueSettings) -> Result<QueueView, Error> {
        let partition = self.shared.queue(name).await?;
        self.shared.decide(move |book| queue::set(book, partition, &settings)).await
    }

    /// Pauses a queue, or lets it go on.
    pub async fn pause(&self, name: &str, paused: bool) -> Result<QueueView, Error> {
        let partition = self.shared.existing_queue(name).await?;
        self.shared
            .decide(move |book| {
                let settings = QueueSettings { paused, ..book.head(partition)?.settings.clone() };
                queue::set(book, partition, &settings)
            })
            .await
    }

    // Workers.

    /// Registers a worker. Its queues are created if they are not there.
    pub async fn register(&self, told: NewWorker) -> Result<Registered, Error> {
        told.check()?;
        let mut partitions = Vec::with_capacity(told.queues.len());
        for queue in &told.queues {
            partitions.push(self.shared.queue(queue).await?);
        }
        partitions.dedup();
        // Drawn here, so that the decision may be run again; 53 bits, so that every client can hold it in a number.
        let worker = WorkerId(baton_env::random_u64() >> 11);
        self.shared.decide(move |book| worker::register(book, worker, &told, &partitions)).await?;
        Ok(Registered { worker, policy: self.shared.options.policy })
    }

    /// All workers that are remembered.
    pub async fn workers(&self) -> Result<Vec<(WorkerId, Worker)>, Error> {
        let (mut all, mut after) = (Vec::new(), None::<String>);
        loop {
            let from = after.clone();
            let page = run(&*self.shared.store, move |tx| {
                tx.records(crate::key::WORKERS, from.as_deref(), PAGE_MAX)
            })
            .await?;
            after = page.last().map(|(key, _)| key.clone());
            let is_last = page.len() < PAGE_MAX;
            for (key, record) in page {
                let number = key.strip_prefix(crate::key::WORKERS);
                let number = number.and_then(|number| u64::from_str_radix(number, 16).ok());
                if let (Some(number), Ok(worker)) = (number, serde_json::from_slice(&record.value)) {
                    all.push((WorkerId(number), worker));
                }
            }
            if is_last {
                return Ok(all);
            }
        }
    }

    /// One worker.
    pub async fn worker(&self, id: WorkerId) -> Result<Worker, Error> {
        self.shared.decide(move |book| worker::expect(book, id)).await
    }

    /// Says what is wanted of a worker.
    pub async fn want(&self, id: WorkerId, desired: Desired, grace: Duration) -> Result<(), Error> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.shared.decide(move |book| worker::want(book, id, desired, grace_ms)).await
    }

    /// Up to `max` jobs for a worker; waits for the first of them. When the caller is gone before it hears of them, they
    /// go back at once and for free.
    pub async fn lease(&self, worker: WorkerId, max: usize, wait: Duration) -> Result<Leases, Error> {
        let (caller, answer) = oneshot::channel();
        let (jobs, max, wait) = (self.clone(), max.clamp(1, LEASE_JOBS_MAX), wait.min(WAIT_MAX));
        self.shared.tasks.spawn(jobs.lease_for(caller, worker, max, wait));
        answer
            .await
            .unwrap_or_else(|_| Err(baton_store::Error::Closed("the server is stopping".into()).into()))
    }

    async fn lease_for(
        self,
        mut caller: oneshot::Sender<Result<Leases, Error>>,
        worker: WorkerId,
        max: usize,
        wait: Duration,
    ) {
        let leases = match self.granted(&mut caller, worker, max, wait).await {
            Ok(grant) => self.deliver(grant).await,
            Err(error) => Err(error),
        };
        if let Err(Ok(unheard)) = caller.send(leases) {
            let back = |leased: &Leased| Report::new(leased.id, leased.execution.fence, Outcome::Released);
            let reports: Vec<_> = unheard.jobs.iter().map(back).collect();
            if !reports.is_empty()
                && let Err(error) = self.report(reports).await
            {
                tracing::debug!(%error, "jobs that nobody took were not given back");
            }
        }
    }

    /// Looks for jobs until there are some, the time is over or the caller is gone.
    async fn granted(
        &self,
        caller: &mut oneshot::Sender<Result<Leases, Error>>,
        worker: WorkerId,
        max: usize,
        wait: Duration,
    ) -> Result<Grant, Error> {
        let watch = Stopwatch::start();
        // The first look is made without listening, which is enough where there is work.
        let mut bells: Vec<Arc<Notify>> = Vec::new();
        loop {
            let rings: Vec<_> = bells.iter().map(listening).collect();
            let grant = self.shared.decide(move |book| lease::lease(book, worker, max)).await?;
            let left = wait.saturating_sub(watch.elapsed());
            let is_over = left.is_zero() || self.shared.stop.is_cancelled() || caller.is_closed();
            if !grant.jobs.is_empty() || grant.desired != Desired::Active || is_over {
                return Ok(grant);
            }
            if bells.is_empty() {
                bells = grant.queues.iter().map(|queue| self.shared.bells.queue(*queue)).collect();
                continue;
            }
            let soon = grant.allowed_in.unwrap_or(self.shared.options.look_every);
            let soon = soon.min(self.shared.options.look_every).min(left).max(Duration::from_millis(1));
            tokio::select! {
                () = any(rings) => {}
                () = baton_env::sleep(soon) => {}
                () = caller.closed() => {}
                () = self.shared.stop.cancelled() => {}
            }
        }
    }

    /// Reads what was granted.
    async fn deliver(&self, grant: Grant) -> Result<Leases, Error> {
        for partition in &grant.more {
            self.shared.bells.ready(*partition, 1);
        }
        let mut specs = self.specs(grant.jobs.iter().map(|job| (job.place.partition, job.spec))).await?;
        let policy = self.shared.options.policy;
        let (mut jobs, mut bytes, mut back) = (Vec::with_capacity(grant.jobs.len()), 0, Vec::new());
        for job in &grant.jobs {
            let id = JobId::new(job.created_at, job.place);
            let spec = specs.remove(&(job.place.partition, job.spec));
            let fits = jobs.is_empty() || bytes <= LEASE_BYTES_MAX;
            let Some((spec, args)) = spec.filter(|_| fits) else {
                back.push(Report::new(id, job.fence, Outcome::Released));
                continue;
            };
            bytes += args.len();
            jobs.push(leased(id, job, spec, args, &policy));
        }
        if !back.is_empty() {
            self.report(back).await?;
        }
        Ok(Leases { jobs, desired: grant.desired })
    }

    /// Specifications by place, read in runs.
    pub(crate) async fn specs(
        &self,
        places: impl Iterator<Item = (PartitionId, u64)>,
    ) -> Result<FxHashMap<(PartitionId, u64), (Spec, Bytes)>, Error> {
        let mut wanted: Vec<_> = places.collect();
        wanted.sort_unstable();
        wanted.dedup();
        let (mut found, mut at) = (FxHashMap::default(), 0);
        while let Some((partition, first)) = wanted.get(at).copied() {
            let same = wanted[at..]
                .iter()
                .take_while(|(other, offset)| *other == partition && *offset < first + 4096);
            let end = wanted[at..][same.count() - 1].1 + 1;
            let segments =
                self.shared.store.read(partition, Offset(first), Offset(end), 2 * LEASE_BYTES_MAX).await?;
            let before = at;
            for message in segments.iter().flat_map(baton_store::Segment::messages) {
                let message = message.map_err(baton_store::Error::from)?;
                while wanted.get(at).is_some_and(|place| *place < (partition, message.offset.0)) {
                    at += 1;
                }
                if wanted.get(at) == Some(&(partition, message.offset.0)) {
                    found.insert(wanted[at], Spec::decode(&message.payload)?);
                    at += 1;
                }
            }
            if at == before {
                // It is not kept any more.
                at += 1;
            }
        }
        Ok(found)
    }

    /// Hears a worker.
    pub async fn heartbeat(&self, told: Beat) -> Result<Heard, Error> {
        self.shared.decide(move |book| beat(book, &told)).await
    }

    /// Takes in how executions ended, one answer for each.
    pub async fn report(&self, reports: Vec<Report>) -> Result<Vec<Reported>, Error> {
        report::check(&reports)?;
        self.shared.decide(move |book| report::report(book, &reports)).await
    }
}

fn leased(id: JobId, job: &Granted, spec: Spec, args: Bytes, policy: &Policy) -> Leased {
    Leased {
        id,
        execution: ExecutionId { job: id, fence: job.fence },
        attempt: job.attempt,
        lease: policy.lease,
        timeout: (job.deadline != Timestamp::MAX).then(|| Duration::from_millis(spec.timeout_ms)),
        spec,
        args,
    }
}

type Ring = std::pin::Pin<Box<tokio::sync::futures::OwnedNotified>>;

/// Hears the bell from now on.
fn listening(bell: &Arc<Notify>) -> Ring {
    let mut ring = Box::pin(Arc::clone(bell).notified_owned());
    ring.as_mut().enable();
    ring
}

/// Returns when one of the bells rings.
async fn any(mut rings: Vec<Ring>) {
    std::future::poll_fn(|cx| match rings.iter_mut().any(|ring| ring.as_mut().poll(cx).is_ready()) {
        true => std::task::Poll::Ready(()),
        false => std::task::Poll::Pending,
    })
    .await;
}
