//! Consequences of a job's change: its permit, its unique key, the jobs that wait for it.
//!
//! Every rule that ends an execution calls this module, so no path forgets a consequence. Always: an ended job holds
//! no permit and no unique key; every job that could run is dispatched or has a reason to wait. Start at [`dispatch_or_wait`]
//! and [`on_job_ended`].

use baton_store::Error as StoreError;
use baton_types::PartitionId;

use crate::model::codec::{Reader, Writer};
use crate::model::ids::JobPosition;
use crate::model::keys;
use crate::model::state::State;
use crate::rules::state_machine::{self, Verdict};
use crate::rules::{logs, permits};
use crate::storage::{Abort, JobsTx, each};

/// Dispatches a job that is due, or makes it wait for its dependencies or its permit.
pub fn dispatch_or_wait(tx: &mut JobsTx<'_>, position: JobPosition) -> Result<(), Abort> {
    let now = tx.now();
    let slot = tx.slot_mut(position)?;
    slot.state = match slot.run_at {
        _ if slot.blockers > 0 || slot.has_failed_blocker => State::Pending,
        Some(at) if at > now => State::Scheduled,
        _ => State::Dispatched,
    };
    if slot.state == State::Dispatched && !permits::acquire(tx, position)? {
        tx.slot_mut(position)?.state = State::Pending;
    }
    tx.notify_watchers(position);
    Ok(())
}

/// Applies the consequences of the end of an execution.
pub fn on_execution_ended(tx: &mut JobsTx<'_>, position: JobPosition, verdict: Verdict) -> Result<(), Abort> {
    match verdict {
        // It keeps its permit and its position: it is still the oldest.
        Verdict::Again => {
            let slot = tx.slot_mut(position)?;
            slot.run_at = None;
            dispatch_or_wait(tx, position)
        }
        Verdict::RetryAt(_) => {
            permits::release(tx, position)?;
            tx.notify_watchers(position);
            Ok(())
        }
        Verdict::Ended(state) => on_job_ended(tx, position, state),
    }
}

/// Applies the consequences of the end of a job. A failed job becomes a dead letter, unless its queue has none.
pub fn on_job_ended(tx: &mut JobsTx<'_>, position: JobPosition, state: State) -> Result<(), Abort> {
    permits::release(tx, position)?;
    let (now, id) = (tx.now(), tx.id(position)?);
    let is_dead =
        matches!(state, State::Failed | State::TimedOut) && tx.head(position.partition)?.settings.dlq;
    let slot = tx.slot_mut(position)?;
    // A retry reads the permit from the specification again. A position in a wait list outlives the job.
    slot.permit = slot.permit.filter(|permit| permit.is_waiting);
    let (unique, has_dependents) = (slot.unique.take(), std::mem::take(&mut slot.has_dependents));
    let has_output = slot.has_output;
    if is_dead {
        slot.dead_at = Some(now);
        tx.put(keys::dead(now, id), Vec::new(), None);
        tx.effects.counts.dead += 1;
    }
    if has_output {
        logs::schedule_removal(tx, id, now);
    }
    if let Some(unique) = unique {
        tx.remove(keys::unique(unique));
    }
    if has_dependents {
        notify_dependents(tx, position, state == State::Completed)?;
    }
    tx.notify_watchers(position);
    Ok(())
}

/// Cancels a job that no worker has, and the jobs that depend on it.
pub fn cancel_unleased(tx: &mut JobsTx<'_>, position: JobPosition) -> Result<(), Abort> {
    let (now, policy) = (tx.now(), tx.policy);
    if state_machine::cancel(tx.slot_mut(position)?, now, true, &policy) == state_machine::Cancelled::Done {
        on_job_ended(tx, position, State::Cancelled)?;
    }
    Ok(())
}

// Dependents.

/// The jobs that depend on a job.
pub fn dependents(tx: &mut JobsTx<'_>, position: JobPosition) -> Result<Vec<JobPosition>, Abort> {
    let Some(value) = tx.record(&keys::after(position))? else { return Ok(Vec::new()) };
    let (mut from, mut positions) = (Reader(&value), Vec::new());
    while !from.0.is_empty() {
        let mut read = || Ok::<_, StoreError>(JobPosition::new(PartitionId(from.number()?), from.number()?));
        positions.push(read()?);
    }
    Ok(positions)
}

/// Stores which jobs depend on a job.
pub fn put_dependents(tx: &mut JobsTx<'_>, position: JobPosition, dependents: &[JobPosition]) {
    let mut out = Writer::default();
    for dependent in dependents {
        out.number(dependent.partition.0);
        out.number(dependent.offset.0);
    }
    tx.put(keys::after(position), out.0, None);
}

fn notify_dependents(tx: &mut JobsTx<'_>, position: JobPosition, completed: bool) -> Result<(), Abort> {
    let positions = dependents(tx, position)?;
    tx.remove(keys::after(position));
    tx.prefetch_slots(positions.iter().copied())?;
    each(positions, |position| {
        let Some(slot) = tx.slot(position)? else { return Ok(()) };
        if slot.state != State::Pending || slot.blockers == 0 {
            return Ok(());
        }
        let slot = tx.slot_mut(position)?;
        slot.blockers -= 1;
        if !completed {
            // The leader cancels it in a commit of its own, so a long chain ends link by link.
            slot.has_failed_blocker = true;
            tx.notify_watchers(position);
        } else if slot.blockers == 0 && !slot.has_failed_blocker {
            dispatch_or_wait(tx, position)?;
        }
        Ok(())
    })?;
    Ok(())
}
