//! Fetching: everything that a group of decisions misses, in one round trip.

mod rows;
mod statements;

use std::sync::Arc;

use baton_store::{DeadLetterKey, Error, Group, Queue, Segment};
use baton_types::{GroupId, LeaseId, Offset, PartitionId, QueueId, Timestamp};

use self::rows::{Known, letter_key, load_letters, load_records, load_slots, read_entry, read_json};
use self::statements::{
    BACKLOG, GROUPS, IDS, IDS_AT_ONCE, KEPT, LATER, LEASED, LETTER_KEYS, LETTER_PAGE, LETTERS, LOCK_VERSIONS,
    MOMENT, PAGE, PAGE_SLOTS, PARTITIONS, PARTITIONS_LOCKED, PARTITIONS_LOCKED_NOW, PLACE_AT, QUEUES, READY,
    READY_AT_ALL, READY_LOCKED, RECORD_PAGE, RECORDS, REMEMBERED, SEGMENTS, SLOT_AT, SLOTS, TIMES,
};
pub use self::statements::{BEGIN, ROLLBACK, UNCHANGED, VERSIONS};
use crate::clock::number_of;
use crate::failure::Failure;
use crate::link::{Call, Link, Row, call, moment, param, signed, unsigned};
use crate::memory::{Later, LetterKeys, Memory, Moment, Page};
use crate::remembered::{Remembered, Run};
use crate::structure::Structure;
use crate::wanted::{LetterPlace, Wanted};

/// How far ahead of what it knows a group looks for what becomes ready: longer than it takes to decide.
const HORIZON: std::time::Duration = std::time::Duration::from_millis(100);

/// How many slots of partitions that are ready a group fetches at least when it locks none of them: the next groups need
/// not.
const SLOTS_AHEAD: usize = 256;

/// What can go wrong while fetching.
#[derive(Debug)]
pub enum Trouble {
    Failed(Failure),
    Damaged(Error),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Damaged(error)
    }
}

/// How to fetch.
pub struct Round<'a> {
    pub link: &'a Link,
    /// Begins the transaction.
    pub begins: bool,
    /// Locks partitions, because comparing them later would be in vain.
    pub locks: bool,
    /// Fails when a partition is locked by others, because waiting for it would break the order of locks.
    pub in_haste: bool,
    /// Takes the locks on records or structure, because a try without them would be in vain.
    pub lock_versions: Vec<&'static str>,
    /// The commits of all servers together when lines were told before.
    pub commits: i64,
}

/// The numbers that came along.
pub struct Versions {
    pub at: Timestamp,
    pub structure: i64,
    pub records: i64,
    /// The commits of all servers together.
    pub commits: i64,
}

impl Versions {
    pub fn read(row: &Row) -> Self {
        Self { at: moment(row, 0), structure: row.get(1), records: row.get(2), commits: row.get(3) }
    }
}

/// Fetches what `memory` wants.
pub async fn load(
    round: Round<'_>,
    memory: &mut Memory,
    remembered: &mut Remembered,
) -> Result<(Versions, Versions), Trouble> {
    let wanted = std::mem::take(&mut memory.wanted);
    // What was read so far may be from a server whose time is ahead of this one's, and decisions follow it.
    let base = memory.base.max(memory.clock.last());
    let horizon = number_of(base.after(HORIZON));
    let mut calls = Calls::default();
    if round.begins {
        calls.add(BEGIN, Vec::new(), |_, _| Ok(()));
    }
    if !round.lock_versions.is_empty() {
        calls.add(LOCK_VERSIONS, vec![param(round.lock_versions)], |_, _| Ok(()));
    }
    let before = calls.add(VERSIONS, Vec::new(), |_, _| Ok(()));
    calls.ids(memory, wanted.ids);
    calls.partitions(&wanted, round.locks, round.in_haste);
    for page in &wanted.pages {
        calls.page(*page);
    }
    for (group, count) in &wanted.ready {
        let ahead = if round.locks { 0 } else { SLOTS_AHEAD / memory.structure.groups_beside(*group) };
        calls.ready(*group, (*count).max(ahead), horizon, round.locks);
    }
    // The first of them may be partitions that are here, of which something else is known.
    let here = memory.partitions.len() + wanted.partitions.len() + wanted.names.len();
    for (group, count) in &wanted.later {
        let ready = wanted.ready.get(group).copied().unwrap_or(0);
        calls.later(*group, *count + here + ready, base);
    }
    calls.sums(&wanted);
    calls.leases(&wanted);
    calls.remembered(&wanted, memory.base);
    calls.messages(&wanted);
    calls.records(&wanted, memory.base);
    calls.letters(&wanted);
    let after = calls.add(VERSIONS, Vec::new(), |_, _| Ok(()));
    let (calls, readers) = (calls.calls, calls.readers);
    let results = round.link.run(calls).await?;
    let told = (Versions::read(&results[before][0]), Versions::read(&results[after][0]));
    // Whoever locks passes over what others hold, so its lines are never whole, and none of them is carried over.
    if told.0.commits != round.commits && !round.locks {
        memory.doubt_lines();
    }
    let mut known = Known { memory, remembered };
    for (rows, read) in results.into_iter().zip(readers) {
        read(&mut known, rows)?;
    }
    Ok(told)
}

