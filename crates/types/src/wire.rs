//! The shapes that travel over HTTP, as a client reads and writes them.
//!
//! The server's hot routes write the same shapes by hand around the stored bytes; the tests of both sides keep
//! them one.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;
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

/// A delivered message as it lies in the answer, for readers that decide themselves what to copy.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageRef<'a> {
    /// See [`Message::id`].
    #[serde(borrow)]
    pub id: Cow<'a, str>,
    /// See [`Message::transaction_id`].
    #[serde(borrow)]
    pub transaction_id: Cow<'a, str>,
    /// See [`Message::queue`].
    #[serde(borrow, default)]
    pub queue: Cow<'a, str>,
    /// See [`Message::partition`].
    #[serde(borrow)]
    pub partition: Cow<'a, str>,
    /// See [`Message::partition_id`].
    #[serde(borrow)]
    pub partition_id: Cow<'a, str>,
    /// See [`Message::offset`].
    #[serde(default)]
    pub offset: u64,
    /// See [`Message::data`].
    #[serde(borrow)]
    pub data: &'a RawValue,
    /// See [`Message::created_at`].
    #[serde(borrow)]
    pub created_at: Cow<'a, str>,
    /// See [`Message::trace_id`].
    #[serde(borrow, default)]
    pub trace_id: Option<Cow<'a, str>>,
    /// See [`Message::producer_sub`].
    #[serde(borrow, default)]
    pub producer_sub: Option<Cow<'a, str>>,
    /// See [`Message::lease_id`].
    #[serde(borrow, default)]
    pub lease_id: Cow<'a, str>,
    /// See [`Message::consumer_group`].
    #[serde(borrow, default)]
    pub consumer_group: Cow<'a, str>,
    /// See [`Message::delivery_attempt`].
    #[serde(default)]
    pub delivery_attempt: u32,
}

/// [`PopResponse`] as it lies in the answer.
#[derive(Clone, Debug, Deserialize)]
pub struct PopResponseRef<'a> {
    /// See [`PopResponse::messages`].
    #[serde(borrow, default)]
    pub messages: Vec<MessageRef<'a>>,
}

/// [`Ack`] over borrowed text.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AckRef<'a> {
    /// See [`Ack::transaction_id`].
    pub transaction_id: &'a str,
    /// See [`Ack::partition_id`].
    pub partition_id: &'a str,
    /// See [`Ack::lease_id`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<&'a str>,
    /// See [`Ack::status`].
    pub status: AckStatus,
    /// See [`Ack::consumer_group`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer_group: Option<&'a str>,
    /// See [`Ack::error`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a str>,
}

/// [`AckBatch`] over borrowed text.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AckBatchRef<'a> {
    /// See [`AckBatch::acknowledgments`].
    pub acknowledgments: Vec<AckRef<'a>>,
    /// See [`AckBatch::consumer_group`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer_group: Option<&'a str>,
}

/// The answer to a transaction, committed or not.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TransactionResponse {
    /// Names the call.
    #[serde(default)]
    pub transaction_id: String,
    /// Whether everything took effect; otherwise nothing did.
    pub success: bool,
    /// Why nothing did.
    #[serde(default)]
    pub error: Option<String>,
    /// One for each ack and each pushed item, in order.
    #[serde(default)]
    pub results: Vec<TransactionResult>,
}

/// What became of one ack or one pushed item of a transaction.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TransactionResult {
    /// `ack` or `push`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it would take effect.
    pub success: bool,
    /// The message's transaction id.
    #[serde(default)]
    pub transaction_id: Option<String>,
    /// Why it did not.
    #[serde(default)]
    pub error: Option<String>,
    /// The id of the pushed message.
    #[serde(default)]
    pub message_id: Option<String>,
    /// The partition of the pushed message.
    #[serde(default)]
    pub partition_id: Option<String>,
    /// The queue of the pushed message.
    #[serde(default)]
    pub queue_name: Option<String>,
    /// Whether the acked message became a dead letter.
    #[serde(default)]
    pub dlq: bool,
}

