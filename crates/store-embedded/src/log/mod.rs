//! The log: every commit, and every message, written once.
//!
//! A commit is a frame at the end of the log: the rows that it changes and the segments that it adds. One write and
//! one sync make it durable; then the engine is told of the rows and of where the segments are, without a sync. What
//! the engine loses in a crash the log tells again from the last checkpoint on, up to which the engine has everything in
//! sorted files. Messages are never copied into the engine: this is where they stay. When much of a file has been given
//! up, the rest is written again at the end of the log, and the file goes.
//!
//! Always: frames follow each other without a gap, numbered like the commits; a file is complete and synced before
//! the next is begun, so only the last can be torn, or have zeros after its end; what stands from the
//! checkpoint on is never removed; telling the engine again what it knows changes nothing. Not here: what is in a row
//! (`tables`), when to take space back (`reclaimer`).
//!
//! Start at [`Log::append`], then [`Log::open`].

mod checkpoint;
mod files;
mod frame;
mod high_water;
mod hints;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, IoSlice, Seek, SeekFrom, Write as _};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use baton_store::Error;
use bytes::{Buf, BufMut, Bytes};

pub use checkpoint::Position;
pub use files::{Files, Place};
pub use frame::Frame;
use high_water::HighWater;

use crate::directory;
use crate::remembered::Packed;
use crate::tables::{LOG_USAGE, SEGMENT_KEY_BYTES, corrupt, read_number};
use crate::writer::Write;

/// Slices that the system takes with one write.
const SLICES_MAX: usize = 1024;
/// Bytes of rows since the checkpoint that a start may have to tell the engine again: about a second.
const ROWS_BYTES_MAX: u64 = 32 << 20;
/// Bytes since the checkpoint that a start may have to read.
const UNCHECKED_BYTES_MAX: u64 = 1 << 30;
/// Zeros that are written ahead of the end, by a small commit that comes to where they ended. A sync of bytes that take
/// their place has nothing else to write: no new length and no new extent, which take two fifths of a small sync.
static ZEROS: [u8; 512 << 10] = [0; 512 << 10];
/// The largest commit that is small. With several times as many bytes, writing zeros first takes longer than it saves,
const SMALL_BYTES_MAX: u64 = 64 << 10;
/// and so it does when large ones take their place: zeros are written after so many small ones in a row.
const SMALL_BEFORE: u32 = 8;
/// Space is taken back when this share of the log is garbage,
const GARBAGE_PERCENT: u64 = 30;
/// and when it is at least so many files' worth, so that a small store is left alone.
const GARBAGE_FILES_MIN: u64 = 2;
/// or at least so many bytes while the disk is nearly full.
const SCARCE_GARBAGE_MIN: u64 = 1 << 20;

/// The segments that a commit adds, each with its key before it.
#[derive(Default)]
pub struct Segments {
    /// Their bytes.
    pub pieces: Vec<Bytes>,
    /// Where each stands in them.
    pub index: Vec<Indexed>,
    pub bytes: u64,
}

/// A segment's key, and where it stands in the bytes of a commit's segments.
pub struct Indexed {
    pub key: [u8; SEGMENT_KEY_BYTES],
    pub at: u64,
    pub length: u32,
}

impl Segments {
    /// Adds a segment with its key before it.
    pub fn add(&mut self, key: [u8; SEGMENT_KEY_BYTES], entry: Bytes) {
        let length = u32::try_from(entry.len()).unwrap_or(u32::MAX);
        self.index.push(Indexed { key, at: self.bytes, length });
        self.bytes += u64::from(length);
        self.pieces.push(entry);
    }
}

/// How much of a file is still needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    bytes: u64,
    /// Bytes of segments, and of those that were given up or stand elsewhere by now.
    stored: u64,
    dropped: u64,
}

impl Usage {
    fn garbage(&self) -> u64 {
        self.bytes.saturating_sub(self.stored.saturating_sub(self.dropped))
    }
}

/// A row about a file, to be written with a commit: its key and what it says.
pub type UsageRow = (Vec<u8>, Bytes);

/// The log, for whoever commits.
pub struct Log {
    files: Arc<Files>,
    file: File,
    /// Up to where it holds zeros after the end of the log.
    zeros_end: u64,
    /// Small commits since the last that was not.
    small_commits: u32,
    /// A file of this length is followed by another.
    file_bytes: u64,
    end: Position,
    /// The last commit that is known to be on disk, and where in the file it ends.
    synced: u64,
    synced_at: u64,
    high_water: HighWater,
    /// Whether a frame was not written whole: what there is of it must stay the end of the log.
    torn: bool,
    usage: BTreeMap<u64, Usage>,
    checkpoint: Position,
    since_checkpoint: Unchecked,
    /// Whether anything has become garbage since somebody last looked.
    more_garbage: bool,
    /// Whether the disk is nearly full, so that every bit of garbage counts.
    scarce: bool,
}

