//! Log retention: a job's log is kept for a while after the job's end, whether or not the job still exists.
//!
//! An entry in a time index says when to check a log. Always: the log of a job that has not ended, or that ended
//! again later, stays; its next end adds another entry.

use crate::model::ids::JobId;
use crate::model::keys;
use crate::storage::{Book, Halt, each};

/// Logs checked in one commit.
const LOGS_MAX: usize = 16;
/// Log records removed in one commit.
const RECORDS_MAX: usize = 64;

/// Removes logs past their retention. Returns whether there may be more.
pub fn sweep(book: &mut Book<'_>) -> Result<bool, Halt> {
    let now = book.now();
    let entries = book.stored(keys::WORN, None, LOGS_MAX)?;
    let due: Vec<(String, JobId)> = entries
        .into_iter()
        .filter_map(|(entry, _)| keys::read_worn(&entry).map(|(at, job)| (entry, at, job)))
        .filter(|(_, at, _)| *at <= now)
        .map(|(entry, _, job)| (entry, job))
        .collect();
    book.want_places(due.iter().filter_map(|(_, job)| job.place()))?;
    let more = !due.is_empty();
    each(due, |(entry, job)| remove(book, entry, job))?;
    Ok(more)
}

fn remove(book: &mut Book<'_>, entry: String, job: JobId) -> Result<(), Halt> {
    let (now, logs_for) = (book.now(), book.policy.logs_for);
    let place = book.find(job)?;
    if let Some(place) = place
        && let Some(slot) = book.slot(place)?
        && (!slot.state.is_terminal() || slot.ended_at.after(logs_for) > now)
    {
        book.remove(entry);
        return Ok(());
    }
    let lines = book.stored(&keys::log_lines(job), None, RECORDS_MAX)?;
    let is_all = lines.len() < RECORDS_MAX;
    lines.into_iter().for_each(|(line, _)| book.remove(line));
    if is_all {
        book.remove(entry);
        book.remove(keys::logs(job));
        book.remove(keys::progress(job));
        if let Some(place) = place {
            book.slot_mut(place)?.has_words = false;
        }
    }
    Ok(())
}
