//! One file for each command: its arguments, and what it does with them.

pub mod cluster;
pub mod completions;
pub mod elect;
pub mod elections;
pub mod migrate;
pub mod pop;
pub mod push;
pub mod queues;
pub mod serve;
pub mod shards;
mod start;
pub mod tail;
mod target;
