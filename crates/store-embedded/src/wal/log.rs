//! The log as the thread that commits sees it: append, fsync, and begin another file.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IoSlice, Seek, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use baton_store::Error;

use super::frame::encode_frame;
use super::high_water::HighWater;
use super::scan::{ScannedLog, check_end, scan_log};
use super::usage::{FileUsageRow, LogUsage};
use super::write_back::start_write_back;
use super::{BatchSegments, Frame, LogFiles, LogPosition, RowRef, SegmentPlace};
use crate::disk::directory;

/// Slices that the kernel takes with one write.
const SLICES_MAX: usize = 1024;
/// Zeros that a small commit writes after the end of the log when it reaches the end of the last zeros. An fsync of bytes
/// that replace zeros writes neither a new length nor a new extent, which take two fifths of a small fsync.
static ZEROS: [u8; 512 << 10] = [0; 512 << 10];
/// The largest commit that counts as small. With several times as many bytes, writing zeros first costs more than it saves.
const SMALL_BYTES_MAX: u64 = 64 << 10;
/// Zeros are written after this many small commits in a row: large commits that replace zeros gain nothing.
const SMALL_BEFORE: u32 = 8;

/// The open log. One thread at a time commits to it.
pub struct Log {
    files: Arc<LogFiles>,
    file: File,
    /// Where the zeros after the end of the log end.
    zeros_end: u64,
    /// Small commits since the last large one.
    small_commits: u32,
    end: LogPosition,
    /// The last commit that is known to be on disk, and where in the file it ends.
    synced: u64,
    synced_at: u64,
    high_water: HighWater,
    /// Whether a write or fsync failed. Then the torn frame must stay the end of the log.
    torn: bool,
    usage: LogUsage,
}

impl Log {
    /// Opens the log of a data directory, which must have the first `known` commits. Calls `apply` for every frame since
    /// the checkpoint, with the file and the position of the frame there.
    pub fn open(
        directory: &Path,
        file_bytes: u64,
        known: u64,
        apply: impl FnMut(&Frame, u64, u64) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let checkpoint = LogPosition::load(directory)?;
        let logs = &directory.join("log");
        let unusable = |e: io::Error| Error::Unusable(format!("cannot use {}: {e}", logs.display()));
        let high_water = HighWater::open(directory).map_err(unusable)?;
        directory::create_private(logs).map_err(unusable)?;
        let log_files = LogFiles::new(logs);
        let ScannedLog { end, files, replay, unsynced } = scan_log(&log_files, checkpoint, unusable, apply)?;
        // Before anything is cut off.
        check_end(end, known.max(high_water.commits()))?;
        let file = log_files.reopen(end.file, end.at).map_err(unusable)?;
        unsynced.write_again(&file, end.at).map_err(unusable)?;
        log_files.bytes.store(files.values().map(|usage| usage.bytes).sum(), Ordering::Relaxed);
        Ok(Self {
            files: Arc::new(log_files),
            file,
            zeros_end: end.at,
            small_commits: 0,
            end,
            synced: 0,
            synced_at: end.at,
            high_water,
            torn: false,
            usage: LogUsage::new(files, end.file, file_bytes, checkpoint, replay),
        })
    }

    pub fn files(&self) -> &Arc<LogFiles> {
        &self.files
    }

    /// The end of the log.
    pub fn end(&self) -> LogPosition {
        self.end
    }

    /// How much of each file is needed.
    pub fn usage(&self) -> &LogUsage {
        &self.usage
    }

    pub fn usage_mut(&mut self) -> &mut LogUsage {
        &mut self.usage
    }

    /// Prepares for a commit that frees some segments, and begins another file if the last is long enough. Returns the
    /// rows about files that the commit must write.
    pub fn prepare_commit(&mut self, freed: Vec<SegmentPlace>) -> io::Result<Vec<FileUsageRow>> {
        let mut changed: BTreeSet<u64> = self.usage.drop_segments(freed);
        if self.usage.should_rotate(self.end) {
            self.finish_file()?;
            changed.insert(self.end.file);
            let next = self.end.next_file();
            self.file = self.files.create(next.file)?;
            self.usage.begin_file(next.file);
            (self.end, self.zeros_end, self.synced_at) = (next, 0, 0);
        }
        Ok(self.usage.rows(&changed))
    }

