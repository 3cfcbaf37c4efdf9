//! The groups: takes in operations, runs each group of them as one database transaction, answers.
//!
//! A group costs a fixed small number of round trips, however many operations it has: one that writes and commits, and
//! before it one that fetches what decisions miss, unless the last group had it (`carried`). What was fetched is compared
//! at the commit; only after another server was in the way is it locked at once, for a while. What arrives meanwhile
//! is the next group, together with what those send who were just answered, for whom it waits a moment; so groups
//! grow with the load and with the distance to the database.
//!
//! Always: nothing is answered before its commit is known to have happened or not. When the connection is lost
//! around a commit, the server's own row in the database tells, and asking also keeps a commit that is still on
//! its way from happening later.

mod reconnect;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_store::{Error, Event, Operation};
use baton_types::Timestamp;
use tokio::sync::mpsc::Receiver;

use self::reconnect::AWAY_MAX;
use crate::carried::{self, Carried};
use crate::clock::Hybrid;
use crate::decider::Decider;
use crate::failure::Failure;
use crate::flush::{Flush, Note, flush, looked_at};
use crate::link::{Link, call, moment, param, signed};
use crate::load::{self, BEGIN, ROLLBACK, Round, Trouble};
use crate::memory::Memory;
use crate::remembered::Remembered;
use crate::store::{BUSY_FOR, Shared};
use crate::structure::Structure;
use crate::tx::Names;

/// Operations in one group: enough to share a commit, few enough to be decided in a blink.
const GROUP_OPERATIONS_MAX: usize = 2_048;
/// The share of a group's time, one in so many, that the next group waits for callers who were just answered and
/// are about to call again. Without it those who work in step split into groups that take turns, each with the cost
/// of a whole one.
const GATHER_SHARE: u32 = 3;
/// No gathering is longer than this.
const GATHER_MAX: Duration = Duration::from_millis(2);
/// Fetches in one group. Decisions need two or three.
const ROUNDS_MAX: usize = 64;
/// How often a group is run that others get in the way of.
const TRIES_MAX: u32 = 30;
/// How long a group is tried before its callers are told to come again: longer than a server that went away holds its
/// locks, and than a statement that gets no answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// For so many groups that change records the lock on them is taken at once after another server was in the way: while
/// several write records all the time, a try without it is in vain most of the time.
const RIVALRY: u32 = 16;
/// For so many groups partitions are locked when they are read, after another server was in the way of comparing them.
const CONTENTION: u32 = 64;
/// Names of partitions that a lane keeps in memory.
const NAMES_MAX: usize = 1_000_000;
/// Transaction ids that a lane keeps in memory, about 40 bytes each; beyond that all are read again as needed.
const REMEMBERED_MAX: usize = 5_000_000;

/// Begins a server's row.
const REGISTER: &str = "INSERT INTO servers (moment) VALUES ($1) RETURNING id, committed, epoch";
const LATEST: &str = "SELECT coalesce(max(moment), 0) FROM servers";

/// What the intake brings.
pub enum Input {
    Operation(Box<dyn Operation>),
    Close,
}

/// One lane's way into the database.
pub struct Writer {
    shared: Arc<Shared>,
    lane: usize,
    link: Option<Link>,
    clock: Hybrid,
    /// The database's time at some moment, and the time since.
    heard: (Timestamp, Stopwatch),
    structure: Option<(i64, Structure)>,
    names: Names,
    names_len: usize,
    remembered: Remembered,
    ids: Vec<u64>,
    server: i64,
    epoch: i64,
    commits: i64,
    /// Whether the group that is worked on has begun its transaction. It does so with its first lock, or its commit: what is
    /// only read is not guarded by a transaction of this kind.
    has_begun: bool,
    /// Whether the group that is worked on reads records, as far as is known from the tries before.
    touches_records: bool,
    /// The groups that reckon with other servers at the records.
    rivalry: u32,
    /// The groups that reckon with other servers at the partitions.
    contention: u32,
    /// What the next group need not fetch.
    carried: Carried,
    /// What is to be told once it is known that a commit happened.
    parked: Parked,
}

/// How a group ended, if its commit happened.
#[derive(Default)]
struct Parked {
    outcomes: Vec<Result<(), Error>>,
    events: Vec<Event>,
}

/// How a try to run a group ended, other than well.
enum Setback {
    /// Others got in the way: again.
    Again,
    /// Another server has changed a partition that was not locked: again, with locks.
    Contended,
    /// The connection was lost before anything was to be kept: again after connecting.
    Lost(String),
    /// The connection was lost around the commit, whose number this is.
    Unknown(String),
    /// It cannot work.
    Failed(Error),
}

