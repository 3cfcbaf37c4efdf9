//! Recovery: another instance takes over after one has failed.
//!
//! What a failure leaves is not trusted. After a write or a sync that failed, memory is ahead of the log; after an I/O error
//! in the engine's background work, the engine takes no more writes. So the instance ends, and the directory is opened again as
//! after a crash: the log is the truth, what was never finished is cut off, the end of the log is written again for its
//! next sync, and the engine is told again what it lost. Always: nothing that was answered is lost; while there is no
//! instance every operation is refused and changes nothing. Only damage ends the store for good. Not here: how a directory
//! is opened (`instance`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use baton_store::Error;

use crate::context::Context;
use crate::instance::{Instance, start};
use crate::store::BUSY_FOR;
use crate::store_clock::StoreClock;

/// The first wait before the directory is opened again,
const WAIT_MIN: Duration = Duration::from_millis(50);
/// and the longest, for a disk that fails again and again: each time the engine is told of up to 32 MiB of rows.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// or for a disk that is full.
const FULL_WAIT_MAX: Duration = Duration::from_secs(1);
/// What looks like damage may be what a failing disk shows; after so many tries in a row, about a minute, it is damage.
const DAMAGED_MAX: u32 = 10;
/// An instance that has worked for so long was a success; the next wait is short again.
const STABLE_AFTER: Duration = Duration::from_secs(60);

pub struct Recovery {
    pub context: Arc<Context>,
    instance: RwLock<Option<Arc<Instance>>>,
    /// Why there is no instance, and what operations are answered meanwhile.
    away: Mutex<Option<Away>>,
    /// Why there never will be one again.
    failure: OnceLock<String>,
    closing: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone)]
struct Away {
    reason: String,
    refusal: Error,
}

impl Recovery {
    /// Opens the first instance, and begins to watch it.
    pub fn begin(context: Arc<Context>) -> Result<Arc<Self>, Error> {
        let instance = Instance::open(&context, None)?;
        let recovery = Arc::new(Self {
            context,
            instance: RwLock::new(Some(Arc::new(instance))),
            away: Mutex::default(),
            failure: OnceLock::new(),
            closing: AtomicBool::new(false),
            thread: Mutex::default(),
        });
        let watching = recovery.clone();
        let thread = start("baton-recover", move || watching.watch())?;
        recovery.context.set_recovery(thread.thread().clone());
        // For a failure before the thread was known.
        thread.thread().unpark();
        *recovery.thread() = Some(thread);
        Ok(recovery)
    }

    /// The instance, or what is answered while there is none.
    pub fn instance(&self) -> Result<Arc<Instance>, Error> {
        let instance = self.instance.read().unwrap_or_else(PoisonError::into_inner).clone();
        instance.ok_or_else(|| match self.failure() {
            Some(reason) => Error::Closed(reason),
            None => self.away_state().clone().map_or(Error::Busy(BUSY_FOR), |away| away.refusal),
        })
    }

    /// Why the store has stopped for good, once it has.
    pub fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }

    /// Why there is no instance just now.
    pub fn away(&self) -> Option<String> {
        self.away_state().as_ref().map(|away| away.reason.clone())
    }

    /// Ends the store: finishes what was taken in.
    pub fn close(&self) -> Result<(), Error> {
        self.closing.store(true, Ordering::Release);
        let thread = self.thread().take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the thread that recovers the store has panicked");
            }
        }
        self.instance()?.end()
    }

    fn watch(&self) {
        let (mut wait, clock) = (WAIT_MIN, &self.context.options.clock);
        let mut since = clock.elapsed();
        while !self.closing.load(Ordering::Acquire) {
            let failed = self.instance().ok().and_then(|instance| instance.shared.failure());
            let Some(error) = failed else {
                std::thread::park();
                continue;
            };
            if clock.elapsed().saturating_sub(since) >= STABLE_AFTER {
                wait = WAIT_MIN;
            }
            let longest = if matches!(error, Error::DiskFull { .. }) { FULL_WAIT_MAX } else { WAIT_MAX };
            let time = self.end_failed(&error);
            if !self.open_again(time.as_ref(), &mut wait, longest) {
                return;
            }
            since = clock.elapsed();
        }
    }

    /// Takes the failed instance away; the store's time goes on.
    fn end_failed(&self, error: &Error) -> Option<Arc<StoreClock>> {
        let refusal = match error {
            Error::DiskFull { .. } => error.clone(),
            _ => Error::Busy(BUSY_FOR),
        };
        *self.away_state() = Some(Away { reason: error.to_string(), refusal });
        let failed = self.instance.write().unwrap_or_else(PoisonError::into_inner).take()?;
        let time = failed.shared.time.clone();
        // Its failure is known.
        let _ = failed.end();
        Some(time)
    }

    /// Opens the directory, however often that takes; `false` when the store closes or cannot be opened any more.
    fn open_again(&self, time: Option<&Arc<StoreClock>>, wait: &mut Duration, longest: Duration) -> bool {
        let mut damaged = 0;
        loop {
            *wait = longest.min(*wait);
            std::thread::park_timeout(*wait);
            if self.closing.load(Ordering::Acquire) {
                return false;
            }
            *wait *= 2;
            // The engine may panic at what a failing disk shows it.
            let opened = catch_unwind(AssertUnwindSafe(|| Instance::open(&self.context, time.cloned())));
            match opened.unwrap_or_else(|_| Err(Error::Unusable("opening it has panicked".into()))) {
                Ok(instance) => {
                    *self.instance.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(instance));
                    *self.away_state() = None;
                    // Events may have been lost with the failed instance.
                    self.context.change_structure();
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

    fn away_state(&self) -> MutexGuard<'_, Option<Away>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
