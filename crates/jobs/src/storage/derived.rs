//! Derived records: counts, lanes, the due index, garbage chunks.
//!
//! Always: the head of a queue agrees with its slots, since only this module changes its counts and lanes.

use std::collections::BTreeMap;

use baton_store::{Error as StoreError, TxError};
use baton_types::{PartitionId, Timestamp};
use bytes::Bytes;

use crate::model::chunk::Chunk;
use crate::model::ids::CHUNK;
use crate::model::keys;
use crate::model::lane::{Lane, Ranges};
use crate::model::queue_head::Head;
use crate::model::slot::Slot;
use crate::model::state::State;
use crate::storage::{Abort, JobsTx};

#[derive(Default, PartialEq, Eq)]
pub(super) struct ChunkSummary {
    counts: [u64; State::COUNT],
    /// Lanes with a job in the chunk, and when the oldest of them was accepted.
    lanes: Vec<(u8, u32, Timestamp)>,
    /// A bit for each job that has not ended.
    open: u64,
}

const _: () = assert!(CHUNK == u64::BITS as u64, "a bit for each slot");

impl ChunkSummary {
    pub(super) fn from_chunk(chunk: &Chunk) -> Self {
        let mut summary = Self::default();
        for (index, slot) in chunk.slots.iter().enumerate() {
            summary.counts[slot.state as usize] += 1;
            summary.open |= u64::from(!slot.state.is_terminal()) << index;
            if slot.state == State::Dispatched {
                let lane = (slot.priority, slot.kind);
                if !summary.lanes.iter().any(|(priority, kind, _)| (*priority, *kind) == lane) {
                    summary.lanes.push((slot.priority, slot.kind, slot.created_at));
                }
            }
        }
        summary
    }
}

impl JobsTx<'_> {
    pub(super) fn settled(&mut self) -> Result<Vec<(PartitionId, u64)>, TxError> {
        self.journal().and_then(|()| self.settle()).map_err(|halt| match halt {
            Abort::Stop(stop) => stop,
            Abort::Refused(error) => StoreError::Corrupt(error.to_string()).into(),
        })
    }

    /// Derives everything from the changed slots. Returns what can be trimmed.
    fn settle(&mut self) -> Result<Vec<(PartitionId, u64)>, Abort> {
        let mut queues: Vec<_> =
            self.chunks.iter().filter(|(_, page)| page.dirty).map(|((queue, _), _)| queue).collect();
        queues.dedup();
        for partition in queues {
            self.load_head(partition)?;
        }
        let (mut trims, mut ready) = (BTreeMap::new(), BTreeMap::<PartitionId, u64>::new());
        for (at, page) in self.chunks.iter_mut().filter(|(_, page)| page.dirty) {
            let Some((head, head_dirty)) = self.heads.get_mut(&at.0) else { continue };
            let after = ChunkSummary::from_chunk(&page.chunk);
            let dispatched = State::Dispatched as usize;
            let more = after.counts[dispatched].saturating_sub(page.before.counts[dispatched]);
            *ready.entry(at.0).or_default() += more;
            if self.policy.shared {
                head.begin_tally();
                head.tally(at.1, page.before.open, after.open);
            }
            *head_dirty |= count(head, &page.before, &after);
            let newest = page.chunk.slots.last().map(|slot| slot.created_at);
            *head_dirty |= place_in_lanes(head, at.1, &after, newest);
            page.before = after;
            let is_full = page.chunk.slots.len() as u64 == CHUNK;
            let spent = is_full && page.chunk.slots.iter().all(Slot::is_spent);
            if is_full && !head.freed.contains(at.1) && page.chunk.slots.iter().all(Slot::is_free) {
                *head_dirty = true;
                if head.freed.insert(at.1) {
                    trims.insert(at.0, head.freed.end * CHUNK);
                }
            }
            let due = page.chunk.slots.iter().filter_map(Slot::due).min();
            let moves = page.swept || due.is_some_and(|due| page.chunk.indexed.is_none_or(|at| due < at));
            if moves || spent {
                let position = due.filter(|_| !spent);
                if page.chunk.indexed != position {
                    if let Some(old) = page.chunk.indexed {
                        self.writes.insert(keys::due(old, at.0, at.1), (None, None));
                    }
                    if let Some(due) = position {
                        self.writes.insert(keys::due(due, at.0, at.1), (Some(Bytes::new()), None));
                        self.effects.due = Some(self.effects.due.map_or(due, |first| first.min(due)));
                    }
                    page.chunk.indexed = position;
                }
            }
            if spent {
                page.chunk.slots.clear();
                *head_dirty = true;
                head.removed.insert(at.1);
            }
        }
        self.settle_permits()?;
        self.effects.ready.extend(ready.into_iter().filter(|(_, jobs)| *jobs > 0));
        Ok(trims.into_iter().collect())
    }
}

/// Updates a head's counts. Returns whether they changed.
fn count(head: &mut Head, before: &ChunkSummary, after: &ChunkSummary) -> bool {
    for ((count, before), after) in head.counts.iter_mut().zip(before.counts).zip(after.counts) {
        *count = (*count + after).saturating_sub(before);
    }
    before.counts != after.counts
}

/// Updates a head's lanes for one chunk. Returns whether they changed.
fn place_in_lanes(head: &mut Head, number: u64, after: &ChunkSummary, newest: Option<Timestamp>) -> bool {
    let mut changed = false;
    for lane in &mut head.lanes {
        let oldest =
            after.lanes.iter().find(|(priority, kind, _)| (*priority, *kind) == (lane.priority, lane.kind));
        let (is_first, is_in) = (lane.chunks.first() == Some(number), lane.chunks.contains(number));
        let since = match oldest {
            None if is_in => {
                lane.chunks.remove(number);
                changed = true;
                // Chunks are in the order of time, so the next one is no older than this one was.
                newest.filter(|_| is_first)
            }
            Some((_, _, since)) if is_first => Some(*since),
            _ => None,
        };
        if let Some(since) = since.filter(|since| *since != lane.since) {
            lane.since = since;
            changed = true;
        }
    }
    for (priority, kind, since) in &after.lanes {
        let known = head.lanes.iter_mut().find(|lane| (lane.priority, lane.kind) == (*priority, *kind));
        let lane = match known {
            Some(lane) => lane,
            None => {
                head.lanes.push(Lane {
                    priority: *priority,
                    kind: *kind,
                    since: *since,
                    chunks: Ranges::default(),
                });
                let Some(lane) = head.lanes.last_mut() else { continue };
                lane
            }
        };
        if !lane.chunks.contains(number) {
            if lane.chunks.first().is_none_or(|first| number < first) {
                lane.since = *since;
            }
            lane.chunks.insert(number);
            changed = true;
        }
    }
    changed
}
