//! The rows of the tables.

use std::sync::Arc;

use baton_types::{GroupId, LeaseId, Offset, PartitionId, QueueId, QueueOptions, Timestamp};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{OffsetRanges, Retries};

/// A versioned value under a key. The version rises with every write of the key and never repeats, so a write that
/// names an old version is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The value.
    pub value: Bytes,
    /// The version.
    pub version: u64,
    /// When the record expires.
    pub expires_at: Option<Timestamp>,
}

/// The description of a queue by its caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSpec {
    /// Its name.
    pub name: Arc<str>,
    /// Its first label.
    pub namespace: Arc<str>,
    /// Its second label.
    pub task: Arc<str>,
    /// Its options.
    pub options: QueueOptions,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Its number.
    pub id: QueueId,
    /// When it was created.
    pub created_at: Timestamp,
    /// Its description.
    #[serde(flatten)]
    pub spec: QueueSpec,
}

/// A partition: a log of messages with dense offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number.
    pub id: PartitionId,
    /// Its queue.
    pub queue: QueueId,
    /// Its name.
    pub name: Arc<str>,
    /// The first offset still kept.
    pub start: Offset,
    /// The offset that the next message will get.
    pub tail: Offset,
    /// When it was created.
    pub created_at: Timestamp,
    /// When the oldest kept message was stored, or a moment before that.
    pub first_at: Timestamp,
    /// When the newest message was stored.
    pub last_at: Timestamp,
    /// Messages deleted one by one, between `start` and `tail`.
    pub deleted: OffsetRanges,
}

/// Where a group starts in a partition without a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupStart {
    /// At the oldest message kept.
    Oldest,
    /// At the first message stored at or after this time.
    At(Timestamp),
}

/// The subscription of a consumer group to a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its number; a group that is deleted or moved gets a new one.
    pub id: GroupId,
    /// The queue.
    pub queue: QueueId,
    /// Its name.
    pub name: Arc<str>,
    /// Where it starts in partitions without a cursor.
    pub start: GroupStart,
    /// When it was first seen.
    pub subscribed_at: Timestamp,
    /// Whether it gets only the newest message of a partition.
    #[serde(default)]
    pub conflation: bool,
}

/// The position and the lease of a group in a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The first unfinished offset.
    pub next: Offset,
    /// The partition is not offered before this time: a lease, a delay or a window ends then.
    pub available_at: Timestamp,
    /// The present lease.
    pub lease: Option<Box<Lease>>,
    /// Finished messages beyond `next`.
    pub finished: Option<Box<OffsetRanges>>,
    /// Retries of unfinished messages.
    pub retries: Option<Box<Retries>>,
    /// Deliveries since a batch was last finished completely.
    pub attempts: u32,
    /// Messages finished in total.
    pub consumed: u64,
    /// When a message was last delivered.
    pub last_pop_at: Timestamp,
}

/// The right to finish the unfinished messages from the cursor up to `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The id that the consumer presents.
    pub id: LeaseId,
    /// The fencing token: higher than every earlier token of this store.
    pub token: u64,
    /// When it expires.
    pub until: Timestamp,
    /// The first offset after the leased ones.
    pub end: Offset,
}

/// The key of a dead letter: each group gives up a message at most once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeadLetterKey {
    /// The queue.
    pub queue: QueueId,
    /// The partition.
    pub partition: PartitionId,
    /// The message's offset.
    pub offset: Offset,
    /// The group that gave it up.
    pub group: Arc<str>,
}

/// A message that a group gave up, with a copy of the payload: it outlives the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The message and the group.
    #[serde(flatten)]
    pub key: DeadLetterKey,
    /// The message's transaction id.
    pub transaction_id: String,
    /// The message's trace id.
    pub trace_id: Option<Uuid>,
    /// The subject of the producer's token.
    pub producer: Option<String>,
    /// When it was pushed.
    pub created_at: Timestamp,
    /// When the group gave it up.
    pub failed_at: Timestamp,
    /// The number of retries before.
    pub retries: u32,
    /// The last error.
    pub error: Option<String>,
    /// The payload.
    #[serde(skip)]
    pub payload: Bytes,
}
