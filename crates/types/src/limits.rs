//! Everything a caller can send has a bound; the bounds are here, each with its reason.

use std::time::Duration;

/// Bytes of a request body. Large enough for a push of megabyte payloads, small enough that a hundred
/// callers at once cannot exhaust the memory of a small machine.
pub const BODY_BYTES_MAX: usize = 64 << 20;

/// Items of one push, acks of one batch, operations of one transaction.
pub const BATCH_ITEMS_MAX: usize = 100_000;

/// Levels of lists and objects in a payload, or in other JSON that is kept as it came. Many parsers read no more than 128
/// of them, and answers add a few of their own: who popped something deeper could not even read what came with it.
pub const JSON_LEVELS_MAX: usize = 100;

/// Bytes of a queue, partition, group, namespace or task name: they become keys and travel in every answer.
pub const NAME_BYTES_MAX: usize = 255;

/// Queues of a server: each is kept in memory, and metrics have several lines for each.
pub const QUEUES_MAX: u64 = 1_000_000;

/// Partitions of a queue. With an embedded store each takes some hundred bytes of memory, so that these fit into one
/// or two gigabytes.
pub const PARTITIONS_MAX: u64 = 5_000_000;

/// Groups of a queue: every push to it looks at all of them.
pub const GROUPS_MAX: u64 = 10_000;

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

/// The longest that a record with an expiry may live; one that needs more is kept for good.
pub const RECORD_LIFE_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Bytes of the key of a key-value record or of a timer.
pub const KEY_BYTES_MAX: usize = 512;

/// Bytes of the value of a key-value record.
pub const KV_VALUE_BYTES_MAX: usize = 64 << 10;

/// Operations of one key-value call.
pub const KV_OPERATIONS_MAX: usize = 256;

/// Keys that one key-value call may name.
pub const KV_KEYS_MAX: usize = 1024;

/// Operations on records that a transaction may carry.
pub const TRANSACTION_KV_OPERATIONS_MAX: usize = 64;

/// Keys that those may name.
pub const TRANSACTION_KV_KEYS_MAX: usize = 256;

/// Bytes of values that one key-value call reads; what is beyond is said to be left out.
pub const KV_READ_BYTES_MAX: usize = 4 << 20;

/// Bytes of the name of a lock and of the name of its owner.
pub const LOCK_NAME_BYTES_MAX: usize = 256;

/// Permits of a semaphore.
pub const LOCK_PERMITS_MAX: u32 = 1024;

/// Operations of one call on locks.
pub const LOCK_OPERATIONS_MAX: usize = 64;

/// Operations of one call on timers.
pub const TIMER_OPERATIONS_MAX: usize = 256;

/// How far in the future a timer may be.
pub const TIMER_DELAY_MAX: Duration = Duration::from_secs(90 * 24 * 3600);

/// Bytes of the payload of a timer: with its transaction id and its names it is one record.
pub const TIMER_PAYLOAD_BYTES_MAX: usize = RECORD_BYTES_MAX - TRANSACTION_ID_BYTES_MAX - (8 << 10);

/// Partitions that one call may read by offset, and queues whose partitions it may list.
pub const FETCH_ENTRIES_MAX: usize = 1024;

/// Bytes of payload that a read by offset returns for one partition, and in all.
pub const FETCH_BYTES_MAX: usize = 8 << 20;

/// The longest that a read by offset may wait.
pub const FETCH_WAIT_MAX: Duration = Duration::from_secs(30);

const _: () = assert!(KV_VALUE_BYTES_MAX < RECORD_BYTES_MAX);
const _: () = assert!(POP_BYTES_MAX <= BODY_BYTES_MAX);
const _: () = assert!(POP_BATCH_MAX as usize <= BATCH_ITEMS_MAX);
