//! A commit under way: sent, waited for, and what follows from how it ended.
//!
//! While one is under way the next group may be decided on what it leaves, and sent after it, so that the database need
//! not wait for the callers nor they for it. Always: the second cannot happen without the first, for it counts on the
//! number of the first in the server's row; and nothing but what is carried over knows of either before it has happened.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use baton_env::Stopwatch;
use baton_store::{Error, Event, Operation, Segment};
use baton_types::{Offset, PartitionId, QueueId, Timestamp};

use super::group::{Decided, untouched};
use super::{Setback, Writer};
use crate::carried::Carried;
use crate::failure::Failure;
use crate::flush::{Flush, Note, flush};
use crate::link::{Row, Sent, call, moment};
use crate::load::BEGIN;
use crate::memory::Memory;
use crate::remembered::Run;
use crate::store::Shared;

/// Names of partitions that a lane keeps in memory.
const NAMES_MAX: usize = 1_000_000;
/// Transaction ids that a lane keeps in memory, about 40 bytes each; beyond that all are read again as needed.
const REMEMBERED_MAX: usize = 5_000_000;

/// See the module.
pub struct Flight {
    answers: Answers,
    news: News,
    /// Whether queues and groups are as they were before it.
    keeps_structure: bool,
    watch: Stopwatch,
    /// What is waited for; nothing when it could not be sent whole.
    sent: Option<Sent>,
}

impl Flight {
    pub fn len(&self) -> usize {
        self.answers.operations.len()
    }

    /// It has happened, but all that was in memory is out of date.
    pub fn answer(self, shared: &Shared) {
        self.answers.give(shared);
    }

    /// Tells the callers that nobody knows.
    pub fn give_up(self, reason: &str) {
        for operation in self.answers.operations {
            operation.finish(Err(Error::Closed(reason.into())));
        }
    }

    /// Its operations wait again, before all others.
    pub fn wait_again(self, waiting: &mut VecDeque<Box<dyn Operation>>) {
        self.answers.operations.into_iter().rev().for_each(|operation| waiting.push_front(operation));
    }
}

/// What is told once a group's commit has happened.
struct Answers {
    operations: Vec<Box<dyn Operation>>,
    outcomes: Vec<Result<(), Error>>,
    events: Vec<Event>,
    is_synced: bool,
}

impl Answers {
    fn give(self, shared: &Shared) {
        shared.count(self.operations.len(), 1, self.is_synced);
        self.events.into_iter().for_each(|event| shared.notify(event));
        for (operation, outcome) in self.operations.into_iter().zip(self.outcomes) {
            operation.finish(outcome);
        }
    }
}

/// What all later groups know once a commit has happened.
pub struct News {
    now: Timestamp,
    segments: Vec<Segment>,
    names: Vec<(QueueId, Arc<str>, PartitionId)>,
    /// Transaction ids, and for each partition that changed the tail before and after.
    runs: Vec<Run>,
    tails: Vec<(PartitionId, Offset, Offset)>,
    trimmed: BTreeMap<PartitionId, Offset>,
    gone: Vec<QueueId>,
    /// Whether there is something to clear away.
    leaves_work: bool,
}

