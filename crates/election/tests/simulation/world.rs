//! The simulated world: workers, their clocks, the store, and what goes wrong between them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use baton_election::machine::{
    Effect, HeldLease, Input, Machine, Now, ProcessLease, ProcessLeaseEffect, ProcessLeaseInput, SwapAnswer,
};
use baton_election::record::{EpochRecord, ProcessRecord, WorkerRecord, process_worker_id};
use baton_election::store::Version;
use baton_election::{Settings, store_calls};

use crate::check::{Broken, Check};

/// What one run is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub workers: usize,
    pub settings: Settings,
    /// By how much of its rate each clock may be wrong.
    pub drift: f64,
    /// Storms of faults, each followed by a calm.
    pub storms: u32,
    /// Whether the store honours conditions.
    pub conditional: bool,
    /// Whether an operator deletes the epoch record now and then.
    pub deletes: bool,
    pub faults: bool,
    /// How many percent of the workers hold by the lease of a process.
    pub sharing: u64,
    /// Whether a term is taken from a process without fencing it first.
    pub fences: bool,
}

/// What a worker asks the store for.
#[derive(Clone, Debug)]
enum StoreRequest {
    /// By its machine, which knows of this process as its own.
    Machine(Effect, Option<String>),
    ProcessLease(ProcessLeaseEffect),
}

/// An answer for a worker.
#[derive(Debug)]
enum StoreAnswer {
    Machine(Input),
    ProcessLease(ProcessLeaseInput),
}

#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + usize::try_from(self.next() % (high - low + 1) as u64).unwrap()
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.between(0, from.len() - 1)]
    }

    pub fn up_to(&mut self, max: Duration) -> Duration {
        Duration::from_micros(self.next() % u64::try_from(max.as_micros()).unwrap().max(1))
    }
}

/// Something that is due.
#[derive(Debug)]
enum Due {
    /// A worker's machine asked to be woken.
    Wake {
        worker: usize,
        life: u64,
    },
    /// An answer reaches a worker.
    Answer {
        worker: usize,
        life: u64,
        call: u64,
        answer: StoreAnswer,
    },
    /// A request reaches the store.
    Request {
        worker: usize,
        life: u64,
        call: u64,
        asked: StoreRequest,
        reply: Option<Duration>,
        late: bool,
    },
    /// A worker's work has ended after its demotion.
    WorkEnded {
        worker: usize,
        life: u64,
    },
    Resume {
        worker: usize,
        life: u64,
    },
    Restart {
        worker: usize,
    },
    Fault,
    /// An operator deletes the epoch record.
    Delete,
    /// The weather changes.
    Turn {
        stormy: bool,
    },
    Look,
}

struct Participant {
    id: String,
    life: u64,
    machine: Option<Machine>,
    process_lease: Option<ProcessLease>,
    /// The lease that its process has.
    lease: Option<HeldLease>,
    rate: f64,
    offset: Duration,
    wall: i64,
    paused: bool,
    /// What came in while it was paused.
    held: Vec<Due>,
    cut_until: Duration,
    /// Token and deadline, on its own clock.
    leadership: Option<(u64, Duration)>,
    woken_at: Option<Duration>,
    /// Calls that were not answered yet, by kind: one of each at most.
    open: BTreeMap<u64, ()>,
}

#[derive(Default)]
struct Store {
    epoch: Option<(u64, EpochRecord)>,
    processes: BTreeMap<String, (u64, ProcessRecord)>,
    workers: BTreeMap<String, (u64, WorkerRecord)>,
    last: u64,
    /// What a late list shows.
    past: Vec<(String, String)>,
}

