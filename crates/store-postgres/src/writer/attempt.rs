//! One attempt at a batch: decides it, validates or locks its read set, and sends its commit or answers
//! without one.

use std::collections::VecDeque;

use baton_env::Stopwatch;
use baton_store::{Error, Operation};
use baton_types::{PartitionId, Timestamp};

use super::in_flight::CommittedChanges;
use super::{AttemptError, Writer};
use crate::client::connection::{PgConnection, param, statement, to_bigint};
use crate::commit::{CommitPlan, read_versions};
use crate::context::RETRY_AFTER;
use crate::fetch::{self, FetchOptions, ROLLBACK, Versions};
use crate::state::batch::BatchState;
use crate::state::catalog::Catalog;
use crate::state::row_cache::{self, RowCache};
use crate::writer::decider::Decider;

/// Rows that a batch fetches, roughly, before it continues with only those decisions that miss none. The
/// number of rounds has no other limit: each brings rows that were missing.
const BATCH_ROWS_MAX: usize = 1_000_000;

/// A decided batch: its writes, the outcome of each operation, and what it relies on.
pub struct DecidedBatch {
    pub batch: BatchState,
    pub outcomes: Vec<Result<(), Error>>,
    pub catalog_version: i64,
    /// Whether it read without locks, so that its read set must be validated.
    pub is_optimistic: bool,
    freshness: Freshness,
}

/// How old the rows are that the decisions read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Freshness {
    /// One snapshot during this batch.
    Current,
    /// The last batch's rows, a moment old.
    LastBatch,
    /// Older rows. A commit would fail too often, so they are validated first.
    Outdated,
}

impl Writer {
    /// Decides the batch and sends its commit, or answers it if it has no writes.
    pub(super) async fn attempt_batch(
        &mut self,
        waiting: &mut VecDeque<Box<dyn Operation>>,
        tries: u32,
    ) -> Result<(), AttemptError> {
        let mut decided = match self.decide_batch(waiting, tries).await {
            Ok(decided) => decided,
            Err(error) => {
                if !matches!(error, AttemptError::ConnectionLost(_)) {
                    self.roll_back().await;
                }
                return Err(error);
            }
        };
        let Some(connection) = &self.connection else { return Err(AttemptError::Retry) };
        let count = decided.outcomes.len();
        let writes = decided.batch.writes.summary.is_any;
        if decided.freshness == Freshness::Outdated || (decided.freshness == Freshness::LastBatch && !writes)
        {
            match ReadSet::collect(&decided, self.all_commits).validate(connection).await {
                Ok(database_time) => self.database_time = database_time,
                Err(error) => {
                    self.catalog = unchanged_catalog(decided.batch, decided.catalog_version);
                    self.roll_back().await;
                    return Err(error);
                }
            }
        }
        if !writes {
            let answered: Vec<_> =
                waiting.drain(..count).zip(std::mem::take(&mut decided.outcomes)).collect();
            self.shared.count_batch(count, 0, false);
            self.apply_committed(CommittedChanges::from_batch(&mut decided.batch, None));
            self.fill_row_cache(decided, None);
            self.publish_time();
            // Locks go before the answers: a caller may ask another server next, which skips locked rows.
            self.roll_back().await;
            answered.into_iter().for_each(|(operation, outcome)| operation.finish(outcome));
            return Ok(());
        }
        let plan = self.plan_commit(&mut decided);
        self.send_commit(decided, plan, waiting).await?;
        if tries > 0 {
            let result = self.await_commit().await;
            self.finish_commit(result, waiting).await?;
        }
        Ok(())
    }

