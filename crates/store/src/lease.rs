//! Leases over records: who holds a thing, until when, and the token that proves it.
//!
//! For locks, for elections that a server decides, for a leader among servers: whatever has one owner at a time. The
//! lease is one record; its token rises with every acquisition and renewal and never repeats, so
//! whoever shows an old one can change nothing. The token is the version of the record that gave it; a lease that its
//! owner acquires again keeps its token, and its record says so. The record goes when the lease ends, or is kept if one wants to know
//! afterwards who held it and since when it is free. Always: at most one live holder per key; only [`Tx::now`] ends a
//! lease; a lease is never shortened but by its end. Not here: waiting for a lease, and how long a holder may trust it
//! (it counts from before it asked). Start at [`acquire`].
//!
//! To do something only as the holder, ask [`is_held_under`] in the decision that does it.

use std::time::Duration;

use baton_types::Timestamp;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Error, Record, Tx, TxError, expiry};

/// Who holds a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// The name it gave.
    pub owner: String,
    /// When it got the lease.
    pub since: Timestamp,
    /// When it last renewed it.
    pub renewed_at: Timestamp,
    /// What it must show: higher than every token given for this key before.
    #[serde(skip)]
    pub token: u64,
    /// When the lease ends unless it is renewed.
    #[serde(skip)]
    pub until: Timestamp,
}

impl Holder {
    /// The holder that a record tells of.
    pub fn from_record(record: &Record) -> Result<Self, Error> {
        let holder: Self = serde_json::from_slice(&record.value)
            .map_err(|error| Error::Corrupt(format!("a lease cannot be read: {error}")))?;
        let kept: StoredFields = serde_json::from_slice(&record.value).unwrap_or_default();
        let until = kept.until.or(record.expires_at).unwrap_or(Timestamp::MAX);
        Ok(Self { token: kept.token.unwrap_or(record.version), until, ..holder })
    }
}

/// What the record of a lease says besides.
#[derive(Debug, Default, Deserialize)]
struct StoredFields {
    /// Its end, if the record is kept after that.
    until: Option<Timestamp>,
    /// Its token, if that is older than the record.
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

/// What became of an attempt to take a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquisition {
    /// It was free and is now held as told.
    Granted(Holder),
    /// The same owner held it already; it now runs for the time asked, or longer, under the token it has.
    AlreadyHeld(Holder),
    /// Somebody else holds it.
    HeldByOther(Holder),
}

/// Who holds the lease, if anybody does.
pub fn holder(tx: &mut dyn Tx, key: &str) -> Result<Option<Holder>, TxError> {
    let now = tx.now();
    Ok(last_holder(tx, key)?.filter(|holder| holder.until > now))
}

/// Who held the lease last, if its record is kept; perhaps it still does.
pub fn last_holder(tx: &mut dyn Tx, key: &str) -> Result<Option<Holder>, TxError> {
    Ok(tx.record(key)?.map(|record| Holder::from_record(&record)).transpose()?)
}

/// Takes the lease for `owner` unless somebody else holds it. Asking again, for instance because the answer was
/// lost, is answered with what the first attempt took.
pub fn acquire(tx: &mut dyn Tx, key: &str, owner: &str, life: Duration) -> Result<Acquisition, TxError> {
    acquire_record(tx, key, owner, life, false)
}

/// The same for a lease whose record is kept after it has ended, so that [`last_holder`] tells of it.
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

/// Ends a lease whose record is kept, whoever holds it.
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

/// Lets a lease run for `life` from now, under a new token; `None` when it is not held under `token`. The holder
/// itself, named by `owner`, may show an older token of its own: the answer that told it the newer one may be lost.
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

/// Ends the lease held under `token`; whether it was.
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
