//! The checkpoint: the position in the log before which the index needs no replay.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use baton_store::Error;
use bytes::{Buf, BufMut};
use xxhash_rust::xxh3::xxh3_64;

const NAME: &str = "checkpoint";
const FIELDS_BYTES: usize = 32;

/// A position between two frames of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPosition {
    pub file: u64,
    pub at: u64,
    /// The number of the commit before it.
    pub commits: u64,
    /// Bytes of segments in the file before it.
    pub stored: u64,
}

impl LogPosition {
    /// The beginning of the log.
    pub const START: Self = Self { file: 1, at: 0, commits: 0, stored: 0 };

    /// The beginning of the next file.
    pub fn next_file(self) -> Self {
        Self { file: self.file + 1, at: 0, commits: self.commits, stored: 0 }
    }

    /// Reads the checkpoint of a data directory.
    pub fn load(directory: &Path) -> Result<Self, Error> {
        let path = directory.join(NAME);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::START),
            Err(error) => return Err(Error::Unusable(format!("cannot use {}: {error}", path.display()))),
        };
        let damaged =
            || Error::Corrupt(format!("{} is damaged; restore the directory from a backup", path.display()));
        let (mut fields, sum) = bytes.split_at_checked(FIELDS_BYTES).ok_or_else(damaged)?;
        if *sum != xxh3_64(fields).to_le_bytes() {
            return Err(damaged());
        }
        let mut field = || fields.get_u64_le();
        Ok(Self { file: field(), at: field(), commits: field(), stored: field() })
    }

    /// Writes this as the checkpoint and syncs it.
    pub fn store(self, directory: &Path) -> Result<(), Error> {
        let mut bytes = Vec::with_capacity(FIELDS_BYTES + 8);
        [self.file, self.at, self.commits, self.stored].iter().for_each(|field| bytes.put_u64_le(*field));
        bytes.put_u64_le(xxh3_64(&bytes));
        let (path, fresh) = (directory.join(NAME), directory.join("checkpoint.new"));
        let write = || {
            let mut file = File::create(&fresh)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&fresh, &path)?;
            File::open(directory)?.sync_all()
        };
        write().map_err(|error: io::Error| Error::Closed(format!("cannot write {}: {error}", path.display())))
    }
}
