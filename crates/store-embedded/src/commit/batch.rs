//! A commit batch: what one commit writes, and the operations that wait for it.

use baton_store::Operation;

use crate::dedup::PackedIds;
use crate::index::RowWrite;
use crate::wal::{BatchSegments, SegmentPlace};

/// What one commit writes, and the operations that wait for it.
#[derive(Default)]
pub struct CommitBatch {
    /// The number of the batch since the store was opened.
    pub seq: u64,
    /// The number of the commit since the directory was created.
    pub number: u64,
    /// Whether an answer waits for the fsync.
    pub sync: bool,
    pub writes: Vec<RowWrite>,
    /// Transaction ids to remember.
    pub ids: Vec<PackedIds>,
    pub segments: BatchSegments,
    /// The places of segments that this commit deletes or moves.
    pub freed: Vec<SegmentPlace>,
    pub waiting: Vec<Box<dyn Operation>>,
    pub operations: u64,
}
