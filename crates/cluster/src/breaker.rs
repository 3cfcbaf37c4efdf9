//! A circuit breaker: stops asking a peer that does not answer, and detects when it answers again.
//!
//! Closed, it admits every request. After some failures in a row it opens and admits none for a while. Then it is
//! half open and admits one, whose outcome closes it, or opens it for twice as long. Time is an argument; there is no
//! clock here. Start at [`CircuitBreaker::admit`].

use std::time::Duration;

use crate::limits::CIRCUIT_RETRY_MAX;

/// When a breaker opens, and for how long at first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerOptions {
    /// Failures in a row that open it.
    pub failures: u32,
    /// How long it stays open the first time.
    pub retry: Duration,
}

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// It admits every request.
    Closed,
    /// It admits none.
    Open,
    /// It admits one.
    HalfOpen,
}

impl BreakerState {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// The breaker of one peer.
#[derive(Clone, Debug)]
pub struct CircuitBreaker {
    breaker_options: BreakerOptions,
    failures: u32,
    open: Option<OpenState>,
}

#[derive(Clone, Copy, Debug)]
struct OpenState {
    until: Duration,
    /// How long this opening lasts.
    pause: Duration,
    /// When the probe was sent; a probe without an outcome does not block the next for ever.
    probe: Option<Duration>,
}

impl CircuitBreaker {
    /// A closed breaker.
    pub fn new(breaker_options: BreakerOptions) -> Self {
        Self { breaker_options, failures: 0, open: None }
    }

    /// Its present state.
    pub fn state(&self, now: Duration) -> BreakerState {
        match &self.open {
            None => BreakerState::Closed,
            Some(open) if now < open.until => BreakerState::Open,
            Some(_) => BreakerState::HalfOpen,
        }
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// How long it still stays open.
    pub fn open_for(&self, now: Duration) -> Duration {
        self.open.map_or(Duration::ZERO, |open| open.until.saturating_sub(now))
    }

    /// Whether it would admit a request.
    pub fn would_admit(&self, now: Duration) -> bool {
        self.open.is_none_or(|open| now >= open.until && !open.is_probing(now))
    }

    /// Whether it admits a request. When half open, that request is the probe.
    pub fn admit(&mut self, now: Duration) -> bool {
        let admitted = self.would_admit(now);
        if let (true, Some(open)) = (admitted, &mut self.open) {
            open.probe = Some(now);
        }
        admitted
    }

    /// A request was answered.
    pub fn record_success(&mut self) {
        self.failures = 0;
        self.open = None;
    }

    /// A caller abandoned its request, so there is no outcome.
    pub fn record_cancelled(&mut self) {
        if let Some(open) = &mut self.open {
            open.probe = None;
        }
    }

    /// A request was not answered. Returns whether that opened the breaker.
    pub fn record_failure(&mut self, now: Duration) -> bool {
        self.failures = self.failures.saturating_add(1);
        let pause = match self.open {
            // Requests that were in flight when it opened give no new information.
            Some(open) if now < open.until => return false,
            Some(open) => (open.pause * 2).min(CIRCUIT_RETRY_MAX),
            None if self.failures >= self.breaker_options.failures => self.breaker_options.retry,
            None => return false,
        };
        self.open = Some(OpenState { until: now + pause, pause, probe: None });
        true
    }
}

impl OpenState {
    fn is_probing(&self, now: Duration) -> bool {
        self.probe.is_some_and(|since| now < since + self.pause.max(Duration::from_secs(5)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUSE: BreakerOptions = BreakerOptions { failures: 3, retry: Duration::from_secs(5) };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn opened() -> CircuitBreaker {
        let mut breaker = CircuitBreaker::new(FUSE);
        assert!(!breaker.record_failure(at(0)) && !breaker.record_failure(at(0)));
        assert!(breaker.record_failure(at(0)));
        breaker
    }

    #[test]
    fn three_failures_in_a_row_open_it_for_five_seconds() {
        let mut breaker = opened();
        assert_eq!((breaker.state(at(4)), breaker.admit(at(4))), (BreakerState::Open, false));
        assert_eq!((breaker.state(at(5)), breaker.admit(at(5))), (BreakerState::HalfOpen, true));
    }

    #[test]
    fn an_answer_in_between_begins_the_count_anew() {
        let mut breaker = CircuitBreaker::new(FUSE);
        breaker.record_failure(at(0));
        breaker.record_failure(at(0));
        breaker.record_success();
        assert!(!breaker.record_failure(at(0)) && breaker.admit(at(0)));
    }

    #[test]
    fn half_open_lets_one_through_whose_outcome_decides() {
        let mut breaker = opened();
        assert!(breaker.admit(at(6)) && !breaker.admit(at(6)));
        breaker.record_success();
        assert_eq!(breaker.state(at(6)), BreakerState::Closed);
        let mut breaker = opened();
        assert!(breaker.admit(at(6)));
        breaker.record_cancelled();
        assert!(breaker.admit(at(6)));
    }

    #[test]
    fn each_failed_probe_doubles_the_pause_up_to_five_minutes() {
        let (mut breaker, mut now, mut pauses) = (opened(), at(0), Vec::new());
        for _ in 0..9 {
            pauses.push(breaker.open_for(now).as_secs());
            now += breaker.open_for(now);
            assert!(breaker.admit(now));
            breaker.record_failure(now);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    }

    #[test]
    fn a_probe_that_never_tells_does_not_block_for_ever() {
        let mut breaker = opened();
        assert!(breaker.admit(at(6)) && !breaker.admit(at(8)) && breaker.admit(at(60)));
    }

    #[test]
    fn failures_of_what_was_under_way_do_not_prolong_the_pause() {
        let mut breaker = opened();
        assert!(!breaker.record_failure(at(4)));
        assert_eq!(breaker.open_for(at(4)), at(1));
    }
}
