//! The state machine of one service: workers, shards, and when a shard changes hands. Requests and time in, new
//! state out.
//!
//! A shard is free, owned, or *revoking*: its owner was told to stop and has not confirmed yet. Always:
//! - a shard gets a new owner only when it is free; it becomes free when its owner confirms that it stopped, when the
//!   owner's lease ends, or when the owner has no lease (no session);
//! - a token is the generation of its grant and generations only rise, so the tokens of a shard only rise;
//! - shards beyond the current count are kept while a worker may still use them;
//! - only the identity that registered a live worker can send heartbeats or leave for it, if it had an identity.
//!
//! Not here: heartbeats that change nothing (`service_actor`), the stored form (`codec`). Start at
//! [`Service::apply`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_types::Timestamp;
use rustc_hash::FxHashMap;

use crate::allocation::{self, Allocation, Candidate};
use crate::limits::{CLOCK_DRIFT, WORKERS_MAX};
use crate::request::{Heartbeat, Refusal, Request};

/// The state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Heard within its timeout.
    Active,
    /// Silent for longer than its timeout; owns no shard.
    Inactive,
    /// A new session of the same worker replaced it; its shards become free when its lease ends.
    Fenced,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its id.
    pub id: Arc<str>,
    /// Its session: which process of this worker id.
    pub session: Option<Arc<str>>,
    /// The identity that registered it, if its transport authenticates.
    pub owner: Option<Arc<str>>,
    /// Its state.
    pub status: Status,
    /// Its share, relative to others.
    pub weight: u32,
    /// Shards it can have at most.
    pub capacity: Option<u32>,
    /// Whether it should have no shards.
    pub draining: bool,
    /// The shard count it last reported (`changes_shard_count`).
    pub reported_count: u32,
    /// How long it may be silent: the length of its lease.
    pub timeout: Duration,
    /// When it last changed this state; heartbeats may be later.
    pub last_heard_at: Timestamp,
    /// When it first registered.
    pub registered_at: Timestamp,
    /// The generation of the last change to its assignment.
    pub generation: u64,
    /// How many of its shards are being revoked.
    pub revoking: u32,
}

impl Worker {
    /// Whether the worker is alive and belongs to another identity than `caller`.
    fn is_foreign(&self, caller: Option<&Arc<str>>) -> bool {
        self.status != Status::Inactive && self.owner.is_some() && self.owner.as_ref() != caller
    }

    /// How long the worker may use its shards after an answer, counted from before it asked: its lease, shortened
    /// by twice the clock drift allowed.
    pub fn usable_lease(&self) -> Duration {
        self.timeout.mul_f64((1.0 - CLOCK_DRIFT) / (1.0 + CLOCK_DRIFT))
    }
}

/// A shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shard {
    /// The number of its owner; zero when it is free.
    pub owner: u32,
    /// Whether the owner was told to stop.
    pub revoking: bool,
    /// The generation of its last grant, which is its fencing token.
    pub token: u64,
}

/// The settings that govern decisions.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How shards are spread.
    pub allocation: Allocation,
    /// How long a worker that registers may be silent.
    pub timeout: Duration,
    /// How long an expired worker is remembered.
    pub forget_after: Duration,
    /// The least time between two revocations.
    pub rebalance_interval: Duration,
}

/// The durable state of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// The number of shards.
    pub count: u32,
    /// Rises with every change of the assignment.
    pub generation: u64,
    /// When shards were last revoked from live workers.
    pub rebalanced_at: Timestamp,
    /// Grants of shards that had an earlier owner.
    pub moves: u64,
    /// Whether the assignment may differ from the plan.
    pub needs_rebalance: bool,
    pub(crate) next_number: u32,
    pub(crate) workers: BTreeMap<u32, Worker>,
    pub(crate) shards: Vec<Shard>,
    /// The number of the current session of each worker id.
    pub(crate) number_by_id: FxHashMap<Arc<str>, u32>,
}

impl Service {
    /// The workers, each with its number.
    pub fn workers(&self) -> impl Iterator<Item = (u32, &Worker)> {
        self.workers.iter().map(|(number, worker)| (*number, worker))
    }

    /// The worker with this number.
    pub fn worker(&self, number: u32) -> Option<&Worker> {
        self.workers.get(&number)
    }

    /// The number of the current session of a worker.
    pub fn number(&self, id: &str) -> Option<u32> {
        self.number_by_id.get(id).copied()
    }

