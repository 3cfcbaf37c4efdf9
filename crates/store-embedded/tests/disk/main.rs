//! The data directory: damage, disk space, recovery, and its lock.

#![allow(clippy::unwrap_used, reason = "a test")]

mod damage;
mod recovery;
mod space;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use baton_env::ManualClock;
use baton_store::{
    Cursor, Durability, Error, GroupSpec, GroupStart, MessageBlock, NewMessage, QueueSpec, Store, run, submit,
};
use baton_store_embedded::{EmbeddedStore, Options};
use baton_types::{Offset, PartitionId, QueueId, QueueOptions, Timestamp};

fn open(directory: &Path) -> Result<EmbeddedStore, Error> {
    EmbeddedStore::open(Options { min_free_disk: 0, ..Options::new(directory) })
}

/// Opens a store without a segment cache: every message is read from disk.
fn open_cold(directory: &Path) -> Result<EmbeddedStore, Error> {
    EmbeddedStore::open(Options { min_free_disk: 0, cache_bytes: 0, ..Options::new(directory) })
}

async fn lane(store: &dyn Store, partitions: u64) -> (QueueId, Vec<PartitionId>) {
    run(store, move |tx| {
        let options = QueueOptions::default();
        let (namespace, task) = ("".into(), "".into());
        let queue = tx.put_queue(QueueSpec { name: "q".into(), namespace, task, options })?.id;
        let create = |index| tx.create_partition(queue, &format!("p{index}"));
        Ok((queue, (0..partitions).map(create).collect()))
    })
    .await
    .unwrap()
}

/// Messages that differ from each other and from those of every other block.
fn block(messages: usize, bytes: usize, salt: u64) -> MessageBlock {
    let mut block = MessageBlock::default();
    for index in 0..messages {
        let mut payload = format!("{salt}/{index}/").into_bytes();
        payload.resize(bytes, b'a' + u8::try_from(salt % 26).unwrap());
        block.push(&NewMessage { payload: &payload, ..NewMessage::default() });
    }
    block
}

async fn push(store: &dyn Store, partition: PartitionId, block: MessageBlock) -> Result<Offset, Error> {
    run(store, move |tx| Ok(tx.append(partition, &block, Duration::ZERO).first)).await
}

/// One message to each partition, in one commit.
async fn push_to_all(store: &dyn Store, partitions: &[PartitionId], salt: u64) {
    let (partitions, block) = (partitions.to_vec(), block(1, 100, salt));
    let appended = run(store, move |tx| {
        partitions.iter().for_each(|id| _ = tx.append(*id, &block, Duration::ZERO));
        Ok(())
    });
    appended.await.unwrap();
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn is_log(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "log")
}

