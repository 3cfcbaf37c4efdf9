//! Writing: everything that a group of decisions changed, and the commit, in one round trip.

use std::collections::BTreeSet;

use baton_store::Segment;
use baton_types::{GroupId, Offset, PartitionId, QueueId};
use bytes::Bytes;

use crate::carried::Numbers;
use crate::link::{Call, Raw, call, param, signed};
use crate::memory::{Entry, Memory};
use crate::slot::{Slot, ranges_value};

/// A commit that nobody waits for need not be on disk at once.
const SOON: &str = "SET LOCAL synchronous_commit = off";
pub const COMMIT: &str = "COMMIT";

/// The row that tells whether a commit happened. It is written under a condition that fails once another
/// connection of this server has asked, so a commit that was still on its way then can no longer happen.
///
/// It also fails when what was not locked is no longer as it was read: queues and groups, records, and, by the number of
/// all commits, what is in line. And it tells the database's time.
const NOTE: &str = "UPDATE servers SET moment = $4, seen_at = clock_timestamp(), commits_made = CASE
        WHEN commits_made = $2 AND epoch = $5
            AND ($6::bigint IS NULL OR $6 = (SELECT number FROM versions WHERE name = 'structure'))
            AND ($7::bigint IS NULL OR $7 = (SELECT number FROM versions WHERE name = 'records'))
            AND ($8::bigint IS NULL OR $8 = (SELECT sum(commits_made) FROM servers))
        THEN $3 ELSE 1 / (commits_made - commits_made) END
    WHERE id = $1 RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Fails when another server has changed queues or groups since they were read, or is about to. It waits for nobody:
/// whoever holds that lock may be waiting for partitions that this group has locked.
const CHANGE_STRUCTURE: &str = "WITH free AS (
        SELECT 1 FROM versions WHERE name = 'structure' AND number = $1 FOR UPDATE SKIP LOCKED),
    changed AS (
        UPDATE versions SET number = $2 FROM free WHERE name = 'structure' AND number = $1 RETURNING 1)
    SELECT 1 / count(*) FROM changed";

/// The same for whoever only relies on them, and keeps them as they are until the commit.
const KEEP_STRUCTURE: &str = "SELECT 1 / count(*) FROM (
        SELECT 1 FROM versions WHERE name = 'structure' AND number = $1 FOR SHARE SKIP LOCKED) kept";

/// Fails when a queue has other partitions than those that were read. A group that begins has a place in each of them,
/// and whoever creates one gives a place in it to each group: without this two servers that do so at the same time
/// would know nothing of each other. From the change of the structure until the commit none is created.
const KEEP_WHOLE: &str = "SELECT 1 / min((w.count = (
        SELECT count(*) FROM partitions p WHERE p.queue_id = w.queue_id))::integer)
    FROM unnest($1::bigint[], $2::bigint[]) w (queue_id, count)";

/// Fails when another server has changed records since they were read, or holds the lock that the next try will take:
/// whoever has that may be waiting for rows that this group has locked, and would change records anyway.
const CHANGE_RECORDS: &str = "WITH free AS (
        SELECT 1 FROM versions WHERE name = 'records' AND number = $1 FOR UPDATE SKIP LOCKED),
    changed AS (
        UPDATE versions SET number = $2 FROM free WHERE name = 'records' AND number = $1 RETURNING 1)
    SELECT 1 / count(*) FROM changed";

const PUT_QUEUES: &str = "INSERT INTO queues (id, name, body)
    SELECT id, name, body::jsonb FROM unnest($1::bigint[], $2::text[], $3::text[]) w (id, name, body)
    ON CONFLICT (id) DO UPDATE SET body = excluded.body";

const REMOVE_QUEUES: &str = "DELETE FROM queues WHERE id = ANY($1)";

/// In the order of locks, with those that are changed: removing takes them in any order.
const LOCK_REMOVED: &str = "SELECT id FROM partitions WHERE queue_id = ANY($1) OR id = ANY($2)
    ORDER BY id FOR UPDATE";

