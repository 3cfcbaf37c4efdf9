//! Keeps one service on one server: collects what is asked of it, decides it in the store, tells what has changed.
//!
//! What arrives while a decision is under way is decided together in the next one. Any number of servers may keep the
//! same service: a decision reads the service in the transaction that changes it, so they decide one after the other
//! and none on anything but the last state. That is why no server has to be elected first, and why it does not matter
//! which one dies, sleeps or is cut off.
//!
//! A sign of life that changes nothing is not worth a commit. When the store is this server's alone, such beats stay in
//! memory, and a server that has just started takes everybody to have been heard at that moment. When it is shared, they
//! are stored a few times per timeout, all together, before they are answered: another server must not take a worker
//! for gone that was told it may go on.
//!
//! Always: only time of one kind is compared, the store's when it is shared, this machine's running time when it is
//! not; neither jumps. Start at [`Keeper::run`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_env::{BootClock, Clock};
use baton_store::{Error, Stop, Store, Tx};
use baton_types::Timestamp;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::coordinator::{Answer, Options, Reply};
use crate::limits::SERVICES_MAX;
use crate::record::{self, Stored};
use crate::request::{Refusal, Request};
use crate::service::{Rules, Service, Status};
use crate::view::Snapshot;

/// Requests decided together.
const BATCH_MAX: usize = 8_192;
/// How often a server reads whether another one has changed a service that has watchers here.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Pause after the store has failed.
const SETBACK: Duration = Duration::from_millis(100);
/// Beat records older than so many timeouts are removed: their server is gone.
const USELESS_TIMEOUTS: u32 = 4;

/// A request and who hears of it.
pub struct Input {
    pub request: Request,
    pub reply: Reply,
}

/// Counts what a service hears.
#[derive(Debug, Default)]
pub struct Pulse {
    /// Signs of life.
    pub beats: AtomicU64,
    /// Requests that were refused.
    pub refusals: AtomicU64,
    /// How long ago the active worker was heard that has been silent for longest, in microseconds, at the last check.
    pub lag_micros: AtomicU64,
}

/// Keeps one service.
pub struct Keeper {
    name: Arc<str>,
    store: Arc<dyn Store>,
    options: Options,
    server: u64,
    clock: BootClock,
    /// What the clock is counted from.
    origin: Timestamp,
    stored: Stored,
    snapshot: Arc<Snapshot>,
    loaded: bool,
    /// Whether what is in memory is what is in the store, as far as this server has written it.
    trusted: bool,
    /// Whether something waits that is no routine.
    urgent: bool,
    /// Beats that are not in the store, because nobody else needs them.
    heard: Arc<FxHashMap<u32, Timestamp>>,
    waiting: Vec<Input>,
    /// Beat records written.
    place: u64,
    next_beats: Timestamp,
    next_check: Timestamp,
    /// When the service was last read.
    read_at: Timestamp,
    /// Wakes the keeper when a watcher subscribes to the news, since it then reads more often.
    subscribed: Arc<Notify>,
    news: watch::Sender<Option<Arc<Snapshot>>>,
    pulse: Arc<Pulse>,
}

/// What a decision rests on, beside the store.
struct Question {
    name: Arc<str>,
    known: Stored,
    requests: Arc<Vec<Request>>,
    rules: Rules,
    /// The time, unless the store tells it.
    now: Option<Timestamp>,
    heard: Arc<FxHashMap<u32, Timestamp>>,
    /// Whether to look for the silent.
    check: bool,
    server: u64,
    place: u64,
}

/// What was decided.
struct Decided {
    stored: Stored,
    outcomes: Vec<Result<u32, Refusal>>,
    now: Timestamp,
    lag: Duration,
    wrote_beats: bool,
}

