//! In-flight commits: sending, waiting for the confirmation, and what follows from it.
//!
//! While one is in flight, the next batch may be decided on the state that it leaves, and sent after it
//! (pipelining). So neither the database nor the callers wait for each other. Always: the second cannot
//! happen without the first, because it names the first one's number in the server row. Until a commit has
//! happened, only the row cache knows of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use baton_env::Stopwatch;
use baton_store::{Error, Event, Operation, Segment};
use baton_types::{Offset, PartitionId, QueueId, Timestamp};

use super::attempt::{DecidedBatch, unchanged_catalog};
use super::{AttemptError, Writer};
use crate::client::connection::{PendingResults, PgRow, read_timestamp, statement};
use crate::client::error::DatabaseError;
use crate::commit::{CommitContext, CommitPlan, build_commit};
use crate::context::StoreContext;
use crate::fetch::BEGIN;
use crate::state::batch::BatchState;
use crate::state::dedup::DedupRun;
use crate::state::row_cache::RowCache;

/// Names of partitions that a writer caches.
const PARTITION_NAMES_MAX: usize = 1_000_000;
/// Transaction ids that a writer caches, about 40 bytes each. Beyond that it drops all and reads them again
/// as needed.
const DEDUP_IDS_MAX: usize = 5_000_000;

/// A commit that was sent and not confirmed yet.
pub struct InFlightCommit {
    replies: PendingReplies,
    changes: CommittedChanges,
    /// Whether it leaves the catalog unchanged.
    keeps_catalog: bool,
    watch: Stopwatch,
    /// The results to wait for; `None` if it was sent in part only.
    pending: Option<PendingResults>,
}

impl InFlightCommit {
    pub fn len(&self) -> usize {
        self.replies.operations.len()
    }

    /// Answers a commit that has happened, without its effects on memory, which was reset.
    pub fn reply(self, shared: &StoreContext) {
        self.replies.deliver(shared);
    }

    /// Fails the callers with `outcome unknown`.
    pub fn fail_unknown(self, reason: &str) {
        for operation in self.replies.operations {
            operation.finish(Err(Error::Closed(reason.into())));
        }
    }

    /// Puts its operations back, before all others.
    pub fn requeue(self, waiting: &mut VecDeque<Box<dyn Operation>>) {
        self.replies.operations.into_iter().rev().for_each(|operation| waiting.push_front(operation));
    }
}

/// The answers and events of a batch, delivered once its commit has happened.
struct PendingReplies {
    operations: Vec<Box<dyn Operation>>,
    outcomes: Vec<Result<(), Error>>,
    events: Vec<Event>,
    is_synced: bool,
}

impl PendingReplies {
    fn deliver(self, shared: &StoreContext) {
        shared.count_batch(self.operations.len(), 1, self.is_synced);
        self.events.into_iter().for_each(|event| shared.notify(event));
        for (operation, outcome) in self.operations.into_iter().zip(self.outcomes) {
            operation.finish(outcome);
        }
    }
}

/// What a commit changes in the writer's memory once it has happened.
pub struct CommittedChanges {
    now: Timestamp,
    segments: Vec<Segment>,
    names: Vec<(QueueId, Arc<str>, PartitionId)>,
    /// The tail of each changed partition, before and after.
    dedup_runs: Vec<DedupRun>,
    tails: Vec<(PartitionId, Offset, Offset)>,
    trimmed: BTreeMap<PartitionId, Offset>,
    removed_queues: Vec<QueueId>,
    /// Whether the sweeper has rows to delete.
    has_leftovers: bool,
}