/// Copies a directory. The zeros at the end of a journal become a hole.
fn copy(from: &Path, to: &Path) {
    for path in files(from) {
        let target = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        let bytes = fs::read(&path).unwrap();
        let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        fs::write(&target, &bytes[..written]).unwrap();
        fs::OpenOptions::new().write(true).open(&target).unwrap().set_len(bytes.len() as u64).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_opening_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    let refused = open(directory.path()).err().unwrap();
    assert!(matches!(&refused, Error::Unusable(text) if text.contains("another process")), "{refused}");
    drop(store);
    open(directory.path()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_decision_is_never_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    run(&store, |tx| tx.put_record("before", "v".into(), None)).await.unwrap();
    let half = submit(&store, |tx| -> Result<(), _> {
        tx.put_record("half", "v".into(), None)?;
        Err(Error::Busy(Duration::ZERO).into())
    });
    let after = submit(&store, |tx| tx.put_record("after", "v".into(), None));
    assert!(half.await.is_err());
    assert!(after.await.is_ok());
    assert_eq!(store.failure(), None);
    store.close().await.unwrap();
    drop(store);
    let store = open(directory.path()).unwrap();
    let found = run(&store, |tx| tx.records("", None, 9)).await.unwrap();
    assert_eq!(found.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), ["after", "before"]);
}

/// Callers and the deciding thread commit small batches, the commit thread large ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answered_push_survives_a_crash_whichever_thread_committed_it() {
    const ROUNDS: u64 = 24;
    const PARTITIONS: u64 = 8;
    let directory = tempfile::tempdir().unwrap();
    let left = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    let (_, partitions) = lane(&store, PARTITIONS).await;
    for round in 0..ROUNDS {
        let push = |(index, id): (u64, &PartitionId)| {
            let bytes = if (round + index) % PARTITIONS == 0 && round % 2 == 0 { 200_000 } else { 10 };
            let (id, block) = (*id, block(1, bytes, round));
            submit(&store, move |tx| Ok(tx.append(id, &block, Duration::ZERO).first))
        };
        let pushes: Vec<_> = (0..).zip(&partitions).map(push).collect();
        for push in pushes {
            assert_eq!(push.await.unwrap(), Offset(round));
        }
    }
    // What a crash leaves.
    copy(directory.path(), left.path());
    let store = open_cold(left.path()).unwrap();
    for id in partitions {
        let segments = store.read(id, Offset(0), Offset(ROUNDS), usize::MAX).await.unwrap();
        let end = segments.iter().fold(Offset(0), |end, segment| {
            assert_eq!(segment.header.base, end);
            segment.end()
        });
        assert_eq!(end, Offset(ROUNDS));
    }
}

