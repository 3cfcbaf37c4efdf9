//! One try at a group: decides, compares or locks what it rests on, writes, commits, answers.

use std::collections::VecDeque;

use baton_env::Stopwatch;
use baton_store::{Error, Operation};
use baton_types::Timestamp;

use super::{Parked, Setback, Writer};
use crate::carried::{self, Carried};
use crate::decider::Decider;
use crate::failure::Failure;
use crate::flush::{Flush, Note, flush, looked_at};
use crate::link::{Link, call, moment, param, signed};
use crate::load::{self, BEGIN, ROLLBACK, Round, Versions};
use crate::memory::Memory;
use crate::store::BUSY_FOR;
use crate::structure::Structure;

/// Fetches in one group. Decisions need two or three.
const ROUNDS_MAX: usize = 64;
/// Names of partitions that a lane keeps in memory.
const NAMES_MAX: usize = 1_000_000;
/// Transaction ids that a lane keeps in memory, about 40 bytes each; beyond that all are read again as needed.
const REMEMBERED_MAX: usize = 5_000_000;

/// A group that was decided: how each operation ended, what is to be written, and what it rests on.
struct Decided {
    memory: Memory,
    outcomes: Vec<Result<(), Error>>,
    structure: i64,
    /// Whether it rests on what was read without a lock, so that this is to be compared.
    compares: bool,
    ground: Ground,
}

/// How young what decisions rest on is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ground {
    /// What was there at one moment of the group.
    Now,
    /// What the last group had, a moment ago.
    Last,
    /// What some group had a while ago. A commit would fail too often to be worth a try.
    Old,
}

impl Writer {
    /// One try: decides, writes, commits, answers.
    pub(super) async fn attempt(
        &mut self,
        waiting: &mut VecDeque<Box<dyn Operation>>,
        tries: u32,
    ) -> Result<(), Setback> {
        let mut decided = match self.decide(waiting, tries).await {
            Ok(decided) => decided,
            Err(setback) => {
                if !matches!(setback, Setback::Lost(_)) {
                    self.roll_back().await;
                }
                return Err(setback);
            }
        };
        let Some(link) = &self.link else { return Err(Setback::Again) };
        let count = decided.outcomes.len();
        let writes = decided.memory.changed.marks.any;
        if decided.ground == Ground::Old || (decided.ground == Ground::Last && !writes) {
            match Premise::of(&decided, self.all_commits).still_holds(link).await {
                Ok(heard) => self.heard = heard,
                Err(setback) => {
                    self.structure = untouched(decided.memory, decided.structure);
                    self.roll_back().await;
                    return Err(setback);
                }
            }
        }
        if !writes {
            let answered: Vec<_> =
                waiting.drain(..count).zip(std::mem::take(&mut decided.outcomes)).collect();
            self.shared.count(count, 0, false);
            self.keep(decided, None);
            answered.into_iter().for_each(|(operation, outcome)| operation.finish(outcome));
            self.roll_back().await;
            return Ok(());
        }
        let note = Note {
            server: self.server,
            epoch: self.epoch,
            last: self.commits,
            structure: decided.structure,
            records: decided.memory.records_number.unwrap_or(0),
            compares: decided.compares,
            all_commits: self.all_commits,
        };
        let mut flush = flush(&mut decided.memory, &note);
        let mut calls = std::mem::take(&mut flush.calls);
        if !self.has_begun {
            calls.insert(0, call(BEGIN, Vec::new()));
        }
        let watch = Stopwatch::start();
        let committed = match link.commit(calls).await {
            Ok(results) => results,
            Err((Failure::Lost(reason), true)) => {
                let events = std::mem::take(&mut decided.memory.events);
                self.parked = Parked { outcomes: decided.outcomes, events };
                return Err(Setback::Unknown(reason));
            }
            Err((failure, _)) => {
                self.structure = untouched(decided.memory, decided.structure);
                self.has_begun = true;
                self.roll_back().await;
                return Err(failure.into());
            }
        };
        // The last but one says when it was.
        if let Some(row) = committed.iter().rev().nth(1).and_then(|rows| rows.first()) {
            self.heard = (moment(row, 1), Stopwatch::start());
        }
        self.commits += 1;
        self.all_commits += 1;
        self.shared.count(count, 1, decided.memory.changed.marks.now);
        if decided.memory.changed.marks.now {
            self.shared.observe(count, watch.elapsed());
        }
        let answered: Vec<_> = waiting.drain(..count).zip(std::mem::take(&mut decided.outcomes)).collect();
        let events = std::mem::take(&mut decided.memory.events);
        self.keep(decided, Some(flush));
        events.into_iter().for_each(|event| self.shared.notify(event));
        answered.into_iter().for_each(|(operation, outcome)| operation.finish(outcome));
        Ok(())
    }

