//! What outlives an instance: options, the listener for events, and statistics.
//!
//! When the store recovers from a failure, a new instance takes over. Callers must not notice: counters only rise, and
//! events go to the same listener. Not here: anything that is rebuilt from the directory (`recovery::instance`).

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};
use std::thread::Thread;
use std::time::Duration;

use baton_store::{COUNT_BOUNDS, DURATION_BOUNDS, Event, Histogram, Listener, Statistics};
use baton_types::Timestamp;

use crate::options::Options;

/// A commit of at most this length is too short to be worth another thread.
const FAST_COMMIT_MICROS: u64 = 500;

pub struct StoreContext {
    pub options: Options,
    listener: RwLock<Option<Listener>>,
    /// Rises when a queue or a group changes, and when an instance starts.
    catalog_version: AtomicU64,
    /// The time of the last operation.
    now: AtomicI64,
    commits: AtomicU64,
    syncs: AtomicU64,
    operations: AtomicU64,
    undone: AtomicU64,
    commit_micros: Histogram,
    /// A moving average of `commit_micros`.
    average_micros: AtomicU64,
    commit_operations: Histogram,
    /// The thread that recovers from failures.
    recovery: OnceLock<Thread>,
}

impl StoreContext {
    pub fn new(options: Options) -> Self {
        Self {
            options,
            listener: RwLock::default(),
            catalog_version: AtomicU64::new(0),
            now: AtomicI64::new(Timestamp::MIN.micros()),
            commits: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            undone: AtomicU64::new(0),
            commit_micros: Histogram::new(DURATION_BOUNDS),
            average_micros: AtomicU64::new(0),
            commit_operations: Histogram::new(COUNT_BOUNDS),
            recovery: OnceLock::new(),
        }
    }

    pub fn set_listener(&self, listener: Listener) {
        *self.listener.write().unwrap_or_else(PoisonError::into_inner) = Some(listener);
    }

    pub fn notify(&self, event: Event) {
        let listener = self.listener.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(listener) = &*listener {
            listener(event);
        }
    }

    /// Raises the version: a queue or a group changes, or events may have been lost.
    pub fn bump_catalog_version(&self) {
        self.catalog_version.fetch_add(1, Ordering::Release);
    }

    pub fn catalog_version(&self) -> u64 {
        self.catalog_version.load(Ordering::Acquire)
    }

    pub fn set_now(&self, now: Timestamp) {
        self.now.store(now.micros(), Ordering::Relaxed);
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now.load(Ordering::Relaxed))
    }

    /// Sets the thread that recovers from failures.
    pub fn set_recovery_thread(&self, thread: Thread) {
        // A store has only one.
        let _ = self.recovery.set(thread);
    }

    /// Wakes the thread that recovers from failures.
    pub fn wake_recovery_thread(&self) {
        if let Some(thread) = self.recovery.get() {
            thread.unpark();
        }
    }

    /// Counts an operation that was undone.
    pub fn count_undone(&self) {
        self.undone.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_operations(&self, operations: u64) {
        self.operations.fetch_add(operations, Ordering::Relaxed);
    }

    /// Counts a commit. `synced` is its duration if it had an fsync.
    pub fn count_commit(&self, operations: u64, synced: Option<Duration>) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        if let Some(took) = synced {
            self.syncs.fetch_add(1, Ordering::Relaxed);
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            self.commit_micros.observe(micros);
            let average = self.average_micros.load(Ordering::Relaxed);
            self.average_micros.store(average - average / 8 + micros / 8, Ordering::Relaxed);
            self.commit_operations.observe(operations);
        }
        self.count_operations(operations);
    }

    /// Whether a commit takes not much longer than waking another thread for it.
    pub fn are_commits_fast(&self) -> bool {
        self.average_micros.load(Ordering::Relaxed) <= FAST_COMMIT_MICROS
    }

    /// The statistics that are counted here.
    pub fn statistics(&self) -> Statistics {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            commits: load(&self.commits),
            syncs: load(&self.syncs),
            operations: load(&self.operations),
            undone: load(&self.undone),
            commit_micros: self.commit_micros.snapshot(),
            commit_operations: self.commit_operations.snapshot(),
            ..Statistics::default()
        }
    }
}
