//! Deleted data that is still on disk.

use baton_types::{GroupId, PartitionId, QueueId};

/// Deleted data that is invisible already and still takes space (`commit::deferred_delete` frees it).
#[derive(Default)]
pub struct DeferredDeletes {
    /// Deleted partitions.
    pub partitions: Vec<PartitionId>,
    /// Partitions with segments before their start.
    pub trimmed: Vec<PartitionId>,
    /// Deleted or replaced groups, with cursors.
    pub groups: Vec<GroupId>,
    /// Deleted queues, with dead letters.
    pub queues: Vec<QueueId>,
}

impl DeferredDeletes {
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
            && self.trimmed.is_empty()
            && self.groups.is_empty()
            && self.queues.is_empty()
    }
}
