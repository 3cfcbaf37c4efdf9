//! The writer: collects operations into batches, runs each batch as one database transaction, and answers.
//!
//! A batch costs a fixed small number of round trips, however many operations it has: one that writes and
//! commits, and before it one that fetches missing rows, unless the last batch left them in memory
//! (`row_cache`). The commit validates what was read without locks. After a conflict the writer locks what
//! it reads, for some batches. Operations that arrive during a commit form the next batch, so batches grow
//! with the load and with the distance to the database. Under load the next batch is decided and sent before
//! the last one is committed (`in_flight`).
//!
//! Always: nothing is answered before the outcome of its commit is known. When the connection is lost around
//! a commit, the server's own row in the database tells the outcome. Asking raises the row's epoch, which
//! stops a commit that is still on its way.

mod attempt;
mod decider;
mod in_flight;
mod lock_mode;
mod reconnect;
pub mod task;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_store::{Error, Operation};
use baton_types::Timestamp;
use tokio::sync::mpsc::Receiver;

use self::in_flight::InFlightCommit;
use self::lock_mode::LockMode;
use crate::client::connection::{PgConnection, param, read_timestamp, statement};
use crate::client::error::DatabaseError;
use crate::context::{OUTAGE_MAX, RETRY_AFTER, StoreContext};
use crate::fetch::{self, FetchError};
use crate::state::catalog::Catalog;
use crate::state::dedup::DedupIndex;
use crate::state::hybrid_clock::HybridClock;
use crate::state::missing_rows::MissingRows;
use crate::state::row_cache::RowCache;
use crate::tx::PartitionNames;

/// Operations in one batch: enough to share a commit, few enough to decide quickly.
const BATCH_OPERATIONS_MAX: usize = 2_048;
/// Commits in flight at most: one in the database, one on its way there.
const IN_FLIGHT_MAX: usize = 2;
/// The next batch is pipelined once half of the concurrent callers are queued. While it commits, the other
/// half gets answers and calls again. Smaller batches would only cost more.
const PIPELINE_SHARE: usize = 2;
/// With fewer concurrent callers than this, no batch is pipelined.
const PIPELINE_CALLERS_MIN: usize = 3;
/// Attempts per batch when other servers cause conflicts.
const TRIES_MAX: u32 = 30;
/// How long a batch is retried before its callers get `Busy`: longer than a lost server holds its locks, and
/// longer than a statement without an answer takes to time out.
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);
/// After a conflict, so many batches that read records take the lock on the records at once. While several
/// servers write records all the time, most optimistic attempts would fail.
const RECORD_LOCK_BATCHES: u32 = if cfg!(test) { 1 } else { 16 };
/// Registers a server row for a writer.
const INSERT_SERVER: &str = "INSERT INTO servers (moment) VALUES ($1) RETURNING id, commits_made, epoch";
const LATEST_MOMENT: &str = "SELECT coalesce(max(moment), 0) FROM servers";

/// What arrives in the intake of a writer.
pub enum WriterInput {
    Operation(Box<dyn Operation>),
    Close,
}

/// A writer: one connection and the batches that commit over it.
pub struct Writer {
    shared: Arc<StoreContext>,
    connection: Option<PgConnection>,
    clock: HybridClock,
    /// The last time that the database gave, and a stopwatch since then.
    database_time: (Timestamp, Stopwatch),
    catalog: Option<(i64, Catalog)>,
    partition_names: PartitionNames,
    partition_names_len: usize,
    dedup_index: DedupIndex,
    ids: Vec<u64>,
    server: i64,
    epoch: i64,
    commits: i64,
    /// The number of commits of all servers when the cached rows were read, and this writer's own since.
    all_commits: i64,
    /// Whether the current batch has begun its transaction. It begins with the first lock or with the commit;
    /// reads without locks need none.
    has_begun_transaction: bool,
    /// Whether the current batch reads records, as far as earlier attempts showed.
    touches_records: bool,
    /// Whether the current batch changes the catalog or depends on it beyond reading, as far as earlier
    /// attempts showed.
    touches_catalog: bool,
    /// The partitions that earlier attempts had to lock. The next attempt locks all of them at once, in lock
    /// order.
    partitions_to_lock: MissingRows,
    /// How many more batches take the lock on the records at once.
    record_contention: u32,
    /// Whether partitions are read with locks.
    lock_mode: LockMode,
    /// Whether cached rows are used that any commit of another server may outdate: ready indexes, and records
    /// that are not validated first. PostgreSQL logs the conflict when such a commit fails.
    shared_row_mode: LockMode,
    /// Rows that the next batch need not fetch.
    row_cache: RowCache,
    /// The commits that were sent and not confirmed yet.
    in_flight: VecDeque<InFlightCommit>,
    /// Whether the next batch has to wait until no commit is in flight.
    must_drain: bool,
    /// How many callers there were when the last commit ended.
    concurrent_callers: usize,
}

