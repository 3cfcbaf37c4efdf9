//! One service: its workers, its shards, and when a shard may change hands. Requests and time in, a new state out.
//!
//! A shard is free, owned, or *revoking*: its owner has been told to stop and has not said yet that it has. Always:
//! - a shard gets a new owner only when it is free, and becomes free only when its owner says that it does not use it,
//!   when the owner's lease has run out, or when the owner is of the kind that has no lease (no session);
//! - a token is the generation in which the shard was granted, generations only rise, so tokens of a shard do too;
//! - shards beyond the present count stay known while somebody may still use them;
//! - while a worker is alive, only the identity that registered it can beat or leave for it, if it had one.
//!
//! Not here: signs of life that change nothing (`beats`), how it is stored (`codec`), who hears of it. Start at
//! [`Service::apply`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_types::Timestamp;
use rustc_hash::FxHashMap;

use crate::allocation::{self, Allocation, Candidate};
use crate::limits::{CLOCK_DRIFT, WORKERS_MAX};
use crate::request::{Beat, Refusal, Request};

/// How a worker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is there.
    Active,
    /// It has been silent for too long, and has nothing.
    Inactive,
    /// Another life of it has registered; what it had is free when its lease has run out.
    Fenced,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its id.
    pub id: Arc<str>,
    /// Which life of it.
    pub session: Option<Arc<str>>,
    /// The identity that registered it, if its transport authenticates.
    pub owner: Option<Arc<str>>,
    /// How it stands.
    pub status: Status,
    /// Its share, relative to others.
    pub weight: u32,
    /// Shards it can have at most.
    pub capacity: Option<u32>,
    /// Whether it is to have none.
    pub draining: bool,
    /// The count it last reported (`is_news`).
    pub reported: u32,
    /// How long it may be silent, which is how long its lease is.
    pub timeout: Duration,
    /// When it last said something that changed this state; its beats may be later.
    pub seen: Timestamp,
    /// When it first registered.
    pub since: Timestamp,
    /// The generation in which what it is told last changed.
    pub generation: u64,
    /// How many shards it is to give back.
    pub revoking: u32,
}

impl Worker {
    /// Whether the worker is alive and belongs to another identity than `caller`.
    fn is_foreign(&self, caller: Option<&Arc<str>>) -> bool {
        self.status != Status::Inactive && self.owner.is_some() && self.owner.as_ref() != caller
    }

    /// For how long the worker may use its shards after an answer, counted from before it asked: shorter than its lease
    /// by twice what clocks may differ.
    pub fn usable(&self) -> Duration {
        self.timeout.mul_f64((1.0 - CLOCK_DRIFT) / (1.0 + CLOCK_DRIFT))
    }
}

/// A shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shard {
    /// The number of its owner; zero when it is free.
    pub owner: u32,
    /// Whether the owner was told to stop using it.
    pub revoking: bool,
    /// The generation in which it was last granted.
    pub token: u64,
}

/// The rules that are settings.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How shards are spread.
    pub allocation: Allocation,
    /// How long a worker that registers may be silent.
    pub timeout: Duration,
    /// How long one that has been is still remembered.
    pub forget_after: Duration,
    /// How long to wait from one revocation to the next.
    pub rebalance_interval: Duration,
}