/// What a start would have to do.
#[derive(Clone, Copy, Default)]
struct Unchecked {
    bytes: u64,
    rows_bytes: u64,
}

impl Unchecked {
    fn is_much(self) -> bool {
        self.rows_bytes >= ROWS_BYTES_MAX || self.bytes >= UNCHECKED_BYTES_MAX
    }
}

impl Log {
    /// Opens the log below a data directory, in which the first `known` commits must be, and tells `apply` of every frame
    /// since the checkpoint, with the file and the place in it where it begins.
    pub fn open(
        directory: &Path,
        file_bytes: u64,
        known: u64,
        mut apply: impl FnMut(&Frame, u64, u64) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let checkpoint = Position::load(directory)?;
        let logs = &directory.join("log");
        let unusable = |e: io::Error| Error::Unusable(format!("cannot use {}: {e}", logs.display()));
        let high_water = HighWater::open(directory).map_err(unusable)?;
        directory::create(logs).map_err(unusable)?;
        let files = Files::new(logs);
        let mut listed = files.list().map_err(unusable)?;
        if listed.is_empty() && checkpoint == Position::START {
            files.create(checkpoint.file).map_err(unusable)?;
            listed.push((checkpoint.file, 0));
        }
        let usage = |bytes: u64| Usage { bytes, ..Usage::default() };
        let mut usage: BTreeMap<_, _> = listed.iter().map(|(file, bytes)| (*file, usage(*bytes))).collect();
        let last = usage.keys().last().copied().unwrap_or_default().max(checkpoint.file);
        let (mut end, mut since_checkpoint) = (checkpoint, Unchecked::default());
        let mut tail = Tail::default();
        for number in checkpoint.file..=last {
            if number > checkpoint.file {
                end = end.next_file();
            }
            let known = usage.get_mut(&number).ok_or_else(|| {
                let what = format!("file {number} of the log is missing");
                Error::Corrupt(format!("{what}; restore the directory from a backup"))
            })?;
            let bytes = files.read(number).map_err(unusable)?;
            let from = usize::try_from(end.at).ok().filter(|from| *from <= bytes.len());
            let mut rest = bytes.slice(from.ok_or_else(|| damaged(number))?..);
            tail = Tail { bytes: bytes.clone(), from: end.at, frames: VecDeque::new() };
            while let Some(frame) = next(&rest, end, number == last) {
                apply(&frame, end.file, end.at)?;
                rest.advance(usize::try_from(frame.len()).unwrap_or(usize::MAX));
                since_checkpoint.bytes += frame.len();
                since_checkpoint.rows_bytes += frame.rows_bytes();
                end.at += frame.len();
                end.stored += frame.entries_bytes();
                end.commits = frame.number;
                tail.add(&frame, end.at);
            }
            // What was never finished is the end. A commit that was synced is known to those after it.
            let was_synced = || Frame::all_in(&rest).any(|later| later.synced > end.commits);
            let torn = rest.iter().any(|byte| *byte != 0);
            if !rest.is_empty() && number < last || torn && was_synced() {
                return Err(damaged(number));
            }
            if torn {
                tracing::warn!(bytes = rest.len(), "cut off a commit that was never finished");
            }
            (known.bytes, known.stored) = (end.at, end.stored);
        }
        // Before anything is cut off.
        check_end(end, known.max(high_water.commits()))?;
        let file = files.reopen(end.file, end.at).map_err(unusable)?;
        tail.write_again(&file, end.at).map_err(unusable)?;
        files.bytes.store(usage.values().map(|usage| usage.bytes).sum(), Ordering::Relaxed);
        Ok(Self {
            files: Arc::new(files),
            file,
            zeros_end: end.at,
            small_commits: 0,
            file_bytes,
            end,
            synced: 0,
            synced_at: end.at,
            high_water,
            torn: false,
            usage,
            checkpoint,
            since_checkpoint,
            more_garbage: true,
            scarce: false,
        })
    }