/// Why an attempt to run a batch failed, sorted by what follows.
enum AttemptError {
    /// Another server interfered: retry.
    Retry,
    /// Another server changed a partition of the read set: retry with locks.
    Conflict,
    /// Other servers hold locks on partitions that come earlier in lock order than some that this batch has
    /// locked: retry and lock all of them in order.
    LockOrder,
    /// The database resolved a deadlock: retry.
    Deadlock(String),
    /// The row cache is out of date: retry without it.
    StaleCache,
    /// The connection was lost before the commit was sent: reconnect and retry.
    ConnectionLost(String),
    /// The connection was lost while commits were in flight.
    OutcomeUnknown(String),
    /// A retry cannot help.
    Failed(Error),
}

impl From<DatabaseError> for AttemptError {
    fn from(failure: DatabaseError) -> Self {
        match failure {
            contended if contended.is_version_conflict() => Self::Conflict,
            deadlock if deadlock.is_deadlock() => Self::Deadlock(deadlock.to_string()),
            passing if passing.is_retryable() => Self::Retry,
            DatabaseError::ConnectionLost(reason) => Self::ConnectionLost(reason),
            // A timeout, a full disk, too little memory: the caller may retry later.
            refused => {
                tracing::warn!(error = %refused, "PostgreSQL refused a statement");
                Self::Failed(Error::Busy(RETRY_AFTER))
            }
        }
    }
}

impl From<FetchError> for AttemptError {
    fn from(trouble: FetchError) -> Self {
        match trouble {
            FetchError::Database(failure) => failure.into(),
            FetchError::Corrupt(error) => Self::Failed(error),
            FetchError::Locked => Self::LockOrder,
        }
    }
}

impl Writer {
    /// Connects and registers a server row.
    pub async fn open(shared: Arc<StoreContext>) -> Result<Self, DatabaseError> {
        let connection = PgConnection::connect(&shared.address, &shared.schema).await?;
        let rows = connection
            .run(vec![statement(LATEST_MOMENT, Vec::new()), statement(fetch::VERSIONS, Vec::new())])
            .await?;
        let (latest, at) = (read_timestamp(&rows[0][0], 0), read_timestamp(&rows[1][0], 0));
        let rows = connection.run(vec![statement(INSERT_SERVER, vec![param(latest.micros())])]).await?;
        let row = &rows[0][0];
        let (server, commits, epoch) = (row.get(0), row.get(1), row.get(2));
        let writer = Self {
            clock: HybridClock::new(latest),
            database_time: (at, Stopwatch::start()),
            connection: Some(connection),
            catalog: None,
            partition_names: PartitionNames::default(),
            partition_names_len: 0,
            dedup_index: DedupIndex::default(),
            ids: Vec::new(),
            server,
            epoch,
            commits,
            all_commits: 0,
            has_begun_transaction: false,
            touches_records: false,
            touches_catalog: false,
            partitions_to_lock: MissingRows::default(),
            record_contention: 0,
            lock_mode: LockMode::default(),
            shared_row_mode: LockMode::default(),
            row_cache: RowCache::default(),
            in_flight: VecDeque::new(),
            must_drain: false,
            concurrent_callers: 0,
            shared,
        };
        writer.publish_time();
        Ok(writer)
    }

    /// Runs until the intake is closed and every operation is finished.
    pub async fn run(mut self, mut intake: Receiver<WriterInput>) {
        let mut waiting = VecDeque::new();
        while !(waiting.is_empty() && self.in_flight.is_empty() && intake.is_closed() && intake.is_empty()) {
            fill_batch(&mut waiting, &mut intake);
            if !self.in_flight.is_empty() {
                self.pipeline_or_wait(&mut waiting, &mut intake).await;
            } else if !waiting.is_empty() {
                self.run_batch(&mut waiting, &mut intake, None).await;
            } else if let Some(input) = self.next_input(&mut intake).await {
                input.enqueue(&mut waiting, &mut intake);
            }
        }
    }

    /// While a commit is in flight: pipelines the next batch, or waits for the commit or for more operations.
    async fn pipeline_or_wait(
        &mut self,
        waiting: &mut VecDeque<Box<dyn Operation>>,
        intake: &mut Receiver<WriterInput>,
    ) {
        let is_next = self.in_flight.len() < IN_FLIGHT_MAX && !self.must_drain;
        let is_enough = self.concurrent_callers >= PIPELINE_CALLERS_MIN
            && waiting.len() >= self.concurrent_callers.div_ceil(PIPELINE_SHARE);
        if is_next && is_enough {
            match self.pipeline_next(waiting).await {
                Ok(followed) => self.must_drain = !followed,
                Err(error) => self.run_batch(waiting, intake, Some(error)).await,
            }
            return;
        }
        let has_room = waiting.len() < BATCH_OPERATIONS_MAX;
        let result = tokio::select! {
            biased;
            result = self.await_commit() => result,
            Some(input) = intake.recv(), if has_room => return input.enqueue(waiting, intake),
        };
        self.must_drain = false;
        if let Err(error) = self.finish_commit(result, waiting).await {
            self.run_batch(waiting, intake, Some(error)).await;
        }
    }

