//! Log retention: a job's log is kept for a while after the job's end, whether or not the job still exists.
//!
//! An entry in a time index says when to check a log. Always: the log of a job that has not ended, or that ended
//! again later, stays; its next end adds another entry.

use crate::model::ids::JobId;
use crate::model::keys;
use crate::storage::{Abort, JobsTx, each};

/// Logs checked in one commit.
const LOGS_MAX: usize = 16;
/// Log records removed in one commit.
const RECORDS_MAX: usize = 64;

/// Removes logs past their retention. Returns whether there may be more.
pub fn remove_expired(tx: &mut JobsTx<'_>) -> Result<bool, Abort> {
    let now = tx.now();
    let entries = tx.stored(keys::WORN, None, LOGS_MAX)?;
    let due: Vec<(String, JobId)> = entries
        .into_iter()
        .filter_map(|(entry, _)| keys::read_worn(&entry).map(|(at, job)| (entry, at, job)))
        .filter(|(_, at, _)| *at <= now)
        .map(|(entry, _, job)| (entry, job))
        .collect();
    tx.prefetch_slots(due.iter().filter_map(|(_, job)| job.position()))?;
    let more = !due.is_empty();
    each(due, |(entry, job)| remove(tx, entry, job))?;
    Ok(more)
}

fn remove(tx: &mut JobsTx<'_>, entry: String, job: JobId) -> Result<(), Abort> {
    let (now, logs_for) = (tx.now(), tx.policy.logs_for);
    let position = tx.find(job)?;
    if let Some(position) = position
        && let Some(slot) = tx.slot(position)?
        && (!slot.state.is_terminal() || slot.ended_at.after(logs_for) > now)
    {
        tx.remove(entry);
        return Ok(());
    }
    let lines = tx.stored(&keys::log_lines(job), None, RECORDS_MAX)?;
    let is_all = lines.len() < RECORDS_MAX;
    lines.into_iter().for_each(|(line, _)| tx.remove(line));
    if is_all {
        tx.remove(entry);
        tx.remove(keys::logs(job));
        tx.remove(keys::progress(job));
        if let Some(position) = position {
            tx.slot_mut(position)?.has_output = false;
        }
    }
    Ok(())
}
