//! Reading the log at a start: every frame since the checkpoint, and where the log ends.
//!
//! Always: a commit that was never finished is cut off; damage anywhere else is reported. A commit counts as synced if a
//! later frame or the high-water mark says so.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use baton_store::Error;
use bytes::{Buf, Bytes};

use super::usage::{FileUsage, ReplayLength};
use super::{Frame, LogFiles, LogPosition};

/// What the frames since the checkpoint say.
pub struct ScannedLog {
    pub end: LogPosition,
    pub files: BTreeMap<u64, FileUsage>,
    pub replay: ReplayLength,
    pub unsynced: UnsyncedTail,
}

/// Reads all frames since the checkpoint. Calls `apply` for each with its file and the position of the frame there.
pub fn scan_log(
    files: &LogFiles,
    checkpoint: LogPosition,
    unusable: impl Fn(io::Error) -> Error,
    mut apply: impl FnMut(&Frame, u64, u64) -> Result<(), Error>,
) -> Result<ScannedLog, Error> {
    let mut listed = files.list().map_err(&unusable)?;
    if listed.is_empty() && checkpoint == LogPosition::START {
        files.create(checkpoint.file).map_err(&unusable)?;
        listed.push((checkpoint.file, 0));
    }
    let usage = |bytes: u64| FileUsage { bytes, ..FileUsage::default() };
    let mut usages: BTreeMap<_, _> = listed.iter().map(|(file, bytes)| (*file, usage(*bytes))).collect();
    let last = usages.keys().last().copied().unwrap_or_default().max(checkpoint.file);
    let (mut end, mut replay) = (checkpoint, ReplayLength::default());
    let mut unsynced = UnsyncedTail::default();
    for number in checkpoint.file..=last {
        if number > checkpoint.file {
            end = end.next_file();
        }
        let known = usages.get_mut(&number).ok_or_else(|| {
            let what = format!("file {number} of the log is missing");
            Error::Corrupt(format!("{what}; restore the directory from a backup"))
        })?;
        let bytes = files.read_file(number).map_err(&unusable)?;
        let from = usize::try_from(end.at).ok().filter(|from| *from <= bytes.len());
        let mut rest = bytes.slice(from.ok_or_else(|| damaged(number))?..);
        unsynced = UnsyncedTail { bytes: bytes.clone(), from: end.at, frames: VecDeque::new() };
        while let Some(frame) = next_frame(&rest, end, number == last) {
            apply(&frame, end.file, end.at)?;
            rest.advance(usize::try_from(frame.len()).unwrap_or(usize::MAX));
            replay.bytes += frame.len();
            replay.rows_bytes += frame.rows_bytes();
            end.at += frame.len();
            end.stored += frame.segments_bytes();
            end.commits = frame.number;
            unsynced.add_frame(&frame, end.at);
        }
        // What follows was never finished, unless a later frame says that this commit was synced.
        let was_synced = || Frame::find_all(&rest).any(|later| later.synced > end.commits);
        let torn = rest.iter().any(|byte| *byte != 0);
        if !rest.is_empty() && number < last || torn && was_synced() {
            return Err(damaged(number));
        }
        if torn {
            tracing::warn!(bytes = rest.len(), "cut off a commit that was never finished");
        }
        (known.bytes, known.stored) = (end.at, end.stored);
    }
    Ok(ScannedLog { end, files: usages, replay, unsynced })
}

/// Refuses a log that ends before a commit that was synced.
pub fn check_end(end: LogPosition, known: u64) -> Result<(), Error> {
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

/// The frame that follows; `None` at the end of the log or at a torn frame.
fn next_frame(rest: &Bytes, end: LogPosition, check_segments: bool) -> Option<Frame> {
    let frame = Frame::decode(rest).filter(|frame| frame.number == end.commits + 1)?;
    (!check_segments || frame.segments.iter().all(|stored| stored.decode().is_some())).then_some(frame)
}

/// The part of the last file that may not have been synced.
#[derive(Default)]
pub struct UnsyncedTail {
    pub bytes: Bytes,
    /// Where the last commit ends that is known to be synced.
    pub from: u64,
    /// The commits after it, and where each ends.
    pub frames: VecDeque<(u64, u64)>,
}

impl UnsyncedTail {
    pub fn add_frame(&mut self, frame: &Frame, end: u64) {
        while let Some((_, end)) = self.frames.pop_front_if(|(number, _)| *number <= frame.synced) {
            self.from = end;
        }
        self.frames.push_back((frame.number, end));
    }

    /// Writes the part again, so that the next fsync covers it. After a failed fsync the page cache may show bytes that
    /// are not on disk and count them as clean: an fsync without this would do nothing, and a power cut would lose what
    /// this start has read.
    pub fn write_again(&self, file: &File, end: u64) -> io::Result<()> {
        let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        match self.bytes.get(index(self.from)..index(end)) {
            Some(bytes) if !bytes.is_empty() => file.write_all_at(bytes, self.from),
            _ => Ok(()),
        }
    }
}
