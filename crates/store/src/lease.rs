//! Leases: who owns a resource, until when, and the fencing token that proves it.
//!
//! For locks, elections on a server, and leadership among servers. A lease is one record. Its token rises with every
//! acquisition and renewal and never repeats, so a former owner with an old token can change nothing. The token is
//! the version of the record that granted it; an owner that acquires its lease again keeps its token, which the
//! record then stores. The record is removed when the lease ends, or kept to tell later who held it and since when it
//! is free. Always: at most one live holder per key; only [`Tx::now`] ends a lease; only its end shortens a lease.
//! Not here: waiting for a lease, and how long a holder may trust it (it counts from before the request). Start at
//! [`acquire`].
//!
//! To act only as the holder, call [`is_held_under`] in the decision that acts.

use std::time::Duration;

use baton_types::Timestamp;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Error, Record, Tx, TxError, expiry};

/// The holder of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// The owner's name.
    pub owner: String,
    /// When it got the lease.
    pub since: Timestamp,
    /// When it last renewed it.
    pub renewed_at: Timestamp,
    /// Its fencing token: higher than every earlier token of this key.
    #[serde(skip)]
    pub token: u64,
    /// When the lease ends unless it is renewed.
    #[serde(skip)]
    pub until: Timestamp,
}

impl Holder {
    /// The holder according to a record.
    pub fn from_record(record: &Record) -> Result<Self, Error> {
        let holder: Self = serde_json::from_slice(&record.value)
            .map_err(|error| Error::Corrupt(format!("a lease cannot be read: {error}")))?;
        let kept: StoredFields = serde_json::from_slice(&record.value).unwrap_or_default();
        let until = kept.until.or(record.expires_at).unwrap_or(Timestamp::MAX);
        Ok(Self { token: kept.token.unwrap_or(record.version), until, ..holder })
    }
}

/// Optional fields of the record of a lease.
#[derive(Debug, Default, Deserialize)]
struct StoredFields {
    /// The end of the lease, if the record is kept after it.
    until: Option<Timestamp>,
    /// The token, if it is older than the record.
    token: Option<u64>,
}

/// The record of a lease.
#[derive(Debug, Serialize)]
struct LeaseRecord<'a> {
    #[serde(flatten)]
    holder: &'a Holder,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
}

/// The result of an acquisition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquisition {
    /// The lease was free and is now granted.
    Granted(Holder),
    /// The same owner holds it already; it now lasts for the given time, or longer, under its present token.
    AlreadyHeld(Holder),
    /// Another owner holds it.
    HeldByOther(Holder),
}

/// The holder of the lease, if it is held.
pub fn holder(tx: &mut dyn Tx, key: &str) -> Result<Option<Holder>, TxError> {
    let now = tx.now();
    Ok(last_holder(tx, key)?.filter(|holder| holder.until > now))
}

/// The last holder, if the record is kept; it may still hold the lease.
pub fn last_holder(tx: &mut dyn Tx, key: &str) -> Result<Option<Holder>, TxError> {
    Ok(tx.record(key)?.map(|record| Holder::from_record(&record)).transpose()?)
}

/// Acquires the lease for `owner` unless another owner holds it. A repeated call, for instance after a lost answer,
/// returns the result of the first.
pub fn acquire(tx: &mut dyn Tx, key: &str, owner: &str, life: Duration) -> Result<Acquisition, TxError> {
    acquire_record(tx, key, owner, life, false)
}

/// Acquires a lease whose record is kept after its end, for [`last_holder`].
pub fn acquire_with_history(
    tx: &mut dyn Tx,
    key: &str,
    owner: &str,
    life: Duration,
) -> Result<Acquisition, TxError> {
    acquire_record(tx, key, owner, life, true)
}

fn acquire_record(
    tx: &mut dyn Tx,
    key: &str,
    owner: &str,
    life: Duration,
    kept: bool,
) -> Result<Acquisition, TxError> {
    let old = tx.record(key)?;
    let now = tx.now();
    match old.as_ref().map(Holder::from_record).transpose()? {
        Some(holder) if holder.until > now && holder.owner == owner => {
            let token = Some(holder.token);
            extend(tx, key, old.as_ref(), holder, life, token, kept).map(Acquisition::AlreadyHeld)
        }
        Some(holder) if holder.until > now => Ok(Acquisition::HeldByOther(holder)),
        _ => {
            let holder =
                Holder { owner: owner.into(), since: now, renewed_at: now, token: 0, until: now.after(life) };
            write_record(tx, key, old.as_ref(), holder, None, kept).map(Acquisition::Granted)
        }
    }
}

/// Ends a lease of any owner and keeps its record.
pub fn end_with_history(tx: &mut dyn Tx, key: &str) -> Result<(), TxError> {
    let old = tx.record(key)?;
    let now = tx.now();
    if let Some(holder) =
        old.as_ref().map(Holder::from_record).transpose()?.filter(|holder| holder.until > now)
    {
        write_record(tx, key, old.as_ref(), Holder { until: now, ..holder }, None, true)?;
    }
    Ok(())
}

/// Extends a lease for `life` from now, under a new token; `None` when it is not held under `token`. The holder
/// itself, named by `owner`, may use an older token of its own: the answer with the newer one may be lost.
pub fn renew(
    tx: &mut dyn Tx,
    key: &str,
    token: u64,
    owner: Option<&str>,
    life: Duration,
) -> Result<Option<Holder>, TxError> {
    let old = tx.record(key)?;
    let Some(holder) = old.as_ref().map(Holder::from_record).transpose()? else { return Ok(None) };
    let is_own_older = token < holder.token && owner == Some(&*holder.owner);
    if holder.token != token && !is_own_older {
        return Ok(None);
    }
    extend(tx, key, old.as_ref(), holder, life, None, false).map(Some)
}

/// Ends the lease held under `token`. Returns whether it was held.
pub fn release(tx: &mut dyn Tx, key: &str, token: u64) -> Result<bool, TxError> {
    let Some(record) = tx.record(key)? else { return Ok(false) };
    let is_held = Holder::from_record(&record)?.token == token;
    if is_held {
        expiry::remove(tx, key, &record);
    }
    Ok(is_held)
}

/// Whether the lease is held under `token` now.
pub fn is_held_under(tx: &mut dyn Tx, key: &str, token: u64) -> Result<bool, TxError> {
    Ok(last_holder(tx, key)?.is_some_and(|holder| holder.token == token))
}

fn extend(
    tx: &mut dyn Tx,
    key: &str,
    old: Option<&Record>,
    holder: Holder,
    life: Duration,
    token: Option<u64>,
    kept: bool,
) -> Result<Holder, TxError> {
    let now = tx.now();
    let until = holder.until.max(now.after(life));
    write_record(tx, key, old, Holder { renewed_at: now, until, ..holder }, token, kept)
}

/// Writes a lease, under `token` or else under a new one.
fn write_record(
    tx: &mut dyn Tx,
    key: &str,
    old: Option<&Record>,
    holder: Holder,
    token: Option<u64>,
    kept: bool,
) -> Result<Holder, TxError> {
    let value = encode(&LeaseRecord { holder: &holder, until: kept.then_some(holder.until), token })?;
    let version = if kept {
        tx.put_record(key, value, None)?
    } else {
        expiry::put(tx, key, old, value, Some(holder.until))?
    };
    Ok(Holder { token: token.unwrap_or(version), ..holder })
}

fn encode(record: &LeaseRecord<'_>) -> Result<Bytes, Error> {
    let value = serde_json::to_vec(record);
    Ok(value.map_err(|error| Error::Corrupt(format!("a lease cannot be written: {error}")))?.into())
}
