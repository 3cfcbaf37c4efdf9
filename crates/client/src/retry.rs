//! Retry decisions: when to retry, and how long to wait before it, without a socket or a clock.

use std::time::Duration;

use crate::Error;

/// The wait before the first retry; it doubles from there.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);

/// The longest wait of the client's own choice: clients should notice soon that a server is back.
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// The longest wait that a server can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// Whether a call may be retried after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryPolicy {
    /// Yes: the call is idempotent.
    Always,
    /// Yes, except after a timeout: a poll has then used up its caller's time.
    Poll,
    /// Only when it cannot have reached the server.
    Unsent,
    /// No: the caller wants the first error.
    Never,
}

/// A failed attempt.
#[derive(Debug)]
pub(crate) struct FailedAttempt {
    pub error: Error,
    /// Whether it certainly never reached the server.
    pub unsent: bool,
}

impl RetryPolicy {
    /// Whether the server may get the call twice.
    pub fn is_idempotent(self) -> bool {
        matches!(self, Self::Always | Self::Poll)
    }

    /// Whether the call may be retried after this failure.
    pub fn allows(self, failure: &FailedAttempt) -> bool {
        let refused = matches!(failure.error, Error::Full { .. });
        failure.error.is_temporary()
            && match self {
                Self::Always => true,
                Self::Poll => !matches!(failure.error, Error::Timeout { .. }),
                Self::Unsent => failure.unsent || refused,
                Self::Never => false,
            }
    }
}

/// How long to wait before retry number `tries` (from 0). `random` spreads the clients of a server that failed:
/// between half of the wait and all of it.
pub(crate) fn backoff(tries: u32, error: &Error, random: u64) -> Duration {
    if let Error::Full { retry_after: Some(asked), .. } = error {
        return (*asked).min(RETRY_AFTER_MAX);
    }
    let full = BACKOFF_FIRST.saturating_mul(1 << tries.min(10)).min(BACKOFF_MAX);
    let half = full / 2;
    let spread = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).max(1);
    half + Duration::from_micros(random % spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unavailable() -> Error {
        Error::Unavailable { url: "http://test".into(), cause: "gone".into() }
    }

    #[test]
    fn a_call_that_is_not_safe_twice_is_repeated_only_when_it_never_left() {
        let lost = FailedAttempt { error: unavailable(), unsent: false };
        let kept = FailedAttempt { error: unavailable(), unsent: true };
        assert!(RetryPolicy::Always.allows(&lost));
        assert!(!RetryPolicy::Unsent.allows(&lost));
        assert!(RetryPolicy::Unsent.allows(&kept));
        assert!(!RetryPolicy::Never.allows(&kept));
    }

    #[test]
    fn a_poll_is_repeated_unless_its_time_is_over() {
        let timeout = Error::Timeout { url: "http://test".into(), after: Duration::from_secs(35) };
        assert!(!RetryPolicy::Poll.allows(&FailedAttempt { error: timeout, unsent: false }));
        assert!(RetryPolicy::Poll.allows(&FailedAttempt { error: unavailable(), unsent: false }));
    }

    #[test]
    fn a_refusal_is_never_repeated() {
        let failure = FailedAttempt { error: Error::Invalid("no".into()), unsent: false };
        assert!(!RetryPolicy::Always.allows(&failure));
    }

    #[test]
    fn waits_double_up_to_a_bound() {
        let waits: Vec<_> = (0..8).map(|tries| backoff(tries, &unavailable(), 0).as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 400, 800, 1600, 2500, 2500]);
        assert!(backoff(3, &unavailable(), u64::MAX) <= Duration::from_millis(800));
    }

    #[test]
    fn the_server_may_choose_the_wait_within_reason() {
        let full =
            |secs| Error::Full { message: "full".into(), retry_after: Some(Duration::from_secs(secs)) };
        assert_eq!(backoff(0, &full(3), 7), Duration::from_secs(3));
        assert_eq!(backoff(0, &full(3600), 7), RETRY_AFTER_MAX);
    }
}
