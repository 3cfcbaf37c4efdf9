//! Builds the statements that write a batch and commit it, all in one round trip.

use std::collections::BTreeSet;

use baton_store::Segment;
use baton_types::{GroupId, Offset, PartitionId, QueueId};
use bytes::Bytes;

use crate::client::connection::{SharedBytea, Statement, param, statement, to_bigint};
use crate::state::batch::{BatchState, PartitionEntry};
use crate::state::group_slot::{GroupSlot, encode_ranges};
use crate::state::row_cache::CommitVersions;

/// For a batch with no write that must be durable before its answer.
const COMMIT_ASYNC: &str = "SET LOCAL synchronous_commit = off";
pub const COMMIT: &str = "COMMIT";

/// Counts the commit in the server's own row. That row later tells whether a commit of unknown outcome
/// happened. The update fails once another connection of this server has raised the epoch, so a commit that
/// was still on its way can no longer happen.
///
/// It also validates the read set that was not locked: the catalog's version, the records' version, and the
/// number of all commits, which validates reads of the ready index (a phantom check). It returns the
/// database's time.
const UPDATE_SERVER: &str = "UPDATE servers SET moment = $4, seen_at = clock_timestamp(), commits_made = CASE
        WHEN commits_made = $2 AND epoch = $5
            AND ($6::bigint IS NULL OR $6 = (SELECT number FROM versions WHERE name = 'structure'))
            AND ($7::bigint IS NULL OR $7 = (SELECT number FROM versions WHERE name = 'records'))
            AND ($8::bigint IS NULL OR $8 = (SELECT sum(commits_made) FROM servers))
        THEN $3 ELSE conflict('commits') END
    WHERE id = $1 RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Fails when another server has changed the catalog since it was read, or holds the lock to change it. `SKIP
/// LOCKED` never waits: the holder may be waiting for partitions that this batch has locked.
const CHANGE_CATALOG: &str = "WITH free AS (
        SELECT 1 FROM versions WHERE name = 'structure' AND number = $1 FOR UPDATE SKIP LOCKED),
    changed AS (
        UPDATE versions SET number = $2 FROM free WHERE name = 'structure' AND number = $1 RETURNING 1)
    SELECT CASE count(*) WHEN 0 THEN conflict('catalog') END FROM changed";

/// Validates the catalog of a batch that only relies on it, and locks it until the commit.
const LOCK_CATALOG: &str = "SELECT CASE count(*) WHEN 0 THEN conflict('catalog') END FROM (
        SELECT 1 FROM versions WHERE name = 'structure' AND number = $1 FOR SHARE SKIP LOCKED) kept";

/// Fails when a queue has other partitions than those that were read. A new group gets a slot in each
/// partition, and a new partition a slot for each group. Drop this check and two servers that do both at
/// once leave a partition without a slot for the group. From the change of the catalog until the commit no
/// partition can be created.
const CHECK_PARTITION_COUNTS: &str = "SELECT conflict('partitions of a queue')
    FROM unnest($1::bigint[], $2::bigint[]) w (queue_id, count)
    WHERE w.count <> (SELECT count(*) FROM partitions p WHERE p.queue_id = w.queue_id)";

/// Fails when another server has changed records since they were read, or holds the lock to change them.
/// `SKIP LOCKED` never waits: the holder may be waiting for rows that this batch has locked, and will change
/// records anyway.
const CHANGE_RECORDS: &str = "WITH free AS (
        SELECT 1 FROM versions WHERE name = 'records' AND number = $1 FOR UPDATE SKIP LOCKED),
    changed AS (
        UPDATE versions SET number = $2 FROM free WHERE name = 'records' AND number = $1 RETURNING 1)
    SELECT CASE count(*) WHEN 0 THEN conflict('records') END FROM changed";

const UPSERT_QUEUES: &str = "INSERT INTO queues (id, name, body)
    SELECT id, name, body::jsonb FROM unnest($1::bigint[], $2::text[], $3::text[]) w (id, name, body)
    ON CONFLICT (id) DO UPDATE SET body = excluded.body";

const REMOVE_QUEUES: &str = "DELETE FROM queues WHERE id = ANY($1)";

/// Locks removed and changed partitions in lock order, because the `DELETE` locks them in any order.
const LOCK_REMOVED: &str = "SELECT id FROM partitions WHERE queue_id = ANY($1) OR id = ANY($2)
    ORDER BY id FOR UPDATE";

