//! Yields the processor after an answer, while that is cheap.
//!
//! An answer wakes its reader. A reader on this machine usually runs on the processor of the thread that wrote the answer,
//! once that thread sleeps; a yield lets it run at once. But if other programs want the processor, the yield runs them, for
//! milliseconds. So the cost of yields is measured: while its moving average exceeds a limit, there are none for a while.

use std::time::Duration;

use super::writer::Writer;

/// The limit: longer than reading an answer and sending the next request, shorter than a time slice.
const COSTLY: Duration = Duration::from_millis(1);
/// The pause after yields were too costly. At worst yields cost a few time slices in all this time.
const PAUSE: Duration = Duration::from_secs(2);
/// The last yield has one part in this many in the average.
const WEIGHT: u32 = 4;

/// The cost of recent yields.
#[derive(Default)]
pub struct AdaptiveYield {
    paused_until: Duration,
    /// A moving average of the cost.
    average: Duration,
}

impl AdaptiveYield {
    /// Yields if that is cheap.
    pub fn maybe_yield(&mut self, now: impl Fn() -> Duration) {
        let before = now();
        if self.is_cheap(before) {
            std::thread::yield_now();
            self.observe_cost(before, now());
        }
    }

    fn is_cheap(&self, now: Duration) -> bool {
        now >= self.paused_until
    }

    fn observe_cost(&mut self, before: Duration, after: Duration) {
        self.average = self.average * (WEIGHT - 1) / WEIGHT + after.saturating_sub(before) / WEIGHT;
        if self.average >= COSTLY {
            *self = Self { paused_until: after + PAUSE, ..Self::default() };
        }
    }
}

impl Writer {
    /// Yields before this thread commits a small batch, so that operations of callers that were just answered join it.
    pub fn gather_small_batch(&mut self) {
        if !self.inline_policy.allows_inline() && self.is_batch_small() {
            self.adaptive_yield.maybe_yield(|| self.clock.elapsed());
            while self.is_batch_small()
                && let Ok(input) = self.intake.try_recv()
            {
                self.accept_input(input);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costly_yields_are_followed_by_a_pause() {
        let (mut yields, at) = (AdaptiveYield::default(), Duration::from_secs);
        (0..100).for_each(|_| yields.observe_cost(at(5), at(5) + COSTLY * 9 / 10));
        assert!(yields.is_cheap(at(6)));
        yields.observe_cost(at(6), at(6) + 2 * COSTLY);
        assert!(!yields.is_cheap(at(7)));
        assert!(yields.is_cheap(at(7) + PAUSE));
    }

    #[test]
    fn one_costly_yield_among_cheap_ones_causes_no_pause() {
        let (mut yields, at) = (AdaptiveYield::default(), Duration::from_secs);
        yields.observe_cost(at(5), at(5) + 3 * COSTLY);
        assert!(yields.is_cheap(at(6)));
        (0..2).for_each(|_| yields.observe_cost(at(6), at(6) + 3 * COSTLY));
        assert!(!yields.is_cheap(at(7)));
    }
}
