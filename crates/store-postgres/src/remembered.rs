//! Transaction ids, as 64-bit hashes in memory.
//!
//! Messages only come at a partition's tail, so what a server knows of a partition's ids is complete up to some
//! offset, and after another server has pushed only the rest is read. A partition whose only producer is this
//! server is never read again. In the database the ids of a commit are one value; there is no index entry per
//! message.

use std::collections::VecDeque;

use baton_types::{Offset, PartitionId, Timestamp};
use bytes::{Buf, BufMut, Bytes};
use rustc_hash::FxHashMap;

/// The ids of one run of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub partition: PartitionId,
    pub first: Offset,
    pub until: Timestamp,
    /// Hash and distance from `first`.
    pub ids: Vec<(u64, u32)>,
}

impl Run {
    pub fn value(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(12 * self.ids.len());
        for (hash, distance) in &self.ids {
            value.put_u64_le(*hash);
            value.put_u32_le(*distance);
        }
        value
    }

    pub fn read(partition: PartitionId, first: Offset, until: Timestamp, value: Vec<u8>) -> Self {
        let mut value = Bytes::from(value);
        let mut ids = Vec::with_capacity(value.len() / 12);
        while let (Ok(hash), Ok(distance)) = (value.try_get_u64_le(), value.try_get_u32_le()) {
            ids.push((hash, distance));
        }
        Self { partition, first, until, ids }
    }
}

/// What is known of all partitions.
#[derive(Default)]
pub struct Remembered {
    partitions: FxHashMap<PartitionId, Known>,
    ids: usize,
}

#[derive(Default)]
struct Known {
    /// Everything before this offset is known.
    tail: Offset,
    newest: FxHashMap<u64, Offset>,
    runs: VecDeque<Run>,
}

impl Remembered {
    /// From where on ids must be read before those up to `tail` are known, if there are any.
    pub fn missing(&self, partition: PartitionId, tail: Offset) -> Option<Offset> {
        match self.partitions.get(&partition) {
            Some(known) => (known.tail < tail).then_some(known.tail),
            None => Some(Offset(0)),
        }
    }

    /// The newest message with this hash that is still remembered.
    pub fn get(&self, partition: PartitionId, hash: u64, now: Timestamp) -> Option<Offset> {
        let known = self.partitions.get(&partition)?;
        let newest = *known.newest.get(&hash)?;
        let after = known.runs.partition_point(|run| run.first <= newest);
        if known.runs.get(after.checked_sub(1)?)?.until > now {
            return Some(newest);
        }
        // Two messages with one id, of which the newer is forgotten: rare enough to look through them all.
        let live = known.runs.iter().rev().filter(|run| run.until > now);
        live.flat_map(|run| {
            run.ids.iter().rev().map(move |(other, distance)| (other, run.first.plus((*distance).into())))
        })
        .find(|(other, _)| **other == hash)
        .map(|(_, offset)| offset)
    }

    /// Adds runs of a partition, which is then known up to `tail`.
    pub fn extend(&mut self, partition: PartitionId, runs: Vec<Run>, tail: Offset, now: Timestamp) {
        let known = self.partitions.entry(partition).or_default();
        while let Some(oldest) = known.runs.front().filter(|run| run.until <= now) {
            for (hash, distance) in &oldest.ids {
                if known.newest.get(hash) == Some(&oldest.first.plus((*distance).into())) {
                    known.newest.remove(hash);
                }
            }
            self.ids -= oldest.ids.len();
            known.runs.pop_front();
        }
        for run in runs {
            if run.first < known.tail {
                continue;
            }
            for (hash, distance) in &run.ids {
                known.newest.insert(*hash, run.first.plus((*distance).into()));
            }
            self.ids += run.ids.len();
            known.runs.push_back(run);
        }
        known.tail = known.tail.max(tail);
    }

    /// Moves what is known over messages without ids.
    pub fn advance(&mut self, partition: PartitionId, from: Offset, tail: Offset) {
        if let Some(known) = self.partitions.get_mut(&partition)
            && known.tail == from
        {
            known.tail = tail;
        }
    }

    /// How many ids are held.
    pub fn len(&self) -> usize {
        self.ids
    }

    /// Forgets everything; it is read again when needed.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(1);

    fn run(first: u64, until: i64, hashes: &[u64]) -> Run {
        let ids = hashes.iter().copied().zip(0..).collect();
        Run { partition: P, first: Offset(first), until: Timestamp::from_micros(until), ids }
    }

    #[test]
    fn what_is_missing_is_only_the_rest() {
        let at = Timestamp::from_micros;
        let mut known = Remembered::default();
        assert_eq!(known.missing(P, Offset(0)), Some(Offset(0)));
        known.extend(P, vec![run(0, 10, &[7, 8])], Offset(4), at(0));
        assert_eq!(known.missing(P, Offset(4)), None);
        assert_eq!(known.missing(P, Offset(9)), Some(Offset(4)));
        known.extend(P, vec![run(4, 5, &[7])], Offset(9), at(0));
        assert_eq!(known.get(P, 7, at(4)), Some(Offset(4)));
        assert_eq!(known.get(P, 7, at(6)), Some(Offset(0)), "the newer is forgotten first");
        assert_eq!(known.get(P, 8, at(10)), None);
        known.extend(P, Vec::new(), Offset(9), at(20));
        assert_eq!(known.len(), 0);
    }

    #[test]
    fn a_run_is_read_as_it_was_written() {
        let run = run(3, 9, &[u64::MAX, 1]);
        assert_eq!(Run::read(P, run.first, run.until, run.value()), run);
    }
}