    /// Appends a commit. It is on disk after the next [`sync`](Self::sync). Returns where its segments begin.
    pub fn append(
        &mut self,
        number: u64,
        rows: &[RowRef<'_>],
        segments: &BatchSegments,
    ) -> io::Result<SegmentPlace> {
        self.check_intact()?;
        let head = encode_frame(number, self.synced, rows, segments);
        let mut slices = Vec::with_capacity(1 + segments.pieces.len());
        slices.push(IoSlice::new(&head));
        slices.extend(segments.pieces.iter().map(|piece| IoSlice::new(piece)));
        let (rows_bytes, bytes) = (head.len() as u64, head.len() as u64 + segments.bytes);
        self.torn = true;
        write_all(&self.file, &mut slices)?;
        self.write_zeros_ahead(bytes)?;
        self.torn = false;
        let first = SegmentPlace { file: self.end.file, at: self.end.at + rows_bytes, length: 0 };
        self.end.at += bytes;
        self.end.stored += segments.bytes;
        self.end.commits = number;
        self.usage.add_frame(bytes, rows_bytes, self.end);
        self.files.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(first)
    }

    /// Writes zeros after a commit of `bytes`, if it reaches the end of the last zeros and the last commits were small.
    fn write_zeros_ahead(&mut self, bytes: u64) -> io::Result<()> {
        self.small_commits = if bytes <= SMALL_BYTES_MAX { self.small_commits.saturating_add(1) } else { 0 };
        let end = self.end.at + bytes;
        if end <= self.zeros_end {
            return Ok(());
        }
        self.zeros_end = end;
        let room = self.usage.bytes_left_in_file(end);
        let zeros = &ZEROS[..room.min(ZEROS.len())];
        if self.small_commits >= SMALL_BEFORE && !zeros.is_empty() {
            // A failure, for example on a full disk, leaves some zeros and does no harm.
            if write_all(&self.file, &mut [IoSlice::new(zeros)]).is_ok() {
                self.zeros_end += zeros.len() as u64;
            }
            (&self.file).seek(SeekFrom::Start(end))?;
        }
        Ok(())
    }

    /// Refuses to go on after a write or fsync that failed: a later fsync may succeed without those bytes.
    fn check_intact(&self) -> io::Result<()> {
        match self.torn {
            true => Err(io::Error::other("an earlier commit was not written whole")),
            false => Ok(()),
        }
    }

    /// Syncs everything that was appended and cuts the file off at the end of the log.
    pub fn finish_file(&mut self) -> io::Result<()> {
        self.check_intact()?;
        self.torn = true;
        self.file.set_len(self.end.at)?;
        self.zeros_end = self.end.at;
        self.file.sync_all()?;
        self.mark_synced();
        self.high_water.raise(self.synced);
        Ok(())
    }

    /// Starts the write-back of what was appended, without waiting. A [`sync`](Self::sync) some time later waits less.
    pub fn start_sync(&self) {
        start_write_back(&self.file, self.synced_at, self.end.at.saturating_sub(self.synced_at));
    }

    /// Syncs everything that was appended.
    pub fn sync(&mut self) -> io::Result<()> {
        if self.synced < self.end.commits {
            self.check_intact()?;
            self.torn = true;
            self.file.sync_data()?;
            self.mark_synced();
        }
        Ok(())
    }

    /// Raises the high-water mark from time to time. Called before an append.
    pub fn raise_high_water(&mut self, now: Duration) {
        self.high_water.raise_at(now, self.synced);
    }

    fn mark_synced(&mut self) {
        (self.synced, self.synced_at, self.torn) = (self.end.commits, self.end.at, false);
    }

    /// Forgets a file that was removed.
    pub fn forget_file(&mut self, file: u64) {
        let bytes = self.usage.remove_file(file);
        self.files.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn write_all(mut file: &File, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !slices.is_empty() {
        let some = slices.len().min(SLICES_MAX);
        match file.write_vectored(&slices[..some]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::{Buf, Bytes};

    use super::super::scan::UnsyncedTail;
    use super::*;
    use crate::rows::SEGMENT_KEY_BYTES;

    #[test]
    fn after_a_failed_sync_no_commit_counts_as_synced() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::open(directory.path(), 32 << 20, 0, |_, _, _| Ok(())).unwrap();
        log.append(1, &[], &BatchSegments::default()).unwrap();
        log.sync().unwrap();
        // A file that accepts writes and cannot be synced.
        let null = File::options().write(true).open("/dev/null").unwrap();
        let file = std::mem::replace(&mut log.file, null);
        log.append(2, &[], &BatchSegments::default()).unwrap();
        log.sync().unwrap_err();
        log.file = file;
        log.sync().unwrap_err();
        log.finish_file().unwrap_err();
        log.append(3, &[], &BatchSegments::default()).unwrap_err();
        assert_eq!(log.synced, 1);
    }

    #[test]
    fn a_start_writes_commits_again_that_may_not_have_been_synced() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::open(directory.path(), 32 << 20, 0, |_, _, _| Ok(())).unwrap();
        let mut ends = Vec::new();
        for number in 1..=5 {
            log.append(number, &[], &BatchSegments::default()).unwrap();
            ends.push(log.end().at);
            if number <= 3 {
                log.sync().unwrap();
            }
        }
        drop(log);
        let path = directory.path().join("log/0000000001.log");
        let bytes = Bytes::from(std::fs::read(&path).unwrap());
        let (mut rest, mut tail) =
            (bytes.clone(), UnsyncedTail { bytes: bytes.clone(), ..UnsyncedTail::default() });
        for end in &ends {
            let frame = Frame::decode(&rest).unwrap();
            rest.advance(usize::try_from(frame.len()).unwrap());
            tail.add_frame(&frame, *end);
        }
        assert_eq!(tail.from, ends[2], "three commits are known to be synced");
        let old = std::time::SystemTime::UNIX_EPOCH;
        File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
        let log = Log::open(directory.path(), 32 << 20, 0, |_, _, _| Ok(())).unwrap();
        assert_eq!(log.end().commits, 5);
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert!(std::fs::metadata(&path).unwrap().modified().unwrap() > old);
    }

    #[test]
    fn zeros_are_written_ahead_of_small_commits_and_not_of_large_ones() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::open(directory.path(), 32 << 20, 0, |_, _, _| Ok(())).unwrap();
        // Makes a commit and returns how much longer the file is than the log.
        let mut commit = |bytes: usize| {
            let mut segments = BatchSegments::default();
            segments.add([0; SEGMENT_KEY_BYTES], vec![1; bytes].into());
            log.append(log.end().commits + 1, &[], &segments).unwrap();
            log.file.metadata().unwrap().len() - log.end().at
        };
        for large in [200 << 10, ZEROS.len()] {
            for _ in 1..SMALL_BEFORE {
                assert_eq!(commit(100), 0);
            }
            let ahead = commit(100);
            assert_eq!(ahead, ZEROS.len() as u64);
            assert!(commit(100) < ahead, "a small commit replaces zeros");
            while commit(large) > 0 {}
        }
    }
}
