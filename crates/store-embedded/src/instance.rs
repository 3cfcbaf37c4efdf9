//! An instance: the directory opened, and the threads that work on it.
//!
//! A store has one at a time. After a failure it ends and another takes over, which opens the directory as a restart of the
//! process would (`recovery`). Always: the directory is claimed for as long as an instance lives.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{self, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{JoinHandle, Thread};

use baton_store::{Error, Operation};
use baton_types::Timestamp;
use fjall::{CompressionType, Database};
use tokio::sync::mpsc;

use crate::committer::{self, Untold};
use crate::context::Context;
use crate::directory;
use crate::index::Index;
use crate::loading;
use crate::reclaimer::{self, Reclaimer};
use crate::shared::{Shared, log_error};
use crate::space::Space;
use crate::store::BUSY_FOR;
use crate::store_clock::{self, StoreClock};
use crate::tables::{COUNTERS_KEY, Counters, Tables, engine_error};
use crate::telling::Telling;
use crate::writer::{self, Group, Input, Write, Writer};

/// Operations that may wait for the deciding thread.
const INTAKE_MAX: usize = 65_536;
/// Bytes of the engine's own journal that a restart may have to replay: about a second for 60 MB. It is not synced and
/// nothing rests on it, but the engine keeps one.
const JOURNAL_BYTES_MAX: u64 = 128 << 20;
/// A start that had to tell the engine of more than this again makes a checkpoint, so that the next need not.
const TOLD_AGAIN_MAX: u64 = 4 << 20;