    /// Runs the decisions and fetches rows in rounds, until no decision misses a row.
    async fn decide_batch(
        &mut self,
        waiting: &mut VecDeque<Box<dyn Operation>>,
        tries: u32,
    ) -> Result<DecidedBatch, AttemptError> {
        self.has_begun_transaction = false;
        let mut cache = std::mem::take(&mut self.row_cache);
        let is_optimistic = tries == 0 && self.lock_mode.begin_batch();
        let Some(connection) = &self.connection else { return Err(AttemptError::Retry) };
        let (mut catalog_version, catalog) = match self.catalog.take() {
            Some(known) => known,
            None => fetch::fetch_catalog(connection).await?,
        };
        let is_fresh = is_optimistic && self.database_time.1.elapsed() < row_cache::CACHED_FOR;
        if !is_fresh {
            cache.forget_partitions();
        }
        if !is_optimistic || self.record_contention > 0 {
            cache.forget_records();
        }
        let is_shared = !self.shared_row_mode.begin_batch();
        if is_shared {
            cache.forget_ready_indexes();
        }
        let is_stale = !is_fresh && cache.has_records();
        self.clock.observe(catalog.latest_time());
        self.clock.observe_number(catalog_version);
        self.clock.observe(self.shared.last_decision_time());
        let mut batch = BatchState::new(self.clock, catalog, std::mem::take(&mut self.ids));
        batch.start_time = self.shared.current_time(self.database_time);
        let mut decider = Decider { names: &self.partition_names, shared: &self.shared };
        let mut outcomes = Vec::new();
        if is_fresh || is_stale {
            cache.move_into(&mut batch);
            if decider.run_until_miss(&mut batch, &mut self.dedup_index, waiting, &mut outcomes) {
                self.clock = batch.clock;
                self.touches_records |= batch.reads_records;
                let validates_first = is_stale || (is_shared && batch.reads_records);
                let freshness = if validates_first { Freshness::Outdated } else { Freshness::LastBatch };
                return Ok(DecidedBatch { batch, outcomes, catalog_version, is_optimistic, freshness });
            }
            decider.collect_missing_rows(
                &mut batch,
                &mut self.dedup_index,
                waiting.range_mut(outcomes.len()..),
            );
        } else {
            decider.collect_missing_rows(&mut batch, &mut self.dedup_index, waiting.iter_mut());
        }
        let (mut first, mut has_moved, mut rows) = (true, false, 0);
        let mut last_locked: Option<PartitionId> = None;
        loop {
            self.touches_records |= batch.reads_records;
            let lock_records = first && self.touches_records && (tries > 0 || self.record_contention > 0);
            self.record_contention = self.record_contention.saturating_sub(u32::from(lock_records));
            let lock_catalog = first && self.touches_catalog && tries > 0;
            let locked_versions = [lock_records.then_some("records"), lock_catalog.then_some("structure")];
            let locked_versions: Vec<_> = locked_versions.into_iter().flatten().collect();
            if !is_optimistic {
                if first {
                    batch.missing.add_partitions(&self.partitions_to_lock);
                }
                self.partitions_to_lock.add_partitions(&batch.missing);
            }
            rows += batch.missing.row_estimate();
            let skips_locked = last_locked.is_some_and(|last| !batch.missing.is_after_lock_on(last));
            let begins_transaction = !self.has_begun_transaction
                && (!locked_versions.is_empty()
                    || (!is_optimistic && batch.missing.has_partitions_to_lock()));
            self.has_begun_transaction |= begins_transaction;
            let locks_partitions = !is_optimistic;
            let locks_unseen = locks_partitions && !batch.missing.ready.is_empty();
            let options = FetchOptions {
                connection,
                begins_transaction,
                locks_partitions,
                skips_locked,
                locked_versions,
                commits: self.all_commits,
            };
            let fetched = fetch::fetch_rows(options, &mut batch, &mut self.dedup_index).await;
            let (before, after) = match fetched {
                Ok(versions) => versions,
                Err(error) => {
                    self.clock = batch.clock;
                    return Err(error.into());
                }
            };
            if locks_partitions {
                let here = batch.partitions.values().flatten().filter(|entry| entry.is_guarded);
                last_locked = here.map(|entry| entry.row.id).max().max(last_locked);
            }
            if locks_unseen {
                // A partition that was ready when the statement began and no longer is once it is locked
                // stays locked and is not returned. So from here on no lock can be waited for.
                last_locked = Some(PartitionId(u64::MAX));
            }
            batch.clock.observe_number(after.records.max(after.catalog));
            if before.commits != self.all_commits {
                if batch.reads_ready_index {
                    self.clock = batch.clock;
                    self.catalog = unchanged_catalog(batch, catalog_version);
                    return Err(AttemptError::StaleCache);
                }
                self.all_commits = before.commits;
            }
            if first {
                self.database_time = (before.database_time, Stopwatch::start());
                batch.start_time = self.shared.current_time(self.database_time).max(batch.start_time);
            }
            let was_first = std::mem::replace(&mut first, false);
            if after.catalog != catalog_version {
                if std::mem::replace(&mut has_moved, true) {
                    // Without the lock this could repeat for as long as others change the catalog.
                    self.clock = batch.clock;
                    self.touches_catalog = true;
                    return Err(AttemptError::Retry);
                }
                let (number, fresh) = fetch::fetch_catalog(connection).await?;
                batch.clock.observe(fresh.latest_time());
                let (clock, ids, base) = (batch.clock, std::mem::take(&mut batch.ids), batch.start_time);
                batch = BatchState::new(clock, fresh, ids);
                batch.start_time = base;
                batch.clock.observe_number(number);
                catalog_version = number;
                outcomes.clear();
                decider.collect_missing_rows(&mut batch, &mut self.dedup_index, waiting.iter_mut());
                continue;
            }
            if batch.has_conflict {
                self.clock = batch.clock;
                self.catalog = unchanged_catalog(batch, catalog_version);
                return Err(AttemptError::Conflict);
            }
            if batch.reads_records {
                let version = *batch.records_version.get_or_insert(before.records);
                if before.records != after.records || version != after.records {
                    self.clock = batch.clock;
                    self.catalog = unchanged_catalog(batch, catalog_version);
                    return Err(if is_stale { AttemptError::StaleCache } else { AttemptError::Retry });
                }
            }
            if !batch.missing.partitions.is_empty() {
                // Other servers hold everything that is ready: fetch with a wait for the first of it.
                continue;
            }
            let is_whole = decider.run_until_miss(&mut batch, &mut self.dedup_index, waiting, &mut outcomes);
            if !is_whole && rows > BATCH_ROWS_MAX && outcomes.is_empty() {
                tracing::error!(rows, "a decision asked for too many rows");
                outcomes.push(Err(Error::Busy(RETRY_AFTER)));
            }
            if is_whole || rows > BATCH_ROWS_MAX {
                self.clock = batch.clock;
                // The versions were read just now, and one statement reads partitions in one snapshot.
                let is_now = !is_optimistic || batch.read_partitions.is_empty() || (was_first && !is_fresh);
                let freshness = if is_now { Freshness::Current } else { Freshness::LastBatch };
                return Ok(DecidedBatch { batch, outcomes, catalog_version, is_optimistic, freshness });
            }
            decider.collect_missing_rows(
                &mut batch,
                &mut self.dedup_index,
                waiting.range_mut(outcomes.len()..),
            );
        }
    }

