//! The state that all handles of one store share: runs rules in commits, wakes waiters, caches queue numbers.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use baton_env::Stopwatch;
use baton_store::{Store, Tx, TxError, run};
use baton_types::PartitionId;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, OnceCell};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::model::error::Error;
use crate::model::ids::WorkerId;
use crate::model::limits::{PAGE_MAX, WORKERS_MAX};
use crate::model::names::check_name;
use crate::model::policy::Policy;
use crate::rules::availability::Availability;
use crate::rules::queues;
use crate::runtime::meter::Meter;
use crate::runtime::notifiers::Notifiers;
use crate::runtime::options::Options;
use crate::runtime::participation::Participation;
use crate::runtime::prefetch::PrefetchHints;
use crate::storage::channel_watchers::is_watched;
use crate::storage::leader_term::Term;
use crate::storage::{Abort, CommitEffects, JobsTx};

/// The state that all handles share.
pub struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: Options,
    pub(crate) meter: Meter,
    pub(crate) notifiers: Arc<Notifiers>,
    /// Notified when something is due earlier than the next check.
    pub(crate) alarm: Notify,
    timeouts_requested: AtomicBool,
    schedules_requested: AtomicBool,
    /// When the next check of the clock is, in microseconds.
    pub(crate) next_due: AtomicI64,
    /// Which queues each worker serves. This never changes after the registration.
    served: RwLock<FxHashMap<WorkerId, Arc<[PartitionId]>>>,
    /// A queue never changes its partition.
    queues: RwLock<FxHashMap<Arc<str>, PartitionId>>,
    /// Prefetch hints for decisions.
    pub(crate) hints: Arc<PrefetchHints>,
    /// How this node takes part in the cluster.
    pub(crate) participation: Participation,
    /// Whether a client watched a channel at the last check, and whether a check has happened.
    pub(crate) watched: AtomicBool,
    watchers_checked: OnceCell<()>,
    /// The last term of this node, and its availability in that term.
    availability: Mutex<Option<(u64, Availability)>>,
    /// When this server started.
    pub(crate) began: Stopwatch,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
}
impl Shared {
    pub(crate) fn new(store: Arc<dyn Store>, options: Options) -> Self {
        Self {
            store,
            options,
            meter: Meter::default(),
            notifiers: Arc::default(),
            alarm: Notify::new(),
            timeouts_requested: AtomicBool::new(false),
            schedules_requested: AtomicBool::new(false),
            next_due: AtomicI64::new(i64::MAX),
            served: RwLock::default(),
            queues: RwLock::default(),
            hints: Arc::default(),
            participation: Participation::default(),
            watched: AtomicBool::new(false),
            watchers_checked: OnceCell::new(),
            availability: Mutex::default(),
            began: Stopwatch::start(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    pub(crate) const CLOCK: &'static str = "clock";
    pub(crate) const SCHEDULES: &'static str = "schedules";

    /// Whether a duty was requested.
    pub(crate) fn is_requested(&self, duty: &str) -> bool {
        match duty {
            Self::CLOCK => self.timeouts_requested.swap(false, Ordering::SeqCst),
            Self::SCHEDULES => self.schedules_requested.swap(false, Ordering::SeqCst),
            _ => false,
        }
    }

    /// The last term of this node, and its availability in that term.
    pub(crate) fn availability(&self) -> Option<(u64, Availability)> {
        *self.availability.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The availability in one term. That of an earlier term is useless: another node has led since.
    pub(crate) fn availability_in(&self, term: &Term) -> Option<Availability> {
        self.availability().filter(|(number, _)| *number == term.number).map(|(_, known)| known)
    }

    pub(crate) fn note_availability(&self, term: u64, known: Availability) {
        *self.availability.lock().unwrap_or_else(PoisonError::into_inner) = Some((term, known));
    }

    /// The policy for rules now. The first call checks for channel watchers; without that, a new server would not
    /// publish its first changes.
    pub(crate) async fn policy(&self) -> Policy {
        let watchers_checked =
            self.watchers_checked.get_or_try_init(|| async { self.find_watchers().await.map(drop) });
        // Writing a journal that no client reads is harmless.
        let watched = watchers_checked.await.is_err() || self.watched.load(Ordering::Relaxed);
        Policy { watched, ..self.options.policy }
    }

    /// Checks whether a client watches a channel. Returns the former result and the new one.
    pub(crate) async fn find_watchers(&self) -> Result<(bool, bool), baton_store::Error> {
        let prefix = Arc::clone(&self.options.channels);
        let watched = run(&*self.store, move |tx| is_watched(tx, &prefix)).await?;
        Ok((self.watched.swap(watched, Ordering::Relaxed), watched))
    }

    /// Runs a rule in one commit and applies the effects.
    pub(crate) async fn decide<R: Send + 'static>(
        &self,
        rule: impl FnMut(&mut JobsTx<'_>) -> Result<R, Abort> + Send + 'static,
    ) -> Result<R, Error> {
        self.decide_with_prefetch(|_| Vec::new(), rule).await
    }

    /// Runs a rule, and fetches the rows that it probably needs with its first miss.
    pub(crate) async fn decide_with_prefetch<R: Send + 'static>(
        &self,
        keys: impl Fn(&PrefetchHints) -> Vec<String> + Send + 'static,
        mut rule: impl FnMut(&mut JobsTx<'_>) -> Result<R, Abort> + Send + 'static,
    ) -> Result<R, Error> {
        let (policy, hints) = (self.policy().await, Arc::clone(&self.hints));
        let mut rule = move |tx: &mut JobsTx<'_>| {
            let outcome = rule(tx);
            if matches!(outcome, Err(Abort::Stop(TxError::RowsMissing))) {
                // The result does not matter: the rule runs again anyway.
                let _ = tx.prefetch(keys(&hints).iter().map(String::as_str));
            }
            outcome
        };
        let decided = run(&*self.store, move |tx| decide(tx, policy, &mut rule)).await?;
        let (answer, effects) = decided?;
        self.apply_effects(&effects);
        Ok(answer)
    }

    /// Runs a rule while `term` is valid.
    pub(crate) async fn decide_guarded<R: Send + 'static>(
        &self,
        term: Term,
        mut rule: impl FnMut(&mut JobsTx<'_>) -> Result<R, Abort> + Send + 'static,
    ) -> Result<R, Error> {
        let policy = self.policy().await;
        let decided = run(&*self.store, move |tx| {
            if !term.guard(tx)? {
                return Ok(Err(Error::not_leader()));
            }
            decide(tx, policy, &mut rule)
        })
        .await?;
        let (answer, effects) = decided?;
        self.apply_effects(&effects);
        Ok(answer)
    }

    /// Wakes waiters and counts.
    pub(crate) fn apply_effects(&self, effects: &CommitEffects) {
        self.meter.add(&effects.counts);
        for (partition, jobs) in &effects.ready {
            self.notifiers.ready(*partition, *jobs);
        }
        self.notifiers.changed(&effects.changed);
        self.notifiers.call(&effects.called);
        if let Some(pages) = effects.permit_pages {
            self.hints.note_permits(pages);
        }
        if effects.due.is_some_and(|due| due.micros() < self.next_due.load(Ordering::SeqCst)) {
            self.timeouts_requested.store(true, Ordering::SeqCst);
            self.alarm.notify_one();
        }
        if effects.fires {
            self.schedules_requested.store(true, Ordering::SeqCst);
            self.alarm.notify_one();
        }
    }

    /// The queues that a worker serves, if this server knows.
    pub(crate) fn served(&self, worker: WorkerId) -> Option<Arc<[PartitionId]>> {
        self.served.read().unwrap_or_else(PoisonError::into_inner).get(&worker).cloned()
    }

    pub(crate) fn note_served(&self, worker: WorkerId, queues: &[PartitionId]) {
        let mut served = self.served.write().unwrap_or_else(PoisonError::into_inner);
        if served.len() >= WORKERS_MAX {
            // Most of these workers are gone; the others are added again.
            served.clear();
        }
        served.insert(worker, queues.into());
    }

    fn known_queue(&self, name: &str) -> Option<PartitionId> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    /// The partition of a queue, which is created if it does not exist.
    pub(crate) async fn queue(&self, name: &str) -> Result<PartitionId, Error> {
        if let Some(partition) = self.known_queue(name) {
            return Ok(partition);
        }
        check_name("queue", name)?;
        let wanted = name.to_owned();
        let partition = run(&*self.store, move |tx| queues::create(tx, &wanted)).await??;
        self.queues.write().unwrap_or_else(PoisonError::into_inner).insert(name.into(), partition);
        Ok(partition)
    }

    /// The partition of an existing queue.
    pub(crate) async fn existing_queue(&self, name: &str) -> Result<PartitionId, Error> {
        if let Some(partition) = self.known_queue(name) {
            return Ok(partition);
        }
        let wanted = name.to_owned();
        let found = self.decide(move |tx| queues::find(tx, &wanted)).await?;
        found.ok_or_else(|| Error::NotFound(format!("there is no job queue {name:?}")))
    }

    /// The partitions of all queues.
    pub(crate) async fn all_queues(&self) -> Result<Vec<PartitionId>, Error> {
        let (mut all, mut after) = (Vec::new(), None::<String>);
        loop {
            let from = after.clone();
            let page = run(&*self.store, move |tx| {
                tx.records(crate::model::keys::QUEUES, from.as_deref(), PAGE_MAX)
            })
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

/// Runs a rule within a decision of the store. Returns its answer and effects, or why it was refused.
pub(crate) fn decide<R>(
    tx: &mut dyn Tx,
    policy: Policy,
    rule: &mut dyn FnMut(&mut JobsTx<'_>) -> Result<R, Abort>,
) -> Result<Result<(R, CommitEffects), Error>, TxError> {
    let mut tx = JobsTx::new(tx, policy);
    match rule(&mut tx) {
        Ok(answer) => {
            let effects = tx.commit()?;
            Ok(Ok((answer, effects)))
        }
        Err(Abort::Refused(error)) => Ok(Err(error)),
        Err(Abort::Stop(stop)) => Err(stop),
    }
}
