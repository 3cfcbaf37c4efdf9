//! Consequences of a job's change: its permit, its unique key, the jobs that wait for it.
//!
//! Every rule that ends an execution calls this module, so no path forgets a consequence. Always: an ended job holds
//! no permit and no unique key; every job that could run is dispatched or has a reason to wait. Start at [`ready`]
//! and [`ended`].

use baton_store::Error as StoreError;
use baton_types::PartitionId;

use crate::model::codec::{Reader, Writer};
use crate::model::ids::Place;
use crate::model::keys;
use crate::model::state::State;
use crate::rules::state_machine::{self, Verdict};
use crate::rules::{logs, permits};
use crate::storage::{Book, Halt, each};

/// Dispatches a job that is due, or makes it wait for its dependencies or its permit.
pub fn ready(book: &mut Book<'_>, place: Place) -> Result<(), Halt> {
    let now = book.now();
    let slot = book.slot_mut(place)?;
    slot.state = match slot.run_at {
        _ if slot.blockers > 0 || slot.is_doomed => State::Pending,
        Some(at) if at > now => State::Scheduled,
        _ => State::Dispatched,
    };
    if slot.state == State::Dispatched && !permits::take(book, place)? {
        book.slot_mut(place)?.state = State::Pending;
    }
    book.tell(place);
    Ok(())
}

/// Applies the consequences of the end of an execution.
pub fn settle(book: &mut Book<'_>, place: Place, verdict: Verdict) -> Result<(), Halt> {
    match verdict {
        // It keeps its permit and its position: it is still the oldest.
        Verdict::Again => {
            let slot = book.slot_mut(place)?;
            slot.run_at = None;
            ready(book, place)
        }
        Verdict::RetryAt(_) => {
            permits::give_back(book, place)?;
            book.tell(place);
            Ok(())
        }
        Verdict::Ended(state) => ended(book, place, state),
    }
}

/// Applies the consequences of the end of a job. A failed job becomes a dead letter, unless its queue has none.
pub fn ended(book: &mut Book<'_>, place: Place, state: State) -> Result<(), Halt> {
    permits::give_back(book, place)?;
    let (now, id) = (book.now(), book.id(place)?);
    let is_dead =
        matches!(state, State::Failed | State::TimedOut) && book.head(place.partition)?.settings.dlq;
    let slot = book.slot_mut(place)?;
    // A retry reads the permit from the specification again. A position in a wait list outlives the job.
    slot.permit = slot.permit.filter(|permit| permit.in_line);
    let (unique, has_dependents) = (slot.unique.take(), std::mem::take(&mut slot.has_dependents));
    let has_words = slot.has_words;
    if is_dead {
        slot.dead_at = Some(now);
        book.put(keys::dead(now, id), Vec::new(), None);
        book.news.counts.dead += 1;
    }
    if has_words {
        logs::schedule_removal(book, id, now);
    }
    if let Some(unique) = unique {
        book.remove(keys::unique(unique));
    }
    if has_dependents {
        tell_dependents(book, place, state == State::Completed)?;
    }
    book.tell(place);
    Ok(())
}

/// Cancels a job that no worker has, and the jobs that depend on it.
pub fn call_off(book: &mut Book<'_>, place: Place) -> Result<(), Halt> {
    let (now, policy) = (book.now(), book.policy);
    if state_machine::cancel(book.slot_mut(place)?, now, true, &policy) == state_machine::Cancelled::Done {
        ended(book, place, State::Cancelled)?;
    }
    Ok(())
}

// Dependents.

/// The jobs that depend on a job.
pub fn dependents(book: &mut Book<'_>, place: Place) -> Result<Vec<Place>, Halt> {
    let Some(value) = book.record(&keys::after(place))? else { return Ok(Vec::new()) };
    let (mut from, mut places) = (Reader(&value), Vec::new());
    while !from.0.is_empty() {
        let mut read = || Ok::<_, StoreError>(Place::new(PartitionId(from.number()?), from.number()?));
        places.push(read()?);
    }
    Ok(places)
}

/// Stores which jobs depend on a job.
pub fn put_dependents(book: &mut Book<'_>, place: Place, dependents: &[Place]) {
    let mut out = Writer::default();
    for dependent in dependents {
        out.number(dependent.partition.0);
        out.number(dependent.offset.0);
    }
    book.put(keys::after(place), out.0, None);
}

fn tell_dependents(book: &mut Book<'_>, place: Place, completed: bool) -> Result<(), Halt> {
    let places = dependents(book, place)?;
    book.remove(keys::after(place));
    book.want_places(places.iter().copied())?;
    each(places, |place| {
        let Some(slot) = book.slot(place)? else { return Ok(()) };
        if slot.state != State::Pending || slot.blockers == 0 {
            return Ok(());
        }
        let slot = book.slot_mut(place)?;
        slot.blockers -= 1;
        if !completed {
            // The leader cancels it in a commit of its own, so a long chain ends link by link.
            slot.is_doomed = true;
            book.tell(place);
        } else if slot.blockers == 0 && !slot.is_doomed {
            ready(book, place)?;
        }
        Ok(())
    })?;
    Ok(())
}