type Reader = Box<dyn FnOnce(&mut Known<'_>, Vec<Row>) -> Result<(), Error> + Send>;

/// Statements, each with what becomes of its rows.
#[derive(Default)]
struct Calls {
    calls: Vec<Call>,
    readers: Vec<Reader>,
}

impl Calls {
    fn add(
        &mut self,
        text: &'static str,
        params: Vec<crate::link::Param>,
        read: impl FnOnce(&mut Known<'_>, Vec<Row>) -> Result<(), Error> + Send + 'static,
    ) -> usize {
        self.calls.push(call(text, params));
        self.readers.push(Box::new(read));
        self.calls.len() - 1
    }

    fn ids(&mut self, memory: &Memory, wanted: u64) {
        let lacking = (wanted + IDS_AT_ONCE / 2).saturating_sub(memory.ids.len() as u64);
        if lacking == 0 {
            return;
        }
        self.add(IDS, vec![param(signed(lacking.div_ceil(IDS_AT_ONCE)))], |known, rows| {
            let firsts = rows.iter().rev().map(|row| unsigned(row, 0));
            let mut ids: Vec<u64> = firsts.flat_map(|first| (first..first + IDS_AT_ONCE).rev()).collect();
            ids.append(&mut known.memory.ids);
            known.memory.ids = ids;
            Ok(())
        });
    }

    fn partitions(&mut self, wanted: &Wanted, locks: bool, in_haste: bool) {
        if wanted.partitions.is_empty() && wanted.names.is_empty() && wanted.all_of.is_empty() {
            return;
        }
        let params = || {
            let (queues, names): (Vec<i64>, Vec<String>) =
                wanted.names.iter().map(|(queue, name)| (signed(queue.0), name.to_string())).unzip();
            let ids: Vec<i64> = wanted.partitions.iter().map(|id| signed(id.0)).collect();
            let whole: Vec<i64> = wanted.all_of.iter().map(|id| signed(id.0)).collect();
            vec![param(ids), param(queues), param(names), param(whole)]
        };
        let (ids, names) = (wanted.partitions.clone(), wanted.names.clone());
        let whole = wanted.all_of.clone();
        let text = match (locks, in_haste) {
            (true, true) => PARTITIONS_LOCKED_NOW,
            (true, false) => PARTITIONS_LOCKED,
            (false, _) => PARTITIONS,
        };
        self.add(text, params(), move |known, rows| {
            for row in &rows {
                let entry = read_entry(row, true, true)?;
                // Who wants all of a queue rests on each of them, those with nothing in them too.
                if whole.contains(&entry.row.queue) {
                    known.memory.relied.insert(entry.row.id);
                }
                known.memory.load(entry);
            }
            if !locks {
                load_slots(known, &rows, SLOT_AT)?;
            }
            for id in ids {
                known.memory.has_strays |= known.memory.partitions.entry(id).or_insert(None).is_none();
            }
            for name in names {
                known.memory.names.entry(name).or_insert(None);
            }
            known.memory.all_of.extend(whole);
            Ok(())
        });
        if locks {
            self.add(SLOTS, params(), |known, rows| load_slots(known, &rows, 0));
        }
    }

    fn page(&mut self, page: (QueueId, Option<PartitionId>, usize)) {
        let params = || {
            let (queue, after, limit) = page;
            let after = after.map_or(-1, |after| signed(after.0));
            vec![param(signed(queue.0)), param(after), param(i64::try_from(limit).unwrap_or(i64::MAX))]
        };
        self.add(PAGE, params(), move |known, rows| {
            let mut ids = Vec::with_capacity(rows.len());
            for row in rows {
                let entry = read_entry(&row, false, true)?;
                ids.push(entry.row.id);
                known.memory.load(entry);
            }
            known.memory.pages.insert(page, ids);
            Ok(())
        });
        self.add(PAGE_SLOTS, params(), |known, rows| load_slots(known, &rows, 0));
    }

    fn ready(&mut self, group: GroupId, count: usize, horizon: i64, locks: bool) {
        let text = if locks { READY_LOCKED } else { READY };
        let limit = i64::try_from(count).unwrap_or(i64::MAX);
        let params = || vec![param(signed(group.0)), param(horizon), param(limit)];
        let until = move |rows: &[Row]| match rows
            .chunk_by(|one, next| one.get::<i64>(0) == next.get::<i64>(0))
            .count()
        {
            told if told >= count => rows.last().map_or(horizon, |row| row.get(PLACE_AT)),
            _ => horizon,
        };
        self.add(text, params(), move |known, rows| {
            let line = known.memory.lines.entry(group).or_default();
            line.asked = line.asked.max(count);
            line.is_carried = false;
            line.covered = line.covered.max(until(&rows));
            for row in &rows {
                known.memory.load(read_entry(row, true, !locks)?);
            }
            load_slots(known, &rows, SLOT_AT)
        });
        if !locks {
            return;
        }
        // Others hold everything that is ready: wait for the first of it instead of telling that there is nothing.
        self.add(READY_AT_ALL, params(), move |known, rows| {
            // What is ready a little later is no reason to leave out what is ready now.
            let now = number_of(known.memory.base.max(known.memory.clock.last()));
            let line = known.memory.lines.get(&group);
            let until = (now, PartitionId(u64::MAX));
            let has_some = line.is_some_and(|line| line.places.range(..=until).next().is_some());
            let Some(first) = rows.first().map(|row| PartitionId(unsigned(row, 0))) else { return Ok(()) };
            let is_held = known.memory.entry(first).is_some_and(|entry| entry.held);
            if !has_some && !is_held {
                known.memory.wanted.partitions.insert(first);
            }
            Ok(())
        });
    }

    fn later(&mut self, group: GroupId, count: usize, base: Timestamp) {
        let limit = i64::try_from(count).unwrap_or(i64::MAX);
        let params = vec![param(signed(group.0)), param(number_of(base)), param(limit)];
        self.add(LATER, params, move |known, rows| {
            let places: Vec<(i64, PartitionId)> =
                rows.iter().map(|row| (row.get(1), PartitionId(unsigned(row, 0)))).collect();
            let line = known.memory.lines.entry(group).or_default();
            line.later = Some(Later { all: places.len() < count, places });
            Ok(())
        });
    }

    fn sums(&mut self, wanted: &Wanted) {
        for queue in wanted.kept.union(&wanted.counts).copied().collect::<Vec<_>>() {
            self.add(KEPT, vec![param(signed(queue.0))], move |known, rows| {
                known.memory.kept.insert(queue, unsigned(&rows[0], 0));
                known.memory.counts.insert(queue, unsigned(&rows[0], 1));
                Ok(())
            });
        }
        for group in wanted.backlogs.iter().copied() {
            self.add(BACKLOG, vec![param(signed(group.0))], move |known, rows| {
                known.memory.backlogs.insert(group, unsigned(&rows[0], 0));
                Ok(())
            });
        }
    }

    fn leases(&mut self, wanted: &Wanted) {
        if wanted.leases.is_empty() {
            return;
        }
        let leases: Vec<LeaseId> = wanted.leases.iter().copied().collect();
        let ids: Vec<uuid::Uuid> = leases.iter().map(|lease| lease.0).collect();
        self.add(LEASED, vec![param(ids)], move |known, rows| {
            for lease in leases {
                known.memory.leases.entry(lease).or_default();
            }
            for row in rows {
                let held = known.memory.leases.entry(LeaseId(row.get(0))).or_default();
                held.push(PartitionId(unsigned(&row, 1)));
            }
            Ok(())
        });
    }

    fn remembered(&mut self, wanted: &Wanted, base: Timestamp) {
        if wanted.remembered.is_empty() {
            return;
        }
        let (ids, firsts): (Vec<i64>, Vec<i64>) =
            wanted.remembered.iter().map(|(id, first)| (signed(id.0), signed(first.0))).unzip();
        let partitions: Vec<PartitionId> = wanted.remembered.keys().copied().collect();
        self.add(REMEMBERED, vec![param(ids), param(firsts), param(base.micros())], move |known, rows| {
            let mut runs: std::collections::BTreeMap<PartitionId, Vec<Run>> =
                partitions.into_iter().map(|id| (id, Vec::new())).collect();
            for row in rows {
                let id = PartitionId(unsigned(&row, 0));
                let run = Run::read(id, Offset(unsigned(&row, 1)), moment(&row, 2), row.get(3));
                runs.entry(id).or_default().push(run);
            }
            for (id, runs) in runs {
                let Some(Some(entry)) = known.memory.partitions.get(&id) else { continue };
                known.remembered.extend(id, runs, entry.original.tail, known.memory.base);
            }
            Ok(())
        });
    }

    fn messages(&mut self, wanted: &Wanted) {
        let pairs = |places: &std::collections::BTreeSet<(PartitionId, Offset)>| {
            let (ids, offsets): (Vec<i64>, Vec<i64>) =
                places.iter().map(|(id, offset)| (signed(id.0), signed(offset.0))).unzip();
            vec![param(ids), param(offsets)]
        };
        let place = |row: &Row| (PartitionId(unsigned(row, 0)), Offset(unsigned(row, 1)));
        if !wanted.segments.is_empty() {
            self.add(SEGMENTS, pairs(&wanted.segments), move |known, rows| {
                for row in rows {
                    let (partition, offset) = place(&row);
                    match row.get::<Option<Vec<u8>>>(2) {
                        Some(body) => {
                            let segment = Segment::decode(partition, body.into())?;
                            known.memory.segments.insert((partition, segment.header.base), segment);
                        }
                        None => drop(known.memory.no_segment.insert((partition, offset))),
                    }
                }
                Ok(())
            });
        }
        if !wanted.times.is_empty() {
            self.add(TIMES, pairs(&wanted.times), move |known, rows| {
                for row in rows {
                    let time = row.get::<Option<i64>>(2).map(Timestamp::from_micros);
                    known.memory.times.insert(place(&row), time);
                }
                Ok(())
            });
        }
        for (partition, from, to, at) in wanted.moments.iter().copied() {
            let params = vec![
                param(signed(partition.0)),
                param(signed(from.0)),
                param(signed(to.0)),
                param(at.micros()),
            ];
            self.add(MOMENT, params, move |known, rows| {
                let Some(row) = rows.first() else { return Ok(()) };
                let time = |column| row.get::<Option<i64>>(column).map(Timestamp::from_micros);
                let found = Moment {
                    after: time(2).unwrap_or(Timestamp::MIN),
                    until: time(1).unwrap_or(Timestamp::MAX),
                    offset: Offset(unsigned(row, 0)),
                };
                known.memory.moments.entry(partition).or_default().push(found);
                Ok(())
            });
        }
    }

    fn records(&mut self, wanted: &Wanted, base: Timestamp) {
        if !wanted.records.is_empty() {
            let keys: Vec<String> = wanted.records.iter().cloned().collect();
            let bytes: Vec<Vec<u8>> = keys.iter().map(|key| key.clone().into_bytes()).collect();
            self.add(RECORDS, vec![param(bytes)], move |known, rows| {
                load_records(known, rows)?;
                for key in keys {
                    if known.memory.records.entry(key.clone()).or_insert(None).is_none() {
                        known.memory.absent.push(key);
                    }
                }
                Ok(())
            });
        }
        for (place, limit) in wanted.record_pages.clone() {
            let (prefix, after) = &place;
            // The page begins after this: the key given, or whatever comes right before the prefix.
            let from = match after.as_ref().filter(|after| *after >= prefix) {
                Some(after) => after.clone().into_bytes(),
                None => before_prefix(prefix),
            };
            let end = after_prefix(prefix);
            let rows_max = i64::try_from(limit).unwrap_or(i64::MAX);
            let params = vec![param(from), param(end), param(base.micros()), param(rows_max)];
            self.add(RECORD_PAGE, params, move |known, rows| {
                let end = rows.last().map(|row| String::from_utf8_lossy(row.get(0)).into_owned());
                let page = Page { rows: rows.len(), all: rows.len() < limit, end };
                load_records(known, rows)?;
                known.memory.record_pages.insert(place, page);
                Ok(())
            });
        }
    }

    fn letters(&mut self, wanted: &Wanted) {
        if !wanted.letters.is_empty() {
            let keys: Vec<DeadLetterKey> = wanted.letters.iter().cloned().collect();
            let numbers =
                |of: fn(&DeadLetterKey) -> u64| -> Vec<i64> { keys.iter().map(|k| signed(of(k))).collect() };
            let groups: Vec<String> = keys.iter().map(|key| key.group.to_string()).collect();
            let params = vec![
                param(numbers(|key| key.queue.0)),
                param(numbers(|key| key.partition.0)),
                param(numbers(|key| key.offset.0)),
                param(groups),
            ];
            self.add(LETTERS, params, move |known, rows| {
                load_letters(known, rows)?;
                for key in keys {
                    known.memory.letters.entry(key).or_insert(None);
                }
                Ok(())
            });
        }
        for (place, limit) in wanted.letter_pages.clone() {
            let (queue, after) = &place;
            let after = after.clone().unwrap_or(LetterPlace {
                failed_at: std::cmp::Reverse(Timestamp::MAX),
                partition: PartitionId(0),
                offset: std::cmp::Reverse(Offset(i64::MAX.cast_unsigned())),
                group: "".into(),
            });
            let params = vec![
                param(signed(queue.0)),
                param(after.failed_at.0.micros()),
                param(signed(after.partition.0)),
                param(signed(after.offset.0.0)),
                param(after.group.to_string()),
                param(i64::try_from(limit).unwrap_or(i64::MAX)),
            ];
            self.add(LETTER_PAGE, params, move |known, rows| {
                let count = rows.len();
                let end = load_letters(known, rows)?;
                known.memory.letter_pages.insert(place, Page { rows: count, end, all: count < limit });
                Ok(())
            });
        }
        for (place, limit) in wanted.letter_keys.clone() {
            let (queue, after) = &place;
            // Places begin at 0.
            let (partition, offset, group) = after
                .as_ref()
                .map_or((0, -1, ""), |key| (signed(key.partition.0), signed(key.offset.0), &*key.group));
            let params = vec![
                param(signed(queue.0)),
                param(partition),
                param(offset),
                param(group.to_owned()),
                param(i64::try_from(limit).unwrap_or(i64::MAX)),
            ];
            self.add(LETTER_KEYS, params, move |known, rows| {
                let keys: Vec<_> = rows.iter().map(|row| letter_key(place.0, row)).collect();
                let all = keys.len() < limit;
                known.memory.letter_key_pages.insert(place, LetterKeys { keys, all });
                Ok(())
            });
        }
    }
}

/// A key that sorts right before every key with this prefix and after every other that does.
fn before_prefix(prefix: &str) -> Vec<u8> {
    let mut bytes = prefix.as_bytes().to_vec();
    // Keys are not empty, and no key ends in a byte that text cannot hold.
    match bytes.pop() {
        // Nothing stands between a text and the same text with a zero behind it.
        None | Some(0) => {}
        Some(last) => {
            bytes.push(last - 1);
            bytes.extend([0xFF; 4]);
        }
    }
    bytes
}

/// The first bytes that sort after every key with this prefix.
fn after_prefix(prefix: &str) -> Option<Vec<u8>> {
    let mut bytes = prefix.as_bytes().to_vec();
    // Text never holds 0xFF, so the last byte can be raised.
    *bytes.last_mut()? += 1;
    Some(bytes)
}

/// All queues and groups, and a number that they had, or have already changed since.
pub async fn load_structure(link: &Link) -> Result<(i64, Structure), Trouble> {
    let calls = [VERSIONS, QUEUES, GROUPS].map(|text| call(text, Vec::new()));
    let results = link.run(calls.into()).await?;
    let mut structure = Structure::default();
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
    Ok((Versions::read(&results[0][0]).structure, structure))
}
