//! What the tasks of a store share: address, caches, time, outages and counters.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use baton_env::{Clock, SlewedClock, Stopwatch};
use baton_store::{
    COUNT_BOUNDS, DURATION_BOUNDS, Event, Histogram, Listener, SegmentCache, Statistics, StoreLimits,
};
use baton_types::Timestamp;
use tokio::sync::Notify;

use crate::client::address::DatabaseAddress;
use crate::state::partition_limit::PartitionLimit;

/// When a caller should retry while the intake is full or the database is unavailable.
pub const RETRY_AFTER: Duration = Duration::from_millis(500);

/// How long a batch waits for an unavailable database.
pub const OUTAGE_MAX: Duration = Duration::from_secs(2);
/// Pauses between attempts to connect.
pub const RECONNECT_FIRST: Duration = Duration::from_millis(25);
pub const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// What the store's tasks share.
pub struct StoreContext {
    pub address: DatabaseAddress,
    pub schema: String,
    pub cache: SegmentCache,
    pub partition_limit: PartitionLimit,
    /// Wakes the sweeper after a commit that leaves rows to delete.
    pub sweep: Notify,
    clock: Option<Arc<dyn Clock>>,
    listener: RwLock<Option<Listener>>,
    now: Mutex<(Timestamp, (Timestamp, Stopwatch))>,
    slewed: Mutex<Option<SlewedClock>>,
    watch: Stopwatch,
    /// Why the writer cannot reach the database, while it cannot.
    outage: Mutex<Option<String>>,
    /// Whether an outage has lasted so long that callers get `Busy` at once.
    refusing: AtomicBool,
    commits: AtomicU64,
    syncs: AtomicU64,
    operations: AtomicU64,
    repeats: AtomicU64,
    deadlocks: AtomicU64,
    undone: AtomicU64,
    missing_slots: AtomicU64,
    remembered: AtomicU64,
    commit_micros: Histogram,
    commit_operations: Histogram,
}

impl StoreContext {
    pub fn new(
        address: DatabaseAddress,
        schema: String,
        cache: SegmentCache,
        bounds: StoreLimits,
        clock: Option<Arc<dyn Clock>>,
    ) -> Self {
        Self {
            address,
            schema,
            cache,
            partition_limit: PartitionLimit::new(bounds),
            sweep: Notify::new(),
            clock,
            listener: RwLock::default(),
            now: Mutex::new((Timestamp::MIN, (Timestamp::MIN, Stopwatch::start()))),
            slewed: Mutex::default(),
            watch: Stopwatch::start(),
            outage: Mutex::default(),
            refusing: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            repeats: AtomicU64::new(0),
            deadlocks: AtomicU64::new(0),
            undone: AtomicU64::new(0),
            missing_slots: AtomicU64::new(0),
            remembered: AtomicU64::new(0),
            commit_micros: Histogram::new(DURATION_BOUNDS),
            commit_operations: Histogram::new(COUNT_BOUNDS),
        }
    }

    /// The store's time, extrapolated from the last time that the database gave.
    pub fn current_time(&self, database_time: (Timestamp, Stopwatch)) -> Timestamp {
        match &self.clock {
            _ if database_time.0 == Timestamp::MIN => database_time.0,
            Some(clock) => self.slew(clock.now(), clock.elapsed()),
            None => self.slew(database_time.0.after(database_time.1.elapsed()), self.watch.elapsed()),
        }
    }

    /// Slews the clock, so that a step of the database's clock neither expires leases early nor stops time.
    fn slew(&self, wall: Timestamp, elapsed: Duration) -> Timestamp {
        let mut slewed = self.slewed.lock().unwrap_or_else(PoisonError::into_inner);
        slewed.get_or_insert_with(|| SlewedClock::new(wall, elapsed)).advance(wall, elapsed)
    }

    /// The time of the last decision or later.
    pub fn now(&self) -> Timestamp {
        let (last, database_time) = *self.now.lock().unwrap_or_else(PoisonError::into_inner);
        last.max(self.current_time(database_time))
    }

    /// The time of the last decision.
    pub fn last_decision_time(&self) -> Timestamp {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    pub fn advance_now(&self, last: Timestamp, database_time: (Timestamp, Stopwatch)) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        *now = (now.0.max(last), database_time);
        // A later time that another server wrote moves the slewed clock forward; otherwise time would stand
        // still until it is reached.
        if let Some(slewed) = &mut *self.slewed.lock().unwrap_or_else(PoisonError::into_inner) {
            slewed.raise(last);
        }
    }

    /// Records why the writer cannot reach the database, or that it can again.
    pub fn set_outage(&self, reason: Option<String>) {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*outage, &reason) {
            (None, Some(reason)) => tracing::warn!(reason, "PostgreSQL is unavailable"),
            (Some(_), None) => tracing::info!("PostgreSQL is available again"),
            _ => {}
        }
        *outage = reason;
    }

    /// Why the writer cannot reach the database, while it cannot.
    pub fn outage(&self) -> Option<String> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_refusing(&self, refusing: bool) {
        self.refusing.store(refusing, Ordering::Release);
    }

    pub fn is_refusing(&self) -> bool {
        self.refusing.load(Ordering::Acquire)
    }

    /// Updates the number of remembered transaction ids by the writer's change.
    pub fn update_remembered(&self, before: usize, now: usize) {
        self.remembered.fetch_add(now as u64, Ordering::Relaxed);
        self.remembered.fetch_sub(before as u64, Ordering::Relaxed);
    }

    /// Counts a commit that waited for the disk.
    pub fn observe_sync(&self, operations: usize, took: Duration) {
        self.commit_micros.observe(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        self.commit_operations.observe(operations as u64);
    }

    /// Counts a decision that was undone.
    pub fn count_undone(&self) {
        self.undone.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_batch(&self, operations: usize, commits: u64, synced: bool) {
        self.operations.fetch_add(operations as u64, Ordering::Relaxed);
        self.commits.fetch_add(commits, Ordering::Relaxed);
        self.syncs.fetch_add(u64::from(synced), Ordering::Relaxed);
    }

    /// Counts a batch that runs again, perhaps because of a deadlock.
    pub fn count_repeat(&self, is_deadlock: bool) {
        self.repeats.fetch_add(1, Ordering::Relaxed);
        self.deadlocks.fetch_add(u64::from(is_deadlock), Ordering::Relaxed);
    }

    pub fn count_missing_slots(&self, count: u64) {
        self.missing_slots.fetch_add(count, Ordering::Relaxed);
    }

    pub fn statistics(&self) -> Statistics {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            commits: load(&self.commits),
            syncs: load(&self.syncs),
            operations: load(&self.operations),
            repeats: load(&self.repeats),
            deadlocks: load(&self.deadlocks),
            undone: load(&self.undone),
            missing_slots: load(&self.missing_slots),
            disk_bytes: 0,
            remembered: load(&self.remembered),
            commit_micros: self.commit_micros.snapshot(),
            commit_operations: self.commit_operations.snapshot(),
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
}
