//! The handle: every operation on jobs, run on a store.
//!
//! It finds out which queue a request means, runs the rule, reads what was granted, and wakes who waits. The rules are
//! in the modules beside it; HTTP is not known here.

mod delivery;
mod likely;
mod shared;

use std::sync::Arc;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_store::{IdempotencyKey, Store, Tx, TxError, run};
use baton_types::{PartitionId, Timestamp};
use bytes::Bytes;

pub use self::delivery::{Leased, Leases};
use self::likely::Likely;
pub use self::shared::Shared;
use crate::beat::{Beat, Heard, beat};
use crate::book::{Book, Changes, Halt, News};
use crate::cancel;
use crate::cluster::{Times, channel, follower};
use crate::duties;
use crate::enqueue::{self, Enqueued};
use crate::error::Error;
use crate::head::QueueSettings;
use crate::id::{JobId, Place, WorkerId};
use crate::idempotency;
use crate::leader;
use crate::limits::{PAGE_MAX, WAIT_MAX, WORKER_FOR};
use crate::machine::Cancelled;
use crate::meter::Numbers;
use crate::policy::Policy;
use crate::queue::{self, QueueView};
use crate::report::{self, Report, Reported};
use crate::spec::NewJob;
use crate::state::State;
use crate::view::JobView;
use crate::wait::Watch;
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
    /// How long a duty may take before the others have their turn and it is tried again.
    pub duty_limit: Duration,
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
            duty_limit: Duration::from_secs(30),
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
/// See [`Jobs::within`].
#[derive(Clone, Debug)]
pub struct Within {
    placed: Vec<(PartitionId, NewJob)>,
    policy: Policy,
}

/// Jobs that were refused together.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Why.
    pub error: Error,
    /// The number of the job that it concerns, if it is one.
    pub culprit: Option<usize>,
}

