//! Everything a worker can send has a bound; the bounds are here, each with its reason.

use std::time::Duration;

/// Services that a store keeps. Each has a task of its own in every server.
pub const SERVICES_MAX: usize = 1_000;

/// Services that a server looks after or is asked for at a time, those that are not stored included.
pub const KEEPERS_MAX: usize = 2 * SERVICES_MAX;

/// Workers of one service that are known at a time.
pub const WORKERS_MAX: usize = 20_000;

/// Bytes of the name of a service, the id of a worker and the id of its session: they travel in every message.
pub const NAME_BYTES_MAX: usize = 255;

/// The most shards that a setting may allow a service: a shard costs 16 bytes of memory, and twice that while it
/// moves.
pub const SHARDS_MAX: u32 = 16_000_000;

/// What a worker may weigh; one weighs 1 unless it says so.
pub const WEIGHT_MAX: u32 = 1_000;

/// Ranges of shards in one message. A range takes about ten bytes on the wire.
pub const RANGES_MAX: usize = 100_000;

/// Requests of one service that wait to be decided.
pub const INBOX_MAX: usize = 32_768;

/// Callers that wait for news of shards at a time.
pub const WATCHERS_MAX: usize = 20_000;

/// The shortest time after which a silent worker counts as gone: shorter ones would rest on the scheduler's mood.
pub const TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// The longest.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// By how much of its rate a worker's clock may be wrong.
pub const CLOCK_DRIFT: f64 = 0.01;
