//! The broker: every operation on queues, run on a store.
//!
//! It finds out what a request means (which message a transaction id names), runs the decision, and reads the
//! payloads that were granted. The rules are in the modules beside it; HTTP is not known here.

mod dead_letter_bulk;
mod dead_letters;
mod fetch;
mod groups;
pub mod history;
mod maintenance;
mod messages;
pub mod metrics;
mod outage;
mod overview;
mod pop;
mod queues;
mod records;
mod resolve;
mod streams;
mod traces;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_env::{Clock, Stopwatch, SystemClock};
use baton_store::{Queue, QueueSpec, Store, Tx, TxError};
use baton_types::{LeaseId, PartitionId, QueueOptions, Timestamp, limits};
use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::dead_letter_bulk::{
    LetterError, LetterErrors, LetterFilter, LetterPlace, LetterProgress, LetterSample,
};
pub use self::dead_letters::Causes;
pub use self::fetch::{FetchEntry, Fetched, Marks};
use self::maintenance::Keeper;
use self::outage::Outage;
pub use self::outage::Spool;
pub use self::queues::Cleared;
use self::resolve::Deliveries;
pub use self::traces::TracedMessage;
use crate::Error;
use crate::broker::history::Series;
use crate::broker::metrics::{Kind, Meters};
use crate::rules;
use crate::rules::ack::{self, AckItem, Acked, LeaseClaim, RepeatedAck, Resolved};
use crate::rules::push::{self, PushBatch, Pushed, check_name};
use crate::rules::quota;
use crate::rules::retention;
use crate::rules::seal::{self, Keyring, Sealer};
use crate::rules::transaction::{self, Ready, Step, Transaction, TransactionResult};
use crate::wait::hint::{News, Relay};
use crate::wait::service::{GiveBack, Parking};
use crate::wait::{BackOff, WaitStatistics};

pub use overview::Numbers;

/// Better no queue than one that says it is encrypted and is not.
const NO_ENCRYPTION: &str =
    "encryptionEnabled needs a key, and this server has none; start it with encryption_keys";
/// How often a push is sealed anew, as other queues of it turn out to be encrypted.
const SEALINGS_MAX: usize = 1000;
/// When to come back to a full spool.
const SPOOL_FULL_FOR: Duration = Duration::from_secs(1);
/// Rows read in one decision while a listing is put together.
const PAGE: usize = 1000;

/// How the broker waits and cleans up.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of this node, under which it keeps its numbers.
    pub node: Arc<str>,
    /// The first pause of a waiting pop between two looks.
    pub pop_wait_initial_interval: Duration,
    /// Empty looks before the pause grows.
    pub pop_wait_backoff_threshold: u32,
    /// By how much it grows.
    pub pop_wait_backoff_multiplier: f64,
    /// The longest pause.
    pub pop_wait_max_interval: Duration,
    /// Between two sweeps for messages to give up.
    pub retention_interval: Duration,
    /// Pops that may wait at once.
    pub waiters_max: usize,
    /// Whether a pop with a group, or one that waits, creates the queue that it names.
    pub pop_creates_queue: bool,
    /// The keys of encrypted queues.
    pub keys: Keyring,
    /// How long a trace is kept.
    pub trace_retention: Duration,
    /// Where pushes wait while the store is away; without one they are refused.
    pub spool: Option<Spool>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node: "baton".into(),
            pop_wait_initial_interval: Duration::from_millis(100),
            pop_wait_backoff_threshold: 3,
            pop_wait_backoff_multiplier: 2.0,
            pop_wait_max_interval: Duration::from_millis(1000),
            retention_interval: Duration::from_secs(2),
            waiters_max: 100_000,
            pop_creates_queue: false,
            keys: Keyring::default(),
            trace_retention: Duration::from_secs(7 * 24 * 3600),
            spool: None,
        }
    }
}

