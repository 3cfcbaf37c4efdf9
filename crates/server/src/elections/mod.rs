//! Elections that a server decides: who takes part, who coordinates, and who waits for news of it.
//!
//! A caller that joins or beats is answered who coordinates; when nobody does, the first of those alive takes the
//! term in the same commit. Always: on the records that participants without a server use too, by the store's time;
//! groups, workers, processes and watchers are bounded. Start at [`Elections::beat`]; `watch` tells of news, `process`
//! keeps the leases by which a process holds many groups.

mod process;
mod watch;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_election::lease::{self, Claimant, LeaseState};
use baton_election::record::{EpochRecord, WorkerRecord, worker_key, workers_prefix};
use baton_env::Stopwatch;
use baton_store::{Store, Tx, TxError};
use bytes::Bytes;
use tokio::sync::watch::Sender;

/// Groups that a server keeps. Each costs a few hundred bytes for ever.
pub const GROUPS_MAX: usize = 10_000;
/// Workers of one group.
pub const WORKERS_MAX: usize = 1_000;
/// How long a worker lets each one before it go first.
const STAGGER: Duration = Duration::from_secs(2);
/// Ranks beyond this one wait no longer than it does.
const RANK_MAX: u32 = 5;
/// How many leases long a worker counts as alive after a beat.
const ALIVE_LEASES: u32 = 1;
/// Changes of coordinator within [`CHANGES_WINDOW`] beyond which something must be wrong.
const CHANGES_MAX: u32 = 5;
/// The time in which changes of a group are counted.
const CHANGES_WINDOW: Duration = Duration::from_secs(30 * 60);

