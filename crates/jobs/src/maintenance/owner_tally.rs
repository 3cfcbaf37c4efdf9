//! Counts, by slice, the jobs of queues that are older than the tally.
//!
//! A server that is alone on its store keeps no tally. When a second server joins, the leader counts each queue, a
//! few chunks in each commit, while its jobs run. Always: up to the chunk that the head names, the tally agrees with
//! the slots. Commits keep that part up to date; the rest is yet to be counted.

use baton_types::PartitionId;

use crate::model::ids::CHUNK;
use crate::storage::{Abort, JobsTx};

/// Chunks counted in one commit.
const CHUNKS_MAX: u64 = 32;

/// Counts the next chunks of a queue. Returns whether there are more.
pub fn count_next(tx: &mut JobsTx<'_>, partition: PartitionId) -> Result<bool, Abort> {
    let end = tx.next_position(partition)?.offset.0.div_ceil(CHUNK);
    let head = tx.head(partition)?;
    if !head.is_uncounted() {
        return Ok(false);
    }
    let from = head.counted.unwrap_or(0).max(head.removed.end);
    let to = end.min(from + CHUNKS_MAX);
    let chunks: Vec<_> = (from..to).map(|number| (partition, number)).collect();
    tx.prefetch_chunks(&chunks)?;
    let mut open = [0; CHUNK as usize];
    for at in chunks {
        for (count, slot) in open.iter_mut().zip(tx.chunk(at)?) {
            *count += u64::from(!slot.state.is_terminal());
        }
    }
    let head = tx.head_mut(partition)?;
    head.begin_tally();
    head.open.iter_mut().zip(open).for_each(|(count, more)| *count += more);
    head.counted = (to < end).then_some(to);
    Ok(to < end)
}