/// The queues of one store. Cheap to clone.
#[derive(Clone)]
pub struct Broker {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn Store>,
    parking: Arc<Parking>,
    deliveries: Deliveries,
    meters: Meters,
    series: Series,
    numbers: overview::Cache,
    sealer: Arc<Sealer>,
    keeper: Arc<Keeper>,
    outage: Option<Arc<Outage>>,
    pop_creates_queue: bool,
    trace_retention: Duration,
    /// Rung when a timer was set.
    alarm: Notify,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Broker {
    /// Starts the tasks that keep time for waiting pops, fire timers, keep numbers and give up what is old. Needs a
    /// tokio runtime.
    pub fn start(store: Arc<dyn Store>, options: Options) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let back_off = BackOff {
            initial: options.pop_wait_initial_interval,
            threshold: options.pop_wait_backoff_threshold,
            multiplier: options.pop_wait_backoff_multiplier,
            max: options.pop_wait_max_interval,
        };
        let parking = Parking::new(store.clone(), clock, back_off, options.waiters_max);
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let series = Series::new(&options.node, store.now());
        let sealer = Arc::new(Sealer::new(options.keys));
        let keeper = Keeper::new(store.clone(), parking.clone(), sealer.clone());
        let detour = keeper.always();
        let outage = options.spool.map(|spool| Outage::new(spool, store.clone(), sealer.clone(), detour));
        let shared = Arc::new(Shared {
            store,
            parking: parking.clone(),
            deliveries: Deliveries::default(),
            sealer,
            meters: Meters::default(),
            series,
            numbers: overview::Cache::default(),
            keeper: keeper.clone(),
            outage: outage.clone(),
            pop_creates_queue: options.pop_creates_queue,
            trace_retention: options.trace_retention,
            alarm: Notify::new(),
            stop: stop.clone(),
            tasks: tasks.clone(),
        });
        tasks.spawn(parking.run(stop.clone()));
        tasks.spawn(keep_sweeping(shared.clone(), options.retention_interval));
        tasks.spawn(keep_series(shared.clone()));
        tasks.spawn(keeper.run(stop.clone()));
        if let Some(outage) = outage {
            tasks.spawn(outage.run(stop));
        }
        tasks.spawn(records::keep_firing(shared.clone()));
        tasks.close();
        Self { shared }
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// Queues that are encrypted although there is no key, so that nothing can be pushed to or popped from them.
    pub async fn queues_without_key(&self) -> Result<Vec<String>, Error> {
        if self.shared.sealer.can_seal() {
            return Ok(Vec::new());
        }
        let queues = self.matching_queues(None, None, None).await?;
        let encrypted = queues.iter().filter(|queue| queue.spec.options.encryption_enabled);
        Ok(encrypted.map(|queue| queue.spec.name.to_string()).collect())
    }

    /// Numbers about waiting pops.
    pub fn wait_statistics(&self) -> WaitStatistics {
        self.shared.parking.statistics()
    }

    /// From now on `relay` tells other servers on the same store what happens here.
    pub fn relay(&self, relay: Relay) {
        self.shared.parking.relay(relay);
    }

    /// Another server on the same store says that something happened.
    pub fn hear(&self, news: News<'_>) {
        match news {
            News::Happened(event) => self.shared.parking.hear(event),
            News::Configured(queue) => self.shared.parking.wake(queue),
            News::Switched => self.shared.keeper.look(),
            News::Waits { .. } | News::Deleted { .. } => {}
        }
    }

    /// Gives back what a pop was granted whose answer got lost: at once and uncharged, as if it had never been.
    pub fn give_back(&self, lease: LeaseId) {
        self.shared.store.submit(Box::new(GiveBack(lease)));
    }

    /// How many pops wait for each queue.
    pub fn waiting_by_queue(&self) -> BTreeMap<String, u64> {
        self.shared.parking.by_queue()
    }

    /// Answers every parked pop with nothing and takes no new ones.
    pub async fn shutdown(&self) {
        self.shared.stop.cancel();
        self.shared.parking.close();
        self.shared.tasks.wait().await;
    }

    async fn run<R, F>(&self, decide: F) -> Result<R, Error>
    where
        R: Send + 'static,
        F: FnMut(&mut dyn Tx) -> Result<R, TxError> + Send + 'static,
    {
        Ok(baton_store::run(&*self.shared.store, decide).await?)
    }

    /// Creates or changes a queue. An absent label or option keeps its value; `replace` starts from the
    /// defaults instead.
    pub async fn configure(
        &self,
        queue: &str,
        namespace: Option<&str>,
        task: Option<&str>,
        options: &Map<String, Value>,
        replace: bool,
    ) -> Result<Arc<Queue>, Error> {
        check_name("queue", queue)?;
        for label in namespace.iter().chain(&task) {
            check_name("namespace or task", label)?;
        }
        let (name, options): (Arc<str>, _) = (queue.into(), options.clone());
        let can_seal = self.shared.sealer.can_seal();
        let (namespace, task) = (namespace.map(Arc::<str>::from), task.map(Arc::<str>::from));
        let configured = self.run(move |tx| {
            let known = tx.queue(&name)?;
            if known.is_none() {
                quota::for_queues(tx, 1)?;
            }
            let old = known.filter(|_| !replace);
            let base = old.as_ref().map_or_else(QueueOptions::default, |old| old.spec.options.clone());
            let options = match base.with_changes(&options) {
                Ok(options) => options,
                Err(error) => return Ok(Err(Error::Invalid(error.to_string()))),
            };
            if options.encryption_enabled && !can_seal {
                return Ok(Err(Error::Invalid(NO_ENCRYPTION.into())));
            }
            let label = |given: &Option<Arc<str>>, old: Option<&Arc<str>>| {
                given.clone().or_else(|| old.cloned()).unwrap_or_else(|| "".into())
            };
            tx.put_queue(QueueSpec {
                name: name.clone(),
                namespace: label(&namespace, old.as_ref().map(|old| &old.spec.namespace)),
                task: label(&task, old.as_ref().map(|old| &old.spec.task)),
                options,
            })
            .map(Ok)
        });
        let configured = configured.await??;
        self.shared.sealer.note(queue, configured.spec.options.encryption_enabled);
        self.shared.parking.tell(News::Configured(configured.id));
        Ok(configured)
    }

    /// Stores messages. All or none; answered when they are on disk: the store's, or this server's own while the
    /// store is away.
    pub async fn push(&self, mut batch: PushBatch) -> Result<Vec<Pushed>, Error> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        batch.detour = self.shared.keeper.always();
        let watch = Stopwatch::start();
        let mut batch = Arc::new(self.sealed(batch)?);
        let pushed = match &self.shared.outage {
            Some(outage) => self.push_or_wait(outage, Arc::clone(&batch)).await?,
            None => self.run_sealed(&mut batch, push::push).await?,
        };
        let (meters, count) = (&self.shared.meters, batch.counted(&pushed));
        meters.pushed(&count, pushed.iter().filter(|pushed| pushed.duplicate).count() as u64);
        meters.took(Kind::Push, watch.elapsed());
        Ok(pushed)
    }

