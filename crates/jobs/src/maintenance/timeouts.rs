//! Timeouts: dispatches scheduled jobs, ends overdue executions, deletes old jobs.
//!
//! The due index orders chunks by the first time at which one of their jobs is due. So jobs of the far future cost
//! nothing. Always: each commit is guarded by the leader's lease, so a former leader changes nothing. Start at
//! [`sweep`].

use std::time::Duration;

use baton_types::{PartitionId, Timestamp};

use crate::model::history_entry::JobError;
use crate::model::ids::{CHUNK, Place};
use crate::model::keys;
use crate::model::slot::Slot;
use crate::model::state::{Outcome, State};
use crate::rules::cancellation::{leave_spec, reason_of};
use crate::rules::enqueue::labels;
use crate::rules::state_machine::{self, Overdue, Verdict};
use crate::rules::{completion, history, logs};
use crate::storage::{Book, Halt, each};

/// Chunks checked in one commit.
const CHUNKS_MAX: usize = 64;

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Chunks that the sweep checked.
    pub chunks: usize,
    /// When the next chunk is due, if one is.
    pub next: Option<Timestamp>,
}

/// Handles everything that is due. `available_since` is the end of the last gap in which no server could hear
/// workers.
pub fn sweep(book: &mut Book<'_>, available_since: Timestamp) -> Result<Swept, Halt> {
    let now = book.now();
    let (mut due, mut next) = (Vec::new(), None);
    for (entry, _) in book.stored(keys::DUE, None, CHUNKS_MAX + 1)? {
        let Some((at, partition, number)) = keys::read_due(&entry) else {
            book.remove(entry);
            continue;
        };
        if at > now || due.len() == CHUNKS_MAX {
            next = Some(at);
            break;
        }
        due.push((entry, (partition, number)));
    }
    let chunks: Vec<_> = due.iter().map(|(_, at)| *at).collect();
    book.want_chunks(&chunks)?;
    each(due, |(entry, at)| {
        if book.chunk(at)?.is_empty() {
            book.remove(entry);
            return Ok(());
        }
        sweep_chunk(book, at, available_since)
    })?;
    Ok(Swept { chunks: chunks.len(), next })
}

fn sweep_chunk(book: &mut Book<'_>, at: (PartitionId, u64), available_since: Timestamp) -> Result<(), Halt> {
    let now = book.now();
    book.sweep(at)?;
    let is_due = |slot: &Slot| slot.due().is_some_and(|due| due <= now);
    let slots = book.chunk(at)?.iter().enumerate().filter(|(_, slot)| is_due(slot));
    let places: Vec<_> = slots.map(|(index, _)| Place::new(at.0, at.1 * CHUNK + index as u64)).collect();
    each(places, |place| act(book, place, available_since)).map(drop)
}

/// Handles what is due for one job.
fn act(book: &mut Book<'_>, place: Place, available_since: Timestamp) -> Result<(), Halt> {
    let now = book.now();
    // The handling of another job may have changed this one.
    let Some(slot) = book.slot(place)?.filter(|slot| slot.due().is_some_and(|due| due <= now)) else {
        return Ok(());
    };
    match slot.state {
        State::Scheduled => {
            book.slot_mut(place)?.state = State::Pending;
            completion::ready(book, place)
        }
        State::Pending => call_off_doomed(book, place),
        State::Running | State::Cancelling => {
            let policy = book.policy;
            state_machine::renew_after_gap(book.slot_mut(place)?, available_since, &policy);
            take_back(book, place)
        }
        _ => forget(book, place),
    }
}

fn call_off_doomed(book: &mut Book<'_>, place: Place) -> Result<(), Halt> {
    let error = JobError::of_server("dependency_failed", "a job that it depends on did not complete");
    history::note(book, place, 0, Outcome::Cancelled, Some(error), &[])?;
    completion::call_off(book, place)
}

fn take_back(book: &mut Book<'_>, place: Place) -> Result<(), Halt> {
    let (now, policy) = (book.now(), book.policy);
    let Some(slot) = book.slot(place)? else { return Ok(()) };
    let (fence, ran) = (slot.fence, now.since(slot.started_at));
    let Some(overdue) = state_machine::overdue(slot, now) else { return Ok(()) };
    let (outcome, error, verdict) = match overdue {
        Overdue::NotStopped => {
            let reason = reason_of(book, place)?.map(|reason| format!("{reason}; ")).unwrap_or_default();
            state_machine::stop(book.slot_mut(place)?, now, &policy);
            let error = JobError::of_server("cancelled", format!("{reason}the worker did not stop in time"));
            (Outcome::Cancelled, error, Verdict::Ended(State::Cancelled))
        }
        Overdue::Lost => {
            let verdict = state_machine::lose(book.slot_mut(place)?, now, &policy);
            let error = match verdict {
                Verdict::Ended(_) => {
                    JobError::of_server("poison", "too many workers fell silent while they had it")
                }
                _ => JobError::of_server("lost", "the worker fell silent"),
            };
            (Outcome::Lost, error, verdict)
        }
        Overdue::TimedOut => {
            let (spec, _) = book.spec(place)?;
            let verdict = state_machine::time_out(book.slot_mut(place)?, now, &spec.retry, &policy);
            let error =
                JobError::of_server("timed_out", format!("it ran longer than {} ms", spec.timeout_ms));
            (Outcome::TimedOut, error, verdict)
        }
    };
    history::note(book, place, fence, outcome, Some(error), &[])?;
    book.news.counts.ended.push((outcome, ran));
    completion::settle(book, place, verdict)
}

/// Deletes a job that ended long ago, with its records. Its log has a retention of its own.
fn forget(book: &mut Book<'_>, place: Place) -> Result<(), Halt> {
    let Some(slot) = book.slot(place)?.cloned() else { return Ok(()) };
    let id = book.id(place)?;
    if slot.has_words {
        logs::outlive(book, id, &slot)?;
        book.remove(keys::progress(id));
    }
    if slot.has_labels {
        let (spec, _) = book.spec(place)?;
        labels(&spec).for_each(|(label, text)| book.remove(keys::label(label, text, id)));
    }
    if let Some(at) = slot.dead_at {
        book.remove(keys::dead(at, id));
    }
    leave_spec(book, place)?;
    let slot = book.slot_mut(place)?;
    let permit = slot.permit.filter(|permit| permit.in_line);
    *slot = Slot { permit, ..Slot::gone() };
    book.news.counts.forgotten += 1;
    book.tell(place);
    Ok(())
}

/// How long the sweep may sleep before it checks the clock again.
pub fn pause(now: Timestamp, next: Option<Timestamp>, longest: Duration) -> Duration {
    next.map_or(longest, |next| next.since(now).min(longest))
}