/// By whoever has locked others already, and so may not wait.
const LOCK_REMOVED_NOW: &str = "SELECT id FROM partitions WHERE queue_id = ANY($1) OR id = ANY($2)
    ORDER BY id FOR UPDATE NOWAIT";

/// The rows in them are cleared away later.
const REMOVE_PARTITIONS: &str = "WITH gone AS (DELETE FROM partitions WHERE queue_id = ANY($1) RETURNING id)
    INSERT INTO leftovers (kind, id, up_to) SELECT 'partition', id, 0 FROM gone
    UNION ALL SELECT 'queue', unnest($1::bigint[]), 0";

const PUT_GROUPS: &str = "INSERT INTO groups (id, queue_id, name, body)
    SELECT id, queue_id, name, body::jsonb
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) w (id, queue_id, name, body)
    ON CONFLICT (id) DO UPDATE SET body = excluded.body";

const REMOVE_GROUPS: &str = "WITH gone AS (DELETE FROM groups WHERE id = ANY($1))
    INSERT INTO leftovers (kind, id, up_to) SELECT 'group', unnest($1::bigint[]), 0";

const CREATE_PARTITIONS: &str = "INSERT INTO partitions
        (id, queue_id, name, start, tail, created_at, first_at, last_at, deleted, deleted_count, version)
    SELECT *, $11::bigint FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[],
        $7::bigint[], $8::bigint[], $9::bytea[], $10::bigint[])";

/// Fails, with a code of its own, when another server has changed one of them since it was read. One that is gone went
/// with its queue, which the number of the structure tells.
const CHANGE_PARTITIONS: &str =
    "UPDATE partitions p SET start = w.start, tail = w.tail, first_at = w.first_at, last_at = w.last_at,
        deleted = w.deleted, deleted_count = w.deleted_count,
        version = CASE WHEN p.version = w.version THEN $9 ELSE sqrt(-1 - w.version)::bigint END
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bigint[],
        $8::bigint[]) w (id, start, tail, first_at, last_at, deleted, deleted_count, version)
    WHERE p.id = w.id";

/// The same for those that were only looked at, which keep as they are until the commit. It waits for none of them:
/// whoever waits has changed partitions in the order of their numbers, and these are out of order.
const KEEP_PARTITIONS: &str = "SELECT sqrt(count(*) - cardinality($1)) FROM (
        SELECT 1 FROM unnest($1::bigint[], $2::bigint[]) w (id, version)
        JOIN partitions p ON p.id = w.id AND p.version = w.version FOR UPDATE OF p SKIP LOCKED) kept";

const CHANGE_SLOTS: &str =
    "UPDATE slots s SET next = w.next, done = w.done, line = w.line, lease_id = w.lease_id,
        body = w.body
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::uuid[], $7::bytea[])
        w (partition_id, group_id, next, done, line, lease_id, body)
    WHERE s.partition_id = w.partition_id AND s.group_id = w.group_id";

const PUT_SLOTS: &str = "INSERT INTO slots (partition_id, group_id, next, done, line, lease_id, body)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::uuid[], $7::bytea[])
    ON CONFLICT (partition_id, group_id) DO UPDATE SET next = excluded.next, done = excluded.done,
        line = excluded.line, lease_id = excluded.lease_id, body = excluded.body";

const PUT_SEGMENTS: &str = "INSERT INTO segments (partition_id, base, count, created_at, body)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::integer[], $4::bigint[], $5::bytea[])";

const PUT_REMEMBERED: &str = "INSERT INTO remembered (partition_id, first, until, hashes)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[])";

const TRIM: &str = "INSERT INTO leftovers (kind, id, up_to)
    SELECT 'segments', * FROM unnest($1::bigint[], $2::bigint[])";

const PUT_RECORDS: &str = "INSERT INTO records (key, version, expires_at, value)
    SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bytea[])
    ON CONFLICT (key) DO UPDATE SET version = excluded.version, expires_at = excluded.expires_at, value = excluded.value";

const REMOVE_RECORDS: &str = "DELETE FROM records WHERE key = ANY($1)";