impl News {
    /// Takes it from a group that is decided, and written if it is to be.
    pub fn take_from(memory: &mut Memory, flush: Option<&mut Flush>) -> Self {
        let is_here = |id: &PartitionId| matches!(memory.partitions.get(id), Some(Some(_)));
        let named = memory.names.drain().filter_map(|((queue, name), id)| Some((queue, name, id?)));
        let names = named.filter(|(_, _, id)| is_here(id)).collect();
        let mut news = Self {
            now: memory.base,
            segments: Vec::new(),
            names,
            runs: Vec::new(),
            tails: Vec::new(),
            trimmed: BTreeMap::new(),
            gone: Vec::new(),
            leaves_work: false,
        };
        let Some(flush) = flush else { return news };
        news.segments = std::mem::take(&mut flush.segments);
        news.runs = memory.runs.drain(..).map(|(_, run)| run).collect();
        let changed = memory.changed.partitions.iter().filter_map(|id| memory.partitions.get(id)?.as_ref());
        news.tails = changed.map(|entry| (entry.row.id, entry.original.tail, entry.row.tail)).collect();
        news.trimmed = std::mem::take(&mut memory.trimmed);
        let (queues, groups) = (&memory.changed.queues, &memory.changed.groups);
        news.gone = queues.iter().copied().filter(|id| !memory.structure.has_queue(*id)).collect();
        news.leaves_work = !(news.trimmed.is_empty() && queues.is_empty() && groups.is_empty());
        news
    }
}

impl Writer {
    /// Decides what can be decided on what the group under way leaves, and sends it after that one. Tells whether there
    /// was any; what misses a row, or only asks, goes on when nothing is under way.
    pub(super) async fn follow(
        &mut self,
        waiting: &mut VecDeque<Box<dyn Operation>>,
    ) -> Result<bool, Setback> {
        let Some(mut decided) = self.decide_ahead(waiting) else { return Ok(false) };
        self.has_begun = false;
        let flush = self.write_down(&mut decided);
        match &self.link {
            Some(link) if link.has_prepared(&flush.calls).await => {}
            _ => {
                self.structure = untouched(decided.memory, decided.structure);
                return Ok(false);
            }
        }
        self.take_off(decided, flush, waiting).await.map(|()| true)
    }

    /// The statements of a group's commit.
    pub(super) fn write_down(&self, decided: &mut Decided) -> Flush {
        let before = self.flights.len() as i64;
        let note = Note {
            server: self.server,
            epoch: self.epoch,
            last: self.commits + before,
            structure: decided.structure,
            records: decided.memory.records_number.unwrap_or(0),
            compares: decided.compares,
            all_commits: self.all_commits + before,
        };
        let mut flush = flush(&mut decided.memory, &note);
        if !self.has_begun {
            flush.calls.insert(0, call(BEGIN, Vec::new()));
        }
        flush
    }

    /// Sends a group's commit. From here on the next group may rest on it.
    pub(super) async fn take_off(
        &mut self,
        mut decided: Decided,
        mut flush: Flush,
        waiting: &mut VecDeque<Box<dyn Operation>>,
    ) -> Result<(), Setback> {
        let Some(link) = &self.link else { return Err(Setback::Again) };
        let sent = match link.send(std::mem::take(&mut flush.calls)).await {
            Ok(sent) => Some(sent),
            Err((Failure::Lost(reason), true)) => {
                tracing::debug!(reason, "a commit was sent in part");
                None
            }
            Err((failure, _)) if !self.flights.is_empty() => {
                return Err(Setback::Unknown(failure.to_string()));
            }
            Err((failure, _)) => {
                self.structure = untouched(decided.memory, decided.structure);
                self.has_begun = true;
                self.roll_back().await;
                return Err(failure.into());
            }
        };
        let memory = &mut decided.memory;
        let answers = Answers {
            operations: waiting.drain(..decided.outcomes.len()).collect(),
            outcomes: std::mem::take(&mut decided.outcomes),
            events: std::mem::take(&mut memory.events),
            is_synced: memory.changed.marks.now,
        };
        let keeps_structure = memory.changed.queues.is_empty() && memory.changed.groups.is_empty();
        self.touches_structure |= !keeps_structure || memory.changed.created;
        let news = News::take_from(memory, Some(&mut flush));
        let flight = Flight { answers, news, keeps_structure, watch: Stopwatch::start(), sent };
        self.flights.push_back(flight);
        self.carry(decided, Some(&flush));
        Ok(())
    }

