//! The actor of one service on one server: batches requests, decides each batch in one transaction, publishes the
//! new snapshot.
//!
//! Requests that arrive during a decision are decided together in the next one. Several servers may run an actor
//! for the same service: each decision reads the service in the transaction that changes it (optimistic
//! concurrency), so decisions are serialized by the store. So no server has to be elected, and any of them may die,
//! pause or be cut off.
//!
//! A heartbeat that changes nothing costs no commit. With a private store it stays in memory, and a server that
//! just started counts every worker as heard at that moment. With a shared store heartbeats are stored a few times
//! per timeout, in batches, before they are answered: another server must not expire a worker that was told to go
//! on.
//!
//! Always: only timestamps of one clock are compared, the store's clock when it is shared, this machine's monotonic
//! clock when it is not. Start at [`ServiceActor::run`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_env::{BootClock, Clock};
use baton_store::{Error, Store, Tx, TxError};
use baton_types::Timestamp;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::limits::SERVICES_MAX;
use crate::options::Options;
use crate::outcome::{Outcome, ReplyCallback};
use crate::request::{Refusal, Request};
use crate::service::{Rules, Service, Status};
use crate::service_record::{self, StoredService};
use crate::view::Snapshot;

/// Requests per decision.
const BATCH_MAX: usize = 8_192;
/// How often a watched service is read again for changes by other servers.
const REREAD_INTERVAL: Duration = Duration::from_millis(250);
/// Pause after an error of the store.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Heartbeat records older than this many timeouts are removed: their server is gone.
const STALE_AFTER_TIMEOUTS: u32 = 4;

/// A request and the callback for its outcome.
pub struct QueuedRequest {
    pub request: Request,
    pub reply: ReplyCallback,
}

/// Counters of a service.
#[derive(Debug, Default)]
pub struct ServiceCounters {
    /// Heartbeats.
    pub heartbeats: AtomicU64,
    /// Requests that were refused.
    pub refusals: AtomicU64,
    /// The longest silence of an active worker at the last check, in microseconds.
    pub lag_micros: AtomicU64,
}

/// The actor of one service.
pub struct ServiceActor {
    name: Arc<str>,
    store: Arc<dyn Store>,
    options: Options,
    server: u64,
    clock: BootClock,
    /// The timestamp at which the monotonic clock was zero.
    origin: Timestamp,
    stored: StoredService,
    snapshot: Arc<Snapshot>,
    loaded: bool,
    /// Whether `stored` matches the store, except for other servers' writes.
    cache_valid: bool,
    /// Whether a queued request changes the service, so that it must be decided now.
    decide_now: bool,
    /// The last heartbeat of each worker; used only with a private store.
    last_heard: Arc<FxHashMap<u32, Timestamp>>,
    waiting: Vec<QueuedRequest>,
    /// Heartbeat records written.
    heartbeat_slot: u64,
    next_heartbeat_write: Timestamp,
    next_check: Timestamp,
    /// When the service was last read.
    read_at: Timestamp,
    /// Wakes the actor when a watcher subscribes, because it then reads more often.
    subscribed: Arc<Notify>,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    counters: Arc<ServiceCounters>,
}

/// The inputs of a decision.
struct DecisionInput {
    name: Arc<str>,
    cached: StoredService,
    requests: Arc<Vec<Request>>,
    rules: Rules,
    /// The current time; `None` to take the store's.
    now: Option<Timestamp>,
    last_heard: Arc<FxHashMap<u32, Timestamp>>,
    /// Whether to expire silent workers.
    expire_silent: bool,
    server: u64,
    heartbeat_slot: u64,
}

/// The result of a decision.
struct Decision {
    stored: StoredService,
    outcomes: Vec<Result<u32, Refusal>>,
    now: Timestamp,
    lag: Duration,
    wrote_heartbeats: bool,
}

