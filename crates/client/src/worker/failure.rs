//! Failures of handlers, and whether a retry may help.

use std::time::Duration;

use super::wire::{FailureBody, millis};

/// Why a job failed. Any error converts with `?` into a failure that may be retried.
#[derive(Clone, Debug)]
pub struct Failure {
    kind: String,
    message: String,
    retryable: bool,
    retry_after: Option<Duration>,
}

impl Failure {
    /// A failure that a retry may fix.
    pub fn new(message: impl Into<String>) -> Self {
        Self { kind: "error".into(), message: message.into(), retryable: true, retry_after: None }
    }

    /// A failure that no retry can fix.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self { retryable: false, ..Self::new(message) }
    }

    /// Sets the kind of failure, by which failures can be grouped.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = kind.into();
        self
    }

    /// Asks for the retry after this time, instead of the delay of the job's policy.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// What happened.
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn into_wire(self) -> FailureBody {
        FailureBody {
            kind: self.kind,
            message: self.message,
            retryable: self.retryable,
            retry_after_ms: self.retry_after.map(millis),
        }
    }
}

// Not an error itself, so that every error can convert into one.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            message = format!("{message}: {inner}");
            cause = inner.source();
        }
        Self::new(message)
    }
}
