//! The shared types of Baton: ids, offsets, times, queue options, limits, and the HTTP wire format.
//!
//! They are apart from the store and the server so that a client needs neither. Always: a type here is plain data
//! without I/O, clock or randomness. Not here: rules (`baton-queue`), rows (`baton-store`). Start at [`QueueOptions`]
//! and [`wire`].

mod id;
pub mod limits;
mod options;
mod secret;
mod time;
pub mod wire;

pub use id::{GroupId, IdHash, LeaseId, MessageId, Offset, PartitionId, QueueId, transaction_hash};
pub use options::{OptionsError, QueueOptions};
pub use secret::Secret;
pub use time::{ParseTimestampError, Timestamp};

/// The group of consumers that name none: they share the messages.
pub const QUEUE_MODE: &str = "__QUEUE_MODE__";

/// The default partition.
pub const DEFAULT_PARTITION: &str = "Default";
