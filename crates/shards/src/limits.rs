//! Limits on everything a worker can send, each with its reason.

use std::time::Duration;

/// Services of a store. Each has a task of its own in every server.
pub const SERVICES_MAX: usize = 1_000;

/// Services that a server runs an actor for, including requested ones that are not stored.
pub const ACTORS_MAX: usize = 2 * SERVICES_MAX;

/// Workers of one service at a time.
pub const WORKERS_MAX: usize = 20_000;

/// Bytes of the name of a service, the id of a worker and the id of its session: they travel in every message.
pub const NAME_BYTES_MAX: usize = 255;

/// The largest configurable number of shards of a service: a shard costs 16 bytes of memory, and twice that while it
/// moves.
pub const SHARDS_MAX: u32 = 16_000_000;

/// The largest weight of a worker; the default is 1.
pub const WEIGHT_MAX: u32 = 1_000;

/// Ranges of shards in one message. A range takes about ten bytes on the wire.
pub const RANGES_MAX: usize = 100_000;

/// Queued requests of one service.
pub const QUEUED_REQUESTS_MAX: usize = 32_768;

/// Callers that wait for new snapshots.
pub const WATCHERS_MAX: usize = 20_000;

/// The shortest timeout of a worker: shorter ones would depend on the scheduler.
pub const TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// The longest timeout.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// How far the rate of a worker's clock may be off.
pub const CLOCK_DRIFT: f64 = 0.01;
