//! How much of each file of the log is still needed, and what a start would have to replay.
//!
//! Not here: removing garbage (`commit::log_compactor`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use baton_store::Error;
use bytes::{Buf, BufMut, Bytes};

use super::{LogPosition, SegmentPlace};
use crate::rows::{LOG_FILE_KEYS, corrupt_row, log_file_key, read_number};

/// Bytes of rows since the checkpoint that a start may have to apply to the index again: about a second.
const ROWS_BYTES_MAX: u64 = 32 << 20;
/// Bytes since the checkpoint that a start may have to read.
const REPLAY_BYTES_MAX: u64 = 1 << 30;
/// The log is compacted when this share of it is garbage,
const GARBAGE_PERCENT: u64 = 30;
/// and when the garbage is as much as this many files, so that a small store is left alone,
const GARBAGE_FILES_MIN: u64 = 2;
/// or this many bytes while the disk is nearly full.
const SCARCE_GARBAGE_MIN: u64 = 1 << 20;

/// A row about a file, which a commit writes: key and value.
pub type FileUsageRow = (Vec<u8>, Bytes);

/// How much of a file is still needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileUsage {
    pub bytes: u64,
    /// Bytes of all its segments.
    pub stored: u64,
    /// Bytes of the segments that were deleted or moved to another file.
    pub dropped: u64,
}

impl FileUsage {
    fn garbage(&self) -> u64 {
        self.bytes.saturating_sub(self.stored.saturating_sub(self.dropped))
    }
}

/// What a start would have to replay.
#[derive(Clone, Copy, Default)]
pub struct ReplayLength {
    pub bytes: u64,
    pub rows_bytes: u64,
}

impl ReplayLength {
    fn is_too_long(self) -> bool {
        self.rows_bytes >= ROWS_BYTES_MAX || self.bytes >= REPLAY_BYTES_MAX
    }
}

/// The usage of all files.
pub struct LogUsage {
    files: BTreeMap<u64, FileUsage>,
    /// The last file, which is the one that grows.
    last: u64,
    /// A file of this length is followed by another.
    file_bytes: u64,
    checkpoint: LogPosition,
    replay: ReplayLength,
    /// Whether anything became garbage since the last check for maintenance.
    more_garbage: bool,
    /// Whether the disk is nearly full, so that every bit of garbage counts.
    scarce: bool,
}

impl LogUsage {
    pub fn new(
        files: BTreeMap<u64, FileUsage>,
        last: u64,
        file_bytes: u64,
        checkpoint: LogPosition,
        replay: ReplayLength,
    ) -> Self {
        Self { files, last, file_bytes, checkpoint, replay, more_garbage: true, scarce: false }
    }

    /// Restores the numbers of a file that a start does not read, from its row. `false` if there is no such file.
    pub fn restore(&mut self, key: &[u8], mut row: &[u8]) -> Result<bool, Error> {
        let file = read_number(key.get(LOG_FILE_KEYS.len()..).unwrap_or_default())?;
        if row.len() != 16 {
            return Err(corrupt_row("log"));
        }
        let (stored, dropped) = (row.get_u64_le(), row.get_u64_le());
        let Some(usage) = self.files.get_mut(&file) else { return Ok(false) };
        usage.dropped = dropped;
        if file < self.checkpoint.file {
            usage.stored = stored;
        }
        Ok(true)
    }

    /// Counts segments that a commit frees. Returns the files that had them.
    pub fn drop_segments(&mut self, mut freed: Vec<SegmentPlace>) -> BTreeSet<u64> {
        freed.sort_unstable();
        freed.dedup();
        let mut changed = BTreeSet::new();
        for place in freed {
            if let Some(usage) = self.files.get_mut(&place.file) {
                usage.dropped += u64::from(place.length);
                changed.insert(place.file);
            }
        }
        changed
    }

    /// Begins another file.
    pub fn begin_file(&mut self, file: u64) {
        self.files.insert(file, FileUsage::default());
        self.last = file;
    }

    /// The rows about files that have changed.
    pub fn rows(&mut self, changed: &BTreeSet<u64>) -> Vec<FileUsageRow> {
        self.more_garbage |= !changed.is_empty();
        let encode = |(file, usage): (&u64, &FileUsage)| {
            let mut row = Vec::with_capacity(16);
            row.put_u64_le(usage.stored);
            row.put_u64_le(usage.dropped);
            (log_file_key(*file), row.into())
        };
        changed.iter().filter_map(|file| self.files.get_key_value(file)).map(encode).collect()
    }

