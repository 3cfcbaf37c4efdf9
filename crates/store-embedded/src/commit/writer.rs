//! The writer: memory, the batch that is filling, and running one operation against them.
//!
//! One thread at a time holds it: the deciding thread, or at low load a caller (`inline_commit`). An operation is answered
//! when its batch is on disk. One that wrote nothing durable is answered as soon as what it has read is on disk, which is
//! often at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use baton_env::Clock;
use baton_store::{Error, Event, Operation, TxError};
use baton_types::Timestamp;
use tokio::sync::mpsc::Receiver;

use super::batch::CommitBatch;
use super::batch_builder::BatchBuilder;
use super::decide_thread::Input;
use super::inline_commit::InlineCommitPolicy;
use super::log_compactor::CompactionRequests;
use super::shared::Shared;
use super::tx::EmbeddedTx;
use super::unapplied_segments::UnappliedSegments;
use crate::dedup::DedupIndex;
use crate::index::TableOverlays;
use crate::rows::{COUNTERS_KEY, Counters};
use crate::state::{DeferredDeletes, MemoryState, TailLog};

/// With this many bytes of messages a batch is worth an fsync of its own. It is submitted at once, so that writing it
/// overlaps with deciding further operations.
pub const BATCH_BYTES_ENOUGH: usize = 1 << 20;

/// What a start has loaded from disk.
pub struct LoadedMemory {
    pub state: MemoryState,
    pub tail_log: TailLog,
    pub deletes: DeferredDeletes,
    pub counters: Counters,
    pub dedup: DedupIndex,
}

/// Memory and the batch that is filling.
pub struct Writer {
    pub shared: Arc<Shared>,
    pub state: MemoryState,
    pub counters: Counters,
    /// Tokens granted from the present token range.
    pub tokens: u64,
    pub dedup: DedupIndex,
    pub overlays: TableOverlays,
    pub tail_log: TailLog,
    pub unapplied: UnappliedSegments,
    pub batch: BatchBuilder,
    /// Events that the listener has not been notified of.
    pub events: Vec<Event>,
    /// Whether an operation failed after its first write. Then the batch is undone before it is sealed.
    pub needs_undo: bool,
    /// Operations that arrived after that. They run after the undo.
    pub postponed: Vec<Box<dyn Operation>>,
    /// The last batch that changed a queue or a group.
    pub catalog_changed_in: u64,
    pub deletes: DeferredDeletes,
    /// When the next sweep may begin, after one that could not read what it needs.
    pub sweep_after: Duration,
    /// The store's time of the last operation.
    pub last_now: Timestamp,
    pub inline_policy: InlineCommitPolicy,
    /// Whether to finish what is in the intake and stop.
    pub closing: bool,
    pub intake: Receiver<Input>,
    pub clock: Arc<dyn Clock>,
    pub commit_thread: SyncSender<CommitBatch>,
    /// Whether the commit thread has a batch.
    pub committing: bool,
    compaction: CompactionRequests,
}

impl Writer {
    pub fn new(
        shared: Arc<Shared>,
        intake: Receiver<Input>,
        commit_thread: SyncSender<CommitBatch>,
        compaction: CompactionRequests,
        loaded: LoadedMemory,
    ) -> Self {
        let LoadedMemory { state, tail_log, deletes, counters, dedup } = loaded;
        let clock = shared.context.options.clock.clone();
        Self {
            shared,
            state,
            counters,
            tokens: 0,
            dedup,
            overlays: TableOverlays::default(),
            tail_log,
            unapplied: UnappliedSegments::default(),
            batch: BatchBuilder::new(counters.now),
            events: Vec::new(),
            needs_undo: false,
            postponed: Vec::new(),
            catalog_changed_in: 0,
            deletes,
            sweep_after: Duration::ZERO,
            last_now: counters.now,
            inline_policy: InlineCommitPolicy::default(),
            closing: false,
            intake,
            clock,
            commit_thread,
            committing: false,
            compaction,
        }
    }

    /// Runs an operation. Events that it causes are collected in `events`.
    pub fn run_operation(&mut self, mut operation: Box<dyn Operation>) {
        if let Some(refusal) = self.shared.refusal() {
            return operation.finish(Err(refusal));
        }
        self.batch.count_operation();
        if self.needs_undo {
            return self.postponed.push(operation);
        }
        self.last_now = self.shared.clock.now().max(Timestamp::from_micros(self.last_now.micros() + 1));
        self.shared.context.set_now(self.last_now);
        let events = self.events.len();
        let mut tx = EmbeddedTx::new(self);
        let outcome = catch_unwind(AssertUnwindSafe(|| operation.apply(&mut tx)));
        let (wrote, needs_sync, depends_on) = (tx.wrote, tx.needs_sync, tx.depends_on);
        let panicked = outcome.is_err();
        let error = match outcome {
            Ok(Ok(())) if needs_sync || depends_on >= self.batch.seq() => {
                return self.batch.add_waiting(operation);
            }
            Ok(Ok(())) => {
                let shared = &self.shared;
                return shared.parked_reads.finish_when_durable(depends_on, operation, || shared.refusal());
            }
            Ok(Err(TxError::Failed(error))) => error,
            Ok(Err(TxError::RowsMissing)) => Error::Closed("a row is missing in memory".into()),
            Err(_) => Error::Closed("a decision has panicked".into()),
        };
        if wrote || panicked {
            tracing::error!(%error, "a decision failed after its first write and is undone");
            self.needs_undo = true;
            self.events.truncate(events);
            self.shared.context.count_undone();
            // The batch is sealed, and with that undone, as soon as no other commit is under way.
            self.batch.require_sync();
        }
        operation.finish(Err(error));
    }

    /// Seals the batch that is filling and begins the next one; `None` if there is nothing to write. No commit may be under
    /// way.
    pub fn seal_batch(&mut self) -> Option<CommitBatch> {
        while self.needs_undo {
            self.undo_batch();
        }
        self.remove_unapplied_segments();
        let shared = self.shared.clone();
        let segments = self.batch.seal_segments(&self.state, self.dedup.pack_ids());
        if !segments.is_empty() {
            let segments = Arc::new(segments);
            shared.segments.cache.add(segments.clone());
            self.unapplied.push(self.batch.seq(), segments);
        }
        self.batch.write_rows(&self.state, &mut self.tail_log, &self.overlays, &shared.tables);
        if self.batch.is_empty() {
            shared.context.count_operations(self.batch.take_operation_count());
            return None;
        }
        self.counters.now = self.last_now;
        self.counters.commits += 1;
        if self.batch.needs_sync() {
            self.counters.synced = self.counters.commits;
        }
        self.batch.put(&shared.tables.meta, COUNTERS_KEY, self.counters.encode());
        Some(self.batch.take_batch(self.counters.commits, self.last_now))
    }

    /// Applies pending commits to the index if there are many, or always if `now`.
    pub fn apply_if_due(&mut self, now: bool) {
        if self.shared.apply_if_due(now) {
            self.after_apply();
        }
    }

    /// Drops what the index has now, and wakes the compactor if it has work.
    pub fn after_apply(&mut self) {
        let applied = self.shared.apply_queue.applied();
        self.unapplied.drop_applied(applied);
        self.overlays.drop_applied(applied);
        if let Err(error) = self.dedup.drop_expired(self.last_now) {
            self.shared.fail(&error);
        }
        self.shared.set_dedup_len(self.dedup.len());
        self.compaction.request_if_needed(&self.shared, !self.deletes.is_empty());
    }
}
