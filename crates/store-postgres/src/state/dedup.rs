//! The dedup index: transaction ids as hashes in memory, found by 64 bits and compared by 96.
//!
//! Messages are appended at a partition's tail only, so the index is complete up to some offset. After
//! another server's push only the rest is read; a partition whose only producer is this server is never read
//! again. In the database the ids of a commit are one value; there is no index entry per message.

use std::collections::VecDeque;

use baton_store::RememberedId;
use baton_types::{IdHash, Offset, PartitionId, Timestamp};
use bytes::{Buf, BufMut, Bytes};
use rustc_hash::FxHashMap;

/// Separates the ids of a run from the fields that an earlier version did not write. The earlier version
/// reads what follows as ids that no message has.
const CHECKS_MARKER: (u64, u32) = (0, u32::MAX);

/// The ids of a run of messages: those that one commit appended to one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupRun {
    pub partition: PartitionId,
    pub first: Offset,
    pub until: Timestamp,
    /// When its messages were stored; `None` for a run of an earlier version, which also lacks the checks of
    /// its ids.
    pub created_at: Option<Timestamp>,
    /// Sorted by distance.
    pub ids: Vec<DedupId>,
}

/// An id of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupId {
    pub hash: u64,
    pub check: u32,
    /// The message's offset minus that of the first.
    pub distance: u32,
}

impl DedupRun {
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(16 * self.ids.len() + 20);
        let pairs = self.ids.iter().map(|id| (id.hash, id.distance));
        for (hash, distance) in pairs.chain(self.created_at.map(|_| CHECKS_MARKER)) {
            value.put_u64_le(hash);
            value.put_u32_le(distance);
        }
        if let Some(created_at) = self.created_at {
            value.put_i64_le(created_at.micros());
            self.ids.iter().for_each(|id| value.put_u32_le(id.check));
        }
        value
    }

    pub fn decode(partition: PartitionId, first: Offset, until: Timestamp, value: Vec<u8>) -> Self {
        let mut value = Bytes::from(value);
        let mut ids = Vec::with_capacity(value.len() / 12);
        let mut created_at = None;
        while let (Ok(hash), Ok(distance)) = (value.try_get_u64_le(), value.try_get_u32_le()) {
            if (hash, distance) == CHECKS_MARKER {
                created_at = value.try_get_i64_le().ok().map(Timestamp::from_micros);
                break;
            }
            ids.push(DedupId { hash, check: 0, distance });
        }
        for id in &mut ids {
            id.check = value.try_get_u32_le().unwrap_or_default();
        }
        Self { partition, first, until, created_at, ids }
    }

    fn offset_of(&self, id: &DedupId) -> Offset {
        self.first.plus(id.distance.into())
    }

    /// What is known of `here`, if it is the id that is looked for.
    fn match_id(&self, here: &DedupId, id: IdHash) -> Option<RememberedId> {
        let same = here.hash == id.hash && (self.created_at.is_none() || here.check == id.check);
        same.then(|| RememberedId { offset: self.offset_of(here), created_at: self.created_at })
    }
}

/// The remembered ids of all partitions.
#[derive(Default)]
pub struct DedupIndex {
    partitions: FxHashMap<PartitionId, PartitionIds>,
    ids: usize,
}

#[derive(Default)]
struct PartitionIds {
    /// The ids of all messages before this offset are known.
    known_up_to: Offset,
    newest: FxHashMap<u64, Offset>,
    runs: VecDeque<DedupRun>,
}

impl DedupIndex {
    /// The offset from which ids must be read to know those up to `tail`; `None` if all are known.
    pub fn unknown_from(&self, partition: PartitionId, tail: Offset) -> Option<Offset> {
        match self.partitions.get(&partition) {
            Some(known) => (known.known_up_to < tail).then_some(known.known_up_to),
            None => Some(Offset(0)),
        }
    }

    /// The newest remembered message with this id.
    pub fn find(&self, partition: PartitionId, id: IdHash, now: Timestamp) -> Option<RememberedId> {
        let known = self.partitions.get(&partition)?;
        let newest = *known.newest.get(&id.hash)?;
        let after = known.runs.partition_point(|run| run.first <= newest);
        let run = known.runs.get(after.checked_sub(1)?)?;
        if run.until > now
            && let Ok(at) = run.ids.binary_search_by_key(&newest, |here| run.offset_of(here))
            && let Some(found) = run.match_id(&run.ids[at], id)
        {
            return Some(found);
        }
        // Two messages have the same id and the newer is forgotten, or two ids have the same hash. Both are
        // rare enough for a linear search.
        let mut live = known.runs.iter().rev().filter(|run| run.until > now);
        live.find_map(|run| run.ids.iter().rev().find_map(|here| run.match_id(here, id)))
    }

