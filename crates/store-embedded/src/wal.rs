//! The write-ahead log: every commit, and every message, written once.
//!
//! A commit is a frame at the end of the log: the rows that it changes and the segments that it adds. One write and
//! one fsync make it durable. The index gets the rows and the places of the segments afterwards, without an fsync. After
//! a crash the log replays from the last checkpoint, up to which the index has everything in sorted files. Messages are
//! never copied into the index: the log is where they stay. When much of a file is garbage, its live segments are
//! written again at the end of the log and the file is removed.
//!
//! Always: frames follow each other without a gap and have the numbers of the commits. A file is complete and synced
//! before the next one begins, so only the last file can be torn or end in zeros. Nothing after the checkpoint is ever
//! removed. Applying a commit to the index twice changes nothing. Not here: what is in a row (`rows`), when to compact
//! (`commit::log_compactor`).
//!
//! Start at [`Log::append`], then [`Log::open`].

mod checkpoint;
mod frame;
mod high_water;
mod log;
mod log_files;
mod scan;
mod usage;
mod write_back;

pub use checkpoint::LogPosition;
pub use frame::{BatchSegments, Frame, IndexedSegment, RowRef};
pub use log::Log;
pub use log_files::{LogFiles, SegmentPlace};
