//! Deciding and committing: joins memory, log and index.
//!
//! Operations run one after the other against memory. What they change fills a batch ([`batch_builder`]). A batch is
//! one frame of the log and one fsync ([`group_commit`]): group commit, as in most databases. An operation is answered
//! when its batch is on disk. The index gets the rows later, many commits at once ([`index_apply`]).
//!
//! A batch is committed in one of three ways. The commit thread does it while the next batch fills ([`commit_thread`]).
//! The deciding thread does it when the batch is small and the disk is fast ([`small_batch`]). At very low load the caller
//! decides and commits on its own thread ([`inline_commit`]). Each way beyond the first saves a wake-up and could be
//! deleted without the others.
//!
//! Always: one thread at a time holds the [`Writer`]; commits reach log and index in the order of their numbers; after a
//! failed commit nothing that was decided on top of it is kept. Start at [`writer`], then [`decide_thread`].

mod batch;
mod batch_builder;
pub mod checkpoint;
pub mod commit_thread;
pub mod decide_thread;
mod deferred_delete;
mod group_commit;
mod index_apply;
mod inline_commit;
mod log_compactor;
mod parked_reads;
mod segment_builder;
mod shared;
mod small_batch;
mod tx;
mod unapplied_segments;
mod undo;
mod writer;

pub use batch::CommitBatch;
pub use decide_thread::Input;
pub use group_commit::append_batch;
pub use index_apply::{ApplyQueue, PendingCommit};
pub use inline_commit::InlineCommitter;
pub use log_compactor::{CompactionRequests, run_compaction};
pub use shared::{Shared, log_error};
pub use writer::{LoadedMemory, Writer};
