//! Disk space: deleted messages free it, and pushes are refused when there is too little.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_env::sleep;
use baton_store::{Error, Store, run};
use baton_store_embedded::{EmbeddedStore, Options};
use baton_types::Offset;

use super::{block, copy, files, is_log, lane, open, push};

/// The blocks that the directory takes on disk. Journals have holes.
fn bytes_in(directory: &Path) -> u64 {
    files(directory).iter().filter_map(|path| fs::metadata(path).ok()).map(|meta| meta.blocks() * 512).sum()
}

/// Copies a directory. Returns `false` if it changed meanwhile.
fn copied_at_once(from: &Path, to: &Path) -> bool {
    let listing = || -> Vec<_> {
        let meta =
            |path: PathBuf| fs::metadata(&path).and_then(|meta| Ok((path, meta.len(), meta.modified()?)));
        files(from).into_iter().map(|path| meta(path).ok()).collect()
    };
    let before = listing();
    let copied = catch_unwind(|| copy(from, to)).is_ok();
    copied && before == listing()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_gives_disk_space_back() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { min_free_disk: 0, log_file_bytes: 4 << 20, ..Options::new(directory.path()) };
    let store = EmbeddedStore::open(options).unwrap();
    let (_, partitions) = lane(&store, 8).await;
    // 100 MB in segments of a hundred messages.
    let mut answers = Vec::new();
    for salt in 0..1000 {
        let partition = partitions[usize::try_from(salt % 8).unwrap()];
        answers.push(Box::pin(push(&store, partition, block(100, 1000, salt))));
        if answers.len() == 16 {
            for answer in answers.drain(..) {
                answer.await.unwrap();
            }
        }
    }
    for answer in answers {
        answer.await.unwrap();
    }
    let full = bytes_in(directory.path());
    assert!(full > 100_000_000, "{full}");
    // Keep the last tenth of one partition.
    for (index, partition) in partitions.iter().copied().enumerate() {
        let start = Offset(if index == 0 { 11_250 } else { 12_500 });
        run(&store, move |tx| tx.trim(partition, start)).await.unwrap();
    }
    let mut left = full;
    for _ in 0..300 {
        left = bytes_in(directory.path());
        if left < full / 6 {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    println!("{full} bytes before, {left} after");
    assert!(left < full / 6, "{full} bytes before, {left} after");
    let kept = store.read(partitions[0], Offset(11_250), Offset(12_500), usize::MAX).await.unwrap();
    assert_eq!(kept.iter().map(|segment| segment.messages().count()).sum::<usize>(), 1300);
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_segments_of_a_garbage_file_are_rewritten_and_found() {
    let directory = tempfile::tempdir().unwrap();
    let small = |path: &Path| {
        let (min_free_disk, cache_bytes, log_file_bytes) = (0, 0, 64 << 10);
        let options = Options { min_free_disk, cache_bytes, log_file_bytes, ..Options::new(path) };
        EmbeddedStore::open(options).unwrap()
    };
    let store = small(directory.path());
    let (_, partitions) = lane(&store, 4).await;
    let logs = |path: &Path| files(path).into_iter().filter(|path| is_log(path)).collect::<Vec<_>>();
    for salt in 0..400 {
        push(&store, partitions[usize::try_from(salt % 4).unwrap()], block(1, 2000, salt)).await.unwrap();
    }
    let first = logs(directory.path());
    assert!(first.len() > 10, "{first:?}");
    // Three of four messages are deleted, a few at a time, so every file has live ones.
    let mut crashes = 0;
    for step in 1..=10 {
        for partition in partitions[1..].iter().copied() {
            run(&store, move |tx| tx.trim(partition, Offset(step * 10))).await.unwrap();
        }
        // A crash during compaction loses nothing.
        let left = tempfile::tempdir().unwrap();
        if copied_at_once(directory.path(), left.path()) {
            crashes += 1;
            let store = small(left.path());
            let read = store.read(partitions[0], Offset(0), Offset(100), usize::MAX).await.unwrap();
            assert_eq!(read.iter().map(|segment| segment.messages().count()).sum::<usize>(), 100);
            let read = store.read(partitions[1], Offset(step * 10), Offset(100), usize::MAX).await.unwrap();
            assert_eq!(read.len() as u64, 100 - step * 10);
        }
    }
    assert!(crashes > 0, "nothing was copied in one moment");
    // A little garbage is left alone.
    let gone = || first[..8].iter().filter(|path| path.exists()).count() <= 2;
    for _ in 0..300 {
        if gone() {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    // Three quarters of each were garbage.
    assert!(gone(), "{:?}", logs(directory.path()));
    let check = async |store: &EmbeddedStore| {
        let read = store.read(partitions[0], Offset(0), Offset(100), usize::MAX).await.unwrap();
        let payloads =
            read.iter().flat_map(|segment| segment.messages()).map(|message| message.unwrap().payload);
        for (index, payload) in payloads.enumerate() {
            assert!(payload.starts_with(format!("{}/0/", index * 4).as_bytes()));
        }
        assert_eq!(read.len(), 100);
    };
    check(&store).await;
    store.close().await.unwrap();
    drop(store);
    check(&small(directory.path())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn below_the_floor_messages_are_refused_and_the_rest_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { min_free_disk: u64::MAX, ..Options::new(directory.path()) };
    let store = EmbeddedStore::open(options).unwrap();
    let (_, partitions) = lane(&store, 1).await;
    let refused = run(&store, |tx| tx.admit_bytes(1)).await;
    assert!(matches!(refused, Err(Error::DiskFull { floor: u64::MAX })), "{refused:?}");
    push(&store, partitions[0], block(1, 10, 0)).await.unwrap();
    run(&store, move |tx| tx.trim(partitions[0], Offset(1))).await.unwrap();
    run(&store, |tx| tx.put_record("k", "v".into(), None)).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let store = open(directory.path()).unwrap();
    run(&store, |tx| tx.admit_bytes(1)).await.unwrap();
}

/// A small disk never has as much garbage as compaction needs elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn below_the_floor_every_bit_of_garbage_goes() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { min_free_disk: u64::MAX, ..Options::new(directory.path()) };
    let store = EmbeddedStore::open(options).unwrap();
    let (_, partitions) = lane(&store, 2).await;
    for salt in 0..80 {
        push(&store, partitions[usize::try_from(salt % 2).unwrap()], block(10, 10_000, salt)).await.unwrap();
    }
    let log_bytes = || {
        let logs = files(directory.path()).into_iter().filter(|path| is_log(path));
        logs.filter_map(|path| fs::metadata(&path).ok()).map(|meta| meta.len()).sum::<u64>()
    };
    assert!(log_bytes() > 8_000_000);
    let gone = partitions[0];
    run(&store, move |tx| tx.trim(gone, Offset(400))).await.unwrap();
    for _ in 0..600 {
        // A commit makes the store check for garbage.
        run(&store, |tx| tx.put_record("tick", "v".into(), None)).await.unwrap();
        if log_bytes() < 6_000_000 {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    assert!(log_bytes() < 6_000_000, "{}", log_bytes());
    let left = store.read(partitions[1], Offset(0), Offset(400), usize::MAX).await.unwrap();
    assert_eq!(left.last().unwrap().end(), Offset(400));
}
