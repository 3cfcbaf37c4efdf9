//! The files of remembered transaction ids: one per slice of time, appended to, and removed as a whole.
//!
//! Not a table of the engine: it keeps the files and the descriptors of a dropped keyspace, and a row per commit would
//! need a tombstone per commit. Layout of a file, little endian, record by record: length u32, xxh3-64 of the value
//! u64, value. A record is the ids of the commits that the engine learns together. Always: a checkpoint syncs these
//! files first, so a crash tears only what the log holds as well. Not here: what the values mean (`remembered`).

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_store::Error;
use bytes::{Buf, BufMut};
use xxhash_rust::xxh3::Xxh3;

use crate::tables::corrupt;

const DIRECTORY: &str = "ids";
const HEAD_BYTES: usize = 4 + 8;
/// Bytes of a slice and its synced length in a [`marks`](IdFiles::sync) row.
const MARK_BYTES: usize = 8 + 8 + 8;

/// Names a slice, once and for all: the second at which all its ids may be forgotten, and when it was begun.
pub type SliceId = (u64, u64);

/// The directory of the files.
pub struct IdFiles {
    directory: PathBuf,
    files: Mutex<BTreeMap<SliceId, Arc<IdFile>>>,
}

/// The file of one slice. It is created with its first record.
pub struct IdFile {
    pub id: SliceId,
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    file: Option<File>,
    len: u64,
    synced: u64,
    /// A commit that still mentions the slice must not create its file anew.
    removed: bool,
}

impl IdFiles {
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let directory = directory.join(DIRECTORY);
        let unusable = |e| Error::Unusable(format!("cannot use {}: {e}", directory.display()));
        fs::create_dir_all(&directory).map_err(unusable)?;
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&directory).map_err(unusable)? {
            let path = entry.map_err(unusable)?.path();
            let id = path.file_name().and_then(|name| slice_of(name.to_str()?));
            if let Some(id) = id {
                files.insert(id, Arc::new(IdFile { id, path, state: Mutex::default() }));
            }
        }
        Ok(Self { directory, files: Mutex::new(files) })
    }

    /// All files that there are.
    pub fn all(&self) -> Vec<Arc<IdFile>> {
        self.files().values().cloned().collect()
    }

    /// The file of a slice.
    pub fn file(&self, id: SliceId) -> Arc<IdFile> {
        let path = self.directory.join(format!("{}-{}", id.0, id.1));
        let fresh = || Arc::new(IdFile { id, path, state: Mutex::default() });
        self.files().entry(id).or_insert_with(fresh).clone()
    }

    pub fn remove(&self, id: SliceId) -> Result<(), Error> {
        let mut files = self.files();
        let Some(file) = files.remove(&id) else { return Ok(()) };
        let mut state = file.state();
        *state = State { removed: true, ..State::default() };
        match fs::remove_file(&file.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(file.failed(&error)),
            _ => Ok(()),
        }
    }

    /// Syncs all files; returns how long each is, for [`check`](Self::check).
    pub fn sync(&self) -> Result<Vec<u8>, Error> {
        let (mut marks, mut created) = (Vec::new(), false);
        for file in self.all() {
            let mut state = file.state();
            let Some(open) = &state.file else { continue };
            if state.synced < state.len {
                open.sync_data().map_err(|e| file.failed(&e))?;
                created |= state.synced == 0;
                state.synced = state.len;
            }
            marks.put_u64_le(file.id.0);
            marks.put_u64_le(file.id.1);
            marks.put_u64_le(state.len);
        }
        if created {
            let synced = File::open(&self.directory).and_then(|directory| directory.sync_all());
            synced.map_err(|e| Error::Closed(format!("cannot sync {}: {e}", self.directory.display())))?;
        }
        Ok(marks)
    }

    /// Refuses a file that lacks what was synced. A file that is gone was forgotten.
    pub fn check(&self, marks: &[u8]) -> Result<(), Error> {
        let files = self.files();
        for mut mark in marks.chunks(MARK_BYTES) {
            if mark.len() < MARK_BYTES {
                return Err(corrupt("transaction"));
            }
            let (id, len) = ((mark.get_u64_le(), mark.get_u64_le()), mark.get_u64_le());
            if let Some(file) = files.get(&id).filter(|file| file.len() < len) {
                return Err(Error::Corrupt(format!(
                    "{} is damaged; restore the directory from a backup, or remove the file, and those transaction ids \
                     are forgotten",
                    file.path.display()
                )));
            }
        }
        Ok(())
    }

    pub fn bytes(&self) -> u64 {
        self.files().values().map(|file| file.len()).sum()
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<SliceId, Arc<IdFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IdFile {
    /// Adds a record.
    pub fn append<'a>(&self, values: impl Iterator<Item = &'a [u8]>) -> Result<(), Error> {
        let mut record = vec![0; HEAD_BYTES];
        values.for_each(|value| record.put_slice(value));
        let (mut head, value) = record.split_at_mut(HEAD_BYTES);
        let sum = checksum(value);
        head.put_u32_le(u32::try_from(value.len()).unwrap_or(u32::MAX));
        head.put_u64_le(sum);
        let mut state = self.state();
        if state.removed {
            return Ok(());
        }
        if state.file.is_none() {
            let file = OpenOptions::new().append(true).create(true).open(&self.path);
            state.file = Some(file.map_err(|e| self.failed(&e))?);
        }
        if let Some(file) = &mut state.file {
            file.write_all(&record).map_err(|e| self.failed(&e))?;
        }
        state.len += record.len() as u64;
        Ok(())
    }

    /// Reads all records, and cuts off one that a crash tore.
    pub fn load(&self, mut take: impl FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        let failed = |e: io::Error| self.failed(&e);
        let file = OpenOptions::new().read(true).append(true).open(&self.path).map_err(failed)?;
        let there = file.metadata().map_err(failed)?.len();
        let (mut reader, mut value, mut len) = (BufReader::new(&file), Vec::new(), 0);
        while read_record(&mut reader, there - len, &mut value).map_err(failed)? {
            take(&value)?;
            len += (HEAD_BYTES + value.len()) as u64;
        }
        if len < there {
            file.set_len(len).map_err(failed)?;
        }
        *self.state() = State { file: Some(file), len, ..State::default() };
        Ok(())
    }

    fn len(&self) -> u64 {
        self.state().len
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::Closed(format!("cannot use {}: {error}", self.path.display()))
    }
}

