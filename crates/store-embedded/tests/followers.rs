//! What a push leads to at once: whoever hears of it asks, and is decided and answered with the same sync.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_store::{Block, Event, NewMessage, QueueSpec, Store, begin, run};
use baton_store_embedded::{EmbeddedStore, Options};
use baton_types::{Offset, QueueOptions};
use tokio::sync::mpsc;

/// Most pushes wake one, so that callers decide on their own threads, and the deciding thread now and then.
const FEW: usize = 1;
/// Some wake more than are few enough for that.
const MANY: usize = 5;
const PUSHES: u64 = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everyone_whom_a_push_wakes_is_decided_before_it_is_synced_and_answered_after() {
    let directory = tempfile::tempdir().unwrap();
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
    let (asked, mut answers) = mpsc::channel(MANY);
    let (weak, followers) = (Arc::downgrade(&store), Arc::new(AtomicUsize::new(FEW)));
    let wanted = followers.clone();
    store.listen(Arc::new(move |event| {
        let (Event::Appended { partition, .. }, Some(store)) = (event, weak.upgrade()) else { return };
        for _ in 0..wanted.load(Ordering::Relaxed) {
            let decided_at = Arc::new(Mutex::new(0));
            let (noted, weak) = (decided_at.clone(), weak.clone());
            let answer = begin(&*store, move |tx| {
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
        run(&*store, move |tx| {
            let mut block = Block::default();
            block.push(&NewMessage { payload: b"1", ..NewMessage::default() });
            tx.append(partition, &block, Duration::ZERO);
            Ok(())
        })
        .await
        .unwrap();
        for _ in 0..expected {
            let (decided_at, answer) = answers.recv().await.unwrap();
            assert_eq!(answer.await.unwrap(), Offset(pushed));
            assert_eq!(*decided_at.lock().unwrap(), before, "decided after push {pushed} was synced");
        }
        assert_eq!(store.statistics().syncs, before + 1, "push {pushed} and its followers need one sync");
    }
    store.close().await.unwrap();
}
