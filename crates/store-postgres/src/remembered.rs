//! Transaction ids, as hashes in memory: found by 64 bits, and compared by 96.
//!
//! Messages only come at a partition's tail, so what a server knows of a partition's ids is complete up to some
//! offset, and after another server has pushed only the rest is read. A partition whose only producer is this
//! server is never read again. In the database the ids of a commit are one value; there is no index entry per
//! message.

use std::collections::VecDeque;

use baton_store::RememberedId;
use baton_types::{IdHash, Offset, PartitionId, Timestamp};
use bytes::{Buf, BufMut, Bytes};
use rustc_hash::FxHashMap;

/// Stands between the ids of a run and what an earlier version did not write; it reads what comes here as ids that no
/// message has.
const MARK: (u64, u32) = (0, u32::MAX);

/// The ids of one run of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub partition: PartitionId,
    pub first: Offset,
    pub until: Timestamp,
    /// When its messages were stored; not known of one that an earlier version wrote, nor are the checks of its ids.
    pub created_at: Option<Timestamp>,
    /// In the order of their distances.
    pub ids: Vec<RunId>,
}

/// An id of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunId {
    pub hash: u64,
    pub check: u32,
    /// How far from the first message.
    pub distance: u32,
}

impl Run {
    pub fn value(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(16 * self.ids.len() + 20);
        let pairs = self.ids.iter().map(|id| (id.hash, id.distance));
        for (hash, distance) in pairs.chain(self.created_at.map(|_| MARK)) {
            value.put_u64_le(hash);
            value.put_u32_le(distance);
        }
        if let Some(created_at) = self.created_at {
            value.put_i64_le(created_at.micros());
            self.ids.iter().for_each(|id| value.put_u32_le(id.check));
        }
        value
    }

    pub fn read(partition: PartitionId, first: Offset, until: Timestamp, value: Vec<u8>) -> Self {
        let mut value = Bytes::from(value);
        let mut ids = Vec::with_capacity(value.len() / 12);
        let mut created_at = None;
        while let (Ok(hash), Ok(distance)) = (value.try_get_u64_le(), value.try_get_u32_le()) {
            if (hash, distance) == MARK {
                created_at = value.try_get_i64_le().ok().map(Timestamp::from_micros);
                break;
            }
            ids.push(RunId { hash, check: 0, distance });
        }
        for id in &mut ids {
            id.check = value.try_get_u32_le().unwrap_or_default();
        }
        Self { partition, first, until, created_at, ids }
    }

    fn offset_of(&self, id: &RunId) -> Offset {
        self.first.plus(id.distance.into())
    }

    /// What is known of an id of this run, if it is that one.
    fn known(&self, here: &RunId, id: IdHash) -> Option<RememberedId> {
        let same = here.hash == id.hash && (self.created_at.is_none() || here.check == id.check);
        same.then(|| RememberedId { offset: self.offset_of(here), created_at: self.created_at })
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

    /// The newest message with this id that is still remembered.
    pub fn get(&self, partition: PartitionId, id: IdHash, now: Timestamp) -> Option<RememberedId> {
        let known = self.partitions.get(&partition)?;
        let newest = *known.newest.get(&id.hash)?;
        let after = known.runs.partition_point(|run| run.first <= newest);
        let run = known.runs.get(after.checked_sub(1)?)?;
        if run.until > now
            && let Ok(at) = run.ids.binary_search_by_key(&newest, |here| run.offset_of(here))
            && let Some(found) = run.known(&run.ids[at], id)
        {
            return Some(found);
        }
        // Two messages with one id, of which the newer is forgotten, or two ids with one hash: rare enough to look
        // through them all.
        let mut live = known.runs.iter().rev().filter(|run| run.until > now);
        live.find_map(|run| run.ids.iter().rev().find_map(|here| run.known(here, id)))
    }

    /// Adds runs of a partition, which is then known up to `tail`.
    pub fn extend(&mut self, partition: PartitionId, runs: Vec<Run>, tail: Offset, now: Timestamp) {
        let known = self.partitions.entry(partition).or_default();
        while let Some(oldest) = known.runs.front().filter(|run| run.until <= now) {
            for id in &oldest.ids {
                if known.newest.get(&id.hash) == Some(&oldest.offset_of(id)) {
                    known.newest.remove(&id.hash);
                }
            }
            self.ids -= oldest.ids.len();
            known.runs.pop_front();
        }
        for run in runs {
            if run.first < known.tail {
                continue;
            }
            for id in &run.ids {
                known.newest.insert(id.hash, run.offset_of(id));
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
        let ids = hashes.iter().zip(0..).map(|(hash, distance)| RunId { hash: *hash, check: 1, distance });
        let (until, created_at) = (Timestamp::from_micros(until), Some(Timestamp::from_micros(3)));
        Run { partition: P, first: Offset(first), until, created_at, ids: ids.collect() }
    }

    fn get(known: &Remembered, hash: u64, now: i64) -> Option<Offset> {
        let found = known.get(P, IdHash { hash, check: 1 }, Timestamp::from_micros(now));
        found.map(|found| found.offset)
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
        assert_eq!(get(&known, 7, 4), Some(Offset(4)));
        assert_eq!(get(&known, 7, 6), Some(Offset(0)), "the newer is forgotten first");
        assert_eq!(get(&known, 8, 10), None);
        assert_eq!(known.get(P, IdHash { hash: 7, check: 2 }, at(4)), None, "another id with this hash");
        known.extend(P, Vec::new(), Offset(9), at(20));
        assert_eq!(known.len(), 0);
    }

    #[test]
    fn a_run_is_read_as_it_was_written() {
        let run = run(3, 9, &[u64::MAX, 1]);
        assert_eq!(Run::read(P, run.first, run.until, run.value()), run);
    }

    #[test]
    fn a_run_of_an_earlier_version_is_read_and_reads_ours() {
        let ids = vec![RunId { hash: 7, check: 0, distance: 5 }];
        let (first, until) = (Offset(3), Timestamp::from_micros(9));
        let old = Run { partition: P, first, until, created_at: None, ids };
        let value = [&7u64.to_le_bytes()[..], &5u32.to_le_bytes()].concat();
        assert_eq!(Run::read(P, old.first, old.until, value.clone()), old);
        let mut known = Remembered::default();
        known.extend(P, vec![old], Offset(9), Timestamp::from_micros(0));
        let found = known.get(P, IdHash { hash: 7, check: 4 }, Timestamp::from_micros(1));
        assert_eq!(found, Some(RememberedId { offset: Offset(8), created_at: None }));
        let ours = Run { ids: vec![RunId { hash: 7, check: 4, distance: 5 }], ..run(3, 9, &[]) };
        assert_eq!(ours.value()[..12], value);
    }
}
