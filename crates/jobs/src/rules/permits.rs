//! Permits: how many jobs of one concurrency key may run at a time, and which job is next.
//!
//! A job takes a permit when it is dispatched and keeps it until its execution has ended. So jobs that cannot run never
//! delay a worker. Waiting jobs form a linked list through their slots, first come, first served. Always: permits held
//! never exceed the limit. Not here: limits of whole queues (`model::queue_head`).

use crate::model::ids::JobPosition;
use crate::model::state::State;
use crate::storage::{Abort, JobsTx};

/// Chunks of a wait list that are prefetched.
const WAIT_LIST_CHUNKS: u64 = 32;

/// Acquires a permit for a job, or appends the job to the wait list. Returns whether it has a permit. The limit is
/// that of the last job.
pub fn acquire(tx: &mut JobsTx<'_>, position: JobPosition) -> Result<bool, Abort> {
    let Some(permit) = tx.slot(position)?.and_then(|slot| slot.permit) else { return Ok(true) };
    if permit.held {
        return Ok(true);
    }
    let known = tx.permit_mut(permit.key)?;
    known.limit = permit.limit;
    let free = known.held < known.limit && known.wait_list.is_none();
    if free {
        known.held += 1;
    } else if !permit.is_waiting {
        let line = known.wait_list.replace((known.wait_list.map_or(position, |(first, _)| first), position));
        if let Some((_, last)) = line
            && let Some(before) = &mut tx.slot_mut(last)?.permit
        {
            before.next = Some(position);
        }
    }
    if let Some(permit) = &mut tx.slot_mut(position)?.permit {
        permit.held = free;
        permit.is_waiting |= !free;
    }
    Ok(free)
}

/// Releases a job's permit, and dispatches the next waiting job.
pub fn release(tx: &mut JobsTx<'_>, position: JobPosition) -> Result<(), Abort> {
    let Some(permit) = &mut tx.slot_mut(position)?.permit else { return Ok(()) };
    if !std::mem::take(&mut permit.held) {
        return Ok(());
    }
    let hash = permit.key;
    let known = tx.permit_mut(hash)?;
    known.held = known.held.saturating_sub(1);
    if known.wait_list.is_none() {
        return Ok(());
    }
    let mut known = *known;
    while known.held < known.limit
        && let Some((first, last)) = known.wait_list
    {
        prefetch_wait_list(tx, first, last)?;
        let slot = tx.slot_mut(first)?;
        let next = slot.permit.as_mut().and_then(|permit| {
            permit.is_waiting = false;
            permit.next.take()
        });
        // Skips a job that was cancelled meanwhile.
        if slot.state == State::Pending && slot.blockers == 0 {
            slot.state = State::Dispatched;
            if let Some(permit) = &mut slot.permit {
                permit.held = true;
            }
            known.held += 1;
            tx.notify_watchers(first);
        }
        known.wait_list = next.filter(|_| first != last).map(|next| (next, last));
    }
    *tx.permit_mut(hash)? = known;
    Ok(())
}

/// Prefetches the jobs that probably follow: a wait list mostly has the order of its queue.
fn prefetch_wait_list(tx: &mut JobsTx<'_>, first: JobPosition, last: JobPosition) -> Result<(), Abort> {
    let (partition, number) = first.chunk();
    let end = if last.partition == partition { last.chunk().1 } else { number };
    let ahead: Vec<_> =
        (number..=end.min(number + WAIT_LIST_CHUNKS)).map(|number| (partition, number)).collect();
    if tx.has_chunk((partition, number)) { Ok(()) } else { tx.prefetch_chunks(&ahead) }
}