pub struct Instance {
    intake: mpsc::Sender<Input>,
    /// Held by the deciding thread, for as long as that lives.
    writer: Weak<Mutex<Writer>>,
    decider: Thread,
    pub shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Instance {
    /// Opens the directory, or says why it cannot be used. An instance that follows another goes on with its `time`.
    pub fn open(context: &Arc<Context>, time: Option<Arc<StoreClock>>) -> Result<Self, Error> {
        let options = &context.options;
        let claimed = directory::claim(&options.directory)?;
        let space = Space::open(&options.directory, options.min_free_disk);
        let engine = options.directory.join("engine");
        directory::create(&engine)
            .map_err(|e| Error::Unusable(format!("cannot use {}: {e}", engine.display())))?;
        directory::check_lists(&engine)?;
        let unusable = |e: fjall::Error| {
            Error::Unusable(format!("cannot open the data in {}: {e}", options.directory.display()))
        };
        let builder = Database::builder(engine)
            .max_journaling_size(JOURNAL_BYTES_MAX)
            .journal_compression(CompressionType::None)
            .manual_journal_persist(true)
            .cache_size(32 << 20)
            .worker_threads(1);
        // A damaged journal can make the engine ask for absurd amounts of memory.
        let db = catch_unwind(AssertUnwindSafe(|| builder.open()));
        let db = db.map_err(|_| Error::Corrupt("the storage engine cannot make sense of it".into()))?;
        let db = db.map_err(unusable)?;
        let tables = Tables::open(&db).map_err(unusable)?;
        let unsynced = |e: io::Error| Error::Unusable(format!("cannot sync the data directory: {e}"));
        directory::sync(&options.directory).map_err(unsynced)?;
        let mut remembered = loading::open_remembered(options, &db, &tables)?;
        let mut log = loading::open_log(options, &db, &tables, &mut remembered)?;
        let counters = match tables.meta.get(COUNTERS_KEY).map_err(engine_error)? {
            Some(row) => Counters::read(&row)?,
            None => Counters { next_id: 1, next_version: 1, now: Timestamp::MIN, ..Counters::default() },
        };
        let now = match &time {
            Some(time) => time.now().max(counters.now),
            None => store_clock::begin(options, &counters)?,
        };
        let commits = log.end().commits + 1;
        let mut counters = Counters { commits, synced: commits, now, ..counters };
        counters.reopen();
        // On disk before the first token of this run is given out.
        let opening = Write {
            table: tables.meta.clone(),
            key: COUNTERS_KEY.into(),
            value: Some(counters.value().into()),
        };
        let mut writes = vec![opening];
        if options.resets_clock && time.is_none() {
            writes.append(&mut store_clock::reset_cursors(&tables, now)?);
        }
        let opening = Group { number: counters.commits, writes, ..Group::default() };
        let opened = committer::append(&tables, &mut log, opening)?;
        log.sync().map_err(log_error)?;
        let index = Index::new(db.clone(), tables.segments.clone(), options.index_rows);
        Untold::tell(&[opened], &db, &index)?;
        let telling = Telling::new(log.end());
        let (hot, tails, leftovers) = loading::load(&tables, now)?;
        remembered.forget(now)?;
        let time = time.unwrap_or_else(|| Arc::new(StoreClock::new(options.clock.clone(), now)));
        let shared =
            Shared::new(context.clone(), claimed, space, db, tables, log, telling, index, &remembered, time);
        let shared = Arc::new(shared);
        context.set_now(now);
        shared.note_space();
        let much = shared.log().is_unchecked(TOLD_AGAIN_MAX);
        if much {
            shared.checkpoint()?;
        }
        let (intake, inputs) = mpsc::channel(INTAKE_MAX);
        let (groups, group_queue) = std::sync::mpsc::sync_channel(1);
        let (reclaimer, reclaims) = Reclaimer::new();
        let writer = Writer::new(
            shared.clone(),
            inputs,
            options.clock.clone(),
            groups,
            reclaimer,
            hot,
            tails,
            counters,
            remembered,
            leftovers,
        );
        let decided = Arc::new(Mutex::new(writer));
        let writer = Arc::downgrade(&decided);
        let deciding = start("baton-decide", move || writer::run(&decided))?;
        let decider = deciding.thread().clone();
        let (for_committer, to_wake) = (shared.clone(), decider.clone());
        let committing =
            start("baton-commit", move || committer::run(&for_committer, &group_queue, &to_wake))?;
        let (for_reclaimer, to_wake, into) = (shared.clone(), decider.clone(), intake.downgrade());
        let reclaiming =
            start("baton-reclaim", move || reclaimer::run(&for_reclaimer, &reclaims, &into, &to_wake))?;
        let threads = Mutex::new(vec![deciding, committing, reclaiming]);
        Ok(Self { intake, writer, decider, shared, threads })
    }

    /// Takes in a decision.
    pub fn submit(&self, operation: Box<dyn Operation>) {
        use mpsc::error::TrySendError::{Closed, Full};
        let Err(operation) = self.decide_here(operation) else { return };
        match self.take_in(Input::Operation(operation)) {
            Err(Full(Input::Operation(operation))) => operation.finish(Err(Error::Busy(BUSY_FOR))),
            Err(Closed(Input::Operation(operation))) => {
                let closed = || Error::Closed("it was closed".into());
                operation.finish(Err(self.shared.refusal().unwrap_or_else(closed)));
            }
            _ => {}
        }
    }

    /// Finishes what was taken in, ends the threads, and settles what they leave.
    pub fn end(&self) -> Result<(), Error> {
        while let Err(mpsc::error::TrySendError::Full(_)) = self.take_in(Input::Close) {
            baton_env::sleep_blocking(BUSY_FOR);
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.end(threads)
    }

    /// Hands something to the deciding thread.
    fn take_in(&self, input: Input) -> Result<(), mpsc::error::TrySendError<Input>> {
        self.intake.try_send(input)?;
        // Either this sees that a caller decides, or that caller sees what was taken in.
        atomic::fence(Ordering::SeqCst);
        if !self.shared.caller_decides.load(Ordering::Relaxed) {
            self.decider.unpark();
        }
        Ok(())
    }

    /// Decides an operation on this thread, where that is possible and better.
    fn decide_here(&self, operation: Box<dyn Operation>) -> Result<(), Box<dyn Operation>> {
        if !self.shared.calm.load(Ordering::Relaxed) {
            return Err(operation);
        }
        let Some(writer) = self.writer.upgrade() else { return Err(operation) };
        let Ok(mut held) = writer.try_lock() else { return Err(operation) };
        self.shared.caller_decides.store(true, Ordering::Relaxed);
        // Also after a panic, so that the deciding thread finds out.
        let decided = catch_unwind(AssertUnwindSafe(|| held.decide_here(operation)));
        self.shared.caller_decides.store(false, Ordering::Relaxed);
        atomic::fence(Ordering::SeqCst);
        if decided.is_err() || held.has_work() {
            self.decider.unpark();
        }
        decided.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

pub fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map_err(|e| Error::Unusable(format!("cannot start a thread: {e}")))
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The outcome matters only to a caller that ends it.
        let _ = self.end();
    }
}
