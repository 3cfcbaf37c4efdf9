use baton_types::{LeaseId, Offset, PartitionId, Timestamp};
use std::sync::Arc;

/// Where to move a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    End,
    After(Timestamp),
}

/// One group of one queue.
#[derive(Clone, Debug)]
pub struct GroupOverview {
    pub name: Arc<str>,
    pub queue: Arc<str>,
    /// Partitions with a cursor.
    pub members: u64,
    pub partitions_with_lag: u64,
    pub total_lag: u64,
    /// Seconds since the oldest unfinished message was stored.
    pub time_lag_seconds: u64,
    pub ever_consumed: bool,
    /// `all`, `new` or `timestamp`.
    pub subscription_mode: &'static str,
    pub subscription_timestamp: Option<Timestamp>,
    pub subscribed_at: Timestamp,
}

/// How far a group is in one partition.
#[derive(Clone, Debug)]
pub struct GroupPartition {
    pub queue: Arc<str>,
    pub group: Arc<str>,
    pub partition: PartitionId,
    pub partition_name: Arc<str>,
    pub lag: u64,
    pub time_lag_seconds: u64,
    pub oldest_unfinished_at: Option<Timestamp>,
    pub last_pop_at: Option<Timestamp>,
    pub consumed: u64,
    /// The live lease.
    pub lease: Option<LeaseId>,
    pub next: Offset,
}
