//! How rows become keys and values, and keys and values become rows.
//!
//! Numbers in keys are big endian, so that they sort. Numbers in values are little endian. A segment's key also
//! holds its time, so that a search for a moment reads no payload. Always: a row that is cut short or changed is an
//! error and never a panic. Not here: where rows are stored (`index::tables`, `wal`).

mod counters;
mod cursor;
mod dead_letter;
mod keys;
mod partition;
mod queue;
mod record;

use baton_store::Error;
use baton_types::Timestamp;
use bytes::Buf;

pub use counters::Counters;
pub use cursor::{decode_cursor, decode_start_offset, encode_cursor, encode_start_offset};
pub use dead_letter::{
    dead_letter_key, dead_letter_key_at, dead_letter_time_key, decode_dead_letter, decode_dead_letter_time,
    encode_dead_letter,
};
pub use keys::{
    COUNTERS_KEY, DEDUP_FILES_KEY, LOG_FILE_KEYS, SEGMENT_KEY_BYTES, TRIM_KEYS, log_file_key, number_key,
    pair_key, read_number, read_pair, read_segment_key, segment_key, trim_key,
};
pub use partition::{PartitionFields, decode_partition, encode_partition};
pub use queue::{decode_group, decode_queue, encode_group, encode_queue};
pub use record::{decode_record, encode_record};

/// The error for a row that cannot be decoded.
pub fn corrupt_row(kind: &str) -> Error {
    Error::Corrupt(format!("a {kind} row cannot be read"))
}

fn read_u64(row: &mut &[u8]) -> Option<u64> {
    row.try_get_u64_le().ok()
}

fn read_time(row: &mut &[u8]) -> Option<Timestamp> {
    row.try_get_i64_le().ok().map(Timestamp::from_micros)
}