impl Within {
    /// Reads what is needed, without writing; or says why the jobs are refused, and which of them is the culprit.
    pub fn prepare(&self, tx: &mut dyn Tx) -> Result<Result<(Vec<Enqueued>, Changes), Refused>, TxError> {
        let (mut book, mut culprit) = (Book::new(tx, self.policy), None);
        match enqueue::add_until_refused(&mut book, &self.placed, &mut culprit) {
            Ok(enqueued) => Ok(Ok((enqueued, book.close()?))),
            Err(Halt::Refused(error)) => Ok(Err(Refused { error, culprit })),
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
impl Jobs {
    /// Starts the duties. Needs a tokio runtime.
    pub fn start(store: Arc<dyn Store>, mut options: Options) -> Self {
        options.policy.shared = !options.sole;
        let shared = Arc::new(Shared::new(store, options));
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
        let mut placed = Vec::<(PartitionId, NewJob)>::with_capacity(jobs.len());
        for job in jobs {
            let partition = match placed.last() {
                Some((partition, last)) if last.queue == job.queue => *partition,
                _ => self.shared.queue(&job.queue).await?,
            };
            placed.push((partition, job));
        }
        Ok(placed)
    }

    /// Accepts jobs, all or none. A repeated call with the same `key` gets the first answer.
    pub async fn enqueue(
        &self,
        jobs: Vec<NewJob>,
        key: Option<IdempotencyKey>,
    ) -> Result<Vec<Enqueued>, Error> {
        let placed = self.placed(jobs).await?;
        let mut queues: Vec<PartitionId> = placed.iter().map(|(queue, _)| *queue).collect();
        queues.dedup();
        let has_keys = placed.iter().any(|(_, job)| job.spec.concurrency_key.is_some());
        let keys = move |likely: &Likely| {
            let permits = if has_keys { likely.of_permits() } else { Vec::new() };
            likely.of_acceptance(&queues).into_iter().chain(permits).collect()
        };
        let rule = move |book: &mut Book<'_>| {
            idempotency::once(book, key.as_ref(), |book| enqueue::add_all(book, &placed))
        };
        let accepted = self.shared.decide_likely(keys, rule).await?;
        if let Some(place) = accepted.last().and_then(|last| last.job_id.place()) {
            self.shared.likely.note_accepted(place);
        }
        Ok(accepted)
    }

    /// Jobs that are to be accepted within a decision that does other things, too.
    pub async fn within(&self, jobs: Vec<NewJob>) -> Result<Within, Error> {
        Ok(Within { placed: self.placed(jobs).await?, policy: self.shared.policy().await })
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
        self.shared.decide(move |book| cancel::retry(book, id, reset_attempts, args.as_ref(), None)).await
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
        self.shared.decide(move |book| queue::set(book, partition, &settings, None)).await
    }

    /// The same, only if the queue is there and its settings are those that were read with this tag.
    pub async fn set_queue_as_read(
        &self,
        name: &str,
        settings: QueueSettings,
        read: u64,
    ) -> Result<QueueView, Error> {
        let partition = match self.shared.existing_queue(name).await {
            Err(Error::NotFound(_)) => return Err(queue::other_settings()),
            found => found?,
        };
        self.shared.decide(move |book| queue::set(book, partition, &settings, Some(read))).await
    }

    /// Pauses a queue, or lets it go on.
    pub async fn pause(&self, name: &str, paused: bool) -> Result<QueueView, Error> {
        let partition = self.shared.existing_queue(name).await?;
        self.shared
            .decide(move |book| {
                let settings = QueueSettings { paused, ..book.head(partition)?.settings.clone() };
                queue::set(book, partition, &settings, None)
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

    /// Forgets a worker that leaves.
    pub async fn deregister(&self, id: WorkerId) -> Result<(), Error> {
        self.shared.decide(move |book| worker::deregister(book, id)).await
    }

    /// All workers that were heard lately.
    pub async fn workers(&self) -> Result<Vec<(WorkerId, Worker)>, Error> {
        let (mut all, mut after) = (Vec::new(), None::<String>);
        let since = self.shared.store.now().before(WORKER_FOR);
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
                if let (Some(number), Ok(worker)) = (number, serde_json::from_slice::<Worker>(&record.value))
                    && worker.seen_at > since
                {
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

    /// Hears a worker. Waits until there is something new for it to do, at most for `wait`.
    pub async fn heartbeat(&self, told: Beat, wait: Duration) -> Result<Heard, Error> {
        let (wait, watch) = (wait.min(self.shared.options.policy.heartbeat), Stopwatch::start());
        let (worker, mut again) = (told.worker, told.clone());
        again.running.iter_mut().for_each(|held| held.progress = None);
        let bell = self.shared.bells.worker(worker);
        let mut heard = None::<Heard>;
        loop {
            let mut ring = Box::pin(bell.notified());
            ring.as_mut().enable();
            // Only the first look renews leases, and one that finds news.
            let has_news = match &heard {
                None => true,
                Some(_) => self.shared.decide(move |book| Ok(worker::expect(book, worker)?.has_news)).await?,
            };
            let heard = if has_news {
                let told = if heard.is_none() { told.clone() } else { again.clone() };
                heard.insert(self.shared.decide(move |book| beat(book, &told)).await?)
            } else {
                heard.get_or_insert_default()
            };
            let left = wait.saturating_sub(watch.elapsed());
            if heard.is_news || left.is_zero() || self.shared.stop.is_cancelled() {
                return Ok(std::mem::take(heard));
            }
            tokio::select! {
                () = ring => {}
                () = baton_env::sleep(left.min(self.shared.options.look_every)) => {}
            }
        }
    }

    /// Takes in how executions ended, one answer for each.
    pub async fn report(&self, reports: Vec<Report>) -> Result<Vec<Reported>, Error> {
        report::check(&reports)?;
        self.shared.decide_likely(Likely::of_permits, move |book| report::report(book, &reports)).await
    }
}
