//! The keyspaces on disk, and how rows become keys and values in them.
//!
//! Numbers in keys are big endian so that they sort; numbers in values are little endian. A segment's key also
//! holds its time, so that finding a moment touches no payload.

use std::sync::Arc;

use baton_store::{Cursor, Error, Group, Lease, OffsetRanges, Partition, Queue, Retries};
use baton_types::{LeaseId, Offset, PartitionId, QueueId, Timestamp};
use bytes::{Buf, BufMut, Bytes};
use fjall::compaction::Leveled;
use fjall::config::{CompressionPolicy, FilterPolicy};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions};

/// Bytes of a keyspace's write buffer before it goes to a sorted file. With the journal's bound this decides
/// how much is replayed at start.
const WRITE_BUFFER_BYTES: u64 = 32 << 20;
/// So many sorted files of a keyspace may overlap before they are merged. With many partitions each file has rows
/// of all of them, so a merge rewrites everything: rarely is better than soon.
const SORTED_FILES_UNMERGED: u8 = 12;
/// Dead letters from this size on live in blob files, so that compaction moves pointers, not payloads.
const BLOB_FROM_BYTES: u32 = 1 << 7;
/// Blob files of this size are dropped or rewritten as a whole when retention has emptied them.
const BLOB_FILE_BYTES: u64 = 32 << 20;
/// A blob file is rewritten when this part of it is garbage.
const BLOB_GARBAGE: f32 = 0.3;

/// The open keyspaces.
pub struct Tables {
    /// Numbers that must not repeat.
    pub meta: Keyspace,
    /// Queues by id, as JSON.
    pub queues: Keyspace,
    /// Groups by id, as JSON.
    pub groups: Keyspace,
    /// Partitions by id.
    pub partitions: Keyspace,
    /// Where partitions end, as far as their rows do not tell (`tails`).
    pub tails: Keyspace,
    /// Cursors by group and partition.
    pub cursors: Keyspace,
    /// Where segments are in the log, by partition, first offset and time.
    pub segments: Keyspace,
    /// Records by key.
    pub records: Keyspace,
    /// Dead letters by queue and time.
    pub letters: Keyspace,
    /// The time of a dead letter by queue, message and group.
    pub letter_times: Keyspace,
}

impl Tables {
    /// Opens or creates all keyspaces.
    pub fn open(db: &Database) -> fjall::Result<Self> {
        let small = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(WRITE_BUFFER_BYTES / 2)
                .data_block_compression_policy(CompressionPolicy::disabled())
                .compaction_strategy(Arc::new(Leveled::default().with_l0_threshold(SORTED_FILES_UNMERGED)))
        };
        let blobs = || {
            small().max_memtable_size(WRITE_BUFFER_BYTES).with_kv_separation(Some(
                KvSeparationOptions::default()
                    .compression(CompressionType::None)
                    .separation_threshold(BLOB_FROM_BYTES)
                    .file_target_size(BLOB_FILE_BYTES)
                    .staleness_threshold(BLOB_GARBAGE),
            ))
        };
        // Filters tell whether a key is there; these tables are only ever read in order.
        let in_order = |options: KeyspaceCreateOptions| options.filter_policy(FilterPolicy::disabled());
        Ok(Self {
            meta: db.keyspace("meta", small)?,
            queues: db.keyspace("queues", || in_order(small()))?,
            groups: db.keyspace("groups", || in_order(small()))?,
            partitions: db.keyspace("partitions", || in_order(small()))?,
            tails: db.keyspace("tails", || in_order(small()))?,
            cursors: db.keyspace("cursors", || in_order(small()))?,
            segments: db.keyspace("segments", || in_order(small()).max_memtable_size(WRITE_BUFFER_BYTES))?,
            records: db.keyspace("records", small)?,
            letters: db.keyspace("letters", blobs)?,
            letter_times: db.keyspace("letter_times", small)?,
        })
    }
}

impl Tables {
    pub fn all(&self) -> [&Keyspace; 10] {
        let Self { meta, queues, groups, partitions, tails, cursors, segments, .. } = self;
        let Self { records, letters, letter_times, .. } = self;
        [meta, queues, groups, partitions, tails, cursors, segments, records, letters, letter_times]
    }
}

/// A keyspace's failure as the store's own error.
pub fn engine_error(error: fjall::Error) -> Error {
    Error::Closed(format!("the storage engine failed: {error:?}"))
}

pub fn corrupt(what: &str) -> Error {
    Error::Corrupt(format!("a {what} row cannot be read"))
}

pub fn number_key(id: u64) -> [u8; 8] {
    id.to_be_bytes()
}