impl ServiceActor {
    pub fn new(
        name: Arc<str>,
        store: Arc<dyn Store>,
        options: Options,
        server: u64,
        subscribed: Arc<Notify>,
        snapshots: watch::Sender<Option<Arc<Snapshot>>>,
        counters: Arc<ServiceCounters>,
    ) -> Self {
        let clock = BootClock::default();
        let origin = store.now().before(clock.elapsed());
        let stored = StoredService::absent();
        let snapshot = Arc::new(Snapshot::compute(Arc::clone(&stored.service), 0));
        let start = Timestamp::MIN;
        Self {
            name,
            store,
            options,
            server,
            clock,
            origin,
            stored,
            snapshot,
            loaded: false,
            cache_valid: false,
            decide_now: false,
            last_heard: Arc::default(),
            waiting: Vec::new(),
            heartbeat_slot: 0,
            next_heartbeat_write: start,
            next_check: start,
            read_at: start,
            subscribed,
            snapshots,
            counters,
        }
    }

    /// The monotonic clock as a timestamp.
    fn now(&self) -> Timestamp {
        self.origin.after(self.clock.elapsed())
    }

    /// The name of the service.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Runs until `stopping`. Returns early, with true, when the service is not stored and no request waits.
    pub async fn run(
        &mut self,
        inputs: &mut mpsc::Receiver<QueuedRequest>,
        stopping: &CancellationToken,
    ) -> bool {
        loop {
            let pause = self.next_wakeup().since(self.now());
            let room = BATCH_MAX.saturating_sub(self.waiting.len()).max(1);
            tokio::select! {
                biased;
                () = stopping.cancelled() => break,
                () = baton_env::sleep(pause) => {}
                () = self.subscribed.notified() => continue,
                received = inputs.recv_many(&mut self.waiting, room), if self.waiting.len() < BATCH_MAX => {
                    if received == 0 {
                        break;
                    }
                    let fresh = &self.waiting[self.waiting.len() - received..];
                    let service = &self.stored.service;
                    self.decide_now |= fresh.iter().any(|input| service.unchanging_heartbeat(&input.request).is_none());
                }
            }
            tokio::select! {
                biased;
                () = stopping.cancelled() => break,
                () = self.tick() => {}
            }
            if self.cache_valid && self.stored.version == 0 && self.waiting.is_empty() {
                return true;
            }
        }
        inputs.close();
        while let Ok(input) = inputs.try_recv() {
            self.waiting.push(input);
        }
        let stopped = || Refusal::Store("the server is stopping: ask another one".into());
        self.waiting.drain(..).for_each(|input| (input.reply)(Err(stopped())));
        false
    }

    /// When the next timer fires.
    fn next_wakeup(&self) -> Timestamp {
        let mut due = self.next_check;
        if let Some(at) = self.stored.service.next_rebalance_at(&self.options.rules) {
            // The store's clock and this machine's may differ; an early check does no harm.
            due = due.min(at.max(self.now().after(RETRY_PAUSE)));
        }
        if self.options.shared {
            due = due.min(self.next_read());
            if !self.waiting.is_empty() {
                due = due.min(self.next_heartbeat_write);
            }
        }
        due
    }

    /// When to read again for changes by other servers.
    fn next_read(&self) -> Timestamp {
        // The actor's handle holds one receiver itself.
        let watched = self.snapshots.receiver_count() > 1;
        let often = watched || !self.cache_valid;
        self.read_at.after(if often { REREAD_INTERVAL } else { self.options.check_interval })
    }

    async fn tick(&mut self) {
        let now = self.now();
        let check = now >= self.next_check;
        if !self.options.shared && self.cache_valid {
            self.answer_heartbeats_from_memory(now);
        }
        let write_heartbeats = !self.waiting.is_empty() && now >= self.next_heartbeat_write;
        let rebalance =
            self.stored.service.next_rebalance_at(&self.options.rules).is_some_and(|at| now >= at);
        let reread = self.options.shared && now >= self.next_read();
        let expire = check && (self.options.shared || self.has_expired_workers(now));
        if check {
            self.next_check = now.after(self.options.check_interval);
        }
        if self.decide_now || write_heartbeats || rebalance || reread || expire || !self.cache_valid {
            self.decide(now, check).await;
        }
    }

