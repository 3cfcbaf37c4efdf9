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
        /// The first message of the call that has no place, by its number.
        first_beyond: usize,
    },
    /// The call would make more queues or partitions than there may be.
    #[error("{problem}")]
    NoRoom {
        /// Of which there would be too many.
        problem: String,
        /// The first message of the call that has no place, by its number.
        first_beyond: usize,
    },
    /// The server is at a limit; nothing was changed.
    #[error("{reason}; try again in {} ms", .after.as_millis())]
    Busy {
        /// Which limit.
        reason: String,
        /// When to try again.
        after: Duration,
    },
    /// A payload cannot be encrypted or decrypted without a key that the server does not have.
    #[error("{0}")]
    KeyMissing(String),
    /// The queue is encrypted and the messages for it were not; the broker encrypts them and tries again.
    #[error("messages for the encrypted queue {0:?} must be encrypted")]
    Unsealed(String),
    /// The idempotency key came with another request before; nothing was changed.
    #[error("this idempotency key came with another request before; use a new key for a new request")]
    KeyReused,
    /// The server is stopping; nothing was changed.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The store refused.
    #[error(transparent)]
    Store(#[from] baton_store::Error),
}
