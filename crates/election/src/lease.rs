//! Election leases over a store's records: holder, fencing token and expiry, decided by the store's time in one
//! commit.
//!
//! For elections on a server and for a leader among servers. Expiry is that of every lease ([`baton_store::lease`]);
//! this module adds the epoch number and the [`EpochRecord`], which participants without a server compare and set, so
//! that both kinds can take part in one group. Always: the token rises with every change of holder; only [`Tx::now`]
//! ends a lease; a term of a process is taken only by fencing that process in the same commit. Not here: HTTP, and
//! which candidate has priority (`elections` of the server). Start at [`acquire`].

use std::time::Duration;

use baton_store::lease::{self, Acquisition};
use baton_store::{Record, Tx, TxError};
use baton_types::Timestamp;
use bytes::Bytes;

use crate::record::{EpochRecord, PROCESSES_PREFIX, ProcessRecord, epoch_key, process_key};

/// Prefix of the keys of all election records.
pub const PREFIX: &str = "election/";

/// Relative error of a holder's clock.
const CLOCK_DRIFT: f64 = 0.01;

/// After how many lease times the record of a silent process is removed.
const REMOVE_AFTER_LEASES: u32 = 3;

/// The state of a lease.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseState {
    /// The record.
    pub epoch: EpochRecord,
    /// Its version.
    pub version: u64,
    /// How long it still holds; zero when it is free.
    pub remaining: Duration,
    /// How long it has been free.
    pub free_for: Duration,
}

impl LeaseState {
    /// Whether another claimant may take it.
    pub fn is_free(&self) -> bool {
        self.remaining.is_zero()
    }

    /// Whether `holder` holds it.
    pub fn is_held_by(&self, holder: &Claimant<'_>) -> bool {
        !self.is_free()
            && self.epoch.coordinator_id == holder.id
            && self.epoch.incarnation == holder.incarnation
    }

    /// How long a holder may act, counted from before it sent the request: shorter than the lease by twice what
    /// clocks may differ.
    pub fn trusted_for(&self) -> Duration {
        Duration::from_millis(self.epoch.lease_ms).mul_f64((1.0 - CLOCK_DRIFT) / (1.0 + CLOCK_DRIFT))
    }
}

/// A candidate for a lease.
#[derive(Clone, Copy, Debug)]
pub struct Claimant<'a> {
    /// Its name.
    pub id: &'a str,
    /// Distinguishes two starts under one name.
    pub incarnation: &'a str,
    /// How long the lease is.
    pub lease: Duration,
}

fn record_key(name: &str) -> String {
    format!("{PREFIX}{}", epoch_key(name))
}

/// The lease that covers a term, and its owner: the term itself, or the process.
fn lease_of(name: &str, epoch: &EpochRecord) -> (String, String) {
    match epoch.process.as_ref().filter(|_| !epoch.released) {
        Some(process) => (process_lease_key(process), process.clone()),
        None => (format!("{PREFIX}held/{}", epoch_key(name)), epoch.nonce.clone()),
    }
}

fn process_lease_key(id: &str) -> String {
    format!("{PREFIX}held/{}", process_key(id))
}

fn decode<T: serde::de::DeserializeOwned>(what: &str, record: &Record) -> Result<T, TxError> {
    let decoded = serde_json::from_slice(&record.value);
    Ok(decoded.map_err(|e| baton_store::Error::Corrupt(format!("the record of {what:?}: {e}")))?)
}

fn encode<T: serde::Serialize>(record: &T) -> Result<Bytes, TxError> {
    let encoded = serde_json::to_vec(record);
    Ok(encoded.map_err(|e| baton_store::Error::Corrupt(e.to_string()))?.into())
}

/// The record of a group as it is, with its version.
pub fn read_epoch(tx: &mut dyn Tx, name: &str) -> Result<Option<(u64, EpochRecord)>, TxError> {
    let found = tx.record(&record_key(name))?;
    found.map(|record| Ok((record.version, decode(name, &record)?))).transpose()
}

/// The record of a process as it is, with its version.
pub fn read_process(tx: &mut dyn Tx, id: &str) -> Result<Option<(u64, ProcessRecord)>, TxError> {
    let found = tx.record(&format!("{PREFIX}{}", process_key(id)))?;
    found.map(|record| Ok((record.version, decode(id, &record)?))).transpose()
}

/// The same, but `None` if it was fenced.
fn read_unfenced_process(tx: &mut dyn Tx, id: &str) -> Result<Option<(u64, ProcessRecord)>, TxError> {
    Ok(read_process(tx, id)?.filter(|(_, process)| !process.fenced))
}

