//! Limits of queues, partitions and groups.

use baton_types::limits;

/// Limits; the server's own queues count, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// Queues of the store.
    pub queues: u64,
    /// Partitions of a queue.
    pub partitions: u64,
    /// Groups of a queue.
    pub groups: u64,
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self { queues: limits::QUEUES_MAX, partitions: limits::PARTITIONS_MAX, groups: limits::GROUPS_MAX }
    }
}
