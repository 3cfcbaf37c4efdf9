//! The newest segments in memory, so that a consumer that keeps up never touches the disk.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use baton_types::{Offset, PartitionId};

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
    segments: BTreeMap<(PartitionId, Offset), Segment>,
    /// In the order they were written: the first to go is the oldest. Holds some that are gone already.
    order: VecDeque<(PartitionId, Offset)>,
    bytes: usize,
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
        let inner = &mut *self.lock();
        let of_partition = (partition, Offset(0))..(partition, start);
        let gone = inner.segments.range(of_partition).filter(|(_, segment)| segment.end() <= start);
        let gone: Vec<_> = gone.map(|(place, _)| *place).collect();
        for place in gone {
            inner.remove(place);
        }
        if inner.order.len() > 2 * inner.segments.len() + 1024 {
            let segments = &inner.segments;
            inner.order.retain(|place| segments.contains_key(place));
        }
    }

    /// Forgets everything.
    pub fn clear(&self) {
        *self.lock() = Inner::default();
    }

    /// The segment that holds `offset`.
    pub fn get(&self, partition: PartitionId, offset: Offset) -> Option<Segment> {
        let inner = self.lock();
        let (_, segment) = inner.segments.range((partition, Offset(0))..=(partition, offset)).next_back()?;
        (offset < segment.end()).then(|| segment.clone())
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
        inner.bytes += segment.bytes_len() + ENTRY_BYTES;
        inner.order.push_back(place);
        inner.segments.insert(place, segment);
        while inner.bytes > self.bytes_max {
            let Some(oldest) = inner.order.pop_front() else { break };
            inner.remove(oldest);
        }
    }
}

impl Inner {
    fn remove(&mut self, place: (PartitionId, Offset)) {
        if let Some(segment) = self.segments.remove(&place) {
            self.bytes -= segment.bytes_len() + ENTRY_BYTES;
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
    fn what_is_trimmed_takes_no_memory() {
        let cache = Cache::new(usize::MAX);
        for base in 0..10_000 {
            cache.inserter().insert(segment(1, base, 1));
            cache.forget(PartitionId(1), Offset(base));
        }
        let inner = cache.lock();
        assert_eq!((inner.segments.len(), inner.bytes), (1, 1000 + 36 + ENTRY_BYTES));
        assert!(inner.order.len() < 2_000, "{}", inner.order.len());
    }
}
