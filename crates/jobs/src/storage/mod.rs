//! The unit of work over the store, and the records that more than one layer writes.
//!
//! A rule runs inside one [`JobsTx`]: it reads, changes slots, and the unit of work derives what follows and commits
//! everything at once. Always: nothing here knows what a transition of a job means. Start at `jobs_tx`.

mod abort;
mod changes;
pub mod channel_watchers;
mod chunk_cache;
mod commit_effects;
mod concurrency_keys;
mod derived;
pub mod event_log;
mod jobs_tx;
mod journal;
pub mod leader_term;
pub mod split_records;

pub use abort::{Abort, each};
pub use changes::Changes;
#[cfg(test)]
pub(crate) use changes::Writes;
pub use commit_effects::{CommitEffects, Counts};
pub use jobs_tx::JobsTx;
