//! The data model: jobs, queues, workers and slices, with limits, record keys and encodings.
//!
//! Always: nothing here reads or writes the store, and nothing knows a rule. Start at `slot` and `spec`.

pub mod channel_names;
pub mod chunk;
pub mod codec;
pub mod concurrency_key;
pub mod error;
pub mod history_entry;
pub mod ids;
pub mod keys;
pub mod lane;
pub mod limits;
pub mod names;
pub mod new_job;
pub mod node_times;
pub mod ownership;
pub mod payload;
pub mod policy;
pub mod queue_head;
pub mod retry;
pub mod slot;
pub mod spec;
pub mod state;
pub mod worker;
