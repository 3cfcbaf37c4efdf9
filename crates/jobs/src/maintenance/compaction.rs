//! Giving disk space back that a few old jobs hold.
//!
//! Specifications stand in segments that are given up from the oldest on, so one job that waits for a year would keep
//! everything that came after it. When half of what is kept is not needed any more, the oldest that are needed are
//! written again at the end of their queue. Always: a job is where it was, only its specification moves; what is moved
//! is at most as much as was forgotten, so it costs no more than enqueuing did.

use baton_types::PartitionId;

use crate::model::ids::{CHUNK, Place};
use crate::model::payload;
use crate::model::state::State;
use crate::rules::cancellation::move_spec;
use crate::storage::{Book, Halt};

/// Chunks that must be won before anything is moved.
const WORTH: u64 = 16;

/// Moves the specifications of one chunk, if that is worth it; tells how many.
pub fn compact(book: &mut Book<'_>, partition: PartitionId) -> Result<usize, Halt> {
    let tail = book.next_place(partition)?.offset.0 / CHUNK;
    let freed = &book.head(partition)?.freed;
    let (first, won) = (freed.end, freed.beyond.len());
    if won < WORTH || won * 2 < tail.saturating_sub(first) {
        return Ok(0);
    }
    let slots = book.chunk((partition, first))?.iter().enumerate().filter(|(_, slot)| !slot.is_free());
    let owner = |(index, slot): (usize, &crate::model::slot::Slot)| match (slot.state, slot.spec) {
        // Somebody else's, which was moved here before.
        (State::Gone, Some(owner)) => Place { partition, offset: owner },
        _ => Place::new(partition, first * CHUNK + index as u64),
    };
    let owners: Vec<Place> = slots.map(owner).collect();
    for place in &owners {
        let (spec, args) = book.spec(*place)?;
        move_spec(book, *place, &payload::encode_spec(&spec, &args))?;
    }
    Ok(owners.len())
}