/// Why something was refused.
#[derive(Debug)]
pub enum Refusal {
    /// There are as many as there may be.
    Full(&'static str),
    /// Too many callers wait.
    Busy(&'static str),
    /// There is no group of this name.
    UnknownGroup(String),
    /// The worker that is to coordinate next is not alive.
    UnknownWorker(String),
    /// The group is coordinated by this worker.
    Coordinated(String),
    /// The store failed.
    Store(baton_store::Error),
}

impl From<baton_store::Error> for Refusal {
    fn from(error: baton_store::Error) -> Self {
        Self::Store(error)
    }
}

/// One group, looked at.
#[derive(Clone, Debug)]
pub struct Look {
    /// How the lease stands; `None` when nobody ever held it.
    pub state: Option<LeaseState>,
    /// The group's own record as it is, with its version, for participants that decide for themselves.
    pub record: Option<(u64, EpochRecord)>,
    /// The workers, each with the version of its record.
    pub workers: Vec<(WorkerRecord, u64)>,
}

impl Look {
    /// Whether there is such a group.
    pub fn exists(&self) -> bool {
        self.state.is_some() || !self.workers.is_empty()
    }

    /// Changes when something does: the record, or whether its lease has run out.
    pub fn version(&self) -> String {
        match &self.state {
            None => "0".into(),
            Some(state) if state.is_free() && !state.epoch.released => format!("{}-free", state.version),
            Some(state) => state.version.to_string(),
        }
    }

    /// Changes also when a worker has written its record, or has gone.
    fn full_version(&self) -> String {
        let newest = self.workers.iter().map(|(_, version)| *version).max().unwrap_or(0);
        format!("{}/{newest}/{}", self.version(), self.workers.len())
    }
}

/// What participants asked for, and what came of it, since the server started.
#[derive(Debug, Default)]
pub struct Counts {
    /// Signs of life.
    pub heartbeats: AtomicU64,
    /// Terms that began.
    pub terms: AtomicU64,
    /// Terms that were given up.
    pub releases: AtomicU64,
    /// Compare-and-sets that were refused.
    pub conflicts: AtomicU64,
    /// Times that a group was found to change its coordinator too often.
    pub unsteady: AtomicU64,
}

/// What there is now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Present {
    /// Groups.
    pub groups: usize,
    /// Those that somebody coordinates.
    pub coordinated: usize,
    /// Callers that wait for news.
    pub watchers: usize,
}

/// Changes of one group, counted from the first.
struct Changes {
    since: Stopwatch,
    count: u32,
}

/// The elections of a server.
pub struct Elections {
    store: Arc<dyn Store>,
    /// Counts what was written here.
    news: Sender<u64>,
    watchers: AtomicUsize,
    /// For metrics.
    pub counts: Counts,
    /// Of groups that changed their coordinator lately; as many as there may be groups.
    changes: Mutex<HashMap<String, Changes>>,
}

impl Elections {
    /// Elections on the records of `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            news: Sender::new(0),
            watchers: AtomicUsize::new(0),
            counts: Counts::default(),
            changes: Mutex::default(),
        }
    }

    /// What there is now, for metrics.
    pub async fn present(&self) -> Result<Present, Refusal> {
        let groups = self.list().await?;
        let coordinated = groups.iter().filter(|(_, state)| !state.is_free()).count();
        Ok(Present { groups: groups.len(), coordinated, watchers: self.watchers.load(Ordering::Relaxed) })
    }

    /// A term has begun; warns if that happens too often in this group.
    fn on_term(&self, group: &str) {
        self.counts.terms.fetch_add(1, Ordering::Relaxed);
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.len() >= GROUPS_MAX {
            changes.retain(|_, changes| changes.since.elapsed() < CHANGES_WINDOW);
        }
        let fresh = || Changes { since: Stopwatch::start(), count: 0 };
        let entry = changes.entry(group.to_owned()).or_insert_with(fresh);
        if entry.since.elapsed() > CHANGES_WINDOW {
            *entry = fresh();
        }
        entry.count += 1;
        // The first term is no change.
        if entry.count > CHANGES_MAX + 1 {
            self.counts.unsteady.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(group, changes = CHANGES_MAX, "the coordinator changes too often");
            *entry = fresh();
        }
    }

    async fn run<R: Send + 'static>(
        &self,
        decide: impl FnMut(&mut dyn Tx) -> Result<R, TxError> + Send + 'static,
    ) -> Result<R, Refusal> {
        Ok(baton_store::run(&*self.store, decide).await?)
    }

    fn tell(&self) {
        self.news.send_modify(|news| *news += 1);
    }

    /// All groups, by name.
    pub async fn list(&self) -> Result<Vec<(String, LeaseState)>, Refusal> {
        self.run(|tx| {
            let prefix = format!("{}epochs/", lease::PREFIX);
            let names = tx.records(&prefix, None, GROUPS_MAX)?;
            let mut groups = Vec::with_capacity(names.len());
            for (key, _) in names {
                let name = key.strip_prefix(&prefix).unwrap_or(&key);
                if let Some(state) = lease::read_state(tx, name)? {
                    groups.push((name.to_owned(), state));
                }
            }
            Ok(groups)
        })
        .await
    }

    /// One group.
    pub async fn look(&self, group: &str) -> Result<Look, Refusal> {
        let group = group.to_owned();
        self.run(move |tx| look(tx, &group)).await
    }

    /// A sign of life of `worker`, which takes the term if nobody has it and it comes first.
    pub async fn beat(
        &self,
        group: &str,
        worker: &str,
        incarnation: &str,
        lease: Duration,
    ) -> Result<LeaseState, Refusal> {
        self.counts.heartbeats.fetch_add(1, Ordering::Relaxed);
        let name = group;
        let (group, worker, incarnation) = (group.to_owned(), worker.to_owned(), incarnation.to_owned());
        let outcome = self
            .run(move |tx| {
                if let Some(full) = admit(tx, &group, &worker)? {
                    return Ok(Err(Refusal::Full(full)));
                }
                let holder = Claimant { id: &worker, incarnation: &incarnation, lease };
                let before = lease::read_state(tx, &group)?;
                let rank = rank(tx, &group, &worker, before.as_ref())?;
                let turn = before.as_ref().is_none_or(|state| {
                    state.is_held_by(&holder) || (state.is_free() && state.free_for >= STAGGER * rank)
                });
                let number = before.as_ref().map_or(0, |state| state.epoch.epoch_number);
                let state = match (turn, before) {
                    (false, Some(state)) => state,
                    _ => lease::acquire(tx, &group, &holder)?,
                };
                sign(tx, &group, &holder, &state)?;
                Ok(Ok((state.epoch.epoch_number > number, state)))
            })
            .await?;
        self.tell();
        let (begun, state) = outcome?;
        if begun {
            self.on_term(name);
        }
        Ok(state)
    }

    /// `worker` gives up what it holds, and leaves.
    pub async fn resign(
        &self,
        group: &str,
        worker: &str,
        incarnation: &str,
        next: Option<String>,
    ) -> Result<Option<LeaseState>, Refusal> {
        let (group, worker, incarnation) = (group.to_owned(), worker.to_owned(), incarnation.to_owned());
        let state = self
            .run(move |tx| {
                let holder = Claimant { id: &worker, incarnation: &incarnation, lease: Duration::ZERO };
                if lease::read_state(tx, &group)?.is_none() {
                    return Ok(None);
                }
                // The others would hold back for one that does not come.
                let next = next.clone().filter(|next| matches!(is_alive(tx, &group, next), Ok(true)));
                let state = lease::release(tx, &group, &holder, next)?;
                tx.remove_record(&key(&worker_key(&group, &worker)));
                Ok(Some(state))
            })
            .await?;
        if state.as_ref().is_some_and(|state| state.epoch.released) {
            self.counts.releases.fetch_add(1, Ordering::Relaxed);
        }
        self.tell();
        Ok(state)
    }

    /// Asks the coordinator to give its term up, to `next` before others, which must be alive.
    pub async fn force(&self, group: &str, next: Option<String>) -> Result<LeaseState, Refusal> {
        let group = group.to_owned();
        let state = self
            .run(move |tx| {
                let found = look(tx, &group)?;
                if !found.exists() {
                    return Ok(Err(Refusal::UnknownGroup(group.clone())));
                }
                if let Some(next) = &next
                    && !is_alive(tx, &group, next)?
                {
                    let alive: Vec<_> =
                        found.workers.iter().map(|(worker, _)| worker.worker_id.as_str()).collect();
                    let alive = alive.join(", ");
                    let text = format!("{next:?} is not known to be alive; the workers alive are {alive}");
                    return Ok(Err(Refusal::UnknownWorker(text)));
                }
                lease::request_step_down(tx, &group, next.clone()).map(Ok)
            })
            .await?;
        self.tell();
        state
    }

    /// Forgets a group that nobody coordinates, and its workers. The next group of this name begins with number 1.
    pub async fn delete(&self, group: &str) -> Result<(), Refusal> {
        let name = group.to_owned();
        let outcome = self
            .run(move |tx| {
                let found = look(tx, &name)?;
                if !found.exists() {
                    return Ok(Err(Refusal::UnknownGroup(name.clone())));
                }
                if let Some(state) = found.state.filter(|state| !state.is_free()) {
                    return Ok(Err(Refusal::Coordinated(state.epoch.coordinator_id)));
                }
                lease::remove_group(tx, &name);
                for (worker, _) in found.workers {
                    tx.remove_record(&key(&worker_key(&name, &worker.worker_id)));
                }
                Ok(Ok(()))
            })
            .await?;
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).remove(group);
        self.tell();
        outcome
    }

    /// A compare-and-set of a participant that decides for itself; the new version, or `None` for a conflict.
    pub async fn swap(
        &self,
        group: &str,
        expected: Option<u64>,
        epoch: EpochRecord,
    ) -> Result<Option<u64>, Refusal> {
        let name = group;
        let (claims, releases) = (epoch.lease_seq == 0, epoch.released);
        let group = group.to_owned();
        let outcome = self
            .run(move |tx| {
                let worker = epoch.coordinator_id.clone();
                if let Some(full) = admit(tx, &group, &worker)? {
                    return Ok(Err(Refusal::Full(full)));
                }
                lease::swap_epoch(tx, &group, expected, epoch.clone()).map(Ok)
            })
            .await?;
        self.tell();
        match &outcome {
            Ok(Some(_)) if claims => self.on_term(name),
            Ok(Some(_)) if releases => {
                self.counts.releases.fetch_add(1, Ordering::Relaxed);
            }
            Ok(None) => {
                self.counts.conflicts.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Some(_)) | Err(_) => {}
        }
        outcome
    }

    /// The worker record of a participant that decides for itself, or its removal.
    pub async fn put_worker(
        &self,
        group: &str,
        worker: &str,
        record: Option<WorkerRecord>,
    ) -> Result<(), Refusal> {
        if record.is_some() {
            self.counts.heartbeats.fetch_add(1, Ordering::Relaxed);
        }
        let (group, worker) = (group.to_owned(), worker.to_owned());
        let written = self.run(move |tx| {
            let key = key(&worker_key(&group, &worker));
            let Some(record) = &record else {
                tx.remove_record(&key);
                return Ok(Ok(()));
            };
            if let Some(full) = admit(tx, &group, &worker)? {
                return Ok(Err(Refusal::Full(full)));
            }
            tx.put_record(&key, encode(record)?, None)?;
            Ok(Ok(()))
        });
        let written = written.await?;
        self.tell();
        written
    }
}

