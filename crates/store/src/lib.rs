//! The interface of every storage backend: rows, the transaction that changes them, and the conformance suite.
//!
//! Queues, jobs, shards and elections are decisions over the same few tables: versioned records, queues with
//! partitions and segments of messages, groups with cursors and leases, dead letters. A decision is a function from a
//! [`Tx`] to an answer; the backend runs many of them in one commit. Always: a decision's writes are atomic; it is
//! answered only after everything that it wrote or read is durable; only [`Tx::now`] expires anything. Shared tools
//! over records are here, too: leases with fencing tokens ([`lease`]), idempotency keys ([`IdempotencyKey`]) and
//! expiry ([`expiry`]). Deliberately absent: the meaning of a retry, a subscription or a dead letter (`baton-queue`
//! has it), and any second copy of such a rule in a backend.
//!
//! Start at [`Tx`], then [`Store`], then [`run`].

#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
pub mod expiry;
mod histogram;
mod idempotency;
pub mod lease;
mod offset_ranges;
mod retries;
mod rows;
mod segment;
mod segment_cache;
mod store;
mod store_limits;
mod tx;

pub use error::Error;
pub use histogram::{COUNT_BOUNDS, DURATION_BOUNDS, Distribution, Histogram};
pub use idempotency::{ANSWER_RETENTION, IdempotencyKey, PriorCall, RequestMatch};
pub use offset_ranges::OffsetRanges;
pub use retries::Retries;
pub use rows::{
    Cursor, DeadLetter, DeadLetterKey, Group, GroupStart, Lease, Partition, Queue, QueueSpec, Record,
};
pub use segment::{CorruptSegment, MessageBlock, NewMessage, Segment, SegmentHeader, StoredMessage};
pub use segment_cache::SegmentCache;
pub use store::{BoxFuture, Event, Listener, Operation, Statistics, Store, run, submit};
pub use store_limits::StoreLimits;
pub use tx::{Appended, Durability, GroupSpec, RememberedId, Tx, TxError, collect_misses};