/// The processor time of this process. Other load on the machine does not change it.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let ticks = after_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap());
    Duration::from_millis(10 * ticks.sum::<u64>())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_with_many_partitions_opens_quickly() {
    const PARTITIONS: u64 = 100_000;
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    let (queue, partitions) = lane(&store, PARTITIONS).await;
    let group = run(&store, move |tx| {
        let subscribed_at = tx.now();
        let group = tx
            .put_group(
                queue,
                &GroupSpec { name: "g", start: GroupStart::Oldest, subscribed_at, conflation: false },
            )
            .id;
        let one = block(1, 100, 0);
        for partition in &partitions {
            tx.append(*partition, &one, Duration::ZERO);
            tx.put_cursor(group, *partition, Cursor::default(), Durability::Now);
        }
        Ok(group)
    })
    .await
    .unwrap();
    store.close().await.unwrap();
    drop(store);
    let before = processor_time();
    let store = open(directory.path()).unwrap();
    let took = processor_time() - before;
    let told = run(&store, move |tx| Ok((tx.partition_count(queue)?, tx.backlog(group)?))).await.unwrap();
    assert_eq!(told, (PARTITIONS, PARTITIONS));
    println!("opened {PARTITIONS} partitions with cursors in {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tails_that_were_moved_together_are_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open_cold(directory.path()).unwrap();
    let (queue, partitions) = lane(&store, 40).await;
    for round in 0..4 {
        // More than the tail log has before its oldest entries are removed.
        for salt in 0..300 {
            push_to_all(&store, &partitions[..if salt % 2 == 0 { 40 } else { 20 }], salt).await;
        }
        let (first, last) = (partitions[0], partitions[39]);
        run(&store, move |tx| tx.trim(first, Offset(300 * round + 250))).await.unwrap();
        run(&store, move |tx| tx.trim(last, Offset(150 * (round + 1)))).await.unwrap();
        let rows = async |store: &EmbeddedStore| {
            let ids = partitions.clone();
            run(store, move |tx| {
                let rows: Result<Vec<_>, _> = ids.iter().map(|id| tx.partition_by_id(*id)).collect();
                Ok((rows?, tx.message_count(queue)?))
            })
            .await
            .unwrap()
        };
        let before = rows(&store).await;
        let tails: Vec<_> = before.0.iter().map(|row| row.as_ref().unwrap().tail.0).collect();
        let expected = |index: u64| if index < 20 { 300 * (round + 1) } else { 150 * (round + 1) };
        assert_eq!(tails, (0..40).map(expected).collect::<Vec<_>>());
        if round % 2 == 0 {
            store.checkpoint().unwrap();
        }
        drop(store);
        store = open_cold(directory.path()).unwrap();
        assert_eq!(rows(&store).await, before);
        let read = store.read(partitions[25], Offset(0), Offset(u64::MAX), usize::MAX).await.unwrap();
        assert_eq!(read.last().unwrap().end().0, 150 * (round + 1));
    }
    // Nothing of a deleted queue is left, even if the store closed before the sweep.
    run(&store, move |tx| {
        tx.remove_queue(queue);
        Ok(())
    })
    .await
    .unwrap();
    drop(store);
    let store = open_cold(directory.path()).unwrap();
    let (_, fresh) = lane(&store, 5).await;
    push_to_all(&store, &fresh, 0).await;
    drop(store);
    let store = open_cold(directory.path()).unwrap();
    let told = run(&store, move |tx| Ok(tx.partition_by_id(fresh[4])?.map(|row| row.tail))).await.unwrap();
    assert_eq!(told, Some(Offset(1)));
}

/// Stored time cannot go back by itself, so a start refuses an implausible clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_asks_about_a_clock_that_is_far_from_the_stored_time() {
    let directory = tempfile::tempdir().unwrap();
    let begin = Timestamp::from_micros(1_800_000_000_000_000);
    let day = Duration::from_secs(24 * 3600);
    let clock = Arc::new(ManualClock::new(begin));
    let open = |resets_clock| {
        let clock = clock.clone();
        EmbeddedStore::open(Options {
            clock,
            resets_clock,
            min_free_disk: 0,
            ..Options::new(directory.path())
        })
    };
    let lease_until = async |store: &EmbeddedStore, id: PartitionId| {
        run(store, move |tx| {
            let queue = tx.queue("q")?.unwrap().id;
            let group = tx.group(queue, "g")?.unwrap().id;
            Ok(tx.cursor(group, id)?.unwrap().available_at)
        })
        .await
        .unwrap()
    };
    let now = async |store: &EmbeddedStore| run(store, |tx| Ok(tx.now())).await.unwrap();
    let store = open(false).unwrap();
    let (queue, partitions) = lane(&store, 1).await;
    let id = partitions[0];
    drop(store);
    // A store that was closed for a week opens.
    clock.set(begin.after(7 * day));
    let store = open(false).unwrap();
    assert!(now(&store).await >= begin.after(7 * day));
    run(&store, move |tx| {
        let subscribed_at = tx.now();
        let spec = GroupSpec { name: "g", start: GroupStart::Oldest, subscribed_at, conflation: false };
        let group = tx.put_group(queue, &spec).id;
        let cursor = Cursor { available_at: tx.now().after(Duration::from_secs(60)), ..Cursor::default() };
        tx.put_cursor(group, id, cursor, Durability::Now);
        Ok(())
    })
    .await
    .unwrap();
    drop(store);
    for implausible in [begin.after(5 * day), begin.after(3650 * day)] {
        clock.set(implausible);
        let refused = open(false).err().unwrap().to_string();
        assert!(refused.contains("baton data reset-clock"), "{refused}");
    }
    // A difference of an hour is slewed.
    clock.set(begin.after(7 * day).before(Duration::from_secs(3600)));
    let store = open(false).unwrap();
    assert!(now(&store).await >= begin.after(7 * day));
    drop(store);
    clock.set(begin.after(day));
    let store = open(true).unwrap();
    assert!(now(&store).await < begin.after(day + Duration::from_secs(1)));
    assert!(lease_until(&store, id).await <= begin.after(day));
    store.close().await.unwrap();
    drop(store);
    let store = open(false).unwrap();
    assert!(now(&store).await < begin.after(day + Duration::from_secs(1)));
}
