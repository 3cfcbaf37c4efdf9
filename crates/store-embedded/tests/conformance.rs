//! The embedded store keeps every promise of the traits.

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
        let left = tempfile::tempdir().unwrap();
        copy(self.0.path(), left.path());
        drop(store);
        Self(left)
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

baton_store::conformance!(Directory);