    /// Tells what a row says about a file, which counts where the file is not read at a start. `false` if there is
    /// no such file.
    pub fn restore_usage(&mut self, key: &[u8], mut row: &[u8]) -> Result<bool, Error> {
        let file = read_number(key.get(LOG_USAGE.len()..).unwrap_or_default())?;
        if row.len() != 16 {
            return Err(corrupt("log"));
        }
        let (stored, dropped) = (row.get_u64_le(), row.get_u64_le());
        let Some(usage) = self.usage.get_mut(&file) else { return Ok(false) };
        usage.dropped = dropped;
        if file < self.checkpoint.file {
            usage.stored = stored;
        }
        Ok(true)
    }

    /// For whoever reads in it.
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// Where the log ends.
    pub fn end(&self) -> Position {
        self.end
    }

    /// Makes ready for a commit that gives up some segments: begins another file if this one is long enough. Gives the
    /// rows about files that the commit is to write.
    pub fn make_ready(&mut self, mut given_up: Vec<Place>) -> io::Result<Vec<UsageRow>> {
        given_up.sort_unstable();
        given_up.dedup();
        let mut changed = BTreeSet::new();
        for place in given_up {
            if let Some(usage) = self.usage.get_mut(&place.file) {
                usage.dropped += u64::from(place.length);
                changed.insert(place.file);
            }
        }
        if self.end.at >= self.file_bytes || self.scarce && self.is_worth_ending() {
            self.end_file()?;
            changed.insert(self.end.file);
            let next = self.end.next_file();
            self.file = self.files.create(next.file)?;
            self.usage.insert(next.file, Usage::default());
            (self.end, self.zeros_end, self.synced_at) = (next, 0, 0);
        }
        self.more_garbage |= !changed.is_empty();
        let row = |(file, usage): (&u64, &Usage)| {
            let mut row = Vec::with_capacity(16);
            row.put_u64_le(usage.stored);
            row.put_u64_le(usage.dropped);
            (usage_key(*file), row.into())
        };
        Ok(changed.iter().filter_map(|file| self.usage.get_key_value(file)).map(row).collect())
    }

    /// Appends a commit, which is not on disk before [`sync`](Self::sync); tells where its segments begin.
    pub fn append(
        &mut self,
        number: u64,
        writes: &[Write],
        ids: &[Packed],
        segments: &Segments,
    ) -> io::Result<Place> {
        self.check_whole()?;
        let head = frame::encode(number, self.synced, writes, ids, segments);
        let mut slices = Vec::with_capacity(1 + segments.pieces.len());
        slices.push(IoSlice::new(&head));
        slices.extend(segments.pieces.iter().map(|piece| IoSlice::new(piece)));
        let (rows_bytes, bytes) = (head.len() as u64, head.len() as u64 + segments.bytes);
        self.torn = true;
        write_all(&self.file, &mut slices)?;
        self.write_zeros(bytes)?;
        self.torn = false;
        let first = Place { file: self.end.file, at: self.end.at + rows_bytes, length: 0 };
        self.end.at += bytes;
        self.end.stored += segments.bytes;
        self.end.commits = number;
        self.since_checkpoint.bytes += bytes;
        self.since_checkpoint.rows_bytes += rows_bytes;
        self.files.bytes.fetch_add(bytes, Ordering::Relaxed);
        let usage = self.usage.entry(self.end.file).or_default();
        (usage.bytes, usage.stored) = (self.end.at, self.end.stored);
        Ok(first)
    }

    /// Writes zeros after a commit of so many bytes, if it has come to where they ended and all were small of late.
    fn write_zeros(&mut self, bytes: u64) -> io::Result<()> {
        self.small_commits = if bytes <= SMALL_BYTES_MAX { self.small_commits.saturating_add(1) } else { 0 };
        let end = self.end.at + bytes;
        if end <= self.zeros_end {
            return Ok(());
        }
        self.zeros_end = end;
        let room = usize::try_from(self.file_bytes.saturating_sub(end)).unwrap_or(usize::MAX);
        let zeros = &ZEROS[..room.min(ZEROS.len())];
        if self.small_commits >= SMALL_BEFORE && !zeros.is_empty() {
            // Nothing rests on them: where there is no room for them, some may have been written.
            if write_all(&self.file, &mut [IoSlice::new(zeros)]).is_ok() {
                self.zeros_end += zeros.len() as u64;
            }
            (&self.file).seek(SeekFrom::Start(end))?;
        }
        Ok(())
    }

    /// Refuses to go on after a commit that was not written or synced whole: a later sync may succeed without it.
    fn check_whole(&self) -> io::Result<()> {
        match self.torn {
            true => Err(io::Error::other("an earlier commit was not written whole")),
            false => Ok(()),
        }
    }

