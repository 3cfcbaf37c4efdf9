//! The words of Baton as types: ids, offsets, times, queue options, limits, and the shapes that travel
//! over HTTP.
//!
//! They stand apart from the store and the server so that a client needs neither. Always: a type here is
//! plain data with no I/O, no clock and no randomness. Not here: rules (`baton-queue`), rows (`baton-store`).
//! Start at [`QueueOptions`] and [`wire`].

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

/// The group of every consumer that names none: they compete as one.
pub const QUEUE_MODE: &str = "__QUEUE_MODE__";

/// The partition of every message that names none.
pub const DEFAULT_PARTITION: &str = "Default";
