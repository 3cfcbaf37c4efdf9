//! Records, by key and in pages by prefix.

use baton_store::{Error, Record, Tx, TxError};
use baton_types::{Timestamp, limits};
use bytes::Bytes;

use super::EmbeddedTx;
use crate::rows::{corrupt_row, decode_record, encode_record};

pub fn get(tx: &mut EmbeddedTx<'_>, key: &str) -> Result<Option<Record>, TxError> {
    let writer = &tx.writer;
    let (value, batch) = writer.overlays.records.get(&writer.shared.tables.records, key.as_bytes())?;
    tx.depend_on(batch);
    let record = value.map(decode_record).transpose()?;
    Ok(record.filter(|record| is_live(record, tx.now())))
}

pub fn put(
    tx: &mut EmbeddedTx<'_>,
    key: &str,
    value: Bytes,
    expires_at: Option<Timestamp>,
) -> Result<u64, TxError> {
    if value.len() > limits::RECORD_BYTES_MAX {
        return Err(Error::TooLarge { bytes: value.len(), max: limits::RECORD_BYTES_MAX }.into());
    }
    tx.admit_update()?;
    let version = tx.writer.counters.next_version;
    tx.writer.counters.next_version += 1;
    write(tx, key, Some(encode_record(&Record { value, version, expires_at })));
    Ok(version)
}

pub fn remove(tx: &mut EmbeddedTx<'_>, key: &str) {
    write(tx, key, None);
}

fn write(tx: &mut EmbeddedTx<'_>, key: &str, row: Option<Bytes>) {
    tx.mark_durable_write();
    let batch = tx.writer.batch.seq();
    tx.writer.overlays.records.put(batch, key.as_bytes().to_vec(), row);
}

pub fn page(
    tx: &mut EmbeddedTx<'_>,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<(String, Record)>, TxError> {
    let now = tx.now();
    let live =
        |_: &[u8], value: &Bytes| decode_record(value.clone()).is_ok_and(|record| is_live(&record, now));
    let (writer, after) = (&tx.writer, after.map(str::as_bytes));
    let table = &writer.shared.tables.records;
    let (found, batch) = writer.overlays.records.scan(table, prefix.as_bytes(), after, limit, live)?;
    tx.depend_on(batch);
    let decode = |(key, value): (Vec<u8>, Bytes)| {
        let key = String::from_utf8(key).map_err(|_| corrupt_row("record"))?;
        Ok((key, decode_record(value)?))
    };
    Ok(found.into_iter().map(decode).collect::<Result<_, Error>>()?)
}

fn is_live(record: &Record, now: Timestamp) -> bool {
    record.expires_at.is_none_or(|at| at > now)
}
