//! Everything a caller can send has a bound; the bounds are here, each with its reason.

use std::time::Duration;

/// Bytes of a request body. Large enough for a push of megabyte payloads, small enough that a hundred
/// callers at once cannot exhaust the memory of a small machine.
pub const BODY_BYTES_MAX: usize = 64 << 20;

/// Items of one push, acks of one batch, operations of one transaction.
pub const BATCH_ITEMS_MAX: usize = 100_000;

/// Bytes of a queue, partition, group, namespace or task name: they become keys and travel in every answer.
pub const NAME_BYTES_MAX: usize = 255;

/// Bytes of a transaction id: its length is stored in two bytes.
pub const TRANSACTION_ID_BYTES_MAX: usize = u16::MAX as usize;

/// Bytes of the error text kept with a dead letter; more is cut off.
pub const ERROR_TEXT_BYTES_MAX: usize = 8 << 10;

/// Messages that one pop may ask for.
pub const POP_BATCH_MAX: u32 = 10_000;

/// Bytes of payload in one pop answer. A batch that would hold more is cut and the rest given back at once.
pub const POP_BYTES_MAX: usize = 32 << 20;

/// Partitions that one pop may claim.
pub const POP_PARTITIONS_MAX: u32 = 1_000;

/// The longest that a pop may wait.
pub const POP_WAIT_MAX: Duration = Duration::from_secs(300);

/// Rows of one page of a listing.
pub const PAGE_ROWS_MAX: usize = 1_000;

/// The longest lease: a consumer that needs more renews.
pub const LEASE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// A record's value: records are for decisions, not for payloads.
pub const RECORD_BYTES_MAX: usize = 1 << 20;

const _: () = assert!(POP_BYTES_MAX <= BODY_BYTES_MAX);
const _: () = assert!(POP_BATCH_MAX as usize <= BATCH_ITEMS_MAX);