impl std::fmt::Debug for Elections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Elections").finish_non_exhaustive()
    }
}

fn key(key: &str) -> String {
    format!("{}{key}", lease::PREFIX)
}

fn encode(worker: &WorkerRecord) -> Result<Bytes, TxError> {
    let value = serde_json::to_vec(worker).map_err(|e| baton_store::Error::Corrupt(e.to_string()))?;
    Ok(value.into())
}

fn look(tx: &mut dyn Tx, group: &str) -> Result<Look, TxError> {
    let state = lease::read_state(tx, group)?;
    let record = lease::read_epoch(tx, group)?;
    let found = tx.records(&key(&workers_prefix(group)), None, WORKERS_MAX)?;
    let worker = |(_, record): (String, baton_store::Record)| {
        Some((serde_json::from_slice(&record.value).ok()?, record.version))
    };
    Ok(Look { state, record, workers: found.into_iter().filter_map(worker).collect() })
}

/// Whether a worker of this name takes part.
fn is_alive(tx: &mut dyn Tx, group: &str, worker: &str) -> Result<bool, TxError> {
    Ok(tx.record(&key(&worker_key(group, worker)))?.is_some())
}

/// What is full, if a new group or a new worker would be too many.
fn admit(tx: &mut dyn Tx, group: &str, worker: &str) -> Result<Option<&'static str>, TxError> {
    if tx.record(&key(&worker_key(group, worker)))?.is_some() {
        return Ok(None);
    }
    if tx.records(&key(&workers_prefix(group)), None, WORKERS_MAX)?.len() >= WORKERS_MAX {
        return Ok(Some("the group has as many workers as a group may have"));
    }
    let is_new = tx.record(&key(&format!("epochs/{group}")))?.is_none();
    if is_new && tx.records(&key("epochs/"), None, GROUPS_MAX)?.len() >= GROUPS_MAX {
        return Ok(Some("there are as many election groups as there may be"));
    }
    Ok(None)
}

