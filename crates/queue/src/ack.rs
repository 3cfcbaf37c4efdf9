use baton_types::wire::AckStatus;
use baton_types::{LeaseId, PartitionId};
use std::sync::Arc;

/// The lease that an ack shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseClaim {
    /// None: the ack is not fenced.
    None,
    Held(LeaseId),
    /// A text that is no lease id, and so no live one.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct AckItem {
    /// `None` when the text was no partition id.
    pub partition: Option<PartitionId>,
    pub transaction_id: String,
    pub group: String,
    pub lease: LeaseClaim,
    pub status: AckStatus,
    pub error: Option<String>,
}

/// What became of one ack.
#[derive(Clone, Debug, Default)]
pub struct Acked {
    /// `None` is success.
    pub error: Option<&'static str>,
    pub queue: Option<Arc<str>>,
    pub partition_name: Option<Arc<str>>,
    pub lease_released: bool,
    pub dead_lettered: bool,
    /// It was finished before.
    pub noop: bool,
}
