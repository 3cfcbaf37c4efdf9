//! Heartbeats: leases run on, progress is kept, and the worker hears what it is to stop.

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
use crate::storage::{Book, Halt};

/// How far a job is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Of a hundred.
    pub percent: f64,
    /// In words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The same as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgressAt {
    /// What was said.
    #[serde(flatten)]
    pub progress: Progress,
    /// When.
    pub at: Timestamp,
}

/// A job that a worker says it has.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// The job.
    pub job: JobId,
    /// What proves it.
    pub fence: u64,
    /// How far it is, if that is news.
    pub progress: Option<Progress>,
}

/// A heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub struct Beat {
    /// Who sends it.
    pub worker: WorkerId,
    /// The jobs it has.
    pub running: Vec<Held>,
}

/// What a worker hears.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// What is wanted of it.
    pub desired: Desired,
    /// How long it may take to drain.
    pub grace_ms: u64,
    /// Jobs that are not its own any more.
    pub lost: Vec<JobId>,
    /// Jobs that it is to stop.
    pub cancel: Vec<JobId>,
    /// Whether some of this was said to no heartbeat before.
    pub is_news: bool,
}

/// Hears a worker.
pub fn beat(book: &mut Book<'_>, beat: &Beat) -> Result<Heard, Halt> {
    if beat.running.len() > BEAT_JOBS_MAX {
        return Err(Error::TooLarge(format!("a heartbeat names at most {BEAT_JOBS_MAX} jobs")).into());
    }
    book.want_places(beat.running.iter().filter_map(|held| held.job.place()))?;
    let mut worker = workers::expect(book, beat.worker)?;
    let (now, policy) = (book.now(), book.policy);
    let mut heard = Heard { desired: worker.desired, grace_ms: worker.grace_ms, ..Heard::default() };
    for held in &beat.running {
        let Some(place) = book.find(held.job)? else {
            heard.lost.push(held.job);
            continue;
        };
        match state_machine::beat(book.slot_mut(place)?, now, held.fence, &policy) {
            Ok(is_to_stop) => {
                if is_to_stop {
                    heard.cancel.push(held.job);
                }
                if let Some(progress) = &held.progress {
                    keep(book, held.job, progress)?;
                }
            }
            Err(_) => {
                book.news.counts.stale += 1;
                heard.lost.push(held.job);
            }
        }
    }
    heard.is_news = std::mem::take(&mut worker.has_news);
    for job in std::mem::take(&mut worker.to_stop) {
        if !beat.running.iter().any(|held| held.job == job) {
            judge(book, beat.worker, job, &mut heard)?;
        }
    }
    worker.seen_at = now;
    worker.running = u32::try_from(beat.running.len()).unwrap_or(u32::MAX);
    book.say(beat.worker.0, || {
        json!({
            "kind": "worker", "workerId": beat.worker, "name": worker.told.name, "running": worker.running,
            "at": now.to_iso_millis(),
        })
    });
    workers::put(book, beat.worker, &worker)?;
    Ok(heard)
}

/// Says what a worker is to do about a job that it was called about and did not name. It may have got it only now.
fn judge(book: &mut Book<'_>, worker: WorkerId, job: JobId, heard: &mut Heard) -> Result<(), Halt> {
    let slot = match book.find(job)? {
        Some(place) => book.slot(place)?.filter(|slot| slot.worker == worker.0 && slot.state.is_held()),
        None => None,
    };
    match slot.map(|slot| slot.state) {
        Some(State::Cancelling) => heard.cancel.push(job),
        Some(_) => {}
        None => heard.lost.push(job),
    }
    Ok(())
}

fn keep(book: &mut Book<'_>, job: JobId, progress: &Progress) -> Result<(), Halt> {
    let percent = if progress.percent.is_finite() { progress.percent.clamp(0.0, 100.0) } else { 0.0 };
    let mut message = progress.message.clone();
    if let Some(text) = &mut message {
        let end = (0..=text.len().min(1024)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    let kept = ProgressAt { progress: Progress { percent, message }, at: book.now() };
    book.put(keys::progress(job), serde_json::to_vec(&kept).unwrap_or_default(), None);
    let place = book.expect(job)?;
    book.slot_mut(place)?.has_words = true;
    book.tell(place);
    Ok(())
}
