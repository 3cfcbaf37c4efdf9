//! The right to act as coordinator: a token and a deadline.
//!
//! Always: validity is computed from the clock, not from a flag that may be set late; a leadership that has ended
//! stays ended. The token covers what no clock shows (a machine frozen from outside): let the resource remember the
//! highest token it has seen and refuse a lower one. Start at [`Leadership`].

use std::future::Future;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_env::Clock;
use tokio_util::sync::CancellationToken;

use crate::event::Reason;

/// The deadline of a leadership without rivals: elections are disabled.
const NEVER: u64 = u64::MAX;

/// The leadership is over, and what was guarded by it was not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this worker coordinates no longer: {}", .0.as_str())]
pub struct Ended(pub Reason);

/// The right to act as coordinator, for one term. Cheap to clone.
#[derive(Clone)]
pub struct Leadership {
    state: Arc<LeadershipState>,
}

struct LeadershipState {
    token: u64,
    /// On the clock, in microseconds.
    deadline: AtomicU64,
    clock: Arc<dyn Clock>,
    revoked: CancellationToken,
    reason: OnceLock<Reason>,
}

impl Leadership {
    pub(crate) fn new(token: u64, deadline: Option<Duration>, clock: Arc<dyn Clock>) -> Self {
        let deadline = AtomicU64::new(deadline.map_or(NEVER, micros));
        let revoked = CancellationToken::new();
        Self { state: Arc::new(LeadershipState { token, deadline, clock, revoked, reason: OnceLock::new() }) }
    }

    /// The fencing token: the number of the term. Every later coordinator has a higher one.
    pub fn token(&self) -> u64 {
        self.state.token
    }

    /// Whether this worker still coordinates, by the clock, now.
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// For how long it may act without another renewal; zero when it is over.
    pub fn remaining(&self) -> Duration {
        if self.state.revoked.is_cancelled() {
            return Duration::ZERO;
        }
        let deadline = self.state.deadline.load(Ordering::Acquire);
        if deadline == NEVER {
            return Duration::MAX;
        }
        let left = deadline.saturating_sub(micros(self.state.clock.elapsed()));
        if left == 0 {
            // The caller sees that it is over, so a late renewal must not revive it.
            self.state.revoked.cancel();
        }
        Duration::from_micros(left)
    }

    /// Returns when it is over, with the reason.
    pub async fn ended(&self) -> Reason {
        loop {
            let left = self.remaining();
            if left.is_zero() {
                return *self.state.reason.get().unwrap_or(&Reason::LeaseExpired);
            }
            tokio::select! {
                () = self.state.revoked.cancelled() => {}
                () = baton_env::sleep(left.min(Duration::from_secs(3600))) => {}
            }
        }
    }

    /// Runs `work` while this worker coordinates; then drops it.
    pub async fn guard<T>(&self, work: impl Future<Output = T>) -> Result<T, Ended> {
        tokio::select! {
            biased;
            reason = self.ended() => Err(Ended(reason)),
            done = work => Ok(done),
        }
    }

    pub(crate) fn extend(&self, deadline: Duration) {
        self.state.deadline.fetch_max(micros(deadline), Ordering::AcqRel);
    }

    pub(crate) fn revoke(&self, reason: Reason) {
        let _ = self.state.reason.set(reason);
        self.state.revoked.cancel();
    }
}

impl std::fmt::Debug for Leadership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Leadership");
        shown.field("token", &self.token()).field("remaining", &self.remaining()).finish()
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(NEVER - 1)
}

#[cfg(test)]
mod tests {
    use baton_env::ManualClock;

    use super::*;

    #[tokio::test]
    async fn it_ends_by_the_clock_even_without_a_revocation() {
        let clock = Arc::new(ManualClock::new("2026-11-15T00:00:00Z".parse().unwrap()));
        let leadership =
            Leadership::new(7, Some(Duration::from_secs(10)), Arc::clone(&clock) as Arc<dyn Clock>);
        assert!(leadership.is_valid() && leadership.guard(async { 1 }).await == Ok(1));
        clock.advance(Duration::from_secs(9));
        leadership.extend(Duration::from_secs(12));
        clock.set("2000-01-01T00:00:00Z".parse().unwrap());
        clock.advance(Duration::from_secs(2));
        assert_eq!(leadership.remaining(), Duration::from_secs(1));
        clock.advance(Duration::from_secs(1));
        assert!(!leadership.is_valid());
        let ended = leadership.guard(std::future::pending::<()>()).await;
        assert_eq!(ended, Err(Ended(Reason::LeaseExpired)));
    }

    #[tokio::test]
    async fn what_was_revoked_stays_over() {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new("2026-11-15T00:00:00Z".parse().unwrap()));
        let leadership = Leadership::new(7, None, clock);
        assert_eq!(leadership.remaining(), Duration::MAX);
        leadership.revoke(Reason::Stopped);
        leadership.extend(Duration::from_secs(1000));
        assert!(!leadership.is_valid() && leadership.ended().await == Reason::Stopped);
    }
}
