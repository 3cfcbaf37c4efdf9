//! Keys.

use baton_store::Error;
use baton_types::{Offset, PartitionId, Timestamp};
use bytes::Buf;

use super::corrupt_row;

/// The key of the numbers that must not repeat.
pub const COUNTERS_KEY: &[u8] = b"counters";
/// The key of the row that says how many bytes of each dedup file were synced.
pub const DEDUP_FILES_KEY: &[u8] = b"ids";
/// The prefix of the keys of rows about files of the log.
pub const LOG_FILE_KEYS: &[u8] = b"log";
/// The prefix of the keys that name partitions with segments before their start.
pub const TRIM_KEYS: &[u8] = b"trim";

/// A segment's key: partition, first offset and time.
pub const SEGMENT_KEY_BYTES: usize = 24;

pub fn number_key(id: u64) -> [u8; 8] {
    id.to_be_bytes()
}

pub fn pair_key(first: u64, second: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&first.to_be_bytes());
    key[8..].copy_from_slice(&second.to_be_bytes());
    key
}

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
        return Err(corrupt_row("segment"));
    }
    key.advance(8);
    Ok((Offset(key.get_u64()), Timestamp::from_micros(key.get_u64().cast_signed())))
}

pub fn read_number(bytes: &[u8]) -> Result<u64, Error> {
    Ok(u64::from_be_bytes(bytes.try_into().map_err(|_| corrupt_row("number"))?))
}

pub fn read_pair(mut key: &[u8]) -> Result<(u64, u64), Error> {
    if key.len() != 16 {
        return Err(corrupt_row("cursor"));
    }
    Ok((key.get_u64(), key.get_u64()))
}

/// The key of a row that says: segments before this partition's start are still to be deleted.
pub fn trim_key(partition: PartitionId) -> Vec<u8> {
    [TRIM_KEYS, &partition.0.to_be_bytes()].concat()
}

/// The key of the row about a file of the log.
pub fn log_file_key(file: u64) -> Vec<u8> {
    [LOG_FILE_KEYS, &file.to_be_bytes()].concat()
}
