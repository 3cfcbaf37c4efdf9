//! A directory that the participants share: a disk of one machine, or a network file system that keeps hard links
//! and directory lists consistent between its clients.
//!
//! A file system has no compare-and-set, but creating a name is atomic. So a record that decides is a directory of
//! numbered files, the highest of which counts, and a compare-and-set from number *n* creates *n + 1* by a hard
//! link. Old numbers are removed; a writer so slow that its number was removed meanwhile finds a higher one
//! after its write, removes its file and has lost. Records that do not decide are plain files,
//! replaced by renaming.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::{BoxFuture, Error, Store, SwapOutcome, Version, VersionedValue};

/// Old versions of a record that are kept.
const OLD_VERSIONS_KEPT: u64 = 16;

/// Suffix that distinguishes a directory of versions from a record.
const VERSIONS_SUFFIX: &str = ".log";

/// Records as files.
#[derive(Clone, Debug)]
pub struct FileStore {
    directory: PathBuf,
}

impl FileStore {
    /// Keeps records under `directory`, which is created.
    pub fn new(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let directory = directory.into();
        fs::create_dir_all(&directory)?;
        Ok(Self { directory })
    }

    fn path(&self, key: &str) -> PathBuf {
        key.split('/').fold(self.directory.clone(), |path, part| path.join(part))
    }

    fn versions_directory(&self, key: &str) -> PathBuf {
        let mut path = self.path(key).into_os_string();
        path.push(VERSIONS_SUFFIX);
        path.into()
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let store = self.clone();
        match tokio::task::spawn_blocking(move || work(&store)).await {
            Ok(outcome) => outcome.map_err(|e| Error(e.to_string())),
            Err(error) => Err(Error(error.to_string())),
        }
    }

    fn read_blocking(&self, key: &str) -> io::Result<Option<VersionedValue>> {
        let log = self.versions_directory(key);
        // The highest version may be outdated and removed between the list and the read.
        for _ in 0..10 {
            let Some(highest) = version_numbers(&log)?.into_iter().max() else {
                return Ok(fs::read(self.path(key)).ok().map(|value| (Version("0".into()), value)));
            };
            match fs::read(log.join(version_file_name(highest))) {
                Ok(value) => return Ok(Some((Version(highest.to_string()), value))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("the record changes faster than it can be read"))
    }

    fn swap_blocking(&self, key: &str, expected: Option<u64>, value: &[u8]) -> io::Result<SwapOutcome> {
        let log = self.versions_directory(key);
        fs::create_dir_all(&log)?;
        let highest = version_numbers(&log)?.into_iter().max();
        if highest != expected {
            return Ok(SwapOutcome::Conflict);
        }
        let next = expected.unwrap_or(0) + 1;
        let target = log.join(version_file_name(next));
        let staged = self.write_temporary(value)?;
        match fs::hard_link(&staged, &target) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(SwapOutcome::Conflict),
            Err(error) => return Err(error),
        }
        let all = version_numbers(&log)?;
        if all.iter().any(|number| *number > next) {
            let _ = fs::remove_file(&target);
            return Ok(SwapOutcome::Conflict);
        }
        for old in all.into_iter().filter(|number| number + OLD_VERSIONS_KEPT < next) {
            let _ = fs::remove_file(log.join(version_file_name(old)));
        }
        Ok(SwapOutcome::Done(Version(next.to_string())))
    }

    /// Writes a file under a unique name. Dropping the returned value removes it.
    fn write_temporary(&self, value: &[u8]) -> io::Result<tempfile::TempPath> {
        let mut file = tempfile::Builder::new().prefix(".staged-").tempfile_in(&self.directory)?;
        file.write_all(value)?;
        file.as_file().sync_data()?;
        Ok(file.into_temp_path())
    }

    fn put_blocking(&self, key: &str, value: &[u8]) -> io::Result<()> {
        let path = self.path(key);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        self.write_temporary(value)?.persist(path).map_err(|error| error.error)
    }

    fn list_blocking(&self, prefix: &str) -> io::Result<Vec<(String, String)>> {
        let entries = match fs::read_dir(self.path(prefix.trim_end_matches('/'))) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            // The file was removed meanwhile.
            let Ok(meta) = entry.metadata() else { continue };
            if let Some(key) = name.strip_suffix(VERSIONS_SUFFIX).filter(|_| meta.is_dir()) {
                let highest = version_numbers(&entry.path())?.into_iter().max().unwrap_or(0);
                found.push((format!("{prefix}{key}"), highest.to_string()));
            } else if meta.is_file() {
                let changed = meta.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
                found.push((format!("{prefix}{name}"), changed.as_nanos().to_string()));
            }
        }
        found.sort();
        Ok(found)
    }
}

fn version_file_name(number: u64) -> String {
    format!("{number:020}")
}

fn version_numbers(log: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(log) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        if let Ok(number) = entry?.file_name().to_string_lossy().parse() {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

impl Store for FileStore {
    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<VersionedValue>, Error>> {
        let key = key.to_owned();
        Box::pin(self.run_blocking(move |store| store.read_blocking(&key)))
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        value: Vec<u8>,
    ) -> BoxFuture<'a, Result<SwapOutcome, Error>> {
        let key = key.to_owned();
        let expected = expected.map(|version| version.0.parse().unwrap_or(u64::MAX));
        Box::pin(self.run_blocking(move |store| store.swap_blocking(&key, expected, &value)))
    }

    fn put<'a>(&'a self, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>> {
        let key = key.to_owned();
        Box::pin(self.run_blocking(move |store| store.put_blocking(&key, &value)))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<(String, String)>, Error>> {
        let prefix = prefix.to_owned();
        Box::pin(self.run_blocking(move |store| store.list_blocking(&prefix)))
    }

    fn remove<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        let key = key.to_owned();
        Box::pin(self.run_blocking(move |store| {
            for removed in
                [fs::remove_file(store.path(&key)), fs::remove_dir_all(store.versions_directory(&key))]
            {
                match removed {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        }))
    }
}