    /// Stores messages, or lets them wait here when the store is away or others wait before them.
    async fn push_or_wait(
        &self,
        outage: &Arc<Outage>,
        mut batch: Arc<PushBatch>,
    ) -> Result<Vec<Pushed>, Error> {
        if outage.is_ahead_of(&batch).await? {
            let taken = outage.take_in(self.all_sealed(batch)?).await?;
            return taken.ok_or(Error::Store(baton_store::Error::Busy(SPOOL_FULL_FOR)));
        }
        match self.run_sealed(&mut batch, push::push).await {
            // Nothing was changed. After any other failure that is not certain, and the caller is told.
            Err(error @ Error::Store(baton_store::Error::Busy(_)))
                if self.shared.store.outage().is_some() =>
            {
                outage.take_in(self.all_sealed(batch)?).await?.ok_or(error)
            }
            other => other,
        }
    }

    /// Runs a decision that pushes. Which of its queues are encrypted is known for certain only when it is made, so
    /// it may turn out that more has to be sealed first.
    async fn run_sealed<R, F>(&self, batch: &mut Arc<PushBatch>, decide: F) -> Result<R, Error>
    where
        R: Send + 'static,
        F: Fn(&mut dyn Tx, &PushBatch) -> Result<Result<R, Error>, TxError> + Clone + Send + 'static,
    {
        for _ in 0..SEALINGS_MAX {
            let (decided, decide) = (Arc::clone(batch), decide.clone());
            match self.run(move |tx| decide(tx, &decided)).await? {
                Err(Error::Unsealed(queue)) => *batch = Arc::new(self.seal_for(&queue, batch)?),
                other => return other,
            }
        }
        Err(too_many_encrypted())
    }