    /// Answers heartbeats that change nothing, without a commit.
    fn answer_heartbeats_from_memory(&mut self, now: Timestamp) {
        let service = Arc::clone(&self.stored.service);
        let heard = Arc::make_mut(&mut self.last_heard);
        for input in std::mem::take(&mut self.waiting) {
            match service.unchanging_heartbeat(&input.request) {
                Some(number) => {
                    heard.insert(number, now);
                    self.counters.heartbeats.fetch_add(1, Ordering::Relaxed);
                    (input.reply)(Ok(Outcome { snapshot: Arc::clone(&self.snapshot), number }));
                }
                None => self.waiting.push(input),
            }
        }
    }

    fn has_expired_workers(&mut self, now: Timestamp) -> bool {
        let service = Arc::clone(&self.stored.service);
        let heard = Arc::make_mut(&mut self.last_heard);
        heard.retain(|number, _| service.worker(*number).is_some());
        let last = |number| heard.get(&number).copied();
        self.counters.set_lag(service.longest_silence(now, last));
        service.has_expired_workers(&self.options.rules, now, last)
    }

    async fn decide(&mut self, now: Timestamp, check: bool) {
        self.decide_now = false;
        let inputs = std::mem::take(&mut self.waiting);
        let (requests, replies): (Vec<_>, Vec<_>) =
            inputs.into_iter().map(|input| (input.request, input.reply)).unzip();
        let shared = self.options.shared;
        let question = DecisionInput {
            name: Arc::clone(&self.name),
            cached: self.stored.clone(),
            requests: Arc::new(requests),
            rules: self.options.rules,
            now: (!shared).then_some(now),
            last_heard: Arc::clone(&self.last_heard),
            // With a private store nothing can expire before the service was read: `last_heard` is empty until
            // then.
            expire_silent: check && (self.loaded || shared),
            server: self.server,
            heartbeat_slot: self.heartbeat_slot,
        };
        let requests = Arc::clone(&question.requests);
        match baton_store::run(&*self.store, move |tx| question.decide(tx)).await {
            Ok(decided) => self.apply_decision(decided, &requests, replies),
            Err(error) => self.refuse_all(&error, replies).await,
        }
    }

    fn apply_decision(&mut self, decided: Decision, requests: &[Request], replies: Vec<ReplyCallback>) {
        let now = self.now();
        let changed = decided.stored.version != self.stored.version || !self.loaded;
        self.stored = decided.stored;
        if !self.loaded && !self.options.shared {
            let all = self.stored.service.workers().map(|(number, _)| (number, now)).collect();
            self.last_heard = Arc::new(all);
        }
        (self.loaded, self.cache_valid) = (true, true);
        self.read_at = now;
        if decided.wrote_heartbeats {
            self.heartbeat_slot += 1;
            self.next_heartbeat_write =
                now.after(service_record::heartbeat_write_interval(self.longest_timeout()));
        }
        if self.options.shared && decided.lag > Duration::ZERO {
            self.counters.set_lag(decided.lag);
        }
        if changed {
            let (service, version) = (Arc::clone(&self.stored.service), self.stored.version);
            self.snapshot = Arc::new(Snapshot::compute(service, version));
        }
        let heard = (!self.options.shared).then(|| Arc::make_mut(&mut self.last_heard));
        let mut heartbeats: Vec<u32> = Vec::new();
        for ((request, outcome), reply) in requests.iter().zip(decided.outcomes).zip(replies) {
            match &outcome {
                Ok(number) if matches!(request, Request::Heartbeat(_)) => {
                    self.counters.heartbeats.fetch_add(1, Ordering::Relaxed);
                    heartbeats.push(*number);
                }
                Ok(_) => {}
                Err(_) => {
                    self.counters.refusals.fetch_add(1, Ordering::Relaxed);
                }
            }
            let snapshot = Arc::clone(&self.snapshot);
            reply(outcome.map(|number| Outcome { snapshot, number }));
        }
        if let Some(heard) = heard {
            heard.extend(heartbeats.into_iter().map(|number| (number, decided.now)));
        }
        if changed {
            self.snapshots.send_replace(Some(Arc::clone(&self.snapshot)));
        }
    }

