//! What other servers on the same store would like to hear, and what is heard from them.
//!
//! News is a hint: it may be lost, late or repeated, and then a waiting pop looks again a little later and a mode is
//! read a second later. Nothing is ever decided by it. Not here: how it travels. Start at [`News`].

use std::sync::Arc;

use baton_store::Event;
use baton_types::{GroupId, QueueId};

/// Something that happened on one server and may matter on others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News<'a> {
    /// A waiting pop may go on.
    Happened(Event),
    /// A group has begun to wait here for a queue, or its last waiting pop has ended.
    Waits {
        /// The queue.
        queue: QueueId,
        /// The group.
        group: GroupId,
        /// The queue's name.
        name: &'a str,
        /// Whether it waits.
        on: bool,
    },
    /// The options of a queue are others.
    Configured(QueueId),
    /// A queue is gone.
    Deleted {
        /// The queue.
        queue: QueueId,
        /// Its name.
        name: &'a str,
    },
    /// A maintenance mode was switched.
    Switched,
}

/// Passes news on. It is called on the store's own thread and under locks, and must return at once.
pub type Relay = Arc<dyn Fn(News<'_>) + Send + Sync>;
