//! Takes part in one election: runs the state machine, makes its store calls, and calls the hooks.
//!
//! Always: the loop that keeps time never waits for a store call, so a store that hangs cannot keep a leadership
//! alive; hooks run in a task of their own with a timer of their own. Start at [`Elector::start`], or at
//! `Process` for many groups.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_env::{BootClock, Clock};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::candidate::{self, Candidate};
use crate::event::{Event, Reason};
use crate::leadership::Leadership;
use crate::machine::{Counters, Effect, HeldLease, Input, Machine, Now, SwapAnswer};
use crate::membership::Membership;
use crate::record::{self, BadName, EpochRecord, Phase};
use crate::settings::{self, Settings};
use crate::store::{self, BoxFuture, ProbeError, Store, Version};
use crate::store_calls;

/// Buffered events of a slow listener; beyond that it misses the oldest.
const EVENTS_MAX: usize = 256;

/// Queued answers and commands. The state machine has a handful of calls in flight at most.
const QUEUED_INPUTS_MAX: usize = 64;

/// Pause between a change notification and the next watch.
const WATCH_PAUSE: Duration = Duration::from_millis(20);

/// Why a participation could not begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings cannot work.
    #[error(transparent)]
    Settings(#[from] settings::Invalid),
    /// The group or the worker cannot be called that.
    #[error(transparent)]
    Name(#[from] BadName),
    /// A process takes part in a group once.
    #[error(
        "this process takes part in {0:?} already: stop that participation first, or start another process"
    )]
    Joined(String),
    /// The store cannot be trusted, or not be reached.
    #[error(transparent)]
    Store(#[from] ProbeError),
}

/// How to take part.
#[derive(Clone)]
pub struct Options {
    /// The options of the election.
    pub settings: Settings,
    /// This worker's id; a fresh one unless given. No two processes may use one id at a time.
    pub worker_id: Option<String>,
    /// What measures time.
    pub clock: Arc<dyn Clock>,
    /// Whether the store is probed first.
    pub probe: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            settings: Settings::default(),
            worker_id: None,
            clock: Arc::new(BootClock::default()),
            probe: true,
        }
    }
}

impl Options {
    /// Checks the settings, logs warnings, and makes a worker id if none is given.
    pub(crate) fn validated(mut self, who: &str) -> Result<(Self, String), StartError> {
        for unwise in self.settings.check()? {
            tracing::warn!(who, "{unwise}");
        }
        let wall_ms = u64::try_from(self.clock.now().micros() / 1000).unwrap_or(0);
        let worker_id = self.worker_id.take().unwrap_or_else(|| record::fresh_worker_id(wall_ms));
        record::check_name("the worker id", &worker_id)?;
        Ok((self, worker_id))
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// What a participant knows about its group.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The epoch record, as last seen. It may have been released or its lease may have run out.
    pub coordinator: Option<EpochRecord>,
    /// Numbers for metrics.
    pub counters: Counters,
}

/// A participation in one group. Dropping it ends it as [`stop`](Self::stop) does, without waiting.
#[derive(Debug)]
pub struct Elector {
    worker_id: String,
    commands: mpsc::Sender<Command>,
    shared: Arc<ElectorState>,
    finished: watch::Receiver<bool>,
}

/// What the user of an [`Elector`] asks for.
#[derive(Debug)]
enum Command {
    StepDown(Option<String>, oneshot::Sender<Result<(), String>>),
    ReadNow,
    Stop,
}

#[derive(Debug)]
struct ElectorState {
    leadership: Mutex<Option<Leadership>>,
    status: Mutex<Status>,
    events: broadcast::Sender<Event>,
}

/// Another coordinator could not be asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EnsureError(String);

impl Elector {
    /// Takes part in `group` on `store`, with the settings of `options`.
    pub async fn start<C: Candidate>(
        store: Arc<dyn Store>,
        group: &str,
        options: Options,
        candidate: C,
    ) -> Result<Self, StartError> {
        Self::start_with(store, group, options, candidate, None).await
    }

