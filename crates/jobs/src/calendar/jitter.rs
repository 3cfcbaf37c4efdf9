//! Jitter: a delay that spreads the jobs of many schedules, the same one whenever and wherever it is asked for.

use std::time::Duration;

use baton_types::Timestamp;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How long after its nominal time the fire of a schedule starts its job, from zero to `max`.
pub fn jitter(schedule: &str, fire: Timestamp, max: Duration) -> Duration {
    let millis = u64::try_from(max.as_millis()).unwrap_or(u64::MAX);
    let hash = xxh3_64_with_seed(schedule.as_bytes(), fire.micros().cast_unsigned());
    Duration::from_millis(hash % millis.saturating_add(1))
}
