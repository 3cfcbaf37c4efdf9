//! The lanes: writers side by side, each with a connection and groups of its own.
//!
//! Operations on the same queue have the same home, and a home is in one lane at a time, so lanes seldom meet at a row;
//! where they do, it is as between two servers. (Homes of partitions instead of queues were tried: a pop that takes
//! any partition meets every lane, and two lanes were slower than one.) How many are used follows how long callers
//! wait (`concurrency`). A lane is opened when it is first used. What has no home is in the first lane.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_store::{Error, Operation, Tx, TxError};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinHandle;

use crate::client::error::DatabaseError;
use crate::context::{RETRY_AFTER, StoreContext, WRITERS_MAX};
use crate::writer::concurrency::{ConcurrencyController, WINDOW, WindowStats};
use crate::writer::{Writer, WriterInput};

/// Operations that may wait for their group in one lane.
const INTAKE_MAX: usize = 16_384;

/// See the module.
pub struct WriterPool {
    shared: Arc<StoreContext>,
    writers: [OnceLock<WriterHandle>; WRITERS_MAX],
    used: AtomicUsize,
    waits: Arc<WaitTimes>,
}

struct WriterHandle {
    intake: mpsc::Sender<WriterInput>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// How many operations with a home were answered, and how long all of them together had waited.
#[derive(Default)]
struct WaitTimes {
    answers: AtomicU64,
    micros: AtomicU64,
    /// The homes that they had, a bit for each or several.
    shards: AtomicU64,
}

impl WriterPool {
    /// Opens the first lane.
    pub async fn open(shared: Arc<StoreContext>) -> Result<Self, DatabaseError> {
        let (lanes, waits) = (Default::default(), Arc::default());
        let lanes = Self { shared, writers: lanes, used: AtomicUsize::new(1), waits };
        lanes.open_writers(1).await?;
        Ok(lanes)
    }

    async fn open_writers(&self, count: usize) -> Result<(), DatabaseError> {
        for (number, lane) in self.writers.iter().enumerate().take(count) {
            if lane.get().is_some() {
                continue;
            }
            let writer = Writer::open(self.shared.clone(), number).await?;
            let (intake, received) = mpsc::channel(INTAKE_MAX);
            let writing = Mutex::new(Some(tokio::spawn(writer.run(received))));
            // Only one task opens lanes.
            let _ = lane.set(WriterHandle { intake, task: writing });
        }
        Ok(())
    }

    /// Takes in an operation.
    pub fn submit(&self, operation: Box<dyn Operation>) {
        let home = operation.home();
        let used = self.used.load(Ordering::Acquire) as u64;
        let number = home.map_or(0, |home| (home % used) as usize);
        let lane = self.writers[number].get().filter(|_| !self.shared.is_refusing(number));
        let Some(lane) = lane else { return operation.finish(Err(Error::Busy(RETRY_AFTER))) };
        let operation: Box<dyn Operation> = match home {
            Some(home) => {
                self.waits.shards.fetch_or(1 << (home % u64::from(u64::BITS)), Ordering::Relaxed);
                Box::new(TimedOperation { operation, watch: Stopwatch::start(), waits: self.waits.clone() })
            }
            None => operation,
        };
        match lane.intake.try_send(WriterInput::Operation(operation)) {
            Err(TrySendError::Full(WriterInput::Operation(operation))) => {
                operation.finish(Err(Error::Busy(RETRY_AFTER)))
            }
            Err(TrySendError::Closed(WriterInput::Operation(operation))) => {
                operation.finish(Err(Error::Closed("it was closed".into())))
            }
            _ => {}
        }
    }

    /// Keeps the number of used lanes right, until its task is ended.
    pub async fn adapt_size(self: Arc<Self>) {
        let mut pace = ConcurrencyController::new(WRITERS_MAX);
        loop {
            baton_env::sleep(WINDOW).await;
            let mut missing = pace.writers_for_next_window(self.waits.take_window());
            let opened = self.open_writers(missing).await;
            if opened.is_err() || self.shared.has_outage() {
                pace = ConcurrencyController::new(WRITERS_MAX);
                missing = 1;
            }
            self.used.store(missing, Ordering::Release);
        }
    }

    /// Finishes what was taken in.
    pub async fn close(&self) -> Result<(), Error> {
        for lane in self.writers.iter().filter_map(OnceLock::get) {
            // An error means that it has ended already.
            let _ = lane.intake.send(WriterInput::Close).await;
        }
        for lane in self.writers.iter().filter_map(OnceLock::get) {
            let writing = lane.task.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(writing) = writing {
                writing.await.map_err(|e| Error::Closed(e.to_string()))?;
            }
        }
        Ok(())
    }

    pub fn abort(&self) {
        for lane in self.writers.iter().filter_map(OnceLock::get) {
            if let Some(writing) = lane.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
                writing.abort();
            }
        }
    }
}

impl WaitTimes {
    fn take_window(&self) -> WindowStats {
        let answers = self.answers.swap(0, Ordering::Relaxed);
        let waited = Duration::from_micros(self.micros.swap(0, Ordering::Relaxed));
        WindowStats {
            answers,
            total_wait: waited,
            shards: self.shards.swap(0, Ordering::Relaxed).count_ones() as usize,
        }
    }
}

/// An operation that tells how long its caller waited.
struct TimedOperation {
    operation: Box<dyn Operation>,
    watch: Stopwatch,
    waits: Arc<WaitTimes>,
}

impl Operation for TimedOperation {
    fn apply(&mut self, tx: &mut dyn Tx) -> Result<(), TxError> {
        self.operation.apply(tx)
    }

    fn finish(self: Box<Self>, outcome: Result<(), Error>) {
        let micros = u64::try_from(self.watch.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.waits.answers.fetch_add(1, Ordering::Relaxed);
        self.waits.micros.fetch_add(micros, Ordering::Relaxed);
        self.operation.finish(outcome);
    }
}