    /// Runs a batch until its commit is sent or its answers are given; retries as needed. Operations beyond
    /// the batch stay in `waiting`. No commit is in flight before, except those of unknown outcome.
    async fn run_batch(
        &mut self,
        waiting: &mut VecDeque<Box<dyn Operation>>,
        intake: &mut Receiver<WriterInput>,
        mut error: Option<AttemptError>,
    ) {
        let watch = Stopwatch::start();
        let mut tries = 0;
        self.touches_records &= error.is_some();
        self.touches_catalog &= error.is_some();
        self.partitions_to_lock = MissingRows::default();
        loop {
            if let Some(error) = error {
                // Each retry for lock order knows more partitions than the one before, so their number is
                // bounded.
                let is_blocked = matches!(error, AttemptError::LockOrder);
                match error {
                    AttemptError::StaleCache => {}
                    AttemptError::LockOrder => tries = tries.max(1),
                    _ => tries += 1,
                }
                let is_patient = (is_blocked || tries < TRIES_MAX) && watch.elapsed() < RETRY_TIMEOUT;
                if !self.recover_from(error, tries, is_patient, waiting, intake).await {
                    return;
                }
            }
            if self.connection.as_ref().is_none_or(PgConnection::is_closed)
                && !self.connect(watch, OUTAGE_MAX, intake).await
            {
                return finish_busy(waiting);
            }
            match self.attempt_batch(waiting, tries).await {
                Ok(()) => return,
                Err(trouble) => error = Some(trouble),
            }
        }
    }

    /// Recovers from a failed attempt. Returns whether to retry.
    async fn recover_from(
        &mut self,
        error: AttemptError,
        tries: u32,
        is_patient: bool,
        waiting: &mut VecDeque<Box<dyn Operation>>,
        intake: &mut Receiver<WriterInput>,
    ) -> bool {
        if !matches!(error, AttemptError::StaleCache) {
            self.shared.count_repeat(matches!(error, AttemptError::Deadlock(_)));
        }
        let error = match error {
            AttemptError::Deadlock(reason) => {
                tracing::warn!(
                    reason,
                    "PostgreSQL resolved a deadlock between servers; the batch is retried"
                );
                AttemptError::Retry
            }
            error => error,
        };
        if matches!(error, AttemptError::Retry | AttemptError::LockOrder | AttemptError::Conflict) {
            tracing::debug!(
                tries,
                calls = waiting.len(),
                "another server was in the way; the batch is retried"
            );
        }
        match error {
            AttemptError::StaleCache => {}
            AttemptError::LockOrder if is_patient => {}
            AttemptError::Retry if is_patient => {
                self.shared_row_mode.on_conflict();
                if self.touches_records {
                    self.record_contention = RECORD_LOCK_BATCHES;
                }
                let spread = u64::from(tries.min(8)) * 1_000;
                let pause = Duration::from_micros(baton_env::random_u64() % spread);
                baton_env::sleep(pause).await;
                if tries.is_multiple_of(5) {
                    self.connection = None;
                }
            }
            AttemptError::Conflict if is_patient => self.lock_mode.on_conflict(),
            AttemptError::ConnectionLost(reason) if is_patient => {
                tracing::warn!(reason, "the connection to PostgreSQL was lost");
                self.connection = None;
            }
            AttemptError::OutcomeUnknown(reason) => {
                tracing::warn!(reason, "the connection to PostgreSQL was lost around a commit");
                self.resolve_unknown_commits(waiting, intake).await;
                return false;
            }
            AttemptError::Failed(error) => {
                for operation in waiting.drain(..) {
                    operation.finish(Err(error.clone()));
                }
                return false;
            }
            _ => {
                tracing::warn!(
                    tries,
                    calls = waiting.len(),
                    "a batch was given up after too many attempts; its callers get a busy error"
                );
                finish_busy(waiting);
                return false;
            }
        }
        true
    }

    fn publish_time(&self) {
        self.shared.advance_now(self.clock.last(), self.database_time);
    }
}

impl WriterInput {
    fn enqueue(self, waiting: &mut VecDeque<Box<dyn Operation>>, intake: &mut Receiver<WriterInput>) {
        match self {
            Self::Operation(operation) => waiting.push_back(operation),
            Self::Close => intake.close(),
        }
    }
}

/// Moves arrived operations into the next batch.
fn fill_batch(waiting: &mut VecDeque<Box<dyn Operation>>, intake: &mut Receiver<WriterInput>) {
    while waiting.len() < BATCH_OPERATIONS_MAX
        && let Ok(input) = intake.try_recv()
    {
        input.enqueue(waiting, intake);
    }
}

fn finish_busy(waiting: &mut VecDeque<Box<dyn Operation>>) {
    for operation in waiting.drain(..) {
        operation.finish(Err(Error::Busy(RETRY_AFTER)));
    }
}