const PUT_LETTERS: &str = "INSERT INTO dead_letters (queue_id, partition_id, place, group_name, failed_at, body, payload)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bytea[], $7::bytea[])
    ON CONFLICT (queue_id, partition_id, place, group_name)
    DO UPDATE SET failed_at = excluded.failed_at, body = excluded.body, payload = excluded.payload";

const REMOVE_LETTERS: &str = "DELETE FROM dead_letters l
    USING unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[]) w (queue_id, partition_id, place, group_name)
    WHERE l.queue_id = w.queue_id AND l.partition_id = w.partition_id AND l.place = w.place
        AND l.group_name = w.group_name";

/// Who commits, and what it relies on.
pub struct Note {
    pub server: i64,
    pub epoch: i64,
    /// The number of the last commit of this server that is known to have happened.
    pub last: i64,
    pub structure: i64,
    pub records: i64,
    /// Whether anything was read without a lock.
    pub compares: bool,
    /// The commits of all servers together, as far as is known.
    pub all_commits: i64,
}

/// What goes into the database, and what becomes of it in memory afterwards.
pub struct Flush {
    pub calls: Vec<Call>,
    pub segments: Vec<Segment>,
    /// The number of the structure from now on, if it changed.
    pub structure: Option<i64>,
    pub numbers: Numbers,
}

/// The statements of a commit.
pub fn flush(memory: &mut Memory, note: &Note) -> Flush {
    let mut calls = Vec::new();
    if !memory.changed.marks.now {
        calls.push(call(SOON, Vec::new()));
    }
    let version = memory.clock.number();
    // First, because whoever locks partitions does so before everything else.
    removed(memory, note.compares, &mut calls);
    partitions(memory, version, note.compares, &mut calls);
    let structure = structure(memory, note, &mut calls);
    let records = records(memory, note, &mut calls);
    slots(memory, &mut calls);
    let segments = segments(memory, &mut calls);
    letters(memory, &mut calls);
    let same_structure = note.compares.then(|| structure.unwrap_or(note.structure));
    let relies_on_records = note.compares && memory.relies_on_records;
    let same_records = relies_on_records.then(|| records.unwrap_or(note.records));
    let mut values: Vec<_> =
        [note.server, note.last, note.last + 1, memory.clock.last().micros(), note.epoch]
            .into_iter()
            .map(param)
            .collect();
    let same_commits = (note.compares && memory.relies_on_lines).then_some(note.all_commits);
    values.extend([param(same_structure), param(same_records), param(same_commits)]);
    calls.push(call(NOTE, values));
    calls.push(call(COMMIT, Vec::new()));
    Flush { calls, segments, structure, numbers: Numbers { version, records } }
}

/// Partitions that decisions looked at, and their versions.
pub fn looked_at<'a>(memory: &Memory, ids: impl Iterator<Item = &'a PartitionId>) -> (Vec<i64>, Vec<i64>) {
    let entries = ids.filter_map(|id| memory.partitions.get(id)?.as_ref());
    entries.filter(|entry| entry.held).map(|entry| (signed(entry.row.id.0), entry.version)).unzip()
}

