//! An instance: the opened directory, and the threads that work on it.
//!
//! A store has one at a time. After a failure it ends and another takes over, which opens the directory as a restart of the
//! process would (`supervisor`). Always: the directory is locked for as long as an instance lives.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};

use baton_store::{Error, Operation};
use baton_types::Timestamp;
use fjall::{CompressionType, Database};
use tokio::sync::mpsc;

use crate::commit::commit_thread::run_commits;
use crate::commit::decide_thread::run_decisions;
use crate::commit::{
    ApplyQueue, CommitBatch, CompactionRequests, InlineCommitter, Input, LoadedMemory, PendingCommit, Shared,
    Writer, append_batch, log_error, run_compaction,
};
use crate::context::StoreContext;
use crate::disk::FreeSpace;
use crate::disk::directory;
use crate::index::{RowWrite, SegmentIndex, Tables, engine_error};
use crate::options::{Options, RETRY_AFTER};
use crate::rows::{COUNTERS_KEY, Counters};
use crate::startup::{load_dedup_index, load_state, replay_log};
use crate::store_clock::{StoreClock, reset_cursors, start_time};

/// Operations that may wait in the intake.
const INTAKE_MAX: usize = 65_536;
/// Bytes of the engine's journal that a start may have to replay: about a second for 60 MB. The journal is not synced and
/// nothing depends on it, but the engine cannot work without one.
const JOURNAL_BYTES_MAX: u64 = 128 << 20;
/// A start that has replayed more bytes than this makes a checkpoint, so that the next start need not replay them.
const REPLAYED_BYTES_MAX: u64 = 4 << 20;