/// For a batch that already holds partition locks, and so must not wait for more.
const LOCK_REMOVED_NOWAIT: &str = "SELECT id FROM partitions WHERE queue_id = ANY($1) OR id = ANY($2)
    ORDER BY id FOR UPDATE NOWAIT";

/// The sweeper deletes their rows later.
const REMOVE_PARTITIONS: &str = "WITH gone AS (DELETE FROM partitions WHERE queue_id = ANY($1) RETURNING id)
    INSERT INTO leftovers (kind, id, up_to) SELECT 'partition', id, 0 FROM gone
    UNION ALL SELECT 'queue', unnest($1::bigint[]), 0";

const UPSERT_GROUPS: &str = "INSERT INTO groups (id, queue_id, name, body)
    SELECT id, queue_id, name, body::jsonb
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) w (id, queue_id, name, body)
    ON CONFLICT (id) DO UPDATE SET body = excluded.body";

const REMOVE_GROUPS: &str = "WITH gone AS (DELETE FROM groups WHERE id = ANY($1))
    INSERT INTO leftovers (kind, id, up_to) SELECT 'group', unnest($1::bigint[]), 0";

const INSERT_PARTITIONS: &str = "INSERT INTO partitions
        (id, queue_id, name, start, tail, created_at, first_at, last_at, deleted, deleted_count, version)
    SELECT *, $11::bigint FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[],
        $7::bigint[], $8::bigint[], $9::bytea[], $10::bigint[])";

/// Fails with an error code of its own when another server has changed one of them since it was read. A
/// missing partition was removed with its queue, which the catalog's version detects.
const UPDATE_PARTITIONS: &str =
    "UPDATE partitions p SET start = w.start, tail = w.tail, first_at = w.first_at, last_at = w.last_at,
        deleted = w.deleted, deleted_count = w.deleted_count,
        version = CASE WHEN p.version = w.version THEN $9 ELSE partition_conflict(w.id) END
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bigint[],
        $8::bigint[]) w (id, start, tail, first_at, last_at, deleted, deleted_count, version)
    WHERE p.id = w.id";

/// Validates the partitions that were read and not changed, and locks them until the commit. `SKIP LOCKED`
/// never waits: a server that waits here would take locks out of lock order.
const LOCK_READ_PARTITIONS: &str =
    "SELECT CASE WHEN count(*) < cardinality($1) THEN partition_conflict(min($1[1])) END FROM (
        SELECT 1 FROM unnest($1::bigint[], $2::bigint[]) w (id, version)
        JOIN partitions p ON p.id = w.id AND p.version = w.version FOR UPDATE OF p SKIP LOCKED) kept";

const UPDATE_SLOTS: &str =
    "UPDATE slots s SET next = w.next, done = w.done, line = w.line, lease_id = w.lease_id,
        body = w.body
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::uuid[], $7::bytea[])
        w (partition_id, group_id, next, done, line, lease_id, body)
    WHERE s.partition_id = w.partition_id AND s.group_id = w.group_id";

const UPSERT_SLOTS: &str = "INSERT INTO slots (partition_id, group_id, next, done, line, lease_id, body)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::uuid[], $7::bytea[])
    ON CONFLICT (partition_id, group_id) DO UPDATE SET next = excluded.next, done = excluded.done,
        line = excluded.line, lease_id = excluded.lease_id, body = excluded.body";

const INSERT_SEGMENTS: &str = "INSERT INTO segments (partition_id, base, count, created_at, body)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::integer[], $4::bigint[], $5::bytea[])";

const INSERT_IDS: &str = "INSERT INTO remembered (partition_id, first, until, hashes)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[])";

const INSERT_TRIMMED: &str = "INSERT INTO leftovers (kind, id, up_to)
    SELECT 'segments', * FROM unnest($1::bigint[], $2::bigint[])";

const UPSERT_RECORDS: &str = "INSERT INTO records (key, version, expires_at, value)
    SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bytea[])
    ON CONFLICT (key) DO UPDATE SET version = excluded.version, expires_at = excluded.expires_at, value = excluded.value";

const REMOVE_RECORDS: &str = "DELETE FROM records WHERE key = ANY($1)";

const UPSERT_DEAD_LETTERS: &str = "INSERT INTO dead_letters (queue_id, partition_id, place, group_name, failed_at, body, payload)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bytea[], $7::bytea[])
    ON CONFLICT (queue_id, partition_id, place, group_name)
    DO UPDATE SET failed_at = excluded.failed_at, body = excluded.body, payload = excluded.payload";

