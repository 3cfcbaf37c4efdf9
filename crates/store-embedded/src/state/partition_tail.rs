//! The tail of a partition, and the chunks in which tails are stored.

use baton_types::{Offset, PartitionId, QueueId, Timestamp};

/// Partitions of one queue whose tails are one value. A partition never changes its chunk.
pub const CHUNK_PARTITIONS: usize = 512;

/// A chunk: the queue, and the number of the chunk in it.
pub type TailChunk = (QueueId, u64);

/// The tail of a partition, and the times of its first and last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionTail {
    pub partition: PartitionId,
    pub tail: Offset,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
}