/// A running store.
pub struct Instance {
    intake: mpsc::Sender<Input>,
    inline: InlineCommitter,
    decide_thread: Thread,
    pub shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Instance {
    /// Opens the directory. An instance that follows another goes on with its clock.
    pub fn open(context: &Arc<StoreContext>, clock: Option<Arc<StoreClock>>) -> Result<Self, Error> {
        let options = &context.options;
        let lock = directory::lock_directory(&options.directory)?;
        let free_space = FreeSpace::open(&options.directory, options.min_free_disk);
        let db = open_engine(options)?;
        let tables =
            Tables::open(&db, options.write_buffer_bytes).map_err(|e| engine_unusable(options, &e))?;
        let unsynced = |e: io::Error| Error::Unusable(format!("cannot sync the data directory: {e}"));
        directory::sync_entries(&options.directory).map_err(unsynced)?;
        let mut dedup = load_dedup_index(options, &db, &tables)?;
        let mut log = replay_log(options, &db, &tables, &mut dedup)?;
        let counters = match tables.meta.get(COUNTERS_KEY).map_err(engine_error)? {
            Some(row) => Counters::decode(&row)?,
            None => Counters { next_id: 1, next_version: 1, now: Timestamp::MIN, ..Counters::default() },
        };
        let now = match &clock {
            Some(clock) => clock.now().max(counters.now),
            None => start_time(options, &counters)?,
        };
        let commits = log.end().commits + 1;
        let mut counters = Counters { commits, synced: commits, now, ..counters };
        counters.begin_token_range();
        // On disk before the first token of this run is granted.
        let counters_row = RowWrite {
            table: tables.meta.clone(),
            key: COUNTERS_KEY.into(),
            value: Some(counters.encode().into()),
        };
        let mut writes = vec![counters_row];
        if options.resets_clock && clock.is_none() {
            writes.append(&mut reset_cursors(&tables, now)?);
        }
        let opening = CommitBatch { number: counters.commits, writes, ..CommitBatch::default() };
        let opened = append_batch(&tables, &mut log, opening)?;
        log.sync().map_err(log_error)?;
        let index = SegmentIndex::new(db.clone(), tables.segments.clone(), options.index_rows);
        PendingCommit::apply_all(&[opened], &db, &index)?;
        let apply_queue = ApplyQueue::new(log.end());
        let (state, tail_log, deletes) = load_state(&tables, now)?;
        dedup.drop_expired(now)?;
        let clock = clock.unwrap_or_else(|| Arc::new(StoreClock::new(options.clock.clone(), now)));
        let shared = Shared::new(
            context.clone(),
            lock,
            free_space,
            db,
            tables,
            log,
            apply_queue,
            index,
            &dedup,
            clock,
        );
        let shared = Arc::new(shared);
        context.set_now(now);
        shared.update_scarcity();
        let replayed_much = shared.log().usage().replay_exceeds(REPLAYED_BYTES_MAX);
        if replayed_much {
            shared.checkpoint()?;
        }
        Self::start_threads(shared, LoadedMemory { state, tail_log, deletes, counters, dedup })
    }

    fn start_threads(shared: Arc<Shared>, loaded: LoadedMemory) -> Result<Self, Error> {
        let (intake, inputs) = mpsc::channel(INTAKE_MAX);
        let (batches, batch_queue) = std::sync::mpsc::sync_channel(1);
        let (compaction, compaction_requests) = CompactionRequests::new();
        let writer = Arc::new(Mutex::new(Writer::new(shared.clone(), inputs, batches, compaction, loaded)));
        let weak_writer = Arc::downgrade(&writer);
        let deciding = spawn_thread("baton-decide", move || run_decisions(&writer))?;
        let decide_thread = deciding.thread().clone();
        let (of_commits, to_wake) = (shared.clone(), decide_thread.clone());
        let committing =
            spawn_thread("baton-commit", move || run_commits(&of_commits, &batch_queue, &to_wake))?;
        let (of_compaction, to_wake, into) = (shared.clone(), decide_thread.clone(), intake.downgrade());
        let compacting = spawn_thread("baton-compact", move || {
            run_compaction(&of_compaction, &compaction_requests, &into, &to_wake)
        })?;
        let threads = Mutex::new(vec![deciding, committing, compacting]);
        let inline = InlineCommitter::new(weak_writer, decide_thread.clone(), shared.clone());
        Ok(Self { intake, inline, decide_thread, shared, threads })
    }

    /// Accepts an operation.
    pub fn submit(&self, operation: Box<dyn Operation>) {
        use mpsc::error::TrySendError::{Closed, Full};
        let Err(operation) = self.inline.try_run(operation) else { return };
        match self.send_input(Input::Operation(operation)) {
            Err(Full(Input::Operation(operation))) => operation.finish(Err(Error::Busy(RETRY_AFTER))),
            Err(Closed(Input::Operation(operation))) => {
                let closed = || Error::Closed("it was closed".into());
                operation.finish(Err(self.shared.refusal().unwrap_or_else(closed)));
            }
            _ => {}
        }
    }

    /// Finishes what is in the intake, ends the threads, and makes a checkpoint.
    pub fn close(&self) -> Result<(), Error> {
        while let Err(mpsc::error::TrySendError::Full(_)) = self.send_input(Input::Close) {
            baton_env::sleep_blocking(RETRY_AFTER);
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.join_threads(threads)
    }

    /// Sends an input to the deciding thread.
    fn send_input(&self, input: Input) -> Result<(), mpsc::error::TrySendError<Input>> {
        self.intake.try_send(input)?;
        // A caller that commits inline wakes the deciding thread itself if there is an input.
        if !self.shared.inline_flags.is_active() {
            self.decide_thread.unpark();
        }
        Ok(())
    }
}

/// Opens the key-value engine of a data directory.
fn open_engine(options: &Options) -> Result<Database, Error> {
    let engine = options.directory.join("engine");
    directory::create_private(&engine)
        .map_err(|e| Error::Unusable(format!("cannot use {}: {e}", engine.display())))?;
    directory::check_engine_lists(&engine)?;
    let builder = Database::builder(engine)
        .max_journaling_size(JOURNAL_BYTES_MAX)
        .journal_compression(CompressionType::None)
        .manual_journal_persist(true)
        .cache_size(options.index_cache_bytes)
        .worker_threads(1);
    // A damaged journal can make the engine panic or ask for absurd amounts of memory.
    let db = catch_unwind(AssertUnwindSafe(|| builder.open()));
    let db = db.map_err(|_| Error::Corrupt("the storage engine cannot make sense of it".into()))?;
    db.map_err(|e| engine_unusable(options, &e))
}

fn engine_unusable(options: &Options, error: &fjall::Error) -> Error {
    Error::Unusable(format!("cannot open the data in {}: {error}", options.directory.display()))
}

pub fn spawn_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map_err(|e| Error::Unusable(format!("cannot start a thread: {e}")))
}

impl Drop for Instance {
    fn drop(&mut self) {
        // A caller that needs the outcome calls `close`.
        let _ = self.close();
    }
}