pub fn pair_key(first: u64, second: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&first.to_be_bytes());
    key[8..].copy_from_slice(&second.to_be_bytes());
    key
}

pub const SEGMENT_KEY_BYTES: usize = 24;

/// The key of a segment.
pub fn segment_key(partition: PartitionId, base: Offset, created_at: Timestamp) -> [u8; SEGMENT_KEY_BYTES] {
    let mut key = [0; SEGMENT_KEY_BYTES];
    key[..16].copy_from_slice(&pair_key(partition.0, base.0));
    key[16..].copy_from_slice(&created_at.micros().cast_unsigned().to_be_bytes());
    key
}

/// The first offset and the time in a segment's key.
pub fn read_segment_key(mut key: &[u8]) -> Result<(Offset, Timestamp), Error> {
    if key.len() != SEGMENT_KEY_BYTES {
        return Err(corrupt("segment"));
    }
    key.advance(8);
    Ok((Offset(key.get_u64()), Timestamp::from_micros(key.get_u64().cast_signed())))
}

pub fn read_number(bytes: &[u8]) -> Result<u64, Error> {
    Ok(u64::from_be_bytes(bytes.try_into().map_err(|_| corrupt("number"))?))
}

pub fn read_pair(mut key: &[u8]) -> Result<(u64, u64), Error> {
    if key.len() != 16 {
        return Err(corrupt("cursor"));
    }
    Ok((key.get_u64(), key.get_u64()))
}

pub fn queue_value(queue: &Queue) -> Bytes {
    serde_json::to_vec(queue).unwrap_or_default().into()
}

pub fn read_queue(bytes: &[u8]) -> Result<Queue, Error> {
    serde_json::from_slice(bytes).map_err(|_| corrupt("queue"))
}

pub fn group_value(group: &Group) -> Bytes {
    serde_json::to_vec(group).unwrap_or_default().into()
}

pub fn read_group(bytes: &[u8]) -> Result<Group, Error> {
    serde_json::from_slice(bytes).map_err(|_| corrupt("group"))
}

/// A partition's row without its id, which is its key.
#[cfg(test)]
pub fn partition_value(partition: &Partition) -> Bytes {
    let (queue, name, deleted) = (partition.queue, &partition.name, &partition.deleted);
    let offsets = [partition.start, partition.tail];
    let times = [partition.created_at, partition.first_at, partition.last_at];
    partition_row(queue, name, offsets, times, deleted)
}

/// The same from its parts: start and tail; times of creation, of the first and of the last message.
pub fn partition_row(
    queue: QueueId,
    name: &str,
    offsets: [Offset; 2],
    times: [Timestamp; 3],
    deleted: &OffsetRanges,
) -> Bytes {
    let mut row = Vec::with_capacity(54 + name.len() + 16 * deleted.ranges().len());
    row.put_u64_le(queue.0);
    offsets.iter().for_each(|offset| row.put_u64_le(offset.0));
    times.iter().for_each(|time| row.put_i64_le(time.micros()));
    row.put_u16_le(u16::try_from(name.len()).unwrap_or(u16::MAX));
    row.put_slice(name.as_bytes());
    put_ranges(&mut row, deleted);
    row.into()
}

pub fn read_partition(id: u64, mut row: &[u8]) -> Result<Partition, Error> {
    let read = |row: &mut &[u8]| -> Option<Partition> {
        let (queue, start, tail) = (number(row)?, number(row)?, number(row)?);
        let (created_at, first_at, last_at) = (time(row)?, time(row)?, time(row)?);
        let length = usize::from(row.try_get_u16_le().ok()?);
        let name = std::str::from_utf8(row.get(..length)?).ok()?.into();
        row.advance(length);
        let deleted = ranges(row)?;
        Some(Partition {
            id: PartitionId(id),
            queue: QueueId(queue),
            name,
            start: Offset(start),
            tail: Offset(tail),
            created_at,
            first_at,
            last_at,
            deleted,
        })
    };
    read(&mut row).filter(|_| row.is_empty()).ok_or_else(|| corrupt("partition"))
}

pub fn cursor_value(cursor: &Cursor) -> Bytes {
    let mut row = Vec::with_capacity(64);
    row.put_u64_le(cursor.next.0);
    row.put_i64_le(cursor.available_at.micros());
    // Older servers kept one count per cursor here.
    row.put_u32_le(0);
    row.put_u32_le(cursor.attempts);
    row.put_u64_le(cursor.consumed);
    row.put_i64_le(cursor.last_pop_at.micros());
    match &cursor.lease {
        None => row.put_u8(0),
        Some(lease) => {
            row.put_u8(1);
            row.put_u128_le(lease.id.0.as_u128());
            row.put_u64_le(lease.token);
            row.put_i64_le(lease.until.micros());
            row.put_u64_le(lease.end.0);
        }
    }
    put_ranges(&mut row, cursor.finished.as_deref().unwrap_or(&OffsetRanges::default()));
    for (offset, spent) in cursor.retries.iter().flat_map(|retries| retries.entries()) {
        row.put_u64_le(*offset);
        row.put_u32_le(*spent);
    }
    row.into()
}

