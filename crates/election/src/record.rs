//! What participants write into the store.
//!
//! Two kinds of record per group: one [`EpochRecord`], which decides and changes only by compare-and-set, and one
//! [`WorkerRecord`] for each participant, which is only a hint. Always: an epoch record is never deleted, its number
//! rises with every change of coordinator, and no two records ever written are the same bytes (`leaseSeq` rises
//! within a term, the number between terms), so a version that is a hash of the content never repeats.

use serde::{Deserialize, Serialize};

/// Who coordinates a group. The one record that decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EpochRecord {
    /// The number of the term, and its fencing token. Rises by at least one with every change of coordinator.
    pub epoch_number: u64,
    /// The coordinator's worker id.
    pub coordinator_id: String,
    /// The process that the coordinator lives in.
    pub incarnation: String,
    /// New with every claim. A claimant whose answer was lost recognises its claim by it.
    pub nonce: String,
    /// Rises with every renewal tried.
    pub lease_seq: u64,
    /// When the mandate ends, in milliseconds of the writer's wall clock. For people; nothing is decided by it.
    pub epoch: u64,
    /// When the term began, in the same time.
    pub epoch_start: u64,
    /// The coordinator has stopped its work and released the term: any worker may claim.
    #[serde(default)]
    pub released: bool,
    /// A worker or a user asks the coordinator to release the term.
    #[serde(default)]
    pub step_down: bool,
    /// The worker that should claim next; the others defer to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover_to: Option<String>,
    /// Who wrote the claim. Only the claimant itself ever does.
    pub elected_by: String,
    /// How long the mandate is.
    pub duration_ms: u64,
    /// How long others wait, from when they first see a version, before they claim.
    pub lease_ms: u64,
    /// The process whose lease ([`ProcessRecord`]) covers the term; `None` if this record is its own lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
}

/// The lease of a process that takes part in many groups: renewed for all of them at once.
///
/// Always: only the process itself renews it. A worker that has seen it unchanged for its lease may fence it, and must
/// do so before it claims a term under it. A fenced record is never renewed, and a missing one counts as fenced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessRecord {
    /// The worker id of the process in all its groups.
    pub worker_id: String,
    /// New with every lease.
    pub incarnation: String,
    /// Rises with every renewal tried.
    pub seq: u64,
    /// How long others wait, from when they first see a version, before they fence it.
    pub lease_ms: u64,
    /// When it was written, in milliseconds of the writer's wall clock. For people.
    pub renewed_at: u64,
    /// When the mandates under it end, in the same time. For people.
    pub epoch: u64,
    /// Another worker found it silent, or the process has ended.
    #[serde(default)]
    pub fenced: bool,
}

impl ProcessRecord {
    /// Its id in the records of groups.
    pub fn id(&self) -> String {
        format!("{}.{}", self.worker_id, self.incarnation)
    }

    /// The record that ends the lease `id`: written over the record of that lease, it stops every renewal.
    pub fn fenced_record(id: &str) -> Self {
        let worker_id = process_worker_id(id).to_owned();
        let incarnation = id.rsplit_once('.').map_or("", |(_, incarnation)| incarnation).to_owned();
        Self { worker_id, incarnation, seq: u64::MAX, lease_ms: 0, renewed_at: 0, epoch: 0, fenced: true }
    }

    /// The key of its record.
    pub fn key(&self) -> String {
        process_key(&self.id())
    }
}

/// A heartbeat. Only its owner writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerRecord {
    /// The worker's id.
    pub worker_id: String,
    /// When it was written, in milliseconds of the writer's wall clock. For people.
    pub last_heartbeat: u64,
    /// When the mandate ends; only with the coordinator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Only with the coordinator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_coordinator: Option<bool>,
    /// The process that the worker lives in.
    #[serde(default)]
    pub incarnation: String,
    /// Rises with every heartbeat.
    #[serde(default)]
    pub seq: u64,
    /// The highest epoch number that the worker has seen. A deleted epoch record is rebuilt from it.
    #[serde(default)]
    pub epoch_number: u64,
    /// Where in its cold start the worker is.
    #[serde(default)]
    pub phase: Phase,
    /// All steps of its cold start so far, so that a late reader misses none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseStep>,
}

