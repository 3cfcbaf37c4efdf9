//! Timeouts: dispatches scheduled jobs, ends overdue executions, deletes old jobs.
//!
//! The due index orders chunks by the first time at which one of their jobs is due. So jobs of the far future cost
//! nothing. Always: each commit is guarded by the leader's lease, so a former leader changes nothing. Start at
//! [`sweep`].

use std::time::Duration;

use baton_types::{PartitionId, Timestamp};

use crate::model::history_entry::JobError;
use crate::model::ids::{CHUNK, JobPosition};
use crate::model::keys;
use crate::model::slot::Slot;
use crate::model::state::{Outcome, State};
use crate::rules::cancellation::{leave_spec, reason_of};
use crate::rules::enqueue::labels;
use crate::rules::state_machine::{self, Overdue, Verdict};
use crate::rules::{completion, history, logs};
use crate::storage::{Abort, JobsTx, each};

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
pub fn sweep(tx: &mut JobsTx<'_>, available_since: Timestamp) -> Result<Swept, Abort> {
    let now = tx.now();
    let (mut due, mut next) = (Vec::new(), None);
    for (entry, _) in tx.stored(keys::DUE, None, CHUNKS_MAX + 1)? {
        let Some((at, partition, number)) = keys::read_due(&entry) else {
            tx.remove(entry);
            continue;
        };
        if at > now || due.len() == CHUNKS_MAX {
            next = Some(at);
            break;
        }
        due.push((entry, (partition, number)));
    }
    let chunks: Vec<_> = due.iter().map(|(_, at)| *at).collect();
    tx.prefetch_chunks(&chunks)?;
    each(due, |(entry, at)| {
        if tx.chunk(at)?.is_empty() {
            tx.remove(entry);
            return Ok(());
        }
        sweep_chunk(tx, at, available_since)
    })?;
    Ok(Swept { chunks: chunks.len(), next })
}

fn sweep_chunk(tx: &mut JobsTx<'_>, at: (PartitionId, u64), available_since: Timestamp) -> Result<(), Abort> {
    let now = tx.now();
    tx.recompute_due(at)?;
    let is_due = |slot: &Slot| slot.due().is_some_and(|due| due <= now);
    let slots = tx.chunk(at)?.iter().enumerate().filter(|(_, slot)| is_due(slot));
    let positions: Vec<_> =
        slots.map(|(index, _)| JobPosition::new(at.0, at.1 * CHUNK + index as u64)).collect();
    each(positions, |position| act(tx, position, available_since)).map(drop)
}

/// Handles what is due for one job.
fn act(tx: &mut JobsTx<'_>, position: JobPosition, available_since: Timestamp) -> Result<(), Abort> {
    let now = tx.now();
    // The handling of another job may have changed this one.
    let Some(slot) = tx.slot(position)?.filter(|slot| slot.due().is_some_and(|due| due <= now)) else {
        return Ok(());
    };
    match slot.state {
        State::Scheduled => {
            tx.slot_mut(position)?.state = State::Pending;
            completion::dispatch_or_wait(tx, position)
        }
        State::Pending => cancel_blocked(tx, position),
        State::Running | State::Cancelling => {
            let policy = tx.policy;
            state_machine::renew_after_gap(tx.slot_mut(position)?, available_since, &policy);
            take_back(tx, position)
        }
        _ => forget(tx, position),
    }
}

fn cancel_blocked(tx: &mut JobsTx<'_>, position: JobPosition) -> Result<(), Abort> {
    let error = JobError::from_server("dependency_failed", "a job that it depends on did not complete");
    history::append(tx, position, 0, Outcome::Cancelled, Some(error), &[])?;
    completion::cancel_unleased(tx, position)
}

fn take_back(tx: &mut JobsTx<'_>, position: JobPosition) -> Result<(), Abort> {
    let (now, policy) = (tx.now(), tx.policy);
    let Some(slot) = tx.slot(position)? else { return Ok(()) };
    let (fence, ran) = (slot.fence, now.since(slot.started_at));
    let Some(overdue) = state_machine::overdue(slot, now) else { return Ok(()) };
    let (outcome, error, verdict) = match overdue {
        Overdue::NotStopped => {
            let reason = reason_of(tx, position)?.map(|reason| format!("{reason}; ")).unwrap_or_default();
            state_machine::end_unstopped(tx.slot_mut(position)?, now, &policy);
            let error =
                JobError::from_server("cancelled", format!("{reason}the worker did not stop in time"));
            (Outcome::Cancelled, error, Verdict::Ended(State::Cancelled))
        }
        Overdue::Lost => {
            let verdict = state_machine::on_lease_expired(tx.slot_mut(position)?, now, &policy);
            let error = match verdict {
                Verdict::Ended(_) => JobError::from_server(
                    "poison",
                    "too many of its executions were lost: their workers' leases expired",
                ),
                _ => JobError::from_server("lost", "the worker fell silent"),
            };
            (Outcome::Lost, error, verdict)
        }
        Overdue::TimedOut => {
            let (spec, _) = tx.spec(position)?;
            let verdict = state_machine::time_out(tx.slot_mut(position)?, now, &spec.retry, &policy);
            let error =
                JobError::from_server("timed_out", format!("it ran longer than {} ms", spec.timeout_ms));
            (Outcome::TimedOut, error, verdict)
        }
    };
    history::append(tx, position, fence, outcome, Some(error), &[])?;
    tx.effects.counts.ended.push((outcome, ran));
    completion::on_execution_ended(tx, position, verdict)
}

/// Deletes a job that ended long ago, with its records. Its log has a retention of its own.
fn forget(tx: &mut JobsTx<'_>, position: JobPosition) -> Result<(), Abort> {
    let Some(slot) = tx.slot(position)?.cloned() else { return Ok(()) };
    let id = tx.id(position)?;
    if slot.has_output {
        logs::outlive(tx, id, &slot)?;
        tx.remove(keys::progress(id));
    }
    if slot.has_labels {
        let (spec, _) = tx.spec(position)?;
        labels(&spec).for_each(|(label, text)| tx.remove(keys::label(label, text, id)));
    }
    if let Some(at) = slot.dead_at {
        tx.remove(keys::dead(at, id));
    }
    leave_spec(tx, position)?;
    let slot = tx.slot_mut(position)?;
    let permit = slot.permit.filter(|permit| permit.is_waiting);
    *slot = Slot { permit, ..Slot::gone() };
    tx.effects.counts.forgotten += 1;
    tx.notify_watchers(position);
    Ok(())
}

/// How long the sweep may sleep before it checks the clock again.
pub fn pause(now: Timestamp, next: Option<Timestamp>, longest: Duration) -> Duration {
    next.map_or(longest, |next| next.since(now).min(longest))
}
