//! A hint to the kernel to begin writing a file to disk, so that a small fsync takes less time.
//!
//! Only Linux gets the hint. Nothing depends on whether the kernel follows it.

use std::fs::File;

/// Starts the write-back of a part of a file, without waiting: Linux writes pages that are "not needed" at once.
#[cfg(target_os = "linux")]
pub fn start_write_back(file: &File, from: u64, bytes: u64) {
    use rustix::fs::{Advice, fadvise};
    if let Some(bytes) = std::num::NonZeroU64::new(bytes) {
        let _ = fadvise(file, from, Some(bytes), Advice::DontNeed);
    }
}

/// Elsewhere the write-back starts with the fsync.
#[cfg(not(target_os = "linux"))]
pub fn start_write_back(_: &File, _: u64, _: u64) {}
