//! The data directory: whose it is, in which format, and how much of it must be there.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use baton_store::Error;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// The format that this version reads and writes.
const FORMAT: &str = "baton-embedded 3";

/// A directory that no other process uses while this lives.
pub struct Claimed {
    _lock: File,
}

/// Creates the directory if need be and claims it, or says why not.
pub fn claim(directory: &Path) -> Result<Claimed, Error> {
    let unusable = |problem: String| {
        Error::Unusable(format!("cannot use the data directory {}: {problem}", directory.display()))
    };
    fs::create_dir_all(directory).map_err(|e| unusable(e.to_string()))?;
    let open = |name: &str| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.join(name))
            .map_err(|e| unusable(e.to_string()))
    };
    let lock = open("lock")?;
    lock.try_lock().map_err(|e| match e {
        TryLockError::WouldBlock => {
            unusable("another process is using it; stop that one, or choose another with --data".into())
        }
        TryLockError::Error(e) => unusable(e.to_string()),
    })?;
    let (mut file, mut format) = (open("format")?, String::new());
    file.read_to_string(&mut format).map_err(|e| unusable(format!("its format file is unreadable: {e}")))?;
    match format.trim() {
        "" if !directory.join("engine").exists() => {
            file.write_all(FORMAT.as_bytes())
                .and_then(|()| file.sync_all())
                .map_err(|e| unusable(e.to_string()))?;
        }
        FORMAT => {}
        other => {
            return Err(unusable(format!(
                "its format is {other:?}, this version reads {FORMAT:?}; use the version that wrote it"
            )));
        }
    }
    Ok(Claimed { _lock: lock })
}

/// Says whether the engine's lists of files are what was written. It keeps a checksum of them but does not look
/// at it, and with a damaged list whole files would be missing without a word.
pub fn check_lists(engine: &Path) -> Result<(), Error> {
    let Ok(keyspaces) = fs::read_dir(engine.join("keyspaces")) else { return Ok(()) };
    for keyspace in keyspaces {
        let keyspace = keyspace.map_err(|e| Error::Unusable(e.to_string()))?.path();
        // Without this file the keyspace was never finished, and the engine removes it.
        let Ok(current) = fs::read(keyspace.join("current")) else { continue };
        let damaged = || Error::Corrupt(format!("the list of files in {} is damaged", keyspace.display()));
        let (version, rest) = current.split_first_chunk().ok_or_else(damaged)?;
        let (checksum, _) = rest.split_first_chunk().ok_or_else(damaged)?;
        let list =
            fs::read(keyspace.join(format!("v{}", u64::from_le_bytes(*version)))).map_err(|_| damaged())?;
        if xxh3_128(&list) != u128::from_le_bytes(*checksum) {
            return Err(damaged());
        }
    }
    Ok(())
}

/// The number of the last commit that is known to be on disk.
///
/// The engine cannot tell a journal whose end was never written from one whose middle is damaged: it cuts both
/// off at the first entry it cannot read. This mark, which is written only after the commit has been synced,
/// can: commits that it knows of must still be there.
pub struct HighWater {
    file: File,
    path: PathBuf,
}

impl HighWater {
    /// Opens the mark.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let path = directory.join("committed");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let unusable = |e| Error::Unusable(format!("cannot use {}: {e}", path.display()));
        Ok(Self { file: file.map_err(unusable)?, path })
    }

    /// Says whether `last`, the last commit that was found, is at least the last that is known of.
    pub fn check(&self, last: u64) -> Result<(), Error> {
        let mut mark = [0; 16];
        // A mark that was cut short by a crash of the machine says nothing.
        if self.file.read_exact_at(&mut mark, 0).is_err() {
            return Ok(());
        }
        let (number, sum) = mark.split_at(8);
        if xxh3_64(number).to_le_bytes() != *sum {
            tracing::warn!(path = %self.path.display(), "the mark of the last commit is damaged and says nothing");
            return Ok(());
        }
        let known = number.iter().rev().fold(0, |number, byte| (number << 8) | u64::from(*byte));
        match known.saturating_sub(last) {
            0 => Ok(()),
            missing => Err(Error::Corrupt(format!(
                "the last {missing} of {known} commits are missing, so the journal is damaged; restore the directory \
                 from a backup, or remove {} to go on without them",
                self.path.display()
            ))),
        }
    }

    /// Notes that commit `number` is on disk.
    pub fn note(&self, number: u64) -> std::io::Result<()> {
        let mut mark = [0; 16];
        mark[..8].copy_from_slice(&number.to_le_bytes());
        mark[8..].copy_from_slice(&xxh3_64(&number.to_le_bytes()).to_le_bytes());
        self.file.write_all_at(&mark, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_owner_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let first = claim(directory.path()).unwrap();
        let refused = claim(directory.path()).err().unwrap().to_string();
        assert!(refused.contains("another process"), "{refused}");
        drop(first);
        claim(directory.path()).unwrap();
    }

    #[test]
    fn missing_commits_are_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let mark = HighWater::open(directory.path()).unwrap();
        mark.check(0).unwrap();
        mark.note(0x0102_0304).unwrap();
        mark.check(0x0102_0304).unwrap();
        mark.check(0x0102_0305).unwrap();
        let refused = mark.check(0x0102_0302).unwrap_err().to_string();
        assert!(refused.contains("last 2 of 16909060 commits"), "{refused}");
    }

    #[test]
    fn another_format_is_refused_with_advice() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("format"), "baton-embedded 99").unwrap();
        let refused = claim(directory.path()).err().unwrap().to_string();
        assert!(refused.contains("baton-embedded 99"), "{refused}");
    }
}