    /// The shards; those beyond the count are being revoked.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The number of the worker if `request` is a heartbeat that changes nothing.
    pub fn unchanging_heartbeat(&self, request: &Request) -> Option<u32> {
        let Request::Heartbeat(beat) = request else { return None };
        let number = self.number(&beat.worker)?;
        let worker = self.worker(number)?;
        let same = worker.status == Status::Active
            && worker.session == beat.session
            && !worker.is_foreign(beat.caller.as_ref())
            && (!beat.is_registration || worker.owner == beat.caller)
            && beat
                .shard_count
                .is_none_or(|count| !self.changes_shard_count(worker, beat.is_registration, count))
            && beat.weight.is_none_or(|weight| weight == worker.weight)
            && (beat.capacity.is_none() || beat.capacity == worker.capacity)
            && beat.draining.is_none_or(|draining| draining == worker.draining);
        (same && !(worker.revoking > 0 && confirms_assignment(worker, beat))).then_some(number)
    }

    /// Applies a request and returns the number of its worker; zero when the worker left.
    pub fn apply(&mut self, request: &Request, rules: &Rules, now: Timestamp) -> Result<u32, Refusal> {
        match request {
            Request::Heartbeat(beat) => self.apply_heartbeat(beat, rules, now),
            Request::Leave { worker, session, caller } => {
                self.remove_session(worker, session.as_ref(), caller.as_ref())
            }
            Request::Drain { worker, draining } => {
                let number = self.number(worker).ok_or_else(|| Refusal::UnknownWorker(worker.clone()))?;
                if let Some(found) = self.workers.get_mut(&number) {
                    self.needs_rebalance |= found.draining != *draining;
                    found.draining = *draining;
                }
                Ok(number)
            }
            Request::Delete(name) => self.delete(name),
        }
    }

    /// Whether it was deleted or never had a worker.
    pub(crate) fn is_new(&self) -> bool {
        self.next_number == 0
    }

    /// Refuses while a worker may use a shard: the shard could be granted twice.
    fn delete(&mut self, name: &Arc<str>) -> Result<u32, Refusal> {
        if self.is_new() {
            return Err(Refusal::UnknownService(name.clone()));
        }
        if self.workers.values().any(|worker| worker.status != Status::Inactive) {
            return Err(Refusal::InUse(name.clone()));
        }
        *self = Self { generation: self.generation, ..Self::default() };
        Ok(0)
    }

    fn apply_heartbeat(&mut self, beat: &Heartbeat, rules: &Rules, now: Timestamp) -> Result<u32, Refusal> {
        let known = self.number(&beat.worker).and_then(|number| Some((number, self.worker(number)?.clone())));
        let number = match known {
            Some((_, worker)) if worker.is_foreign(beat.caller.as_ref()) => {
                return Err(Refusal::NotOwner(beat.worker.clone()));
            }
            Some((number, worker)) if worker.session == beat.session => number,
            // Only a registration takes over the id of a live worker.
            Some((_, worker)) if worker.status == Status::Active && !beat.is_registration => {
                return Err(Refusal::Fenced(beat.worker.clone()));
            }
            Some((number, worker)) => self.replace_session(number, &worker, beat, rules, now)?,
            None => self.add_worker(beat, rules, now)?,
        };
        let unknown = || Refusal::UnknownWorker(beat.worker.clone());
        let worker = self.worker(number).ok_or_else(unknown)?;
        let count =
            beat.shard_count.filter(|count| self.changes_shard_count(worker, beat.is_registration, *count));
        let worker = self.workers.get_mut(&number).ok_or_else(unknown)?;
        let before = (worker.status, worker.weight, worker.capacity, worker.draining);
        worker.last_heard_at = worker.last_heard_at.max(now);
        if beat.is_registration || worker.status != Status::Active {
            worker.owner.clone_from(&beat.caller);
        }
        worker.status = Status::Active;
        worker.timeout = rules.timeout;
        worker.weight = beat.weight.unwrap_or(worker.weight);
        worker.capacity = beat.capacity.or(worker.capacity);
        worker.draining = beat.draining.unwrap_or(worker.draining);
        self.needs_rebalance |= before != (worker.status, worker.weight, worker.capacity, worker.draining);
        if let Some(count) = count {
            worker.reported_count = count;
            self.needs_rebalance |= self.count != count;
            self.count = count;
        }
        if worker.revoking > 0 && confirms_assignment(worker, beat) {
            self.release_shards(number, |shard, number| {
                shard.revoking && beat.held.as_ref().is_some_and(|held| !held.contains(number))
            });
        }
        Ok(number)
    }

    /// Whether the reported `count` replaces the current one. A registration always replaces it. A heartbeat does
    /// when its count differs from its last report, or when no live worker reports the current count any more.
    fn changes_shard_count(&self, worker: &Worker, registers: bool, count: u32) -> bool {
        let stands = |other: &Worker| other.status == Status::Active && other.reported_count == self.count;
        count != worker.reported_count
            // Newest first: after a change the newest workers report the current count.
            || (count != self.count && (registers || !self.workers.values().rev().any(stands)))
    }