    /// Everything that was appended is on disk after this, and the file ends there.
    pub fn end_file(&mut self) -> io::Result<()> {
        self.check_whole()?;
        self.torn = true;
        self.file.set_len(self.end.at)?;
        self.zeros_end = self.end.at;
        self.file.sync_all()?;
        self.note_synced();
        self.high_water.raise(self.synced);
        Ok(())
    }

    /// Sends what was appended on its way to disk, without waiting: whoever has something else to do before it calls
    /// [`sync`](Self::sync) waits less there.
    pub fn start_sync(&self) {
        hints::write_out(&self.file, self.synced_at, self.end.at.saturating_sub(self.synced_at));
    }

    /// Everything that was appended is on disk after this.
    pub fn sync(&mut self) -> io::Result<()> {
        if self.synced < self.end.commits {
            self.check_whole()?;
            self.torn = true;
            self.file.sync_data()?;
            self.note_synced();
        }
        Ok(())
    }

    /// Raises the high-water mark from time to time. Called before an append.
    pub fn raise_high_water(&mut self, now: Duration) {
        self.high_water.raise_at(now, self.synced);
    }

    fn note_synced(&mut self) {
        (self.synced, self.synced_at, self.torn) = (self.end.commits, self.end.at, false);
    }

    /// Whether somebody should look what there is to do; garbage is not looked at while more is `coming`. Asked after
    /// every commit, so the answer is cheap.
    pub fn wants_care(&mut self, coming: bool) -> bool {
        self.since_checkpoint.is_much() || !coming && std::mem::take(&mut self.more_garbage)
    }

    /// Whether it is time for a checkpoint: for much is not covered by the last one, or it holds much garbage.
    pub fn wants_checkpoint(&self) -> bool {
        let held = self.checkpoint.file..self.end.file;
        self.since_checkpoint.is_much()
            || self.is_much_garbage() && self.worst(held, &BTreeSet::new()).is_some()
    }

    /// Whether a start would have to read more than so many bytes.
    pub fn is_unchecked(&self, bytes: u64) -> bool {
        self.since_checkpoint.bytes > bytes
    }

    /// A checkpoint has been stored.
    pub fn note_checkpoint(&mut self, position: Position) {
        let after = self.usage.range(position.file..).map(|(_, usage)| usage.bytes).sum::<u64>();
        // Rows that came while it was made are few, and are counted as if there were none.
        self.since_checkpoint = Unchecked { bytes: after.saturating_sub(position.at), rows_bytes: 0 };
        self.checkpoint = position;
    }

    /// The file of which the most is garbage, if that is worth while or all of it is, and unless it was looked at
    /// already.
    pub fn garbage_file(&self, looked_at: &BTreeSet<u64>) -> Option<u64> {
        self.worst(0..self.checkpoint.file, looked_at)
    }

    fn worst(&self, files: Range<u64>, but: &BTreeSet<u64>) -> Option<u64> {
        // In thousandths, for a complete file is about as long as any other.
        let share = |usage: &Usage| usage.garbage() * 1000 / usage.bytes.max(1);
        let others = self.usage.range(files).filter(|(file, _)| !but.contains(file));
        let (file, usage) = others.max_by_key(|(_, usage)| share(usage))?;
        let all = usage.garbage() == usage.bytes;
        let much = share(usage) * 100 >= GARBAGE_PERCENT * 1000;
        (all || much && self.is_much_garbage()).then_some(*file)
    }

    /// Notes whether the disk is nearly full.
    pub fn set_scarce(&mut self, scarce: bool) {
        self.more_garbage |= scarce && !self.scarce;
        self.scarce = scarce;
    }

    /// Whether much of the last file is garbage, which only goes with a file that has ended.
    fn is_worth_ending(&self) -> bool {
        let last = self.usage.get(&self.end.file).copied().unwrap_or_default();
        last.garbage() >= SCARCE_GARBAGE_MIN && last.garbage() * 100 >= last.bytes * GARBAGE_PERCENT
    }

    fn is_much_garbage(&self) -> bool {
        let complete = self.usage.range(..self.end.file).map(|(_, usage)| usage);
        let add = |(bytes, garbage), usage: &Usage| (bytes + usage.bytes, garbage + usage.garbage());
        let (bytes, garbage) = complete.fold((0, 0), add);
        let least = if self.scarce { SCARCE_GARBAGE_MIN } else { GARBAGE_FILES_MIN * self.file_bytes };
        garbage >= least && garbage * 100 >= bytes * GARBAGE_PERCENT
    }