    /// Counts a frame, after which the last file ends at `end`.
    pub fn add_frame(&mut self, bytes: u64, rows_bytes: u64, end: LogPosition) {
        self.replay.bytes += bytes;
        self.replay.rows_bytes += rows_bytes;
        let usage = self.files.entry(end.file).or_default();
        (usage.bytes, usage.stored) = (end.at, end.stored);
    }

    /// Whether a start would have to read more than so many bytes.
    pub fn replay_exceeds(&self, bytes: u64) -> bool {
        self.replay.bytes > bytes
    }

    /// Whether a checkpoint or compaction may be due. While `deletes_coming`, garbage can wait. Called after every commit,
    /// so it is cheap.
    pub fn needs_maintenance(&mut self, deletes_coming: bool) -> bool {
        self.replay.is_too_long() || !deletes_coming && std::mem::take(&mut self.more_garbage)
    }

    /// Whether a checkpoint is due: a replay would be long, or the checkpoint prevents the removal of much garbage.
    pub fn needs_checkpoint(&self) -> bool {
        let held = self.checkpoint.file..self.last;
        self.replay.is_too_long()
            || self.is_much_garbage() && self.worst_file(held, &BTreeSet::new()).is_some()
    }

    /// Sets the checkpoint, after it was stored.
    pub fn set_checkpoint(&mut self, position: LogPosition) {
        let after = self.files.range(position.file..).map(|(_, usage)| usage.bytes).sum::<u64>();
        // Rows that were committed during the checkpoint are few and count as none.
        self.replay = ReplayLength { bytes: after.saturating_sub(position.at), rows_bytes: 0 };
        self.checkpoint = position;
    }

    /// The file to compact next: the one with the largest share of garbage, if that is worth it or the whole file is
    /// garbage. Never one of `skipped`.
    pub fn file_to_compact(&self, skipped: &BTreeSet<u64>) -> Option<u64> {
        self.worst_file(0..self.checkpoint.file, skipped)
    }

    fn worst_file(&self, files: Range<u64>, skipped: &BTreeSet<u64>) -> Option<u64> {
        // In thousandths: complete files have about the same length.
        let share = |usage: &FileUsage| usage.garbage() * 1000 / usage.bytes.max(1);
        let others = self.files.range(files).filter(|(file, _)| !skipped.contains(file));
        let (file, usage) = others.max_by_key(|(_, usage)| share(usage))?;
        let all = usage.garbage() == usage.bytes;
        let much = share(usage) * 100 >= GARBAGE_PERCENT * 1000;
        (all || much && self.is_much_garbage()).then_some(*file)
    }

    /// Sets whether the disk is nearly full.
    pub fn set_scarce(&mut self, scarce: bool) {
        self.more_garbage |= scarce && !self.scarce;
        self.scarce = scarce;
    }

    /// Whether to begin another file: the last one is long enough, or it holds garbage that the full disk needs. Only a
    /// complete file can be compacted.
    pub fn should_rotate(&self, end: LogPosition) -> bool {
        let last = self.files.get(&self.last).copied().unwrap_or_default();
        let is_much =
            last.garbage() >= SCARCE_GARBAGE_MIN && last.garbage() * 100 >= last.bytes * GARBAGE_PERCENT;
        end.at >= self.file_bytes || self.scarce && is_much
    }

    /// Bytes that the last file can still take after `end`.
    pub fn bytes_left_in_file(&self, end: u64) -> usize {
        usize::try_from(self.file_bytes.saturating_sub(end)).unwrap_or(usize::MAX)
    }

    fn is_much_garbage(&self) -> bool {
        let complete = self.files.range(..self.last).map(|(_, usage)| usage);
        let add = |(bytes, garbage), usage: &FileUsage| (bytes + usage.bytes, garbage + usage.garbage());
        let (bytes, garbage) = complete.fold((0, 0), add);
        let least = if self.scarce { SCARCE_GARBAGE_MIN } else { GARBAGE_FILES_MIN * self.file_bytes };
        garbage >= least && garbage * 100 >= bytes * GARBAGE_PERCENT
    }

    /// Forgets a file that was removed. Returns its length.
    pub fn remove_file(&mut self, file: u64) -> u64 {
        self.files.remove(&file).map_or(0, |usage| usage.bytes)
    }
}