    async fn refuse_all(&mut self, error: &Error, replies: Vec<ReplyCallback>) {
        tracing::warn!(service = %self.name, %error, "a decision about a service of shards failed");
        // It is unknown whether the commit happened, so read the service again.
        self.stored.version = 0;
        self.cache_valid = false;
        let refusal = Refusal::Store(error.to_string());
        replies.into_iter().for_each(|reply| reply(Err(refusal.clone())));
        self.read_at = self.now();
        baton_env::sleep(RETRY_PAUSE).await;
    }

    fn longest_timeout(&self) -> Duration {
        let own = self.options.rules.timeout;
        self.stored.service.workers().map(|(_, worker)| worker.timeout).max().unwrap_or(own).max(own)
    }
}

impl ServiceCounters {
    fn set_lag(&self, lag: Duration) {
        self.lag_micros.store(u64::try_from(lag.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl DecisionInput {
    fn decide(&self, tx: &mut dyn Tx) -> Result<Decision, TxError> {
        let before = service_record::load(tx, &self.name, &self.cached)?;
        let shared = self.now.is_none();
        let now = self.now.unwrap_or_else(|| tx.now());
        let stale = self.rules.timeout * STALE_AFTER_TIMEOUTS;
        let (stored_heartbeats, old) = if shared && self.expire_silent {
            service_record::read_heartbeats(tx, &self.name, stale)?
        } else {
            Default::default()
        };
        let has_room =
            before.version != 0 || self.requests.is_empty() || service_record::has_room_for_service(tx)?;
        let mut service = Arc::clone(&before.service);
        let (mut outcomes, mut unchanged) = (Vec::with_capacity(self.requests.len()), Vec::new());
        for request in self.requests.iter() {
            outcomes.push(match service.unchanging_heartbeat(request) {
                Some(number) => {
                    unchanged.push(number);
                    Ok(number)
                }
                None if !has_room => {
                    Err(Refusal::Full(format!("there are {SERVICES_MAX} services already: delete one")))
                }
                None => Arc::make_mut(&mut service).apply(request, &self.rules, now),
            });
        }
        let last_heard =
            |number: u32| self.last_heard.get(&number).max(stored_heartbeats.get(&number)).copied();
        let lag = if self.expire_silent { service.longest_silence(now, last_heard) } else { Duration::ZERO };
        if self.expire_silent && service.has_expired_workers(&self.rules, now, last_heard) {
            let present: FxHashSet<u32> = unchanged.iter().copied().collect();
            let heard_now =
                |number: u32| if present.contains(&number) { Some(now) } else { last_heard(number) };
            Arc::make_mut(&mut service).expire_silent_workers(&self.rules, now, heard_now);
        }
        if service.needs_rebalance {
            Arc::make_mut(&mut service).rebalance(&self.rules, now);
        }
        old.iter().for_each(|key| tx.remove_record(key));
        let wrote_heartbeats = shared && !unchanged.is_empty();
        if wrote_heartbeats {
            service_record::write_heartbeats(tx, &self.name, self.server, self.heartbeat_slot, &unchanged)?;
        }
        let changed = !Arc::ptr_eq(&service, &before.service) && *service != *before.service;
        let stored = match (changed, service.is_new()) {
            (false, _) => before,
            (true, true) => service_record::delete(tx, &self.name, service, &before)?,
            (true, false) => service_record::save(tx, &self.name, service, &before)?,
        };
        Ok(Decision { stored, outcomes, now, lag, wrote_heartbeats })
    }
}

impl Service {
    /// The longest silence of an active worker.
    fn longest_silence(&self, now: Timestamp, last: impl Fn(u32) -> Option<Timestamp>) -> Duration {
        self.workers()
            .filter(|(_, worker)| worker.status == Status::Active)
            .map(|(number, worker)| {
                now.since(worker.last_heard_at.max(last(number).unwrap_or(Timestamp::MIN)))
            })
            .max()
            .unwrap_or_default()
    }
}
