//! Errors, sorted by what the caller does next.

use std::time::Duration;

use http::StatusCode;

/// The cause of a failure.
pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The innermost cause, which has the useful text: the layers above only say that they failed.
fn root_cause<'a>(cause: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    let mut root = cause;
    while let Some(deeper) = root.source() {
        root = deeper;
    }
    root
}

/// A failed call. The kind says what to do next; the text says what happened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Fix the call: the server, or the client before it, refuses it.
    #[error("{0}")]
    Invalid(String),

    /// Fix the payload or the type it is read into.
    #[error("payload does not fit its type: {0}")]
    Payload(#[source] serde_json::Error),

    /// Get a token, or one with the permission.
    #[error("{message} (HTTP {status})")]
    Denied {
        /// 401 or 403.
        status: u16,
        /// The server's message.
        message: String,
    },

    /// It does not exist: create it, or go on without.
    #[error("{0}")]
    NotFound(String),

    /// Read again and decide anew: the state was not the one that the call relied on. Nothing changed.
    #[error("{0}")]
    Conflict(String),

    /// Stop working on this message: its lease expired or was released, and it will be delivered again.
    #[error("the lease of message {transaction_id:?} is over; the message will be delivered again")]
    LeaseLost {
        /// The message.
        transaction_id: String,
    },

    /// Slow down: the server or the queue is full. The client has retried before it gave up.
    #[error("the server is full: {message}")]
    Full {
        /// The server's message.
        message: String,
        /// When the server asks to retry.
        retry_after: Option<Duration>,
    },

    /// Retry later: no server could be reached, or it failed. The call may or may not have happened.
    #[error("{url} is unavailable: {}", root_cause(cause.as_ref()))]
    Unavailable {
        /// The last server tried.
        url: String,
        /// The cause.
        #[source]
        cause: Cause,
    },

    /// Retry later: the server did not answer in time. The call may or may not have happened.
    #[error("{url} did not answer within {after:?}")]
    Timeout {
        /// The last server tried.
        url: String,
        /// How long the client waited.
        after: Duration,
    },

    /// Report a bug: the client does not understand the server's response.
    #[error("{url} gave an answer this client does not understand: {problem}")]
    Protocol {
        /// The server.
        url: String,
        /// What is wrong with it.
        problem: String,
    },

    /// Make a new one: the buffer was closed.
    #[error("the buffer is closed")]
    Closed,
}

impl Error {
    /// Whether the same call may succeed later without any change.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Unavailable { .. } | Self::Timeout { .. })
    }

    /// Whether no server listens at the address.
    pub fn is_connection_refused(&self) -> bool {
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            if let Some(io) = error.downcast_ref::<std::io::Error>() {
                return io.kind() == std::io::ErrorKind::ConnectionRefused;
            }
            cause = error.source();
        }
        false
    }

    /// The error for a response status.
    pub(crate) fn from_status(
        url: &str,
        status: StatusCode,
        message: String,
        retry_after: Option<Duration>,
    ) -> Self {
        match status.as_u16() {
            401 | 403 => Self::Denied { status: status.as_u16(), message },
            404 => Self::NotFound(message),
            409 => Self::Conflict(message),
            429 => Self::Full { message, retry_after },
            503 if retry_after.is_some() => Self::Full { message, retry_after },
            400..=499 => Self::Invalid(message),
            500..=599 => {
                Self::Unavailable { url: url.into(), cause: format!("HTTP {status}: {message}").into() }
            }
            _ => Self::Protocol { url: url.into(), problem: format!("status {status}") },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(status: u16, retry_after: Option<Duration>) -> Error {
        let status = StatusCode::from_u16(status).unwrap();
        Error::from_status("http://test", status, "words".into(), retry_after)
    }

    #[test]
    fn only_a_full_or_failing_server_is_worth_another_try() {
        for status in [400, 401, 403, 404, 409, 413, 422] {
            assert!(!kind(status, None).is_temporary(), "{status}");
        }
        for status in [429, 500, 502, 503, 504] {
            assert!(kind(status, None).is_temporary(), "{status}");
        }
    }

    #[test]
    fn a_server_that_says_when_to_come_back_is_full() {
        let wait = Some(Duration::from_secs(2));
        assert!(matches!(kind(503, wait), Error::Full { retry_after, .. } if retry_after == wait));
        assert!(matches!(kind(503, None), Error::Unavailable { .. }));
    }
}
