//! Fetches everything that the decisions of a batch miss, in one round trip.

mod decode;
mod statements;

use std::sync::Arc;

use baton_store::{DeadLetterKey, Error, Group, Queue, Segment};
use baton_types::{GroupId, LeaseId, Offset, PartitionId, QueueId, Timestamp};

use self::decode::{
    FetchTarget, read_dead_letter_key, read_dead_letters, read_json, read_partition, read_records, read_slots,
};
use self::statements::{
    BACKLOG, DEAD_LETTER_KEYS, DEAD_LETTER_PAGE, DEAD_LETTERS, DEDUP_IDS, GROUPS, IDS_PER_BLOCK,
    LEASED_PARTITIONS, LOCK_VERSIONS, MESSAGE_AND_PARTITION_COUNTS, NEXT_IDS, OFFSET_AT_TIME,
    PARTITION_COUNT, PARTITION_PAGE, PARTITION_PAGE_SLOTS, PARTITIONS, PARTITIONS_LOCKED,
    PARTITIONS_SKIP_LOCKED, QUEUES, READY, READY_AT_COLUMN, READY_LOCKED, READY_OR_LOCKED, RECORD_PAGE,
    RECORDS, SEGMENT_TIMES, SEGMENTS, SLOT_COLUMN, SLOTS, UPCOMING,
};
pub use self::statements::{BEGIN, COUNT_UNCHANGED, ROLLBACK, VERSIONS};
use crate::client::connection::{
    PgConnection, PgRow, Statement, param, read_timestamp, read_u64, statement, to_bigint,
};
use crate::client::error::DatabaseError;
use crate::state::batch::{BatchState, DeadLetterKeyPage, FetchedPage, TimeLookup, UpcomingEntries};
use crate::state::catalog::Catalog;
use crate::state::dedup::{DedupIndex, DedupRun};
use crate::state::hybrid_clock::to_number;
use crate::state::missing_rows::{DeadLetterPosition, MissingRows};

/// How far ahead the ready index is fetched: longer than deciding takes.
const READY_HORIZON: std::time::Duration = std::time::Duration::from_millis(100);

/// Slots of ready partitions that an optimistic batch fetches at least, for the batches after it.
const SLOTS_PREFETCHED: usize = 256;

/// Why a fetch failed.
#[derive(Debug)]
pub enum FetchError {
    Database(DatabaseError),
    Corrupt(Error),
    /// Others hold partitions that this fetch must not wait for.
    Locked,
}

impl From<DatabaseError> for FetchError {
    fn from(failure: DatabaseError) -> Self {
        Self::Database(failure)
    }
}

impl From<Error> for FetchError {
    fn from(error: Error) -> Self {
        Self::Corrupt(error)
    }
}

/// How to fetch.
pub struct FetchOptions<'a> {
    pub connection: &'a PgConnection,
    /// Whether to begin the transaction.
    pub begins_transaction: bool,
    /// Whether to lock partitions, because validation would probably fail.
    pub locks_partitions: bool,
    /// Whether to fail when another server holds a lock, because waiting would break lock order.
    pub skips_locked: bool,
    /// The versions to lock (records, catalog), because an attempt without these locks would probably fail.
    pub locked_versions: Vec<&'static str>,
    /// The number of all commits when the cached ready indexes were fetched.
    pub commits: i64,
}

/// The versions that each fetch reads before and after the rows.
pub struct Versions {
    pub database_time: Timestamp,
    pub catalog: i64,
    pub records: i64,
    /// The number of commits of all servers.
    pub commits: i64,
}

impl Versions {
    pub fn read(row: &PgRow) -> Self {
        Self {
            database_time: read_timestamp(row, 0),
            catalog: row.get(1),
            records: row.get(2),
            commits: row.get(3),
        }
    }
}

