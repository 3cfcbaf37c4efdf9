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
    /// Where the segments of each partition stand.
    partitions: FxHashMap<PartitionId, Places>,
    /// In the order they were written, with what they count: the first to go is the oldest. Those that are forgotten
    /// already have left their place empty.
    written: VecDeque<(Option<Segment>, usize)>,
    /// The place of the first in `written`.
    first: u64,
    bytes: usize,
}

/// The places of one partition's segments, in the order of their offsets: with many partitions nearly always one, and
/// then it should take little room, for every segment that comes or goes is looked up here.
enum Places {
    One(u64),
    Many(Box<VecDeque<u64>>),
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
        let segment = match inner.partitions.get(&partition)? {
            Places::One(place) => inner.segment(*place),
            Places::Many(places) => {
                let starts = |place: &u64| inner.segment(*place).is_some_and(|s| s.header.base <= offset);
                let later = places.partition_point(starts);
                inner.segment(*places.get(later.checked_sub(1)?)?)
            }
        }?;
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
        let (partition, base) = (segment.partition(), segment.header.base);
        // Where it does not come after the others, these are not what is stored any more.
        if inner.last(partition).is_some_and(|last| base < last.end()) {
            inner.drop_while(partition, |_| true);
        }
        let (place, bytes) = (inner.first + inner.written.len() as u64, segment.bytes_len() + ENTRY_BYTES);
        inner.written.push_back((Some(segment), bytes));
        inner.bytes += bytes;
        match inner.partitions.entry(partition) {
            Entry::Vacant(entry) => drop(entry.insert(Places::One(place))),
            Entry::Occupied(mut entry) => entry.get_mut().add(place),
        }
        while inner.bytes > self.bytes_max && inner.drop_oldest() {}
    }
}

impl Inner {
    fn index(&self, place: u64) -> Option<usize> {
        usize::try_from(place.checked_sub(self.first)?).ok()
    }

    fn segment(&self, place: u64) -> Option<&Segment> {
        self.written.get(self.index(place)?)?.0.as_ref()
    }

    fn last(&self, partition: PartitionId) -> Option<&Segment> {
        self.segment(self.partitions.get(&partition)?.last()?)
    }

    /// Drops segments of a partition, the oldest first, as long as `unwanted` says so.
    fn drop_while(&mut self, partition: PartitionId, unwanted: impl Fn(&Segment) -> bool) {
        while let Some(place) = self.partitions.get(&partition).and_then(Places::first) {
            if self.segment(place).is_some_and(|oldest| !unwanted(oldest)) {
                return;
            }
            if let Some(emptied) = self.index(place).and_then(|index| self.written.get_mut(index)) {
                emptied.0 = None;
            }
            self.forget_first(partition);
        }
    }

    /// Drops the segment that was written longest ago, if there is one.
    fn drop_oldest(&mut self) -> bool {
        let Some((oldest, bytes)) = self.written.pop_front() else { return false };
        self.first += 1;
        self.bytes -= bytes;
        if let Some(oldest) = oldest {
            self.forget_first(oldest.partition());
        }
        true
    }

    /// Forgets the place of a partition's oldest segment.
    fn forget_first(&mut self, partition: PartitionId) {
        let Entry::Occupied(mut entry) = self.partitions.entry(partition) else { return };
        let is_empty = match entry.get_mut() {
            Places::One(_) => true,
            Places::Many(places) => {
                places.pop_front();
                places.is_empty()
            }
        };
        if is_empty {
            entry.remove();
        }
    }
}

impl Places {
    fn first(&self) -> Option<u64> {
        match self {
            Self::One(place) => Some(*place),
            Self::Many(places) => places.front().copied(),
        }
    }

    fn last(&self) -> Option<u64> {
        match self {
            Self::One(place) => Some(*place),
            Self::Many(places) => places.back().copied(),
        }
    }

    fn add(&mut self, place: u64) {
        match self {
            Self::One(first) => *self = Self::Many(Box::new([*first, place].into())),
            Self::Many(places) => places.push_back(place),
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
            let kept = inner.written.iter().filter(|(segment, _)| segment.is_some()).count();
            assert_eq!((inner.partitions.len(), kept), (1, 1));
            assert_eq!(
                (inner.written.len(), inner.bytes / each),
                (4.min(base as usize + 1), inner.written.len())
            );
        }
        for base in 0..4 {
            cache.inserter().insert(segment(2, base, 1));
        }
        assert!(cache.get(PartitionId(1), Offset(9_999)).is_none());
        assert!(cache.get(PartitionId(2), Offset(0)).is_some());
    }
    #[test]
    fn segments_that_do_not_follow_replace_those_before() {
        let cache = Cache::new(100_000);
        for base in [0, 5, 10] {
            cache.inserter().insert(segment(1, base, 5));
        }
        cache.inserter().insert(segment(2, 0, 1));
        cache.inserter().insert(segment(1, 7, 1));
        assert!(cache.get(PartitionId(1), Offset(0)).is_none());
        assert!(cache.get(PartitionId(1), Offset(6)).is_none());
        assert_eq!(cache.get(PartitionId(1), Offset(7)).unwrap().header.count, 1);
        assert!(cache.get(PartitionId(2), Offset(0)).is_some());
    }
}