pub struct World {
    plan: Plan,
    random: Random,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    due: BTreeMap<u64, Due>,
    next: u64,
    calls: u64,
    workers: Vec<Participant>,
    store: Store,
    stormy: bool,
    calm_since: Duration,
    last_led: Duration,
    storms_left: u32,
    pub check: Check,
    pub lost_replies: u64,
    pub late_requests: u64,
    pub late_writes: u64,
    pub long_pauses: u64,
    pub stale_lists: u64,
    pub deletions: u64,
    pub fenced: u64,
    lives: u64,
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let mut random = Random::new(plan.seed ^ 0x5eed);
        let mut workers = Vec::new();
        for place in 0..plan.workers {
            let span = plan.drift * 2.0;
            let rate = 1.0 - plan.drift + span * (random.next() % 1001) as f64 / 1000.0;
            workers.push(Participant {
                id: format!("w{place}"),
                life: 0,
                machine: None,
                process_lease: None,
                lease: None,
                rate,
                offset: random.up_to(Duration::from_secs(1_000_000)),
                wall: i64::try_from(random.next() % 10_000_000).unwrap() - 5_000_000,
                paused: false,
                held: Vec::new(),
                cut_until: Duration::ZERO,
                leadership: None,
                woken_at: None,
                open: BTreeMap::new(),
            });
        }
        let check = Check::new(plan.seed);
        let storms_left = plan.storms;
        Self {
            random,
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            due: BTreeMap::new(),
            next: 0,
            calls: 0,
            workers,
            store: Store::default(),
            stormy: false,
            calm_since: Duration::ZERO,
            last_led: Duration::ZERO,
            storms_left,
            check,
            lost_replies: 0,
            late_requests: 0,
            late_writes: 0,
            long_pauses: 0,
            stale_lists: 0,
            deletions: 0,
            fenced: 0,
            lives: 0,
            plan,
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.now
    }

    fn heartbeat(&self) -> Duration {
        self.plan.settings.heartbeat_interval
    }

    /// How soon after the start of a calm there must be a coordinator: calls of the storm have landed, and then
    /// the last in line needs its time; one that was just restarted also observes first.
    fn bound(&self) -> Duration {
        let settings = &self.plan.settings;
        settings.failover_bound(u32::MAX)
            + settings.cold_start_observation_window
            + settings.cold_start_preparation_delay
            + settings.call_timeout * 4
            + self.heartbeat() / 2
    }

    pub fn run(&mut self) -> Result<(), Broken> {
        for worker in 0..self.workers.len() {
            let spread = if self.plan.faults { 4 } else { 100 };
            let soon = self.random.up_to(self.heartbeat() / spread);
            self.at(soon, Due::Restart { worker });
        }
        let first = self.bound() + self.heartbeat() * 4;
        self.at(first, Due::Turn { stormy: true });
        self.at(Duration::ZERO, Due::Look);
        while let Some(Reverse((at, number))) = self.queue.pop() {
            self.now = at;
            let due = self.due.remove(&number).unwrap();
            if matches!(due, Due::Turn { stormy: true }) && self.storms_left == 0 {
                return Ok(());
            }
            self.handle(due)?;
        }
        Ok(())
    }

    fn at(&mut self, at: Duration, due: Due) {
        self.next += 1;
        self.queue.push(Reverse((at, self.next)));
        self.due.insert(self.next, due);
    }

    fn after(&mut self, wait: Duration, due: Due) {
        self.at(self.now + wait, due);
    }

