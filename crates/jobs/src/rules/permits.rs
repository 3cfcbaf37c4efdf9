//! Permits: how many jobs of one concurrency key may run at a time, and which job is next.
//!
//! A job takes a permit when it is dispatched and keeps it until its execution has ended. So jobs that cannot run never
//! delay a worker. Waiting jobs form a linked list through their slots, first come, first served. Always: permits held
//! never exceed the limit. Not here: limits of whole queues (`model::queue_head`).

use crate::model::ids::Place;
use crate::model::state::State;
use crate::storage::{Book, Halt};

/// Chunks of a wait list that are prefetched.
const LINE_CHUNKS: u64 = 32;

/// Acquires a permit for a job, or appends the job to the wait list. Returns whether it has a permit. The limit is
/// that of the last job.
pub fn take(book: &mut Book<'_>, place: Place) -> Result<bool, Halt> {
    let Some(permit) = book.slot(place)?.and_then(|slot| slot.permit) else { return Ok(true) };
    if permit.held {
        return Ok(true);
    }
    let known = book.permit_mut(permit.key)?;
    known.limit = permit.limit;
    let free = known.held < known.limit && known.line.is_none();
    if free {
        known.held += 1;
    } else if !permit.in_line {
        let line = known.line.replace((known.line.map_or(place, |(first, _)| first), place));
        if let Some((_, last)) = line
            && let Some(before) = &mut book.slot_mut(last)?.permit
        {
            before.next = Some(place);
        }
    }
    if let Some(permit) = &mut book.slot_mut(place)?.permit {
        permit.held = free;
        permit.in_line |= !free;
    }
    Ok(free)
}

/// Releases a job's permit, and dispatches the next waiting job.
pub fn give_back(book: &mut Book<'_>, place: Place) -> Result<(), Halt> {
    let Some(permit) = &mut book.slot_mut(place)?.permit else { return Ok(()) };
    if !std::mem::take(&mut permit.held) {
        return Ok(());
    }
    let hash = permit.key;
    let known = book.permit_mut(hash)?;
    known.held = known.held.saturating_sub(1);
    if known.line.is_none() {
        return Ok(());
    }
    let mut known = *known;
    while known.held < known.limit
        && let Some((first, last)) = known.line
    {
        fetch_line(book, first, last)?;
        let slot = book.slot_mut(first)?;
        let next = slot.permit.as_mut().and_then(|permit| {
            permit.in_line = false;
            permit.next.take()
        });
        // Skips a job that was cancelled meanwhile.
        if slot.state == State::Pending && slot.blockers == 0 {
            slot.state = State::Dispatched;
            if let Some(permit) = &mut slot.permit {
                permit.held = true;
            }
            known.held += 1;
            book.tell(first);
        }
        known.line = next.filter(|_| first != last).map(|next| (next, last));
    }
    *book.permit_mut(hash)? = known;
    Ok(())
}

/// Prefetches the jobs that probably follow: a wait list mostly has the order of its queue.
fn fetch_line(book: &mut Book<'_>, first: Place, last: Place) -> Result<(), Halt> {
    let (partition, number) = first.chunk();
    let end = if last.partition == partition { last.chunk().1 } else { number };
    let ahead: Vec<_> = (number..=end.min(number + LINE_CHUNKS)).map(|number| (partition, number)).collect();
    if book.has_chunk((partition, number)) { Ok(()) } else { book.want_chunks(&ahead) }
}
