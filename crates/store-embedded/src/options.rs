//! How to open a store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use baton_env::{BootClock, Clock};
use baton_store::StoreLimits;

/// When a caller should try again after `Busy`: the intake is full, or the store is recovering.
pub const RETRY_AFTER: Duration = Duration::from_millis(100);

/// How to open a store.
#[derive(Clone)]
pub struct Options {
    /// The data directory. It is created if it is missing.
    pub directory: PathBuf,
    /// Below this much free space on the disk the store accepts no messages.
    pub min_free_disk: u64,
    /// Bytes of young messages in the segment cache.
    pub cache_bytes: usize,
    /// A file of the log with this length is followed by another. Compaction frees space file by file.
    pub log_file_bytes: u64,
    /// The largest number of remembered transaction ids, about 40 bytes each in memory.
    pub remembered_max: usize,
    /// Rows of the segment index that are collected in memory before they are written at once, about 48 bytes each.
    pub index_rows: usize,
    /// Bytes of blocks that the engine caches.
    pub index_cache_bytes: u64,
    /// The write buffer of a large table of the engine is flushed to a sorted file at this size, that of a small one at half of
    /// it. With the bound of the engine's journal it decides how much the engine replays at a start.
    pub write_buffer_bytes: u64,
    /// The largest numbers of queues, partitions and groups.
    pub bounds: StoreLimits,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Whether to use the machine's clock, however far it is from the stored time.
    pub resets_clock: bool,
}

impl Options {
    /// The default options for a directory.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            min_free_disk: 256 << 20,
            cache_bytes: 64 << 20,
            log_file_bytes: 32 << 20,
            remembered_max: 20_000_000,
            index_rows: 128 << 10,
            index_cache_bytes: 32 << 20,
            write_buffer_bytes: 32 << 20,
            bounds: StoreLimits::default(),
            clock: Arc::new(BootClock::default()),
            resets_clock: false,
        }
    }
}
