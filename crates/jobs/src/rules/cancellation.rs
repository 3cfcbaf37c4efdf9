//! Cancels jobs, and retries ended ones.

use baton_types::{PartitionId, Timestamp};
use bytes::Bytes;

use crate::model::concurrency_key;
use crate::model::error::Error;
use crate::model::history_entry::JobError;
use crate::model::ids::{JobId, JobPosition, WorkerId};
use crate::model::limits::{ARGS_BYTES_MAX, CANCEL_REASON_FOR};
use crate::model::slot::Slot;
use crate::model::state::{Outcome, State};
use crate::model::{keys, payload};
use crate::rules::state_machine::{self, Cancelled};
use crate::rules::{completion, history, workers};
use crate::storage::{Abort, JobsTx};

/// Cancels a job. Returns what happened, and the job's state.
pub fn cancel(tx: &mut JobsTx<'_>, id: JobId, force: bool, reason: Option<&str>) -> Result<Cancelled, Abort> {
    let position = tx.expect(id)?;
    let (now, policy) = (tx.now(), tx.policy);
    let held = tx.slot(position)?.filter(|slot| slot.state.is_held()).map(|slot| (slot.fence, slot.worker));
    let before = if held.is_some() { reason_of(tx, position)? } else { None };
    let cancelled = state_machine::cancel(tx.slot_mut(position)?, now, force, &policy);
    if let Some((_, worker)) = held.filter(|_| cancelled != Cancelled::TooLate) {
        workers::request_stop(tx, WorkerId(worker), id)?;
    }
    match cancelled {
        Cancelled::Done => {
            let journal_entries = reason.map(str::to_owned).or(before);
            if held.is_some() || journal_entries.is_some() {
                let error = JobError::from_server(
                    "cancelled",
                    journal_entries.as_deref().unwrap_or("cancelled by request"),
                );
                history::append(
                    tx,
                    position,
                    held.map_or(0, |(fence, _)| fence),
                    Outcome::Cancelled,
                    Some(error),
                    &[],
                )?;
            }
            if held.is_some() {
                tx.effects.counts.ended.push((Outcome::Cancelled, std::time::Duration::ZERO));
            }
            completion::on_job_ended(tx, position, State::Cancelled)?;
        }
        Cancelled::Asked => {
            if let Some(reason) = reason {
                let kept = JobError::from_server("cancelled", reason).bounded().message;
                let until = now.after(CANCEL_REASON_FOR);
                tx.put(keys::cancel_reason(id), kept.into_bytes(), Some(until));
            }
            tx.notify_watchers(position);
        }
        Cancelled::TooLate => {}
    }
    Ok(cancelled)
}

/// The reason of a cancellation that a worker has not confirmed yet.
pub fn reason_of(tx: &mut JobsTx<'_>, position: JobPosition) -> Result<Option<String>, Abort> {
    if tx.slot(position)?.is_none_or(|slot| slot.state != State::Cancelling) {
        return Ok(None);
    }
    let id = tx.id(position)?;
    let reason = tx.record(&keys::cancel_reason(id))?;
    Ok(reason.map(|reason| String::from_utf8_lossy(&reason).into_owned()))
}

/// Retries an ended job, optionally with other arguments or later.
pub fn retry(
    tx: &mut JobsTx<'_>,
    id: JobId,
    reset_attempts: bool,
    args: Option<&Bytes>,
    run_at: Option<Timestamp>,
) -> Result<State, Abort> {
    let position = tx.expect(id)?;
    let (spec, _) = tx.spec(position)?;
    let (state, dead_at) = tx.slot(position)?.map_or((State::Gone, None), |slot| (slot.state, slot.dead_at));
    if !state.is_terminal() {
        let message = format!("job {id} is {}: only an ended job can be retried", state.word());
        return Err(Error::conflict("not_terminal", message).into());
    }
    if args.is_some_and(|args| args.len() > ARGS_BYTES_MAX) {
        return Err(Error::TooLarge(format!("args have at most {ARGS_BYTES_MAX} bytes")).into());
    }
    // Checks come first: a job whose retry is refused must stay unchanged.
    if let Some(text) = &spec.unique_key {
        take_unique(tx, id, position, text)?;
    }
    let slot = tx.slot_mut(position)?;
    state_machine::reopen(slot, reset_attempts);
    slot.permit = slot.permit.or_else(|| concurrency_key::permit_of(&spec));
    if let Some(at) = dead_at {
        tx.remove(keys::dead(at, id));
    }
    if let Some(args) = args {
        move_spec(tx, position, &payload::encode_spec(&spec, args))?;
    }
    tx.slot_mut(position)?.run_at = run_at;
    completion::dispatch_or_wait(tx, position)?;
    Ok(tx.slot(position)?.map_or(State::Gone, |slot| slot.state))
}

/// A job that is retried needs its unique key again.
fn take_unique(tx: &mut JobsTx<'_>, id: JobId, position: JobPosition, text: &str) -> Result<(), Abort> {
    let hash = keys::unique_hash(position.partition, text);
    if tx.record(&keys::unique(hash))?.is_some_and(|holder| *holder != id.as_uuid().as_bytes()[..]) {
        let message = format!("another job has its uniqueKey {text:?}");
        return Err(Error::conflict("unique_key_taken", message).into());
    }
    tx.put(keys::unique(hash), id.as_uuid().as_bytes().to_vec(), None);
    tx.slot_mut(position)?.unique = Some(hash);
    Ok(())
}

/// Stores a specification at the end of the queue, at an offset without a job.
pub fn move_spec(tx: &mut JobsTx<'_>, position: JobPosition, payload: &[u8]) -> Result<(), Abort> {
    leave_spec(tx, position)?;
    let owner = Slot { spec: Some(position.offset), ..Slot::gone() };
    let at = tx.add(position.partition, payload, owner)?;
    tx.slot_mut(position)?.spec = Some(at.offset);
    Ok(())
}

/// Frees the offset that holds a job's moved specification.
pub fn leave_spec(tx: &mut JobsTx<'_>, position: JobPosition) -> Result<(), Abort> {
    if let Some(at) = tx.slot_mut(position)?.spec.take() {
        let partition: PartitionId = position.partition;
        tx.slot_mut(JobPosition { partition, offset: at })?.spec = None;
    }
    Ok(())
}
