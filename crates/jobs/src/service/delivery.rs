//! Delivery: waits for jobs for a worker, reads the leased ones, and releases those whose response was lost.

use std::sync::Arc;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_types::{Offset, PartitionId, Timestamp};
use bytes::Bytes;
use tokio::sync::{Notify, oneshot};

use crate::model::error::Error;
use crate::model::ids::{ExecutionId, JobId, WorkerId};
use crate::model::limits::{LEASE_BYTES_MAX, LEASE_JOBS_MAX, WAIT_MAX};
use crate::model::payload::{self, DeliveredSpec};
use crate::model::policy::Policy;
use crate::model::state::Outcome;
use crate::model::worker::Desired;
use crate::rules::leasing::{self, Grant, GrantedJob};
use crate::rules::reporting::Report;
use crate::service::Jobs;

/// How long a response waits for jobs to be released.
const ANSWER_AFTER: Duration = Duration::from_secs(1);
/// The pause between attempts to release jobs.
const GIVE_BACK_EVERY: Duration = Duration::from_millis(100);

/// A job as a worker receives it.
#[derive(Clone, Debug, PartialEq)]
pub struct Leased {
    /// The job.
    pub id: JobId,
    /// The execution to report.
    pub execution: ExecutionId,
    /// Which attempt it is, from 1.
    pub attempt: u32,
    /// How long the worker may be silent.
    pub lease: Duration,
    /// Its timeout; `None` is no timeout.
    pub timeout: Option<Duration>,
    /// Its specification.
    pub spec: DeliveredSpec,
    /// Its arguments.
    pub args: Bytes,
}
/// Jobs for a worker, and the worker's wanted state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leases {
    /// The jobs.
    pub jobs: Vec<Leased>,
    /// The worker's wanted state.
    pub desired: Desired,
}