const PLACE_BYTES: usize = 16;

/// Where a group that begins at the moment `at` begins in a partition, in place of a cursor that nobody has written.
pub fn place_value(next: Offset, at: Timestamp) -> Bytes {
    let mut row = Vec::with_capacity(PLACE_BYTES);
    row.put_u64_le(next.0);
    row.put_i64_le(at.micros());
    row.into()
}

/// Such a place, unless the row is a cursor.
pub fn read_place(mut row: &[u8]) -> Option<(Offset, Timestamp)> {
    if row.len() != PLACE_BYTES {
        return None;
    }
    Some((Offset(number(&mut row)?), time(&mut row)?))
}

pub fn read_cursor(mut row: &[u8]) -> Result<Cursor, Error> {
    let read = |row: &mut &[u8]| -> Option<Cursor> {
        let (next, available_at) = (Offset(number(row)?), time(row)?);
        let (of_next, attempts) = (row.try_get_u32_le().ok()?, row.try_get_u32_le().ok()?);
        let (consumed, last_pop_at) = (number(row)?, time(row)?);
        let lease = match row.try_get_u8().ok()? {
            0 => None,
            _ => Some(Box::new(Lease {
                id: LeaseId(uuid_from(row.try_get_u128_le().ok()?)),
                token: number(row)?,
                until: time(row)?,
                end: Offset(number(row)?),
            })),
        };
        let finished = Some(ranges(row)?).filter(|r| !r.is_empty()).map(Box::new);
        let mut retries: Vec<_> = (of_next > 0).then_some((next.0, of_next)).into_iter().collect();
        while !row.is_empty() {
            retries.push((number(row)?, row.try_get_u32_le().ok()?));
        }
        let retries = (!retries.is_empty()).then(|| Box::new(Retries::from_entries(retries)));
        Some(Cursor { next, available_at, lease, finished, retries, attempts, consumed, last_pop_at })
    };
    read(&mut row).filter(|_| row.is_empty()).ok_or_else(|| corrupt("cursor"))
}

fn uuid_from(bits: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(bits)
}

fn number(row: &mut &[u8]) -> Option<u64> {
    row.try_get_u64_le().ok()
}

fn time(row: &mut &[u8]) -> Option<Timestamp> {
    row.try_get_i64_le().ok().map(Timestamp::from_micros)
}

fn put_ranges(row: &mut Vec<u8>, ranges: &OffsetRanges) {
    row.put_u32_le(u32::try_from(ranges.ranges().len()).unwrap_or(u32::MAX));
    for (start, end) in ranges.ranges() {
        row.put_u64_le(*start);
        row.put_u64_le(*end);
    }
}

fn ranges(row: &mut &[u8]) -> Option<OffsetRanges> {
    let count = row.try_get_u32_le().ok()?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        pairs.push((number(row)?, number(row)?));
    }
    Some(OffsetRanges::from_ranges(pairs))
}

/// The key under which the numbers that must not repeat are kept.
pub const COUNTERS_KEY: &[u8] = b"counters";

/// The key under which it is kept how much of each file of transaction ids was synced.
pub const IDS_KEY: &[u8] = b"ids";

/// The key of a note that segments before a partition's start are still to be removed.
pub fn trim_note_key(partition: PartitionId) -> Vec<u8> {
    [TRIM_NOTES, &partition.0.to_be_bytes()].concat()
}

/// What the keys of rows about the log's files begin with.
pub const LOG_USAGE: &[u8] = b"log";

/// What the keys of these notes begin with.
pub const TRIM_NOTES: &[u8] = b"trim";

/// Numbers that must not repeat, also over a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The next queue, group or partition id.
    pub next_id: u64,
    /// The version of the next record write.
    pub next_version: u64,
    /// How often the directory was opened, or ran out of tokens since; the high part of a token.
    pub opened: u64,
    /// The store's time in the last commit.
    pub now: Timestamp,
    /// The number of the last commit.
    pub commits: u64,
    /// The last that was on disk before the engine was told of it.
    pub synced: u64,
}

/// The first ranges of tokens are this long, as they were always.
const LONG_RANGE: u64 = 1 << 40;
/// The others, so that tokens stay exact as doubles however often a directory is opened.
const SHORT_RANGE: u64 = 1 << 20;
/// How many are long.
const LONG_RANGES: u64 = 1 << 12;