impl Keeper {
    pub fn new(
        name: Arc<str>,
        store: Arc<dyn Store>,
        options: Options,
        server: u64,
        subscribed: Arc<Notify>,
        news: watch::Sender<Option<Arc<Snapshot>>>,
        pulse: Arc<Pulse>,
    ) -> Self {
        let clock = BootClock::default();
        let origin = store.now().before(clock.elapsed());
        let stored = Stored::nothing();
        let snapshot = Arc::new(Snapshot::of(Arc::clone(&stored.service), 0));
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
            trusted: false,
            urgent: false,
            heard: Arc::default(),
            waiting: Vec::new(),
            place: 0,
            next_beats: start,
            next_check: start,
            read_at: start,
            subscribed,
            news,
            pulse,
        }
    }

    /// Running time: it does not jump.
    fn now(&self) -> Timestamp {
        self.origin.after(self.clock.elapsed())
    }

    /// The service.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Keeps the service until `stopping`; returns early, with true, when there is no such service and nothing to do.
    pub async fn run(&mut self, inputs: &mut mpsc::Receiver<Input>, stopping: &CancellationToken) -> bool {
        loop {
            let pause = self.due().since(self.now());
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
                    self.urgent |= fresh.iter().any(|input| service.routine(&input.request).is_none());
                }
            }
            tokio::select! {
                biased;
                () = stopping.cancelled() => break,
                () = self.step() => {}
            }
            if self.trusted && self.stored.version == 0 && self.waiting.is_empty() {
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

    /// When there is next something to do by itself.
    fn due(&self) -> Timestamp {
        let mut due = self.next_check;
        if let Some(at) = self.stored.service.settles_at(&self.options.rules) {
            // Moments of the store and of this machine may differ; a look too early does no harm.
            due = due.min(at.max(self.now().after(SETBACK)));
        }
        if self.options.shared {
            due = due.min(self.next_read());
            if !self.waiting.is_empty() {
                due = due.min(self.next_beats);
            }
        }
        due
    }

    /// When to read again what other servers may have changed.
    fn next_read(&self) -> Timestamp {
        // One receiver is the handle's own.
        let watched = self.news.receiver_count() > 1;
        let often = watched || !self.trusted;
        self.read_at.after(if often { LOOK_INTERVAL } else { self.options.check_interval })
    }

    async fn step(&mut self) {
        let now = self.now();
        let check = now >= self.next_check;
        if !self.options.shared && self.trusted {
            self.answer_routine(now);
        }
        let beats = !self.waiting.is_empty() && now >= self.next_beats;
        let settle = self.stored.service.settles_at(&self.options.rules).is_some_and(|at| now >= at);
        let look = self.options.shared && now >= self.next_read();
        let silent = check && (self.options.shared || self.has_silent(now));
        if check {
            self.next_check = now.after(self.options.check_interval);
        }
        if self.urgent || beats || settle || look || silent || !self.trusted {
            self.decide(now, check).await;
        }
    }

    /// Answers beats that change nothing from memory.
    fn answer_routine(&mut self, now: Timestamp) {
        let service = Arc::clone(&self.stored.service);
        let heard = Arc::make_mut(&mut self.heard);
        for input in std::mem::take(&mut self.waiting) {
            match service.routine(&input.request) {
                Some(number) => {
                    heard.insert(number, now);
                    self.pulse.beats.fetch_add(1, Ordering::Relaxed);
                    (input.reply)(Ok(Answer { snapshot: Arc::clone(&self.snapshot), number }));
                }
                None => self.waiting.push(input),
            }
        }
    }

    fn has_silent(&mut self, now: Timestamp) -> bool {
        let service = Arc::clone(&self.stored.service);
        let heard = Arc::make_mut(&mut self.heard);
        heard.retain(|number, _| service.worker(*number).is_some());
        let last = |number| heard.get(&number).copied();
        self.pulse.note_lag(service.lag(now, last));
        service.has_silent(&self.options.rules, now, last)
    }

    async fn decide(&mut self, now: Timestamp, check: bool) {
        self.urgent = false;
        let inputs = std::mem::take(&mut self.waiting);
        let (requests, replies): (Vec<_>, Vec<_>) =
            inputs.into_iter().map(|input| (input.request, input.reply)).unzip();
        let shared = self.options.shared;
        let question = Question {
            name: Arc::clone(&self.name),
            known: self.stored.clone(),
            requests: Arc::new(requests),
            rules: self.options.rules,
            now: (!shared).then_some(now),
            heard: Arc::clone(&self.heard),
            // Whoever was heard before this server started is in the store, or may be there still.
            check: check && (self.loaded || shared),
            server: self.server,
            place: self.place,
        };
        let requests = Arc::clone(&question.requests);
        match baton_store::run(&*self.store, move |tx| question.decide(tx)).await {
            Ok(decided) => self.take_over(decided, &requests, replies),
            Err(error) => self.fail(&error, replies).await,
        }
    }

    fn take_over(&mut self, decided: Decided, requests: &[Request], replies: Vec<Reply>) {
        let now = self.now();
        let fresh = decided.stored.version != self.stored.version || !self.loaded;
        self.stored = decided.stored;
        if !self.loaded && !self.options.shared {
            let all = self.stored.service.workers().map(|(number, _)| (number, now)).collect();
            self.heard = Arc::new(all);
        }
        (self.loaded, self.trusted) = (true, true);
        self.read_at = now;
        if decided.wrote_beats {
            self.place += 1;
            self.next_beats = now.after(record::beat_spacing(self.longest_timeout()));
        }
        if self.options.shared && decided.lag > Duration::ZERO {
            self.pulse.note_lag(decided.lag);
        }
        if fresh {
            let (service, version) = (Arc::clone(&self.stored.service), self.stored.version);
            self.snapshot = Arc::new(Snapshot::of(service, version));
        }
        let heard = (!self.options.shared).then(|| Arc::make_mut(&mut self.heard));
        let mut noted: Vec<u32> = Vec::new();
        for ((request, outcome), reply) in requests.iter().zip(decided.outcomes).zip(replies) {
            match &outcome {
                Ok(number) if matches!(request, Request::Beat(_)) => {
                    self.pulse.beats.fetch_add(1, Ordering::Relaxed);
                    noted.push(*number);
                }
                Ok(_) => {}
                Err(_) => {
                    self.pulse.refusals.fetch_add(1, Ordering::Relaxed);
                }
            }
            let snapshot = Arc::clone(&self.snapshot);
            reply(outcome.map(|number| Answer { snapshot, number }));
        }
        if let Some(heard) = heard {
            heard.extend(noted.into_iter().map(|number| (number, decided.now)));
        }
        if fresh {
            self.news.send_replace(Some(Arc::clone(&self.snapshot)));
        }
    }

    async fn fail(&mut self, error: &Error, replies: Vec<Reply>) {
        tracing::warn!(service = %self.name, %error, "nothing could be decided about shards");
        // Whether anything was written may be unknown: read it again.
        self.stored.version = 0;
        self.trusted = false;
        let refusal = Refusal::Store(error.to_string());
        replies.into_iter().for_each(|reply| reply(Err(refusal.clone())));
        self.read_at = self.now();
        baton_env::sleep(SETBACK).await;
    }

    fn longest_timeout(&self) -> Duration {
        let own = self.options.rules.timeout;
        self.stored.service.workers().map(|(_, worker)| worker.timeout).max().unwrap_or(own).max(own)
    }
}

