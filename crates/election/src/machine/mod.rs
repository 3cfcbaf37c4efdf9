//! One participant of one group, as a state machine without clock, store or randomness of its own.
//!
//! [`Machine::step`] takes an [`Input`] (time passed, an answer of the store, a command of the user) and returns
//! [`Effect`]s: calls to make and events to publish. The same code runs on tokio and in the simulation that tests it.
//! Always:
//! - a coordinator trusts a write for [`Settings::trusted_lease`] from *before* it was sent; the others wait the longer
//!   `leaseMs` from when they first *see* it; both measure on their own monotonic clock;
//! - after a write whose answer was lost, the record is read back, and the nonce identifies its writer;
//! - only the claimant itself claims, and only a coordinator whose work has ended releases.
//!
//! Deliberately absent: comparing wall clocks of different machines. Start at [`Machine::step`], then `follower`,
//! then `leader`.

mod follower;
mod leader;
mod observed_workers;
mod process_lease;
mod step_down;

use std::collections::VecDeque;
use std::time::Duration;

use crate::event::{Event, Reason};
use crate::record::{EpochRecord, Phase, PhaseStep, WorkerRecord};
use crate::settings::Settings;
use crate::store::Version;
use follower::Claim;
use leader::Term;
pub(crate) use observed_workers::ObservedWorkers;
pub use process_lease::{ProcessLease, ProcessLeaseEffect, ProcessLeaseInput};
use step_down::StepDownRequest;

/// Length of the window in which coordinator changes are counted, in mandates.
const CHANGE_WINDOW_MANDATES: u32 = 6;

/// Heartbeats between two writes of a worker record when the lease of a process shows that the worker lives.
const SHARED_HEARTBEAT_FACTOR: u32 = 20;

/// Consecutive failed calls per [`Event::StoreFailing`].
const FAILURES_PER_EVENT: u32 = 3;

/// What time it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// The monotonic clock. All durations are measured on it.
    pub mono: Duration,
    /// The wall clock, in milliseconds. For people.
    pub wall_ms: u64,
}

/// The lease of a process, as its members see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLease {
    /// The process id in records.
    pub process: String,
    /// When the last renewal was sent, on the monotonic clock.
    pub valid_from: Duration,
}

/// What the store answered to a compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapAnswer {
    /// The record is written, and this is its version.
    Done(Version),
    /// The version did not match; or a retry inside the store's client met its own first attempt.
    Conflict,
    /// The outcome is unknown.
    Unknown(String),
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// The answer to [`Effect::Read`].
    Read(Result<Option<(Version, EpochRecord)>, String>),
    /// The answer to [`Effect::Swap`].
    SwapAnswered(SwapAnswer),
    /// The answer to [`Effect::List`]: worker ids, each with a tag that changes when its record does.
    Listed(Result<Vec<(String, String)>, String>),
    /// The answer to [`Effect::ReadHighestEpoch`]: the highest epoch number in any worker record.
    HighestEpoch(Result<u64, String>),
    /// The answer to [`Effect::WriteHeartbeat`].
    HeartbeatWritten(Result<(), String>),
    /// The lease of the process was renewed or lost. Only after [`Machine::with_process_lease`].
    LeaseChanged(Option<HeldLease>),
    /// A hint that the epoch record may have changed.
    Changed,
    /// The work that [`Effect::Promote`] started has ended after [`Effect::Demote`].
    WorkEnded,
    /// The user asks for another coordinator, this one if it is named.
    StepDown(Option<String>),
    /// The user ends the participation.
    Stop,
}

/// What the runtime has to do.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Read the epoch record.
    Read,
    /// Compare and set the epoch record; with `None`, create it.
    Swap(Option<Version>, EpochRecord),
    /// List the worker records.
    List,
    /// Read all worker records.
    ReadHighestEpoch,
    /// Write this worker's record.
    WriteHeartbeat(WorkerRecord),
    /// Remove a worker's record, without an answer.
    Remove(String),
    /// Begin the work.
    Promote {
        /// The fencing token.
        token: u64,
        /// When to stop, on the monotonic clock.
        deadline: Duration,
    },
    /// The work may go on until then.
    Extend(Duration),
    /// End the work.
    Demote(Reason),
    /// The answer to [`Input::StepDown`].
    SteppedDown(Result<(), String>),
    /// Publish an event.
    Emit(Event),
    /// The machine has ended; no effect follows.
    Finished,
}