    /// Runs the decisions until all rows they need are there.
    async fn decide(
        &mut self,
        waiting: &mut VecDeque<Box<dyn Operation>>,
        tries: u32,
    ) -> Result<Decided, Setback> {
        self.has_begun = false;
        let mut carried = std::mem::take(&mut self.carried);
        let compares = tries == 0 && self.contention == 0;
        self.contention = self.contention.saturating_sub(u32::from(tries == 0));
        let Some(link) = &self.link else { return Err(Setback::Again) };
        let (mut structure_number, structure) = match self.structure.take() {
            Some(known) => known,
            None => {
                let versions = load::versions(link).await?;
                (versions.structure, load::load_structure(link).await?)
            }
        };
        let is_fresh = compares && self.heard.1.elapsed() < carried::FOR;
        if !is_fresh {
            carried.forget_partitions();
        }
        if !compares || self.rivalry > 0 {
            carried.forget_records();
        }
        let is_stale = !is_fresh && carried.has_records();
        self.clock.see(structure.latest());
        self.clock.see(self.shared.last());
        let mut memory = Memory::new(self.clock, structure, std::mem::take(&mut self.ids));
        memory.base = self.shared.time(self.heard);
        let mut decider = Decider { names: &self.names, shared: &self.shared };
        let mut outcomes = Vec::new();
        if is_fresh || is_stale {
            carried.hand_to(&mut memory);
            if decider.apply(&mut memory, &mut self.remembered, waiting, &mut outcomes) {
                self.clock = memory.clock;
                self.touches_records |= memory.relies_on_records;
                let ground = if is_stale { Ground::Old } else { Ground::Last };
                return Ok(Decided { memory, outcomes, structure: structure_number, compares, ground });
            }
        } else {
            decider.discover(&mut memory, &mut self.remembered, waiting.iter_mut());
        }
        for round in 0..ROUNDS_MAX {
            let first = round == 0;
            self.touches_records |= memory.relies_on_records;
            let lock_records = first && self.touches_records && (tries > 0 || self.rivalry > 0);
            self.rivalry = self.rivalry.saturating_sub(u32::from(lock_records));
            let begins = !self.has_begun && (lock_records || (!compares && memory.wanted.locks()));
            self.has_begun |= begins;
            let plan = Round { link, begins, locks: !compares, lock_records };
            let loaded = load::load(plan, &mut memory, &mut self.remembered).await;
            let (before, after) = match loaded {
                Ok(told) => told,
                Err(trouble) => {
                    self.clock = memory.clock;
                    return Err(trouble.into());
                }
            };
            memory.clock.see_number(after.records);
            if before.commits != self.all_commits {
                if memory.relies_on_lines {
                    self.clock = memory.clock;
                    self.structure = untouched(memory, structure_number);
                    return Err(Setback::Stale);
                }
                self.all_commits = before.commits;
                memory.doubt_lines();
            }
            if first {
                self.heard = (before.at, Stopwatch::start());
                memory.base = self.shared.time(self.heard).max(memory.base);
            }
            if after.structure != structure_number {
                let fresh = load::load_structure(link).await?;
                memory.clock.see(fresh.latest());
                let (clock, ids, base) = (memory.clock, std::mem::take(&mut memory.ids), memory.base);
                memory = Memory::new(clock, fresh, ids);
                memory.base = base;
                structure_number = after.structure;
                outcomes.clear();
                decider.discover(&mut memory, &mut self.remembered, waiting.iter_mut());
                continue;
            }
            if memory.relies_on_records {
                let noted = *memory.records_number.get_or_insert(before.records);
                if before.records != after.records || noted != after.records {
                    self.clock = memory.clock;
                    self.structure = untouched(memory, structure_number);
                    return Err(if is_stale { Setback::Stale } else { Setback::Again });
                }
            }
            if !memory.wanted.partitions.is_empty() {
                // Everything that is ready is held by others.
                continue;
            }
            if decider.apply(&mut memory, &mut self.remembered, waiting, &mut outcomes) {
                self.clock = memory.clock;
                // The numbers came along just now, and one statement tells partitions as they are at one moment.
                let is_now = !compares || memory.relied.is_empty() || (first && !is_fresh);
                let ground = if is_now { Ground::Now } else { Ground::Last };
                return Ok(Decided { memory, outcomes, structure: structure_number, compares, ground });
            }
        }
        self.clock = memory.clock;
        tracing::error!("a decision wanted ever more rows");
        Err(Setback::Failed(Error::Busy(BUSY_FOR)))
    }

    async fn roll_back(&mut self) {
        if let Some(link) = &self.link
            && self.has_begun
            && link.run(vec![call(ROLLBACK, Vec::new())]).await.is_err()
        {
            self.link = None;
        }
    }

