//! The files of the log: listing, creating, removing and reading them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_store::{Error, Segment};
use baton_types::PartitionId;
use bytes::{Buf, BufMut, Bytes};
use rustc_hash::FxHashMap;

use crate::rows::{SEGMENT_KEY_BYTES, corrupt_row};

/// Files that stay open for reading. Beyond that all are closed and opened again as needed.
const OPEN_MAX: usize = 256;

/// The place of a segment in the log, with its key before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentPlace {
    pub file: u64,
    pub at: u64,
    pub length: u32,
}

impl SegmentPlace {
    pub const BYTES: usize = 20;

    pub fn encode(&self, row: &mut Vec<u8>) {
        row.put_u64_le(self.file);
        row.put_u64_le(self.at);
        row.put_u32_le(self.length);
    }

    pub fn decode(mut row: &[u8]) -> Result<Self, Error> {
        if row.len() != Self::BYTES {
            return Err(corrupt_row("segment"));
        }
        Ok(Self { file: row.get_u64_le(), at: row.get_u64_le(), length: row.get_u32_le() })
    }
}

/// The directory of the log.
pub struct LogFiles {
    directory: PathBuf,
    /// The sum of their lengths.
    pub bytes: AtomicU64,
    open: Mutex<FxHashMap<u64, Arc<File>>>,
}

impl LogFiles {
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.into(), bytes: AtomicU64::new(0), open: Mutex::default() }
    }

    /// The segment at a place; `None` if the file was removed.
    pub fn read_segment(&self, key: &[u8], place: SegmentPlace) -> Result<Option<Segment>, Error> {
        let missing = || Error::Corrupt(format!("file {} of the log lacks a segment", place.file));
        let file = match self.open(place.file) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(read_error(&error)),
        };
        let mut bytes = vec![0; usize::try_from(place.length).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, place.at).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => missing(),
            _ => read_error(&error),
        })?;
        if bytes.get(..SEGMENT_KEY_BYTES) != Some(key) {
            return Err(missing());
        }
        let partition = PartitionId((&key[..8]).get_u64());
        Ok(Some(Segment::decode(partition, Bytes::from(bytes).slice(SEGMENT_KEY_BYTES..))?))
    }

    fn open(&self, number: u64) -> io::Result<Arc<File>> {
        let mut opened = self.opened();
        if let Some(file) = opened.get(&number) {
            return Ok(file.clone());
        }
        let file = Arc::new(File::open(self.path(number))?);
        if opened.len() >= OPEN_MAX {
            opened.clear();
        }
        opened.insert(number, file.clone());
        Ok(file)
    }

    fn opened(&self) -> MutexGuard<'_, FxHashMap<u64, Arc<File>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:010}.log"))
    }

    /// Reads a whole file.
    pub fn read_file(&self, number: u64) -> io::Result<Bytes> {
        fs::read(self.path(number)).map(Bytes::from)
    }

    /// Opens a file to append to it after its first `length` bytes, and cuts off the rest.
    pub fn reopen(&self, number: u64, length: u64) -> io::Result<File> {
        let mut file = OpenOptions::new().write(true).open(self.path(number))?;
        if file.metadata()?.len() != length {
            file.set_len(length)?;
            file.sync_all()?;
        }
        file.seek(SeekFrom::Start(length))?;
        Ok(file)
    }

    /// Creates a file that exists also after a crash.
    pub fn create(&self, number: u64) -> io::Result<File> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.path(number))?;
        File::open(&self.directory)?.sync_all()?;
        Ok(file)
    }

    pub fn remove(&self, number: u64) -> io::Result<()> {
        // Under the lock: a reader that opened the file now would keep its space allocated.
        let mut opened = self.opened();
        opened.remove(&number);
        fs::remove_file(self.path(number))
    }

    /// The numbers and lengths of all files, in order.
    pub fn list(&self) -> io::Result<Vec<(u64, u64)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".log")?.parse().ok());
            if let Some(number) = number {
                found.push((number, entry.metadata()?.len()));
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

fn read_error(error: &io::Error) -> Error {
    Error::Closed(format!("the log cannot be read: {error}"))
}
