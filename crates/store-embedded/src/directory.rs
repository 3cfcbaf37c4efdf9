//! The data directory: whose it is, in which format, and whether its lists are whole.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::Path;

use baton_store::Error;
use xxhash_rust::xxh3::xxh3_128;

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
    fn another_format_is_refused_with_advice() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("format"), "baton-embedded 99").unwrap();
        let refused = claim(directory.path()).err().unwrap().to_string();
        assert!(refused.contains("baton-embedded 99"), "{refused}");
    }
}
