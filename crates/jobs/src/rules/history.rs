//! Appends to the history of a job.

use baton_types::Offset;

use crate::model::history_entry::{Entry, JobError};
use crate::model::ids::JobPosition;
use crate::model::state::Outcome;
use crate::storage::{Abort, JobsTx};

/// Records how the execution under `fence` ended.
pub fn append(
    tx: &mut JobsTx<'_>,
    position: JobPosition,
    fence: u64,
    outcome: Outcome,
    error: Option<JobError>,
    result: &[u8],
) -> Result<(), Abort> {
    let now = tx.now();
    let Some(slot) = tx.slot(position)? else { return Ok(()) };
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
    let offset = tx.add_history(position.partition, &entry.encode(result))?;
    let slot = tx.slot_mut(position)?;
    slot.history = Some(Offset(offset.0));
    slot.has_result = !result.is_empty();
    Ok(())
}
