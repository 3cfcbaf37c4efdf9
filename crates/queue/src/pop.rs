use baton_store::MessageView;
use baton_types::{LeaseId, PartitionId, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// Where to pop from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Any partition of a queue.
    Queue(String),
    /// One partition.
    Partition { queue: String, partition: String },
    /// Any partition of any queue with these labels; at least one is given.
    Labels { namespace: Option<String>, task: Option<String> },
}

/// Where a group begins that the queue does not know yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subscription {
    #[default]
    All,
    New,
    From(Timestamp),
}

#[derive(Clone, Debug)]
pub struct PopRequest {
    pub target: Target,
    pub group: String,
    pub batch: u32,
    pub partitions: u32,
    pub auto_ack: bool,
    /// How long to wait for a message; `None` answers at once.
    pub wait: Option<Duration>,
    /// Instead of the queue's `leaseTime`.
    pub lease: Option<Duration>,
    pub subscription: Subscription,
}

/// What a pop found. All claims share one lease.
#[derive(Clone, Debug)]
pub struct Popped {
    /// `None` after an automatic ack.
    pub lease: Option<LeaseId>,
    pub claims: Vec<Claim>,
}

/// Messages of one partition, in order.
#[derive(Clone, Debug)]
pub struct Claim {
    pub queue: Arc<str>,
    pub partition: PartitionId,
    pub partition_name: Arc<str>,
    /// How many times the group has been given these, this time included.
    pub attempt: u32,
    pub messages: Vec<MessageView>,
}
