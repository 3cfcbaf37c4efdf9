//! Wake-ups on this server: for workers that wait for jobs, and callers that wait for changes of one job.
//!
//! A wake-up is a hint. Each waiter also rechecks after a while, because another server may have changed something. A
//! lost wake-up costs that while.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use baton_types::PartitionId;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use crate::model::ids::{JobPosition, WorkerId};
use crate::model::limits::WORKERS_MAX;

/// Wakes waiters.
#[derive(Debug, Default)]
pub struct Notifiers {
    queues: Mutex<FxHashMap<PartitionId, Arc<Notify>>>,
    jobs: Mutex<FxHashMap<JobPosition, (Arc<Notify>, usize)>>,
    workers: Mutex<FxHashMap<WorkerId, Weak<Notify>>>,
    watchers: AtomicUsize,
}

/// At most this many waiters are woken at once; each that finds jobs wakes the next.
const RINGS_MAX: u64 = 64;

impl Notifiers {
    /// The notifier of a queue.
    pub fn queue(&self, partition: PartitionId) -> Arc<Notify> {
        Arc::clone(lock(&self.queues).entry(partition).or_default())
    }

    /// The notifier of a worker, while a heartbeat of it waits.
    pub fn worker(&self, id: WorkerId) -> Arc<Notify> {
        let mut workers = lock(&self.workers);
        if let Some(notifier) = workers.get(&id).and_then(Weak::upgrade) {
            return notifier;
        }
        if workers.len() >= WORKERS_MAX {
            workers.retain(|_, notifier| notifier.strong_count() > 0);
        }
        let notifier = Arc::default();
        workers.insert(id, Arc::downgrade(&notifier));
        notifier
    }

    /// Wakes the waiting heartbeats of these workers.
    pub fn call(&self, called: &[WorkerId]) {
        if called.is_empty() {
            return;
        }
        let workers = lock(&self.workers);
        for notifier in called.iter().filter_map(|id| workers.get(id)?.upgrade()) {
            notifier.notify_waiters();
        }
    }

    /// Wakes as many workers as there are new jobs.
    pub fn ready(&self, partition: PartitionId, jobs: u64) {
        let Some(notifier) = lock(&self.queues).get(&partition).cloned() else { return };
        match jobs {
            u64::MAX => notifier.notify_waiters(),
            jobs => (0..jobs.min(RINGS_MAX)).for_each(|_| notifier.notify_one()),
        }
    }

    /// Wakes all waiting workers, because the server stops.
    pub fn wake_all(&self) {
        lock(&self.queues).values().for_each(|notifier| notifier.notify_waiters());
        lock(&self.jobs).values().for_each(|(notifier, _)| notifier.notify_waiters());
        lock(&self.workers).values().filter_map(Weak::upgrade).for_each(|notifier| notifier.notify_waiters());
    }

    /// Watches a job until the watch is dropped.
    pub fn watch(self: &Arc<Self>, position: JobPosition) -> JobWatch {
        self.watchers.fetch_add(1, Ordering::SeqCst);
        let mut jobs = lock(&self.jobs);
        let (notifier, watchers) = jobs.entry(position).or_default();
        *watchers += 1;
        JobWatch { notifier: Arc::clone(notifier), notifiers: Arc::clone(self), position }
    }

    /// The number of watches.
    pub fn watchers(&self) -> usize {
        self.watchers.load(Ordering::SeqCst)
    }

    /// Wakes the watchers of these jobs.
    pub fn changed(&self, positions: &[JobPosition]) {
        if self.watchers() == 0 {
            return;
        }
        let jobs = lock(&self.jobs);
        for (notifier, _) in positions.iter().filter_map(|position| jobs.get(position)) {
            notifier.notify_waiters();
        }
    }
}

/// Watches one job until it is dropped.
#[derive(Debug)]
pub struct JobWatch {
    notifier: Arc<Notify>,
    notifiers: Arc<Notifiers>,
    position: JobPosition,
}

impl JobWatch {
    /// Notified at the job's next change. A watch that is made before the job is read misses no change.
    pub fn notifier(&self) -> Arc<Notify> {
        Arc::clone(&self.notifier)
    }
}

impl Drop for JobWatch {
    fn drop(&mut self) {
        let mut jobs = lock(&self.notifiers.jobs);
        if let Some((_, watchers)) = jobs.get_mut(&self.position) {
            *watchers -= 1;
            if *watchers == 0 {
                jobs.remove(&self.position);
            }
        }
        self.notifiers.watchers.fetch_sub(1, Ordering::SeqCst);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