    /// Waits for the first of the commits under way. May be given up at any time.
    pub(super) async fn landing(&mut self) -> Result<Vec<Vec<Row>>, Failure> {
        match (&self.link, self.flights.front_mut().and_then(|flight| flight.sent.as_mut())) {
            (Some(link), Some(sent)) => link.receive(sent).await,
            _ => Err(Failure::Lost("it ended while a commit was sent".into())),
        }
    }

    /// Draws the conclusions from how the first of the commits under way ended. If it did not happen, its operations
    /// and those of the next wait again.
    pub(super) async fn land(
        &mut self,
        landed: Result<Vec<Vec<Row>>, Failure>,
        waiting: &mut VecDeque<Box<dyn Operation>>,
    ) -> Result<(), Setback> {
        match landed {
            Ok(rows) => {
                let Some(flight) = self.flights.pop_front() else { return Ok(()) };
                let others = waiting.len() + self.flights.iter().map(Flight::len).sum::<usize>();
                self.callers = flight.len() + others;
                // The last but one says when it was.
                match rows.iter().rev().nth(1).and_then(|rows| rows.first()) {
                    Some(row) => self.heard = (moment(row, 0), Stopwatch::start()),
                    // Someone has cleared the server's row away: connecting makes another.
                    None => self.link = None,
                }
                self.commits += 1;
                self.all_commits += 1;
                if flight.answers.is_synced {
                    self.shared.observe(flight.len(), flight.watch.elapsed());
                }
                self.tell_time();
                let (news, answers) = (flight.news, flight.answers);
                self.learn(news);
                answers.give(&self.shared);
                Ok(())
            }
            Err(Failure::Lost(reason)) => Err(Setback::Unknown(reason)),
            Err(refused) => {
                self.fall_back(waiting).await;
                Err(refused.into())
            }
        }
    }

    /// Nothing that is under way happens: all of it waits again.
    async fn fall_back(&mut self, waiting: &mut VecDeque<Box<dyn Operation>>) {
        let mut fallen = std::mem::take(&mut self.flights);
        for sent in fallen.iter_mut().skip(1).filter_map(|flight| flight.sent.as_mut()) {
            if let Some(link) = &self.link
                && let Err(Failure::Lost(_)) = link.receive(sent).await
            {
                self.link = None;
            }
        }
        self.carried = Carried::default();
        self.structure.take_if(|_| !fallen.iter().all(|flight| flight.keeps_structure));
        while let Some(flight) = fallen.pop_back() {
            flight.wait_again(waiting);
        }
        self.has_begun = true;
        self.roll_back().await;
    }

    /// Takes in what a commit that has happened brings.
    pub(super) fn learn(&mut self, news: News) {
        self.shared.cache.add(news.segments.into());
        for (partition, start) in news.trimmed {
            self.shared.cache.forget(partition, start);
        }
        if news.leaves_work {
            self.shared.sweep.notify_one();
        }
        for (queue, name, id) in news.names {
            if self.names_len >= NAMES_MAX {
                self.names.clear();
                self.names_len = 0;
            }
            let added = self.names.entry(queue).or_default().insert(name, id).is_none();
            self.names_len += usize::from(added);
        }
        for queue in news.gone {
            let gone = self.names.remove(&queue).map_or(0, |names| names.len());
            self.names_len -= gone;
        }
        let before = self.remembered.len();
        let mut runs: BTreeMap<PartitionId, Vec<Run>> = BTreeMap::new();
        for run in news.runs {
            runs.entry(run.partition).or_default().push(run);
        }
        for (id, from, to) in news.tails {
            match runs.remove(&id) {
                Some(runs) if from.0 == 0 || self.remembered.missing(id, from).is_none() => {
                    self.remembered.extend(id, runs, to, news.now);
                }
                _ => self.remembered.advance(id, from, to),
            }
        }
        if self.remembered.len() > REMEMBERED_MAX {
            self.remembered.clear();
        }
        self.shared.set_remembered(before, self.remembered.len());
    }
}