/// The answer to a lease extension.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseExtension {
    /// The lease.
    pub lease_id: String,
    /// Whether it was still alive.
    pub success: bool,
    /// How many partitions it holds.
    #[serde(default)]
    pub renewed: u64,
    /// When the first of them is given back.
    #[serde(default)]
    pub new_expires_at: Option<String>,
}

/// A page of dead letters, the newest first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeadLetterPage {
    /// The rows.
    pub messages: Vec<DeadLetter>,
    /// How many there are on all pages.
    #[serde(default)]
    pub total: u64,
}

/// The answer to the replay of a dead letter.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replay {
    /// Whether it is in its partition again.
    pub success: bool,
    /// `moved`, or `duplicate` when it had been replayed before.
    #[serde(default)]
    pub result: String,
    /// The queue.
    #[serde(default)]
    pub queue: String,
    /// The name of the partition.
    #[serde(default)]
    pub partition: String,
    /// The transaction id it had.
    #[serde(default)]
    pub original_transaction_id: String,
}

/// How many messages stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MessageCounts {
    /// All that are stored.
    pub total: u64,
    /// Not yet delivered.
    pub pending: u64,
    /// Held under a lease.
    pub processing: u64,
    /// Finished.
    pub completed: u64,
    /// Failed.
    pub failed: u64,
    /// Dead letters.
    pub dead_letter: u64,
}

/// A queue in a listing.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueSummary {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its namespace.
    #[serde(default)]
    pub namespace: String,
    /// Its task.
    #[serde(default)]
    pub task: String,
    /// When it was created.
    #[serde(default)]
    pub created_at: String,
    /// How many partitions it has.
    #[serde(default)]
    pub partitions: u64,
    /// How many messages it has.
    #[serde(default)]
    pub messages: MessageCounts,
}

/// The listing of queues.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QueueList {
    /// The queues, the newest first.
    pub queues: Vec<QueueSummary>,
}

/// One queue with its partitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueDetail {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its namespace.
    #[serde(default)]
    pub namespace: String,
    /// Its task.
    #[serde(default)]
    pub task: String,
    /// When it was created.
    #[serde(default)]
    pub created_at: String,
    /// Its partitions.
    #[serde(default)]
    pub partitions: Vec<PartitionDetail>,
    /// The sum over its partitions.
    #[serde(default)]
    pub totals: MessageCounts,
    /// Its options, as the server tells them.
    #[serde(default)]
    pub options: serde_json::Map<String, Value>,
}

/// One partition of a queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartitionDetail {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// When it was created.
    #[serde(default)]
    pub created_at: Option<String>,
    /// How many messages it has.
    #[serde(default)]
    pub stats: MessageCounts,
    /// When its oldest message was stored.
    #[serde(default)]
    pub oldest_message: Option<String>,
    /// When its newest message was stored.
    #[serde(default)]
    pub newest_message: Option<String>,
}

/// The creation or change of a queue.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigureRequest<'a, O> {
    /// The queue.
    pub queue: &'a str,
    /// Its namespace; kept as it is when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<&'a str>,
    /// Its task; kept as it is when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<&'a str>,
    /// The options to change.
    pub options: O,
}

/// The answer to the creation or change of a queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigureResponse {
    /// Always true.
    pub configured: bool,
    /// Every option as it is now.
    #[serde(default)]
    pub options: serde_json::Map<String, Value>,
}

/// The answer to the deletion of a queue's messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PurgeResponse {
    /// Partitions that are empty now.
    #[serde(default)]
    pub partitions_cleared: u64,
    /// Where the next call goes on; `None` when all are empty.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// The answer to the deletion of a queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeleteResponse {
    /// Whether it is gone.
    pub deleted: bool,
    /// Whether it had been there.
    #[serde(default)]
    pub existed: bool,
}

/// How the server is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Health {
    /// `healthy`, or what is wrong.
    pub status: String,
    /// The server's version.
    #[serde(default)]
    pub version: Option<String>,
}

/// The body of every refusal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What is wrong; its code where there is a `detail`.
    pub error: String,
    /// What is wrong, in words, of a refusal that has a `reason`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
