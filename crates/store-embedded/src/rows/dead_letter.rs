//! Dead letters. One table has them in the order of time, the newest first; another has the time of each by its message.

use baton_store::{DeadLetter, DeadLetterKey, Error};
use baton_types::{Offset, PartitionId, QueueId, Timestamp};
use bytes::{Buf, BufMut, Bytes};

use super::corrupt_row;

/// The key of a dead letter. Those of a queue are neighbours, the newest first.
pub fn dead_letter_key(letter: &DeadLetter) -> Vec<u8> {
    dead_letter_key_at(&letter.key, letter.failed_at)
}

pub fn dead_letter_key_at(key: &DeadLetterKey, failed_at: Timestamp) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40 + key.group.len());
    bytes.put_u64(key.queue.0);
    bytes.put_u64(u64::MAX - failed_at.micros().max(0).cast_unsigned());
    bytes.put_slice(&dead_letter_time_key(key)[8..]);
    bytes
}

/// The key of a dead letter's time.
pub fn dead_letter_time_key(key: &DeadLetterKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32 + key.group.len());
    bytes.put_u64(key.queue.0);
    bytes.put_u64(key.partition.0);
    bytes.put_u64(u64::MAX - key.offset.0);
    bytes.put_slice(key.group.as_bytes());
    bytes
}

/// The key and the time of a dead letter, from the row of its time.
pub fn decode_dead_letter_time(mut key: &[u8], mut time: Bytes) -> Option<(DeadLetterKey, Timestamp)> {
    let queue = QueueId(key.try_get_u64().ok()?);
    let partition = PartitionId(key.try_get_u64().ok()?);
    let offset = Offset(u64::MAX - key.try_get_u64().ok()?);
    let group = std::str::from_utf8(key).ok()?.into();
    let failed_at = Timestamp::from_micros(time.try_get_i64_le().ok()?);
    Some((DeadLetterKey { queue, partition, offset, group }, failed_at))
}

pub fn encode_dead_letter(letter: &DeadLetter) -> Bytes {
    let meta = serde_json::to_vec(letter).unwrap_or_default();
    let mut row = Vec::with_capacity(4 + meta.len() + letter.payload.len());
    row.put_u32_le(u32::try_from(meta.len()).unwrap_or(u32::MAX));
    row.put_slice(&meta);
    row.put_slice(&letter.payload);
    row.into()
}

pub fn decode_dead_letter(mut row: Bytes) -> Result<DeadLetter, Error> {
    let length = row.try_get_u32_le().map_err(|_| corrupt_row("dead letter"))?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > row.len() {
        return Err(corrupt_row("dead letter"));
    }
    let meta = row.split_to(length);
    let letter: DeadLetter = serde_json::from_slice(&meta).map_err(|_| corrupt_row("dead letter"))?;
    Ok(DeadLetter { payload: row, ..letter })
}
