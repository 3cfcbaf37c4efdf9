//! What a caller is told when a rule says no.

use std::time::Duration;

/// Why the broker refused, sorted by what the caller can do.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The request is wrong; the text says what would be right.
    #[error("{0}")]
    Invalid(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// The queue holds as many unfinished messages as its `maxSize` allows.
    #[error(
        "queue {queue:?} is full: {size} unfinished messages, maxSize is {max}; consume some or raise maxSize"
    )]
    QueueFull {
        /// The queue.
        queue: String,
        /// How many it holds.
        size: u64,
        /// How many it may hold.
        max: u64,
    },
    /// The server is at a limit; nothing was changed.
    #[error("{reason}; try again in {} ms", .after.as_millis())]
    Busy {
        /// Which limit.
        reason: String,
        /// When to try again.
        after: Duration,
    },
    /// The server is stopping; nothing was changed.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The store refused.
    #[error(transparent)]
    Store(#[from] baton_store::Error),
}