impl CommittedChanges {
    /// Takes the changes from a decided batch; `plan` is its commit, if it writes.
    pub fn from_batch(batch: &mut BatchState, plan: Option<&mut CommitPlan>) -> Self {
        let is_here = |id: &PartitionId| matches!(batch.partitions.get(id), Some(Some(_)));
        let named = batch.names.drain().filter_map(|((queue, name), id)| Some((queue, name, id?)));
        let names = named.filter(|(_, _, id)| is_here(id)).collect();
        let mut changes = Self {
            now: batch.start_time,
            segments: Vec::new(),
            names,
            dedup_runs: Vec::new(),
            tails: Vec::new(),
            trimmed: BTreeMap::new(),
            removed_queues: Vec::new(),
            has_leftovers: false,
        };
        let Some(plan) = plan else { return changes };
        changes.segments = std::mem::take(&mut plan.segments);
        changes.dedup_runs = batch.dedup_runs.drain(..).map(|(_, run)| run).collect();
        let changed = batch.writes.partitions.iter().filter_map(|id| batch.partitions.get(id)?.as_ref());
        changes.tails = changed.map(|entry| (entry.row.id, entry.original.tail, entry.row.tail)).collect();
        changes.trimmed = std::mem::take(&mut batch.trimmed);
        let (queues, groups) = (&batch.writes.queues, &batch.writes.groups);
        changes.removed_queues = queues.iter().copied().filter(|id| !batch.catalog.has_queue(*id)).collect();
        changes.has_leftovers = !(changes.trimmed.is_empty() && queues.is_empty() && groups.is_empty());
        changes
    }
}

impl Writer {
    /// Decides what can be decided on the state that the in-flight batch leaves, and sends it. Returns
    /// whether it sent a batch. Operations that miss a row or only read wait until nothing is in flight.
    pub(super) async fn pipeline_next(
        &mut self,
        waiting: &mut VecDeque<Box<dyn Operation>>,
    ) -> Result<bool, AttemptError> {
        let Some(mut decided) = self.decide_pipelined(waiting) else { return Ok(false) };
        self.has_begun_transaction = false;
        let plan = self.plan_commit(&mut decided);
        match &self.connection {
            Some(connection) if connection.has_prepared(&plan.statements).await => {}
            _ => {
                self.catalog = unchanged_catalog(decided.batch, decided.catalog_version);
                return Ok(false);
            }
        }
        self.send_commit(decided, plan, waiting).await.map(|()| true)
    }

    /// Plans the commit of a batch.
    pub(super) fn plan_commit(&self, decided: &mut DecidedBatch) -> CommitPlan {
        let before = self.in_flight.len() as i64;
        let context = CommitContext {
            server: self.server,
            epoch: self.epoch,
            last_commit: self.commits + before,
            catalog_version: decided.catalog_version,
            records_version: decided.batch.records_version.unwrap_or(0),
            is_optimistic: decided.is_optimistic,
            all_commits: self.all_commits + before,
        };
        let mut plan = build_commit(&mut decided.batch, &context);
        if !self.has_begun_transaction {
            plan.statements.insert(0, statement(BEGIN, Vec::new()));
        }
        plan
    }

    /// Sends a batch's commit. From here on the next batch may build on it.
    pub(super) async fn send_commit(
        &mut self,
        mut decided: DecidedBatch,
        mut plan: CommitPlan,
        waiting: &mut VecDeque<Box<dyn Operation>>,
    ) -> Result<(), AttemptError> {
        let Some(connection) = &self.connection else { return Err(AttemptError::Retry) };
        let sent = match connection.send(std::mem::take(&mut plan.statements)).await {
            Ok(sent) => Some(sent),
            Err((DatabaseError::ConnectionLost(reason), true)) => {
                tracing::debug!(reason, "a commit was sent in part");
                None
            }
            Err((failure, _)) if !self.in_flight.is_empty() => {
                return Err(AttemptError::OutcomeUnknown(failure.to_string()));
            }
            Err((failure, _)) => {
                self.catalog = unchanged_catalog(decided.batch, decided.catalog_version);
                self.has_begun_transaction = true;
                self.roll_back().await;
                return Err(failure.into());
            }
        };
        let batch = &mut decided.batch;
        let answers = PendingReplies {
            operations: waiting.drain(..decided.outcomes.len()).collect(),
            outcomes: std::mem::take(&mut decided.outcomes),
            events: std::mem::take(&mut batch.events),
            is_synced: batch.writes.summary.needs_sync,
        };
        let keeps_structure = batch.writes.queues.is_empty() && batch.writes.groups.is_empty();
        self.touches_catalog |= !keeps_structure || batch.writes.creates_partitions;
        let changes = CommittedChanges::from_batch(batch, Some(&mut plan));
        let commit = InFlightCommit {
            replies: answers,
            changes,
            keeps_catalog: keeps_structure,
            watch: Stopwatch::start(),
            pending: sent,
        };
        self.in_flight.push_back(commit);
        self.fill_row_cache(decided, Some(&plan));
        Ok(())
    }

