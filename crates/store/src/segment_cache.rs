//! A cache of the newest segments, so that a consumer that keeps up never reads the disk.
//!
//! Segments of one commit stay together: they share buffers, and with a million partitions each is often one small
//! message, whose copy would cost more than the message. An index maps offsets to positions. Always: a position in
//! the index is cached; segments of one commit are evicted together and count as used until then, even if they were
//! removed from the index earlier.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_types::{Offset, PartitionId};
use rustc_hash::FxHashMap;

use crate::Segment;

/// The overhead of a segment.
const ENTRY_BYTES: usize = 128;

/// The newest segments, up to a number of bytes.
pub struct SegmentCache {
    bytes_max: usize,
    inner: Mutex<CacheState>,
}

#[derive(Default)]
struct CacheState {
    partitions: FxHashMap<PartitionId, PartitionSegments>,
    written: WrittenBatches,
    bytes: usize,
}

/// Segments in the order of their commits; the oldest are evicted first.
#[derive(Default)]
struct WrittenBatches {
    /// The segments of each commit, with their size.
    batches: VecDeque<(Arc<Vec<Segment>>, usize)>,
    /// The number of the first commit; numbers may wrap around.
    first: u32,
}

/// The position of a segment.
#[derive(Clone, Copy)]
struct SegmentPosition {
    batch: u32,
    index: u32,
}

/// The positions of one partition's segments, in the order of offsets: with many partitions mostly one.
enum PartitionSegments {
    One(SegmentPosition),
    More(Box<SegmentPositions>),
}

struct SegmentPositions {
    first: SegmentPosition,
    rest: VecDeque<SegmentPosition>,
}

impl SegmentCache {
    /// A cache of so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, inner: Mutex::default() }
    }

    /// Adds the segments of a commit, each the next one of its partition.
    pub fn add(&self, segments: Arc<Vec<Segment>>) {
        if !segments.is_empty() {
            self.lock().add(segments, self.bytes_max);
        }
    }

    /// Removes the segments of a partition that end before `start`.
    pub fn remove_before(&self, partition: PartitionId, start: Offset) {
        let CacheState { partitions, written, .. } = &mut *self.lock();
        drop_segments_while(partitions, partition, |place| {
            written.get(place).is_none_or(|oldest| oldest.end() <= start)
        });
    }

    /// Removes everything.
    pub fn clear(&self) {
        *self.lock() = CacheState::default();
    }

    /// The segment that contains `offset`.
    pub fn get(&self, partition: PartitionId, offset: Offset) -> Option<Segment> {
        let inner = self.lock();
        let begins =
            |place: SegmentPosition| inner.written.get(place).is_some_and(|one| one.header.base <= offset);
        let place = inner.partitions.get(&partition)?.last_matching(begins)?;
        inner.written.get(place).filter(|one| offset < one.end()).cloned()
    }

    /// The segments from `from` on, as [`Store::read`](crate::Store::read) returns them, or `None` when one of them
    /// is not cached.
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

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheState {
    fn add(&mut self, segments: Arc<Vec<Segment>>, bytes_max: usize) {
        let bytes = segments.iter().map(|segment| segment.bytes_len() + ENTRY_BYTES).sum();
        let together = self.written.push(segments.clone(), bytes);
        self.bytes += bytes;
        for (segment, index) in segments.iter().zip(0..) {
            let place = SegmentPosition { batch: together, index };
            match self.partitions.entry(segment.partition()) {
                Entry::Vacant(entry) => drop(entry.insert(PartitionSegments::One(place))),
                Entry::Occupied(mut entry) => {
                    let last = self.written.get(entry.get().last());
                    // If it does not follow the others, those are no longer what is stored.
                    match last.is_some_and(|last| last.end() <= segment.header.base) {
                        true => entry.get_mut().add(place),
                        false => *entry.get_mut() = PartitionSegments::One(place),
                    }
                }
            }
        }
        while self.bytes > bytes_max && self.drop_oldest() {}
    }

    /// Evicts the oldest commit. Returns whether there was one.
    fn drop_oldest(&mut self) -> bool {
        let oldest = self.written.first;
        let Some((segments, bytes)) = self.written.pop() else { return false };
        for segment in &*segments {
            drop_segments_while(&mut self.partitions, segment.partition(), |place| place.batch == oldest);
        }
        self.bytes -= bytes;
        true
    }
}

/// Removes positions of a partition, the oldest first, while `unwanted` says so.
fn drop_segments_while(
    partitions: &mut FxHashMap<PartitionId, PartitionSegments>,
    partition: PartitionId,
    unwanted: impl Fn(SegmentPosition) -> bool,
) {
    let Entry::Occupied(mut entry) = partitions.entry(partition) else { return };
    while unwanted(entry.get().first()) {
        if !entry.get_mut().drop_first() {
            return drop(entry.remove());
        }
    }
}

impl WrittenBatches {
    /// Adds segments. Returns their number.
    fn push(&mut self, segments: Arc<Vec<Segment>>, bytes: usize) -> u32 {
        let number = self.first.wrapping_add(u32::try_from(self.batches.len()).unwrap_or(u32::MAX));
        self.batches.push_back((segments, bytes));
        number
    }

    fn pop(&mut self) -> Option<(Arc<Vec<Segment>>, usize)> {
        let popped = self.batches.pop_front()?;
        self.first = self.first.wrapping_add(1);
        Some(popped)
    }