/// Fetches the missing rows of `batch`. Returns the versions before and after.
pub async fn fetch_rows(
    options: FetchOptions<'_>,
    batch: &mut BatchState,
    remembered: &mut DedupIndex,
) -> Result<(Versions, Versions), FetchError> {
    let missing = std::mem::take(&mut batch.missing);
    // Rows read so far may come from a server whose time is ahead, and decisions follow that time.
    let base = batch.start_time.max(batch.clock.last());
    let horizon = to_number(base.after(READY_HORIZON));
    let mut statements = FetchPlan::default();
    if options.begins_transaction {
        statements.add(BEGIN, Vec::new(), |_, _| Ok(()));
    }
    if !options.locked_versions.is_empty() {
        statements.add(LOCK_VERSIONS, vec![param(options.locked_versions)], |_, _| Ok(()));
    }
    let before = statements.add(VERSIONS, Vec::new(), |_, _| Ok(()));
    statements.add_ids(batch, missing.ids);
    let locked = statements.add_partitions(&missing, options.locks_partitions, options.skips_locked);
    for page in &missing.partition_pages {
        statements.add_partition_page(*page);
    }
    for (group, count) in &missing.ready {
        let ahead = if options.locks_partitions {
            0
        } else {
            SLOTS_PREFETCHED / batch.catalog.sibling_group_count(*group)
        };
        statements.add_ready(*group, (*count).max(ahead), horizon, options.locks_partitions);
    }
    // Partitions in memory may have other entries by now, so as many more are fetched.
    let here = batch.partitions.len() + missing.partitions.len() + missing.names.len();
    for (group, count) in &missing.upcoming {
        let ready = missing.ready.get(group).copied().unwrap_or(0);
        statements.add_upcoming(*group, *count + here + ready, base);
    }
    statements.add_sums(&missing);
    statements.add_leases(&missing);
    statements.add_dedup_ids(&missing, batch.start_time);
    statements.add_messages(&missing);
    statements.add_records(&missing, batch.start_time);
    statements.add_dead_letters(&missing);
    let after = statements.add(VERSIONS, Vec::new(), |_, _| Ok(()));
    let (statements, handlers) = (statements.statements, statements.handlers);
    let results = options.connection.run(statements).await?;
    if let Some((locked, count)) = locked
        && (results[locked].len() as i64) < results[count][0].get::<i64>(0)
    {
        return Err(FetchError::Locked);
    }
    let versions = (Versions::read(&results[before][0]), Versions::read(&results[after][0]));
    // A locking fetch skips what others hold, so its ready indexes are never complete and never cached.
    if versions.0.commits != options.commits && !options.locks_partitions {
        batch.invalidate_ready_indexes();
    }
    let mut target = FetchTarget { batch, dedup_index: remembered };
    for (rows, read) in results.into_iter().zip(handlers) {
        read(&mut target, rows)?;
    }
    Ok(versions)
}

