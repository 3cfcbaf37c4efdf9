//! Disk errors that outlast one call: the store opens its directory again by itself.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_env::sleep;
use baton_store::{Error, Store, run};
use baton_types::{Offset, PartitionId};

use super::{block, lane, open, push};

/// Like a disk that fails writes: the engine cannot create sorted files, and the directory cannot be opened.
struct Fault {
    format: PathBuf,
    whole: Vec<u8>,
}

impl Fault {
    fn begin(directory: &Path) -> Self {
        for keyspace in fs::read_dir(directory.join("engine/keyspaces")).unwrap() {
            let tables = keyspace.unwrap().path().join("tables");
            for number in (0..200).filter(|_| tables.is_dir()) {
                // An existing file stays.
                let _ = symlink("/nowhere/at/all", tables.join(number.to_string()));
            }
        }
        let format = directory.join("format");
        let whole = fs::read(&format).unwrap();
        fs::write(&format, "unreadable").unwrap();
        Self { format, whole }
    }

    fn end(self) {
        fs::write(&self.format, &self.whole).unwrap();
    }
}

async fn until(store: &dyn Store, condition: impl Fn(&dyn Store) -> bool) {
    for _ in 0..600 {
        if condition(store) {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("away: {:?}, failure: {:?}", store.outage(), store.failure());
}

/// Pushes messages until `condition` holds. Returns those that were accepted.
async fn push_until(
    store: &dyn Store,
    partition: PartitionId,
    salts: std::ops::Range<u64>,
    condition: impl Fn(&dyn Store) -> bool,
) -> u64 {
    let mut accepted = 0;
    for salt in salts {
        if condition(store) {
            return accepted;
        }
        match push(store, partition, block(1, 100, salt)).await {
            Ok(_) => accepted += 1,
            Err(Error::Busy(_)) => sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("away: {:?}, failure: {:?}", store.outage(), store.failure());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_failed_in_the_background_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    let (_, partitions) = lane(&store, 1).await;
    let mut accepted =
        push_until(&store, partitions[0], 0..200, |store| store.statistics().commits > 50).await;
    let (before, commits) = (store.catalog_version(), store.statistics().commits);
    let fault = Fault::begin(directory.path());
    assert!(store.checkpoint().is_err());
    accepted += push_until(&store, partitions[0], 200..900, |store| store.outage().is_some()).await;
    assert_eq!(store.failure(), None, "it is not over");
    let refused = push(&store, partitions[0], block(1, 100, 900)).await;
    assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
    fault.end();
    until(&store, |store| store.outage().is_none()).await;
    assert!(store.catalog_version() > before, "waiting pops look again");
    assert!(store.statistics().commits > commits);
    let read = store.read(partitions[0], Offset(0), Offset(10_000), usize::MAX).await.unwrap();
    assert_eq!(read.iter().map(|segment| segment.messages().count() as u64).sum::<u64>(), accepted);
    // It works as before, and the next start finds the same.
    push(&store, partitions[0], block(1, 100, 901)).await.unwrap();
    store.checkpoint().unwrap();
    store.close().await.unwrap();
    drop(store);
    let store = open(directory.path()).unwrap();
    let tail = run(&store, {
        let partition = partitions[0];
        move |tx| Ok(tx.append(partition, &block(1, 1, 902), Duration::ZERO).first)
    });
    assert_eq!(tail.await.unwrap(), Offset(accepted + 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_cannot_be_opened_again_can_be_closed() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    let (_, partitions) = lane(&store, 1).await;
    let fault = Fault::begin(directory.path());
    assert!(store.checkpoint().is_err());
    push_until(&store, partitions[0], 0..900, |store| store.outage().is_some()).await;
    assert!(store.close().await.is_err());
    drop(store);
    fault.end();
    open(directory.path()).unwrap();
}
