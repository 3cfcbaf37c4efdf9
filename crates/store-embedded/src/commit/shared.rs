//! What the threads of an instance and all readers share.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use baton_store::{Error, SegmentCache};
use fjall::Database;

use super::checkpoint::write_checkpoint;
use super::commit_thread::IdleFlag;
use super::index_apply::ApplyQueue;
use super::inline_commit::InlineFlags;
use super::parked_reads::ParkedReads;
use crate::context::StoreContext;
use crate::dedup::{DedupIndex, SliceFiles};
use crate::disk::FreeSpace;
use crate::disk::directory::DirectoryLock;
use crate::index::{SegmentIndex, Tables};
use crate::options::RETRY_AFTER;
use crate::segment_reader::SegmentReader;
use crate::store_clock::StoreClock;
use crate::wal::Log;

/// What the threads of an instance and all readers share.
pub struct Shared {
    pub db: Database,
    pub tables: Tables,
    log: Mutex<Log>,
    pub apply_queue: ApplyQueue,
    pub dedup_files: Arc<SliceFiles>,
    pub segments: SegmentReader,
    pub context: Arc<StoreContext>,
    pub free_space: FreeSpace,
    /// Whether the log treats the disk as nearly full.
    scarce: AtomicBool,
    failure: OnceLock<Error>,
    /// The time of the next operation.
    pub clock: Arc<StoreClock>,
    pub parked_reads: ParkedReads,
    /// Whether the commit thread has no batch.
    pub commit_idle: IdleFlag,
    pub inline_flags: InlineFlags,
    dedup_len: AtomicU64,
    _lock: DirectoryLock,
}

impl Shared {
    /// Joins the opened parts of an instance, before its threads start.
    #[expect(clippy::too_many_arguments, reason = "everything that was opened")]
    pub fn new(
        context: Arc<StoreContext>,
        lock: DirectoryLock,
        free_space: FreeSpace,
        db: Database,
        tables: Tables,
        log: Log,
        apply_queue: ApplyQueue,
        index: SegmentIndex,
        dedup: &DedupIndex,
        clock: Arc<StoreClock>,
    ) -> Self {
        let segments = SegmentReader {
            cache: SegmentCache::new(context.options.cache_bytes),
            index,
            log: log.files().clone(),
        };
        Self {
            db,
            tables,
            log: Mutex::new(log),
            apply_queue,
            dedup_files: dedup.files().clone(),
            segments,
            context,
            free_space,
            scarce: AtomicBool::new(false),
            failure: OnceLock::new(),
            clock,
            parked_reads: ParkedReads::default(),
            commit_idle: IdleFlag::default(),
            inline_flags: InlineFlags::default(),
            dedup_len: AtomicU64::new(dedup.len() as u64),
            _lock: lock,
        }
    }

    /// The reason why the instance has stopped, if it has.
    pub fn failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    /// The answer to operations that did not begin because the instance has stopped.
    pub fn refusal(&self) -> Option<Error> {
        self.failure.get().map(|error| match error {
            Error::DiskFull { .. } => error.clone(),
            _ => Error::Busy(RETRY_AFTER),
        })
    }

    /// Stops the instance. The first reason counts; another instance takes over.
    pub fn fail(&self, error: &Error) {
        if self.failure.set(error.clone()).is_ok() {
            tracing::error!(%error, "the store has failed and is opened again");
            self.context.wake_recovery_thread();
        }
    }

    /// Waits for the threads to end, and makes a last checkpoint.
    pub fn join_threads(&self, threads: Vec<JoinHandle<()>>) -> Result<(), Error> {
        // Join all of them, even after one has panicked.
        let ended: Vec<_> = threads.into_iter().map(JoinHandle::join).collect();
        match ended.iter().all(Result::is_ok) {
            true => self.finish(),
            false => Err(Error::Closed("a thread of the store has panicked".into())),
        }
    }

    /// Syncs everything after the threads have ended, so that the next start replays nothing.
    fn finish(&self) -> Result<(), Error> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        self.log().finish_file().map_err(log_error)?;
        self.apply_to_index();
        self.checkpoint()
    }

    pub fn checkpoint(&self) -> Result<(), Error> {
        self.apply_to_index();
        let end = self.apply_queue.applied_end();
        write_checkpoint(self, end)
    }

    pub fn disk_bytes(&self) -> u64 {
        let log = self.segments.log.bytes.load(Ordering::Relaxed);
        self.db.disk_space().unwrap_or(0) + log + self.dedup_files.bytes()
    }

    pub fn sync_log(&self) -> Result<(), Error> {
        let synced = self.log().sync().map_err(log_error);
        synced.inspect_err(|error| self.fail(error))
    }

    /// Applies pending commits to the index if there are many, or always if `now`. Returns whether it did.
    pub fn apply_if_due(&self, now: bool) -> bool {
        let applies = now || self.apply_queue.is_due() && self.may_apply();
        if applies {
            self.apply_to_index();
        }
        applies
    }

    /// Whether the engine would not block, or applying cannot wait.
    pub fn may_apply(&self) -> bool {
        !self.segments.index.is_busy() || self.apply_queue.is_overdue()
    }

    /// Applies all answered commits to the index.
    pub fn apply_to_index(&self) {
        if let Err(error) = self.apply_queue.apply_to_index(&self.db, &self.segments.index) {
            self.fail(&Error::Closed(format!("a commit could not be applied to the index: {error}")));
        }
    }

    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Monotonic time, which no step of the machine's clock changes.
    pub fn elapsed(&self) -> Duration {
        self.context.options.clock.elapsed()
    }

    pub fn directory(&self) -> &Path {
        &self.context.options.directory
    }

    /// How many transaction ids are remembered.
    pub fn dedup_len(&self) -> u64 {
        self.dedup_len.load(Ordering::Relaxed)
    }

    pub fn set_dedup_len(&self, len: usize) {
        self.dedup_len.store(len as u64, Ordering::Relaxed);
    }

    /// Measures the free space, if the last measurement is too old.
    pub fn check_free_space(&self) {
        if self.free_space.measure_if_due(self.elapsed()) {
            self.update_scarcity();
        }
    }

    /// Tells the log whether the disk is nearly full, if that has changed.
    pub fn update_scarcity(&self) {
        let full = self.free_space.is_full();
        if self.scarce.swap(full, Ordering::Relaxed) != full {
            self.log().usage_mut().set_scarce(full);
        }
    }
}

pub fn log_error(error: io::Error) -> Error {
    Error::Closed(format!("the log cannot be synced: {error}"))
}
