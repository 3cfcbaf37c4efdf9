//! The files of remembered transaction ids: one for each slice of time, append-only, and removed as a whole.
//!
//! They are not a table of the engine: the engine keeps the files and descriptors of a deleted table, and a row for each
//! commit would need a tombstone for each. Layout of a file, little endian, record by record: length u32, xxh3-64 of the
//! value u64, value. A record has the ids of all commits that are applied together. Always: a checkpoint syncs these
//! files first, so a crash tears only records that the log also has. Not here: what the values mean (`dedup_index`).

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_store::Error;
use bytes::{Buf, BufMut};
use xxhash_rust::xxh3::Xxh3;

use crate::rows::corrupt_row;

const DIRECTORY: &str = "ids";
const HEAD_BYTES: usize = 4 + 8;
/// Bytes of a slice's id and its synced length, in the row that [`SliceFiles::sync`] returns.
const LENGTH_BYTES: usize = 8 + 8 + 8;

/// Identifies a slice: the second at which all its ids expire, and when the slice began.
pub type SliceId = (u64, u64);

/// The directory of the files.
pub struct SliceFiles {
    directory: PathBuf,
    files: Mutex<BTreeMap<SliceId, Arc<SliceFile>>>,
}

/// The file of one slice. It is created with its first record.
pub struct SliceFile {
    pub id: SliceId,
    path: PathBuf,
    state: Mutex<FileState>,
}

#[derive(Default)]
struct FileState {
    file: Option<File>,
    len: u64,
    synced: u64,
    /// True once the file is removed: a commit that still has ids of the slice must not create it again.
    removed: bool,
}