/// The epoch record as last read.
#[derive(Clone, Debug)]
pub(crate) struct ObservedRecord {
    /// `None` when there is no record.
    pub(crate) current: Option<(Version, EpochRecord)>,
    /// When this version was first seen.
    pub(crate) since: Duration,
}

/// The call on the epoch record that is in flight: one at a time, apart from reads that became stale.
#[derive(Clone, Debug, PartialEq)]
enum PendingCall {
    Read,
    Claim,
    Renew,
    Release,
    StepDown,
}

#[derive(Debug)]
enum Role {
    Follower,
    Leader(Box<Term>),
}

/// Numbers that only rise, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Heartbeats written.
    pub heartbeats: u64,
    /// Claims tried.
    pub claims: u64,
    /// Times this worker began to coordinate.
    pub promotions: u64,
    /// Times it stopped coordinating.
    pub demotions: u64,
    /// Renewals that succeeded.
    pub renewals: u64,
    /// Changes of coordinator seen.
    pub changes: u64,
    /// Calls of the store that failed.
    pub failures: u64,
}

/// A `CoordinatorElected` event that waits for a list of the living workers.
#[derive(Debug)]
struct PendingElectedEvent {
    epoch: EpochRecord,
    previous: Option<String>,
    /// The worker whose lease expired; it does not count as alive.
    lost: Option<String>,
}

/// One participant of one group.
#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    worker_id: String,
    incarnation: String,
    random: Random,
    /// Whether the lease of a process covers the terms.
    uses_process_lease: bool,
    /// That lease, while there is one.
    process_lease: Option<HeldLease>,
    started: bool,
    phase: Phase,
    phase_since: Duration,
    /// The steps of the cold start so far.
    phases: Vec<PhaseStep>,
    observed: Option<ObservedRecord>,
    /// The highest epoch number seen so far.
    highest_epoch: u64,
    /// Whether the worker records were read for it.
    worker_records_read: bool,
    /// The lease that the last record names: how long its readers wait.
    observed_lease: Duration,
    /// The last coordinator that an event named, with its epoch number.
    announced: Option<(String, u64)>,
    /// The event of that coordinator, until it is published.
    pending_elected: Option<PendingElectedEvent>,
    recent_changes: VecDeque<Duration>,
    workers: ObservedWorkers,
    role: Role,
    claim: Claim,
    pending_call: Option<PendingCall>,
    /// Reads in flight whose answers are ignored.
    stale_reads: u32,
    next_read: Duration,
    /// When the record was last read; `None` forces another read.
    last_read_at: Option<Duration>,
    heartbeat_in_flight: bool,
    next_heartbeat: Duration,
    heartbeat_seq: u64,
    /// From promotion until the work has ended.
    work_running: bool,
    step_down: Option<StepDownRequest>,
    stop_requested_at: Option<Duration>,
    finished: bool,
    consecutive_failures: u32,
    counters: Counters,
    effects: Vec<Effect>,
}

impl Machine {
    /// A participant. `settings` have been checked; `seed` is random.
    pub fn new(settings: Settings, worker_id: String, seed: [u64; 2]) -> Self {
        let mut random = Random(seed);
        let lease = settings.worker_timeout;
        Self {
            incarnation: random.hex_128(),
            random,
            worker_id,
            uses_process_lease: false,
            process_lease: None,
            started: false,
            phase: Phase::Observing,
            phase_since: Duration::ZERO,
            phases: Vec::new(),
            observed: None,
            highest_epoch: 0,
            worker_records_read: false,
            observed_lease: lease,
            announced: None,
            pending_elected: None,
            recent_changes: VecDeque::new(),
            workers: ObservedWorkers::default(),
            role: Role::Follower,
            claim: Claim::default(),
            pending_call: None,
            stale_reads: 0,
            next_read: Duration::ZERO,
            last_read_at: None,
            heartbeat_in_flight: false,
            next_heartbeat: Duration::ZERO,
            heartbeat_seq: 0,
            work_running: false,
            step_down: None,
            stop_requested_at: None,
            finished: false,
            consecutive_failures: 0,
            counters: Counters::default(),
            effects: Vec::new(),
            settings,
        }
    }

