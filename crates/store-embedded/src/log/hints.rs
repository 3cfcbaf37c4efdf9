//! What the system is told so that small syncs take less time. Nothing rests on whether it listens, or is asked at all:
//! only Linux is, for others mean something else by the same words.

use std::fs::File;

/// Begins to write `bytes` of a file to disk, without waiting. What is "not needed any more" is written at once.
#[cfg(target_os = "linux")]
pub fn write_out(file: &File, from: u64, bytes: u64) {
    use rustix::fs::{Advice, fadvise};
    if let Some(bytes) = std::num::NonZeroU64::new(bytes) {
        let _ = fadvise(file, from, Some(bytes), Advice::DontNeed);
    }
}

/// Elsewhere a sync begins where it is waited for.
#[cfg(not(target_os = "linux"))]
pub fn write_out(_: &File, _: u64, _: u64) {}