    /// Adds runs of a partition, whose ids are then known up to `tail`, and drops expired ones.
    pub fn extend(&mut self, partition: PartitionId, runs: Vec<DedupRun>, tail: Offset, now: Timestamp) {
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
            if run.first < known.known_up_to {
                continue;
            }
            for id in &run.ids {
                known.newest.insert(id.hash, run.offset_of(id));
            }
            self.ids += run.ids.len();
            known.runs.push_back(run);
        }
        known.known_up_to = known.known_up_to.max(tail);
    }

    /// Extends the known range over messages without ids.
    pub fn advance(&mut self, partition: PartitionId, from: Offset, tail: Offset) {
        if let Some(known) = self.partitions.get_mut(&partition)
            && known.known_up_to == from
        {
            known.known_up_to = tail;
        }
    }

    /// How many ids are in memory.
    pub fn len(&self) -> usize {
        self.ids
    }

    /// Drops everything; ids are read again as needed.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(1);

    fn run(first: u64, until: i64, hashes: &[u64]) -> DedupRun {
        let ids = hashes.iter().zip(0..).map(|(hash, distance)| DedupId { hash: *hash, check: 1, distance });
        let (until, created_at) = (Timestamp::from_micros(until), Some(Timestamp::from_micros(3)));
        DedupRun { partition: P, first: Offset(first), until, created_at, ids: ids.collect() }
    }

    fn get(known: &DedupIndex, hash: u64, now: i64) -> Option<Offset> {
        let found = known.find(P, IdHash { hash, check: 1 }, Timestamp::from_micros(now));
        found.map(|found| found.offset)
    }

    #[test]
    fn what_is_missing_is_only_the_rest() {
        let at = Timestamp::from_micros;
        let mut known = DedupIndex::default();
        assert_eq!(known.unknown_from(P, Offset(0)), Some(Offset(0)));
        known.extend(P, vec![run(0, 10, &[7, 8])], Offset(4), at(0));
        assert_eq!(known.unknown_from(P, Offset(4)), None);
        assert_eq!(known.unknown_from(P, Offset(9)), Some(Offset(4)));
        known.extend(P, vec![run(4, 5, &[7])], Offset(9), at(0));
        assert_eq!(get(&known, 7, 4), Some(Offset(4)));
        assert_eq!(get(&known, 7, 6), Some(Offset(0)), "the newer is forgotten first");
        assert_eq!(get(&known, 8, 10), None);
        assert_eq!(known.find(P, IdHash { hash: 7, check: 2 }, at(4)), None, "another id with this hash");
        known.extend(P, Vec::new(), Offset(9), at(20));
        assert_eq!(known.len(), 0);
    }

    #[test]
    fn a_run_is_read_as_it_was_written() {
        let run = run(3, 9, &[u64::MAX, 1]);
        assert_eq!(DedupRun::decode(P, run.first, run.until, run.encode()), run);
    }

    #[test]
    fn a_run_of_an_earlier_version_is_read_and_reads_ours() {
        let ids = vec![DedupId { hash: 7, check: 0, distance: 5 }];
        let (first, until) = (Offset(3), Timestamp::from_micros(9));
        let old = DedupRun { partition: P, first, until, created_at: None, ids };
        let value = [&7u64.to_le_bytes()[..], &5u32.to_le_bytes()].concat();
        assert_eq!(DedupRun::decode(P, old.first, old.until, value.clone()), old);
        let mut known = DedupIndex::default();
        known.extend(P, vec![old], Offset(9), Timestamp::from_micros(0));
        let found = known.find(P, IdHash { hash: 7, check: 4 }, Timestamp::from_micros(1));
        assert_eq!(found, Some(RememberedId { offset: Offset(8), created_at: None }));
        let ours = DedupRun { ids: vec![DedupId { hash: 7, check: 4, distance: 5 }], ..run(3, 9, &[]) };
        assert_eq!(ours.encode()[..12], value);
    }
}