const REMOVE_DEAD_LETTERS: &str = "DELETE FROM dead_letters l
    USING unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[]) w (queue_id, partition_id, place, group_name)
    WHERE l.queue_id = w.queue_id AND l.partition_id = w.partition_id AND l.place = w.place
        AND l.group_name = w.group_name";

/// Which server commits, and what the batch relies on.
pub struct CommitContext {
    pub server: i64,
    pub epoch: i64,
    /// The number of this server's last commit before this one.
    pub last_commit: i64,
    pub catalog_version: i64,
    pub records_version: i64,
    /// Whether the batch read without locks, so that the commit validates its read set.
    pub is_optimistic: bool,
    /// The number of commits of all servers that the read set rests on.
    pub all_commits: i64,
}

/// The statements of a commit, and what changes in memory once it has happened.
pub struct CommitPlan {
    pub statements: Vec<Statement>,
    pub segments: Vec<Segment>,
    /// The catalog's new version, if the batch changed the catalog.
    pub catalog_version: Option<i64>,
    pub versions: CommitVersions,
}

/// Builds the statements of a commit.
pub fn build_commit(batch: &mut BatchState, context: &CommitContext) -> CommitPlan {
    let mut statements = Vec::new();
    if !batch.writes.summary.needs_sync {
        statements.push(statement(COMMIT_ASYNC, Vec::new()));
    }
    let version = batch.clock.next_number();
    // Partition locks come before all other locks.
    lock_removed_partitions(batch, context.is_optimistic, &mut statements);
    write_partitions(batch, version, context.is_optimistic, &mut statements);
    let structure = write_catalog(batch, context, &mut statements);
    let records = write_records(batch, context, &mut statements);
    write_slots(batch, &mut statements);
    let segments = write_segments(batch, &mut statements);
    write_dead_letters(batch, &mut statements);
    let same_structure = context.is_optimistic.then(|| structure.unwrap_or(context.catalog_version));
    let relies_on_records = context.is_optimistic && batch.reads_records;
    let same_records = relies_on_records.then(|| records.unwrap_or(context.records_version));
    let mut values: Vec<_> = [
        context.server,
        context.last_commit,
        context.last_commit + 1,
        batch.clock.last().micros(),
        context.epoch,
    ]
    .into_iter()
    .map(param)
    .collect();
    let same_commits = (context.is_optimistic && batch.reads_ready_index).then_some(context.all_commits);
    values.extend([param(same_structure), param(same_records), param(same_commits)]);
    statements.push(statement(UPDATE_SERVER, values));
    statements.push(statement(COMMIT, Vec::new()));
    CommitPlan {
        statements,
        segments,
        catalog_version: structure,
        versions: CommitVersions { partitions: version, records },
    }
}

/// The guarded partitions among `ids`, with the versions that were read.
pub fn read_versions<'a>(
    batch: &BatchState,
    ids: impl Iterator<Item = &'a PartitionId>,
) -> (Vec<i64>, Vec<i64>) {
    let entries = ids.filter_map(|id| batch.partitions.get(id)?.as_ref());
    entries.filter(|entry| entry.is_guarded).map(|entry| (to_bigint(entry.row.id.0), entry.version)).unzip()
}

