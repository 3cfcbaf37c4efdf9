//! Leases over a store's records: who holds something, under which token, and for how long, decided by the store's
//! time in one commit.
//!
//! For elections on a server and for a leader among servers; locks are simpler (`baton_store::lease`). The record is
//! the same [`Epoch`] that participants without a server compare and set, so both kinds can take part in
//! one group: a version that somebody else wrote counts from when a decision first sees it. Always: the token rises
//! with every change of holder; only [`Tx::now`] ends a lease. Not here: HTTP, and who ought to come first
//! (`routes::elections` of the server). Start at [`acquire`].

use std::time::Duration;

use baton_store::{Stop, Tx};
use baton_types::Timestamp;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::record::Epoch;

/// What the keys of all records of elections begin with.
pub const PREFIX: &str = "election/";

/// By how much of its rate a holder's clock may be wrong.
const CLOCK_DRIFT: f64 = 0.01;

/// A lease as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The record.
    pub epoch: Epoch,
    /// Its version.
    pub version: u64,
    /// How long it still holds; zero when it is free.
    pub left: Duration,
    /// How long it has been free.
    pub free_for: Duration,
}

impl State {
    /// Whether somebody else may take it.
    pub fn is_free(&self) -> bool {
        self.left.is_zero()
    }

    /// Whether `holder` holds it.
    pub fn is_held_by(&self, holder: &Holder<'_>) -> bool {
        !self.is_free()
            && self.epoch.coordinator_id == holder.id
            && self.epoch.incarnation == holder.incarnation
    }

    /// How long a holder may act, counted from before it sent the request: shorter than the lease by twice what
    /// clocks may differ.
    pub fn usable(&self) -> Duration {
        Duration::from_millis(self.epoch.lease_ms).mul_f64((1.0 - CLOCK_DRIFT) / (1.0 + CLOCK_DRIFT))
    }
}

/// Who wants a lease.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// Its name.
    pub id: &'a str,
    /// Tells two lives of one name apart.
    pub incarnation: &'a str,
    /// How long the lease is.
    pub lease: Duration,
}

/// When a version was first seen, or written.
#[derive(Debug, Serialize, Deserialize)]
struct Sighting {
    version: u64,
    at: i64,
}

fn record_key(name: &str) -> String {
    format!("{PREFIX}epochs/{name}")
}

fn sighting_key(name: &str) -> String {
    format!("{PREFIX}seen/{name}")
}

/// Looks at the lease called `name`; `None` when nobody ever held it.
pub fn look(tx: &mut dyn Tx, name: &str) -> Result<Option<State>, Stop> {
    let Some(record) = tx.record(&record_key(name))? else { return Ok(None) };
    let epoch: Epoch = serde_json::from_slice(&record.value)
        .map_err(|e| baton_store::Error::Corrupt(format!("the epoch record of {name:?}: {e}")))?;
    let seen = tx.record(&sighting_key(name))?;
    let seen = seen.and_then(|seen| serde_json::from_slice::<Sighting>(&seen.value).ok());
    let now = tx.now();
    let at = match seen {
        Some(seen) if seen.version == record.version => Timestamp::from_micros(seen.at),
        // Somebody wrote it without telling when: it counts from now.
        _ => {
            sight(tx, name, record.version)?;
            now
        }
    };
    let age = micros_between(at, now);
    let lease = if epoch.released { Duration::ZERO } else { Duration::from_millis(epoch.lease_ms) };
    let (left, free_for) = (lease.saturating_sub(age), age.saturating_sub(lease));
    Ok(Some(State { epoch, version: record.version, left, free_for }))
}

/// Takes the lease if it is free or already the holder's own, and says how it stands then.
pub fn acquire(tx: &mut dyn Tx, name: &str, holder: &Holder<'_>) -> Result<State, Stop> {
    let before = look(tx, name)?;
    if let Some(state) = &before {
        if state.is_held_by(holder) {
            return renew(tx, name, holder, state.epoch.epoch_number);
        }
        if !state.is_free() {
            return Ok(state.clone());
        }
    }
    let number = before.map_or(0, |state| state.epoch.epoch_number) + 1;
    let now = wall_ms(tx);
    let lease_ms = millis(holder.lease);
    let epoch = Epoch {
        epoch_number: number,
        coordinator_id: holder.id.to_owned(),
        incarnation: holder.incarnation.to_owned(),
        nonce: format!("{:016x}{number:016x}", tx.fresh_token()),
        lease_seq: 0,
        epoch: now + lease_ms,
        epoch_start: now,
        released: false,
        step_down: false,
        handover_to: None,
        elected_by: holder.id.to_owned(),
        duration_ms: lease_ms,
        lease_ms,
    };
    put(tx, name, epoch)
}

/// Holds the lease for longer, if `holder` holds it under `token`; says how it stands either way.
pub fn renew(tx: &mut dyn Tx, name: &str, holder: &Holder<'_>, token: u64) -> Result<State, Stop> {
    let state = known(tx, name)?;
    if !state.is_held_by(holder) || state.epoch.epoch_number != token {
        return Ok(state);
    }
    let lease_ms = millis(holder.lease);
    let epoch = wall_ms(tx) + lease_ms;
    let lease_seq = state.epoch.lease_seq + 1;
    put(tx, name, Epoch { lease_seq, lease_ms, duration_ms: lease_ms, epoch, ..state.epoch })
}

