//! Records: by key, and in pages by prefix.

use baton_store::{Durability, Error, Record, Stop, Tx};
use baton_types::{Timestamp, limits};
use bytes::Bytes;

use super::{PostgresTx, SPARE_ROWS, break_off};

pub fn get(tx: &mut PostgresTx<'_>, key: &str) -> Result<Option<Record>, Stop> {
    tx.memory.relies_on_records = true;
    match tx.memory.records.get(key) {
        Some(record) => Ok(record.clone().filter(|record| is_live(tx, record))),
        None => {
            tx.memory.wanted.records.insert(key.into());
            Err(Stop::Load)
        }
    }
}

pub fn put(
    tx: &mut PostgresTx<'_>,
    key: &str,
    value: Bytes,
    expires_at: Option<Timestamp>,
) -> Result<u64, Stop> {
    if value.len() > limits::RECORD_BYTES_MAX {
        return Err(Error::TooLarge { bytes: value.len(), max: limits::RECORD_BYTES_MAX }.into());
    }
    if !tx.memory.knows_records() {
        return Err(Stop::Load);
    }
    // Higher than the one that is there, for the clock has seen the number of the last commit that wrote records.
    let version = tx.fresh_token();
    tx.write(Durability::Now);
    tx.memory.put_record(key, Some(Record { value, version, expires_at }));
    Ok(version)
}

pub fn remove(tx: &mut PostgresTx<'_>, key: &str) {
    if !tx.memory.knows_records() {
        break_off();
    }
    tx.write(Durability::Now);
    tx.memory.put_record(key, None);
}

pub fn page(
    tx: &mut PostgresTx<'_>,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<(String, Record)>, Stop> {
    tx.memory.relies_on_records = true;
    let place = (prefix.to_owned(), after.map(str::to_owned));
    let mut asked = limit.saturating_add(SPARE_ROWS);
    if let Some(page) = tx.memory.record_pages.get(&place) {
        let end = page.end.as_ref().filter(|_| !page.all);
        let from = after.filter(|after| *after >= prefix);
        let here = tx.memory.records.range(from.unwrap_or(prefix).to_owned()..);
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
        if found.len() >= limit || page.all {
            return Ok(found);
        }
        asked = asked.max(page.rows * 2 + limit);
    }
    let wanted = tx.memory.wanted.record_pages.entry(place).or_default();
    *wanted = asked.max(*wanted);
    Err(Stop::Load)
}

fn is_live(tx: &PostgresTx<'_>, record: &Record) -> bool {
    record.expires_at.is_none_or(|at| at > tx.memory.now)
}