    /// Runs the first operations, as many as miss no row, on the state that the in-flight batch leaves.
    pub(super) fn decide_pipelined(
        &mut self,
        waiting: &mut VecDeque<Box<dyn Operation>>,
    ) -> Option<DecidedBatch> {
        let is_calm = self.lock_mode.is_optimistic() && self.record_contention == 0;
        if !is_calm || self.database_time.1.elapsed() >= row_cache::CACHED_FOR {
            return None;
        }
        let (catalog_version, catalog) = self.catalog.take()?;
        self.clock.observe(catalog.latest_time());
        self.clock.observe(self.shared.last_decision_time());
        let mut batch = BatchState::new(self.clock, catalog, std::mem::take(&mut self.ids));
        batch.start_time = self.shared.current_time(self.database_time);
        let mut cache = std::mem::take(&mut self.row_cache);
        if !self.shared_row_mode.is_optimistic() {
            cache.forget_ready_indexes();
            cache.forget_records();
        }
        cache.move_into(&mut batch);
        let mut decider = Decider { names: &self.partition_names, shared: &self.shared };
        let mut outcomes = Vec::new();
        decider.run_until_miss(&mut batch, &mut self.dedup_index, waiting, &mut outcomes);
        self.clock = batch.clock;
        self.touches_records |= batch.reads_records;
        let writes = batch.writes.summary.is_any;
        let decided = DecidedBatch {
            batch,
            outcomes,
            catalog_version,
            is_optimistic: true,
            freshness: Freshness::LastBatch,
        };
        if writes {
            return Some(decided);
        }
        self.fill_row_cache(decided, None);
        None
    }

