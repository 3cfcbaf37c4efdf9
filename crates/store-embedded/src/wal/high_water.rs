//! The high-water mark: a commit up to which the log was synced, kept outside the log.
//!
//! If the end of the log is lost, so are the frames that would show it; the mark survives. It lags: the log writes it at
//! most every [`WRITE_EVERY`], before it appends the next commit, and starts the write-back without waiting. So it costs a
//! push nothing. Always: it names only commits that were synced before. Not here: the comparison with the log
//! (`Log::open`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use bytes::BufMut;
use xxhash_rust::xxh3::xxh3_64;

use super::write_back::start_write_back;

/// Sorts before `log`: a copy in the order of names copies the mark first, so the copied log is never behind the mark.
const NAME: &str = "high-water";
const BYTES: usize = 16;
/// The shortest time between two writes while commits go on.
const WRITE_EVERY: Duration = Duration::from_millis(100);

/// The open file of the mark.
pub struct HighWater {
    file: File,
    /// The commit that it names.
    commits: u64,
    written_at: Duration,
}

impl HighWater {
    /// Opens the mark of a data directory. A new or damaged mark is 0.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(directory.join(NAME))?;
        let mut bytes = [0; BYTES];
        let commits = match file.read_exact_at(&mut bytes, 0) {
            Ok(()) if encode_mark(decode_mark(&bytes)) == bytes => decode_mark(&bytes),
            Ok(()) => {
                tracing::warn!("the file {NAME} is damaged; the end of the log is not compared with it");
                0
            }
            // A crash before the first write leaves an empty file.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
            Err(error) => return Err(error),
        };
        Ok(Self { file, commits, written_at: Duration::ZERO })
    }

    pub fn commits(&self) -> u64 {
        self.commits
    }

    /// Raises the mark to `synced`, unless the last write is too recent.
    pub fn raise_at(&mut self, now: Duration, synced: u64) {
        if now.saturating_sub(self.written_at) >= WRITE_EVERY {
            self.written_at = now;
            self.raise(synced);
        }
    }

    /// Raises the mark to `synced`. After a failure the mark stays as it was.
    pub fn raise(&mut self, synced: u64) {
        if synced <= self.commits {
            return;
        }
        match self.file.write_all_at(&encode_mark(synced), 0) {
            Ok(()) => {
                self.commits = synced;
                start_write_back(&self.file, 0, BYTES as u64);
            }
            Err(error) => tracing::debug!(%error, "the file {NAME} could not be written"),
        }
    }
}

fn encode_mark(commits: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let mut fields = &mut bytes[..];
    fields.put_u64_le(commits);
    fields.put_u64_le(xxh3_64(&commits.to_le_bytes()));
    bytes
}

fn decode_mark(bytes: &[u8; BYTES]) -> u64 {
    bytes.first_chunk().map_or(0, |commits| u64::from_le_bytes(*commits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_only_rises_and_not_too_often() {
        let directory = tempfile::tempdir().unwrap();
        let reopened = || HighWater::open(directory.path()).unwrap().commits();
        let mut mark = HighWater::open(directory.path()).unwrap();
        assert_eq!(mark.commits(), 0);
        mark.raise_at(WRITE_EVERY, 7);
        mark.raise_at(WRITE_EVERY * 3 / 2, 9);
        assert_eq!(reopened(), 7);
        mark.raise_at(WRITE_EVERY * 2, 9);
        assert_eq!(reopened(), 9);
        mark.raise(8);
        assert_eq!(reopened(), 9);
    }

    #[test]
    fn a_damaged_mark_is_zero() {
        let directory = tempfile::tempdir().unwrap();
        HighWater::open(directory.path()).unwrap().raise(7);
        let path = directory.path().join(NAME);
        let whole = std::fs::read(&path).unwrap();
        for at in 0..BYTES {
            let mut changed = whole.clone();
            changed[at] ^= 0x55;
            std::fs::write(&path, &changed).unwrap();
            assert_eq!(HighWater::open(directory.path()).unwrap().commits(), 0);
            std::fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(HighWater::open(directory.path()).unwrap().commits(), 0);
        }
    }
}