    /// A file has been removed.
    pub fn note_removed(&mut self, file: u64) {
        let bytes = self.usage.remove(&file).map_or(0, |usage| usage.bytes);
        self.files.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The last file, from after the commit that is known to have been synced on.
#[derive(Default)]
struct Tail {
    bytes: Bytes,
    from: u64,
    /// The commits after that, and where they end.
    frames: VecDeque<(u64, u64)>,
}

impl Tail {
    fn add(&mut self, frame: &Frame, end: u64) {
        while let Some((_, end)) = self.frames.pop_front_if(|(number, _)| *number <= frame.synced) {
            self.from = end;
        }
        self.frames.push_back((frame.number, end));
    }

    /// Writes it again, so that the next sync covers it. After a sync that failed, the system's cache may show what is not
    /// on disk and count it as written: a sync without this would do nothing, and a power cut take back what was read.
    fn write_again(&self, file: &File, end: u64) -> io::Result<()> {
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        match self.bytes.get(place(self.from)..place(end)) {
            Some(bytes) if !bytes.is_empty() => file.write_all_at(bytes, self.from),
            _ => Ok(()),
        }
    }
}

/// Refuses a log that ends before a commit that was synced.
fn check_end(end: Position, known: u64) -> Result<(), Error> {
    match known.saturating_sub(end.commits) {
        0 => Ok(()),
        missing => Err(Error::Corrupt(format!(
            "the last {missing} of {known} commits are missing in the log; restore the directory from a backup"
        ))),
    }
}

fn damaged(file: u64) -> Error {
    Error::Corrupt(format!("file {file} of the log is damaged; restore the directory from a backup"))
}

/// The key of the row about a file of the log.
pub fn usage_key(file: u64) -> Vec<u8> {
    [LOG_USAGE, &file.to_be_bytes()].concat()
}

/// The frame that follows; nothing at the end, or where one is torn.
fn next(rest: &Bytes, end: Position, check_segments: bool) -> Option<Frame> {
    let frame = Frame::read(rest).filter(|frame| frame.number == end.commits + 1)?;
    (!check_segments || frame.entries.iter().all(|entry| entry.segment().is_some())).then_some(frame)
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
    use super::*;

    #[test]
    fn after_a_sync_that_failed_nothing_is_taken_for_synced() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::open(directory.path(), 32 << 20, 0, |_, _, _| Ok(())).unwrap();
        log.append(1, &[], &[], &Segments::default()).unwrap();
        log.sync().unwrap();
        // It takes what is written and cannot be synced.
        let null = File::options().write(true).open("/dev/null").unwrap();
        let file = std::mem::replace(&mut log.file, null);
        log.append(2, &[], &[], &Segments::default()).unwrap();
        log.sync().unwrap_err();
        log.file = file;
        log.sync().unwrap_err();
        log.end_file().unwrap_err();
        log.append(3, &[], &[], &Segments::default()).unwrap_err();
        assert_eq!(log.synced, 1);
    }

    #[test]
    fn a_start_writes_again_what_may_not_have_been_synced() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::open(directory.path(), 32 << 20, 0, |_, _, _| Ok(())).unwrap();
        let mut ends = Vec::new();
        for number in 1..=5 {
            log.append(number, &[], &[], &Segments::default()).unwrap();
            ends.push(log.end().at);
            if number <= 3 {
                log.sync().unwrap();
            }
        }
        drop(log);
        let path = directory.path().join("log/0000000001.log");
        let bytes = Bytes::from(std::fs::read(&path).unwrap());
        let (mut rest, mut tail) = (bytes.clone(), Tail { bytes: bytes.clone(), ..Tail::default() });
        for end in &ends {
            let frame = Frame::read(&rest).unwrap();
            rest.advance(usize::try_from(frame.len()).unwrap());
            tail.add(&frame, *end);
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
        // Makes a commit and tells how much longer the file is than the log.
        let mut commit = |bytes: usize| {
            let mut segments = Segments::default();
            segments.add([0; SEGMENT_KEY_BYTES], vec![1; bytes].into());
            log.append(log.end().commits + 1, &[], &[], &segments).unwrap();
            log.file.metadata().unwrap().len() - log.end().at
        };
        for large in [200 << 10, ZEROS.len()] {
            for _ in 1..SMALL_BEFORE {
                assert_eq!(commit(100), 0);
            }
            let ahead = commit(100);
            assert_eq!(ahead, ZEROS.len() as u64);
            assert!(commit(100) < ahead, "a small commit takes their place");
            while commit(large) > 0 {}
        }
    }
}