/// How many workers come before this one.
fn rank(tx: &mut dyn Tx, group: &str, worker: &str, state: Option<&LeaseState>) -> Result<u32, TxError> {
    let gone = state.map_or("", |state| state.epoch.coordinator_id.as_str());
    let prefix = key(&workers_prefix(group));
    let ids = tx.records(&prefix, None, WORKERS_MAX)?;
    let before =
        ids.iter().filter_map(|(key, _)| key.strip_prefix(&prefix)).filter(|id| *id < worker && *id != gone);
    let named = state.and_then(|state| state.epoch.handover_to.as_deref());
    if named == Some(worker) {
        return Ok(0);
    }
    let rank = u32::try_from(before.count()).unwrap_or(RANK_MAX) + u32::from(named.is_some());
    Ok(rank.min(RANK_MAX))
}

/// Writes the worker's record, which goes by itself when no other beat follows.
fn sign(tx: &mut dyn Tx, group: &str, holder: &Claimant<'_>, state: &LeaseState) -> Result<(), TxError> {
    let leads = state.is_held_by(holder);
    let wall_ms = u64::try_from(tx.now().micros() / 1000).unwrap_or(0);
    let worker = WorkerRecord {
        worker_id: holder.id.to_owned(),
        last_heartbeat: wall_ms,
        epoch: leads.then_some(state.epoch.epoch),
        is_coordinator: leads.then_some(true),
        incarnation: holder.incarnation.to_owned(),
        seq: 0,
        epoch_number: state.epoch.epoch_number,
        phase: baton_election::record::Phase::Ready,
        phases: Vec::new(),
    };
    let expires_at = tx.now().after(holder.lease * ALIVE_LEASES);
    tx.put_record(&key(&worker_key(group, holder.id)), encode(&worker)?, Some(expires_at))?;
    Ok(())
}
