//! Heartbeats: renew leases, store progress, and tell the worker which jobs to stop.

use baton_types::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::model::error::Error;
use crate::model::ids::{JobId, WorkerId};
use crate::model::keys;
use crate::model::limits::BEAT_JOBS_MAX;
use crate::model::state::State;
use crate::model::worker::Desired;
use crate::rules::{state_machine, workers};
use crate::storage::{Abort, JobsTx};

/// The progress of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// In percent.
    pub percent: f64,
    /// As text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Progress with its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgressAt {
    #[serde(flatten)]
    /// The progress.
    pub progress: Progress,
    /// When the server received it.
    pub at: Timestamp,
}

/// A job that a heartbeat lists.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldJob {
    /// The job.
    pub job: JobId,
    /// Its fence.
    pub fence: u64,
    /// Its progress, if that has changed.
    pub progress: Option<Progress>,
}

/// A heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub struct Heartbeat {
    /// The worker that sends it.
    pub worker: WorkerId,
    /// The jobs it has.
    pub running: Vec<HeldJob>,
}

/// The reply to a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// The wanted state of the worker.
    pub desired: Desired,
    /// How long it may take to drain.
    pub grace_ms: u64,
    /// Jobs that belong to another execution by now.
    pub lost: Vec<JobId>,
    /// Jobs that the worker should stop.
    pub cancel: Vec<JobId>,
    /// Whether some of this was in no earlier reply.
    pub is_news: bool,
}

/// Handles a heartbeat.
pub fn handle(tx: &mut JobsTx<'_>, beat: &Heartbeat) -> Result<HeartbeatReply, Abort> {
    if beat.running.len() > BEAT_JOBS_MAX {
        return Err(Error::TooLarge(format!("a heartbeat names at most {BEAT_JOBS_MAX} jobs")).into());
    }
    tx.prefetch_slots(beat.running.iter().filter_map(|held| held.job.position()))?;
    let mut worker = workers::expect(tx, beat.worker)?;
    let (now, policy) = (tx.now(), tx.policy);
    let mut heard =
        HeartbeatReply { desired: worker.desired, grace_ms: worker.grace_ms, ..HeartbeatReply::default() };
    for held in &beat.running {
        let Some(position) = tx.find(held.job)? else {
            heard.lost.push(held.job);
            continue;
        };
        match state_machine::renew(tx.slot_mut(position)?, now, held.fence, &policy) {
            Ok(is_to_stop) => {
                if is_to_stop {
                    heard.cancel.push(held.job);
                }
                if let Some(progress) = &held.progress {
                    store_progress(tx, held.job, progress)?;
                }
            }
            Err(_) => {
                tx.effects.counts.stale += 1;
                heard.lost.push(held.job);
            }
        }
    }
    heard.is_news = std::mem::take(&mut worker.has_news);
    for job in std::mem::take(&mut worker.to_stop) {
        if !beat.running.iter().any(|held| held.job == job) {
            check_stop(tx, beat.worker, job, &mut heard)?;
        }
    }
    worker.seen_at = now;
    worker.running = u32::try_from(beat.running.len()).unwrap_or(u32::MAX);
    tx.add_journal_entry(beat.worker.0, || {
        json!({
            "kind": "worker", "workerId": beat.worker, "name": worker.registration.name, "running": worker.running,
            "at": now.to_iso_millis(),
        })
    });
    workers::put(tx, beat.worker, &worker)?;
    Ok(heard)
}

/// Adds a job that the heartbeat does not list but the server wants stopped. The worker may have received it only
/// now.
fn check_stop(
    tx: &mut JobsTx<'_>,
    worker: WorkerId,
    job: JobId,
    heard: &mut HeartbeatReply,
) -> Result<(), Abort> {
    let slot = match tx.find(job)? {
        Some(position) => tx.slot(position)?.filter(|slot| slot.worker == worker.0 && slot.state.is_held()),
        None => None,
    };
    match slot.map(|slot| slot.state) {
        Some(State::Cancelling) => heard.cancel.push(job),
        Some(_) => {}
        None => heard.lost.push(job),
    }
    Ok(())
}

fn store_progress(tx: &mut JobsTx<'_>, job: JobId, progress: &Progress) -> Result<(), Abort> {
    let percent = if progress.percent.is_finite() { progress.percent.clamp(0.0, 100.0) } else { 0.0 };
    let mut message = progress.message.clone();
    if let Some(text) = &mut message {
        let end = (0..=text.len().min(1024)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    let kept = ProgressAt { progress: Progress { percent, message }, at: tx.now() };
    tx.put(keys::progress(job), serde_json::to_vec(&kept).unwrap_or_default(), None);
    let position = tx.expect(job)?;
    tx.slot_mut(position)?.has_output = true;
    tx.notify_watchers(position);
    Ok(())
}
