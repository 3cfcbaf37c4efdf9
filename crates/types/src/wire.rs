//! The shapes that travel over HTTP, as a client reads and writes them.
//!
//! The server's hot routes write the same shapes by hand around the stored bytes; the tests of both sides keep
//! them one.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// One message to push.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PushItem {
    /// The queue, created when missing.
    pub queue: String,
    /// The partition, created when missing; `Default` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Any JSON; comes back byte for byte.
    pub payload: Box<RawValue>,
    /// The id by which a repeated push is recognised; made by the server when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction_id: Option<String>,
    /// A UUID that follows the message through other systems.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

/// A push.
#[derive(Clone, Debug, Serialize)]
pub struct PushRequest {
    /// The messages, in order.
    pub items: Vec<PushItem>,
}

/// What became of one pushed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PushStatus {
    /// It is on disk and will be delivered.
    Queued,
    /// A message with this transaction id is there already.
    Duplicate,
    /// It waits in the spool and will be stored later.
    Buffered,
    /// It was refused.
    Failed,
}

/// The answer to one pushed message.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PushResult {
    /// What became of it.
    pub status: PushStatus,
    /// Its transaction id.
    #[serde(default)]
    pub transaction_id: Option<String>,
    /// Its id, or that of the original.
    #[serde(default)]
    pub message_id: Option<String>,
    /// Its partition.
    #[serde(default)]
    pub partition_id: Option<String>,
    /// Its place in the partition.
    #[serde(default)]
    pub offset: Option<u64>,
    /// Why it was refused.
    #[serde(default)]
    pub error: Option<String>,
}

/// A delivered message.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// The server's id.
    pub id: String,
    /// The producer's id, or the server's when the producer gave none.
    pub transaction_id: String,
    /// The queue it waits in.
    #[serde(default)]
    pub queue: String,
    /// The name of its partition.
    pub partition: String,
    /// The id of its partition, needed to ack.
    pub partition_id: String,
    /// Its place in the partition.
    #[serde(default)]
    pub offset: u64,
    /// The payload, byte for byte.
    pub data: Box<RawValue>,
    /// When it was stored.
    pub created_at: String,
    /// The trace id it was pushed with.
    #[serde(default)]
    pub trace_id: Option<String>,
    /// Who pushed it, when the server authenticates.
    #[serde(default)]
    pub producer_sub: Option<String>,
    /// The lease it is held under; empty after an automatic ack.
    #[serde(default)]
    pub lease_id: String,
    /// The group it was delivered to.
    #[serde(default)]
    pub consumer_group: String,
    /// How many times it has been delivered to the group, this time included.
    #[serde(default)]
    pub delivery_attempt: u32,
}

/// The answer to a pop that found something.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PopResponse {
    /// The lease of all its messages; empty after an automatic ack.
    #[serde(default)]
    pub lease_id: Option<String>,
    /// How many partitions were claimed.
    #[serde(default)]
    pub partitions_claimed: u32,
    /// The messages; those of one partition stand together, in order.
    pub messages: Vec<Message>,
}

/// What a consumer says of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AckStatus {
    /// Done.
    #[default]
    Completed,
    /// Not done: deliver it again, at the cost of one retry.
    Failed,
    /// Not done: deliver it again, at no cost.
    Retry,
    /// Never deliver it again; keep it as a dead letter.
    Dlq,
}

/// One ack.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ack {
    /// The message's transaction id.
    pub transaction_id: String,
    /// The message's partition.
    pub partition_id: String,
    /// The lease it is held under; without it the ack is not fenced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<String>,
    /// What became of the message.
    pub status: AckStatus,
    /// The group; the default group when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer_group: Option<String>,
    /// Why it failed; kept with the dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Several acks at once.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AckBatch {
    /// The acks.
    pub acknowledgments: Vec<Ack>,
    /// The group of all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer_group: Option<String>,
}

/// The answer to one ack.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AckResult {
    /// Its place in the request.
    pub index: usize,
    /// The message's transaction id.
    pub transaction_id: String,
    /// Whether it took effect.
    pub success: bool,
    /// Why it did not.
    pub error: Option<String>,
    /// The message's queue, when known.
    #[serde(default)]
    pub queue_name: Option<String>,
    /// The message's partition, when known.
    #[serde(default)]
    pub partition_name: Option<String>,
    /// Whether the lease ended with this call.
    #[serde(default)]
    pub lease_released: bool,
    /// Whether the message became a dead letter.
    #[serde(default)]
    pub dlq: bool,
}

/// A message that will not be delivered again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    /// The message's id.
    pub id: String,
    /// The message's transaction id.
    pub transaction_id: String,
    /// The message's partition.
    pub partition_id: String,
    /// The queue.
    pub queue: String,
    /// The name of the partition.
    pub partition: String,
    /// The group that gave up on it.
    pub consumer_group: String,
    /// Why.
    pub error_message: Option<String>,
    /// After how many retries.
    pub retry_count: u32,
    /// The payload, byte for byte.
    pub data: Box<RawValue>,
    /// Who pushed it, when the server authenticates.
    pub producer_sub: Option<String>,
    /// When it was pushed.
    pub created_at: String,
    /// When it was given up.
    pub failed_at: String,
}
