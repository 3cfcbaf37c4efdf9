//! A directory that the participants share: a disk of one machine, or a network file system that keeps hard links
//! and directory lists consistent between its clients.
//!
//! A file system has no compare-and-set, but creating a name is atomic. So a record that decides is a directory of
//! numbered files, the highest of which counts, and a compare-and-set from number *n* creates *n + 1* by a hard
//! link. Old numbers are removed; a writer that was so slow that its number was removed meanwhile finds a higher
//! one after it has written, takes its file back and has lost. Records that do not decide are plain files,
//! replaced by renaming.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::{BoxFuture, Entry, Error, Store, Swap, Version};

/// Old numbers of a record that are kept.
const KEPT: u64 = 16;

/// What a directory of numbers is called, so that it is not taken for a record.
const LOG: &str = ".log";

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

    fn log(&self, key: &str) -> PathBuf {
        let mut path = self.path(key).into_os_string();
        path.push(LOG);
        path.into()
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let store = self.clone();
        match tokio::task::spawn_blocking(move || work(&store)).await {
            Ok(outcome) => outcome.map_err(|e| Error(e.to_string())),
            Err(error) => Err(Error(error.to_string())),
        }
    }

    fn read_now(&self, key: &str) -> io::Result<Option<Entry>> {
        let log = self.log(key);
        // The highest can be removed between the list and the read, when it is old by then.
        for _ in 0..10 {
            let Some(highest) = numbers(&log)?.into_iter().max() else {
                return Ok(fs::read(self.path(key)).ok().map(|value| (Version("0".into()), value)));
            };
            match fs::read(log.join(name(highest))) {
                Ok(value) => return Ok(Some((Version(highest.to_string()), value))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("the record changes faster than it can be read"))
    }

    fn swap_now(&self, key: &str, expected: Option<u64>, value: &[u8]) -> io::Result<Swap> {
        let log = self.log(key);
        fs::create_dir_all(&log)?;
        let highest = numbers(&log)?.into_iter().max();
        if highest != expected {
            return Ok(Swap::Conflict);
        }
        let next = expected.unwrap_or(0) + 1;
        let target = log.join(name(next));
        let staged = self.stage(value)?;
        match fs::hard_link(&staged, &target) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(Swap::Conflict),
            Err(error) => return Err(error),
        }
        let all = numbers(&log)?;
        if all.iter().any(|number| *number > next) {
            let _ = fs::remove_file(&target);
            return Ok(Swap::Conflict);
        }
        for old in all.into_iter().filter(|number| number + KEPT < next) {
            let _ = fs::remove_file(log.join(name(old)));
        }
        Ok(Swap::Done(Version(next.to_string())))
    }

    /// Writes a file under a name that nobody else uses. It goes when the returned value does.
    fn stage(&self, value: &[u8]) -> io::Result<tempfile::TempPath> {
        let mut file = tempfile::Builder::new().prefix(".staged-").tempfile_in(&self.directory)?;
        file.write_all(value)?;
        file.as_file().sync_data()?;
        Ok(file.into_temp_path())
    }

    fn put_now(&self, key: &str, value: &[u8]) -> io::Result<()> {
        let path = self.path(key);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        self.stage(value)?.persist(path).map_err(|error| error.error)
    }

    fn list_now(&self, prefix: &str) -> io::Result<Vec<(String, String)>> {
        let entries = match fs::read_dir(self.path(prefix.trim_end_matches('/'))) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            // One that has gone meanwhile is not there.
            let Ok(meta) = entry.metadata() else { continue };
            if let Some(key) = name.strip_suffix(LOG).filter(|_| meta.is_dir()) {
                let highest = numbers(&entry.path())?.into_iter().max().unwrap_or(0);
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

fn name(number: u64) -> String {
    format!("{number:020}")
}

fn numbers(log: &Path) -> io::Result<Vec<u64>> {
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
    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, Error>> {
        let key = key.to_owned();
        Box::pin(self.run(move |store| store.read_now(&key)))
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        value: Vec<u8>,
    ) -> BoxFuture<'a, Result<Swap, Error>> {
        let key = key.to_owned();
        let expected = expected.map(|version| version.0.parse().unwrap_or(u64::MAX));
        Box::pin(self.run(move |store| store.swap_now(&key, expected, &value)))
    }

    fn put<'a>(&'a self, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>> {
        let key = key.to_owned();
        Box::pin(self.run(move |store| store.put_now(&key, &value)))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<(String, String)>, Error>> {
        let prefix = prefix.to_owned();
        Box::pin(self.run(move |store| store.list_now(&prefix)))
    }

    fn remove<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        let key = key.to_owned();
        Box::pin(self.run(move |store| {
            for removed in [fs::remove_file(store.path(&key)), fs::remove_dir_all(store.log(&key))] {
                match removed {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        }))
    }
}