/// Reads the state of the lease `name`; `None` if it never had a holder.
pub fn read_state(tx: &mut dyn Tx, name: &str) -> Result<Option<LeaseState>, TxError> {
    let Some((mut version, mut epoch)) = read_epoch(tx, name)? else { return Ok(None) };
    let (key, owner) = lease_of(name, &epoch);
    if let Some(id) = epoch.process.clone().filter(|_| !epoch.released) {
        match read_unfenced_process(tx, &id)? {
            Some((seen, process)) => {
                version = version.max(seen);
                epoch.epoch = epoch.epoch.max(process.epoch);
            }
            None => epoch.released = true,
        }
    }
    let until = match lease::last_holder(tx, &key)?.filter(|holder| holder.owner == owner) {
        Some(holder) => holder.until,
        // The process record is missing, since an unknown time.
        None if epoch.released => Timestamp::from_micros(0),
        // Written without a time (by compare-and-set): the lease counts from now.
        None => grant(tx, name, &epoch)?,
    };
    let now = tx.now();
    let left = if epoch.released { Duration::ZERO } else { until.since(now) };
    Ok(Some(LeaseState { epoch, version, remaining: left, free_for: now.since(until) }))
}

/// Grants the lease of the term that a record names; returns its expiry.
fn grant(tx: &mut dyn Tx, name: &str, epoch: &EpochRecord) -> Result<Timestamp, TxError> {
    let (key, owner) = lease_of(name, epoch);
    let life = Duration::from_millis(epoch.lease_ms);
    let mut held = lease::acquire_with_history(tx, &key, &owner, life)?;
    if let Acquisition::HeldByOther(_) = held {
        // The record decides: it names another holder than the lease.
        lease::end_with_history(tx, &key)?;
        held = lease::acquire_with_history(tx, &key, &owner, life)?;
    }
    match held {
        Acquisition::Granted(holder)
        | Acquisition::AlreadyHeld(holder)
        | Acquisition::HeldByOther(holder) => Ok(holder.until),
    }
}

/// Takes the lease if it is free or already the claimant's own; returns its state.
pub fn acquire(tx: &mut dyn Tx, name: &str, holder: &Claimant<'_>) -> Result<LeaseState, TxError> {
    let before = read_state(tx, name)?;
    if let Some(state) = &before {
        if state.is_held_by(holder) {
            return renew(tx, name, holder, state.epoch.epoch_number);
        }
        if !state.is_free() {
            return Ok(state.clone());
        }
    }
    let silent = before.as_ref().filter(|state| !state.epoch.released);
    let held_by = silent.and_then(|state| state.epoch.process.clone());
    let number = before.map_or(0, |state| state.epoch.epoch_number) + 1;
    let now = wall_ms(tx);
    let lease_ms = millis(holder.lease);
    let epoch = EpochRecord {
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
        process: None,
    };
    if let Some(id) = held_by {
        fence_process(tx, &id)?;
    }
    write_epoch(tx, name, epoch)
}

/// Ends the lease of a process for good.
fn fence_process(tx: &mut dyn Tx, id: &str) -> Result<(), TxError> {
    lease::end_with_history(tx, &process_lease_key(id))?;
    tx.put_record(&format!("{PREFIX}{}", process_key(id)), encode(&ProcessRecord::fenced_record(id))?, None)?;
    Ok(())
}

/// Renews the lease if `holder` holds it under `token`; returns its state either way.
pub fn renew(tx: &mut dyn Tx, name: &str, holder: &Claimant<'_>, token: u64) -> Result<LeaseState, TxError> {
    let state = read_state_or_free(tx, name)?;
    if !state.is_held_by(holder) || state.epoch.epoch_number != token {
        return Ok(state);
    }
    let lease_ms = millis(holder.lease);
    let epoch = wall_ms(tx) + lease_ms;
    let lease_seq = state.epoch.lease_seq + 1;
    write_epoch(tx, name, EpochRecord { lease_seq, lease_ms, duration_ms: lease_ms, epoch, ..state.epoch })
}

/// Releases the lease if `holder` holds it, with `next` as the preferred successor.
pub fn release(
    tx: &mut dyn Tx,
    name: &str,
    holder: &Claimant<'_>,
    next: Option<String>,
) -> Result<LeaseState, TxError> {
    let state = read_state_or_free(tx, name)?;
    if !state.is_held_by(holder) {
        return Ok(state);
    }
    let handover_to = next.or_else(|| state.epoch.handover_to.clone());
    let lease_seq = state.epoch.lease_seq + 1;
    write_epoch(
        tx,
        name,
        EpochRecord { released: true, step_down: false, handover_to, lease_seq, ..state.epoch },
    )
}