type RowHandler = Box<dyn FnOnce(&mut FetchTarget<'_>, Vec<PgRow>) -> Result<(), Error> + Send>;

/// Statements, each with a handler for its rows.
#[derive(Default)]
struct FetchPlan {
    statements: Vec<Statement>,
    handlers: Vec<RowHandler>,
}

impl FetchPlan {
    fn add(
        &mut self,
        text: &'static str,
        params: Vec<crate::client::connection::Param>,
        read: impl FnOnce(&mut FetchTarget<'_>, Vec<PgRow>) -> Result<(), Error> + Send + 'static,
    ) -> usize {
        self.statements.push(statement(text, params));
        self.handlers.push(Box::new(read));
        self.statements.len() - 1
    }

    fn add_ids(&mut self, batch: &BatchState, missing: u64) {
        let lacking = (missing + IDS_PER_BLOCK / 2).saturating_sub(batch.ids.len() as u64);
        if lacking == 0 {
            return;
        }
        self.add(NEXT_IDS, vec![param(to_bigint(lacking.div_ceil(IDS_PER_BLOCK)))], |target, rows| {
            let firsts = rows.iter().rev().map(|row| read_u64(row, 0));
            let mut ids: Vec<u64> = firsts.flat_map(|first| (first..first + IDS_PER_BLOCK).rev()).collect();
            ids.append(&mut target.batch.ids);
            target.batch.ids = ids;
            Ok(())
        });
    }

    /// Adds the statements. Returns those, of a fetch that must not wait for locks, whose results say how many
    /// partitions it locked and how many there are.
    fn add_partitions(
        &mut self,
        missing: &MissingRows,
        locks: bool,
        skips_locked: bool,
    ) -> Option<(usize, usize)> {
        if missing.partitions.is_empty() && missing.names.is_empty() && missing.whole_queues.is_empty() {
            return None;
        }
        let params = || {
            let (queues, names): (Vec<i64>, Vec<String>) =
                missing.names.iter().map(|(queue, name)| (to_bigint(queue.0), name.to_string())).unzip();
            let ids: Vec<i64> = missing.partitions.iter().map(|id| to_bigint(id.0)).collect();
            let whole: Vec<i64> = missing.whole_queues.iter().map(|id| to_bigint(id.0)).collect();
            vec![param(ids), param(queues), param(names), param(whole)]
        };
        let (ids, names) = (missing.partitions.clone(), missing.names.clone());
        let whole = missing.whole_queues.clone();
        let text = match (locks, skips_locked) {
            (true, true) => PARTITIONS_SKIP_LOCKED,
            (true, false) => PARTITIONS_LOCKED,
            (false, _) => PARTITIONS,
        };
        let locked = self.add(text, params(), move |target, rows| {
            for row in &rows {
                let entry = read_partition(row, true, true)?;
                // A decision that needs a whole queue reads each of its partitions, empty ones too.
                if whole.contains(&entry.row.queue) {
                    target.batch.read_partitions.insert(entry.row.id);
                }
                target.batch.add_fetched_partition(entry);
            }
            if !locks {
                read_slots(target, &rows, SLOT_COLUMN)?;
            }
            for id in ids {
                target.batch.has_uncacheable_partitions |=
                    target.batch.partitions.entry(id).or_insert(None).is_none();
            }
            for name in names {
                target.batch.names.entry(name).or_insert(None);
            }
            target.batch.whole_queues.extend(whole);
            Ok(())
        });
        if locks {
            self.add(SLOTS, params(), |target, rows| read_slots(target, &rows, 0));
        }
        (locks && skips_locked).then(|| (locked, self.add(PARTITION_COUNT, params(), |_, _| Ok(()))))
    }

    fn add_partition_page(&mut self, page: (QueueId, Option<PartitionId>, usize)) {
        let params = || {
            let (queue, after, limit) = page;
            let after = after.map_or(-1, |after| to_bigint(after.0));
            vec![param(to_bigint(queue.0)), param(after), param(i64::try_from(limit).unwrap_or(i64::MAX))]
        };
        self.add(PARTITION_PAGE, params(), move |target, rows| {
            let mut ids = Vec::with_capacity(rows.len());
            for row in rows {
                let entry = read_partition(&row, false, true)?;
                ids.push(entry.row.id);
                target.batch.add_fetched_partition(entry);
            }
            target.batch.partition_pages.insert(page, ids);
            Ok(())
        });
        self.add(PARTITION_PAGE_SLOTS, params(), |target, rows| read_slots(target, &rows, 0));
    }

    fn add_ready(&mut self, group: GroupId, count: usize, horizon: i64, locks: bool) {
        let text = if locks { READY_LOCKED } else { READY };
        let limit = i64::try_from(count).unwrap_or(i64::MAX);
        let params = || vec![param(to_bigint(group.0)), param(horizon), param(limit)];
        let until = move |rows: &[PgRow]| match rows
            .chunk_by(|one, next| one.get::<i64>(0) == next.get::<i64>(0))
            .count()
        {
            versions if versions >= count => rows.last().map_or(horizon, |row| row.get(READY_AT_COLUMN)),
            _ => horizon,
        };
        self.add(text, params(), move |target, rows| {
            let index = target.batch.ready_indexes.entry(group).or_default();
            index.requested = index.requested.max(count);
            index.is_cached = false;
            index.complete_up_to = index.complete_up_to.max(until(&rows));
            for row in &rows {
                target.batch.add_fetched_partition(read_partition(row, true, !locks)?);
            }
            read_slots(target, &rows, SLOT_COLUMN)
        });
        if !locks {
            return;
        }
        // If others hold every ready partition, wait for the first of them instead of answering that nothing
        // is ready.
        self.add(READY_OR_LOCKED, params(), move |target, rows| {
            // Entries that become ready later do not count: what is ready now must not be left out.
            let now = to_number(target.batch.start_time.max(target.batch.clock.last()));
            let index = target.batch.ready_indexes.get(&group);
            let until = (now, PartitionId(u64::MAX));
            let has_some = index.is_some_and(|index| index.entries.range(..=until).next().is_some());
            let Some(first) = rows.first().map(|row| PartitionId(read_u64(row, 0))) else { return Ok(()) };
            let is_held = target.batch.entry(first).is_some_and(|entry| entry.is_guarded);
            if !has_some && !is_held {
                target.batch.missing.partitions.insert(first);
            }
            Ok(())
        });
    }

    fn add_upcoming(&mut self, group: GroupId, count: usize, base: Timestamp) {
        let limit = i64::try_from(count).unwrap_or(i64::MAX);
        let params = vec![param(to_bigint(group.0)), param(to_number(base)), param(limit)];
        self.add(UPCOMING, params, move |target, rows| {
            let places: Vec<(i64, PartitionId)> =
                rows.iter().map(|row| (row.get(1), PartitionId(read_u64(row, 0)))).collect();
            let index = target.batch.ready_indexes.entry(group).or_default();
            index.upcoming = Some(UpcomingEntries { is_complete: places.len() < count, entries: places });
            Ok(())
        });
    }

    fn add_sums(&mut self, missing: &MissingRows) {
        for queue in missing.message_counts.union(&missing.partition_counts).copied().collect::<Vec<_>>() {
            self.add(MESSAGE_AND_PARTITION_COUNTS, vec![param(to_bigint(queue.0))], move |target, rows| {
                target.batch.message_counts.insert(queue, read_u64(&rows[0], 0));
                target.batch.partition_counts.insert(queue, read_u64(&rows[0], 1));
                Ok(())
            });
        }
        for group in missing.backlogs.iter().copied() {
            self.add(BACKLOG, vec![param(to_bigint(group.0))], move |target, rows| {
                target.batch.backlogs.insert(group, read_u64(&rows[0], 0));
                Ok(())
            });
        }
    }

    fn add_leases(&mut self, missing: &MissingRows) {
        if missing.leases.is_empty() {
            return;
        }
        let leases: Vec<LeaseId> = missing.leases.iter().copied().collect();
        let ids: Vec<uuid::Uuid> = leases.iter().map(|lease| lease.0).collect();
        self.add(LEASED_PARTITIONS, vec![param(ids)], move |target, rows| {
            for lease in leases {
                target.batch.leases.entry(lease).or_default();
            }
            for row in rows {
                let held = target.batch.leases.entry(LeaseId(row.get(0))).or_default();
                held.push(PartitionId(read_u64(&row, 1)));
            }
            Ok(())
        });
    }

    fn add_dedup_ids(&mut self, missing: &MissingRows, base: Timestamp) {
        if missing.dedup_ids.is_empty() {
            return;
        }
        let (ids, firsts): (Vec<i64>, Vec<i64>) =
            missing.dedup_ids.iter().map(|(id, first)| (to_bigint(id.0), to_bigint(first.0))).unzip();
        let partitions: Vec<PartitionId> = missing.dedup_ids.keys().copied().collect();
        self.add(DEDUP_IDS, vec![param(ids), param(firsts), param(base.micros())], move |target, rows| {
            let mut runs: std::collections::BTreeMap<PartitionId, Vec<DedupRun>> =
                partitions.into_iter().map(|id| (id, Vec::new())).collect();
            for row in rows {
                let id = PartitionId(read_u64(&row, 0));
                let run =
                    DedupRun::decode(id, Offset(read_u64(&row, 1)), read_timestamp(&row, 2), row.get(3));
                runs.entry(id).or_default().push(run);
            }
            for (id, runs) in runs {
                let Some(Some(entry)) = target.batch.partitions.get(&id) else { continue };
                target.dedup_index.extend(id, runs, entry.original.tail, target.batch.start_time);
            }
            Ok(())
        });
    }

    fn add_messages(&mut self, missing: &MissingRows) {
        let pairs = |places: &std::collections::BTreeSet<(PartitionId, Offset)>| {
            let (ids, offsets): (Vec<i64>, Vec<i64>) =
                places.iter().map(|(id, offset)| (to_bigint(id.0), to_bigint(offset.0))).unzip();
            vec![param(ids), param(offsets)]
        };
        let place = |row: &PgRow| (PartitionId(read_u64(row, 0)), Offset(read_u64(row, 1)));
        if !missing.segments.is_empty() {
            self.add(SEGMENTS, pairs(&missing.segments), move |target, rows| {
                for row in rows {
                    let (partition, offset) = place(&row);
                    match row.get::<Option<Vec<u8>>>(2) {
                        Some(body) => {
                            let segment = Segment::decode(partition, body.into())?;
                            target.batch.segments.insert((partition, segment.header.base), segment);
                        }
                        None => drop(target.batch.absent_segments.insert((partition, offset))),
                    }
                }
                Ok(())
            });
        }
        if !missing.segment_times.is_empty() {
            self.add(SEGMENT_TIMES, pairs(&missing.segment_times), move |target, rows| {
                for row in rows {
                    let time = row.get::<Option<i64>>(2).map(Timestamp::from_micros);
                    target.batch.segment_times.insert(place(&row), time);
                }
                Ok(())
            });
        }
        for (partition, from, to, at) in missing.times.iter().copied() {
            let params = vec![
                param(to_bigint(partition.0)),
                param(to_bigint(from.0)),
                param(to_bigint(to.0)),
                param(at.micros()),
            ];
            self.add(OFFSET_AT_TIME, params, move |target, rows| {
                let Some(row) = rows.first() else { return Ok(()) };
                let time = |column| row.get::<Option<i64>>(column).map(Timestamp::from_micros);
                let found = TimeLookup {
                    after: time(2).unwrap_or(Timestamp::MIN),
                    until: time(1).unwrap_or(Timestamp::MAX),
                    offset: Offset(read_u64(row, 0)),
                };
                target.batch.time_lookups.entry(partition).or_default().push(found);
                Ok(())
            });
        }
    }

    fn add_records(&mut self, missing: &MissingRows, base: Timestamp) {
        if !missing.records.is_empty() {
            let keys: Vec<String> = missing.records.iter().cloned().collect();
            let bytes: Vec<Vec<u8>> = keys.iter().map(|key| key.clone().into_bytes()).collect();
            self.add(RECORDS, vec![param(bytes)], move |target, rows| {
                read_records(target, rows)?;
                for key in keys {
                    if target.batch.records.entry(key.clone()).or_insert(None).is_none() {
                        target.batch.absent_records.push(key);
                    }
                }
                Ok(())
            });
        }
        for (place, limit) in missing.record_pages.clone() {
            let (prefix, after) = &place;
            // The page begins after the given key, or after the key right before the prefix.
            let from = match after.as_ref().filter(|after| *after >= prefix) {
                Some(after) => after.clone().into_bytes(),
                None => before_prefix(prefix),
            };
            let end = after_prefix(prefix);
            let rows_max = i64::try_from(limit).unwrap_or(i64::MAX);
            let params = vec![param(from), param(end), param(base.micros()), param(rows_max)];
            self.add(RECORD_PAGE, params, move |target, rows| {
                let end = rows.last().map(|row| String::from_utf8_lossy(row.get(0)).into_owned());
                let page = FetchedPage { rows: rows.len(), is_last_page: rows.len() < limit, last: end };
                read_records(target, rows)?;
                target.batch.record_pages.insert(place, page);
                Ok(())
            });
        }
    }

    fn add_dead_letters(&mut self, missing: &MissingRows) {
        if !missing.dead_letters.is_empty() {
            let keys: Vec<DeadLetterKey> = missing.dead_letters.iter().cloned().collect();
            let numbers = |of: fn(&DeadLetterKey) -> u64| -> Vec<i64> {
                keys.iter().map(|k| to_bigint(of(k))).collect()
            };
            let groups: Vec<String> = keys.iter().map(|key| key.group.to_string()).collect();
            let params = vec![
                param(numbers(|key| key.queue.0)),
                param(numbers(|key| key.partition.0)),
                param(numbers(|key| key.offset.0)),
                param(groups),
            ];
            self.add(DEAD_LETTERS, params, move |target, rows| {
                read_dead_letters(target, rows)?;
                for key in keys {
                    target.batch.dead_letters.entry(key).or_insert(None);
                }
                Ok(())
            });
        }
        for (place, limit) in missing.dead_letter_pages.clone() {
            let (queue, after) = &place;
            let after = after.clone().unwrap_or(DeadLetterPosition {
                failed_at: std::cmp::Reverse(Timestamp::MAX),
                partition: PartitionId(0),
                offset: std::cmp::Reverse(Offset(i64::MAX.cast_unsigned())),
                group: "".into(),
            });
            let params = vec![
                param(to_bigint(queue.0)),
                param(after.failed_at.0.micros()),
                param(to_bigint(after.partition.0)),
                param(to_bigint(after.offset.0.0)),
                param(after.group.to_string()),
                param(i64::try_from(limit).unwrap_or(i64::MAX)),
            ];
            self.add(DEAD_LETTER_PAGE, params, move |target, rows| {
                let count = rows.len();
                let end = read_dead_letters(target, rows)?;
                target
                    .batch
                    .dead_letter_pages
                    .insert(place, FetchedPage { rows: count, last: end, is_last_page: count < limit });
                Ok(())
            });
        }
        for (place, limit) in missing.dead_letter_key_pages.clone() {
            let (queue, after) = &place;
            // Offsets begin at 0.
            let (partition, offset, group) = after.as_ref().map_or((0, -1, ""), |key| {
                (to_bigint(key.partition.0), to_bigint(key.offset.0), &*key.group)
            });
            let params = vec![
                param(to_bigint(queue.0)),
                param(partition),
                param(offset),
                param(group.to_owned()),
                param(i64::try_from(limit).unwrap_or(i64::MAX)),
            ];
            self.add(DEAD_LETTER_KEYS, params, move |target, rows| {
                let keys: Vec<_> = rows.iter().map(|row| read_dead_letter_key(place.0, row)).collect();
                let all = keys.len() < limit;
                target
                    .batch
                    .dead_letter_key_pages
                    .insert(place, DeadLetterKeyPage { keys, is_last_page: all });
                Ok(())
            });
        }
    }
}

/// A key that sorts before every key with this prefix, and after every other key that sorts before them.
fn before_prefix(prefix: &str) -> Vec<u8> {
    let mut bytes = prefix.as_bytes().to_vec();
    // Keys are not empty, and none ends in a byte that UTF-8 excludes.
    match bytes.pop() {
        // No key sorts between a text and the same text with a zero byte appended.
        None | Some(0) => {}
        Some(last) => {
            bytes.push(last - 1);
            bytes.extend([0xFF; 4]);
        }
    }
    bytes
}

/// The first byte string that sorts after every key with this prefix.
fn after_prefix(prefix: &str) -> Option<Vec<u8>> {
    let mut bytes = prefix.as_bytes().to_vec();
    // UTF-8 has no byte 0xFF, so the last byte can be raised.
    *bytes.last_mut()? += 1;
    Some(bytes)
}

/// Fetches the catalog, and its version at that time or shortly before.
pub async fn fetch_catalog(connection: &PgConnection) -> Result<(i64, Catalog), FetchError> {
    let statements = [VERSIONS, QUEUES, GROUPS].map(|text| statement(text, Vec::new()));
    let results = connection.run(statements.into()).await?;
    let mut structure = Catalog::default();
    for row in &results[1] {
        let queue: Queue = read_json(row.get::<&str>(0).as_bytes())?;
        structure.put_queue(Arc::new(queue));
    }
    for row in &results[2] {
        let group: Group = read_json(row.get::<&str>(0).as_bytes())?;
        if structure.has_queue(group.queue) {
            structure.put_group(Arc::new(group));
        }
    }
    Ok((Versions::read(&results[0][0]).catalog, structure))
}
