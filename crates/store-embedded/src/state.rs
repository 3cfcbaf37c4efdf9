//! What the store keeps in memory: queues, partitions, consumer groups and cursors, and what is derived from them.
//!
//! One thread at a time changes it, so it has no locks. Always: everything here can be rebuilt from rows on disk
//! (`startup::load`). Deliberately absent: any file, any table, any thread.
//!
//! Start at [`MemoryState`].

mod consumer_group;
mod deferred_deletes;
mod dense_map;
mod inline_name;
mod memory;
mod partition_tail;
mod tail_log;

pub use deferred_deletes::DeferredDeletes;
pub use memory::MemoryState;
pub use tail_log::{TailLog, tail_chunks_prefix};
