//! Simulates lost, late and duplicate messages, clocks of different speed, workers that pause, crash and restart
//! beside their former process, and servers that lose their memory. No two workers may ever use one shard at the same
//! time, and servers that break a rule must be caught.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use baton_shards::{Allocation, Heartbeat, Ranges, Refusal, Request, Rules, Service, Snapshot, Status};
use baton_types::Timestamp;

const SECOND: i64 = 1_000_000;
const TIMEOUT: i64 = 15 * SECOND;
const CHECK: i64 = 5 * SECOND;
const BEAT: i64 = 5 * SECOND;
const IDS: usize = 5;
const SHARDS: u32 = 12;
const END: i64 = 1_200 * SECOND;

/// The rule that the server breaks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Broken {
    Nothing,
    /// It expires workers before their lease has ended.
    Impatient,
    /// It does not wait until workers confirm that they have stopped.
    Unconfirmed,
    /// After a restart it does not treat every worker as just heard.
    Forgetful,
    /// A new session of a worker gets the shards of the old one at once.
    Credulous,
}

/// Pseudo-random numbers (SplitMix64), so that a seed repeats a run.
struct RandomSource(u64);

impl RandomSource {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: i64) -> i64 {
        (self.next() % end as u64) as i64
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

#[derive(Clone, Debug)]
struct Assignment {
    generation: u64,
    grants: Vec<(u32, u64)>,
    revoking: Ranges,
    lease: i64,
    sequence: Option<u64>,
}

#[derive(Clone, Debug)]
enum Event {
    Arrive(usize, u64, Heartbeat),
    Answer(usize, Result<Assignment, Refusal>),
    Tick(usize),
    Stopped(usize, u32),
    Check,
    Mischief,
}

/// One worker process.
struct Process {
    id: Arc<str>,
    session: Arc<str>,
    registered: bool,
    alive: bool,
    paused_until: i64,
    /// The drift of its clock, in millionths.
    drift: i64,
    generation: u64,
    /// Shards in use, with their tokens.
    uses: BTreeMap<u32, u64>,
    stopping: BTreeSet<u32>,
    /// On the world's clock, for the check; computed from its own.
    deadline: i64,
    sequence: u64,
    sent: BTreeMap<u64, i64>,
}

struct World {
    random: RandomSource,
    broken: Broken,
    now: i64,
    order: u64,
    events: BinaryHeap<Reverse<(i64, u64, usize)>>,
    kept: Vec<Option<Event>>,
    processes: Vec<Process>,
    service: Service,
    rules: Rules,
    heard: BTreeMap<u32, Timestamp>,
    /// The process of each session.
    places: BTreeMap<(Arc<str>, Arc<str>), usize>,
    /// The highest token that each shard's resource has seen.
    fences: BTreeMap<u32, u64>,
    overlaps: u64,
    used: u64,
    moved: BTreeSet<(u32, u64)>,
    faults: u64,
}

impl World {
    fn new(seed: u64, broken: Broken, allocation: Allocation) -> Self {
        let mut world = Self {
            random: RandomSource(seed),
            broken,
            now: SECOND,
            order: 0,
            events: BinaryHeap::new(),
            kept: Vec::new(),
            processes: Vec::new(),
            service: Service::default(),
            rules: Rules {
                allocation,
                timeout: Duration::from_micros(TIMEOUT as u64),
                forget_after: Duration::from_secs(60),
                rebalance_interval: Duration::ZERO,
            },
            heard: BTreeMap::new(),
            places: BTreeMap::new(),
            fences: BTreeMap::new(),
            overlaps: 0,
            used: 0,
            moved: BTreeSet::new(),
            faults: 0,
        };
        for id in 0..IDS {
            world.begin(&format!("w{id}"));
        }
        world.at(CHECK, Event::Check);
        world.at(SECOND, Event::Mischief);
        world
    }

    fn at(&mut self, after: i64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((self.now + after, self.order, self.kept.len())));
        self.kept.push(Some(event));
    }

