//! What can go wrong in a store, sorted by what the caller can do about it.

use std::time::Duration;

/// Why a store did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Too much is under way. Nothing was changed: try again a little later.
    #[error("the store is busy; try again in {} ms", .0.as_millis())]
    Busy(Duration),
    /// The disk is nearly full. Nothing was changed: free some space, or finish and delete messages.
    #[error("the disk has less than {floor} bytes left; free some space or lower the floor")]
    DiskFull {
        /// The free space below which nothing more is taken in.
        floor: u64,
    },
    /// Something stored is not what was written.
    #[error("stored data is damaged: {0}")]
    Corrupt(String),
    /// The directory belongs to another process, another format, or cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// The store is closing or closed; whether the operation happened is unknown only if it was a write.
    #[error("the store is closed: {0}")]
    Closed(String),
    /// There are as many of something as there may be. Nothing was changed: remove some.
    #[error("{0}")]
    LimitReached(String),
    /// A record is larger than a record may be.
    #[error("a record holds at most {max} bytes, this one has {bytes}")]
    TooLarge {
        /// What it has.
        bytes: usize,
        /// What it may have.
        max: usize,
    },
}