    fn handle(&mut self, due: Due) -> Result<(), Broken> {
        match due {
            Due::Wake { worker, life }
            | Due::Answer { worker, life, .. }
            | Due::WorkEnded { worker, life }
                if self.workers[worker].life == life && self.workers[worker].paused =>
            {
                self.workers[worker].held.push(due);
            }
            Due::Wake { worker, life } => {
                if self.workers[worker].woken_at == Some(self.now) {
                    self.workers[worker].woken_at = None;
                }
                self.step_process_lease(worker, life, ProcessLeaseInput::Tick)?;
                self.step(worker, life, Input::Tick)?;
            }
            Due::Answer { worker, life, call, answer } => {
                if self.workers[worker].life == life && self.workers[worker].open.remove(&call).is_some() {
                    match answer {
                        StoreAnswer::Machine(input) => self.step(worker, life, input)?,
                        StoreAnswer::ProcessLease(input) => self.step_process_lease(worker, life, input)?,
                    }
                }
            }
            Due::WorkEnded { worker, life } => self.step(worker, life, Input::WorkEnded)?,
            Due::Request { worker, life, call, asked, reply, late } => {
                let answer = match self.fence(asked) {
                    Ok(asked) => self.serve(asked, late)?,
                    // The second of its two writes is still to come.
                    Err(Some(asked)) => {
                        let wait = self.random.up_to(self.plan.settings.call_timeout / 2);
                        self.after(wait, Due::Request { worker, life, call, asked, reply, late });
                        return Ok(());
                    }
                    Err(None) => Some(StoreAnswer::Machine(Input::SwapAnswered(SwapAnswer::Conflict))),
                };
                match (reply, answer) {
                    (Some(delay), Some(answer)) => {
                        self.after(delay, Due::Answer { worker, life, call, answer })
                    }
                    (None, Some(_)) => self.lost_replies += 1,
                    _ => {}
                }
            }
            Due::Resume { worker, life } => self.resume(worker, life)?,
            Due::Restart { worker } => self.start(worker)?,
            Due::Fault => self.fault()?,
            Due::Delete => {
                if self.number_is_known() {
                    self.store.epoch = None;
                    self.deletions += 1;
                }
            }
            Due::Turn { stormy } => self.turn(stormy)?,
            Due::Look => {
                self.look()?;
                let wait = self.heartbeat() / 8;
                self.after(wait, Due::Look);
            }
        }
        Ok(())
    }

    /// Checks that there is a coordinator in a calm.
    fn look(&mut self) -> Result<(), Broken> {
        if !self.leading().is_empty() || self.stormy {
            self.last_led = self.now;
        }
        let without = self.now - self.last_led.max(self.calm_since);
        let bound = self.bound();
        self.check.idle(self.now, without, bound)
    }

    fn turn(&mut self, stormy: bool) -> Result<(), Broken> {
        let stormy = stormy && self.plan.faults;
        self.stormy = stormy;
        self.storms_left -= u32::from(stormy || !self.plan.faults);
        if stormy {
            self.after(Duration::ZERO, Due::Fault);
            let length = self.heartbeat() * u32::try_from(self.random.between(5, 25)).unwrap();
            self.after(length, Due::Turn { stormy: false });
            return Ok(());
        }
        // Calm: everybody is there and can be reached.
        self.calm_since = self.now;
        for worker in 0..self.workers.len() {
            self.workers[worker].cut_until = Duration::ZERO;
            let life = self.workers[worker].life;
            self.resume(worker, life)?;
            if self.workers[worker].machine.is_none() {
                self.start(worker)?;
            }
        }
        let mut length = self.bound() + self.heartbeat() * 3;
        if self.plan.deletes {
            self.after(length, Due::Delete);
            length += self.bound();
        }
        self.after(length, Due::Turn { stormy: true });
        Ok(())
    }

    /// Something goes wrong.
    fn fault(&mut self) -> Result<(), Broken> {
        if !self.stormy {
            return Ok(());
        }
        let worker = self.random.between(0, self.workers.len() - 1);
        let life = self.workers[worker].life;
        let heartbeat = self.heartbeat();
        match self.random.between(0, 9) {
            0 | 1 => self.crash(worker),
            2 | 3 => {
                // Frozen, perhaps for longer than a mandate.
                let long = self.random.chance(30);
                let max = if long { self.plan.settings.max_epoch_duration * 2 } else { heartbeat * 4 };
                let pause = self.random.up_to(max);
                self.long_pauses += u64::from(pause > self.plan.settings.worker_timeout);
                self.workers[worker].paused = true;
                self.after(pause, Due::Resume { worker, life });
            }
            4 | 5 => self.workers[worker].cut_until = self.now + self.random.up_to(heartbeat * 6),
            6 => {
                self.workers[worker].wall +=
                    i64::try_from(self.random.next() % 20_000_000).unwrap() - 10_000_000
            }
            7 => self.step(worker, life, Input::Stop)?,
            8 => {
                let desired = self.random.chance(50).then(|| self.random.pick(&self.workers).id.clone());
                self.step(worker, life, Input::StepDown(desired))?;
            }
            _ => {}
        }
        let wait = self.random.up_to(heartbeat);
        self.after(wait, Due::Fault);
        Ok(())
    }

