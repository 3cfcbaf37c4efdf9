//! Deduplication: transaction ids of the last while, in memory and in files of their own.

mod dedup_index;
mod slice_files;

pub use dedup_index::{DedupIndex, DedupRun, PackedIds, append_to_files};
pub use slice_files::SliceFiles;
