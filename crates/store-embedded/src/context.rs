//! What outlives an instance: options, who hears of events, and the numbers about the store's work.
//!
//! When the store recovers from a failure, a new instance takes over and the callers must not notice: counters only rise,
//! and events go to the same listener. Not here: anything that is rebuilt from the directory (`instance`).

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};
use std::thread::Thread;
use std::time::Duration;

use baton_store::{COUNT_BOUNDS, DURATION_BOUNDS, Event, Histogram, Listener, Statistics};
use baton_types::Timestamp;

use crate::store::Options;

/// A commit that takes so long, or less, is over before it pays that another thread makes it.
const QUICK_MICROS: u64 = 500;

pub struct Context {
    pub options: Options,
    listener: RwLock<Option<Listener>>,
    /// How often a queue or a group has changed, or an instance has begun.
    structure: AtomicU64,
    /// The time of the last decision.
    now: AtomicI64,
    commits: AtomicU64,
    syncs: AtomicU64,
    operations: AtomicU64,
    undone: AtomicU64,
    commit_micros: Histogram,
    /// How long the last ones took, the later the more it counts.
    usual_micros: AtomicU64,
    commit_operations: Histogram,
    /// The thread that recovers from failures.
    recovery: OnceLock<Thread>,
}

impl Context {
    pub fn new(options: Options) -> Self {
        Self {
            options,
            listener: RwLock::default(),
            structure: AtomicU64::new(0),
            now: AtomicI64::new(Timestamp::MIN.micros()),
            commits: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            undone: AtomicU64::new(0),
            commit_micros: Histogram::new(DURATION_BOUNDS),
            usual_micros: AtomicU64::new(0),
            commit_operations: Histogram::new(COUNT_BOUNDS),
            recovery: OnceLock::new(),
        }
    }

    pub fn listen(&self, listener: Listener) {
        *self.listener.write().unwrap_or_else(PoisonError::into_inner) = Some(listener);
    }

    pub fn notify(&self, event: Event) {
        let listener = self.listener.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(listener) = &*listener {
            listener(event);
        }
    }

    /// Notes that a queue or a group changes, or that events may have been lost.
    pub fn change_structure(&self) {
        self.structure.fetch_add(1, Ordering::Release);
    }

    pub fn structure(&self) -> u64 {
        self.structure.load(Ordering::Acquire)
    }

    pub fn set_now(&self, now: Timestamp) {
        self.now.store(now.micros(), Ordering::Relaxed);
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now.load(Ordering::Relaxed))
    }

    /// Sets the thread that recovers from failures.
    pub fn set_recovery(&self, thread: Thread) {
        // There is one per store.
        let _ = self.recovery.set(thread);
    }

    /// Wakes the thread that recovers from failures.
    pub fn wake_recovery(&self) {
        if let Some(thread) = self.recovery.get() {
            thread.unpark();
        }
    }

    /// Counts a decision that was undone.
    pub fn count_undone(&self) {
        self.undone.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_operations(&self, operations: u64) {
        self.operations.fetch_add(operations, Ordering::Relaxed);
    }

    /// Counts a commit; `synced` is how long it took if it was forced to disk.
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

    /// The numbers that are counted here.
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