impl Jobs {
    /// Leases up to `max` jobs to a worker; waits for the first of them. When the caller disconnects before it
    /// received them, they are released at once, which does not count as an attempt.
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
        let (leases, back) = match self.granted(&mut caller, worker, max, wait).await {
            Ok(grant) => self.deliver(grant).await,
            Err(error) => (Err(error), Vec::new()),
        };
        let mut giving_back = Box::pin(self.release_unreceived(back));
        // An error means that nothing was changed, which is true once the jobs are released.
        let is_back = tokio::select! {
            () = &mut giving_back => true,
            () = baton_env::sleep(ANSWER_AFTER) => false,
        };
        let unheard = caller.send(leases).err().and_then(Result::ok);
        if !is_back {
            giving_back.await;
        }
        let back = |leased: &Leased| Report::new(leased.id, leased.execution.fence, Outcome::Released);
        self.release_unreceived(unheard.unwrap_or_default().jobs.iter().map(back).collect()).await;
    }

    /// Releases jobs that their worker never received. Retries until it succeeds, the leases are over or the server
    /// stops.
    async fn release_unreceived(&self, reports: Vec<Report>) {
        let watch = Stopwatch::start();
        while !reports.is_empty()
            && let Err(error) = self.report(reports.clone()).await
        {
            if watch.elapsed() > self.shared.options.policy.lease || self.shared.stop.is_cancelled() {
                tracing::warn!(%error, jobs = reports.len(), "jobs were not given back; their leases run out");
                return;
            }
            tokio::select! {
                () = baton_env::sleep(GIVE_BACK_EVERY) => {}
                () = self.shared.stop.cancelled() => {}
            }
        }
    }

    /// Retries leasing until there are jobs, the time is over or the caller is gone.
    async fn granted(
        &self,
        caller: &mut oneshot::Sender<Result<Leases, Error>>,
        worker: WorkerId,
        max: usize,
        wait: Duration,
    ) -> Result<Grant, Error> {
        let watch = Stopwatch::start();
        // The first attempt registers no waiter, which is enough where there is work.
        let mut notifiers: Vec<Arc<Notify>> = Vec::new();
        let served = self.shared.served(worker);
        loop {
            let wake_ups: Vec<_> = notifiers.iter().map(register_waiter).collect();
            // Drawn here, so that a repeated run of the decision draws the same.
            let draw = baton_env::random_u64();
            let known = served.clone().unwrap_or_default();
            let queues = Arc::clone(&known);
            let grant = self
                .shared
                .decide_with_prefetch(
                    move |hints| hints.for_leases(&queues),
                    move |tx| leasing::lease(tx, worker, max, draw, &known),
                )
                .await?;
            if let Some(job) = grant.jobs.last() {
                self.shared.hints.note_given_out(job.position);
            }
            if served.is_none() {
                self.shared.note_served(worker, &grant.queues);
            }
            let left = wait.saturating_sub(watch.elapsed());
            let is_over = left.is_zero() || self.shared.stop.is_cancelled() || caller.is_closed();
            if !grant.jobs.is_empty() || grant.desired != Desired::Active || is_over {
                return Ok(grant);
            }
            if notifiers.is_empty() {
                notifiers = grant.queues.iter().map(|queue| self.shared.notifiers.queue(*queue)).collect();
                continue;
            }
            let soon = grant.allowed_in.unwrap_or(self.shared.options.look_every);
            let soon = soon.min(self.shared.options.look_every).min(left).max(Duration::from_millis(1));
            tokio::select! {
                () = any_notified(wake_ups) => {}
                () = baton_env::sleep(soon) => {}
                () = caller.closed() => {}
                () = self.shared.stop.cancelled() => {}
            }
        }
    }

    /// Reads the leased jobs. Also returns jobs to release: those that do not fit, or all when they cannot be read.
    async fn deliver(&self, grant: Grant) -> (Result<Leases, Error>, Vec<Report>) {
        for partition in &grant.more {
            self.shared.notifiers.ready(*partition, 1);
        }
        let given_back = |job: &GrantedJob| {
            Report::new(JobId::new(job.created_at, job.position), job.fence, Outcome::Released)
        };
        let positions = grant.jobs.iter().map(|job| (job.position.partition, job.spec));
        let payloads = match self.payloads(positions).await {
            Ok(payloads) => payloads,
            // Corrupt jobs stay leased until they fail. Released, they would be the first of every lease for ever.
            Err(error @ Error::Store(baton_store::Error::Corrupt(_))) => return (Err(error), Vec::new()),
            Err(error) => return (Err(error), grant.jobs.iter().map(given_back).collect()),
        };
        let policy = self.shared.options.policy;
        let (mut jobs, mut bytes, mut back) = (Vec::with_capacity(grant.jobs.len()), 0, Vec::new());
        for (job, payload) in grant.jobs.iter().zip(payloads) {
            let fits = jobs.is_empty() || bytes <= LEASE_BYTES_MAX;
            let Some(payload) = payload.filter(|_| fits) else {
                back.push(given_back(job));
                continue;
            };
            let like = jobs.last().map(|leased: &Leased| &leased.spec.job_type);
            let id = JobId::new(job.created_at, job.position);
            match payload::brief(&payload, like) {
                Ok((spec, args)) => {
                    bytes += args.len();
                    jobs.push(leased(id, job, spec, args, &policy));
                }
                // As above.
                Err(error) => tracing::error!(%error, job = %id, "a job cannot be read"),
            }
        }
        (Ok(Leases { jobs, desired: grant.desired }), back)
    }

    /// The payloads at these offsets, read in runs; `None` for deleted ones.
    pub(crate) async fn payloads(
        &self,
        positions: impl Iterator<Item = (PartitionId, u64)>,
    ) -> Result<Vec<Option<Bytes>>, Error> {
        let mut wanted: Vec<_> = positions.enumerate().map(|(index, position)| (position, index)).collect();
        wanted.sort_unstable();
        let (mut found, mut at) = (vec![None; wanted.len()], 0);
        while let Some(((partition, first), _)) = wanted.get(at).copied() {
            let same = wanted[at..]
                .iter()
                .take_while(|((other, offset), _)| *other == partition && *offset < first + 4096);
            let end = wanted[at..][same.count() - 1].0.1 + 1;
            let segments =
                self.shared.store.read(partition, Offset(first), Offset(end), 2 * LEASE_BYTES_MAX).await?;
            let before = at;
            for message in segments.iter().flat_map(baton_store::Segment::messages) {
                let message = message.map_err(baton_store::Error::from)?;
                let here = (partition, message.offset.0);
                while wanted.get(at).is_some_and(|(position, _)| *position < here) {
                    at += 1;
                }
                while let Some((_, index)) = wanted.get(at).filter(|(position, _)| *position == here) {
                    found[*index] = Some(message.payload.clone());
                    at += 1;
                }
            }
            if at == before {
                // It was deleted.
                at += 1;
            }
        }
        Ok(found)
    }
}

fn leased(id: JobId, job: &GrantedJob, spec: DeliveredSpec, args: Bytes, policy: &Policy) -> Leased {
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

type WakeUp = std::pin::Pin<Box<tokio::sync::futures::OwnedNotified>>;

/// Registers a waiter now.
fn register_waiter(notifier: &Arc<Notify>) -> WakeUp {
    let mut ring = Box::pin(Arc::clone(notifier).notified_owned());
    ring.as_mut().enable();
    ring
}

/// Returns when one of the notifiers fires.
async fn any_notified(mut wake_ups: Vec<WakeUp>) {
    std::future::poll_fn(|cx| match wake_ups.iter_mut().any(|ring| ring.as_mut().poll(cx).is_ready()) {
        true => std::task::Poll::Ready(()),
        false => std::task::Poll::Pending,
    })
    .await;
}
