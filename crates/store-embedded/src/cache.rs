//! The newest segments in memory, so that a consumer that keeps up never touches the disk.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use baton_store::Segment;
use baton_types::{Offset, PartitionId};
use rustc_hash::FxHashMap;

/// What an entry costs beside its bytes.
const ENTRY_BYTES: usize = 160;

/// Holds the segments written last, up to a number of bytes.
pub struct Cache {
    bytes_max: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Per partition in offset order.
    segments: FxHashMap<PartitionId, VecDeque<Segment>>,
    /// In the order they were written: the first to go is the oldest.
    order: VecDeque<PartitionId>,
    bytes: usize,
}

impl Cache {
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, inner: Mutex::default() }
    }

    /// Adds the next segment of its partition.
    pub fn insert(&self, segment: Segment) {
        let mut inner = self.lock();
        inner.bytes += segment.bytes_len() + ENTRY_BYTES;
        inner.order.push_back(segment.partition());
        inner.segments.entry(segment.partition()).or_default().push_back(segment);
        while inner.bytes > self.bytes_max {
            let Some(oldest) = inner.order.pop_front() else { break };
            inner.drop_first(oldest);
        }
    }

    /// The segment that holds `offset`.
    pub fn get(&self, partition: PartitionId, offset: Offset) -> Option<Segment> {
        let inner = self.lock();
        let segments = inner.segments.get(&partition)?;
        let after = segments.partition_point(|s| s.header.base <= offset);
        segments.get(after.checked_sub(1)?).filter(|s| offset < s.end()).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn drop_first(&mut self, partition: PartitionId) {
        let Some(segments) = self.segments.get_mut(&partition) else { return };
        if let Some(segment) = segments.pop_front() {
            self.bytes -= segment.bytes_len() + ENTRY_BYTES;
        }
        if segments.is_empty() {
            self.segments.remove(&partition);
        }
    }
}

#[cfg(test)]
mod tests {
    use baton_store::SegmentHeader;
    use baton_types::Timestamp;

    use super::*;

    fn segment(partition: u64, base: u64, count: u32) -> Segment {
        let header = SegmentHeader { base: Offset(base), count, created_at: Timestamp::MIN };
        Segment::new(PartitionId(partition), header, vec![0; 1000].into())
    }

    #[test]
    fn finds_the_segment_around_an_offset_and_forgets_the_oldest() {
        let cache = Cache::new(3 * (1000 + 36 + ENTRY_BYTES));
        cache.insert(segment(1, 0, 5));
        cache.insert(segment(2, 0, 1));
        cache.insert(segment(1, 5, 5));
        assert_eq!(cache.get(PartitionId(1), Offset(4)).unwrap().header.base, Offset(0));
        assert_eq!(cache.get(PartitionId(1), Offset(5)).unwrap().header.base, Offset(5));
        assert!(cache.get(PartitionId(1), Offset(10)).is_none());
        cache.insert(segment(2, 1, 1));
        assert!(cache.get(PartitionId(1), Offset(4)).is_none());
        assert!(cache.get(PartitionId(2), Offset(0)).is_some());
    }
}
