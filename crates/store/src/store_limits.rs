//! How many queues, partitions and groups there may be.

use baton_types::limits;

/// How many there may be; those of the server's own are not counted apart.
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
