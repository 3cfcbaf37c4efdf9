//! Decodes fetched rows into the batch.

use baton_store::{DeadLetter, DeadLetterKey, Error, Partition, Record};
use baton_types::{GroupId, Offset, PartitionId, QueueId, Timestamp};

use crate::client::connection::{PgRow, read_timestamp, read_u64, to_bigint};
use crate::state::batch::{BatchState, PartitionEntry};
use crate::state::dedup::DedupIndex;
use crate::state::group_slot::{GroupSlot, decode_ranges};
use crate::state::missing_rows::DeadLetterPosition;

/// What fetched rows are added to.
pub struct FetchTarget<'a> {
    pub batch: &'a mut BatchState,
    pub dedup_index: &'a mut DedupIndex,
}

/// Adds slots whose columns begin at column `at`.
pub fn read_slots(target: &mut FetchTarget<'_>, rows: &[PgRow], at: usize) -> Result<(), Error> {
    for row in rows {
        let Some(partition) = row.get::<Option<i64>>(at) else { continue };
        let (partition, group) = (PartitionId(partition.cast_unsigned()), GroupId(read_u64(row, at + 1)));
        let (next, line) = (Offset(read_u64(row, at + 2)), row.get(at + 3));
        let slot = GroupSlot::decode(next, line, row.get(at + 4), row.get(at + 5))?;
        target.batch.add_fetched_slot(partition, group, slot);
    }
    Ok(())
}

pub fn read_records(target: &mut FetchTarget<'_>, rows: Vec<PgRow>) -> Result<(), Error> {
    for row in rows {
        let key = String::from_utf8(row.get(0))
            .map_err(|_| Error::Corrupt("a record's key is not UTF-8".into()))?;
        let expires_at = row.get::<Option<i64>>(2).map(Timestamp::from_micros);
        let version = read_u64(&row, 1);
        target.batch.clock.observe_number(to_bigint(version));
        // A copy, because the row cache may keep it longer than the buffer of its answer.
        let record = Record { version, expires_at, value: row.get::<Vec<u8>>(3).into() };
        target.batch.record_bytes += record.value.len();
        target.batch.records.entry(key).or_insert(Some(record));
    }
    Ok(())
}

/// Adds dead letters. Returns the position of the last one.
pub fn read_dead_letters(
    target: &mut FetchTarget<'_>,
    rows: Vec<PgRow>,
) -> Result<Option<DeadLetterPosition>, Error> {
    let mut end = None;
    for row in rows {
        let letter: DeadLetter = read_json(row.get(1))?;
        let letter = DeadLetter { payload: row.bytes(2).unwrap_or_default(), ..letter };
        end = Some(DeadLetterPosition::new(&letter.key, letter.failed_at));
        target.batch.dead_letters.entry(letter.key.clone()).or_insert(Some(letter));
    }
    Ok(end)
}

/// A dead letter's key, and when the message was given up.
pub fn read_dead_letter_key(queue: QueueId, row: &PgRow) -> (DeadLetterKey, Timestamp) {
    let (partition, offset) = (PartitionId(read_u64(row, 0)), Offset(read_u64(row, 1)));
    (DeadLetterKey { queue, partition, offset, group: row.get::<&str>(2).into() }, read_timestamp(row, 3))
}

pub fn read_json<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|e| Error::Corrupt(format!("a row cannot be decoded: {e}")))
}

/// A partition whose columns come first in the row.
pub fn read_partition(row: &PgRow, held: bool, complete: bool) -> Result<PartitionEntry, Error> {
    let deleted = match row.get::<Option<Vec<u8>>>(8) {
        Some(value) => decode_ranges(value.into())
            .ok_or_else(|| Error::Corrupt("a partition row is truncated".into()))?,
        None => Default::default(),
    };
    let partition = Partition {
        id: PartitionId(read_u64(row, 0)),
        queue: QueueId(read_u64(row, 1)),
        name: row.get::<&str>(2).into(),
        start: Offset(read_u64(row, 3)),
        tail: Offset(read_u64(row, 4)),
        created_at: read_timestamp(row, 5),
        first_at: read_timestamp(row, 6),
        last_at: read_timestamp(row, 7),
        deleted,
    };
    Ok(PartitionEntry::from_database(partition, row.get(9), held, complete))
}