impl SliceFiles {
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let directory = directory.join(DIRECTORY);
        let unusable = |e| Error::Unusable(format!("cannot use {}: {e}", directory.display()));
        fs::create_dir_all(&directory).map_err(unusable)?;
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&directory).map_err(unusable)? {
            let path = entry.map_err(unusable)?.path();
            let id = path.file_name().and_then(|name| parse_slice_name(name.to_str()?));
            if let Some(id) = id {
                files.insert(id, Arc::new(SliceFile { id, path, state: Mutex::default() }));
            }
        }
        Ok(Self { directory, files: Mutex::new(files) })
    }

    /// All files.
    pub fn all(&self) -> Vec<Arc<SliceFile>> {
        self.files().values().cloned().collect()
    }

    /// The file of a slice.
    pub fn file(&self, id: SliceId) -> Arc<SliceFile> {
        let path = self.directory.join(format!("{}-{}", id.0, id.1));
        let fresh = || Arc::new(SliceFile { id, path, state: Mutex::default() });
        self.files().entry(id).or_insert_with(fresh).clone()
    }

    pub fn remove(&self, id: SliceId) -> Result<(), Error> {
        let mut files = self.files();
        let Some(file) = files.remove(&id) else { return Ok(()) };
        let mut state = file.state();
        *state = FileState { removed: true, ..FileState::default() };
        match fs::remove_file(&file.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(file.failed(&error)),
            _ => Ok(()),
        }
    }

    /// Syncs all files. Returns the row with their lengths, for [`check_lengths`](Self::check_lengths).
    pub fn sync(&self) -> Result<Vec<u8>, Error> {
        let (mut lengths, mut created) = (Vec::new(), false);
        for file in self.all() {
            let mut state = file.state();
            let Some(open) = &state.file else { continue };
            if state.synced < state.len {
                open.sync_data().map_err(|e| file.failed(&e))?;
                created |= state.synced == 0;
                state.synced = state.len;
            }
            lengths.put_u64_le(file.id.0);
            lengths.put_u64_le(file.id.1);
            lengths.put_u64_le(state.len);
        }
        if created {
            let synced = File::open(&self.directory).and_then(|directory| directory.sync_all());
            synced.map_err(|e| Error::Closed(format!("cannot sync {}: {e}", self.directory.display())))?;
        }
        Ok(lengths)
    }

    /// Refuses a file that is shorter than when it was synced. A missing file has expired.
    pub fn check_lengths(&self, lengths: &[u8]) -> Result<(), Error> {
        let files = self.files();
        for mut entry in lengths.chunks(LENGTH_BYTES) {
            if entry.len() < LENGTH_BYTES {
                return Err(corrupt_row("transaction"));
            }
            let (id, len) = ((entry.get_u64_le(), entry.get_u64_le()), entry.get_u64_le());
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

    fn files(&self) -> MutexGuard<'_, BTreeMap<SliceId, Arc<SliceFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SliceFile {
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

    /// Calls `read` for all records, and cuts off one that a crash tore.
    pub fn load(&self, mut read: impl FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        let failed = |e: io::Error| self.failed(&e);
        let file = OpenOptions::new().read(true).append(true).open(&self.path).map_err(failed)?;
        let there = file.metadata().map_err(failed)?.len();
        let (mut reader, mut value, mut len) = (BufReader::new(&file), Vec::new(), 0);
        while read_record(&mut reader, there - len, &mut value).map_err(failed)? {
            read(&value)?;
            len += (HEAD_BYTES + value.len()) as u64;
        }
        if len < there {
            file.set_len(len).map_err(failed)?;
        }
        *self.state() = FileState { file: Some(file), len, ..FileState::default() };
        Ok(())
    }

    fn len(&self) -> u64 {
        self.state().len
    }

    fn state(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::Closed(format!("cannot use {}: {error}", self.path.display()))
    }
}

/// Reads a record of a file with `left` more bytes; `false` if no whole record follows.
fn read_record(reader: &mut impl Read, left: u64, value: &mut Vec<u8>) -> io::Result<bool> {
    let Some(room) = left.checked_sub(HEAD_BYTES as u64) else { return Ok(false) };
    let mut head = [0; HEAD_BYTES];
    reader.read_exact(&mut head)?;
    let mut head = &head[..];
    let (length, sum) = (head.get_u32_le(), head.get_u64_le());
    // Records are never empty; zeros are a hole that a crash left.
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

/// The slice with this name, in the log or of a file.
pub fn parse_slice_name(name: &str) -> Option<SliceId> {
    let (end, part) = name.split_once('-')?;
    Some((end.parse().ok()?, part.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(files: &SliceFiles) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        for file in files.all() {
            let read = |value: &[u8]| {
                found.push(value.to_vec());
                Ok(())
            };
            file.load(read).unwrap();
        }
        found
    }

    #[test]
    fn a_torn_record_is_cut_off_and_a_lost_synced_record_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let files = SliceFiles::open(directory.path()).unwrap();
        let file = files.file((5, 0));
        file.append([&b"ab"[..], b"c"].into_iter()).unwrap();
        let lengths = files.sync().unwrap();
        file.append([&b"d"[..]].into_iter()).unwrap();
        let path = directory.path().join("ids/5-0");
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            for rest in [&b""[..], &[0; 40]] {
                fs::write(&path, [&whole[..cut], rest].concat()).unwrap();
                let files = SliceFiles::open(directory.path()).unwrap();
                let first: &[Vec<u8>] = if cut < 15 { &[] } else { &[b"abc".to_vec()] };
                assert_eq!(load(&files), first, "cut at {cut}");
                assert_eq!(files.check_lengths(&lengths).is_err(), cut < 15);
                files.file((5, 0)).append([&b"e"[..]].into_iter()).unwrap();
                let again = SliceFiles::open(directory.path()).unwrap();
                assert_eq!(load(&again), [first, &[b"e".to_vec()]].concat(), "later records are found");
            }
        }
    }

    #[test]
    fn a_removed_file_does_not_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let files = SliceFiles::open(directory.path()).unwrap();
        let file = files.file((5, 0));
        file.append([&b"a"[..]].into_iter()).unwrap();
        let lengths = files.sync().unwrap();
        files.remove((5, 0)).unwrap();
        file.append([&b"b"[..]].into_iter()).unwrap();
        assert_eq!((files.all().len(), files.bytes()), (0, 0));
        let files = SliceFiles::open(directory.path()).unwrap();
        assert_eq!(load(&files).len(), 0);
        files.check_lengths(&lengths).unwrap();
    }
}