    /// Whether the present epoch number is in a worker record, from which it can be made anew.
    fn number_is_known(&self) -> bool {
        let known = self.store.workers.values().map(|(_, worker)| worker.epoch_number).max();
        known >= self.store.epoch.as_ref().map(|(_, epoch)| epoch.epoch_number)
    }

    fn crash(&mut self, worker: usize) {
        self.workers[worker].machine = None;
        self.workers[worker].process_lease = None;
        self.workers[worker].lease = None;
        self.workers[worker].leadership = None;
        self.workers[worker].life = 0;
        let wait = self.random.up_to(self.heartbeat() * 5);
        self.after(wait, Due::Restart { worker });
    }

    fn start(&mut self, worker: usize) -> Result<(), Broken> {
        if self.workers[worker].machine.is_some() {
            return Ok(());
        }
        self.lives += 1;
        let seed = [self.random.next() | 1, self.random.next()];
        // Some come back under their own name, some under another.
        if self.workers[worker].life == 0 && self.lives > self.workers.len() as u64 && self.random.chance(40)
        {
            self.workers[worker].id = format!("x{}", self.lives);
        }
        let participant = &mut self.workers[worker];
        participant.life = self.lives;
        participant.paused = false;
        participant.held.clear();
        participant.open.clear();
        participant.leadership = None;
        let machine = Machine::new(self.plan.settings.clone(), participant.id.clone(), seed);
        if self.random.chance(self.plan.sharing) {
            let seed = [self.random.next() | 1, self.random.next()];
            participant.process_lease =
                Some(ProcessLease::new(self.plan.settings.clone(), participant.id.clone(), seed));
            participant.machine = Some(machine.with_process_lease());
        } else {
            participant.machine = Some(machine);
        }
        self.step_process_lease(worker, self.lives, ProcessLeaseInput::Tick)?;
        self.step(worker, self.lives, Input::Tick)
    }

    fn resume(&mut self, worker: usize, life: u64) -> Result<(), Broken> {
        if self.workers[worker].life != life || !self.workers[worker].paused {
            return Ok(());
        }
        self.workers[worker].paused = false;
        for due in std::mem::take(&mut self.workers[worker].held) {
            self.handle(due)?;
        }
        self.step_process_lease(worker, life, ProcessLeaseInput::Tick)?;
        self.step(worker, life, Input::Tick)
    }

    fn local(&self, worker: usize) -> Now {
        let participant = &self.workers[worker];
        let mono = participant.offset + self.now.mul_f64(participant.rate);
        let wall = i64::try_from(self.now.as_millis()).unwrap() + 1_700_000_000_000 + participant.wall;
        Now { mono, wall_ms: u64::try_from(wall).unwrap() }
    }

    /// Who would say of itself, now, that it coordinates. One that is frozen says nothing, but its last word holds
    /// as long as its clock says so.
    fn leading(&self) -> Vec<String> {
        let leads = |(place, participant): (usize, &Participant)| {
            let (token, deadline) = participant.leadership?;
            (self.local(place).mono < deadline).then(|| format!("{} ({token})", participant.id))
        };
        self.workers.iter().enumerate().filter_map(leads).collect()
    }