impl From<Failure> for Setback {
    fn from(failure: Failure) -> Self {
        match failure {
            contended if contended.is_contended() => Self::Contended,
            passing if passing.is_passing() => Self::Again,
            Failure::Lost(reason) => Self::Lost(reason),
            // A deadline that passed, a full disk, too little memory: trying later may help.
            refused => {
                tracing::warn!(error = %refused, "PostgreSQL refused a statement");
                Self::Failed(Error::Busy(BUSY_FOR))
            }
        }
    }
}

impl From<Trouble> for Setback {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Failed(failure) => failure.into(),
            Trouble::Damaged(error) => Self::Failed(error),
        }
    }
}

/// A group that was decided: how each operation ended, what is to be written, and what it rests on.
struct Decided {
    memory: Memory,
    outcomes: Vec<Result<(), Error>>,
    structure: i64,
    /// Whether it rests on what was read without a lock, so that this is to be compared.
    compares: bool,
    /// Whether what it looked at is known to have been there at one moment.
    is_whole: bool,
}

impl Writer {
    /// Connects and registers the lane.
    pub async fn open(shared: Arc<Shared>, lane: usize) -> Result<Self, Failure> {
        let link = Link::open(&shared.address, &shared.schema).await?;
        let rows = link.run(vec![call(LATEST, Vec::new()), call(load::VERSIONS, Vec::new())]).await?;
        let (latest, at) = (moment(&rows[0][0], 0), moment(&rows[1][0], 0));
        let rows = link.run(vec![call(REGISTER, vec![param(latest.micros())])]).await?;
        let row = &rows[0][0];
        let (server, commits, epoch) = (row.get(0), row.get(1), row.get(2));
        let writer = Self {
            clock: Hybrid::new(latest, server),
            heard: (at, Stopwatch::start()),
            link: Some(link),
            structure: None,
            names: Names::default(),
            names_len: 0,
            remembered: Remembered::default(),
            ids: Vec::new(),
            server,
            epoch,
            commits,
            has_begun: false,
            touches_records: false,
            rivalry: 0,
            contention: 0,
            carried: Carried::default(),
            parked: Parked::default(),
            lane,
            shared,
        };
        writer.tell_time();
        Ok(writer)
    }

    /// Runs until told to close.
    pub async fn run(mut self, mut intake: Receiver<Input>) {
        let mut waiting = VecDeque::new();
        let (mut callers, mut gathering) = (0, Duration::ZERO);
        loop {
            let mut closing = false;
            if waiting.is_empty() {
                match self.next(&mut intake).await {
                    Some(Input::Operation(operation)) => waiting.push_back(operation),
                    Some(Input::Close) | None => closing = true,
                }
            }
            while waiting.len() < GROUP_OPERATIONS_MAX && !closing {
                match intake.try_recv() {
                    Ok(Input::Operation(operation)) => waiting.push_back(operation),
                    Ok(Input::Close) => closing = true,
                    Err(_) => break,
                }
            }
            if !closing {
                closing = gather(&mut waiting, &mut intake, callers, gathering).await;
            }
            let (watch, before) = (Stopwatch::start(), waiting.len());
            self.work(&mut waiting, &mut intake).await;
            gathering = (watch.elapsed() / GATHER_SHARE).min(GATHER_MAX);
            callers = before + intake.len();
            if closing {
                break;
            }
        }
        // Everything that was taken in is finished.
        intake.close();
        while let Ok(input) = intake.try_recv() {
            if let Input::Operation(operation) = input {
                waiting.push_back(operation);
            }
        }
        while !waiting.is_empty() {
            self.work(&mut waiting, &mut intake).await;
        }
    }

    /// Runs one group and answers it; what does not fit stays.
    async fn work(&mut self, waiting: &mut VecDeque<Box<dyn Operation>>, intake: &mut Receiver<Input>) {
        let watch = Stopwatch::start();
        let mut tries = 0;
        self.touches_records = false;
        loop {
            if self.link.as_ref().is_none_or(Link::is_closed) && !self.connect(watch, AWAY_MAX, intake).await
            {
                return busy(waiting);
            }
            let setback = match self.attempt(waiting, tries).await {
                Ok(()) => return,
                Err(setback) => setback,
            };
            tries += 1;
            let is_patient = tries < TRIES_MAX && watch.elapsed() < PATIENCE;
            match setback {
                Setback::Again if is_patient => {
                    if self.touches_records {
                        self.rivalry = RIVALRY;
                    }
                    let spread = u64::from(tries.min(8)) * 1_000;
                    let pause = Duration::from_micros(baton_env::random_u64() % spread);
                    baton_env::sleep(pause).await;
                    if tries % 5 == 0 {
                        self.link = None;
                    }
                }
                Setback::Contended if is_patient => self.contention = CONTENTION,
                Setback::Lost(reason) if is_patient => {
                    tracing::warn!(reason, "the connection to PostgreSQL was lost");
                    self.link = None;
                }
                Setback::Unknown(reason) => {
                    tracing::warn!(reason, "the connection to PostgreSQL was lost around a commit");
                    return self.find_out(waiting, intake).await;
                }
                Setback::Failed(error) => {
                    let first = waiting.drain(..).collect::<Vec<_>>();
                    return first.into_iter().for_each(|operation| operation.finish(Err(error.clone())));
                }
                _ => return busy(waiting),
            }
        }
    }