    /// The messages, sealed as far as it is known that they must be.
    fn sealed(&self, batch: PushBatch) -> Result<PushBatch, Error> {
        let sealer = &self.shared.sealer;
        let noted = |queue: &str| sealer.is_noted(queue);
        if sealer.can_seal() && batch.is_for(noted) { batch.sealed(sealer, noted) } else { Ok(batch) }
    }

    /// The messages, all sealed if they can be: which queues are encrypted is not certain while the store is away.
    fn all_sealed(&self, batch: Arc<PushBatch>) -> Result<Arc<PushBatch>, Error> {
        let sealer = &self.shared.sealer;
        if sealer.can_seal() { batch.sealed(sealer, |_| true).map(Arc::new) } else { Ok(batch) }
    }

    /// The messages, sealed for one more queue.
    fn seal_for(&self, queue: &str, batch: &PushBatch) -> Result<PushBatch, Error> {
        let sealer = &self.shared.sealer;
        if !sealer.can_seal() {
            return Err(seal::no_key());
        }
        sealer.note(queue, true);
        batch.sealed(sealer, |name| name == queue)
    }

    /// Finishes messages, or says that they failed. One result per item, in order.
    pub async fn ack(&self, items: Vec<AckItem>) -> Result<Vec<Acked>, Error> {
        let watch = Stopwatch::start();
        let acks = self.resolve(items).await?;
        let leases: Vec<_> = acks.iter().map(|ack| (ack.item.lease, ack.item.partition)).collect();
        let results = self
            .run(move |tx| {
                let prepared = ack::prepare(tx, &acks, RepeatedAck::Succeeds)?;
                Ok(ack::write(tx, prepared))
            })
            .await?;
        self.forget_released(&leases, &results);
        self.shared.meters.acked(&results);
        self.shared.meters.took(Kind::Ack, watch.elapsed());
        Ok(results)
    }