    fn add_worker(&mut self, beat: &Heartbeat, rules: &Rules, now: Timestamp) -> Result<u32, Refusal> {
        if self.workers.len() >= WORKERS_MAX {
            return Err(Refusal::Full(format!("a service has at most {WORKERS_MAX} workers")));
        }
        self.next_number += 1;
        let worker = Worker {
            id: beat.worker.clone(),
            session: beat.session.clone(),
            owner: None,
            status: Status::Inactive,
            weight: 1,
            capacity: None,
            draining: false,
            // Differs from the reported count, so that the report counts as a change.
            reported_count: beat.shard_count.map_or(self.count, |count| !count),
            timeout: rules.timeout,
            last_heard_at: now,
            registered_at: now,
            generation: self.generation,
            revoking: 0,
        };
        self.workers.insert(self.next_number, worker);
        self.number_by_id.insert(beat.worker.clone(), self.next_number);
        Ok(self.next_number)
    }

    /// A new session of a worker replaces the old one.
    fn replace_session(
        &mut self,
        number: u32,
        old: &Worker,
        beat: &Heartbeat,
        rules: &Rules,
        now: Timestamp,
    ) -> Result<u32, Refusal> {
        let has_lease = old.status == Status::Active && old.session.is_some();
        if has_lease && !beat.take_over {
            let fresh = self.add_worker(beat, rules, now)?;
            let mut count = 0;
            for shard in self.shards.iter_mut().filter(|shard| shard.owner == number) {
                shard.revoking = true;
                count += 1;
            }
            if let Some(old) = self.workers.get_mut(&number) {
                (old.status, old.revoking) = (Status::Fenced, count);
            }
            return Ok(fresh);
        }
        // Same shards, new tokens: the old session's tokens become stale.
        self.generation += 1;
        for shard in self.shards.iter_mut().filter(|shard| shard.owner == number) {
            shard.token = self.generation;
        }
        if let Some(worker) = self.workers.get_mut(&number) {
            worker.session = beat.session.clone();
            worker.generation = self.generation;
            worker.registered_at = now;
            // A new session starts with defaults, as a new worker does.
            self.needs_rebalance |= (worker.weight, worker.capacity, worker.draining) != (1, None, false);
            (worker.weight, worker.capacity, worker.draining) = (1, None, false);
        }
        Ok(number)
    }

    fn remove_session(
        &mut self,
        id: &Arc<str>,
        session: Option<&Arc<str>>,
        caller: Option<&Arc<str>>,
    ) -> Result<u32, Refusal> {
        let mut lives = self.workers.iter().filter(|(_, worker)| worker.id == *id);
        let Some((&number, worker)) = lives.find(|(_, worker)| worker.session.as_ref() == session) else {
            let fenced = self.number(id).is_some();
            return Err(if fenced {
                Refusal::Fenced(id.clone())
            } else {
                Refusal::UnknownWorker(id.clone())
            });
        };
        if worker.is_foreign(caller) {
            return Err(Refusal::NotOwner(id.clone()));
        }
        self.remove_worker(number);
        Ok(0)
    }

    fn remove_worker(&mut self, number: u32) {
        self.release_shards(number, |_, _| true);
        let Some(gone) = self.workers.remove(&number) else { return };
        if self.number(&gone.id) == Some(number) {
            self.number_by_id.remove(&gone.id);
        }
        self.needs_rebalance = true;
    }

    /// Frees the shards of a worker that `which` selects.
    fn release_shards(&mut self, number: u32, which: impl Fn(&Shard, u32) -> bool) {
        let mut revoked = 0;
        for (at, shard) in (0u32..).zip(&mut self.shards) {
            if shard.owner == number && which(shard, at) {
                revoked += u32::from(shard.revoking);
                (shard.owner, shard.revoking) = (0, false);
                self.needs_rebalance = true;
            }
        }
        if let Some(worker) = self.workers.get_mut(&number) {
            worker.revoking -= revoked;
        }
    }

    /// Whether [`expire_silent_workers`](Self::expire_silent_workers) would change anything.
    pub fn has_expired_workers(
        &self,
        rules: &Rules,
        now: Timestamp,
        last: impl Fn(u32) -> Option<Timestamp>,
    ) -> bool {
        self.workers().any(|(number, worker)| has_expired(worker, last(number), rules, now))
    }

