//! The handle: every operation on jobs, run on a store.
//!
//! An operation looks up the queue of a request, runs the rule, reads the messages of leased jobs, and wakes the
//! clients that wait. Not here: the rules themselves (`rules`), HTTP (`baton-server`). Start at [`Jobs`].

mod audit;
mod bulk;
mod cluster;
mod cluster_events;
mod dead_letters;
mod delivery;
mod job_view;
mod logs;
mod schedules;
mod search;
mod transaction;

use std::sync::Arc;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_store::{IdempotencyKey, Store, run};
use baton_types::{PartitionId, Timestamp};
use bytes::Bytes;

pub use self::bulk::{BulkAction, Done};
pub use self::cluster::{ClusterView, NodeView, Owner};
pub use self::cluster_events::ClusterEvent;
pub use self::dead_letters::DeadLetters;
pub use self::delivery::{Leased, Leases};
pub use self::transaction::{JobsInTx, Refused};
use crate::maintenance::{leader_loop, leadership};
use crate::model::error::Error;
use crate::model::ids::{JobId, JobPosition, WorkerId};
use crate::model::limits::{PAGE_MAX, WAIT_MAX, WORKER_FOR};
use crate::model::new_job::NewJob;
use crate::model::policy::Policy;
use crate::model::queue_head::QueueSettings;
use crate::model::state::State;
use crate::model::worker::{Desired, NewWorker, Worker};
use crate::nodes::dead_nodes::{DeadNodeReassigner, Rebalancer};
use crate::nodes::{channels, membership};
use crate::rules::enqueue::{self, Enqueued};
use crate::rules::heartbeat::{self, Heartbeat, HeartbeatReply};
use crate::rules::job_view::JobView;
use crate::rules::queues::{self, QueueView};
use crate::rules::reporting::{self, Report, Reported};
use crate::rules::state_machine::Cancelled;
use crate::rules::{cancellation, idempotency, workers};
use crate::runtime::context::Shared;
use crate::runtime::meter::JobCounters;
use crate::runtime::notifiers::JobWatch;
use crate::runtime::options::Options;
use crate::runtime::prefetch::PrefetchHints;
use crate::storage::JobsTx;

/// The jobs of one store. Cheap to clone.
#[derive(Clone)]
pub struct Jobs {
    pub(crate) shared: Arc<Shared>,
}
/// The answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Its new id.
    pub worker: WorkerId,
    /// The times that it must keep to.
    pub policy: Policy,
}
impl Jobs {
    /// Starts the maintenance. Needs a tokio runtime.
    pub fn start(store: Arc<dyn Store>, mut options: Options) -> Self {
        options.policy.shared = !options.sole;
        let shared = Arc::new(Shared::new(store, options));
        if shared.options.duties {
            let mut duties = leader_loop::own_duties();
            if !shared.options.sole {
                duties.push(Box::new(DeadNodeReassigner));
                duties.push(Box::new(Rebalancer));
            }
            shared.tasks.spawn(leader_loop::run_until_stopped(Arc::clone(&shared), duties));
            if shared.options.sole {
                shared.tasks.spawn(channels::run_alone(Arc::clone(&shared)));
            } else {
                shared.tasks.spawn(membership::run_until_stopped(Arc::clone(&shared)));
            }
        }
        Self { shared }
    }