    fn get(&self, place: SegmentPosition) -> Option<&Segment> {
        let (segments, _) = self.batches.get(place.batch.wrapping_sub(self.first) as usize)?;
        segments.get(place.index as usize)
    }
}

impl PartitionSegments {
    fn first(&self) -> SegmentPosition {
        match self {
            Self::One(place) => *place,
            Self::More(more) => more.first,
        }
    }

    fn last(&self) -> SegmentPosition {
        match self {
            Self::One(place) => *place,
            Self::More(more) => *more.rest.back().unwrap_or(&more.first),
        }
    }

    /// The last position for which `holds` is true, if it is true for all before it.
    fn last_matching(&self, holds: impl Fn(SegmentPosition) -> bool) -> Option<SegmentPosition> {
        let later = match self {
            Self::One(_) => None,
            Self::More(more) => {
                let after = more.rest.partition_point(|place| holds(*place));
                after.checked_sub(1).map(|index| more.rest[index])
            }
        };
        later.or_else(|| Some(self.first()).filter(|first| holds(*first)))
    }

    fn add(&mut self, place: SegmentPosition) {
        match self {
            Self::One(first) => {
                *self = Self::More(Box::new(SegmentPositions { first: *first, rest: [place].into() }))
            }
            Self::More(more) => more.rest.push_back(place),
        }
    }

    /// Removes the oldest. Returns whether another one is left.
    fn drop_first(&mut self) -> bool {
        let Self::More(more) = self else { return false };
        let Some(next) = more.rest.pop_front() else { return false };
        more.first = next;
        true
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

    fn add(cache: &SegmentCache, segments: &[Segment]) {
        cache.add(segments.to_vec().into());
    }

    const EACH: usize = 1000 + 36 + ENTRY_BYTES;

    #[test]
    fn finds_the_segment_around_an_offset_and_forgets_the_oldest() {
        let cache = SegmentCache::new(3 * EACH);
        add(&cache, &[segment(1, 0, 5)]);
        add(&cache, &[segment(2, 0, 1), segment(1, 5, 5)]);
        assert_eq!(cache.get(PartitionId(1), Offset(4)).unwrap().header.base, Offset(0));
        assert_eq!(cache.get(PartitionId(1), Offset(5)).unwrap().header.base, Offset(5));
        assert!(cache.get(PartitionId(1), Offset(10)).is_none());
        add(&cache, &[segment(2, 1, 1)]);
        assert!(cache.get(PartitionId(1), Offset(4)).is_none());
        assert!(cache.get(PartitionId(1), Offset(5)).is_some());
        assert_eq!(cache.get(PartitionId(2), Offset(0)).unwrap().header.base, Offset(0));
        add(&cache, &[segment(3, 0, 1), segment(3, 1, 1)]);
        assert!(cache.get(PartitionId(1), Offset(5)).is_none());
        assert!(cache.get(PartitionId(2), Offset(0)).is_none());
        assert!(cache.get(PartitionId(2), Offset(1)).is_some());
    }

    #[test]
    fn a_trimmed_segment_is_gone_and_counts_until_it_is_evicted() {
        let cache = SegmentCache::new(4 * EACH);
        for base in 0..10_000 {
            add(&cache, &[segment(1, base, 1)]);
            cache.remove_before(PartitionId(1), Offset(base));
            assert!(cache.get(PartitionId(1), Offset(base)).is_some());
            assert!(base == 0 || cache.get(PartitionId(1), Offset(base - 1)).is_none());
            let inner = cache.lock();
            let held = inner.written.batches.len();
            assert_eq!(
                (inner.partitions.len(), held, inner.bytes),
                (1, 4.min(base as usize + 1), held * EACH)
            );
        }
        for base in 0..4 {
            add(&cache, &[segment(2, base, 1)]);
        }
        assert!(cache.get(PartitionId(1), Offset(9_999)).is_none());
        assert!(cache.get(PartitionId(2), Offset(0)).is_some());
        assert_eq!(cache.lock().partitions.len(), 1);
    }

    #[test]
    fn numbers_wrap_around() {
        let cache = SegmentCache::new(4 * EACH);
        cache.lock().written.first = u32::MAX - 5;
        for base in 0..20 {
            add(&cache, &[segment(1, base, 1)]);
            let oldest = base.saturating_sub(3);
            (oldest..=base).for_each(|base| assert!(cache.get(PartitionId(1), Offset(base)).is_some()));
            assert!(oldest == 0 || cache.get(PartitionId(1), Offset(oldest - 1)).is_none());
        }
    }

    #[test]
    fn segments_that_do_not_follow_take_the_place_of_those_before() {
        let cache = SegmentCache::new(100 * EACH);
        add(&cache, &[segment(1, 0, 5), segment(1, 5, 5)]);
        add(&cache, &[segment(1, 7, 5)]);
        assert!(cache.get(PartitionId(1), Offset(0)).is_none());
        assert_eq!(cache.get(PartitionId(1), Offset(7)).unwrap().header.base, Offset(7));
        assert!(cache.read(PartitionId(1), Offset(7), Offset(12), usize::MAX).is_some());
        assert!(cache.read(PartitionId(1), Offset(5), Offset(12), usize::MAX).is_none());
        cache.clear();
        assert!(cache.get(PartitionId(1), Offset(7)).is_none());
    }
}