impl Counters {
    /// The directory is opened: tokens begin above all before.
    pub fn reopen(&mut self) {
        // A crash may have forgotten that a short range was used up.
        self.opened += if self.opened < LONG_RANGES { 1 } else { 2 };
    }

    /// The token that comes after `drawn` others of the present range.
    pub fn next_token(&mut self, drawn: &mut u64) -> u64 {
        let long = self.opened.min(LONG_RANGES);
        let short = self.opened - long;
        *drawn += 1;
        let token = long * LONG_RANGE + short * SHORT_RANGE + *drawn;
        if *drawn + 1 >= (if self.opened < LONG_RANGES { LONG_RANGE } else { SHORT_RANGE }) {
            self.opened += 1;
            *drawn = 0;
        }
        token
    }

    pub fn value(&self) -> Bytes {
        let mut row = Vec::with_capacity(48);
        row.put_u64_le(self.next_id);
        row.put_u64_le(self.next_version);
        row.put_u64_le(self.opened);
        row.put_i64_le(self.now.micros());
        row.put_u64_le(self.commits);
        row.put_u64_le(self.synced);
        row.into()
    }

    pub fn read(mut row: &[u8]) -> Result<Self, Error> {
        let mut field = || number(&mut row).ok_or_else(|| corrupt("counters"));
        let (next_id, next_version, opened) = (field()?, field()?, field()?);
        let (now, commits) = (Timestamp::from_micros(field()?.cast_signed()), field()?);
        Ok(Self { next_id, next_version, opened, now, commits, synced: field()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_rise_and_stay_exact_as_doubles_however_often_a_directory_is_opened() {
        let mut counters = Counters::default();
        let mut last = 0;
        for opened in [0, 100, LONG_RANGES - 2, LONG_RANGES + 100, u64::from(u32::MAX) - 5_000] {
            counters.opened = opened;
            for _ in 0..3 {
                counters.reopen();
                for mut drawn in [0, SHORT_RANGE - 3] {
                    for _ in 0..3 {
                        let token = counters.next_token(&mut drawn);
                        assert!(token > last && token < 1 << 53, "{token} after {last} at {opened}");
                        last = token;
                    }
                }
            }
        }
    }

    #[test]
    fn rows_survive_the_way_to_disk_and_back() {
        let partition = Partition {
            id: PartitionId(7),
            queue: QueueId(3),
            name: "kunde-42 ü".into(),
            start: Offset(5),
            tail: Offset(9),
            created_at: Timestamp::from_micros(1),
            first_at: Timestamp::from_micros(2),
            last_at: Timestamp::from_micros(3),
            deleted: OffsetRanges::from_ranges([(6, 7)]),
        };
        assert_eq!(read_partition(7, &partition_value(&partition)).unwrap(), partition);
        let lease = Lease {
            id: LeaseId(uuid_from(u128::MAX / 3)),
            token: 8,
            until: Timestamp::from_micros(4),
            end: Offset(12),
        };
        let cursor = Cursor {
            next: Offset(4),
            available_at: Timestamp::from_micros(5),
            lease: Some(Box::new(lease)),
            finished: Some(Box::new(OffsetRanges::from_ranges([(6, 8)]))),
            retries: Some(Box::new(Retries::from_entries([(4, 1), (9, 3)]))),
            attempts: 2,
            consumed: 3,
            last_pop_at: Timestamp::from_micros(6),
        };
        assert_eq!(read_cursor(&cursor_value(&cursor)).unwrap(), cursor);
        assert_eq!(read_cursor(&cursor_value(&Cursor::default())).unwrap(), Cursor::default());
        let mut older = cursor_value(&Cursor { next: Offset(4), ..Cursor::default() }).to_vec();
        older[16] = 2;
        let retries = read_cursor(&older).unwrap().retries.unwrap();
        assert_eq!(retries.entries(), [(4, 2)], "the count of an older server is that of the first message");
        assert_eq!(read_place(&cursor_value(&Cursor::default())), None);
        let place = (Offset(3), Timestamp::from_micros(4));
        assert_eq!(read_place(&place_value(place.0, place.1)), Some(place));
        let counters = Counters {
            next_id: 1,
            next_version: 2,
            opened: 3,
            now: Timestamp::from_micros(4),
            commits: 5,
            synced: 6,
        };
        assert_eq!(Counters::read(&counters.value()).unwrap(), counters);
    }

    #[test]
    fn a_cut_row_is_damage_not_a_panic() {
        let whole = cursor_value(&Cursor::default());
        for length in 0..whole.len() {
            assert!(read_cursor(&whole[..length]).is_err());
        }
    }
}
