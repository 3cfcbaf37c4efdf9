use baton_store::{DeadLetter, MessageView, Queue};
use baton_types::{MessageId, Offset, PartitionId, Timestamp};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageStatus {
    Pending,
    Processing,
    Completed,
    DeadLetter,
}

#[derive(Clone, Debug, Default)]
pub struct MessageFilter {
    pub queue: Option<String>,
    pub partition: Option<String>,
    pub namespace: Option<String>,
    pub task: Option<String>,
    pub status: Option<MessageStatus>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub limit: usize,
    pub offset: usize,
}

/// A message with what the groups did with it. Named groups are those other than the queue-mode group.
#[derive(Clone, Debug)]
pub struct MessageSummary {
    pub message: MessageView,
    pub queue: Arc<Queue>,
    pub partition_name: Arc<str>,
    pub status: MessageStatus,
    pub lease_expires_at: Option<Timestamp>,
    pub has_queue_mode: bool,
    pub named_groups: u64,
    pub named_groups_done: u64,
}

#[derive(Clone, Debug)]
pub struct MessageDetail {
    pub summary: MessageSummary,
    /// name, finished, live lease until
    pub groups: Vec<(Arc<str>, bool, Option<Timestamp>)>,
    pub dead_letter: Option<DeadLetter>,
}

#[derive(Clone, Debug, Default)]
pub struct DeadLetterFilter {
    pub queue: Option<String>,
    pub partition: Option<String>,
    pub group: Option<String>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub limit: usize,
    pub offset: usize,
}

#[derive(Clone, Debug)]
pub struct DeadLetterPage {
    pub total: u64,
    /// letter, queue name, partition name
    pub letters: Vec<(DeadLetter, Arc<str>, Arc<str>)>,
}

/// A dead letter that was pushed again.
#[derive(Clone, Debug)]
pub struct Replayed {
    pub queue: Arc<str>,
    pub partition_name: Arc<str>,
    pub group: Arc<str>,
    pub original_transaction_id: String,
    pub transaction_id: String,
    pub message: MessageId,
    pub offset: Offset,
    pub partition: PartitionId,
    pub duplicate: bool,
}

/// Six counters as the resources routes show them; `pending` etc. are those of the queue-mode group if it exists,
/// else of the group that is furthest behind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub total: u64,
    pub pending: u64,
    pub processing: u64,
    pub completed: u64,
    pub failed: u64,
    pub dead_letter: u64,
}

#[derive(Clone, Debug)]
pub struct PartitionSummary {
    pub id: PartitionId,
    pub name: Arc<str>,
    pub created_at: Timestamp,
    pub counts: Counts,
    pub oldest_message_at: Option<Timestamp>,
    pub newest_message_at: Option<Timestamp>,
}

#[derive(Clone, Debug)]
pub struct QueueSummary {
    pub queue: Arc<Queue>,
    pub partitions: u64,
    pub counts: Counts,
}