    /// After a commit, or without one: what the next group may rely on.
    fn keep(&mut self, decided: Decided, flush: Option<Flush>) {
        let Decided { mut memory, structure, compares, .. } = decided;
        self.clock = memory.clock;
        self.tell_time();
        self.ids = std::mem::take(&mut memory.ids);
        if let Some(flush) = &flush {
            let mut inserter = self.shared.cache.inserter();
            for segment in &flush.segments {
                inserter.insert(segment.clone());
            }
            drop(inserter);
            self.keep_remembered(&mut memory);
            for (partition, start) in &memory.trimmed {
                self.shared.cache.forget(*partition, *start);
            }
            if !memory.trimmed.is_empty()
                || !memory.changed.queues.is_empty()
                || !memory.changed.groups.is_empty()
            {
                self.shared.sweep.notify_one();
            }
        }
        for ((queue, name), id) in memory.names.drain() {
            let Some(id) = id.filter(|id| matches!(memory.partitions.get(id), Some(Some(_)))) else {
                continue;
            };
            if self.names_len >= NAMES_MAX {
                self.names.clear();
                self.names_len = 0;
            }
            let added = self.names.entry(queue).or_default().insert(name, id).is_none();
            self.names_len += usize::from(added);
        }
        for queue in &memory.changed.queues {
            if !memory.structure.has_queue(*queue) {
                let gone = self.names.remove(queue).map_or(0, |names| names.len());
                self.names_len -= gone;
            }
        }
        if compares {
            self.carried = Carried::take_from(&mut memory, flush.as_ref().map(|flush| &flush.numbers));
        }
        let number = flush.and_then(|flush| flush.structure).unwrap_or(structure);
        self.structure = Some((number, memory.structure));
    }

    fn keep_remembered(&mut self, memory: &mut Memory) {
        let (now, remembered) = (memory.base, self.remembered.len());
        let mut runs: std::collections::BTreeMap<_, Vec<_>> = std::collections::BTreeMap::new();
        for (_, run) in memory.runs.drain(..) {
            runs.entry(run.partition).or_default().push(run);
        }
        for id in &memory.changed.partitions {
            let Some(Some(entry)) = memory.partitions.get(id) else { continue };
            let (before, tail) = (entry.original.tail, entry.row.tail);
            match runs.remove(id) {
                Some(runs) if before.0 == 0 || self.remembered.missing(*id, before).is_none() => {
                    self.remembered.extend(*id, runs, tail, now);
                }
                _ => self.remembered.advance(*id, before, tail),
            }
        }
        if self.remembered.len() > REMEMBERED_MAX {
            self.remembered.clear();
        }
        self.shared.set_remembered(remembered, self.remembered.len());
    }
}

/// Queues and groups for the next try, unless decisions have changed them. Whether others did is seen then.
fn untouched(memory: Memory, number: i64) -> Option<(i64, Structure)> {
    let changed = &memory.changed;
    (changed.queues.is_empty() && changed.groups.is_empty()).then_some((number, memory.structure))
}

/// What decisions looked at, to be compared without a commit.
struct Premise {
    structure: i64,
    records: Option<i64>,
    commits: Option<i64>,
    is_old: bool,
    partitions: (Vec<i64>, Vec<i64>),
}

impl Premise {
    fn of(decided: &Decided, all_commits: i64) -> Self {
        let memory = &decided.memory;
        let records = memory.records_number.filter(|_| memory.relies_on_records);
        let commits = memory.relies_on_lines.then_some(all_commits);
        let is_old = decided.ground == Ground::Old;
        let partitions = looked_at(memory, memory.relied.iter());
        Self { structure: decided.structure, records, commits, is_old, partitions }
    }

    /// Whether all of it is still as it was; and the database's time.
    async fn still_holds(self, link: &Link) -> Result<(Timestamp, Stopwatch), Setback> {
        let (ids, versions) = self.partitions;
        let count = signed(ids.len() as u64);
        let mut calls = vec![call(load::VERSIONS, Vec::new())];
        if count > 0 {
            calls.push(call(load::UNCHANGED, vec![param(ids), param(versions)]));
        }
        let rows = link.run(calls).await?;
        let told = Versions::read(&rows[0][0]);
        if self.commits.is_some_and(|commits| commits != told.commits) {
            return Err(Setback::Stale);
        }
        if told.structure != self.structure || self.records.is_some_and(|records| records != told.records) {
            return Err(if self.is_old { Setback::Stale } else { Setback::Again });
        }
        if rows.get(1).is_some_and(|rows| rows[0].get::<i64>(0) != count) {
            return Err(Setback::Contended);
        }
        Ok((told.at, Stopwatch::start()))
    }
}
