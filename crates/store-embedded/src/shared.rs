//! What the threads of an instance and every reader share.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use baton_store::{Error, Operation, SegmentCache};
use fjall::Database;

use crate::context::Context;
use crate::directory::Claimed;
use crate::id_files::IdFiles;
use crate::index::Index;
use crate::log::Log;
use crate::messages::Messages;
use crate::reclaimer;
use crate::remembered::Remembered;
use crate::space::Space;
use crate::store::BUSY_FOR;
use crate::store_clock::StoreClock;
use crate::tables::Tables;
use crate::telling::Telling;

/// What the threads and every reader of an instance share.
pub struct Shared {
    pub db: Database,
    pub tables: Tables,
    log: Mutex<Log>,
    pub telling: Telling,
    pub id_files: Arc<IdFiles>,
    pub messages: Messages,
    pub context: Arc<Context>,
    /// What is free on its disk.
    pub space: Space,
    /// Whether the log knows that it is nearly full.
    scarce: AtomicBool,
    failure: OnceLock<Error>,
    /// The time of the next decision.
    pub time: Arc<StoreClock>,
    durable: AtomicU64,
    parked: Mutex<Vec<(u64, Box<dyn Operation>)>>,
    idle: Mutex<bool>,
    became_idle: Condvar,
    /// Whether callers may try to decide on their own threads.
    pub calm: AtomicBool,
    /// Whether one does, and looks itself at what is taken in meanwhile.
    pub caller_decides: AtomicBool,
    remembered: AtomicU64,
    _claimed: Claimed,
}

impl Shared {
    /// What the threads and the readers of an instance share, before any of them has begun.
    #[expect(clippy::too_many_arguments, reason = "everything that was opened")]
    pub fn new(
        context: Arc<Context>,
        claimed: Claimed,
        space: Space,
        db: Database,
        tables: Tables,
        log: Log,
        telling: Telling,
        index: Index,
        remembered: &Remembered,
        time: Arc<StoreClock>,
    ) -> Self {
        let messages = Messages {
            cache: SegmentCache::new(context.options.cache_bytes),
            index,
            log: log.files().clone(),
        };
        Self {
            db,
            tables,
            log: Mutex::new(log),
            telling,
            id_files: remembered.files().clone(),
            messages,
            context,
            space,
            scarce: AtomicBool::new(false),
            failure: OnceLock::new(),
            time,
            durable: AtomicU64::new(0),
            parked: Mutex::default(),
            idle: Mutex::new(true),
            became_idle: Condvar::new(),
            calm: AtomicBool::new(false),
            caller_decides: AtomicBool::new(false),
            remembered: AtomicU64::new(remembered.len() as u64),
            _claimed: claimed,
        }
    }

    /// Why the instance stopped working, once it has.
    pub fn failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    /// What is answered for an operation that was not begun because the instance has failed.
    pub fn refusal(&self) -> Option<Error> {
        self.failure.get().map(|error| match error {
            Error::DiskFull { .. } => error.clone(),
            _ => Error::Busy(BUSY_FOR),
        })
    }

    /// Notes the first reason for which the instance stopped working; another one takes over.
    pub fn fail(&self, error: &Error) {
        if self.failure.set(error.clone()).is_ok() {
            tracing::error!(%error, "the store has failed and is opened again");
            self.context.wake_recovery();
        }
    }

    /// Waits for the threads to end, and settles what they leave.
    pub fn end(&self, threads: Vec<JoinHandle<()>>) -> Result<(), Error> {
        // All of them, whatever became of the first.
        let ended: Vec<_> = threads.into_iter().map(JoinHandle::join).collect();
        match ended.iter().all(Result::is_ok) {
            true => self.settle(),
            false => Err(Error::Closed("a thread of the store has panicked".into())),
        }
    }

    /// Forces everything to disk after the threads have ended, and leaves nothing for the next start to do again.
    fn settle(&self) -> Result<(), Error> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        self.log().end_file().map_err(log_error)?;
        self.tell_engine();
        self.checkpoint()
    }

    pub fn checkpoint(&self) -> Result<(), Error> {
        self.tell_engine();
        let end = self.telling.end();
        reclaimer::checkpoint(self, end)
    }

    pub fn disk_bytes(&self) -> u64 {
        let log = self.messages.log.bytes.load(Ordering::Relaxed);
        self.db.disk_space().unwrap_or(0) + log + self.id_files.bytes()
    }

    pub fn sync_log(&self) -> Result<(), Error> {
        let synced = self.log().sync().map_err(log_error);
        synced.inspect_err(|error| self.fail(error))
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
            self.fail(&Error::Closed(format!("the storage engine could not be told of a commit: {error}")));
        }
    }

    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the machine started, which no step of its clock changes.
    pub fn elapsed(&self) -> Duration {
        self.context.options.clock.elapsed()
    }

    pub fn directory(&self) -> &Path {
        &self.context.options.directory
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

    /// How many transaction ids are remembered.
    pub fn remembered(&self) -> u64 {
        self.remembered.load(Ordering::Relaxed)
    }

    pub fn set_remembered(&self, len: usize) {
        self.remembered.store(len as u64, Ordering::Relaxed);
    }

    /// Answers an operation that wrote nothing, once group `gate` is on disk.
    pub fn finish_when_durable(&self, gate: u64, operation: Box<dyn Operation>) {
        let outcome = {
            let mut parked = self.parked();
            match self.refusal() {
                _ if gate <= self.durable() => Ok(()),
                // An operation parked now would wait for ever: the committer has been here.
                Some(refusal) => Err(refusal),
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

    /// Looks at the free space, if the last look was a while ago.
    pub fn check_space(&self) {
        if self.space.check(self.elapsed()) {
            self.note_space();
        }
    }

    pub fn note_space(&self) {
        let full = self.space.is_full();
        if self.scarce.swap(full, Ordering::Relaxed) != full {
            self.log().set_scarce(full);
        }
    }
}

pub fn log_error(error: io::Error) -> Error {
    Error::Closed(format!("the log cannot be synced: {error}"))
}