/// Reads a record of a file with `left` more bytes; `false` when no whole one follows.
fn read_record(reader: &mut impl Read, left: u64, value: &mut Vec<u8>) -> io::Result<bool> {
    let Some(room) = left.checked_sub(HEAD_BYTES as u64) else { return Ok(false) };
    let mut head = [0; HEAD_BYTES];
    reader.read_exact(&mut head)?;
    let mut head = &head[..];
    let (length, sum) = (head.get_u32_le(), head.get_u64_le());
    // An empty record is never written; zeros stand where a crash has left a hole.
    if length == 0 || u64::from(length) > room {
        return Ok(false);
    }
    value.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
    reader.read_exact(value)?;
    Ok(checksum(value) == sum)
}

fn checksum(value: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(value);
    hasher.digest()
}

/// The slice that has this name in the log and as a file.
pub fn slice_of(name: &str) -> Option<SliceId> {
    let (end, part) = name.split_once('-')?;
    Some((end.parse().ok()?, part.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(files: &IdFiles) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        for file in files.all() {
            let take = |value: &[u8]| {
                found.push(value.to_vec());
                Ok(())
            };
            file.load(take).unwrap();
        }
        found
    }

    #[test]
    fn a_torn_record_is_cut_off_and_a_synced_one_is_missed() {
        let directory = tempfile::tempdir().unwrap();
        let files = IdFiles::open(directory.path()).unwrap();
        let file = files.file((5, 0));
        file.append([&b"ab"[..], b"c"].into_iter()).unwrap();
        let marks = files.sync().unwrap();
        file.append([&b"d"[..]].into_iter()).unwrap();
        let path = directory.path().join("ids/5-0");
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            for rest in [&b""[..], &[0; 40]] {
                fs::write(&path, [&whole[..cut], rest].concat()).unwrap();
                let files = IdFiles::open(directory.path()).unwrap();
                let first: &[Vec<u8>] = if cut < 15 { &[] } else { &[b"abc".to_vec()] };
                assert_eq!(load(&files), first, "cut at {cut}");
                assert_eq!(files.check(&marks).is_err(), cut < 15);
                files.file((5, 0)).append([&b"e"[..]].into_iter()).unwrap();
                let again = IdFiles::open(directory.path()).unwrap();
                assert_eq!(load(&again), [first, &[b"e".to_vec()]].concat(), "what follows is found");
            }
        }
    }

    #[test]
    fn a_removed_file_does_not_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let files = IdFiles::open(directory.path()).unwrap();
        let file = files.file((5, 0));
        file.append([&b"a"[..]].into_iter()).unwrap();
        let marks = files.sync().unwrap();
        files.remove((5, 0)).unwrap();
        file.append([&b"b"[..]].into_iter()).unwrap();
        assert_eq!((files.all().len(), files.bytes()), (0, 0));
        let files = IdFiles::open(directory.path()).unwrap();
        assert_eq!(load(&files).len(), 0);
        files.check(&marks).unwrap();
    }
}