/// Gives the lease up, if `holder` holds it; to `next` before others.
pub fn release(
    tx: &mut dyn Tx,
    name: &str,
    holder: &Holder<'_>,
    next: Option<String>,
) -> Result<State, Stop> {
    let state = known(tx, name)?;
    if !state.is_held_by(holder) {
        return Ok(state);
    }
    let handover_to = next.or_else(|| state.epoch.handover_to.clone());
    let lease_seq = state.epoch.lease_seq + 1;
    put(tx, name, Epoch { released: true, step_down: false, handover_to, lease_seq, ..state.epoch })
}

/// Asks the holder to give the lease up, to `next` before others. It is the holder who does, when its work has ended.
pub fn ask(tx: &mut dyn Tx, name: &str, next: Option<String>) -> Result<State, Stop> {
    let state = known(tx, name)?;
    if state.is_free() {
        return Ok(state);
    }
    let lease_seq = state.epoch.lease_seq + 1;
    let mut asked = Epoch { step_down: true, handover_to: next, lease_seq, ..state.epoch };
    // Asking is not renewing: the lease ends when it would have.
    let (version, left) = (write(tx, name, &mut asked, false)?, state.left);
    Ok(State { epoch: asked, version, left, free_for: Duration::ZERO })
}

/// Whether `token` is that of the present holder: to be asked in the same decision as what it is to protect.
pub fn is_current(tx: &mut dyn Tx, name: &str, token: u64) -> Result<bool, Stop> {
    Ok(look(tx, name)?.is_some_and(|state| !state.is_free() && state.epoch.epoch_number == token))
}

/// Replaces the record if its version is `expected`, as a participant that decides for itself does. Refuses what
/// would let a number fall, or change hands under one number.
pub fn swap(
    tx: &mut dyn Tx,
    name: &str,
    expected: Option<u64>,
    mut epoch: Epoch,
) -> Result<Option<u64>, Stop> {
    let before = tx.record(&record_key(name))?;
    if before.as_ref().map(|record| record.version) != expected {
        return Ok(None);
    }
    if let Some(before) = before.and_then(|record| serde_json::from_slice::<Epoch>(&record.value).ok()) {
        let same_term = before.nonce == epoch.nonce && before.epoch_number == epoch.epoch_number;
        let moves_on = if same_term {
            epoch.lease_seq > before.lease_seq && (!before.released || epoch.released)
        } else {
            epoch.epoch_number > before.epoch_number
        };
        if !moves_on {
            return Ok(None);
        }
        let asks = same_term && epoch.step_down && !before.step_down;
        return write(tx, name, &mut epoch, !asks).map(Some);
    }
    write(tx, name, &mut epoch, true).map(Some)
}

fn known(tx: &mut dyn Tx, name: &str) -> Result<State, Stop> {
    let nobody = || Epoch {
        epoch_number: 0,
        coordinator_id: String::new(),
        incarnation: String::new(),
        nonce: String::new(),
        lease_seq: 0,
        epoch: 0,
        epoch_start: 0,
        released: true,
        step_down: false,
        handover_to: None,
        elected_by: String::new(),
        duration_ms: 0,
        lease_ms: 0,
    };
    let free = || State { epoch: nobody(), version: 0, left: Duration::ZERO, free_for: Duration::MAX };
    Ok(look(tx, name)?.unwrap_or_else(free))
}

fn put(tx: &mut dyn Tx, name: &str, mut epoch: Epoch) -> Result<State, Stop> {
    let version = write(tx, name, &mut epoch, true)?;
    let left = if epoch.released { Duration::ZERO } else { Duration::from_millis(epoch.lease_ms) };
    Ok(State { epoch, version, left, free_for: Duration::ZERO })
}

/// Writes the record; `fresh` if the lease begins anew with it.
fn write(tx: &mut dyn Tx, name: &str, epoch: &mut Epoch, fresh: bool) -> Result<u64, Stop> {
    let since = match tx.record(&sighting_key(name))? {
        Some(seen) if !fresh => serde_json::from_slice::<Sighting>(&seen.value).ok().map(|seen| seen.at),
        _ => None,
    };
    let value = serde_json::to_vec(epoch).map_err(|e| baton_store::Error::Corrupt(e.to_string()))?;
    let version = tx.put_record(&record_key(name), Bytes::from(value), None)?;
    let at = since.unwrap_or(tx.now().micros());
    put_sighting(tx, name, &Sighting { version, at })?;
    Ok(version)
}

fn sight(tx: &mut dyn Tx, name: &str, version: u64) -> Result<(), Stop> {
    let at = tx.now().micros();
    put_sighting(tx, name, &Sighting { version, at })
}

fn put_sighting(tx: &mut dyn Tx, name: &str, sighting: &Sighting) -> Result<(), Stop> {
    let value = serde_json::to_vec(sighting).map_err(|e| baton_store::Error::Corrupt(e.to_string()))?;
    tx.put_record(&sighting_key(name), Bytes::from(value), None)?;
    Ok(())
}

fn wall_ms(tx: &dyn Tx) -> u64 {
    u64::try_from(tx.now().micros() / 1000).unwrap_or(0)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn micros_between(from: Timestamp, to: Timestamp) -> Duration {
    to.since(from)
}