/// Asks the holder to release the lease, with `next` as the preferred successor. The holder releases it itself, when
/// its work has ended.
pub fn request_step_down(tx: &mut dyn Tx, name: &str, next: Option<String>) -> Result<LeaseState, TxError> {
    let state = read_state_or_free(tx, name)?;
    if state.is_free() {
        return Ok(state);
    }
    let lease_seq = state.epoch.lease_seq + 1;
    let asked = EpochRecord { step_down: true, handover_to: next, lease_seq, ..state.epoch };
    // A request does not renew: the expiry stays.
    let version = tx.put_record(&record_key(name), encode(&asked)?, None)?;
    Ok(LeaseState { epoch: asked, version, ..state })
}

/// Whether `token` is that of the present holder. Check it in the same transaction as what it protects.
pub fn is_current_token(tx: &mut dyn Tx, name: &str, token: u64) -> Result<bool, TxError> {
    Ok(read_state(tx, name)?.is_some_and(|state| !state.is_free() && state.epoch.epoch_number == token))
}

/// Compares and sets the record, for a participant that decides for itself. Refuses a lower number, another holder
/// under the same number, and taking a term from a process that is not fenced.
pub fn swap_epoch(
    tx: &mut dyn Tx,
    name: &str,
    expected: Option<u64>,
    epoch: EpochRecord,
) -> Result<Option<u64>, TxError> {
    let before = read_epoch(tx, name)?;
    if before.as_ref().map(|(version, _)| *version) != expected {
        return Ok(None);
    }
    let before = before.map(|(_, epoch)| epoch);
    if let Some(id) =
        before.as_ref().filter(|before| !before.released).and_then(|before| before.process.as_ref())
        && epoch.process.as_ref() != Some(id)
        && read_unfenced_process(tx, id)?.is_some()
    {
        return Ok(None);
    }
    replace_epoch(tx, name, before, epoch)
}

fn replace_epoch(
    tx: &mut dyn Tx,
    name: &str,
    before: Option<EpochRecord>,
    epoch: EpochRecord,
) -> Result<Option<u64>, TxError> {
    let mut asks = false;
    if let Some(before) = before {
        let same_term = before.nonce == epoch.nonce && before.epoch_number == epoch.epoch_number;
        let moves_on = if same_term {
            epoch.lease_seq > before.lease_seq && (!before.released || epoch.released)
        } else {
            epoch.epoch_number > before.epoch_number
        };
        if !moves_on {
            return Ok(None);
        }
        asks = same_term && epoch.step_down && !before.step_down;
    }
    if asks {
        return tx.put_record(&record_key(name), encode(&epoch)?, None).map(Some);
    }
    Ok(Some(write_epoch(tx, name, epoch)?.version))
}

/// Compares and sets the record of a process; unless it is fenced, its lease starts now.
pub fn swap_process(
    tx: &mut dyn Tx,
    id: &str,
    expected: Option<u64>,
    process: &ProcessRecord,
) -> Result<Option<u64>, TxError> {
    let before = read_process(tx, id)?;
    if before.as_ref().map(|(version, _)| *version) != expected {
        return Ok(None);
    }
    if before.is_some_and(|(_, before)| before.fenced) {
        return Ok(None);
    }
    lease::end_with_history(tx, &process_lease_key(id))?;
    if !process.fenced {
        lease::acquire_with_history(tx, &process_lease_key(id), id, Duration::from_millis(process.lease_ms))?;
    }
    tx.put_record(&format!("{PREFIX}{}", process_key(id)), encode(process)?, None).map(Some)
}

/// Removes the records of processes that have long been silent; returns how many of at most `max` are left.
pub fn remove_silent_processes(tx: &mut dyn Tx, max: usize) -> Result<usize, TxError> {
    let prefix = format!("{PREFIX}{PROCESSES_PREFIX}");
    let found = tx.records(&prefix, None, max)?;
    let (mut left, now) = (found.len(), tx.now());
    for (key, record) in found {
        let id = key.strip_prefix(&prefix).unwrap_or(&key);
        let process: ProcessRecord = decode(id, &record)?;
        let held = lease::last_holder(tx, &process_lease_key(id))?;
        let until = held.map_or(Timestamp::from_micros(0), |holder| holder.until);
        if now.since(until) > Duration::from_millis(process.lease_ms) * REMOVE_AFTER_LEASES {
            remove_process(tx, id);
            left -= 1;
        }
    }
    Ok(left)
}