    /// Stops the maintenance and wakes all waiters.
    pub async fn shutdown(&self) {
        self.shared.stop.cancel();
        self.shared.notifiers.wake_all();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    /// Tries to become leader and handles everything that is due now. Returns whether it led. For tests.
    pub async fn sweep(&self) -> Result<bool, Error> {
        leader_loop::run_due_duties(&self.shared).await
    }

    /// Waits until a job has ended, at most for `wait`. Returns its state.
    pub async fn wait(&self, id: JobId, wait: Duration) -> Result<JobView, Error> {
        let (wait, watch) = (wait.min(WAIT_MAX), Stopwatch::start());
        let Some(position) = id.position() else { return Err(Error::no_job(id)) };
        let watching = self.shared.notifiers.watch(position);
        loop {
            let notifier = watching.notifier();
            let mut ring = Box::pin(notifier.notified());
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

    /// Watches a job's changes on this server. The caller chooses how long to wait: changes by another server send no
    /// wake-up.
    pub fn watch(&self, position: JobPosition) -> JobWatch {
        self.shared.notifiers.watch(position)
    }

    /// How often a caller that waits for a change should recheck.
    pub fn look_every(&self) -> Duration {
        self.shared.options.look_every
    }

    /// The number of watches on this server.
    pub fn watchers(&self) -> usize {
        self.shared.notifiers.watchers()
    }

    /// The store's time, approximately.
    pub fn now(&self) -> Timestamp {
        self.shared.store.now()
    }

    /// Defaults for jobs.
    pub fn policy(&self) -> Policy {
        self.shared.options.policy
    }

    /// The leader and its token.
    pub async fn leader(&self) -> Result<Option<baton_store::lease::Holder>, Error> {
        Ok(run(&*self.shared.store, leadership::holder).await?)
    }

    /// The counters of this server.
    pub fn numbers(&self) -> JobCounters {
        self.shared.meter.numbers()
    }

    // Producers.

    /// Finds or creates the queues of jobs, before the jobs are enqueued.
    pub async fn resolve_queues(&self, jobs: Vec<NewJob>) -> Result<Vec<(PartitionId, NewJob)>, Error> {
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

    /// Enqueues all jobs or none. A repeated call with the same `key` gets the first answer.
    pub async fn enqueue(
        &self,
        jobs: Vec<NewJob>,
        key: Option<IdempotencyKey>,
    ) -> Result<Vec<Enqueued>, Error> {
        let placed = self.resolve_queues(jobs).await?;
        let mut queues: Vec<PartitionId> = placed.iter().map(|(queue, _)| *queue).collect();
        queues.dedup();
        let has_keys = placed.iter().any(|(_, job)| job.spec.concurrency_key.is_some());
        let keys = move |hints: &PrefetchHints| {
            let permits = if has_keys { hints.for_permits() } else { Vec::new() };
            hints.for_acceptance(&queues).into_iter().chain(permits).collect()
        };
        let rule = move |tx: &mut JobsTx<'_>| {
            idempotency::run_once(tx, key.as_ref(), |tx| enqueue::add_all(tx, &placed))
        };
        let accepted = self.shared.decide_with_prefetch(keys, rule).await?;
        if let Some(position) = accepted.last().and_then(|last| last.job_id.position()) {
            self.shared.hints.note_accepted(position);
        }
        Ok(accepted)
    }

    /// Cancels a job.
    pub async fn cancel(&self, id: JobId, force: bool, reason: Option<String>) -> Result<Cancelled, Error> {
        self.shared.decide(move |tx| cancellation::cancel(tx, id, force, reason.as_deref())).await
    }

    /// Retries an ended job.
    pub async fn retry(&self, id: JobId, reset_attempts: bool, args: Option<Bytes>) -> Result<State, Error> {
        self.shared.decide(move |tx| cancellation::retry(tx, id, reset_attempts, args.as_ref(), None)).await
    }

    // Queues.

    /// All queues.
    pub async fn queues(&self) -> Result<Vec<QueueView>, Error> {
        let (mut all, mut after) = (Vec::<QueueView>::new(), None::<Arc<str>>);
        loop {
            let from = after.clone();
            let (page, more) = self.shared.decide(move |tx| queues::list(tx, from.as_deref())).await?;
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
        self.shared.decide(move |tx| queues::view(tx, partition)).await
    }

    /// Changes the settings of a queue, which is created if it does not exist.
    pub async fn set_queue(&self, name: &str, settings: QueueSettings) -> Result<QueueView, Error> {
        let partition = self.shared.queue(name).await?;
        self.shared.decide(move |tx| queues::set(tx, partition, &settings, None)).await
    }

    /// Changes the settings of a queue only if it exists and its present settings have this tag.
    pub async fn set_queue_as_read(
        &self,
        name: &str,
        settings: QueueSettings,
        read: u64,
    ) -> Result<QueueView, Error> {
        let partition = match self.shared.existing_queue(name).await {
            Err(Error::NotFound(_)) => return Err(queues::other_settings()),
            found => found?,
        };
        self.shared.decide(move |tx| queues::set(tx, partition, &settings, Some(read))).await
    }

    /// Pauses a queue, or resumes it.
    pub async fn pause(&self, name: &str, paused: bool) -> Result<QueueView, Error> {
        let partition = self.shared.existing_queue(name).await?;
        self.shared
            .decide(move |tx| {
                let settings = QueueSettings { paused, ..tx.head(partition)?.settings.clone() };
                queues::set(tx, partition, &settings, None)
            })
            .await
    }

    // Workers.

    /// Registers a worker. Creates its queues if they do not exist.
    pub async fn register(&self, registration: NewWorker) -> Result<Registered, Error> {
        registration.check()?;
        let mut partitions = Vec::with_capacity(registration.queues.len());
        for queue in &registration.queues {
            partitions.push(self.shared.queue(queue).await?);
        }
        partitions.dedup();
        // Drawn here, so that a repeated run of the decision uses the same id; 53 bits, so that every client can hold
        // it in a number.
        let worker = WorkerId(baton_env::random_u64() >> 11);
        self.shared.decide(move |tx| workers::register(tx, worker, &registration, &partitions)).await?;
        Ok(Registered { worker, policy: self.shared.options.policy })
    }

    /// Removes a worker that leaves.
    pub async fn deregister(&self, id: WorkerId) -> Result<(), Error> {
        self.shared.decide(move |tx| workers::deregister(tx, id)).await
    }

    /// All registered workers.
    pub async fn workers(&self) -> Result<Vec<(WorkerId, Worker)>, Error> {
        let (mut all, mut after) = (Vec::new(), None::<String>);
        let since = self.shared.store.now().before(WORKER_FOR);
        loop {
            let from = after.clone();
            let page = run(&*self.shared.store, move |tx| {
                tx.records(crate::model::keys::WORKERS, from.as_deref(), PAGE_MAX)
            })
            .await?;
            after = page.last().map(|(key, _)| key.clone());
            let is_last = page.len() < PAGE_MAX;
            for (key, record) in page {
                let number = key.strip_prefix(crate::model::keys::WORKERS);
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
        self.shared.decide(move |tx| workers::expect(tx, id)).await
    }

    /// Sets the wanted state of a worker.
    pub async fn set_desired(&self, id: WorkerId, desired: Desired, grace: Duration) -> Result<(), Error> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.shared.decide(move |tx| workers::set_desired(tx, id, desired, grace_ms)).await
    }

    /// Handles a heartbeat. Waits until the worker has something new to do, at most for `wait`.
    pub async fn heartbeat(&self, heartbeat: Heartbeat, wait: Duration) -> Result<HeartbeatReply, Error> {
        let (wait, watch) = (wait.min(self.shared.options.policy.heartbeat), Stopwatch::start());
        let (worker, mut again) = (heartbeat.worker, heartbeat.clone());
        again.running.iter_mut().for_each(|held| held.progress = None);
        let notifier = self.shared.notifiers.worker(worker);
        let mut heard = None::<HeartbeatReply>;
        loop {
            let mut ring = Box::pin(notifier.notified());
            ring.as_mut().enable();
            // Only the first run renews leases, and any run that finds a change.
            let has_news = match &heard {
                None => true,
                Some(_) => self.shared.decide(move |tx| Ok(workers::expect(tx, worker)?.has_news)).await?,
            };
            let heard = if has_news {
                let heartbeat = if heard.is_none() { heartbeat.clone() } else { again.clone() };
                heard.insert(self.shared.decide(move |tx| heartbeat::handle(tx, &heartbeat)).await?)
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

    /// Applies reports. Returns one answer for each.
    pub async fn report(&self, reports: Vec<Report>) -> Result<Vec<Reported>, Error> {
        reporting::check(&reports)?;
        self.shared
            .decide_with_prefetch(PrefetchHints::for_permits, move |tx| reporting::report(tx, &reports))
            .await
    }
}
