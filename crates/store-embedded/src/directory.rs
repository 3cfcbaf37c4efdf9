//! The data directory: whose it is, who may look into it, in which format, and whether its lists are whole.
//!
//! Always: only its owner reads what is in it, and its entries are there also after a power cut.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
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
    create(directory).map_err(|e| unusable(e.to_string()))?;
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
                .and_then(|()| sync(directory))
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

/// Creates a directory that only its owner may use, and those above it. They are there also after a power cut.
pub fn create(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let above = directory.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create(above)?;
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => sync(above),
    }
}

/// Forces the entries of a directory to disk.
pub fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Takes from other users what an earlier version or a copy left them.
fn make_private(directory: &Path) -> io::Result<()> {
    let mut loose = 0;
    for entry in fs::read_dir(directory)? {
        loose += u32::from(restrict(&entry?.path())?);
    }
    match restrict(directory) {
        Ok(was_loose) => loose += u32::from(was_loose),
        // As with a volume that a container mounts: what is in it is private all the same.
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

/// Leaves a file or directory to its owner alone; tells whether it was not.
fn restrict(path: &Path) -> io::Result<bool> {
    let mode = fs::metadata(path)?.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(false);
    }
    fs::set_permissions(path, Permissions::from_mode(mode & 0o700))?;
    Ok(true)
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
    fn only_the_owner_may_look_into_a_directory() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("some/data");
        drop(claim(&directory).unwrap());
        let modes = || {
            let entries = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
            let mode = |path: std::path::PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            entries.chain([directory.clone()]).map(mode).collect::<Vec<_>>()
        };
        assert_eq!(modes(), [0o600, 0o600, 0o700]);
        // As an earlier version has left it.
        fs::create_dir(directory.join("engine")).unwrap();
        for (name, mode) in [("", 0o755), ("lock", 0o644), ("format", 0o664), ("engine", 0o777)] {
            fs::set_permissions(directory.join(name), Permissions::from_mode(mode)).unwrap();
        }
        drop(claim(&directory).unwrap());
        assert!(modes().iter().all(|mode| mode & 0o077 == 0), "{:?}", modes());
    }

    #[test]
    fn another_format_is_refused_with_advice() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("format"), "baton-embedded 99").unwrap();
        let refused = claim(directory.path()).err().unwrap().to_string();
        assert!(refused.contains("baton-embedded 99"), "{refused}");
    }
}