/// Removes the record of a process, which then counts as fenced.
pub fn remove_process(tx: &mut dyn Tx, id: &str) {
    tx.remove_record(&process_lease_key(id));
    tx.remove_record(&format!("{PREFIX}{}", process_key(id)));
}

/// Removes the record of a group without a holder; the next term has number 1.
pub fn remove_group(tx: &mut dyn Tx, name: &str) {
    tx.remove_record(&format!("{PREFIX}held/{}", epoch_key(name)));
    tx.remove_record(&record_key(name));
}

fn read_state_or_free(tx: &mut dyn Tx, name: &str) -> Result<LeaseState, TxError> {
    let no_holder = || EpochRecord {
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
        process: None,
    };
    let free =
        || LeaseState { epoch: no_holder(), version: 0, remaining: Duration::ZERO, free_for: Duration::MAX };
    Ok(read_state(tx, name)?.unwrap_or_else(free))
}

/// Writes the record, which restarts or ends the lease.
fn write_epoch(tx: &mut dyn Tx, name: &str, epoch: EpochRecord) -> Result<LeaseState, TxError> {
    let now = tx.now();
    let held = match epoch.process.as_ref().filter(|_| !epoch.released) {
        // The process renews its own lease.
        Some(id) => lease::last_holder(tx, &process_lease_key(id))?.map_or(now, |holder| holder.until),
        None => grant(tx, name, &epoch)?,
    };
    if epoch.released {
        lease::end_with_history(tx, &lease_of(name, &epoch).0)?;
    }
    let version = tx.put_record(&record_key(name), encode(&epoch)?, None)?;
    let left = if epoch.released { Duration::ZERO } else { held.since(now) };
    Ok(LeaseState { epoch, version, remaining: left, free_for: Duration::ZERO })
}

