//! From the rows of answers to what is known.

use baton_store::{DeadLetter, DeadLetterKey, Error, Partition, Record};
use baton_types::{GroupId, Offset, PartitionId, QueueId, Timestamp};

use crate::link::{Row, moment, signed, unsigned};
use crate::memory::{Entry, Memory};
use crate::remembered::Remembered;
use crate::slot::{Slot, read_ranges};
use crate::wanted::LetterPlace;

/// What rows are read into.
pub struct Known<'a> {
    pub memory: &'a mut Memory,
    pub remembered: &'a mut Remembered,
}

/// Slots whose columns begin at a place.
pub fn load_slots(known: &mut Known<'_>, rows: &[Row], at: usize) -> Result<(), Error> {
    for row in rows {
        let Some(partition) = row.get::<Option<i64>>(at) else { continue };
        let (partition, group) = (PartitionId(partition.cast_unsigned()), GroupId(unsigned(row, at + 1)));
        let (next, line) = (Offset(unsigned(row, at + 2)), row.get(at + 3));
        let slot = Slot::read(next, line, row.get(at + 4), row.get(at + 5))?;
        known.memory.load_slot(partition, group, slot);
    }
    Ok(())
}

pub fn load_records(known: &mut Known<'_>, rows: Vec<Row>) -> Result<(), Error> {
    for row in rows {
        let key =
            String::from_utf8(row.get(0)).map_err(|_| Error::Corrupt("a record's key is no text".into()))?;
        let expires_at = row.get::<Option<i64>>(2).map(Timestamp::from_micros);
        let version = unsigned(&row, 1);
        known.memory.clock.see_number(signed(version));
        // In a place of its own, because it may stay for longer than what came along with it.
        let record = Record { version, expires_at, value: row.get::<Vec<u8>>(3).into() };
        known.memory.record_bytes += record.value.len();
        known.memory.records.entry(key).or_insert(Some(record));
    }
    Ok(())
}

/// Tells where the last of them stands.
pub fn load_letters(known: &mut Known<'_>, rows: Vec<Row>) -> Result<Option<LetterPlace>, Error> {
    let mut end = None;
    for row in rows {
        let letter: DeadLetter = read_json(row.get(1))?;
        let letter = DeadLetter { payload: row.bytes(2).unwrap_or_default(), ..letter };
        end = Some(LetterPlace::new(&letter.key, letter.failed_at));
        known.memory.letters.entry(letter.key.clone()).or_insert(Some(letter));
    }
    Ok(end)
}

/// A letter's key, and when the message was given up.
pub fn letter_key(queue: QueueId, row: &Row) -> (DeadLetterKey, Timestamp) {
    let (partition, offset) = (PartitionId(unsigned(row, 0)), Offset(unsigned(row, 1)));
    (DeadLetterKey { queue, partition, offset, group: row.get::<&str>(2).into() }, moment(row, 3))
}

pub fn read_json<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|e| Error::Corrupt(format!("a row cannot be read: {e}")))
}

/// A partition whose columns come first in the row.
pub fn read_entry(row: &Row, held: bool, complete: bool) -> Result<Entry, Error> {
    let deleted = match row.get::<Option<Vec<u8>>>(8) {
        Some(value) => {
            read_ranges(value.into()).ok_or_else(|| Error::Corrupt("a partition is cut short".into()))?
        }
        None => Default::default(),
    };
    let partition = Partition {
        id: PartitionId(unsigned(row, 0)),
        queue: QueueId(unsigned(row, 1)),
        name: row.get::<&str>(2).into(),
        start: Offset(unsigned(row, 3)),
        tail: Offset(unsigned(row, 4)),
        created_at: moment(row, 5),
        first_at: moment(row, 6),
        last_at: moment(row, 7),
        deleted,
    };
    Ok(Entry::stored(partition, row.get(9), held, complete))
}