    fn step(&mut self, worker: usize, life: u64, input: Input) -> Result<(), Broken> {
        let now = self.local(worker);
        let participant = &mut self.workers[worker];
        if participant.life != life || participant.paused {
            return Ok(());
        }
        let Some(machine) = &mut participant.machine else { return Ok(()) };
        for effect in machine.step(now, input) {
            self.perform(worker, effect)?;
        }
        self.wake(worker);
        Ok(())
    }

    /// Steps the process lease of a worker.
    fn step_process_lease(
        &mut self,
        worker: usize,
        life: u64,
        input: ProcessLeaseInput,
    ) -> Result<(), Broken> {
        let now = self.local(worker);
        let participant = &mut self.workers[worker];
        if participant.life != life || participant.paused {
            return Ok(());
        }
        let Some(process_lease) = &mut participant.process_lease else { return Ok(()) };
        for effect in process_lease.step(now, input) {
            match effect {
                ProcessLeaseEffect::LeaseChanged(held) => {
                    self.workers[worker].lease.clone_from(&held);
                    self.step(worker, life, Input::LeaseChanged(held))?;
                }
                effect => self.send(worker, StoreRequest::ProcessLease(effect)),
            }
        }
        self.wake(worker);
        Ok(())
    }

    fn wake(&mut self, worker: usize) {
        let participant = &self.workers[worker];
        let Some(machine) = &participant.machine else { return };
        let process_lease = participant.process_lease.as_ref().map_or(Duration::MAX, ProcessLease::wake_at);
        let wait = machine.wake_at().min(process_lease).saturating_sub(self.local(worker).mono);
        if wait > self.heartbeat() * 1000 {
            return;
        }
        let at = self.now + wait.div_f64(participant.rate) + Duration::from_micros(1);
        if participant.woken_at.is_none_or(|woken| woken > at || woken < self.now) {
            let life = participant.life;
            self.workers[worker].woken_at = Some(at);
            self.at(at, Due::Wake { worker, life });
        }
    }

    fn perform(&mut self, worker: usize, effect: Effect) -> Result<(), Broken> {
        match effect {
            Effect::Read
            | Effect::Swap(..)
            | Effect::List
            | Effect::ReadHighestEpoch
            | Effect::WriteHeartbeat(_) => {
                let own = self.workers[worker].lease.as_ref().map(|held| held.process.clone());
                self.send(worker, StoreRequest::Machine(effect, own));
            }
            Effect::Remove(_) => {
                let wait = self.random.up_to(self.plan.settings.call_timeout / 4);
                let asked = StoreRequest::Machine(effect, None);
                let due = Due::Request { worker, life: 0, call: 0, asked, reply: None, late: false };
                self.after(wait, due);
            }
            Effect::Promote { token, deadline } => {
                let id = self.workers[worker].id.clone();
                self.workers[worker].leadership = Some((token, deadline));
                self.check.promoted(self.now, &id, token)?;
                let leading = self.leading();
                self.check.leading(self.now, &leading)?;
            }
            Effect::Extend(deadline) => {
                if let Some((_, until)) = &mut self.workers[worker].leadership {
                    *until = deadline;
                }
                let leading = self.leading();
                self.check.leading(self.now, &leading)?;
            }
            Effect::Demote(_) => {
                self.workers[worker].leadership = None;
                let wait = self.random.up_to(self.plan.settings.call_timeout / 2);
                let life = self.workers[worker].life;
                self.after(wait, Due::WorkEnded { worker, life });
            }
            Effect::Finished => self.crash(worker),
            Effect::SteppedDown(_) | Effect::Emit(_) => {}
        }
        Ok(())
    }