    fn begin(&mut self, id: &str) {
        let place = self.processes.len();
        let drift = self.random.below(20_001) - 10_000;
        self.processes.push(Process {
            id: id.into(),
            session: format!("session-{place}").into(),
            registered: false,
            alive: true,
            paused_until: 0,
            drift,
            generation: 0,
            uses: BTreeMap::new(),
            stopping: BTreeSet::new(),
            deadline: 0,
            sequence: 0,
            sent: BTreeMap::new(),
        });
        let first = self.random.below(2 * SECOND);
        self.at(first, Event::Tick(place));
    }

    fn run(mut self) -> Self {
        while let Some(Reverse((at, _, kept))) = self.events.pop() {
            if at > END {
                break;
            }
            self.now = at;
            let event = self.kept[kept].take().unwrap();
            // A paused process receives nothing until it resumes.
            if let Event::Answer(place, _) | Event::Tick(place) | Event::Stopped(place, _) = &event {
                let process = &self.processes[*place];
                if !process.alive {
                    continue;
                }
                if process.paused_until > at {
                    let after = process.paused_until - at;
                    self.at(after, event);
                    continue;
                }
            }
            match event {
                Event::Arrive(place, sequence, beat) => self.arrive(place, sequence, &beat),
                Event::Answer(place, answer) => self.on_answer(place, answer),
                Event::Tick(place) => self.tick(place),
                Event::Stopped(place, shard) => self.stopped(place, shard),
                Event::Check => self.check(),
                Event::Mischief => self.inject_fault(),
            }
            self.check_usage();
        }
        self
    }

