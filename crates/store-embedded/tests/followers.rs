//! Operations that a push causes: a listener of its event submits an operation, which is decided before the push's fsync
//! and answered with it.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_store::{Event, MessageBlock, NewMessage, QueueSpec, Store, Tx, TxError, run, submit};
use baton_store_embedded::{EmbeddedStore, Options};
use baton_types::{Offset, PartitionId, QueueOptions};
use tokio::sync::mpsc;

/// Most pushes cause one operation. Then callers commit inline, and the deciding thread now and then.
const FEW: usize = 1;
/// Some pushes cause too many operations for inline commits.
const MANY: usize = 5;
const PUSHES: u64 = 60;

async fn store_with_partition(directory: &tempfile::TempDir) -> (Arc<dyn Store>, PartitionId) {
    let options = Options { min_free_disk: 0, ..Options::new(directory.path()) };
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(options).unwrap());
    let partition = run(&*store, |tx| {
        let options = QueueOptions::default();
        let (namespace, task) = ("".into(), "".into());
        let queue = tx.put_queue(QueueSpec { name: "q".into(), namespace, task, options })?.id;
        Ok(tx.create_partition(queue, "p"))
    })
    .await
    .unwrap();
    (store, partition)
}

fn append(tx: &mut dyn Tx, partition: PartitionId) -> Result<(), TxError> {
    let mut block = MessageBlock::default();
    block.push(&NewMessage { payload: b"1", ..NewMessage::default() });
    tx.append(partition, &block, Duration::ZERO);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_that_a_push_causes_are_decided_before_its_sync_and_answered_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let (store, partition) = store_with_partition(&directory).await;
    let (asked, mut answers) = mpsc::channel(MANY);
    let (weak, followers) = (Arc::downgrade(&store), Arc::new(AtomicUsize::new(FEW)));
    let wanted = followers.clone();
    store.set_listener(Arc::new(move |event| {
        let (Event::Appended { partition, .. }, Some(store)) = (event, weak.upgrade()) else { return };
        for _ in 0..wanted.load(Ordering::Relaxed) {
            let decided_at = Arc::new(Mutex::new(0));
            let (noted, weak) = (decided_at.clone(), weak.clone());
            let answer = submit(&*store, move |tx| {
                *noted.lock().unwrap() = weak.upgrade().unwrap().statistics().syncs;
                Ok(tx.partition_by_id(partition)?.unwrap().tail)
            });
            asked.try_send((decided_at, answer)).ok().unwrap();
        }
    }));
    for pushed in 1..=PUSHES {
        let before = store.statistics().syncs;
        let expected = if pushed % 10 == 0 { MANY } else { FEW };
        followers.store(expected, Ordering::Relaxed);
        run(&*store, move |tx| append(tx, partition)).await.unwrap();
        for _ in 0..expected {
            let (decided_at, answer) = answers.recv().await.unwrap();
            assert_eq!(answer.await.unwrap(), Offset(pushed));
            assert_eq!(*decided_at.lock().unwrap(), before, "decided after push {pushed} was synced");
        }
        assert_eq!(store.statistics().syncs, before + 1, "push {pushed} and its followers need one sync");
    }
    store.close().await.unwrap();
}
