//! Appends to the history of a job.

use baton_types::Offset;

use crate::model::history_entry::{Entry, JobError};
use crate::model::ids::Place;
use crate::model::state::Outcome;
use crate::storage::{Book, Halt};

/// Records how the execution under `fence` ended.
pub fn note(
    book: &mut Book<'_>,
    place: Place,
    fence: u64,
    outcome: Outcome,
    error: Option<JobError>,
    result: &[u8],
) -> Result<(), Halt> {
    let now = book.now();
    let Some(slot) = book.slot(place)? else { return Ok(()) };
    let entry = Entry {
        number: slot.executions,
        fence,
        worker: slot.worker,
        started_at: slot.started_at,
        ended_at: now,
        outcome,
        error: error.map(JobError::bounded),
        before: slot.history.map(|before| before.0),
    };
    let offset = book.add_history(place.partition, &entry.encode(result))?;
    let slot = book.slot_mut(place)?;
    slot.history = Some(Offset(offset.0));
    slot.has_result = !result.is_empty();
    Ok(())
}