    fn moment(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    /// The latency of a message; `None` when it is lost.
    fn latency(&mut self) -> Option<i64> {
        if self.random.chance(8) {
            self.faults += 1;
            return None;
        }
        let slow = self.random.chance(5);
        Some(if slow { self.random.below(12 * SECOND) } else { self.random.below(SECOND / 5) })
    }

    fn beat(&mut self, place: usize) {
        let process = &mut self.processes[place];
        process.sequence += 1;
        process.sent.insert(process.sequence, self.now);
        let held: Ranges = process.uses.keys().copied().collect();
        let beat = Heartbeat {
            is_registration: !process.registered,
            session: Some(Arc::clone(&process.session)),
            shard_count: Some(SHARDS),
            generation: Some(process.generation),
            held: Some(held),
            ..Heartbeat::from_worker(Arc::clone(&process.id))
        };
        let sequence = process.sequence;
        // Sometimes the network delivers twice.
        for _ in 0..=u8::from(self.random.chance(5)) {
            if let Some(after) = self.latency() {
                self.at(after, Event::Arrive(place, sequence, beat.clone()));
            }
        }
    }

    fn tick(&mut self, place: usize) {
        let process = &mut self.processes[place];
        if self.now >= process.deadline {
            process.uses.clear();
            process.stopping.clear();
        }
        self.beat(place);
        self.at(BEAT, Event::Tick(place));
    }

    // The server.

    fn arrive(&mut self, place: usize, sequence: u64, beat: &Heartbeat) {
        let (request, now) = (Request::Heartbeat(beat.clone()), self.moment());
        let before = self.service.generation;
        let outcome = match self.service.unchanging_heartbeat(&request) {
            Some(number) => Ok(number),
            None => {
                let mut request = beat.clone();
                request.take_over = self.broken == Broken::Credulous;
                self.service.apply(&Request::Heartbeat(request), &self.rules, now)
            }
        };
        self.service.rebalance(&self.rules, now);
        if let Ok(number) = outcome {
            self.heard.insert(number, now);
            self.places.insert((Arc::clone(&beat.worker), beat.session.clone().unwrap()), place);
        }
        if self.broken == Broken::Unconfirmed {
            self.release_for_them();
        }
        let answer = outcome.map(|number| self.assignment(number, Some(sequence)));
        if let Some(after) = self.latency() {
            self.at(after, Event::Answer(place, answer));
        }
        self.send_assignments(before);
    }

    fn check(&mut self) {
        let now = self.moment();
        let early = if self.broken == Broken::Impatient { TIMEOUT / 5 } else { 0 };
        let later = Timestamp::from_micros(self.now + early);
        let before = self.service.generation;
        let heard = self.heard.clone();
        self.service.expire_silent_workers(&self.rules, later, |number| heard.get(&number).copied());
        self.service.rebalance(&self.rules, now);
        self.send_assignments(before);
        self.at(CHECK, Event::Check);
    }

    /// Assumes that a worker stops as soon as it is asked to.
    fn release_for_them(&mut self) {
        let now = self.moment();
        let told: Vec<_> =
            self.service.workers().filter(|(_, w)| w.revoking > 0).map(|(n, w)| (n, w.clone())).collect();
        for (number, worker) in told.into_iter().filter(|(_, worker)| worker.status == Status::Active) {
            let snapshot = Snapshot::compute(Arc::new(self.service.clone()), 1);
            let beat = Heartbeat {
                session: worker.session,
                generation: Some(worker.generation),
                held: Some(snapshot.view(number).shards()),
                ..Heartbeat::from_worker(worker.id)
            };
            self.service.apply(&Request::Heartbeat(beat), &self.rules, now).unwrap();
        }
        self.service.rebalance(&self.rules, now);
    }

    fn assignment(&self, number: u32, sequence: Option<u64>) -> Assignment {
        let snapshot = Snapshot::compute(Arc::new(self.service.clone()), 1);
        let worker = snapshot.service.worker(number).unwrap();
        let view = snapshot.view(number);
        let grants = view.grants.iter().flat_map(|g| (g.from..=g.to).map(|shard| (shard, g.token))).collect();
        Assignment {
            generation: worker.generation,
            grants,
            revoking: view.revoking.clone(),
            lease: worker.usable_lease().as_micros() as i64,
            sequence,
        }
    }

    /// Sends all assignments that are newer than `before`.
    fn send_assignments(&mut self, before: u64) {
        let news: Vec<_> = self
            .service
            .workers()
            .filter(|(_, worker)| worker.generation > before && worker.status == Status::Active)
            .map(|(number, worker)| (number, (Arc::clone(&worker.id), worker.session.clone().unwrap())))
            .collect();
        for (number, key) in news {
            let (Some(place), Some(after)) = (self.places.get(&key).copied(), self.latency()) else {
                continue;
            };
            let assignment = self.assignment(number, None);
            self.at(after, Event::Answer(place, Ok(assignment)));
        }
    }

    // The workers.

    fn on_answer(&mut self, place: usize, answer: Result<Assignment, Refusal>) {
        let now = self.now;
        let process = &mut self.processes[place];
        let assignment = match answer {
            Ok(assignment) => assignment,
            Err(_) => {
                // Another session has registered: this process gives up.
                process.alive = false;
                process.uses.clear();
                return;
            }
        };
        process.registered = true;
        if now >= process.deadline {
            process.uses.clear();
            process.stopping.clear();
        }
        if let Some(sent) = assignment.sequence.and_then(|sequence| process.sent.get(&sequence)) {
            // A fast clock ends the lease sooner, a slow one later.
            let lease = assignment.lease - assignment.lease * process.drift / 1_000_000;
            process.deadline = process.deadline.max(sent + lease);
        }
        if assignment.generation < process.generation {
            return;
        }
        process.generation = assignment.generation;
        let granted: BTreeMap<u32, u64> = assignment.grants.iter().copied().collect();
        let lost: Vec<u32> =
            process.uses.keys().copied().filter(|shard| !granted.contains_key(shard)).collect();
        process.uses.extend(granted);
        let mut stops = Vec::new();
        for shard in lost {
            if process.stopping.insert(shard) {
                stops.push(shard);
            }
        }
        for shard in assignment.revoking.numbers().filter(|shard| !process.uses.contains_key(shard)) {
            // The grant was revoked at once, or it has stopped already: the next heartbeat confirms it.
            process.stopping.remove(&shard);
        }
        for shard in stops {
            let after = self.random.below(3 * SECOND);
            self.at(after, Event::Stopped(place, shard));
        }
    }

    fn stopped(&mut self, place: usize, shard: u32) {
        let process = &mut self.processes[place];
        if process.stopping.remove(&shard) {
            process.uses.remove(&shard);
            self.beat(place);
        }
    }

    fn inject_fault(&mut self) {
        let after = 2 * SECOND + self.random.below(20 * SECOND);
        self.at(after, Event::Mischief);
        let living: Vec<usize> = (0..self.processes.len()).filter(|at| self.processes[*at].alive).collect();
        let missing: Vec<String> = (0..IDS)
            .map(|id| format!("w{id}"))
            .filter(|id| !living.iter().any(|at| *self.processes[*at].id == **id))
            .collect();
        self.faults += 1;
        match self.random.below(10) {
            0..4 => {
                if let Some(id) = missing.first() {
                    self.begin(&id.clone());
                } else if let Some(at) = living.get(self.random.below(living.len() as i64) as usize) {
                    self.processes[*at].alive = false;
                    let id = self.processes[*at].id.to_string();
                    if self.random.chance(50) {
                        self.begin(&id);
                    }
                }
            }
            4..7 => {
                if let Some(at) = living.get(self.random.below(living.len().max(1) as i64) as usize) {
                    self.processes[*at].paused_until = self.now + self.random.below(40 * SECOND);
                }
            }
            7 => {
                // Starts a second process with an id that is in use.
                if let Some(at) = living.first() {
                    let id = self.processes[*at].id.to_string();
                    self.begin(&id);
                }
            }
            _ => {
                // The server restarts without its memory of heartbeats and peers.
                let now = self.moment();
                self.places.clear();
                self.heard = match self.broken {
                    Broken::Forgetful => BTreeMap::new(),
                    _ => self.service.workers().map(|(number, _)| (number, now)).collect(),
                };
            }
        }
    }

    /// Checks who uses which shard.
    fn check_usage(&mut self) {
        let mut owners: BTreeMap<u32, (usize, u64)> = BTreeMap::new();
        for (place, process) in self.processes.iter().enumerate() {
            if !process.alive || self.now >= process.deadline {
                continue;
            }
            for (shard, token) in &process.uses {
                self.used += 1;
                self.moved.insert((*shard, *token));
                if owners.insert(*shard, (place, *token)).is_some() {
                    self.overlaps += 1;
                }
            }
        }
        for (shard, (_, token)) in owners {
            let fence = self.fences.entry(shard).or_insert(token);
            if token < *fence {
                self.overlaps += 1;
            }
            *fence = token.max(*fence);
        }
    }
}

fn runs(broken: Broken, seeds: u64) -> (u64, u64) {
    let (mut overlaps, mut caught) = (0, 0);
    for seed in 0..seeds {
        let allocation = if seed % 2 == 0 { Allocation::Sticky } else { Allocation::Contiguous };
        let world = World::new(seed, broken, allocation).run();
        assert!(
            world.faults > 100 && world.used > 10_000,
            "seed {seed}: {} faults, {} uses",
            world.faults,
            world.used
        );
        assert!(world.moved.len() > SHARDS as usize * 3, "seed {seed}: {} grants", world.moved.len());
        overlaps += world.overlaps;
        caught += u64::from(world.overlaps > 0);
        if broken == Broken::Nothing {
            assert_eq!(world.overlaps, 0, "seed {seed}");
        }
    }
    (overlaps, caught)
}

#[test]
fn no_shard_is_ever_used_by_two_workers() {
    assert_eq!(runs(Broken::Nothing, 150), (0, 0));
}

#[test]
fn a_server_that_breaks_a_rule_is_caught() {
    for broken in [Broken::Impatient, Broken::Unconfirmed, Broken::Forgetful, Broken::Credulous] {
        let (overlaps, caught) = runs(broken, 20);
        assert!(caught > 0, "{broken:?}: {overlaps} overlaps in {caught} runs");
    }
}
