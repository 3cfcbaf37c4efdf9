//! The index: tables of the embedded key-value engine (fjall) that find rows and segments.
//!
//! Always: the index never knows more than the log. Commits reach it in order, without a gap. Not here: queueing
//! commits for it (`commit::index_apply`), and replaying the log after a crash (`startup::replay`).

mod segment_index;
mod tables;
mod write_overlay;

pub use segment_index::{SegmentIndex, SegmentRow};
pub use tables::{RowWrite, Tables, engine_error};
pub use write_overlay::TableOverlays;
