//! One try at a group: decides, compares or locks what it rests on, and sends its commit, or answers without one.

use std::collections::VecDeque;

use baton_env::Stopwatch;
use baton_store::{Error, Operation};
use baton_types::{PartitionId, Timestamp};

use super::flight::News;
use super::{Setback, Writer};
use crate::carried::{self, Carried};
use crate::decider::Decider;
use crate::flush::{Flush, looked_at};
use crate::link::{Link, call, param, signed};
use crate::load::{self, ROLLBACK, Round, Trouble, Versions};
use crate::memory::Memory;
use crate::store::BUSY_FOR;
use crate::structure::Structure;

/// Rows that a group asks for, roughly, before it goes on with those of its decisions that miss none. There may be as many
/// rounds: each brings rows that were not there before.
const ROWS_MAX: usize = 1_000_000;

/// A group that was decided: how each operation ended, what is to be written, and what it rests on.
pub struct Decided {
    pub memory: Memory,
    pub outcomes: Vec<Result<(), Error>>,
    pub structure: i64,
    /// Whether it rests on what was read without a lock, so that this is to be compared.
    pub compares: bool,
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
    /// One try: decides, and writes or answers.
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
            self.learn(News::take_from(&mut decided.memory, None));
            self.carry(decided, None);
            self.tell_time();
            // Whoever has the answer may ask another server next, which passes over what is locked.
            self.roll_back().await;
            answered.into_iter().for_each(|(operation, outcome)| operation.finish(outcome));
            return Ok(());
        }
        let flush = self.write_down(&mut decided);
        self.take_off(decided, flush, waiting).await?;
        if tries > 0 {
            let landed = self.landing().await;
            self.land(landed, waiting).await?;
        }
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
        let compares = tries == 0 && self.trust.next();
        let Some(link) = &self.link else { return Err(Setback::Again) };
        let (mut structure_number, structure) = match self.structure.take() {
            Some(known) => known,
            None => load::load_structure(link).await?,
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
        self.clock.see_number(structure_number);
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
            decider.discover(&mut memory, &mut self.remembered, waiting.range_mut(outcomes.len()..));
        } else {
            decider.discover(&mut memory, &mut self.remembered, waiting.iter_mut());
        }
        let (mut first, mut is_moved, mut rows) = (true, false, 0);
        let mut last_locked: Option<PartitionId> = None;
        loop {
            self.touches_records |= memory.relies_on_records;
            let lock_records = first && self.touches_records && (tries > 0 || self.rivalry > 0);
            self.rivalry = self.rivalry.saturating_sub(u32::from(lock_records));
            let lock_structure = first && self.touches_structure && tries > 0;
            let lock_versions = [lock_records.then_some("records"), lock_structure.then_some("structure")];
            let lock_versions: Vec<_> = lock_versions.into_iter().flatten().collect();
            if !compares {
                if first {
                    memory.wanted.add_partitions(&self.needed);
                }
                self.needed.add_partitions(&memory.wanted);
            }
            rows += memory.wanted.len();
            let in_haste = last_locked.is_some_and(|last| !memory.wanted.comes_after(last));
            let begins =
                !self.has_begun && (!lock_versions.is_empty() || (!compares && memory.wanted.locks()));
            self.has_begun |= begins;
            let locks = !compares;
            let locks_unseen = locks && !memory.wanted.ready.is_empty();
            let plan = Round { link, begins, locks, in_haste, lock_versions, commits: self.all_commits };
            let loaded = load::load(plan, &mut memory, &mut self.remembered).await;
            let (before, after) = match loaded {
                Ok(told) => told,
                Err(trouble) => {
                    self.clock = memory.clock;
                    return Err(match trouble {
                        Trouble::Failed(failure) if in_haste && failure.is_blocked() => Setback::Blocked,
                        trouble => trouble.into(),
                    });
                }
            };
            if locks {
                let here = memory.partitions.values().flatten().filter(|entry| entry.held);
                last_locked = here.map(|entry| entry.row.id).max().max(last_locked);
            }
            if locks_unseen {
                // A partition that was ready when the statement began, and no longer is once it is locked, stays locked
                // but is not told. So no lock can be waited for any more.
                last_locked = Some(PartitionId(u64::MAX));
            }
            memory.clock.see_number(after.records.max(after.structure));
            if before.commits != self.all_commits {
                if memory.relies_on_lines {
                    self.clock = memory.clock;
                    self.structure = untouched(memory, structure_number);
                    return Err(Setback::Stale);
                }
                self.all_commits = before.commits;
            }
            if first {
                self.heard = (before.at, Stopwatch::start());
                memory.base = self.shared.time(self.heard).max(memory.base);
            }
            let was_first = std::mem::replace(&mut first, false);
            if after.structure != structure_number {
                if std::mem::replace(&mut is_moved, true) {
                    // It would go on like this for as long as others create queues or groups.
                    self.clock = memory.clock;
                    self.touches_structure = true;
                    return Err(Setback::Again);
                }
                let (number, fresh) = load::load_structure(link).await?;
                memory.clock.see(fresh.latest());
                let (clock, ids, base) = (memory.clock, std::mem::take(&mut memory.ids), memory.base);
                memory = Memory::new(clock, fresh, ids);
                memory.base = base;
                memory.clock.see_number(number);
                structure_number = number;
                outcomes.clear();
                decider.discover(&mut memory, &mut self.remembered, waiting.iter_mut());
                continue;
            }
            if memory.is_outdated {
                self.clock = memory.clock;
                self.structure = untouched(memory, structure_number);
                return Err(Setback::Contended);
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
            let is_whole = decider.apply(&mut memory, &mut self.remembered, waiting, &mut outcomes);
            if !is_whole && rows > ROWS_MAX && outcomes.is_empty() {
                tracing::error!(rows, "a decision wanted ever more rows");
                outcomes.push(Err(Error::Busy(BUSY_FOR)));
            }
            if is_whole || rows > ROWS_MAX {
                self.clock = memory.clock;
                // The numbers came along just now, and one statement tells partitions as they are at one moment.
                let is_now = !compares || memory.relied.is_empty() || (was_first && !is_fresh);
                let ground = if is_now { Ground::Now } else { Ground::Last };
                return Ok(Decided { memory, outcomes, structure: structure_number, compares, ground });
            }
            decider.discover(&mut memory, &mut self.remembered, waiting.range_mut(outcomes.len()..));
        }
    }

    /// Runs the first decisions, as many as miss nothing, on what the group under way leaves.
    pub(super) fn decide_ahead(&mut self, waiting: &mut VecDeque<Box<dyn Operation>>) -> Option<Decided> {
        let is_calm = self.trust.is_whole() && self.rivalry == 0;
        if !is_calm || self.heard.1.elapsed() >= carried::FOR {
            return None;
        }
        let (structure, rows) = self.structure.take()?;
        self.clock.see(rows.latest());
        self.clock.see(self.shared.last());
        let mut memory = Memory::new(self.clock, rows, std::mem::take(&mut self.ids));
        memory.base = self.shared.time(self.heard);
        std::mem::take(&mut self.carried).hand_to(&mut memory);
        let mut decider = Decider { names: &self.names, shared: &self.shared };
        let mut outcomes = Vec::new();
        decider.apply(&mut memory, &mut self.remembered, waiting, &mut outcomes);
        self.clock = memory.clock;
        self.touches_records |= memory.relies_on_records;
        let writes = memory.changed.marks.any;
        let decided = Decided { memory, outcomes, structure, compares: true, ground: Ground::Last };
        if writes {
            return Some(decided);
        }
        self.carry(decided, None);
        None
    }

    pub(super) async fn roll_back(&mut self) {
        if let Some(link) = &self.link
            && self.has_begun
            && link.run(vec![call(ROLLBACK, Vec::new())]).await.is_err()
        {
            self.link = None;
        }
    }

    /// What the next group may begin with, once this one has happened.
    pub(super) fn carry(&mut self, decided: Decided, flush: Option<&Flush>) {
        let Decided { mut memory, structure, compares, .. } = decided;
        self.clock = memory.clock;
        self.ids = std::mem::take(&mut memory.ids);
        if compares {
            self.carried = Carried::take_from(&mut memory, flush.map(|flush| &flush.numbers));
        }
        let number = flush.and_then(|flush| flush.structure).unwrap_or(structure);
        self.structure = Some((number, memory.structure));
    }
}

/// Queues and groups for the next try, unless decisions have changed them. Whether others did is seen then.
pub fn untouched(memory: Memory, number: i64) -> Option<(i64, Structure)> {
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
