//! The rows of the tables.

use std::sync::Arc;

use baton_types::{GroupId, LeaseId, Offset, PartitionId, QueueId, QueueOptions, Timestamp};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{OffsetRanges, Retries};

/// A versioned value under a key. The version rises with every write of the key and never repeats, so whoever
/// holds an old one can change nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What was written.
    pub value: Bytes,
    /// Which write it was.
    pub version: u64,
    /// From when on the record counts as absent.
    pub expires_at: Option<Timestamp>,
}

/// What a caller says of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSpec {
    /// Its name.
    pub name: Arc<str>,
    /// Its first label.
    pub namespace: Arc<str>,
    /// Its second label.
    pub task: Arc<str>,
    /// What is set on it.
    pub options: QueueOptions,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Its number.
    pub id: QueueId,
    /// When it was created.
    pub created_at: Timestamp,
    /// What was said of it.
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

/// Where a group begins in a partition it has never read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupStart {
    /// At the oldest message kept.
    Oldest,
    /// At the first message stored at or after this moment.
    At(Timestamp),
}

/// One subscription of a consumer group to a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its number; a group that is deleted or moved gets a new one.
    pub id: GroupId,
    /// The queue.
    pub queue: QueueId,
    /// Its name.
    pub name: Arc<str>,
    /// Where it begins in partitions without a cursor.
    pub start: GroupStart,
    /// When it was first seen.
    pub subscribed_at: Timestamp,
    /// Whether it is only ever given the newest message of a partition.
    #[serde(default)]
    pub conflation: bool,
}

/// How far a group is in a partition, and who works on it now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The first unfinished offset.
    pub next: Offset,
    /// Not to be offered before this moment: a lease, a delay or a window runs until then.
    pub available_at: Timestamp,
    /// Who holds messages of the partition.
    pub lease: Option<Box<Lease>>,
    /// Finished messages beyond `next`.
    pub finished: Option<Box<OffsetRanges>>,
    /// Failed tries of unfinished messages.
    pub retries: Option<Box<Retries>>,
    /// Deliveries since a batch was last finished as a whole.
    pub attempts: u32,
    /// Messages finished in all.
    pub consumed: u64,
    /// When a message was last delivered.
    pub last_pop_at: Timestamp,
}

/// The right to finish the unfinished messages from a cursor's place up to `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The id that the consumer shows.
    pub id: LeaseId,
    /// Higher than every token given before, in this store, for anything.
    pub token: u64,
    /// When it runs out.
    pub until: Timestamp,
    /// The first offset that is not held.
    pub end: Offset,
}

/// Names a dead letter: a group gives up on a message once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeadLetterKey {
    /// The queue.
    pub queue: QueueId,
    /// The partition.
    pub partition: PartitionId,
    /// The message's place.
    pub offset: Offset,
    /// The group that gave up.
    pub group: Arc<str>,
}

/// A message that a group gave up on, with its own copy of the payload: it outlives the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Which message, for which group.
    #[serde(flatten)]
    pub key: DeadLetterKey,
    /// The message's transaction id.
    pub transaction_id: String,
    /// The message's trace id.
    pub trace_id: Option<Uuid>,
    /// Who pushed it.
    pub producer: Option<String>,
    /// When it was pushed.
    pub created_at: Timestamp,
    /// When it was given up.
    pub failed_at: Timestamp,
    /// After how many retries.
    pub retries: u32,
    /// Why.
    pub error: Option<String>,
    /// The payload.
    #[serde(skip)]
    pub payload: Bytes,
}
