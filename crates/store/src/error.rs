//! Errors of a store, sorted by what the caller can do about them.

use std::time::Duration;

/// Why a store refused or failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Too many operations are in flight. Nothing was changed: retry a little later.
    #[error("the store is busy; try again in {} ms", .0.as_millis())]
    Busy(Duration),
    /// The disk is nearly full. Nothing was changed: free some space, or finish and delete messages.
    #[error("the disk has less than {floor} bytes left; free some space or lower the floor")]
    DiskFull {
        /// The free space below which the store accepts no new data.
        floor: u64,
    },
    /// Stored data is damaged.
    #[error("stored data is damaged: {0}")]
    Corrupt(String),
    /// The directory belongs to another process, another format, or cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// The store is closing or closed; whether the operation happened is unknown only if it was a write.
    #[error("the store is closed: {0}")]
    Closed(String),
    /// A limit is reached. Nothing was changed: remove something.
    #[error("{0}")]
    LimitReached(String),
    /// A record is too large.
    #[error("a record holds at most {max} bytes, this one has {bytes}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
}