    /// Lets the lease of a process ([`Input::LeaseChanged`]) cover the terms, instead of renewing each.
    pub fn with_process_lease(mut self) -> Self {
        self.uses_process_lease = true;
        self
    }

    /// Applies an input and returns what to do.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Effect> {
        if self.finished {
            return Vec::new();
        }
        if !self.started {
            self.start(now);
        }
        // First: an answer that comes after the deadline must not extend the term.
        self.expire_term(now);
        match input {
            Input::Tick => {}
            Input::Read(outcome) => self.on_read(now, outcome),
            Input::SwapAnswered(outcome) => self.on_swapped(now, outcome),
            Input::Listed(outcome) => self.on_listed(now, outcome),
            Input::HighestEpoch(outcome) => self.on_highest_epoch(now, outcome),
            Input::HeartbeatWritten(outcome) => self.on_heartbeat_written(now, outcome),
            Input::LeaseChanged(held) => self.on_lease_changed(now, held),
            Input::Changed => self.next_read = self.next_read.min(now.mono),
            Input::WorkEnded => self.on_work_ended(now),
            Input::StepDown(desired) => self.on_step_down(now, desired),
            Input::Stop => self.stop_requested_at = self.stop_requested_at.or(Some(now.mono)),
        }
        self.decide(now);
        std::mem::take(&mut self.effects)
    }

    /// When [`Input::Tick`] is due, if nothing else comes before.
    pub fn wake_at(&self) -> Duration {
        let mut at = self.phase_end().unwrap_or(Duration::MAX).min(self.step_down_wake_at());
        if !self.heartbeat_in_flight && self.stop_requested_at.is_none() {
            at = at.min(self.next_heartbeat);
        }
        let idle = self.pending_call.is_none();
        match &self.role {
            Role::Leader(term) => at.min(term.wake_at(idle, self.work_running, self.next_read)),
            Role::Follower if self.stop_requested_at.is_some() && self.work_running => at,
            Role::Follower if idle => at.min(self.next_read).min(self.claim.wake_at()),
            Role::Follower => at,
        }
    }

    /// This worker's id.
    pub fn worker_id(&self) -> &str {
        &self.worker_id
    }

    /// Numbers for metrics.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether the answer to a claim was lost, so that it may still be written.
    pub fn has_unconfirmed_claim(&self) -> bool {
        self.claim.answer_was_lost()
    }

    /// The epoch record that was last read.
    pub fn coordinator(&self) -> Option<&EpochRecord> {
        self.observed.as_ref()?.current.as_ref().map(|(_, epoch)| epoch)
    }

    /// The version of the epoch record that was last seen; `None` when there was none.
    pub fn version(&self) -> Option<&Version> {
        self.observed.as_ref()?.current.as_ref().map(|(version, _)| version)
    }

    fn start(&mut self, now: Now) {
        self.started = true;
        self.next_read = now.mono;
        self.next_heartbeat = now.mono;
        self.phase_since = now.mono;
        let first = if self.settings.skip_cold_start { Phase::Ready } else { Phase::Observing };
        self.enter_phase(now, first);
    }

    /// Acts on the present state.
    fn decide(&mut self, now: Now) {
        if self.stop_requested_at.is_none() && !self.heartbeat_in_flight && now.mono >= self.next_heartbeat {
            self.write_heartbeat(now);
        }
        self.advance_phase(now);
        self.advance_step_down(now);
        match &self.role {
            Role::Leader(_) => self.lead(now),
            Role::Follower => self.follow(now),
        }
    }

    fn phase_end(&self) -> Option<Duration> {
        match self.phase {
            Phase::Observing => Some(self.phase_since + self.settings.cold_start_observation_window),
            Phase::Preparation => Some(self.phase_since + self.settings.cold_start_preparation_delay),
            Phase::Election | Phase::Ready => None,
        }
    }

    fn advance_phase(&mut self, now: Now) {
        let has_coordinator = matches!(self.role, Role::Leader(_)) || self.follows_other(now);
        if self.phase == Phase::Observing && has_coordinator {
            self.enter_phase(now, Phase::Preparation);
        }
        if self.phase == Phase::Observing && self.phase_end().is_some_and(|end| now.mono >= end) {
            self.enter_phase(now, Phase::Election);
        }
        if self.phase == Phase::Election && has_coordinator {
            self.enter_phase(now, Phase::Preparation);
        }
        if self.phase == Phase::Preparation && self.phase_end().is_some_and(|end| now.mono >= end) {
            self.enter_phase(now, Phase::Ready);
        }
    }

    /// Whether another worker seems to hold the group.
    fn follows_other(&self, now: Now) -> bool {
        self.coordinator().is_some_and(|epoch| !epoch.released && epoch.incarnation != self.incarnation)
            && !self.is_claimable(now)
    }

    fn enter_phase(&mut self, now: Now, phase: Phase) {
        let duration = millis(now.mono.saturating_sub(self.phase_since));
        self.phase = phase;
        self.phase_since = now.mono;
        self.phases.push(PhaseStep { phase, at: now.wall_ms, duration });
        self.next_heartbeat = now.mono;
        self.emit(Event::ColdStartPhaseChanged { phase, duration });
    }

    fn write_heartbeat(&mut self, now: Now) {
        self.heartbeat_in_flight = true;
        self.heartbeat_seq += 1;
        let every = if self.uses_process_lease { SHARED_HEARTBEAT_FACTOR } else { 1 };
        self.next_heartbeat = now.mono + self.settings.heartbeat_interval * every;
        let term = match &self.role {
            Role::Leader(term) => Some(term.record.epoch),
            Role::Follower => None,
        };
        self.effects.push(Effect::WriteHeartbeat(WorkerRecord {
            worker_id: self.worker_id.clone(),
            last_heartbeat: now.wall_ms,
            epoch: term,
            is_coordinator: term.map(|_| true),
            incarnation: self.incarnation.clone(),
            seq: self.heartbeat_seq,
            epoch_number: self.highest_epoch,
            phase: self.phase,
            phases: self.phases.clone(),
        }));
    }

    fn on_heartbeat_written(&mut self, now: Now, outcome: Result<(), String>) {
        self.heartbeat_in_flight = false;
        match outcome {
            // With a shared lease, its renewal counts as the heartbeat.
            Ok(()) if self.uses_process_lease => {}
            Ok(()) => self.count_heartbeat(now),
            Err(error) => {
                self.next_heartbeat = now.mono + self.retry_backoff(self.settings.heartbeat_interval);
                self.record_failure(error);
            }
        }
    }

    fn count_heartbeat(&mut self, now: Now) {
        self.counters.heartbeats += 1;
        let worker_id = self.worker_id.clone();
        self.emit(Event::WorkerHeartbeat { worker_id, timestamp: now.wall_ms });
    }

    fn on_read(&mut self, now: Now, outcome: Result<Option<(Version, EpochRecord)>, String>) {
        if self.stale_reads > 0 {
            self.stale_reads -= 1;
            return;
        }
        self.pending_call = None;
        let current = match outcome {
            Ok(current) => current,
            Err(error) => {
                self.next_read = now.mono + self.retry_backoff(self.settings.effective_poll_interval());
                self.record_step_down_failure(&error);
                return self.record_failure(error);
            }
        };
        self.consecutive_failures = 0;
        self.next_read = now.mono + self.settings.effective_poll_interval();
        self.last_read_at = Some(now.mono);
        if let Some(request) = &mut self.step_down {
            request.record_read = true;
        }
        self.observe_record(now, current);
        // Read again when the lease ends.
        if let Some(free_at) = self.free_at().filter(|at| *at > now.mono) {
            self.next_read = self.next_read.min(free_at);
        }
    }

    fn on_swapped(&mut self, now: Now, outcome: SwapAnswer) {
        let Some(call) = self.pending_call.take() else { return };
        if let SwapAnswer::Unknown(error) = &outcome {
            self.record_failure(error.clone());
        }
        match call {
            PendingCall::Read => {}
            PendingCall::Claim => self.on_claimed(now, outcome),
            PendingCall::Renew => self.on_renewed(now, outcome),
            PendingCall::Release => self.on_released(now, outcome),
            PendingCall::StepDown => self.on_step_down_written(now, outcome),
        }
    }

    /// Applies what the store holds.
    fn observe_record(&mut self, now: Now, current: Option<(Version, EpochRecord)>) {
        let lost = self.lapsed_coordinator();
        let same = self.observed.as_ref().is_some_and(|seen| {
            seen.current.as_ref().map(|(version, _)| version) == current.as_ref().map(|(version, _)| version)
        });
        if !same {
            self.observed = Some(ObservedRecord { current: current.clone(), since: now.mono });
            self.claim.restart();
        }
        if let Some((_, epoch)) = &current {
            self.highest_epoch = self.highest_epoch.max(epoch.epoch_number);
            self.observed_lease = Duration::from_millis(epoch.lease_ms);
            self.worker_records_read = false;
            if !epoch.released {
                self.announce_coordinator(now, epoch, lost);
            }
        }
        match self.role {
            Role::Leader(_) => self.check_term(now, current),
            Role::Follower => self.check_claim(now, current),
        }
    }

    /// The coordinator that was last seen, unless it has released its term.
    fn lapsed_coordinator(&self) -> Option<String> {
        self.coordinator().filter(|epoch| !epoch.released).map(|epoch| epoch.coordinator_id.clone())
    }

    /// Prepares the event of a new coordinator, which took over from `lost` if that is another worker.
    fn announce_coordinator(&mut self, now: Now, epoch: &EpochRecord, lost: Option<String>) {
        if self.announced.as_ref().is_some_and(|(_, number)| *number >= epoch.epoch_number) {
            return;
        }
        // Publish the previous change first, with the workers known so far.
        self.emit_elected(now);
        let told = self.announced.replace((epoch.coordinator_id.clone(), epoch.epoch_number));
        self.pending_elected = Some(PendingElectedEvent {
            epoch: epoch.clone(),
            previous: told.as_ref().map(|(id, _)| id.clone()),
            lost: lost.filter(|lost| *lost != epoch.coordinator_id),
        });
        // Followers do not list workers while the coordinator is healthy; a claimant has just done so.
        if epoch.incarnation == self.incarnation {
            self.emit_elected(now);
        } else if !self.workers.list_in_flight {
            self.list_workers();
        }
        if told.is_none() {
            return;
        }
        self.counters.changes += 1;
        let window = self.settings.max_epoch_duration * CHANGE_WINDOW_MANDATES;
        self.recent_changes.push_back(now.mono);
        while self.recent_changes.front().is_some_and(|at| now.mono - *at > window) {
            self.recent_changes.pop_front();
        }
        if self.recent_changes.len() > self.settings.changes_warning as usize {
            self.emit(Event::CoordinatorChangesOften {
                changes: self.recent_changes.len(),
                window: millis(window),
            });
            self.recent_changes.clear();
        }
    }

    /// Publishes the event of a new coordinator, with the workers that are known to be alive.
    fn emit_elected(&mut self, now: Now) {
        let Some(PendingElectedEvent { epoch, previous, lost }) = self.pending_elected.take() else { return };
        let alive = self.workers.alive(now.mono, self.settings.worker_timeout, &self.worker_id);
        self.emit(Event::CoordinatorElected {
            worker_id: epoch.coordinator_id,
            epoch: epoch.epoch,
            active_workers: alive.iter().filter(|id| lost.as_ref() != Some(id)).count(),
            epoch_number: epoch.epoch_number,
            previous,
        });
    }

    fn record_failure(&mut self, error: String) {
        self.counters.failures += 1;
        self.consecutive_failures += 1;
        if self.consecutive_failures.is_multiple_of(FAILURES_PER_EVENT) {
            self.emit(Event::StoreFailing { error, failures: self.consecutive_failures });
        }
    }

    /// The pause before a failed call is repeated that is normally made every `interval`.
    fn retry_backoff(&mut self, interval: Duration) -> Duration {
        let base = (interval / 8).clamp(Duration::from_millis(20), Duration::from_secs(2));
        base + self.random.duration_below(base)
    }

    fn emit(&mut self, event: Event) {
        self.effects.push(Effect::Emit(event));
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A small generator. Its numbers must differ; they need not be secret.
#[derive(Debug)]
struct Random([u64; 2]);

impl Random {
    fn next_u64(&mut self) -> u64 {
        let [mut x, y] = self.0;
        let sum = x.wrapping_add(y);
        x ^= x << 23;
        self.0 = [y, x ^ y ^ (x >> 18) ^ (y >> 5)];
        sum
    }

    /// 128 bits as text.
    fn hex_128(&mut self) -> String {
        format!("{:016x}{:016x}", self.next_u64(), self.next_u64())
    }

    fn duration_below(&mut self, max: Duration) -> Duration {
        let micros = u64::try_from(max.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.next_u64() % micros.max(1))
    }
}