/// A step of a cold start that a worker has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseStep {
    /// The step.
    pub phase: Phase,
    /// When it began, in milliseconds of the worker's wall clock. For people.
    pub at: u64,
    /// How long the step before it took, in milliseconds.
    pub duration: u64,
}

/// The steps of a cold start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Writes heartbeats and reads the record; does not elect yet.
    #[default]
    Observing,
    /// Waits for a coordinator, and claims if there is none.
    Election,
    /// There is a coordinator; the others get time to see it.
    Preparation,
    /// Work may begin.
    Ready,
}

impl Phase {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observing => "observing",
            Self::Election => "election",
            Self::Preparation => "preparation",
            Self::Ready => "ready",
        }
    }
}

/// The longest group name or worker id, in bytes. Both become parts of keys and file names.
pub const NAME_BYTES_MAX: usize = 128;

/// Why a group name or worker id cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} {name:?} cannot be used: give 1 to 128 letters, digits, '.', '_' or '-', not beginning with '.'"
)]
pub struct BadName {
    what: &'static str,
    name: String,
}

/// Refuses a name that is not fit to be part of a key, a file name and a URL alike.
pub fn check_name(what: &'static str, name: &str) -> Result<(), BadName> {
    let fits = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if fits {
        return Ok(());
    }
    Err(BadName { what, name: name.chars().take(NAME_BYTES_MAX).collect() })
}

/// The key of a group's epoch record.
pub fn epoch_key(group: &str) -> String {
    format!("epochs/{group}")
}

/// Prefix of the keys of a group's worker records.
pub fn workers_prefix(group: &str) -> String {
    format!("workers/{group}/")
}

/// The key of a worker's record.
pub fn worker_key(group: &str, worker: &str) -> String {
    format!("workers/{group}/{worker}")
}

/// Prefix of the keys of all process records.
pub const PROCESSES_PREFIX: &str = "processes/";

/// The key of the record of the process called `id`.
pub fn process_key(id: &str) -> String {
    format!("{PROCESSES_PREFIX}{id}")
}

/// The worker id of the process called `id`.
pub fn process_worker_id(id: &str) -> &str {
    id.rsplit_once('.').map_or(id, |(worker, _)| worker)
}

/// A fresh worker id, `worker-<milliseconds>-<7 characters>`: older processes sort first.
pub fn fresh_worker_id(wall_ms: u64) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut random = baton_env::random_u64();
    let mut tail = String::with_capacity(7);
    for _ in 0..7 {
        tail.push(char::from(DIGITS[usize::try_from(random % 36).unwrap_or(0)]));
        random /= 36;
    }
    format!("worker-{wall_ms}-{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_into_a_key_a_file_name_and_a_url() {
        for good in ["a", "clean-up", "worker-1734567890123-abc1234", "A.b_c", &"x".repeat(NAME_BYTES_MAX)] {
            assert!(check_name("group", good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "ä", "a\0", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert!(check_name("group", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_fresh_worker_id_has_the_known_form_and_sorts_by_age() {
        let id = fresh_worker_id(1_734_567_890_123);
        let tail = id.strip_prefix("worker-1734567890123-").unwrap();
        assert!(
            tail.len() == 7 && tail.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase()),
            "{id}"
        );
        assert!(id < fresh_worker_id(1_734_567_890_124));
        assert_ne!(id, fresh_worker_id(1_734_567_890_123));
    }

    #[test]
    fn a_record_of_the_first_format_is_understood() {
        let text = r#"{"workerId":"worker-1","lastHeartbeat":5,"epoch":7,"isCoordinator":true}"#;
        let worker: WorkerRecord = serde_json::from_str(text).unwrap();
        assert_eq!(
            (worker.worker_id.as_str(), worker.epoch, worker.is_coordinator),
            ("worker-1", Some(7), Some(true))
        );
    }
}
