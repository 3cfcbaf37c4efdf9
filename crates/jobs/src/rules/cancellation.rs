//! Cancels jobs, and retries ended ones.

use baton_types::{PartitionId, Timestamp};
use bytes::Bytes;

use crate::model::concurrency_key;
use crate::model::error::Error;
use crate::model::history_entry::JobError;
use crate::model::ids::{JobId, Place, WorkerId};
use crate::model::limits::{ARGS_BYTES_MAX, CANCEL_REASON_FOR};
use crate::model::slot::Slot;
use crate::model::state::{Outcome, State};
use crate::model::{keys, payload};
use crate::rules::state_machine::{self, Cancelled};
use crate::rules::{completion, history, workers};
use crate::storage::{Book, Halt};

/// Cancels a job. Returns what happened, and the job's state.
pub fn cancel(book: &mut Book<'_>, id: JobId, force: bool, reason: Option<&str>) -> Result<Cancelled, Halt> {
    let place = book.expect(id)?;
    let (now, policy) = (book.now(), book.policy);
    let held = book.slot(place)?.filter(|slot| slot.state.is_held()).map(|slot| (slot.fence, slot.worker));
    let before = if held.is_some() { reason_of(book, place)? } else { None };
    let cancelled = state_machine::cancel(book.slot_mut(place)?, now, force, &policy);
    if let Some((_, worker)) = held.filter(|_| cancelled != Cancelled::TooLate) {
        workers::call_off(book, WorkerId(worker), id)?;
    }
    match cancelled {
        Cancelled::Done => {
            let said = reason.map(str::to_owned).or(before);
            if held.is_some() || said.is_some() {
                let error =
                    JobError::of_server("cancelled", said.as_deref().unwrap_or("cancelled by request"));
                history::note(
                    book,
                    place,
                    held.map_or(0, |(fence, _)| fence),
                    Outcome::Cancelled,
                    Some(error),
                    &[],
                )?;
            }
            if held.is_some() {
                book.news.counts.ended.push((Outcome::Cancelled, std::time::Duration::ZERO));
            }
            completion::ended(book, place, State::Cancelled)?;
        }
        Cancelled::Asked => {
            if let Some(reason) = reason {
                let kept = JobError::of_server("cancelled", reason).bounded().message;
                let until = now.after(CANCEL_REASON_FOR);
                book.put(keys::cancel_reason(id), kept.into_bytes(), Some(until));
            }
            book.tell(place);
        }
        Cancelled::TooLate => {}
    }
    Ok(cancelled)
}

/// The reason of a cancellation that a worker has not confirmed yet.
pub fn reason_of(book: &mut Book<'_>, place: Place) -> Result<Option<String>, Halt> {
    if book.slot(place)?.is_none_or(|slot| slot.state != State::Cancelling) {
        return Ok(None);
    }
    let id = book.id(place)?;
    let reason = book.record(&keys::cancel_reason(id))?;
    Ok(reason.map(|reason| String::from_utf8_lossy(&reason).into_owned()))
}

/// Retries an ended job, optionally with other arguments or later.
pub fn retry(
    book: &mut Book<'_>,
    id: JobId,
    reset_attempts: bool,
    args: Option<&Bytes>,
    run_at: Option<Timestamp>,
) -> Result<State, Halt> {
    let place = book.expect(id)?;
    let (spec, _) = book.spec(place)?;
    let (state, dead_at) = book.slot(place)?.map_or((State::Gone, None), |slot| (slot.state, slot.dead_at));
    if !state.is_terminal() {
        let message = format!("job {id} is {}: only one that has ended can be tried again", state.word());
        return Err(Error::conflict("not_terminal", message).into());
    }
    if args.is_some_and(|args| args.len() > ARGS_BYTES_MAX) {
        return Err(Error::TooLarge(format!("args have at most {ARGS_BYTES_MAX} bytes")).into());
    }
    // Checks come first: a job whose retry is refused must stay unchanged.
    if let Some(text) = &spec.unique_key {
        take_unique(book, id, place, text)?;
    }
    let slot = book.slot_mut(place)?;
    state_machine::revive(slot, reset_attempts);
    slot.permit = slot.permit.or_else(|| concurrency_key::of(&spec));
    if let Some(at) = dead_at {
        book.remove(keys::dead(at, id));
    }
    if let Some(args) = args {
        move_spec(book, place, &payload::encode_spec(&spec, args))?;
    }
    book.slot_mut(place)?.run_at = run_at;
    completion::ready(book, place)?;
    Ok(book.slot(place)?.map_or(State::Gone, |slot| slot.state))
}

/// A job that is retried needs its unique key again.
fn take_unique(book: &mut Book<'_>, id: JobId, place: Place, text: &str) -> Result<(), Halt> {
    let hash = keys::unique_hash(place.partition, text);
    if book.record(&keys::unique(hash))?.is_some_and(|holder| *holder != id.as_uuid().as_bytes()[..]) {
        let message = format!("another job has its uniqueKey {text:?}");
        return Err(Error::conflict("unique_key_taken", message).into());
    }
    book.put(keys::unique(hash), id.as_uuid().as_bytes().to_vec(), None);
    book.slot_mut(place)?.unique = Some(hash);
    Ok(())
}

/// Stores a specification at the end of the queue, at an offset without a job.
pub fn move_spec(book: &mut Book<'_>, place: Place, payload: &[u8]) -> Result<(), Halt> {
    leave_spec(book, place)?;
    let owner = Slot { spec: Some(place.offset), ..Slot::gone() };
    let at = book.add(place.partition, payload, owner)?;
    book.slot_mut(place)?.spec = Some(at.offset);
    Ok(())
}

/// Frees the offset that holds a job's moved specification.
pub fn leave_spec(book: &mut Book<'_>, place: Place) -> Result<(), Halt> {
    if let Some(at) = book.slot_mut(place)?.spec.take() {
        let partition: PartitionId = place.partition;
        book.slot_mut(Place { partition, offset: at })?.spec = None;
    }
    Ok(())
}