    /// Takes part; with a membership, the lease of its process covers the terms.
    pub(crate) async fn start_with<C: Candidate>(
        store: Arc<dyn Store>,
        group: &str,
        options: Options,
        candidate: C,
        membership: Option<Membership>,
    ) -> Result<Self, StartError> {
        record::check_name("the group name", group)?;
        let (options, worker_id) = options.validated(group)?;
        let settings = options.settings;
        if settings.enable_coordinator && options.probe && !store.is_trusted() {
            store::probe(&store).await?;
        }
        let shared = Arc::new(ElectorState {
            leadership: Mutex::new(None),
            status: Mutex::default(),
            events: broadcast::Sender::new(EVENTS_MAX),
        });
        let (commands, inbox) = mpsc::channel(QUEUED_INPUTS_MAX);
        let (answers, answered) = mpsc::channel(QUEUED_INPUTS_MAX);
        // A second leadership can come in while the hooks of the first are still stopping.
        let (terms, next_term) = mpsc::channel(4);
        tokio::spawn(candidate::run_terms(
            Arc::new(candidate),
            settings.effective_work_interval(),
            next_term,
            answers.clone(),
        ));
        let (done, finished) = watch::channel(false);
        let seed = [baton_env::random_u64() | 1, baton_env::random_u64()];
        let runner = ElectorLoop {
            enabled: settings.enable_coordinator,
            call_timeout: settings.call_timeout,
            machine: match &membership {
                Some(_) => Machine::new(settings, worker_id.clone(), seed).with_process_lease(),
                None => Machine::new(settings, worker_id.clone(), seed),
            },
            membership,
            store,
            group: group.to_owned(),
            clock: options.clock,
            shared: Arc::clone(&shared),
            answers,
            terms,
            step_down_reply: None,
            removals: Vec::new(),
        };
        tokio::spawn(async move {
            if runner.enabled {
                runner.run(inbox, answered).await;
            } else {
                runner.run_without_election(inbox, answered).await;
            }
            done.send_replace(true);
        });
        Ok(Self { worker_id, commands, shared, finished })
    }

    /// This worker's id.
    pub fn worker_id(&self) -> &str {
        &self.worker_id
    }

    /// Whether this worker coordinates, by the clock, now.
    pub fn is_coordinator(&self) -> bool {
        self.leadership().is_some()
    }

    /// The right to act, if this worker coordinates now.
    pub fn leadership(&self) -> Option<Leadership> {
        lock(&self.shared.leadership).clone().filter(Leadership::is_valid)
    }

    /// What this worker knows of the group.
    pub fn status(&self) -> Status {
        lock(&self.shared.status).clone()
    }

    /// Events from now on. A slow listener misses the oldest ones and learns how many.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.shared.events.subscribe()
    }

    /// Reads the record now rather than at the next interval. With `force`, asks the present coordinator to release
    /// its term, for `desired` if that is given and alive. This appoints no one: the named worker claims the term
    /// itself once the present coordinator has stopped its work.
    pub async fn ensure_coordinator(&self, force: bool, desired: Option<&str>) -> Result<(), EnsureError> {
        let gone = || EnsureError("the participation has ended".into());
        if !force {
            return self.commands.send(Command::ReadNow).await.map_err(|_| gone());
        }
        let (reply, answer) = oneshot::channel();
        let command = Command::StepDown(desired.map(str::to_owned), reply);
        self.commands.send(command).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?.map_err(EnsureError)
    }

    /// Ends the participation: the stop hook is called, then the term is released at once. Returns when all of that
    /// is done.
    pub async fn stop(mut self) {
        let _ = self.commands.send(Command::Stop).await;
        let _ = self.finished.wait_for(|finished| *finished).await;
    }
}

