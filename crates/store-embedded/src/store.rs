//! Opening, the way in, and what both threads share.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{self, AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use baton_env::{BootClock, Clock};
use baton_store::{
    Bounds, Cache, Error, Event, Histogram, Listener, MICROS, Operation, SIZES, Segment, Statistics, Store,
};
use baton_types::{Offset, PartitionId, Timestamp};
use fjall::{CompressionType, Database};
use tokio::sync::mpsc;

use crate::committer::{self, Untold};
use crate::directory::{self, Claimed};
use crate::id_files::IdFiles;
use crate::index::Index;
use crate::loading;
use crate::log::Log;
use crate::messages::Messages;
use crate::reclaimer::{self, Reclaimer};
use crate::space::Space;
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
/// A commit that takes so long, or less, is over before it pays that another thread makes it.
const QUICK_MICROS: u64 = 500;
/// When to try again at a full intake.
const BUSY_FOR: Duration = Duration::from_millis(100);

/// How to open a store.
#[derive(Clone)]
pub struct Options {
    /// Where it lives; created when missing.
    pub directory: PathBuf,
    /// Free space on the disk below which no more messages are taken in.
    pub min_free_disk: u64,
    /// Bytes of young messages kept in memory.
    pub cache_bytes: usize,
    /// A file of the log that has become this long is followed by another. Space is given back file by file.
    pub log_file_bytes: u64,
    /// Transaction ids kept in memory, about 40 bytes each.
    pub remembered_max: usize,
    /// Rows that tell where messages are, kept in memory before many are written at once, about 48 bytes each.
    pub index_rows: usize,
    /// How many queues, partitions and groups there may be.
    pub bounds: Bounds,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Whether the machine's clock counts, however far it is from the time that is stored.
    pub resets_clock: bool,
}

impl Options {
    /// The usual options for a directory.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            min_free_disk: 256 << 20,
            cache_bytes: 64 << 20,
            log_file_bytes: 32 << 20,
            remembered_max: 20_000_000,
            index_rows: 128 << 10,
            bounds: Bounds::default(),
            clock: Arc::new(BootClock::default()),
            resets_clock: false,
        }
    }
}

/// The embedded store.
pub struct EmbeddedStore {
    intake: mpsc::Sender<Input>,
    /// Held by the deciding thread, for as long as that lives.
    writer: Weak<Mutex<Writer>>,
    decider: Thread,
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What both threads and every reader share.
pub struct Shared {
    pub db: Database,
    pub tables: Tables,
    log: Mutex<Log>,
    pub telling: Telling,
    pub id_files: Arc<IdFiles>,
    pub messages: Messages,
    directory: PathBuf,
    pub bounds: Bounds,
    /// What is free on its disk.
    pub space: Space,
    /// Whether the log knows that it is nearly full.
    scarce: AtomicBool,
    clock: Arc<dyn Clock>,
    listener: RwLock<Option<Listener>>,
    failure: OnceLock<String>,
    now: AtomicI64,
    /// The time of the next decision.
    pub time: StoreClock,
    durable: AtomicU64,
    parked: Mutex<Vec<(u64, Box<dyn Operation>)>>,
    idle: Mutex<bool>,
    became_idle: Condvar,
    /// How often a queue or a group has changed.
    structure: AtomicU64,
    /// Whether callers may try to decide on their own threads.
    calm: AtomicBool,
    /// Whether one does, and looks itself at what is taken in meanwhile.
    caller_decides: AtomicBool,
    commits: AtomicU64,
    syncs: AtomicU64,
    operations: AtomicU64,
    undone: AtomicU64,
    remembered: AtomicU64,
    commit_micros: Histogram,
    /// How long the last ones took, the later the more it counts.
    usual_micros: AtomicU64,
    commit_operations: Histogram,
    _claimed: Claimed,
}

impl EmbeddedStore {
    /// Opens the directory, or says why it cannot be used.
    pub fn open(options: Options) -> Result<Self, Error> {
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
        let mut remembered = loading::open_remembered(&options, &db, &tables)?;
        let mut log = loading::open_log(&options, &db, &tables, &mut remembered)?;
        let counters = match tables.meta.get(COUNTERS_KEY).map_err(engine_error)? {
            Some(row) => Counters::read(&row)?,
            None => Counters { next_id: 1, next_version: 1, now: Timestamp::MIN, ..Counters::default() },
        };
        let now = store_clock::begin(&options, &counters)?;
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
        if options.resets_clock {
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
        let messages = Messages { cache: Cache::new(options.cache_bytes), index, log: log.files().clone() };
        let shared = Arc::new(Shared {
            db,
            tables,
            log: Mutex::new(log),
            telling,
            id_files: remembered.files().clone(),
            messages,
            directory: options.directory,
            bounds: options.bounds,
            space,
            scarce: AtomicBool::new(false),
            clock: options.clock.clone(),
            listener: RwLock::default(),
            failure: OnceLock::new(),
            now: AtomicI64::new(now.micros()),
            time: StoreClock::new(options.clock.clone(), now),
            durable: AtomicU64::new(0),
            parked: Mutex::default(),
            idle: Mutex::new(true),
            became_idle: Condvar::new(),
            structure: AtomicU64::new(0),
            calm: AtomicBool::new(false),
            caller_decides: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            undone: AtomicU64::new(0),
            remembered: AtomicU64::new(remembered.len() as u64),
            commit_micros: Histogram::new(MICROS),
            usual_micros: AtomicU64::new(0),
            commit_operations: Histogram::new(SIZES),
            _claimed: claimed,
        });
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
            options.clock,
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

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map_err(|e| Error::Unusable(format!("cannot start a thread: {e}")))
}

impl EmbeddedStore {
    /// Makes a checkpoint, so that the next opening has nothing to do again. For a store that is otherwise idle; it is
    /// done by itself in time.
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.shared.checkpoint()
    }
}

fn log_error(error: io::Error) -> Error {
    Error::Closed(format!("the log cannot be synced: {error}"))
}

impl Shared {
    pub fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }

    /// Notes the first reason for which the store stopped working.
    pub fn fail(&self, reason: &str) {
        if self.failure.set(reason.into()).is_ok() {
            tracing::error!(reason, "the store has stopped");
        }
    }

    /// Waits for the threads to end, and settles what they leave.
    fn end(&self, threads: Vec<JoinHandle<()>>) -> Result<(), Error> {
        // All of them, whatever became of the first.
        let ended: Vec<_> = threads.into_iter().map(JoinHandle::join).collect();
        match ended.iter().all(Result::is_ok) {
            true => self.settle(),
            false => Err(Error::Closed("a thread of the store has panicked".into())),
        }
    }

    /// Forces everything to disk after the threads have ended, and leaves nothing for the next start to do again.
    fn settle(&self) -> Result<(), Error> {
        if let Some(reason) = self.failure() {
            return Err(Error::Closed(reason));
        }
        self.log().end_file().map_err(log_error)?;
        self.tell_engine();
        self.checkpoint()
    }

    fn checkpoint(&self) -> Result<(), Error> {
        self.tell_engine();
        let end = self.telling.end();
        reclaimer::checkpoint(self, end)
    }

    fn disk_bytes(&self) -> u64 {
        let log = self.messages.log.bytes.load(Ordering::Relaxed);
        self.db.disk_space().unwrap_or(0) + log + self.id_files.bytes()
    }

    pub fn sync_log(&self) -> Result<(), Error> {
        let synced = self.log().sync().map_err(log_error);
        synced.inspect_err(|error| self.fail(&error.to_string()))
    }

    /// Tells the engine of the commits that it does not know of, if they are many or it is to be `at_once`; says
    /// whether it did.
    pub fn tell_engine_of_many(&self, at_once: bool) -> bool {
        let tells = at_once || self.telling.is_much() && self.may_tell();
        if tells {
            self.tell_engine();
        }
        tells
    }

    /// Whether the engine would not keep us waiting, or there is no time.
    pub fn may_tell(&self) -> bool {
        !self.messages.index.is_busy() || self.telling.is_too_much()
    }

    /// Tells the engine of all commits that were answered.
    pub fn tell_engine(&self) {
        if let Err(error) = self.telling.tell(&self.db, &self.messages.index) {
            self.fail(&format!("the storage engine could not be told of a commit: {error}"));
        }
    }

    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the machine started, which no step of its clock changes.
    pub fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn set_now(&self, now: Timestamp) {
        self.now.store(now.micros(), Ordering::Relaxed);
    }

    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Notes whether the committer has a group in hand.
    pub fn set_idle(&self, idle: bool) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = idle;
        if idle {
            self.became_idle.notify_all();
        }
    }

    pub fn is_idle(&self) -> bool {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn wait_idle(&self) {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.became_idle.wait_while(idle, |idle| !*idle));
    }

    /// Notes whether callers may try to decide on their own threads.
    pub fn set_calm(&self, calm: bool) {
        self.calm.store(calm, Ordering::Relaxed);
    }

    pub fn set_remembered(&self, len: usize) {
        self.remembered.store(len as u64, Ordering::Relaxed);
    }

    /// A number that no other commit has.
    /// A queue or a group changes.
    pub fn change_structure(&self) {
        self.structure.fetch_add(1, Ordering::Release);
    }

    pub fn notify(&self, event: Event) {
        let listener = self.listener.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(listener) = &*listener {
            listener(event);
        }
    }

    /// Answers an operation that wrote nothing, once group `gate` is on disk.
    pub fn finish_when_durable(&self, gate: u64, operation: Box<dyn Operation>) {
        let outcome = {
            let mut parked = self.parked();
            match self.failure() {
                _ if gate <= self.durable() => Ok(()),
                // Whoever is parked now would wait for ever: the committer has been here.
                Some(reason) => Err(Error::Closed(reason)),
                None => return parked.push((gate, operation)),
            }
        };
        operation.finish(outcome);
    }