impl Pulse {
    fn note_lag(&self, lag: Duration) {
        self.lag_micros.store(u64::try_from(lag.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Question {
    fn decide(&self, tx: &mut dyn Tx) -> Result<Decided, Stop> {
        let before = record::load(tx, &self.name, &self.known)?;
        let shared = self.now.is_none();
        let now = self.now.unwrap_or_else(|| tx.now());
        let useless = self.rules.timeout * USELESS_TIMEOUTS;
        let (stored_beats, old) =
            if shared && self.check { record::beats(tx, &self.name, useless)? } else { Default::default() };
        let has_room = before.version != 0 || self.requests.is_empty() || record::has_room(tx)?;
        let mut service = Arc::clone(&before.service);
        let (mut outcomes, mut routine) = (Vec::with_capacity(self.requests.len()), Vec::new());
        for request in self.requests.iter() {
            outcomes.push(match service.routine(request) {
                Some(number) => {
                    routine.push(number);
                    Ok(number)
                }
                None if !has_room => {
                    Err(Refusal::Full(format!("there are {SERVICES_MAX} services already: delete one")))
                }
                None => Arc::make_mut(&mut service).apply(request, &self.rules, now),
            });
        }
        let beat = |number: u32| self.heard.get(&number).max(stored_beats.get(&number)).copied();
        let lag = if self.check { service.lag(now, beat) } else { Duration::ZERO };
        if self.check && service.has_silent(&self.rules, now, beat) {
            let present: FxHashSet<u32> = routine.iter().copied().collect();
            let heard_now = |number: u32| if present.contains(&number) { Some(now) } else { beat(number) };
            Arc::make_mut(&mut service).expire(&self.rules, now, heard_now);
        }
        if service.unsettled {
            Arc::make_mut(&mut service).settle(&self.rules, now);
        }
        old.iter().for_each(|key| tx.remove_record(key));
        let wrote_beats = shared && !routine.is_empty();
        if wrote_beats {
            record::put_beats(tx, &self.name, self.server, self.place, &routine)?;
        }
        let changed = !Arc::ptr_eq(&service, &before.service) && *service != *before.service;
        let stored = match (changed, service.is_blank()) {
            (false, _) => before,
            (true, true) => record::delete(tx, &self.name, service, &before)?,
            (true, false) => record::save(tx, &self.name, service, &before)?,
        };
        Ok(Decided { stored, outcomes, now, lag, wrote_beats })
    }
}

impl Service {
    /// How long ago the active worker was heard that has been silent for longest.
    fn lag(&self, now: Timestamp, last: impl Fn(u32) -> Option<Timestamp>) -> Duration {
        self.workers()
            .filter(|(_, worker)| worker.status == Status::Active)
            .map(|(number, worker)| now.since(worker.seen.max(last(number).unwrap_or(Timestamp::MIN))))
            .max()
            .unwrap_or_default()
    }
}
