//! What a start reads from disk: the log since the checkpoint, and the rows from which memory is rebuilt.
//!
//! Always: no message is read, except those of commits that the index may not have.

mod load;
mod replay;

pub use load::load_state;
pub use replay::{load_dedup_index, replay_log};