    /// Sends a request on its way to the store, and sees to it that its sender hears something in time.
    fn send(&mut self, worker: usize, asked: StoreRequest) {
        let timeout = self.plan.settings.call_timeout;
        self.calls += 1;
        let (call, life) = (self.calls, self.workers[worker].life);
        self.workers[worker].open.insert(call, ());
        let late = || "late".to_owned();
        let answer = match &asked {
            StoreRequest::ProcessLease(ProcessLeaseEffect::Read(_)) => {
                StoreAnswer::ProcessLease(ProcessLeaseInput::Read(Err(late())))
            }
            StoreRequest::ProcessLease(_) => {
                StoreAnswer::ProcessLease(ProcessLeaseInput::SwapAnswered(SwapAnswer::Unknown(late())))
            }
            StoreRequest::Machine(Effect::Read, _) => StoreAnswer::Machine(Input::Read(Err(late()))),
            StoreRequest::Machine(Effect::Swap(..), _) => {
                StoreAnswer::Machine(Input::SwapAnswered(SwapAnswer::Unknown(late())))
            }
            StoreRequest::Machine(Effect::List, _) => StoreAnswer::Machine(Input::Listed(Err(late()))),
            StoreRequest::Machine(Effect::ReadHighestEpoch, _) => {
                StoreAnswer::Machine(Input::HighestEpoch(Err(late())))
            }
            StoreRequest::Machine(..) => StoreAnswer::Machine(Input::HeartbeatWritten(Err(late()))),
        };
        let patience = timeout.div_f64(self.workers[worker].rate);
        self.after(patience, Due::Answer { worker, life, call, answer });
        let quick = timeout / 10;
        let (there, back) = (self.random.up_to(quick), self.random.up_to(quick));
        if !self.stormy {
            let due = Due::Request { worker, life, call, asked, reply: Some(back), late: false };
            return self.after(there, due);
        }
        if self.now < self.workers[worker].cut_until || self.random.chance(5) {
            return;
        }
        let (there, reply, late) = match self.random.between(0, 99) {
            // The reply is lost.
            0..5 => (there, None, false),
            // The request arrives after its caller has timed out.
            5..10 => (timeout + self.random.up_to(timeout * 2), Some(back), true),
            // A slow store.
            10..20 => (self.random.up_to(timeout), Some(self.random.up_to(timeout)), false),
            _ => (there, Some(back), false),
        };
        self.after(there, Due::Request { worker, life, call, asked, reply, late });
    }

    /// The first of the two writes of a claim that takes a term from a process: returns what there is to do if there is
    /// no such write, or else what is left to do, which is nothing if it was refused.
    #[expect(clippy::result_large_err, reason = "both ways are usual")]
    fn fence(&mut self, asked: StoreRequest) -> Result<StoreRequest, Option<StoreRequest>> {
        let StoreRequest::Machine(Effect::Swap(Some(expected), record), own) = asked else {
            return Ok(asked);
        };
        let (version, process) = store_calls::split_version(&expected);
        let rest = StoreRequest::Machine(Effect::Swap(Some(version), record.clone()), own);
        let taken = process.filter(|(id, _)| record.process.as_deref() != Some(id));
        let Some((id, seen)) = taken.filter(|_| self.plan.fences) else { return Ok(rest) };
        let current = self.store.processes.get(id).map(|(version, _)| version.to_string());
        if current.as_deref() != Some(&*seen.0) {
            return Err(None);
        }
        self.fenced += 1;
        self.store.last += 1;
        self.store.processes.insert(id.to_owned(), (self.store.last, ProcessRecord::fenced_record(id)));
        Err(Some(rest))
    }

    /// What the store does with a request.
    fn serve(&mut self, asked: StoreRequest, late: bool) -> Result<Option<StoreAnswer>, Broken> {
        self.late_requests += u64::from(late);
        match asked {
            StoreRequest::Machine(effect, own) => {
                Ok(self.serve_machine(effect, own, late)?.map(StoreAnswer::Machine))
            }
            StoreRequest::ProcessLease(effect) => {
                Ok(self.serve_process_lease(effect).map(StoreAnswer::ProcessLease))
            }
        }
    }

