//! Records, by key and in pages by prefix.

use baton_store::{Durability, Error, Record, Tx, TxError};
use baton_types::{Timestamp, limits};
use bytes::Bytes;

use super::{PostgresTx, SPARE_ROWS, unwind_for_missing_row};

pub fn get(tx: &mut PostgresTx<'_>, key: &str) -> Result<Option<Record>, TxError> {
    tx.batch.reads_records = true;
    match tx.batch.records.get(key) {
        Some(record) => Ok(record.clone().filter(|record| is_live(tx, record))),
        None => {
            tx.batch.missing.records.insert(key.into());
            Err(TxError::RowsMissing)
        }
    }
}

pub fn put(
    tx: &mut PostgresTx<'_>,
    key: &str,
    value: Bytes,
    expires_at: Option<Timestamp>,
) -> Result<u64, TxError> {
    if value.len() > limits::RECORD_BYTES_MAX {
        return Err(Error::TooLarge { bytes: value.len(), max: limits::RECORD_BYTES_MAX }.into());
    }
    if !tx.batch.prepare_to_write_records() {
        return Err(TxError::RowsMissing);
    }
    // Higher than the stored version, because the clock has observed the version of the last commit that
    // wrote records.
    let version = tx.fresh_token();
    tx.mark_write(Durability::Now);
    tx.batch.put_record(key, Some(Record { value, version, expires_at }));
    Ok(version)
}

pub fn remove(tx: &mut PostgresTx<'_>, key: &str) {
    if !tx.batch.prepare_to_write_records() {
        unwind_for_missing_row();
    }
    tx.mark_write(Durability::Now);
    tx.batch.put_record(key, None);
}

pub fn page(
    tx: &mut PostgresTx<'_>,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<(String, Record)>, TxError> {
    tx.batch.reads_records = true;
    let place = (prefix.to_owned(), after.map(str::to_owned));
    let mut asked = limit.saturating_add(SPARE_ROWS);
    if let Some(page) = tx.batch.record_pages.get(&place) {
        let end = page.last.as_ref().filter(|_| !page.is_last_page);
        let from = after.filter(|after| *after >= prefix);
        let here = tx.batch.records.range(from.unwrap_or(prefix).to_owned()..);
        let mut found = Vec::new();
        for (key, record) in here.take_while(|(key, _)| key.starts_with(prefix)) {
            if found.len() >= limit || end.is_some_and(|end| key > end) {
                break;
            }
            if let Some(record) = record
                && from != Some(key)
                && is_live(tx, record)
            {
                found.push((key.clone(), record.clone()));
            }
        }
        if found.len() >= limit || page.is_last_page {
            return Ok(found);
        }
        asked = asked.max(page.rows * 2 + limit);
    }
    let missing = tx.batch.missing.record_pages.entry(place).or_default();
    *missing = asked.max(*missing);
    Err(TxError::RowsMissing)
}

fn is_live(tx: &PostgresTx<'_>, record: &Record) -> bool {
    record.expires_at.is_none_or(|at| at > tx.batch.now)
}
