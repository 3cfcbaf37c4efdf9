//! Expiring records: written with an expiry, and removed from disk some time after it.
//!
//! An expired record counts as absent at once ([`Tx::record`] does that); this module only frees the space. Always:
//! each expiring record has one entry in the expiry index, so a sweep reads only expired entries. A key that is
//! written here must not be written with [`Tx::put_record`] elsewhere. Start at [`put`].

use baton_types::Timestamp;
use bytes::Bytes;

use crate::{Record, Tx, TxError};

/// The prefix of the expiry index, which is ordered by time.
const DUE_PREFIX: &str = "expiry/";

fn due_key(at: Timestamp, key: &str) -> String {
    format!("{DUE_PREFIX}{:020}/{key}", at.micros())
}

/// Writes a record in place of `old`, the present record of this key. Returns its version.
pub fn put(
    tx: &mut dyn Tx,
    key: &str,
    old: Option<&Record>,
    value: Bytes,
    expires_at: Option<Timestamp>,
) -> Result<u64, TxError> {
    let version = tx.put_record(key, value, expires_at)?;
    let before = old.and_then(|old| old.expires_at);
    if before != expires_at {
        remove_due_entry(tx, key, before);
        if let Some(at) = expires_at {
            tx.put_record(&due_key(at, key), Bytes::new(), None)?;
        }
    }
    Ok(version)
}

/// Removes a record; `old` is its present value.
pub fn remove(tx: &mut dyn Tx, key: &str, old: &Record) {
    tx.remove_record(key);
    remove_due_entry(tx, key, old.expires_at);
}

fn remove_due_entry(tx: &mut dyn Tx, key: &str, expires_at: Option<Timestamp>) {
    if let Some(at) = expires_at {
        tx.remove_record(&due_key(at, key));
    }
}

/// Removes up to `limit` expired records. Returns how many index entries it removed.
pub fn sweep(tx: &mut dyn Tx, limit: usize) -> Result<usize, TxError> {
    let now = tx.now();
    let mut due = Vec::new();
    for (entry, _) in tx.records(DUE_PREFIX, None, limit)? {
        let Some((at, key)) = entry.strip_prefix(DUE_PREFIX).and_then(|rest| rest.split_once('/')) else {
            continue;
        };
        if !at.parse().is_ok_and(|micros| Timestamp::from_micros(micros) <= now) {
            break;
        }
        // A live record was written again later and has another entry.
        let expired = tx.record(key)?.is_none().then(|| key.to_owned());
        due.push((entry, expired));
    }
    for (entry, expired) in &due {
        tx.remove_record(entry);
        if let Some(key) = expired {
            tx.remove_record(key);
        }
    }
    Ok(due.len())
}
