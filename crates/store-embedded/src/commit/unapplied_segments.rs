//! Segments of committed batches that the index does not have yet.

use std::collections::VecDeque;
use std::sync::Arc;

use baton_store::Segment;
use baton_types::PartitionId;

/// Segments of batches that are not applied to the index, each batch's in the order of partition and offset.
#[derive(Default)]
pub struct UnappliedSegments {
    batches: VecDeque<(u64, Arc<Vec<Segment>>)>,
}

impl UnappliedSegments {
    pub fn push(&mut self, batch: u64, segments: Arc<Vec<Segment>>) {
        self.batches.push_back((batch, segments));
    }

    /// The segments of a partition, in the order of their offsets.
    pub fn segments_of(&self, partition: PartitionId) -> impl Iterator<Item = &Segment> {
        self.batches.iter().flat_map(move |(_, segments)| {
            let from = segments.partition_point(|segment| segment.partition() < partition);
            segments[from..].iter().take_while(move |segment| segment.partition() == partition)
        })
    }

    /// Drops the segments of all batches up to `applied`.
    pub fn drop_applied(&mut self, applied: u64) {
        while self.batches.pop_front_if(|(batch, _)| *batch <= applied).is_some() {}
    }

    pub fn clear(&mut self) {
        self.batches.clear();
    }
}