    /// One try: decides, writes, commits, answers.
    async fn attempt(
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
        if !decided.memory.changed.marks.any {
            if !decided.is_whole {
                self.heard = Premise::of(&decided).still_holds(link).await?;
            }
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
                self.structure = None;
                let events = std::mem::take(&mut decided.memory.events);
                self.parked = Parked { outcomes: decided.outcomes, events };
                return Err(Setback::Unknown(reason));
            }
            Err((failure, _)) => {
                self.structure = None;
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
                let rows = link.run(vec![call(load::VERSIONS, Vec::new())]).await?;
                (rows[0][0].get(1), load::load_structure(link).await?)
            }
        };
        self.clock.see(structure.latest());
        self.clock.see(self.shared.last());
        let mut memory = Memory::new(self.clock, structure, std::mem::take(&mut self.ids));
        memory.base = self.shared.time(self.heard);
        let mut decider = Decider { names: &self.names, shared: &self.shared };
        let mut outcomes = Vec::new();
        let mut is_whole = !(compares && self.heard.1.elapsed() < carried::FOR);
        if is_whole {
            decider.discover(&mut memory, &mut self.remembered, waiting.iter_mut());
        } else {
            if self.rivalry > 0 {
                carried.forget_records();
            }
            carried.hand_to(&mut memory);
            if decider.apply(&mut memory, &mut self.remembered, waiting, &mut outcomes) {
                self.clock = memory.clock;
                self.touches_records |= memory.relies_on_records;
                return Ok(Decided { memory, outcomes, structure: structure_number, compares, is_whole });
            }
        }
        for round in 0..ROUNDS_MAX {
            let first = round == 0;
            is_whole &= first;
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
                    return Err(Setback::Again);
                }
            }
            if !memory.wanted.partitions.is_empty() {
                // Everything that is ready is held by others.
                continue;
            }
            if decider.apply(&mut memory, &mut self.remembered, waiting, &mut outcomes) {
                self.clock = memory.clock;
                return Ok(Decided { memory, outcomes, structure: structure_number, compares, is_whole });
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

    fn tell_time(&self) {
        self.shared.set_now(self.clock.last(), self.heard);
    }
}

/// What decisions looked at that have changed nothing.
struct Premise {
    structure: i64,
    records: Option<i64>,
    partitions: (Vec<i64>, Vec<i64>),
}

impl Premise {
    fn of(decided: &Decided) -> Self {
        let memory = &decided.memory;
        let records = memory.records_number.filter(|_| memory.relies_on_records);
        Self { structure: decided.structure, records, partitions: looked_at(memory) }
    }

    /// Whether all of it is still as it was; and the database's time.
    async fn still_holds(self, link: &Link) -> Result<(Timestamp, Stopwatch), Setback> {
        let (ids, versions) = self.partitions;
        let count = signed(ids.len() as u64);
        let unchanged = call(load::UNCHANGED, vec![param(ids), param(versions)]);
        let rows = link.run(vec![call(load::VERSIONS, Vec::new()), unchanged]).await?;
        let told = &rows[0][0];
        let is_same = self.structure == told.get::<i64>(1)
            && self.records.is_none_or(|records| records == told.get::<i64>(2));
        match is_same {
            false => Err(Setback::Again),
            true if rows[1][0].get::<i64>(0) != count => Err(Setback::Contended),
            true => Ok((moment(told, 0), Stopwatch::start())),
        }
    }
}

/// Waits until as many operations are there as there were callers a moment ago, but not for long. A caller who is
/// alone never waits. Tells whether the store is closing.
async fn gather(
    waiting: &mut VecDeque<Box<dyn Operation>>,
    intake: &mut Receiver<Input>,
    callers: usize,
    limit: Duration,
) -> bool {
    let enough = callers.min(GROUP_OPERATIONS_MAX);
    if waiting.len() >= enough {
        return false;
    }
    // The runtime's own clock ticks too slowly for this.
    let mut over = tokio::task::spawn_blocking(move || baton_env::pause(limit));
    while waiting.len() < enough {
        tokio::select! {
            biased;
            input = intake.recv() => match input {
                Some(Input::Operation(operation)) => waiting.push_back(operation),
                Some(Input::Close) | None => return true,
            },
            _ = &mut over => break,
        }
    }
    false
}

fn busy(waiting: &mut VecDeque<Box<dyn Operation>>) {
    for operation in waiting.drain(..) {
        operation.finish(Err(Error::Busy(BUSY_FOR)));
    }
}