impl Drop for Elector {
    fn drop(&mut self) {
        // With a full channel, the loop ends when it sees the channel closed.
        let _ = self.commands.try_send(Command::Stop);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct ElectorLoop {
    enabled: bool,
    call_timeout: Duration,
    machine: Machine,
    /// Set if the lease of a process covers the terms.
    membership: Option<Membership>,
    store: Arc<dyn Store>,
    group: String,
    clock: Arc<dyn Clock>,
    shared: Arc<ElectorState>,
    answers: mpsc::Sender<Input>,
    terms: mpsc::Sender<Leadership>,
    /// The caller of a step-down command that waits for its outcome.
    step_down_reply: Option<oneshot::Sender<Result<(), String>>>,
    /// Removals to wait for before the loop ends.
    removals: Vec<tokio::task::JoinHandle<()>>,
}

impl ElectorLoop {
    async fn run(mut self, mut inbox: mpsc::Receiver<Command>, mut answered: mpsc::Receiver<Input>) {
        let mut input = Input::Tick;
        let mut watched = None;
        let mut hint: BoxFuture<'static, ()> = Box::pin(std::future::pending());
        let mut open = true;
        let mut lease = self.membership.as_ref().map(|membership| membership.lease.current.clone());
        if let Some(lease) = &mut lease {
            let held = lease.borrow_and_update().clone();
            let now = self.now();
            self.step(now, Input::LeaseChanged(held));
        }
        loop {
            let now = self.now();
            if self.step(now, input) {
                break;
            }
            let version = self.machine.version().map(|version| store_calls::split_version(version).0);
            if watched.as_ref() != Some(&version) {
                hint = self.wait_for_change(version.clone(), Duration::ZERO);
                watched = Some(version);
            }
            let rest = self.machine.wake_at().saturating_sub(self.clock.elapsed());
            input = tokio::select! {
                Some(answer) = answered.recv() => answer,
                held = next_lease(&mut lease) => Input::LeaseChanged(held),
                command = inbox.recv(), if open => match command {
                    Some(command) => self.input_for(command),
                    None => {
                        open = false;
                        Input::Stop
                    }
                },
                () = &mut hint => {
                    hint = self.wait_for_change(watched.clone().flatten(), WATCH_PAUSE);
                    Input::Changed
                }
                () = baton_env::sleep(rest.min(Duration::from_secs(3600))) => Input::Tick,
            };
        }
        if let Some(membership) = self.membership.as_ref().filter(|_| self.machine.has_unconfirmed_claim()) {
            membership.abandon_lease();
        }
        for removal in self.removals {
            let _ = removal.await;
        }
    }

    /// Elections are disabled: this worker coordinates at once, under token 0, until it is stopped.
    async fn run_without_election(
        self,
        mut inbox: mpsc::Receiver<Command>,
        mut answered: mpsc::Receiver<Input>,
    ) {
        let leadership = Leadership::new(0, None, Arc::clone(&self.clock));
        *lock(&self.shared.leadership) = Some(leadership.clone());
        let worker_id = self.machine.worker_id().to_owned();
        let timestamp = self.now().wall_ms;
        self.publish(Event::ColdStartPhaseChanged { phase: Phase::Ready, duration: 0 });
        self.publish(Event::CoordinatorPromoted { worker_id: worker_id.clone(), timestamp, epoch_number: 0 });
        let _ = self.terms.send(leadership.clone()).await;
        loop {
            match inbox.recv().await {
                Some(Command::StepDown(_, reply)) => {
                    let _ = reply.send(Err("there is no election: enableCoordinator is false".into()));
                }
                Some(Command::ReadNow) => {}
                Some(Command::Stop) | None => break,
            }
        }
        leadership.revoke(Reason::Stopped);
        self.publish(Event::CoordinatorDemoted { worker_id, reason: Reason::Stopped, epoch_number: 0 });
        answered.recv().await;
    }

    fn now(&self) -> Now {
        Now {
            mono: self.clock.elapsed(),
            wall_ms: u64::try_from(self.clock.now().micros() / 1000).unwrap_or(0),
        }
    }

    fn input_for(&mut self, command: Command) -> Input {
        match command {
            Command::Stop => Input::Stop,
            Command::ReadNow => Input::Changed,
            Command::StepDown(_, reply) if self.step_down_reply.is_some() => {
                let _ = reply.send(Err("another such call is under way".into()));
                Input::Tick
            }
            Command::StepDown(desired, reply) => {
                self.step_down_reply = Some(reply);
                Input::StepDown(desired)
            }
        }
    }

    /// Steps the state machine and runs its effects; returns whether it finished.
    fn step(&mut self, now: Now, input: Input) -> bool {
        let mut finished = false;
        for effect in self.machine.step(now, input) {
            match effect {
                Effect::Read => {
                    let held = self
                        .membership
                        .as_ref()
                        .and_then(|membership| membership.lease.current.borrow().clone());
                    let own = held.map(|held| held.process);
                    self.spawn_call(
                        |e| Input::Read(Err(e)),
                        |store, group| store_calls::read_epoch(store, group, own),
                    );
                }
                Effect::Swap(expected, record) => self.spawn_call(
                    |e| Input::SwapAnswered(SwapAnswer::Unknown(e)),
                    |store, group| store_calls::swap_epoch(store, group, expected, record),
                ),
                Effect::List => self.spawn_call(|e| Input::Listed(Err(e)), store_calls::list_workers),
                Effect::ReadHighestEpoch => {
                    self.spawn_call(|e| Input::HighestEpoch(Err(e)), store_calls::read_highest_epoch)
                }
                Effect::WriteHeartbeat(worker) => {
                    self.spawn_call(
                        |e| Input::HeartbeatWritten(Err(e)),
                        |store, group| store_calls::write_worker(store, group, worker),
                    );
                }
                Effect::Remove(worker) => self.spawn_removal(&worker),
                Effect::Promote { token, deadline } => {
                    let leadership = Leadership::new(token, Some(deadline), Arc::clone(&self.clock));
                    *lock(&self.shared.leadership) = Some(leadership.clone());
                    if self.terms.try_send(leadership.clone()).is_err() {
                        leadership.revoke(Reason::Stopped);
                    }
                }
                Effect::Extend(deadline) => {
                    if let Some(leadership) = &*lock(&self.shared.leadership) {
                        leadership.extend(deadline);
                    }
                }
                Effect::Demote(reason) => {
                    if let Some(leadership) = lock(&self.shared.leadership).take() {
                        leadership.revoke(reason);
                    }
                }
                Effect::SteppedDown(outcome) => {
                    if let Some(asked) = self.step_down_reply.take() {
                        let _ = asked.send(outcome);
                    }
                }
                Effect::Emit(event) => self.publish(event),
                Effect::Finished => finished = true,
            }
        }
        let mut status = lock(&self.shared.status);
        status.counters = self.machine.counters();
        if status.coordinator.as_ref() != self.machine.coordinator() {
            status.coordinator = self.machine.coordinator().cloned();
        }
        finished
    }

    fn publish(&self, event: Event) {
        match &event {
            Event::StoreFailing { error, failures } => {
                tracing::warn!(group = self.group, failures, "the store fails: {error}");
            }
            Event::CoordinatorChangesOften { changes, window } => {
                tracing::warn!(group = self.group, changes, window, "the coordinator changes too often");
            }
            Event::CoordinatorPromoted { epoch_number, .. } => {
                tracing::info!(group = self.group, token = epoch_number, "this worker coordinates");
            }
            Event::CoordinatorDemoted { reason, epoch_number, .. } => {
                let reason = reason.as_str();
                tracing::info!(
                    group = self.group,
                    token = epoch_number,
                    reason,
                    "this worker coordinates no longer"
                );
            }
            _ => {}
        }
        // An error means no listeners.
        let _ = self.shared.events.send(event);
    }

    /// Runs a store call in its own task, under the call timeout.
    fn spawn_call<F>(&self, failed: fn(String) -> Input, make: impl FnOnce(Arc<dyn Store>, String) -> F)
    where
        F: Future<Output = Result<Input, store::Error>> + Send + 'static,
    {
        let call = make(Arc::clone(&self.store), self.group.clone());
        let (answers, timeout) = (self.answers.clone(), self.call_timeout);
        tokio::spawn(async move {
            let input = match tokio::time::timeout(timeout, call).await {
                Ok(outcome) => outcome.unwrap_or_else(|error| failed(error.0)),
                Err(_) => failed(format!("the store did not answer within {timeout:?}")),
            };
            let _ = answers.send(input).await;
        });
    }

    fn spawn_removal(&mut self, worker: &str) {
        let (store, key) = (Arc::clone(&self.store), record::worker_key(&self.group, worker));
        let timeout = self.call_timeout;
        self.removals.retain(|removal| !removal.is_finished());
        self.removals.push(tokio::spawn(async move {
            // A later coordinator removes what stays behind.
            let _ = tokio::time::timeout(timeout, store.remove(&key)).await;
        }));
    }

    /// Returns when the record may have changed.
    fn wait_for_change(&self, version: Option<Version>, rest: Duration) -> BoxFuture<'static, ()> {
        let (store, key) = (Arc::clone(&self.store), record::epoch_key(&self.group));
        Box::pin(async move {
            baton_env::sleep(rest).await;
            store.wait_for_change(&key, version.as_ref()).await;
        })
    }
}

/// Returns the lease of the process at its next change. Pends for ever without a process, and after its loop ended:
/// the lease then expires by itself.
async fn next_lease(lease: &mut Option<watch::Receiver<Option<HeldLease>>>) -> Option<HeldLease> {
    if let Some(lease) = lease
        && lease.changed().await.is_ok()
    {
        return lease.borrow_and_update().clone();
    }
    std::future::pending().await
}
