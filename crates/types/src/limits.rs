//! The limits on everything that a caller can send, each with its reason.

use std::time::Duration;

/// Bytes of a request body. Large enough for a push of megabyte payloads, small enough that a hundred concurrent
/// callers cannot exhaust the memory of a small machine.
pub const BODY_BYTES_MAX: usize = 64 << 20;

/// Items of one push, acks of one batch, operations of one transaction.
pub const BATCH_ITEMS_MAX: usize = 100_000;

/// Nesting levels of a payload, or of other stored JSON. Many parsers allow no more than 128, and responses add a few
/// of their own: a deeper payload would make a whole pop response unreadable.
pub const JSON_LEVELS_MAX: usize = 100;

/// Bytes of a queue, partition, group, namespace or task name: they become keys and are part of every response.
pub const NAME_BYTES_MAX: usize = 255;

/// Queues of a server: each is held in memory, and has several lines of metrics.
pub const QUEUES_MAX: u64 = 1_000_000;

/// Partitions of a queue. With an embedded store each takes some hundred bytes of memory, so this many need one or
/// two gigabytes.
pub const PARTITIONS_MAX: u64 = 5_000_000;

/// Groups of a queue: every push to it checks all of them.
pub const GROUPS_MAX: u64 = 10_000;

/// Bytes of a transaction id: its length is stored in two bytes.
pub const TRANSACTION_ID_BYTES_MAX: usize = u16::MAX as usize;

/// Bytes of the error text kept with a dead letter; more is cut off.
pub const ERROR_TEXT_BYTES_MAX: usize = 8 << 10;

/// Messages that one pop may ask for.
pub const POP_BATCH_MAX: u32 = 10_000;

/// Bytes of payload in one pop response. A larger batch is cut, and the rest is released at once.
pub const POP_BYTES_MAX: usize = 32 << 20;

/// Partitions that one pop may claim.
pub const POP_PARTITIONS_MAX: u32 = 1_000;

/// The longest wait of a pop.
pub const POP_WAIT_MAX: Duration = Duration::from_secs(300);

/// Entries of one page of a listing.
pub const PAGE_ROWS_MAX: usize = 1_000;

/// The longest lease: a consumer that needs more renews it.
pub const LEASE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// A record's value: records are for decisions, not for payloads.
pub const RECORD_BYTES_MAX: usize = 1 << 20;

/// The longest time until the expiry of a record; use no expiry beyond it.
pub const RECORD_LIFE_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Bytes of the key of a key-value record or of a timer.
pub const KEY_BYTES_MAX: usize = 512;

/// Bytes of the value of a key-value record.
pub const KV_VALUE_BYTES_MAX: usize = 64 << 10;

/// Operations of one key-value call.
pub const KV_OPERATIONS_MAX: usize = 256;

/// Keys that one key-value call may name.
pub const KV_KEYS_MAX: usize = 1024;

/// Record operations of one transaction.
pub const TRANSACTION_KV_OPERATIONS_MAX: usize = 64;

/// Keys that those operations may name.
pub const TRANSACTION_KV_KEYS_MAX: usize = 256;

/// Bytes of values that one key-value call reads; the response says when it left out more.
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

/// Bytes of a timer's payload: it shares one record with its transaction id and its names.
pub const TIMER_PAYLOAD_BYTES_MAX: usize = RECORD_BYTES_MAX - TRANSACTION_ID_BYTES_MAX - (8 << 10);

/// Partitions that one fetch may read, and queues whose partitions it may list.
pub const FETCH_ENTRIES_MAX: usize = 1024;

/// Bytes of payload that a fetch returns for one partition, and in total.
pub const FETCH_BYTES_MAX: usize = 8 << 20;

/// The longest wait of a fetch.
pub const FETCH_WAIT_MAX: Duration = Duration::from_secs(30);

const _: () = assert!(KV_VALUE_BYTES_MAX < RECORD_BYTES_MAX);
const _: () = assert!(POP_BYTES_MAX <= BODY_BYTES_MAX);
const _: () = assert!(POP_BATCH_MAX as usize <= BATCH_ITEMS_MAX);
