//! The supervisor: after a failure it replaces the instance by a new one.
//!
//! A failed instance is not trusted. After a failed write or fsync, memory is ahead of the log. After an I/O error in the
//! engine's background work, the engine accepts no more writes. So the instance ends, and the directory is opened again as
//! after a crash: the log decides, a commit that was never finished is cut off, the end of the log is written again for
//! its next fsync, and the index gets what it lost. Always: nothing that was answered is lost; while there is no instance
//! every operation is refused and changes nothing. Only damage ends the store for good. Not here: how a directory is
//! opened (`instance`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use baton_store::Error;

use super::instance::{Instance, spawn_thread};
use crate::context::StoreContext;
use crate::options::RETRY_AFTER;
use crate::store_clock::StoreClock;

/// The first wait before the directory is opened again.
const WAIT_MIN: Duration = Duration::from_millis(50);
/// The longest wait, for a disk that fails again and again: each start may apply 32 MiB of rows to the index.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The longest wait for a full disk.
const FULL_WAIT_MAX: Duration = Duration::from_secs(1);
/// A failing disk may look like damage. After this many attempts in a row, about a minute, it is damage.
const DAMAGED_MAX: u32 = 10;
/// After an instance has worked for this long, the next wait is short again.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// Keeps one instance of the store running.
pub struct RecoverySupervisor {
    pub context: Arc<StoreContext>,
    instance: RwLock<Option<Arc<Instance>>>,
    /// Why there is no instance at the moment.
    outage: Mutex<Option<Outage>>,
    /// Why the store has stopped for good.
    failure: OnceLock<String>,
    closing: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone)]
struct Outage {
    reason: String,
    /// The answer to operations meanwhile.
    refusal: Error,
}

impl RecoverySupervisor {
    /// Opens the first instance, and starts the thread that watches it.
    pub fn start(context: Arc<StoreContext>) -> Result<Arc<Self>, Error> {
        let instance = Instance::open(&context, None)?;
        let recovery = Arc::new(Self {
            context,
            instance: RwLock::new(Some(Arc::new(instance))),
            outage: Mutex::default(),
            failure: OnceLock::new(),
            closing: AtomicBool::new(false),
            thread: Mutex::default(),
        });
        let watching = recovery.clone();
        let thread = spawn_thread("baton-recover", move || watching.watch_instance())?;
        recovery.context.set_recovery_thread(thread.thread().clone());
        // An instance may have failed before the context knew the thread.
        thread.thread().unpark();
        *recovery.lock_thread() = Some(thread);
        Ok(recovery)
    }

    /// The instance, or the answer to operations while there is none.
    pub fn instance(&self) -> Result<Arc<Instance>, Error> {
        let instance = self.instance.read().unwrap_or_else(PoisonError::into_inner).clone();
        instance.ok_or_else(|| match self.failure() {
            Some(reason) => Error::Closed(reason),
            None => self.lock_outage().clone().map_or(Error::Busy(RETRY_AFTER), |outage| outage.refusal),
        })
    }

    /// Why the store has stopped for good, if it has.
    pub fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }

    /// Why there is no instance at the moment.
    pub fn outage(&self) -> Option<String> {
        self.lock_outage().as_ref().map(|outage| outage.reason.clone())
    }

    /// Closes the store, after it has finished what is in the intake.
    pub fn close(&self) -> Result<(), Error> {
        self.closing.store(true, Ordering::Release);
        let thread = self.lock_thread().take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the thread that recovers the store has panicked");
            }
        }
        self.instance()?.close()
    }

    fn watch_instance(&self) {
        let (mut wait, machine) = (WAIT_MIN, &self.context.options.clock);
        let mut since = machine.elapsed();
        while !self.closing.load(Ordering::Acquire) {
            let failed = self.instance().ok().and_then(|instance| instance.shared.failure());
            let Some(error) = failed else {
                std::thread::park();
                continue;
            };
            if machine.elapsed().saturating_sub(since) >= STABLE_AFTER {
                wait = WAIT_MIN;
            }
            let longest = if matches!(error, Error::DiskFull { .. }) { FULL_WAIT_MAX } else { WAIT_MAX };
            let clock = self.end_failed(&error);
            if !self.reopen(clock.as_ref(), &mut wait, longest) {
                return;
            }
            since = machine.elapsed();
        }
    }

    /// Ends the failed instance. Returns its clock, which the next instance goes on with.
    fn end_failed(&self, error: &Error) -> Option<Arc<StoreClock>> {
        let refusal = match error {
            Error::DiskFull { .. } => error.clone(),
            _ => Error::Busy(RETRY_AFTER),
        };
        *self.lock_outage() = Some(Outage { reason: error.to_string(), refusal });
        let failed = self.instance.write().unwrap_or_else(PoisonError::into_inner).take()?;
        let clock = failed.shared.clock.clone();
        // Its failure is known.
        let _ = failed.close();
        Some(clock)
    }

    /// Opens the directory again and again, until it succeeds. `false` if the store closes or has stopped for good.
    fn reopen(&self, clock: Option<&Arc<StoreClock>>, wait: &mut Duration, longest: Duration) -> bool {
        let mut damaged = 0;
        loop {
            *wait = longest.min(*wait);
            std::thread::park_timeout(*wait);
            if self.closing.load(Ordering::Acquire) {
                return false;
            }
            *wait *= 2;
            // The engine may panic on what a failing disk returns.
            let opened = catch_unwind(AssertUnwindSafe(|| Instance::open(&self.context, clock.cloned())));
            match opened.unwrap_or_else(|_| Err(Error::Unusable("opening it has panicked".into()))) {
                Ok(instance) => {
                    *self.instance.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(instance));
                    *self.lock_outage() = None;
                    // Events may have been lost with the failed instance.
                    self.context.bump_catalog_version();
                    tracing::warn!("the store has recovered");
                    return true;
                }
                Err(error @ Error::Corrupt(_)) if damaged == DAMAGED_MAX => {
                    tracing::error!(%error, "the store has stopped");
                    let _ = self.failure.set(error.to_string());
                    return false;
                }
                Err(error) => {
                    damaged = if matches!(error, Error::Corrupt(_)) { damaged + 1 } else { 0 };
                    tracing::error!(%error, "the store could not be opened again; the next try is in {wait:?}");
                }
            }
        }
    }

    fn lock_outage(&self) -> MutexGuard<'_, Option<Outage>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