    /// Notes that group `seq` is on disk, and tells who waited for no more than that.
    pub fn advance(&self, seq: u64, durable: bool) -> Vec<Box<dyn Operation>> {
        let mut parked = self.parked();
        if durable {
            self.durable.store(seq, Ordering::Release);
        }
        let (free, still) = std::mem::take(&mut *parked).into_iter().partition(|(gate, _)| *gate <= seq);
        *parked = still;
        free.into_iter().map(|(_, operation): (u64, _)| operation).collect()
    }

    /// Has everyone who waits for group `seq` prepare for it.
    pub fn prepare(&self, seq: u64) {
        let mut parked = self.parked();
        parked.iter_mut().filter(|(gate, _)| *gate == seq).for_each(|(_, operation)| operation.prepare());
    }

    fn parked(&self) -> MutexGuard<'_, Vec<(u64, Box<dyn Operation>)>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a decision that was undone.
    pub fn count_undone(&self) {
        self.undone.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_operations(&self, operations: u64) {
        self.operations.fetch_add(operations, Ordering::Relaxed);
    }

    /// Counts a commit; `synced` tells how long it took if it was forced to disk.
    pub fn count_commit(&self, operations: u64, synced: Option<Duration>) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        if let Some(took) = synced {
            self.syncs.fetch_add(1, Ordering::Relaxed);
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            self.commit_micros.observe(micros);
            let usual = self.usual_micros.load(Ordering::Relaxed);
            self.usual_micros.store(usual - usual / 8 + micros / 8, Ordering::Relaxed);
            self.commit_operations.observe(operations);
        }
        self.count_operations(operations);
    }

    /// Whether forcing a commit to disk takes not much longer than waking a thread to do it.
    pub fn commits_are_quick(&self) -> bool {
        self.usual_micros.load(Ordering::Relaxed) <= QUICK_MICROS
    }

    /// Looks at the free space, if the last look was a while ago.
    pub fn check_space(&self) {
        if self.space.check(self.elapsed()) {
            self.note_space();
        }
    }

    fn note_space(&self) {
        let full = self.space.is_full();
        if self.scarce.swap(full, Ordering::Relaxed) != full {
            self.log().set_scarce(full);
        }
    }
}

impl Store for EmbeddedStore {
    fn submit(&self, operation: Box<dyn Operation>) {
        use mpsc::error::TrySendError::{Closed, Full};
        let Err(operation) = self.decide_here(operation) else { return };
        match self.take_in(Input::Operation(operation)) {
            Err(Full(Input::Operation(operation))) => operation.finish(Err(Error::Busy(BUSY_FOR))),
            Err(Closed(Input::Operation(operation))) => {
                let reason = self.shared.failure().unwrap_or_else(|| "it was closed".into());
                operation.finish(Err(Error::Closed(reason)));
            }
            _ => {}
        }
    }

    fn read(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> baton_store::BoxFuture<'_, Result<Vec<Segment>, Error>> {
        if let Some(found) = self.at_hand(partition, from, to, bytes_max) {
            return Box::pin(std::future::ready(Ok(found)));
        }
        let shared = self.shared.clone();
        let read = tokio::task::spawn_blocking(move || {
            shared.tell_engine();
            match shared.failure() {
                Some(reason) => Err(Error::Closed(reason)),
                None => shared.messages.read(partition, from, to, bytes_max),
            }
        });
        Box::pin(async move { read.await.unwrap_or_else(|e| Err(Error::Closed(e.to_string()))) })
    }

    fn at_hand(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> Option<Vec<Segment>> {
        self.shared.messages.cache.read(partition, from, to, bytes_max)
    }

    fn listen(&self, listener: Listener) {
        *self.shared.listener.write().unwrap_or_else(PoisonError::into_inner) = Some(listener);
    }

    fn unheard(&self) -> Option<u64> {
        Some(self.shared.structure.load(Ordering::Acquire))
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.shared.now.load(Ordering::Relaxed)).max(self.shared.time.now())
    }

    fn statistics(&self) -> Statistics {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            commits: load(&self.shared.commits),
            syncs: load(&self.shared.syncs),
            operations: load(&self.shared.operations),
            repeats: 0,
            deadlocks: 0,
            undone: load(&self.shared.undone),
            missing_slots: 0,
            disk_bytes: self.shared.disk_bytes(),
            remembered: load(&self.shared.remembered),
            commit_micros: self.shared.commit_micros.read(),
            commit_operations: self.shared.commit_operations.read(),
        }
    }

    fn failure(&self) -> Option<String> {
        self.shared.failure()
    }

    fn close(&self) -> baton_store::BoxFuture<'_, Result<(), Error>> {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        Box::pin(async move {
            // An error means that the deciding thread has ended already.
            let _ = self.intake.send(Input::Close).await;
            self.decider.unpark();
            let shared = self.shared.clone();
            let closed = tokio::task::spawn_blocking(move || shared.end(threads));
            closed.await.unwrap_or_else(|e| Err(Error::Closed(e.to_string())))
        })
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        while let Err(mpsc::error::TrySendError::Full(_)) = self.take_in(Input::Close) {
            baton_env::pause(BUSY_FOR);
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        // Whoever wants to know whether it worked calls `close`.
        let _ = self.shared.end(threads);
    }
}