    /// Waits for the first in-flight commit. Cancel-safe.
    pub(super) async fn await_commit(&mut self) -> Result<Vec<Vec<PgRow>>, DatabaseError> {
        match (&self.connection, self.in_flight.front_mut().and_then(|commit| commit.pending.as_mut())) {
            (Some(connection), Some(sent)) => connection.receive(sent).await,
            _ => Err(DatabaseError::ConnectionLost("the connection ended while a commit was sent".into())),
        }
    }

    /// Handles the result of the first in-flight commit. If it failed, its operations and those of the next
    /// batch are requeued.
    pub(super) async fn finish_commit(
        &mut self,
        result: Result<Vec<Vec<PgRow>>, DatabaseError>,
        waiting: &mut VecDeque<Box<dyn Operation>>,
    ) -> Result<(), AttemptError> {
        match result {
            Ok(rows) => {
                let Some(commit) = self.in_flight.pop_front() else { return Ok(()) };
                let others = waiting.len() + self.in_flight.iter().map(InFlightCommit::len).sum::<usize>();
                self.concurrent_callers = commit.len() + others;
                // The last statement but one returns the database's time.
                match rows.iter().rev().nth(1).and_then(|rows| rows.first()) {
                    Some(row) => self.database_time = (read_timestamp(row, 0), Stopwatch::start()),
                    // The server row was deleted; reconnecting registers another.
                    None => self.connection = None,
                }
                self.commits += 1;
                self.all_commits += 1;
                if commit.replies.is_synced {
                    self.shared.observe_sync(commit.len(), commit.watch.elapsed());
                }
                self.publish_time();
                let (changes, answers) = (commit.changes, commit.replies);
                self.apply_committed(changes);
                answers.deliver(&self.shared);
                Ok(())
            }
            Err(DatabaseError::ConnectionLost(reason)) => Err(AttemptError::OutcomeUnknown(reason)),
            Err(refused) => {
                self.requeue_in_flight(waiting).await;
                Err(refused.into())
            }
        }
    }

    /// Requeues all in-flight batches, because none of them will happen.
    async fn requeue_in_flight(&mut self, waiting: &mut VecDeque<Box<dyn Operation>>) {
        let mut requeued = std::mem::take(&mut self.in_flight);
        for sent in requeued.iter_mut().skip(1).filter_map(|commit| commit.pending.as_mut()) {
            if let Some(connection) = &self.connection
                && let Err(DatabaseError::ConnectionLost(_)) = connection.receive(sent).await
            {
                self.connection = None;
            }
        }
        self.row_cache = RowCache::default();
        self.catalog.take_if(|_| !requeued.iter().all(|commit| commit.keeps_catalog));
        while let Some(commit) = requeued.pop_back() {
            commit.requeue(waiting);
        }
        self.has_begun_transaction = true;
        self.roll_back().await;
    }

    /// Applies a commit that has happened to the writer's memory.
    pub(super) fn apply_committed(&mut self, changes: CommittedChanges) {
        self.shared.cache.add(changes.segments.into());
        for (partition, start) in changes.trimmed {
            self.shared.cache.remove_before(partition, start);
        }
        if changes.has_leftovers {
            self.shared.sweep.notify_one();
        }
        for (queue, name, id) in changes.names {
            if self.partition_names_len >= PARTITION_NAMES_MAX {
                self.partition_names.clear();
                self.partition_names_len = 0;
            }
            let added = self.partition_names.entry(queue).or_default().insert(name, id).is_none();
            self.partition_names_len += usize::from(added);
        }
        for queue in changes.removed_queues {
            let removed = self.partition_names.remove(&queue).map_or(0, |names| names.len());
            self.partition_names_len -= removed;
        }
        let before = self.dedup_index.len();
        let mut runs: BTreeMap<PartitionId, Vec<DedupRun>> = BTreeMap::new();
        for run in changes.dedup_runs {
            runs.entry(run.partition).or_default().push(run);
        }
        for (id, from, to) in changes.tails {
            match runs.remove(&id) {
                Some(runs) if from.0 == 0 || self.dedup_index.unknown_from(id, from).is_none() => {
                    self.dedup_index.extend(id, runs, to, changes.now);
                }
                _ => self.dedup_index.advance(id, from, to),
            }
        }
        if self.dedup_index.len() > DEDUP_IDS_MAX {
            self.dedup_index.clear();
        }
        self.shared.update_remembered(before, self.dedup_index.len());
    }
}