    fn serve_process_lease(&mut self, effect: ProcessLeaseEffect) -> Option<ProcessLeaseInput> {
        let store = &mut self.store;
        let id = |key: &str| key.trim_start_matches("processes/").to_owned();
        match effect {
            ProcessLeaseEffect::Read(key) => {
                let found = store.processes.get(&id(&key)).cloned();
                let found = found.map(|(version, process)| (Version(version.to_string()), process));
                Some(ProcessLeaseInput::Read(Ok(found)))
            }
            ProcessLeaseEffect::Swap(key, expected, process) => {
                let current = store.processes.get(&id(&key)).map(|(version, _)| version.to_string());
                if current != expected.map(|version| version.0) {
                    return Some(ProcessLeaseInput::SwapAnswered(SwapAnswer::Conflict));
                }
                store.last += 1;
                store.processes.insert(id(&key), (store.last, process));
                Some(ProcessLeaseInput::SwapAnswered(SwapAnswer::Done(Version(store.last.to_string()))))
            }
            ProcessLeaseEffect::LeaseChanged(_) | ProcessLeaseEffect::Finished => None,
        }
    }

    fn serve_machine(
        &mut self,
        effect: Effect,
        own: Option<String>,
        late: bool,
    ) -> Result<Option<Input>, Broken> {
        let store = &mut self.store;
        Ok(Some(match effect {
            Effect::Read => {
                let join = |(version, epoch): (u64, EpochRecord)| {
                    let group = (Version(version.to_string()), epoch);
                    let id = group.1.process.clone();
                    match id.filter(|id| !group.1.released && Some(id) != own.as_ref()) {
                        None => group,
                        Some(id) => {
                            let process = store.processes.get(&id).cloned();
                            let seen =
                                process.map(|(version, process)| (Version(version.to_string()), process));
                            store_calls::merge_process(group, seen)
                        }
                    }
                };
                Input::Read(Ok(store.epoch.clone().map(join)))
            }
            Effect::Swap(expected, record) => {
                let current = store.epoch.as_ref().map(|(version, _)| version.to_string());
                if self.plan.conditional && current != expected.map(|version| version.0) {
                    return Ok(Some(Input::SwapAnswered(SwapAnswer::Conflict)));
                }
                self.late_writes += u64::from(late);
                store.last += 1;
                let version = store.last;
                let before = store.epoch.replace((version, record.clone()));
                self.check.written(self.now, before.as_ref().map(|(_, epoch)| epoch), &record)?;
                Input::SwapAnswered(SwapAnswer::Done(Version(version.to_string())))
            }
            Effect::List => {
                let mark = |(id, (mark, _)): (&String, &(u64, WorkerRecord))| {
                    let of_process = |(process, (version, _)): (&String, &(u64, ProcessRecord))| {
                        (process_worker_id(process) == id).then_some(*version)
                    };
                    let newest = store.processes.iter().filter_map(of_process).max();
                    (id.clone(), format!("{mark} {newest:?}"))
                };
                let list: Vec<_> = store.workers.iter().map(mark).collect();
                if self.stormy && self.random.chance(30) {
                    self.stale_lists += 1;
                    return Ok(Some(Input::Listed(Ok(store.past.clone()))));
                }
                store.past.clone_from(&list);
                Input::Listed(Ok(list))
            }
            Effect::ReadHighestEpoch => Input::HighestEpoch(Ok(store
                .workers
                .values()
                .map(|(_, w)| w.epoch_number)
                .max()
                .unwrap_or(0))),
            Effect::WriteHeartbeat(worker) => {
                store.last += 1;
                store.workers.insert(worker.worker_id.clone(), (store.last, worker));
                Input::HeartbeatWritten(Ok(()))
            }
            Effect::Remove(worker) => {
                store.workers.remove(&worker);
                return Ok(None);
            }
            _ => return Ok(None),
        }))
    }
}