    fn forget_released<'a>(
        &self,
        leases: &[(LeaseClaim, Option<PartitionId>)],
        results: impl IntoIterator<Item = &'a Acked>,
    ) {
        for ((lease, partition), result) in leases.iter().zip(results) {
            if let (LeaseClaim::Held(lease), Some(partition), true) =
                (lease, partition, result.lease_released)
            {
                self.shared.deliveries.remove(*lease, *partition);
            }
        }
    }

    /// Finds the message that each ack means.
    async fn resolve(&self, items: Vec<AckItem>) -> Result<Vec<Resolved>, Error> {
        let (store, deliveries) = (&self.shared.store, &self.shared.deliveries);
        let mut acks: Vec<_> = items.into_iter().map(|item| deliveries.find(item)).collect();
        for ack in acks.iter_mut().filter(|ack| ack.offset.is_none()) {
            let Some(partition) = ack.item.partition else { continue };
            let found = resolve::find_indexed(store, partition, &ack.item.transaction_id);
            ack.offset = Box::pin(found).await?.map(|message| message.offset);
        }
        if acks.iter().any(|ack| ack.offset.is_none() && ack.item.partition.is_some()) {
            Box::pin(resolve::find_held(store, deliveries, &mut acks)).await?;
        }
        Ok(acks)
    }

    /// Does several acks, pushes, operations on records and timers together or not at all.
    pub async fn transaction(&self, transaction: Transaction) -> Result<TransactionResult, Error> {
        let watch = Stopwatch::start();
        let (mut items, mut pushes, mut shape) = (Vec::new(), PushBatch::default(), Vec::new());
        pushes.detour = self.shared.keeper.behind();
        for step in transaction.steps {
            match step {
                Step::Ack(item) => {
                    items.push(item);
                    shape.push(None);
                }
                Step::Push(batch) => {
                    shape.push(Some(batch.len()));
                    pushes.extend(batch);
                }
            }
        }
        let acks = self.resolve(items).await?;
        let leases: Vec<_> = acks.iter().map(|ack| (ack.item.lease, ack.item.partition)).collect();
        let sets_timers = !transaction.timers.is_empty();
        let count = pushes.count();
        let ready = Arc::new(Ready {
            acks,
            shape,
            required_leases: transaction.required_leases,
            kv: transaction.kv,
            timers: transaction.timers,
            positions: transaction.positions,
            rider: transaction.rider,
            repeatable: transaction.repeatable,
        });
        let sealer = Arc::clone(&self.shared.sealer);
        let decide =
            move |tx: &mut dyn Tx, pushes: &PushBatch| transaction::transact(tx, &ready, pushes, &sealer);
        let mut pushes = Arc::new(self.sealed(pushes)?);
        let result = match self.run_sealed(&mut pushes, decide).await {
            Err(error @ Error::KeyMissing(_)) => {
                return Ok(TransactionResult::not_done("encryption_key_missing", error.to_string()));
            }
            other => other?,
        };
        if result.repeated {
            return Ok(result);
        }
        if sets_timers {
            self.shared.alarm.notify_one();
        }
        let acked = || {
            result.results.iter().filter_map(|step| match step {
                transaction::StepResult::Ack(acked) => Some(acked),
                transaction::StepResult::Push(_) => None,
            })
        };
        self.forget_released(&leases, acked());
        let meters = &self.shared.meters;
        meters.transacted(&count);
        meters.acked(acked());
        if result.error.is_none() {
            let pushed = result.results.iter().filter_map(|step| match step {
                transaction::StepResult::Push(pushed) => Some(pushed),
                transaction::StepResult::Ack(_) => None,
            });
            let pushed: Vec<_> = pushed.flatten().copied().collect();
            meters.pushed(&pushes.counted(&pushed), 0);
        }
        meters.took(Kind::Transaction, watch.elapsed());
        Ok(result)
    }

    /// Lets a lease run longer; how many (partition, group) leases were extended, and when the first ends.
    pub async fn extend(&self, lease: LeaseId, by: Duration) -> Result<(u64, Option<Timestamp>), Error> {
        self.run(move |tx| rules::pop::extend(tx, lease, by.min(limits::LEASE_MAX))).await
    }
}

fn too_many_encrypted() -> Error {
    Error::Invalid(format!("a call pushes to at most {SEALINGS_MAX} queues that became encrypted just now"))
}

async fn keep_sweeping(shared: Arc<Shared>, every: Duration) {
    loop {
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = baton_env::sleep(every) => {}
        }
        match retention::sweep(&*shared.store).await {
            Ok(0) => {}
            Ok(messages) => {
                shared.meters.expired(messages);
                tracing::debug!(messages, "gave up old messages");
            }
            Err(error) => tracing::warn!(%error, "could not give up old messages; will try again"),
        }
        if let Err(error) = traces::expire(&*shared.store).await {
            tracing::warn!(%error, "could not forget old traces; will try again");
        }
        if let Err(error) = streams::clear(&*shared.store).await {
            tracing::warn!(%error, "could not clear away old state; will try again");
        }
        match records::sweep_expired(&*shared.store).await {
            Ok(0) => {}
            Ok(records) => tracing::debug!(records, "removed expired records"),
            Err(error) => tracing::warn!(%error, "could not remove expired records; will try again"),
        }
    }
}

async fn keep_series(shared: Arc<Shared>) {
    let waiting = || shared.parking.by_queue();
    shared.series.keep(&*shared.store, &shared.meters, &waiting, shared.stop.clone()).await;
}