/// What has become of a service: everything that must survive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// How many shards there are.
    pub count: u32,
    /// Rises with every change of an assignment.
    pub generation: u64,
    /// When shards were last taken from workers that are there.
    pub rebalanced_at: Timestamp,
    /// Grants of shards that had another owner before.
    pub moves: u64,
    /// Whether somebody may have to get or give up something.
    pub unsettled: bool,
    pub(crate) next_number: u32,
    pub(crate) workers: BTreeMap<u32, Worker>,
    pub(crate) shards: Vec<Shard>,
    /// The present life of each worker.
    pub(crate) current: FxHashMap<Arc<str>, u32>,
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

    /// The number of the present life of a worker.
    pub fn number(&self, id: &str) -> Option<u32> {
        self.current.get(id).copied()
    }

    /// The shards; those beyond the count are still being given back.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The number of the worker if `request` is a sign of life that changes nothing.
    pub fn routine(&self, request: &Request) -> Option<u32> {
        let Request::Beat(beat) = request else { return None };
        let number = self.number(&beat.worker)?;
        let worker = self.worker(number)?;
        let same = worker.status == Status::Active
            && worker.session == beat.session
            && !worker.is_foreign(beat.caller.as_ref())
            && (!beat.registers || worker.owner == beat.caller)
            && beat.count.is_none_or(|count| !self.is_news(worker, beat.registers, count))
            && beat.weight.is_none_or(|weight| weight == worker.weight)
            && (beat.capacity.is_none() || beat.capacity == worker.capacity)
            && beat.draining.is_none_or(|draining| draining == worker.draining);
        (same && !(worker.revoking > 0 && answers(worker, beat))).then_some(number)
    }

    /// Does what is asked, and tells the number of the worker it was about; zero when that has left.
    pub fn apply(&mut self, request: &Request, rules: &Rules, now: Timestamp) -> Result<u32, Refusal> {
        match request {
            Request::Beat(beat) => self.beat(beat, rules, now),
            Request::Leave { worker, session, caller } => {
                self.leave(worker, session.as_ref(), caller.as_ref())
            }
            Request::Drain { worker, draining } => {
                let number = self.number(worker).ok_or_else(|| Refusal::UnknownWorker(worker.clone()))?;
                if let Some(found) = self.workers.get_mut(&number) {
                    self.unsettled |= found.draining != *draining;
                    found.draining = *draining;
                }
                Ok(number)
            }
            Request::Delete(name) => self.delete(name),
        }
    }

    /// Whether it was deleted, or never had a worker.
    pub(crate) fn is_blank(&self) -> bool {
        self.next_number == 0
    }

    /// Only without workers that may use a shard: what they hold could be granted to others.
    fn delete(&mut self, name: &Arc<str>) -> Result<u32, Refusal> {
        if self.is_blank() {
            return Err(Refusal::UnknownService(name.clone()));
        }
        if self.workers.values().any(|worker| worker.status != Status::Inactive) {
            return Err(Refusal::InUse(name.clone()));
        }
        *self = Self { generation: self.generation, ..Self::default() };
        Ok(0)
    }

    fn beat(&mut self, beat: &Beat, rules: &Rules, now: Timestamp) -> Result<u32, Refusal> {
        let known = self.number(&beat.worker).and_then(|number| Some((number, self.worker(number)?.clone())));
        let number = match known {
            Some((_, worker)) if worker.is_foreign(beat.caller.as_ref()) => {
                return Err(Refusal::NotOwner(beat.worker.clone()));
            }
            Some((number, worker)) if worker.session == beat.session => number,
            // Only who registers takes a place that somebody has.
            Some((_, worker)) if worker.status == Status::Active && !beat.registers => {
                return Err(Refusal::Fenced(beat.worker.clone()));
            }
            Some((number, worker)) => self.replace(number, &worker, beat, rules, now)?,
            None => self.admit(beat, rules, now)?,
        };
        let unknown = || Refusal::UnknownWorker(beat.worker.clone());
        let worker = self.worker(number).ok_or_else(unknown)?;
        let count = beat.count.filter(|count| self.is_news(worker, beat.registers, *count));
        let worker = self.workers.get_mut(&number).ok_or_else(unknown)?;
        let before = (worker.status, worker.weight, worker.capacity, worker.draining);
        worker.seen = worker.seen.max(now);
        if beat.registers || worker.status != Status::Active {
            worker.owner.clone_from(&beat.caller);
        }
        worker.status = Status::Active;
        worker.timeout = rules.timeout;
        worker.weight = beat.weight.unwrap_or(worker.weight);
        worker.capacity = beat.capacity.or(worker.capacity);
        worker.draining = beat.draining.unwrap_or(worker.draining);
        self.unsettled |= before != (worker.status, worker.weight, worker.capacity, worker.draining);
        if let Some(count) = count {
            worker.reported = count;
            self.unsettled |= self.count != count;
            self.count = count;
        }
        if worker.revoking > 0 && answers(worker, beat) {
            self.free(number, |shard, number| {
                shard.revoking && beat.held.as_ref().is_some_and(|held| !held.contains(number))
            });
        }
        Ok(number)
    }

    /// Whether `count`, which a worker says, replaces the present one. A registration always does. A beat does when it
    /// says something else than the last one, or when no worker that is there stands for the present count any more.
    fn is_news(&self, worker: &Worker, registers: bool, count: u32) -> bool {
        let stands = |other: &Worker| other.status == Status::Active && other.reported == self.count;
        count != worker.reported
            // The newest first: after a change they are those that stand for the present count.
            || (count != self.count && (registers || !self.workers.values().rev().any(stands)))
    }

    fn admit(&mut self, beat: &Beat, rules: &Rules, now: Timestamp) -> Result<u32, Refusal> {
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
            // Not what it reports, so that this counts as news.
            reported: beat.count.map_or(self.count, |count| !count),
            timeout: rules.timeout,
            seen: now,
            since: now,
            generation: self.generation,
            revoking: 0,
        };
        self.workers.insert(self.next_number, worker);
        self.current.insert(beat.worker.clone(), self.next_number);
        Ok(self.next_number)
    }

    /// Another life of a worker takes its place.
    fn replace(
        &mut self,
        number: u32,
        old: &Worker,
        beat: &Beat,
        rules: &Rules,
        now: Timestamp,
    ) -> Result<u32, Refusal> {
        let has_lease = old.status == Status::Active && old.session.is_some();
        if has_lease && !beat.takes_over {
            let fresh = self.admit(beat, rules, now)?;
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
        // The same shards under new tokens, so that the former life can do no harm with the old ones.
        self.generation += 1;
        for shard in self.shards.iter_mut().filter(|shard| shard.owner == number) {
            shard.token = self.generation;
        }
        if let Some(worker) = self.workers.get_mut(&number) {
            worker.session = beat.session.clone();
            worker.generation = self.generation;
            worker.since = now;
            // A new life begins with what it says of itself, as one that is admitted does.
            self.unsettled |= (worker.weight, worker.capacity, worker.draining) != (1, None, false);
            (worker.weight, worker.capacity, worker.draining) = (1, None, false);
        }
        Ok(number)
    }

    fn leave(
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
        self.forget(number);
        Ok(0)
    }

    fn forget(&mut self, number: u32) {
        self.free(number, |_, _| true);
        let Some(gone) = self.workers.remove(&number) else { return };
        if self.number(&gone.id) == Some(number) {
            self.current.remove(&gone.id);
        }
        self.unsettled = true;
    }

    /// Frees those shards of a worker that `which` picks.
    fn free(&mut self, number: u32, which: impl Fn(&Shard, u32) -> bool) {
        let mut revoked = 0;
        for (at, shard) in (0u32..).zip(&mut self.shards) {
            if shard.owner == number && which(shard, at) {
                revoked += u32::from(shard.revoking);
                (shard.owner, shard.revoking) = (0, false);
                self.unsettled = true;
            }
        }
        if let Some(worker) = self.workers.get_mut(&number) {
            worker.revoking -= revoked;
        }
    }

    /// Whether [`expire`](Self::expire) would do anything.
    pub fn has_silent(&self, rules: &Rules, now: Timestamp, last: impl Fn(u32) -> Option<Timestamp>) -> bool {
        self.workers().any(|(number, worker)| is_silent(worker, last(number), rules, now))
    }

    /// Takes from the silent what they had, and forgets the long gone. `last` tells when a worker was last heard of,
    /// beyond what stands here.
    pub fn expire(&mut self, rules: &Rules, now: Timestamp, last: impl Fn(u32) -> Option<Timestamp>) {
        let silent: Vec<(u32, Status)> = self
            .workers()
            .filter(|(number, worker)| is_silent(worker, last(*number), rules, now))
            .map(|(number, worker)| (number, worker.status))
            .collect();
        if silent.iter().any(|(_, status)| *status == Status::Active) {
            // What they were told last holds no more, should they come back.
            self.generation += 1;
        }
        for (number, status) in silent {
            match status {
                Status::Active => {
                    self.free(number, |_, _| true);
                    self.unsettled = true;
                    if let Some(worker) = self.workers.get_mut(&number) {
                        worker.status = Status::Inactive;
                        worker.seen = worker.seen.max(last(number).unwrap_or(Timestamp::MIN));
                        worker.generation = self.generation;
                    }
                }
                Status::Inactive | Status::Fenced => self.forget(number),
            }
        }
    }

    /// Gives free shards to whom they should go, and tells owners to give up what should go elsewhere, unless that was
    /// done too short a time ago.
    pub fn settle(&mut self, rules: &Rules, now: Timestamp) {
        if !self.unsettled {
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
        self.unsettled = waiting;
    }

    /// Who should have each shard.
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

    /// When [`settle`](Self::settle) will do what it put off.
    pub fn settles_at(&self, rules: &Rules) -> Option<Timestamp> {
        self.unsettled.then(|| self.rebalanced_at.after(rules.rebalance_interval))
    }
}

/// Whether a beat tells what the worker uses since it was last told something.
fn answers(worker: &Worker, beat: &Beat) -> bool {
    beat.held.is_some() && beat.generation.is_some_and(|generation| generation >= worker.generation)
}

fn is_silent(worker: &Worker, last: Option<Timestamp>, rules: &Rules, now: Timestamp) -> bool {
    let patience = match worker.status {
        Status::Inactive => worker.timeout + rules.forget_after,
        Status::Active | Status::Fenced => worker.timeout,
    };
    now > worker.seen.max(last.unwrap_or(Timestamp::MIN)).after(patience)
}
