//! Records: version, expiry and value.

use baton_store::{Error, Record};
use baton_types::Timestamp;
use bytes::{Buf, BufMut, Bytes};

use super::corrupt_row;

pub fn encode_record(record: &Record) -> Bytes {
    let mut row = Vec::with_capacity(16 + record.value.len());
    row.put_u64_le(record.version);
    row.put_i64_le(record.expires_at.map_or(i64::MAX, Timestamp::micros));
    row.put_slice(&record.value);
    row.into()
}

pub fn decode_record(mut row: Bytes) -> Result<Record, Error> {
    let version = row.try_get_u64_le().map_err(|_| corrupt_row("record"))?;
    let expires_at = row.try_get_i64_le().map_err(|_| corrupt_row("record"))?;
    let expires_at = (expires_at != i64::MAX).then_some(Timestamp::from_micros(expires_at));
    Ok(Record { value: row, version, expires_at })
}