fn write_catalog(
    batch: &mut BatchState,
    context: &CommitContext,
    statements: &mut Vec<Statement>,
) -> Option<i64> {
    let (queues, groups) = (&batch.writes.queues, &batch.writes.groups);
    if queues.is_empty() && groups.is_empty() {
        if batch.writes.creates_partitions {
            statements.push(statement(LOCK_CATALOG, vec![param(context.catalog_version)]));
        }
        return None;
    }
    let number = batch.clock.next_number();
    statements.push(statement(CHANGE_CATALOG, vec![param(context.catalog_version), param(number)]));
    let (here, gone): (Vec<QueueId>, Vec<QueueId>) =
        queues.iter().partition(|id| batch.catalog.has_queue(**id));
    // Deletes come first, so that a new queue may reuse a name.
    if !gone.is_empty() {
        let ids: Vec<i64> = gone.iter().map(|id| to_bigint(id.0)).collect();
        statements.push(statement(REMOVE_QUEUES, vec![param(ids.clone())]));
        statements.push(statement(REMOVE_PARTITIONS, vec![param(ids)]));
    }
    let (kept, dropped): (Vec<GroupId>, Vec<GroupId>) =
        groups.iter().partition(|id| batch.catalog.group_by_id(**id).is_some());
    if !dropped.is_empty() {
        let ids: Vec<i64> = dropped.iter().map(|id| to_bigint(id.0)).collect();
        statements.push(statement(REMOVE_GROUPS, vec![param(ids)]));
    }
    let here: Vec<_> = here.into_iter().filter_map(|id| batch.catalog.queue_by_id(id)).collect();
    if !here.is_empty() {
        let ids: Vec<i64> = here.iter().map(|queue| to_bigint(queue.id.0)).collect();
        let names: Vec<String> = here.iter().map(|queue| queue.spec.name.to_string()).collect();
        let bodies: Vec<String> = here.iter().map(|queue| json(&**queue)).collect();
        statements.push(statement(UPSERT_QUEUES, vec![param(ids), param(names), param(bodies)]));
    }
    let kept: Vec<_> = kept.into_iter().filter_map(|id| batch.catalog.group_by_id(id)).collect();
    if !kept.is_empty() {
        let ids: Vec<i64> = kept.iter().map(|group| to_bigint(group.id.0)).collect();
        let queues: Vec<i64> = kept.iter().map(|group| to_bigint(group.queue.0)).collect();
        let names: Vec<String> = kept.iter().map(|group| group.name.to_string()).collect();
        let bodies: Vec<String> = kept.iter().map(|group| json(&**group)).collect();
        statements
            .push(statement(UPSERT_GROUPS, vec![param(ids), param(queues), param(names), param(bodies)]));
        let whole: BTreeSet<QueueId> = kept.iter().map(|group| group.queue).collect();
        let counts: Vec<i64> = whole.iter().map(|id| batch.partitions_of(*id).count() as i64).collect();
        let whole: Vec<i64> = whole.iter().map(|id| to_bigint(id.0)).collect();
        statements.push(statement(CHECK_PARTITION_COUNTS, vec![param(whole), param(counts)]));
    }
    Some(number)
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn write_records(
    batch: &mut BatchState,
    context: &CommitContext,
    statements: &mut Vec<Statement>,
) -> Option<i64> {
    if batch.writes.records.is_empty() {
        return None;
    }
    let number = batch.clock.next_number();
    statements.push(statement(CHANGE_RECORDS, vec![param(context.records_version), param(number)]));
    let (mut keys, mut versions, mut expiries, mut values) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut gone: Vec<Vec<u8>> = Vec::new();
    for key in &batch.writes.records {
        match batch.records.get(key) {
            Some(Some(record)) => {
                keys.push(key.clone().into_bytes());
                versions.push(to_bigint(record.version));
                expiries.push(record.expires_at.map(baton_types::Timestamp::micros));
                values.push(SharedBytea(record.value.clone()));
            }
            Some(None) => gone.push(key.clone().into_bytes()),
            None => {}
        }
    }
    if !keys.is_empty() {
        statements.push(statement(
            UPSERT_RECORDS,
            vec![param(keys), param(versions), param(expiries), param(values)],
        ));
    }
    if !gone.is_empty() {
        statements.push(statement(REMOVE_RECORDS, vec![param(gone)]));
    }
    Some(number)
}

fn lock_removed_partitions(batch: &BatchState, compares: bool, statements: &mut Vec<Statement>) {
    let gone = batch.writes.queues.iter().filter(|id| !batch.catalog.has_queue(**id));
    let gone: Vec<i64> = gone.map(|id| to_bigint(id.0)).collect();
    if !gone.is_empty() {
        let changed: Vec<i64> = batch.writes.partitions.iter().map(|id| to_bigint(id.0)).collect();
        let text = if compares { LOCK_REMOVED } else { LOCK_REMOVED_NOWAIT };
        statements.push(statement(text, vec![param(gone), param(changed)]));
    }
}

fn write_partitions(batch: &BatchState, version: i64, compares: bool, statements: &mut Vec<Statement>) {
    let changed = batch.writes.partitions.iter().filter_map(|id| batch.entry(*id));
    let (mut fresh, stored): (Vec<&PartitionEntry>, Vec<&PartitionEntry>) =
        changed.partition(|entry| entry.is_new);
    // Servers that create the same partitions insert them in the same order, so they cannot deadlock.
    fresh.sort_unstable_by_key(|entry| (entry.row.queue, entry.row.name.clone()));
    let column = |entries: &[&PartitionEntry], of: fn(&PartitionEntry) -> i64| -> Vec<i64> {
        entries.iter().map(|e| of(e)).collect()
    };
    let deleted = |entries: &[&PartitionEntry]| -> Vec<Option<Vec<u8>>> {
        let value =
            |e: &&PartitionEntry| (!e.row.deleted.is_empty()).then(|| encode_ranges(Some(&e.row.deleted)));
        entries.iter().map(value).collect()
    };
    if !stored.is_empty() {
        let params = vec![
            param(column(&stored, |e| to_bigint(e.row.id.0))),
            param(column(&stored, |e| to_bigint(e.row.start.0))),
            param(column(&stored, |e| to_bigint(e.row.tail.0))),
            param(column(&stored, |e| e.row.first_at.micros())),
            param(column(&stored, |e| e.row.last_at.micros())),
            param(deleted(&stored)),
            param(column(&stored, |e| to_bigint(e.row.deleted.len()))),
            param(column(&stored, |e| e.version)),
            param(version),
        ];
        statements.push(statement(UPDATE_PARTITIONS, params));
    }
    if !fresh.is_empty() {
        let names: Vec<String> = fresh.iter().map(|e| e.row.name.to_string()).collect();
        let params = vec![
            param(column(&fresh, |e| to_bigint(e.row.id.0))),
            param(column(&fresh, |e| to_bigint(e.row.queue.0))),
            param(names),
            param(column(&fresh, |e| to_bigint(e.row.start.0))),
            param(column(&fresh, |e| to_bigint(e.row.tail.0))),
            param(column(&fresh, |e| e.row.created_at.micros())),
            param(column(&fresh, |e| e.row.first_at.micros())),
            param(column(&fresh, |e| e.row.last_at.micros())),
            param(deleted(&fresh)),
            param(column(&fresh, |e| to_bigint(e.row.deleted.len()))),
            param(version),
        ];
        statements.push(statement(INSERT_PARTITIONS, params));
    }
    let only_looked_at = batch.read_partitions.difference(&batch.writes.partitions);
    let (ids, versions) = read_versions(batch, only_looked_at);
    if compares && !ids.is_empty() {
        statements.push(statement(LOCK_READ_PARTITIONS, vec![param(ids), param(versions)]));
    }
}

fn write_slots(batch: &BatchState, statements: &mut Vec<Statement>) {
    let (mut fresh, mut stored) = (SlotColumns::default(), SlotColumns::default());
    for (partition, group) in &batch.writes.slots {
        let Some(entry) = batch.entry(*partition) else { continue };
        let Some(slot) = entry.slots.get(group) else { continue };
        if batch.catalog.group_by_id(*group).is_none() {
            continue;
        }
        let rows = if entry.has_stored_slot(*group) { &mut stored } else { &mut fresh };
        rows.add(entry, *group, slot);
    }
    statements.extend(fresh.call(UPSERT_SLOTS));
    statements.extend(stored.call(UPDATE_SLOTS));
}

/// Slots, column by column.
#[derive(Default)]
struct SlotColumns {
    partitions: Vec<i64>,
    groups: Vec<i64>,
    nexts: Vec<i64>,
    finished_counts: Vec<i64>,
    ready_ats: Vec<Option<i64>>,
    leases: Vec<Option<uuid::Uuid>>,
    bodies: Vec<Vec<u8>>,
}

impl SlotColumns {
    fn add(&mut self, entry: &PartitionEntry, group: GroupId, slot: &GroupSlot) {
        self.partitions.push(to_bigint(entry.row.id.0));
        self.groups.push(to_bigint(group.0));
        self.nexts.push(to_bigint(slot.cursor.next.0));
        self.finished_counts.push(to_bigint(slot.finished_count(&entry.row)));
        self.ready_ats.push(slot.ready_at);
        self.leases.push(slot.cursor.lease.as_ref().map(|lease| lease.id.0));
        self.bodies.push(slot.encode());
    }

    fn call(self, text: &'static str) -> Option<Statement> {
        let Self { partitions, groups, nexts, finished_counts: dones, ready_ats: lines, leases, bodies } =
            self;
        let is_empty = partitions.is_empty();
        let params = || {
            vec![
                param(partitions),
                param(groups),
                param(nexts),
                param(dones),
                param(lines),
                param(leases),
                param(bodies),
            ]
        };
        (!is_empty).then(|| statement(text, params()))
    }
}

fn write_segments(batch: &mut BatchState, statements: &mut Vec<Statement>) -> Vec<Segment> {
    let mut open = std::mem::take(&mut batch.closed_segments);
    open.extend(batch.open_segments.drain());
    // Segments that were trimmed before they were written are dropped.
    open.retain(|(id, open)| batch.entry(*id).is_some_and(|entry| open.end() > entry.row.start));
    open.sort_by_key(|(partition, open)| (*partition, open.header.base));
    let (mut partitions, mut bases, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    let (mut times, mut bodies, mut segments) = (Vec::new(), Vec::new(), Vec::new());
    for (partition, mut open) in open {
        Segment::seal(&open.header, &mut open.bytes);
        let encoded = Bytes::from(open.bytes);
        segments.push(Segment::new(partition, open.header, encoded.slice(Segment::BODY_OFFSET..)));
        partitions.push(to_bigint(partition.0));
        bases.push(to_bigint(open.header.base.0));
        counts.push(i32::try_from(open.header.count).unwrap_or(i32::MAX));
        times.push(open.header.created_at.micros());
        bodies.push(SharedBytea(encoded));
    }
    if !partitions.is_empty() {
        let params = vec![param(partitions), param(bases), param(counts), param(times), param(bodies)];
        statements.push(statement(INSERT_SEGMENTS, params));
    }
    let runs: Vec<_> = batch.dedup_runs.iter().map(|(_, run)| run).collect();
    if !runs.is_empty() {
        let ids: Vec<i64> = runs.iter().map(|run| to_bigint(run.partition.0)).collect();
        let firsts: Vec<i64> = runs.iter().map(|run| to_bigint(run.first.0)).collect();
        let untils: Vec<i64> = runs.iter().map(|run| run.until.micros()).collect();
        let values: Vec<Vec<u8>> = runs.iter().map(|run| run.encode()).collect();
        statements.push(statement(INSERT_IDS, vec![param(ids), param(firsts), param(untils), param(values)]));
    }
    let trimmed: Vec<(PartitionId, Offset)> = batch.trimmed.iter().map(|(id, start)| (*id, *start)).collect();
    if !trimmed.is_empty() {
        let ids: Vec<i64> = trimmed.iter().map(|(id, _)| to_bigint(id.0)).collect();
        let starts: Vec<i64> = trimmed.iter().map(|(_, start)| to_bigint(start.0)).collect();
        statements.push(statement(INSERT_TRIMMED, vec![param(ids), param(starts)]));
    }
    segments
}

fn write_dead_letters(batch: &BatchState, statements: &mut Vec<Statement>) {
    let column = |keys: &[&baton_store::DeadLetterKey],
                  of: fn(&baton_store::DeadLetterKey) -> u64|
     -> Vec<i64> { keys.iter().map(|key| to_bigint(of(key))).collect() };
    let (mut put, mut gone) = (Vec::new(), Vec::new());
    let changed: BTreeSet<_> = batch.writes.dead_letters.iter().collect();
    for key in changed {
        match batch.dead_letters.get(key) {
            Some(Some(letter)) if batch.catalog.has_queue(key.queue) => put.push(letter),
            _ => gone.push(key),
        }
    }
    if !gone.is_empty() {
        let groups: Vec<String> = gone.iter().map(|key| key.group.to_string()).collect();
        let params = vec![
            param(column(&gone, |key| key.queue.0)),
            param(column(&gone, |key| key.partition.0)),
            param(column(&gone, |key| key.offset.0)),
            param(groups),
        ];
        statements.push(statement(REMOVE_DEAD_LETTERS, params));
    }
    if !put.is_empty() {
        let keys: Vec<_> = put.iter().map(|letter| &letter.key).collect();
        let groups: Vec<String> = keys.iter().map(|key| key.group.to_string()).collect();
        let times: Vec<i64> = put.iter().map(|letter| letter.failed_at.micros()).collect();
        let bodies: Vec<Vec<u8>> = put.iter().map(|letter| json(*letter).into_bytes()).collect();
        let payloads: Vec<SharedBytea> =
            put.iter().map(|letter| SharedBytea(letter.payload.clone())).collect();
        let params = vec![
            param(column(&keys, |key| key.queue.0)),
            param(column(&keys, |key| key.partition.0)),
            param(column(&keys, |key| key.offset.0)),
            param(groups),
            param(times),
            param(bodies),
            param(payloads),
        ];
        statements.push(statement(UPSERT_DEAD_LETTERS, params));
    }
}
