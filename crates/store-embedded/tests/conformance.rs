//! The embedded store keeps every promise of the traits.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use baton_env::ManualClock;
use baton_store::Store;
use baton_store::conformance::Backend;
use baton_store_embedded::{EmbeddedStore, Options};
use tempfile::TempDir;

struct Directory(TempDir);

impl Backend for Directory {
    async fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    async fn open(&self, clock: Arc<ManualClock>) -> Arc<dyn Store> {
        // Small log files, a small cache and few index rows, so that files are created and removed all the time.
        let (min_free_disk, log_file_bytes, cache_bytes, index_rows) = (0, 4 << 10, 4 << 10, 12);
        let options = Options {
            clock,
            min_free_disk,
            log_file_bytes,
            cache_bytes,
            index_rows,
            ..Options::new(self.0.path())
        };
        Arc::new(EmbeddedStore::open(options).unwrap())
    }

    /// A copy of the files of an open store is what a killed process leaves.
    async fn crash(self, store: Arc<dyn Store>) -> Self {
        loop {
            let left = tempfile::tempdir().unwrap();
            // The copy is of one moment only if no file changed meanwhile.
            let before = listing(self.0.path());
            let copied = copy(self.0.path(), left.path());
            if copied.is_ok()
                && before.is_ok_and(|before| listing(self.0.path()).is_ok_and(|now| now == before))
            {
                drop(store);
                return Self(left);
            }
            baton_env::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Every file with its length and the time of the last write.
fn listing(directory: &Path) -> std::io::Result<Vec<(PathBuf, u64, SystemTime)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let (path, meta) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        if meta.is_dir() {
            found.extend(listing(&path)?);
        } else {
            found.push((path, meta.len(), meta.modified()?));
        }
    }
    found.sort();
    Ok(found)
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            std::fs::create_dir(&target)?;
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

baton_store::conformance!(Directory);
