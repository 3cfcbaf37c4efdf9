//! The newest segments in memory, so that a consumer that keeps up never touches the disk.
//!
//! Segments that were written together may share a buffer, which is freed when the last of them goes. Therefore
//! one that is forgotten counts until its turn would have come: what counts is never less than what is held.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use baton_types::{Offset, PartitionId};
use rustc_hash::FxHashMap;

use crate::Segment;

/// What an entry costs beside its bytes.
const ENTRY_BYTES: usize = 160;

/// Holds the segments written last, up to a number of bytes.
pub struct Cache {
    bytes_max: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    partitions: FxHashMap<PartitionId, Kept>,
    /// In the order they were written, with what they count: the first to go is the oldest. Holds some that are
    /// gone already.
    order: VecDeque<((PartitionId, Offset), usize)>,
    bytes: usize,
}

/// The segments of one partition, in the order of their offsets: with many partitions nearly always one.
struct Kept {
    first: Segment,
    rest: VecDeque<Segment>,
}

impl Cache {
    /// Room for so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, inner: Mutex::default() }
    }

    /// Keeps others out while many segments are added.
    pub fn inserter(&self) -> Inserter<'_> {
        Inserter { bytes_max: self.bytes_max, inner: self.lock() }
    }

    /// Forgets the segments of a partition that hold nothing from `start` on.
    pub fn forget(&self, partition: PartitionId, start: Offset) {
        self.lock().drop_while(partition, |oldest| oldest.end() <= start);
    }

    /// Forgets everything.
    pub fn clear(&self) {
        *self.lock() = Inner::default();
    }

    /// The segment that holds `offset`.
    pub fn get(&self, partition: PartitionId, offset: Offset) -> Option<Segment> {
        let inner = self.lock();
        let Kept { first, rest } = inner.partitions.get(&partition)?;
        let later = rest.partition_point(|segment| segment.header.base <= offset);
        let segment = later.checked_sub(1).map_or(first, |index| &rest[index]);
        (segment.header.base <= offset && offset < segment.end()).then(|| segment.clone())
    }

    /// The segments from `from` on, as [`Store::read`](crate::Store::read) tells them, or `None` when one of them is
    /// not here.
    pub fn read(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> Option<Vec<Segment>> {
        let (mut found, mut at, mut bytes) = (Vec::new(), from, 0);
        while at < to && bytes <= bytes_max {
            let segment = self.get(partition, at)?;
            (at, bytes) = (segment.end(), bytes + segment.bytes_len());
            found.push(segment);
        }
        Some(found)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds segments.
pub struct Inserter<'a> {
    bytes_max: usize,
    inner: MutexGuard<'a, Inner>,
}

impl Inserter<'_> {
    /// Adds the next segment of its partition.
    pub fn insert(&mut self, segment: Segment) {
        let inner = &mut *self.inner;
        let place = (segment.partition(), segment.header.base);
        let bytes = segment.bytes_len() + ENTRY_BYTES;
        inner.bytes += bytes;
        inner.order.push_back((place, bytes));
        match inner.partitions.entry(place.0) {
            Entry::Vacant(entry) => drop(entry.insert(Kept { first: segment, rest: VecDeque::new() })),
            Entry::Occupied(mut entry) => entry.get_mut().add(segment),
        }
        while inner.bytes > self.bytes_max {
            let Some(((partition, base), bytes)) = inner.order.pop_front() else { break };
            inner.drop_while(partition, |oldest| oldest.header.base <= base);
            inner.bytes -= bytes;
        }
    }
}

impl Inner {
    /// Drops segments of a partition, the oldest first, as long as `unwanted` says so.
    fn drop_while(&mut self, partition: PartitionId, unwanted: impl Fn(&Segment) -> bool) {
        let Entry::Occupied(mut entry) = self.partitions.entry(partition) else { return };
        while unwanted(&entry.get().first) {
            match entry.get_mut().rest.pop_front() {
                Some(next) => entry.get_mut().first = next,
                None => return drop(entry.remove()),
            }
        }
    }
}

impl Kept {
    /// Adds a segment that comes after the others. If it does not, these are not what is stored any more.
    fn add(&mut self, segment: Segment) {
        if self.rest.back().unwrap_or(&self.first).end() <= segment.header.base {
            self.rest.push_back(segment);
        } else {
            *self = Self { first: segment, rest: VecDeque::new() };
        }
    }
}

#[cfg(test)]
mod tests {
    use baton_types::Timestamp;

    use super::*;
    use crate::SegmentHeader;

    fn segment(partition: u64, base: u64, count: u32) -> Segment {
        let header = SegmentHeader { base: Offset(base), count, created_at: Timestamp::MIN };
        Segment::new(PartitionId(partition), header, vec![0; 1000].into())
    }

    #[test]
    fn finds_the_segment_around_an_offset_and_forgets_the_oldest() {
        let cache = Cache::new(3 * (1000 + 36 + ENTRY_BYTES));
        cache.inserter().insert(segment(1, 0, 5));
        cache.inserter().insert(segment(2, 0, 1));
        cache.inserter().insert(segment(1, 5, 5));
        assert_eq!(cache.get(PartitionId(1), Offset(4)).unwrap().header.base, Offset(0));
        assert_eq!(cache.get(PartitionId(1), Offset(5)).unwrap().header.base, Offset(5));
        assert!(cache.get(PartitionId(1), Offset(10)).is_none());
        cache.inserter().insert(segment(2, 1, 1));
        assert!(cache.get(PartitionId(1), Offset(4)).is_none());
        assert!(cache.get(PartitionId(2), Offset(0)).is_some());
    }

    #[test]
    fn what_is_trimmed_is_gone_and_counts_until_its_turn() {
        let each = 1000 + 36 + ENTRY_BYTES;
        let cache = Cache::new(4 * each);
        for base in 0..10_000 {
            cache.inserter().insert(segment(1, base, 1));
            cache.forget(PartitionId(1), Offset(base));
            let inner = cache.lock();
            assert_eq!((inner.partitions.len(), inner.partitions[&PartitionId(1)].rest.len()), (1, 0));
            assert_eq!(
                (inner.order.len(), inner.bytes / each),
                (4.min(base as usize + 1), inner.order.len())
            );
        }
        for base in 0..4 {
            cache.inserter().insert(segment(2, base, 1));
        }
        assert!(cache.get(PartitionId(1), Offset(9_999)).is_none());
        assert!(cache.get(PartitionId(2), Offset(0)).is_some());
    }
}