    pub(super) async fn roll_back(&mut self) {
        if let Some(connection) = &self.connection
            && self.has_begun_transaction
            && connection.run(vec![statement(ROLLBACK, Vec::new())]).await.is_err()
        {
            self.connection = None;
        }
    }

    /// Keeps rows, catalog and clock for the next batch.
    pub(super) fn fill_row_cache(&mut self, decided: DecidedBatch, plan: Option<&CommitPlan>) {
        let DecidedBatch { mut batch, catalog_version, is_optimistic, .. } = decided;
        self.clock = batch.clock;
        self.ids = std::mem::take(&mut batch.ids);
        if is_optimistic {
            self.row_cache = RowCache::from_batch(&mut batch, plan.map(|plan| &plan.versions));
        }
        let number = plan.and_then(|plan| plan.catalog_version).unwrap_or(catalog_version);
        self.catalog = Some((number, batch.catalog));
    }
}

/// The catalog for the next attempt, unless this batch changed it. Changes by other servers are detected
/// there.
pub fn unchanged_catalog(batch: BatchState, number: i64) -> Option<(i64, Catalog)> {
    let changed = &batch.writes;
    (changed.queues.is_empty() && changed.groups.is_empty()).then_some((number, batch.catalog))
}

/// The read set of a batch that is validated without a commit.
struct ReadSet {
    catalog_version: i64,
    records_version: Option<i64>,
    all_commits: Option<i64>,
    is_outdated: bool,
    partitions: (Vec<i64>, Vec<i64>),
}

impl ReadSet {
    fn collect(decided: &DecidedBatch, all_commits: i64) -> Self {
        let batch = &decided.batch;
        let records = batch.records_version.filter(|_| batch.reads_records);
        let commits = batch.reads_ready_index.then_some(all_commits);
        let is_old = decided.freshness == Freshness::Outdated;
        let partitions = read_versions(batch, batch.read_partitions.iter());
        Self {
            catalog_version: decided.catalog_version,
            records_version: records,
            all_commits: commits,
            is_outdated: is_old,
            partitions,
        }
    }

    /// Validates that all of it is unchanged. Returns the database's time.
    async fn validate(self, connection: &PgConnection) -> Result<(Timestamp, Stopwatch), AttemptError> {
        let (ids, versions) = self.partitions;
        let count = to_bigint(ids.len() as u64);
        let mut statements = vec![statement(fetch::VERSIONS, Vec::new())];
        if count > 0 {
            statements.push(statement(fetch::COUNT_UNCHANGED, vec![param(ids), param(versions)]));
        }
        let rows = connection.run(statements).await?;
        let versions = Versions::read(&rows[0][0]);
        if self.all_commits.is_some_and(|commits| commits != versions.commits) {
            return Err(AttemptError::StaleCache);
        }
        if versions.catalog != self.catalog_version
            || self.records_version.is_some_and(|records| records != versions.records)
        {
            return Err(if self.is_outdated { AttemptError::StaleCache } else { AttemptError::Retry });
        }
        if rows.get(1).is_some_and(|rows| rows[0].get::<i64>(0) != count) {
            return Err(AttemptError::Conflict);
        }
        Ok((versions.database_time, Stopwatch::start()))
    }
}
