//! What every backend offers, written once: rows, the transaction that changes them, and the suite that shows
//! whether a backend keeps its promises.
//!
//! Queues, jobs, shards and elections are decisions over the same few tables: versioned records, queues with
//! partitions and packed runs of messages, groups with cursors and leases, dead letters. A decision is a
//! function from a [`Tx`] to an answer; the backend runs many of them in one commit. Always: a decision's
//! writes are kept together or not at all, it is answered only after what it wrote or read is on disk, and
//! only [`Tx::now`] expires anything. What many
//! of them need of records alone stands here too: leases with fencing tokens ([`lease`]), answers to calls that may be
//! repeated ([`IdempotencyKey`]) and the removal of what has expired ([`expiry`]). Deliberately absent: what a retry, a subscription or a dead letter
//! *means* (`baton-queue` knows), and any second copy of such a rule in a backend.
//!
//! Start at [`Tx`], then [`Store`], then [`run`].

mod bounds;
mod cache;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
pub mod expiry;
mod histogram;
mod idempotency;
pub mod lease;
mod offsets;
mod retries;
mod row;
mod segment;
mod store;
mod tx;

pub use bounds::Bounds;
pub use cache::Cache;
pub use error::Error;
pub use histogram::{Distribution, Histogram, MICROS, SIZES};
pub use idempotency::{ANSWER_KEPT_FOR, Earlier, IdempotencyKey, Repeat};
pub use offsets::OffsetRanges;
pub use retries::Retries;
pub use row::{Cursor, DeadLetter, DeadLetterKey, Group, Lease, Partition, Queue, QueueSpec, Record, Start};
pub use segment::{Block, Corrupt, MessageView, NewMessage, Segment, SegmentHeader};
pub use store::{BoxFuture, Event, Listener, Operation, Statistics, Store, begin, home_of, run, run_at};
pub use tx::{Appended, Durability, GroupSpec, RememberedId, Stop, Tx, look_at_all};
