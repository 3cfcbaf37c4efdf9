//! Compaction of job specifications: gives back disk space that a few old jobs hold.
//!
//! Specifications are stored in segments that the store frees from the oldest on. So one job that waits for a year
//! would keep every later segment. When half of what is stored is garbage, compaction writes the oldest live
//! specifications again at the end of their queue. Always: a job keeps its position, only its specification moves;
//! compaction writes at most as much as was deleted, so it costs no more than enqueuing did.

use baton_types::PartitionId;

use crate::model::ids::{CHUNK, JobPosition};
use crate::model::payload;
use crate::model::state::State;
use crate::rules::cancellation::move_spec;
use crate::storage::{Abort, JobsTx};

/// Compaction starts when it can free this many chunks.
const WORTH: u64 = 16;

/// Moves the specifications of one chunk, if compaction pays. Returns how many it moved.
pub fn compact(tx: &mut JobsTx<'_>, partition: PartitionId) -> Result<usize, Abort> {
    let tail = tx.next_position(partition)?.offset.0 / CHUNK;
    let freed = &tx.head(partition)?.freed;
    let (first, won) = (freed.end, freed.beyond.len());
    if won < WORTH || won * 2 < tail.saturating_sub(first) {
        return Ok(0);
    }
    let slots = tx.chunk((partition, first))?.iter().enumerate().filter(|(_, slot)| !slot.is_free());
    let owner = |(index, slot): (usize, &crate::model::slot::Slot)| match (slot.state, slot.spec) {
        // The specification of another job, which compaction moved here before.
        (State::Gone, Some(owner)) => JobPosition { partition, offset: owner },
        _ => JobPosition::new(partition, first * CHUNK + index as u64),
    };
    let owners: Vec<JobPosition> = slots.map(owner).collect();
    for position in &owners {
        let (spec, args) = tx.spec(*position)?;
        move_spec(tx, *position, &payload::encode_spec(&spec, &args))?;
    }
    Ok(owners.len())
}