fn wall_ms(tx: &dyn Tx) -> u64 {
    u64::try_from(tx.now().micros() / 1000).unwrap_or(0)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use baton_env::ManualClock;
    use baton_store::Store;
    use baton_store_embedded::{EmbeddedStore, Options};

    use super::*;

    /// A store whose time moves when the test says so.
    struct Stage {
        store: EmbeddedStore,
        clock: Arc<ManualClock>,
        _directory: tempfile::TempDir,
    }

    impl Stage {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let clock = Arc::new(ManualClock::new("2026-11-15T00:00:00Z".parse().unwrap()));
            let options = Options { clock: Arc::clone(&clock) as _, ..Options::new(directory.path()) };
            Self { store: EmbeddedStore::open(options).unwrap(), clock, _directory: directory }
        }

        async fn run<R: Send + 'static>(
            &self,
            decide: impl FnMut(&mut dyn Tx) -> Result<R, TxError> + Send + 'static,
        ) -> R {
            baton_store::run(&self.store as &dyn Store, decide).await.unwrap()
        }

        async fn acquire(&self, who: &'static str) -> LeaseState {
            self.run(move |tx| acquire(tx, "g", &holder(who))).await
        }
    }

    const LEASE: Duration = Duration::from_secs(10);
    const SECOND: Duration = Duration::from_secs(1);

    fn holder(id: &str) -> Claimant<'_> {
        Claimant { id, incarnation: id, lease: LEASE }
    }

    #[tokio::test]
    async fn a_lease_is_held_until_it_runs_out_and_then_taken_under_a_higher_number() {
        let stage = Stage::new();
        let first = stage.acquire("a").await;
        assert!(first.is_held_by(&holder("a")) && first.epoch.epoch_number == 1);
        stage.clock.advance(LEASE - SECOND);
        assert_eq!(stage.acquire("b").await.epoch.coordinator_id, "a");
        let renewed = stage.run(|tx| renew(tx, "g", &holder("a"), 1)).await;
        assert!(renewed.remaining > LEASE - SECOND && renewed.epoch.epoch_number == 1);
        stage.clock.advance(LEASE - SECOND);
        assert!(!stage.acquire("b").await.is_held_by(&holder("b")));
        stage.clock.advance(SECOND * 3);
        let free = stage.run(|tx| read_state(tx, "g")).await.unwrap();
        assert!(free.is_free() && free.free_for >= SECOND && free.free_for < SECOND * 4, "{free:?}");
        assert_eq!(stage.acquire("b").await.epoch.epoch_number, 2);
        let late = stage.run(|tx| renew(tx, "g", &holder("a"), 1)).await;
        assert!(late.is_held_by(&holder("b")));
        assert!(
            !stage.run(|tx| is_current_token(tx, "g", 1)).await
                && stage.run(|tx| is_current_token(tx, "g", 2)).await
        );
    }

    #[tokio::test]
    async fn what_is_released_is_free_at_once_and_asking_neither_renews_nor_frees() {
        let stage = Stage::new();
        stage.acquire("a").await;
        stage.clock.advance(SECOND * 4);
        let asked = stage.run(|tx| request_step_down(tx, "g", Some("c".into()))).await;
        assert!(asked.epoch.step_down && asked.remaining < LEASE - SECOND * 3 && !asked.is_free());
        let unchanged = stage.run(|tx| release(tx, "g", &holder("b"), None)).await;
        assert!(unchanged.is_held_by(&holder("a")));
        let released = stage.run(|tx| release(tx, "g", &holder("a"), None)).await;
        assert!(released.is_free() && released.epoch.handover_to.as_deref() == Some("c"));
        stage.clock.advance(SECOND);
        let free = stage.run(|tx| read_state(tx, "g")).await.unwrap();
        assert!(free.is_free() && free.free_for >= SECOND / 2, "{free:?}");
        assert_eq!(stage.acquire("b").await.epoch.epoch_number, 2);
    }

    #[tokio::test]
    async fn a_record_cannot_fall_back_or_change_hands_under_one_number() {
        let stage = Stage::new();
        let held = stage.acquire("a").await;
        let (version, epoch) = (Some(held.version), held.epoch);
        let refused = [
            EpochRecord { epoch_number: 0, nonce: "x".into(), ..epoch.clone() },
            EpochRecord { nonce: "x".into(), ..epoch.clone() },
            epoch.clone(),
        ];
        for record in refused {
            assert_eq!(stage.run(move |tx| swap_epoch(tx, "g", version, record.clone())).await, None);
        }
        let next = EpochRecord { epoch_number: 2, nonce: "x".into(), coordinator_id: "b".into(), ..epoch };
        let wrong = next.clone();
        assert_eq!(stage.run(move |tx| swap_epoch(tx, "g", None, wrong.clone())).await, None);
        assert!(stage.run(move |tx| swap_epoch(tx, "g", version, next.clone())).await.is_some());
        assert!(stage.acquire("a").await.remaining > LEASE - SECOND, "the new term has all its time");
    }

    fn life(seq: u64, fenced: bool) -> ProcessRecord {
        ProcessRecord {
            worker_id: "p".into(),
            incarnation: "1".into(),
            seq,
            lease_ms: 10_000,
            renewed_at: 0,
            epoch: 0,
            fenced,
        }
    }

    #[tokio::test]
    async fn what_a_process_holds_lives_and_ends_with_its_lease() {
        let stage = Stage::new();
        let process = stage.run(|tx| swap_process(tx, "p.1", None, &life(1, false))).await;
        let free = stage.acquire("a").await;
        stage.run(|tx| release(tx, "g", &holder("a"), None)).await;
        let version = stage.run(|tx| read_state(tx, "g")).await.unwrap().version;
        let claim = EpochRecord {
            epoch_number: 2,
            nonce: "claim".into(),
            coordinator_id: "p".into(),
            process: Some("p.1".into()),
            ..free.epoch
        };
        assert!(stage.run(move |tx| swap_epoch(tx, "g", Some(version), claim.clone())).await.is_some());
        stage.clock.advance(LEASE - SECOND);
        let renewed = stage.run(move |tx| swap_process(tx, "p.1", process, &life(2, false))).await;
        stage.clock.advance(LEASE - SECOND);
        let held = stage.acquire("b").await;
        assert!(!held.is_free() && held.epoch.coordinator_id == "p" && Some(held.version) == renewed);
        let own = stage.run(|tx| tx.record("election/epochs/g")).await.unwrap().version;
        let take = EpochRecord { epoch_number: 3, nonce: "take".into(), process: None, ..held.epoch };
        let stolen = take.clone();
        assert_eq!(
            stage.run(move |tx| swap_epoch(tx, "g", Some(own), stolen.clone())).await,
            None,
            "not fenced"
        );
        stage.clock.advance(SECOND * 2);
        assert!(stage.acquire("b").await.is_held_by(&holder("b")));
        let late = stage.run(move |tx| swap_process(tx, "p.1", renewed, &life(3, false))).await;
        assert_eq!(late, None, "the process was fenced");
    }
}