    /// Frees the shards of silent workers and removes those silent for longer than `forget_after`. `last` adds the
    /// heartbeats that are not part of this state.
    pub fn expire_silent_workers(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        last: impl Fn(u32) -> Option<Timestamp>,
    ) {
        let silent: Vec<(u32, Status)> = self
            .workers()
            .filter(|(number, worker)| has_expired(worker, last(*number), rules, now))
            .map(|(number, worker)| (number, worker.status))
            .collect();
        if silent.iter().any(|(_, status)| *status == Status::Active) {
            // What an expired worker was last told becomes stale, in case it returns.
            self.generation += 1;
        }
        for (number, status) in silent {
            match status {
                Status::Active => {
                    self.release_shards(number, |_, _| true);
                    self.needs_rebalance = true;
                    if let Some(worker) = self.workers.get_mut(&number) {
                        worker.status = Status::Inactive;
                        worker.last_heard_at =
                            worker.last_heard_at.max(last(number).unwrap_or(Timestamp::MIN));
                        worker.generation = self.generation;
                    }
                }
                Status::Inactive | Status::Fenced => self.remove_worker(number),
            }
        }
    }

    /// Grants free shards and revokes shards from owners that should not have them, at most once per
    /// `rebalance_interval`.
    pub fn rebalance(&mut self, rules: &Rules, now: Timestamp) {
        if !self.needs_rebalance {
            return;
        }
        let pause = rules.rebalance_interval;
        let may_revoke = pause.is_zero() || now >= self.rebalanced_at.after(pause);
        self.shards.resize(self.shards.len().max(self.count as usize), Shard::default());
        let plan = self.plan(rules.allocation);
        let generation = self.generation + 1;
        let (mut told, mut revoked, mut waiting) = (FxHashMap::default(), false, false);
        for (at, shard) in self.shards.iter_mut().enumerate() {
            let wanted = plan.get(at).copied().unwrap_or(0);
            if shard.revoking || shard.owner == wanted {
                continue;
            }
            if shard.owner != 0 && !may_revoke {
                waiting = true;
                continue;
            }
            let leased = self.workers.get(&shard.owner).is_some_and(|worker| worker.session.is_some());
            if leased {
                shard.revoking = true;
                *told.entry(shard.owner).or_insert(0) += 1;
                revoked = true;
                continue;
            }
            if shard.owner != 0 {
                told.entry(shard.owner).or_insert(0);
                revoked = true;
            }
            if wanted != 0 {
                told.entry(wanted).or_insert(0);
                self.moves += u64::from(shard.token != 0);
                shard.token = generation;
            }
            shard.owner = wanted;
        }
        while self.shards.len() > self.count as usize
            && self.shards.last().is_some_and(|shard| shard.owner == 0)
        {
            self.shards.pop();
        }
        for (number, revoking) in &told {
            if let Some(worker) = self.workers.get_mut(number) {
                worker.generation = generation;
                worker.revoking += revoking;
            }
        }
        if revoked {
            self.rebalanced_at = now;
        }
        if !told.is_empty() {
            self.generation = generation;
        }
        self.needs_rebalance = waiting;
    }

    /// The worker that should own each shard.
    fn plan(&self, allocation: Allocation) -> Vec<u32> {
        let able = |worker: &Worker| worker.status == Status::Active && !worker.draining;
        let mut candidates: Vec<Candidate> = self
            .workers()
            .filter(|(_, worker)| able(worker))
            .map(|(number, worker)| Candidate {
                number,
                id: worker.id.clone(),
                weight: worker.weight,
                capacity: worker.capacity,
            })
            .collect();
        candidates.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        let holder = |shard: &Shard| if shard.revoking { 0 } else { shard.owner };
        let held: Vec<u32> = self.shards.iter().map(holder).collect();
        allocation::plan(allocation, self.count, &candidates, &held)
    }

    /// When [`rebalance`](Self::rebalance) may revoke again.
    pub fn next_rebalance_at(&self, rules: &Rules) -> Option<Timestamp> {
        self.needs_rebalance.then(|| self.rebalanced_at.after(rules.rebalance_interval))
    }
}

/// Whether a heartbeat reports the shards in use after the last change of its assignment.
fn confirms_assignment(worker: &Worker, beat: &Heartbeat) -> bool {
    beat.held.is_some() && beat.generation.is_some_and(|generation| generation >= worker.generation)
}

fn has_expired(worker: &Worker, last: Option<Timestamp>, rules: &Rules, now: Timestamp) -> bool {
    let patience = match worker.status {
        Status::Inactive => worker.timeout + rules.forget_after,
        Status::Active | Status::Fenced => worker.timeout,
    };
    now > worker.last_heard_at.max(last.unwrap_or(Timestamp::MIN)).after(patience)
}
