//! The data directory: its lock, its permissions, its format, and the check of the engine's file lists.
//!
//! Always: only the owner can read its files, and new entries survive a power cut.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use baton_store::Error;
use xxhash_rust::xxh3::xxh3_128;

/// The format that this version reads and writes.
const FORMAT: &str = "baton-embedded 3";

/// The lock on a directory. No other process uses the directory while this value lives.
pub struct DirectoryLock {
    _lock: File,
}

/// Creates the directory if it is missing, locks it and checks its format.
pub fn lock_directory(directory: &Path) -> Result<DirectoryLock, Error> {
    let unusable = |problem: String| {
        Error::Unusable(format!("cannot use the data directory {}: {problem}", directory.display()))
    };
    create_private(directory).map_err(|e| unusable(e.to_string()))?;
    make_private(directory).map_err(|e| unusable(format!("it cannot be made private: {e}")))?;
    let open = |name: &str| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
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
                .and_then(|()| sync_entries(directory))
                .map_err(|e| unusable(e.to_string()))?;
        }
        FORMAT => {}
        other => {
            return Err(unusable(format!(
                "its format is {other:?}, this version reads {FORMAT:?}; use the version that wrote it"
            )));
        }
    }
    Ok(DirectoryLock { _lock: lock })
}

/// Creates a directory that only its owner can use, and its parents. They survive a power cut.
pub fn create_private(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let above = directory.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create_private(above)?;
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => sync_entries(above),
    }
}

/// Syncs the entries of a directory.
pub fn sync_entries(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Removes permissions of other users, which an earlier version or a copy may have left.
fn make_private(directory: &Path) -> io::Result<()> {
    let mut loose = 0;
    for entry in fs::read_dir(directory)? {
        loose += u32::from(restrict_to_owner(&entry?.path())?);
    }
    match restrict_to_owner(directory) {
        Ok(was_loose) => loose += u32::from(was_loose),
        // For example a volume that a container mounts. The entries in it are private all the same.
        Err(error) => tracing::warn!(
            directory = %directory.display(), %error,
            "other users may look into the data directory, and it belongs to another user"
        ),
    }
    if loose > 0 {
        tracing::warn!(directory = %directory.display(), "other users could read the data directory; made it private");
    }
    Ok(())
}

/// Removes permissions of other users from a file or directory. Returns whether there were any.
fn restrict_to_owner(path: &Path) -> io::Result<bool> {
    let mode = fs::metadata(path)?.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(false);
    }
    fs::set_permissions(path, Permissions::from_mode(mode & 0o700))?;
    Ok(true)
}

/// Verifies the engine's lists of files. The engine stores a checksum of each list but does not verify it; with a
/// damaged list it would silently miss whole files.
pub fn check_engine_lists(engine: &Path) -> Result<(), Error> {
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
        let first = lock_directory(directory.path()).unwrap();
        let refused = lock_directory(directory.path()).err().unwrap().to_string();
        assert!(refused.contains("another process"), "{refused}");
        drop(first);
        lock_directory(directory.path()).unwrap();
    }

    #[test]
    fn only_the_owner_can_read_a_directory() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("some/data");
        drop(lock_directory(&directory).unwrap());
        let modes = || {
            let entries = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
            let mode = |path: std::path::PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            entries.chain([directory.clone()]).map(mode).collect::<Vec<_>>()
        };
        assert_eq!(modes(), [0o600, 0o600, 0o700]);
        // As an earlier version left it.
        fs::create_dir(directory.join("engine")).unwrap();
        for (name, mode) in [("", 0o755), ("lock", 0o644), ("format", 0o664), ("engine", 0o777)] {
            fs::set_permissions(directory.join(name), Permissions::from_mode(mode)).unwrap();
        }
        drop(lock_directory(&directory).unwrap());
        assert!(modes().iter().all(|mode| mode & 0o077 == 0), "{:?}", modes());
    }

    #[test]
    fn another_format_is_refused_with_advice() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("format"), "baton-embedded 99").unwrap();
        let refused = lock_directory(directory.path()).err().unwrap().to_string();
        assert!(refused.contains("baton-embedded 99"), "{refused}");
    }
}
