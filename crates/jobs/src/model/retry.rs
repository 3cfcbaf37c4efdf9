//! Retry policy: how often a failed job is retried, and after which delays.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::error::Error;
use crate::model::limits::{DELAY_MAX, RETRIES_MAX};

/// How often and when a failed job is retried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Retry {
    /// Retries after the first attempt.
    pub max_retries: u32,
    /// The delay before the first retry.
    pub initial_delay_ms: u64,
    /// The factor from each delay to the next.
    pub multiplier: f64,
    /// The longest delay.
    pub max_delay_ms: u64,
    /// The fraction of a delay by which it varies at random.
    pub jitter: f64,
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_retries: 3, initial_delay_ms: 10_000, multiplier: 2.0, max_delay_ms: 600_000, jitter: 0.2 }
    }
}

impl Retry {
    /// The delay after `attempt` attempts; `chance` is the random number for the jitter.
    pub fn pause(&self, attempt: u32, chance: u64) -> Duration {
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        #[expect(clippy::cast_precision_loss, reason = "a pause is not that precise")]
        let (first, most, chance) = (self.initial_delay_ms as f64, self.max_delay_ms as f64, chance as f64);
        let pause = (first * self.multiplier.powi(exponent)).min(most);
        #[expect(clippy::cast_precision_loss, reason = "a pause is not that precise")]
        let spread = 1.0 + self.jitter * (2.0 * chance / u64::MAX as f64 - 1.0);
        Duration::try_from_secs_f64(pause * spread / 1000.0).unwrap_or(Duration::ZERO)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let longest = u64::try_from(DELAY_MAX.as_millis()).unwrap_or(u64::MAX);
        if self.max_retries > RETRIES_MAX {
            return Err(Error::invalid(format!("retry.maxRetries is at most {RETRIES_MAX}")));
        }
        if !(1.0..=100.0).contains(&self.multiplier) || !(0.0..=1.0).contains(&self.jitter) {
            return Err(Error::invalid("retry.multiplier is 1 to 100 and retry.jitter 0 to 1"));
        }
        if self.initial_delay_ms > longest || self.max_delay_ms > longest {
            return Err(Error::invalid(format!("a retry's delay is at most {longest} ms")));
        }
        Ok(())
    }
}

pub(crate) fn is_usual(retry: &Retry) -> bool {
    *retry == Retry::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_spread() {
        let retry = Retry { jitter: 0.0, ..Retry::default() };
        let seconds = |attempt| retry.pause(attempt, 0).as_secs();
        assert_eq!([seconds(1), seconds(2), seconds(3), seconds(30)], [10, 20, 40, 600]);
        let spread = |chance| Retry::default().pause(1, chance).as_millis();
        assert_eq!((spread(0), spread(u64::MAX)), (8_000, 12_000));
    }
}