fn structure(memory: &mut Memory, note: &Note, calls: &mut Vec<Call>) -> Option<i64> {
    let (queues, groups) = (&memory.changed.queues, &memory.changed.groups);
    if queues.is_empty() && groups.is_empty() {
        if memory.changed.created {
            calls.push(call(KEEP_STRUCTURE, vec![param(note.structure)]));
        }
        return None;
    }
    let number = memory.clock.number();
    calls.push(call(CHANGE_STRUCTURE, vec![param(note.structure), param(number)]));
    let (here, gone): (Vec<QueueId>, Vec<QueueId>) =
        queues.iter().partition(|id| memory.structure.has_queue(**id));
    // Names must be free before they are taken again.
    if !gone.is_empty() {
        let ids: Vec<i64> = gone.iter().map(|id| signed(id.0)).collect();
        calls.push(call(REMOVE_QUEUES, vec![param(ids.clone())]));
        calls.push(call(REMOVE_PARTITIONS, vec![param(ids)]));
    }
    let (kept, dropped): (Vec<GroupId>, Vec<GroupId>) =
        groups.iter().partition(|id| memory.structure.group_by_id(**id).is_some());
    if !dropped.is_empty() {
        let ids: Vec<i64> = dropped.iter().map(|id| signed(id.0)).collect();
        calls.push(call(REMOVE_GROUPS, vec![param(ids)]));
    }
    let here: Vec<_> = here.into_iter().filter_map(|id| memory.structure.queue_by_id(id)).collect();
    if !here.is_empty() {
        let ids: Vec<i64> = here.iter().map(|queue| signed(queue.id.0)).collect();
        let names: Vec<String> = here.iter().map(|queue| queue.spec.name.to_string()).collect();
        let bodies: Vec<String> = here.iter().map(|queue| json(&**queue)).collect();
        calls.push(call(PUT_QUEUES, vec![param(ids), param(names), param(bodies)]));
    }
    let kept: Vec<_> = kept.into_iter().filter_map(|id| memory.structure.group_by_id(id)).collect();
    if !kept.is_empty() {
        let ids: Vec<i64> = kept.iter().map(|group| signed(group.id.0)).collect();
        let queues: Vec<i64> = kept.iter().map(|group| signed(group.queue.0)).collect();
        let names: Vec<String> = kept.iter().map(|group| group.name.to_string()).collect();
        let bodies: Vec<String> = kept.iter().map(|group| json(&**group)).collect();
        calls.push(call(PUT_GROUPS, vec![param(ids), param(queues), param(names), param(bodies)]));
        let whole: BTreeSet<QueueId> = kept.iter().map(|group| group.queue).collect();
        let counts: Vec<i64> = whole.iter().map(|id| memory.entries_of(*id).count() as i64).collect();
        let whole: Vec<i64> = whole.iter().map(|id| signed(id.0)).collect();
        calls.push(call(KEEP_WHOLE, vec![param(whole), param(counts)]));
    }
    Some(number)
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn records(memory: &mut Memory, note: &Note, calls: &mut Vec<Call>) -> Option<i64> {
    if memory.changed.records.is_empty() {
        return None;
    }
    let number = memory.clock.number();
    calls.push(call(CHANGE_RECORDS, vec![param(note.records), param(number)]));
    let (mut keys, mut versions, mut expiries, mut values) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut gone: Vec<Vec<u8>> = Vec::new();
    for key in &memory.changed.records {
        match memory.records.get(key) {
            Some(Some(record)) => {
                keys.push(key.clone().into_bytes());
                versions.push(signed(record.version));
                expiries.push(record.expires_at.map(baton_types::Timestamp::micros));
                values.push(Raw(record.value.clone()));
            }
            Some(None) => gone.push(key.clone().into_bytes()),
            None => {}
        }
    }
    if !keys.is_empty() {
        calls.push(call(PUT_RECORDS, vec![param(keys), param(versions), param(expiries), param(values)]));
    }
    if !gone.is_empty() {
        calls.push(call(REMOVE_RECORDS, vec![param(gone)]));
    }
    Some(number)
}

fn removed(memory: &Memory, compares: bool, calls: &mut Vec<Call>) {
    let gone = memory.changed.queues.iter().filter(|id| !memory.structure.has_queue(**id));
    let gone: Vec<i64> = gone.map(|id| signed(id.0)).collect();
    if !gone.is_empty() {
        let changed: Vec<i64> = memory.changed.partitions.iter().map(|id| signed(id.0)).collect();
        let text = if compares { LOCK_REMOVED } else { LOCK_REMOVED_NOW };
        calls.push(call(text, vec![param(gone), param(changed)]));
    }
}

fn partitions(memory: &Memory, version: i64, compares: bool, calls: &mut Vec<Call>) {
    let changed = memory.changed.partitions.iter().filter_map(|id| memory.entry(*id));
    let (mut fresh, stored): (Vec<&Entry>, Vec<&Entry>) = changed.partition(|entry| entry.fresh);
    // Servers that create the same ones meet at them in the same order.
    fresh.sort_unstable_by_key(|entry| (entry.row.queue, entry.row.name.clone()));
    let numbers =
        |entries: &[&Entry], of: fn(&Entry) -> i64| -> Vec<i64> { entries.iter().map(|e| of(e)).collect() };
    let deleted = |entries: &[&Entry]| -> Vec<Option<Vec<u8>>> {
        let value = |e: &&Entry| (!e.row.deleted.is_empty()).then(|| ranges_value(Some(&e.row.deleted)));
        entries.iter().map(value).collect()
    };
    if !stored.is_empty() {
        let params = vec![
            param(numbers(&stored, |e| signed(e.row.id.0))),
            param(numbers(&stored, |e| signed(e.row.start.0))),
            param(numbers(&stored, |e| signed(e.row.tail.0))),
            param(numbers(&stored, |e| e.row.first_at.micros())),
            param(numbers(&stored, |e| e.row.last_at.micros())),
            param(deleted(&stored)),
            param(numbers(&stored, |e| signed(e.row.deleted.len()))),
            param(numbers(&stored, |e| e.version)),
            param(version),
        ];
        calls.push(call(CHANGE_PARTITIONS, params));
    }
    if !fresh.is_empty() {
        let names: Vec<String> = fresh.iter().map(|e| e.row.name.to_string()).collect();
        let params = vec![
            param(numbers(&fresh, |e| signed(e.row.id.0))),
            param(numbers(&fresh, |e| signed(e.row.queue.0))),
            param(names),
            param(numbers(&fresh, |e| signed(e.row.start.0))),
            param(numbers(&fresh, |e| signed(e.row.tail.0))),
            param(numbers(&fresh, |e| e.row.created_at.micros())),
            param(numbers(&fresh, |e| e.row.first_at.micros())),
            param(numbers(&fresh, |e| e.row.last_at.micros())),
            param(deleted(&fresh)),
            param(numbers(&fresh, |e| signed(e.row.deleted.len()))),
            param(version),
        ];
        calls.push(call(CREATE_PARTITIONS, params));
    }
    let only_looked_at = memory.relied.difference(&memory.changed.partitions);
    let (ids, versions) = looked_at(memory, only_looked_at);
    if compares && !ids.is_empty() {
        calls.push(call(KEEP_PARTITIONS, vec![param(ids), param(versions)]));
    }
}

fn slots(memory: &Memory, calls: &mut Vec<Call>) {
    let (mut fresh, mut stored) = (SlotRows::default(), SlotRows::default());
    for (partition, group) in &memory.changed.slots {
        let Some(entry) = memory.entry(*partition) else { continue };
        let Some(slot) = entry.slots.get(group) else { continue };
        if memory.structure.group_by_id(*group).is_none() {
            continue;
        }
        let rows = if entry.is_stored(*group) { &mut stored } else { &mut fresh };
        rows.add(entry, *group, slot);
    }
    calls.extend(fresh.call(PUT_SLOTS));
    calls.extend(stored.call(CHANGE_SLOTS));
}

/// Slots by column.
#[derive(Default)]
struct SlotRows {
    partitions: Vec<i64>,
    groups: Vec<i64>,
    nexts: Vec<i64>,
    dones: Vec<i64>,
    lines: Vec<Option<i64>>,
    leases: Vec<Option<uuid::Uuid>>,
    bodies: Vec<Vec<u8>>,
}

impl SlotRows {
    fn add(&mut self, entry: &Entry, group: GroupId, slot: &Slot) {
        self.partitions.push(signed(entry.row.id.0));
        self.groups.push(signed(group.0));
        self.nexts.push(signed(slot.cursor.next.0));
        self.dones.push(signed(slot.done(&entry.row)));
        self.lines.push(slot.line);
        self.leases.push(slot.cursor.lease.as_ref().map(|lease| lease.id.0));
        self.bodies.push(slot.body());
    }

    fn call(self, text: &'static str) -> Option<Call> {
        let Self { partitions, groups, nexts, dones, lines, leases, bodies } = self;
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
        (!is_empty).then(|| call(text, params()))
    }
}

fn segments(memory: &mut Memory, calls: &mut Vec<Call>) -> Vec<Segment> {
    let mut open = std::mem::take(&mut memory.closed);
    open.extend(memory.open.drain());
    // What is not written yet and trimmed already need not be.
    open.retain(|(id, open)| memory.entry(*id).is_some_and(|entry| open.end() > entry.row.start));
    open.sort_by_key(|(partition, open)| (*partition, open.header.base));
    let (mut partitions, mut bases, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    let (mut times, mut bodies, mut segments) = (Vec::new(), Vec::new(), Vec::new());
    for (partition, mut open) in open {
        Segment::seal(&open.header, &mut open.bytes);
        let encoded = Bytes::from(open.bytes);
        segments.push(Segment::new(partition, open.header, encoded.slice(Segment::BODY_AT..)));
        partitions.push(signed(partition.0));
        bases.push(signed(open.header.base.0));
        counts.push(i32::try_from(open.header.count).unwrap_or(i32::MAX));
        times.push(open.header.created_at.micros());
        bodies.push(Raw(encoded));
    }
    if !partitions.is_empty() {
        let params = vec![param(partitions), param(bases), param(counts), param(times), param(bodies)];
        calls.push(call(PUT_SEGMENTS, params));
    }
    let runs: Vec<_> = memory.runs.iter().map(|(_, run)| run).collect();
    if !runs.is_empty() {
        let ids: Vec<i64> = runs.iter().map(|run| signed(run.partition.0)).collect();
        let firsts: Vec<i64> = runs.iter().map(|run| signed(run.first.0)).collect();
        let untils: Vec<i64> = runs.iter().map(|run| run.until.micros()).collect();
        let values: Vec<Vec<u8>> = runs.iter().map(|run| run.value()).collect();
        calls.push(call(PUT_REMEMBERED, vec![param(ids), param(firsts), param(untils), param(values)]));
    }
    let trimmed: Vec<(PartitionId, Offset)> =
        memory.trimmed.iter().map(|(id, start)| (*id, *start)).collect();
    if !trimmed.is_empty() {
        let ids: Vec<i64> = trimmed.iter().map(|(id, _)| signed(id.0)).collect();
        let starts: Vec<i64> = trimmed.iter().map(|(_, start)| signed(start.0)).collect();
        calls.push(call(TRIM, vec![param(ids), param(starts)]));
    }
    segments
}

fn letters(memory: &Memory, calls: &mut Vec<Call>) {
    let numbers = |keys: &[&baton_store::DeadLetterKey],
                   of: fn(&baton_store::DeadLetterKey) -> u64|
     -> Vec<i64> { keys.iter().map(|key| signed(of(key))).collect() };
    let (mut put, mut gone) = (Vec::new(), Vec::new());
    let changed: BTreeSet<_> = memory.changed.letters.iter().collect();
    for key in changed {
        match memory.letters.get(key) {
            Some(Some(letter)) if memory.structure.has_queue(key.queue) => put.push(letter),
            _ => gone.push(key),
        }
    }
    if !gone.is_empty() {
        let groups: Vec<String> = gone.iter().map(|key| key.group.to_string()).collect();
        let params = vec![
            param(numbers(&gone, |key| key.queue.0)),
            param(numbers(&gone, |key| key.partition.0)),
            param(numbers(&gone, |key| key.offset.0)),
            param(groups),
        ];
        calls.push(call(REMOVE_LETTERS, params));
    }
    if !put.is_empty() {
        let keys: Vec<_> = put.iter().map(|letter| &letter.key).collect();
        let groups: Vec<String> = keys.iter().map(|key| key.group.to_string()).collect();
        let times: Vec<i64> = put.iter().map(|letter| letter.failed_at.micros()).collect();
        let bodies: Vec<Vec<u8>> = put.iter().map(|letter| json(*letter).into_bytes()).collect();
        let payloads: Vec<Raw> = put.iter().map(|letter| Raw(letter.payload.clone())).collect();
        let params = vec![
            param(numbers(&keys, |key| key.queue.0)),
            param(numbers(&keys, |key| key.partition.0)),
            param(numbers(&keys, |key| key.offset.0)),
            param(groups),
            param(times),
            param(bodies),
            param(payloads),
        ];
        calls.push(call(PUT_LETTERS, params));
    }
}
