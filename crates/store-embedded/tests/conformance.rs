//! The embedded store keeps every promise of the traits.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::sync::Arc;

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
        let options = Options { clock, min_free_disk: 0, ..Options::new(self.0.path()) };
        Arc::new(EmbeddedStore::open(options).unwrap())
    }

    /// What the files hold while the store is still open is what a killed process leaves.
    async fn crash(self, store: Arc<dyn Store>) -> Self {
        loop {
            let left = tempfile::tempdir().unwrap();
            // A file may go away under our hands, in which case it was no moment's picture.
            if copy(self.0.path(), left.path()).is_ok() {
                drop(store);
                return Self(left);
            }
        }
    }
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
