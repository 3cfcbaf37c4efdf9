//! Jitter: a delay that spreads the jobs of many schedules. Every server computes the same delay for the same fire.

use std::time::Duration;

use baton_types::Timestamp;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The delay between a fire's nominal time and the start of its job, from zero to `max`.
pub fn jitter(schedule: &str, fire: Timestamp, max: Duration) -> Duration {
    let millis = u64::try_from(max.as_millis()).unwrap_or(u64::MAX);
    let hash = xxh3_64_with_seed(schedule.as_bytes(), fire.micros().cast_unsigned());
    Duration::from_millis(hash % millis.saturating_add(1))
}
