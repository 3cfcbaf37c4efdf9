//! Waiting pops: long polls of queues.
//!
//! A pop that finds nothing and may wait joins a wait list. An event of the store, an event of another server or the recheck
//! timer runs the pop again for the first waiters of the list. Always: a waiting pop is answered once. Not here: what a pop
//! decides (`rules::pop`), reading payloads (`broker`). Start at [`service`], then [`wait_lists`].

pub mod hint;
mod recheck_schedule;
pub mod service;
mod wait_lists;

pub use wait_lists::{BackOff, WaitStatistics, Watched};
