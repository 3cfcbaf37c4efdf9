//! Damaged files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use baton_env::{BootClock, Clock, ManualClock};
use baton_store::{Cursor, Durability, Error, GroupSpec, GroupStart, Store, run};
use baton_store_embedded::{EmbeddedStore, Options};
use baton_types::{GroupId, Offset, PartitionId};

use super::{block, copy, files, is_log, lane, open, open_cold, push, push_to_all};

/// Copies a directory with one damaged file. Files that are never changed are hard links.
fn copy_around(from: &Path, to: &Path, damaged: &Path, bytes: &[u8], journal_bytes: &[u8]) {
    for path in files(from) {
        let name = path.strip_prefix(from).unwrap();
        let target = to.join(name);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        if name == damaged {
            fs::write(&target, bytes).unwrap();
        } else if is_journal(name) {
            fs::write(&target, journal_bytes).unwrap();
        } else if name.starts_with("engine/keyspaces") && name.iter().count() == 5 {
            fs::hard_link(&path, &target).unwrap();
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// Whether it is a list of files that a newer list has replaced.
fn is_old_list(path: &Path) -> bool {
    let Ok(current) = fs::read(path.with_file_name("current")) else { return false };
    let number = u64::from_le_bytes(current[..8].try_into().unwrap());
    let name = path.file_name().unwrap().to_string_lossy();
    name.starts_with('v') && *name != *format!("v{number}")
}

fn without_zeros(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    bytes
}

/// Whether it is the engine's journal, on which nothing depends.
fn is_journal(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "jnl")
}

/// The contents of a store: payloads of each partition, records, and the cursors of a group.
#[derive(Debug, PartialEq)]
struct Contents {
    payloads: Vec<Vec<bytes::Bytes>>,
    records: Vec<(String, bytes::Bytes)>,
    cursors: Vec<Option<Cursor>>,
}

async fn contents(store: &dyn Store, partitions: &[PartitionId], group: GroupId) -> Result<Contents, Error> {
    let ids = partitions.to_vec();
    let (tails, cursors, records) = run(store, move |tx| {
        let (mut tails, mut cursors) = (Vec::new(), Vec::new());
        for id in &ids {
            let row = tx.partition_by_id(*id)?;
            tails.push(row.ok_or(Error::Corrupt("a partition is missing".into()))?.tail);
            cursors.push(tx.cursor(group, *id)?);
        }
        Ok((tails, cursors, tx.records("", None, 1000)?))
    })
    .await?;
    let mut payloads = Vec::new();
    for (id, tail) in partitions.iter().zip(tails) {
        let segments = store.read(*id, Offset(0), tail, usize::MAX).await?;
        let mut of_partition = Vec::new();
        for segment in segments {
            for message in segment.messages() {
                of_partition.push(message?.payload);
            }
        }
        payloads.push(of_partition);
    }
    let records = records.into_iter().map(|(key, record)| (key, record.value)).collect();
    Ok(Contents { payloads, records, cursors })
}

/// A store with all kinds of files: tables, a checkpoint, files of the log before and after it.
async fn furnish(directory: &Path) -> (Vec<PartitionId>, GroupId, Contents) {
    // Few index rows, so that some are ingested as files.
    let (log_file_bytes, index_rows) = (512 << 10, 64);
    let options = Options { min_free_disk: 0, log_file_bytes, index_rows, ..Options::new(directory) };
    let store = EmbeddedStore::open(options).unwrap();
    let (queue, partitions) = lane(&store, 4).await;
    let group = run(&store, move |tx| {
        let subscribed_at = tx.now();
        Ok(tx
            .put_group(
                queue,
                &GroupSpec { name: "g", start: GroupStart::Oldest, subscribed_at, conflation: false },
            )
            .id)
    })
    .await
    .unwrap();
    let work = async |from: u64, to: u64| {
        for salt in from..to {
            let partition = partitions[usize::try_from(salt % 4).unwrap()];
            push(&store, partition, block(30, 1000, salt)).await.unwrap();
            push(&store, partition, block(1, 100, salt)).await.unwrap();
            push_to_all(&store, &partitions, salt).await;
            run(&store, move |tx| {
                let cursor = Cursor { next: Offset(salt), ..Cursor::default() };
                tx.put_cursor(group, partition, cursor, Durability::Now);
                tx.put_record(&format!("r{salt:03}"), format!("value {salt}").into(), None)
            })
            .await
            .unwrap();
        }
    };
    work(0, 40).await;
    store.checkpoint().unwrap();
    work(40, 60).await;
    let contents = contents(&store, &partitions, group).await.unwrap();
    store.close().await.unwrap();
    (partitions, group, contents)
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum Outcome {
    Refused,
    NotServed,
    Unharmed,
    Panicked,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_files_are_noticed_and_wrong_bytes_are_never_served() {
    let original = tempfile::tempdir().unwrap();
    let (partitions, group, expected) = furnish(original.path()).await;
    let mut wrong = Vec::new();
    let mut journal_bytes = Vec::new();
    for path in files(original.path()).iter().filter(|path| is_journal(path)) {
        journal_bytes = without_zeros(fs::read(path).unwrap());
    }
    let mut tally = BTreeMap::<(String, Outcome), u32>::new();
    std::panic::set_hook(Box::new(|_| ()));
    for path in files(original.path()) {
        let name = path.strip_prefix(original.path()).unwrap().to_owned();
        let mut whole = fs::read(&path).unwrap();
        if is_journal(&path) {
            whole = without_zeros(whole);
        }
        let length = whole.len();
        if length == 0 || name == Path::new("lock") || is_old_list(&path) {
            continue;
        }
        for place in [0, length / 7, length / 3, length * 3 / 4, length - 1] {
            for cut in [false, true] {
                let damaged = tempfile::tempdir().unwrap();
                let mut bytes = whole.clone();
                if cut {
                    bytes.truncate(place)
                } else {
                    bytes[place] ^= 0x55
                }
                copy_around(original.path(), damaged.path(), &name, &bytes, &journal_bytes);
                let runtime = tokio::runtime::Handle::current();
                let (ids, path) = (partitions.clone(), damaged.path().to_owned());
                let outcome = tokio::task::spawn_blocking(move || {
                    catch_unwind(AssertUnwindSafe(|| match open_cold(&path) {
                        Err(_) => (Outcome::Refused, None),
                        Ok(store) => match runtime.block_on(contents(&store, &ids, group)) {
                            Err(_) => (Outcome::NotServed, None),
                            Ok(told) => (Outcome::Unharmed, Some(told)),
                        },
                    }))
                });
                let (outcome, told) = outcome.await.unwrap().unwrap_or((Outcome::Panicked, None));
                if told.is_some_and(|told| told != expected) {
                    let what = if cut { "cut at" } else { "changed at" };
                    wrong.push(format!("{} {what} {place} of {length}", name.display()));
                }
                let kind = name.iter().nth(if name.starts_with("engine/keyspaces") { 3 } else { 1 });
                let kind = kind.map_or("own".into(), |kind| kind.to_string_lossy().into_owned());
                *tally.entry((kind, outcome)).or_default() += 1;
            }
        }
    }
    let _ = std::panic::take_hook();
    println!("{tally:?}");
    assert!(wrong.is_empty(), "wrong data was served: {wrong:#?}");
    assert!(tally.keys().any(|(_, outcome)| *outcome == Outcome::NotServed), "no damage reached a read");
    assert!(
        tally.keys().any(|(_, outcome)| *outcome == Outcome::Refused),
        "no damage was noticed at opening"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_lost_its_end_is_refused_with_advice() {
    let directory = tempfile::tempdir().unwrap();
    let left = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    let (_, partitions) = lane(&store, 32).await;
    for (salt, partition) in (0..400).zip(partitions.iter().cycle()) {
        push(&store, *partition, block(1, 500, salt)).await.unwrap();
    }
    copy(directory.path(), left.path());
    let log = files(left.path()).into_iter().find(|path| is_log(path)).unwrap();
    let written = written(&fs::read(&log).unwrap()) as u64;
    // The lost commits were answered, and the index has recorded that it has them.
    fs::OpenOptions::new().write(true).open(&log).unwrap().set_len(written / 4).unwrap();
    let refused = open(left.path()).err().unwrap().to_string();
    assert!(refused.contains("commits are missing") && refused.contains("backup"), "{refused}");
}

/// Neither the index nor a later frame shows that commits are missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_cut_behind_everything_in_the_index_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(BootClock::default().now()));
    let options = Options { clock: clock.clone(), min_free_disk: 0, ..Options::new(directory.path()) };
    let store = EmbeddedStore::open(options).unwrap();
    let (_, partitions) = lane(&store, 1).await;
    for salt in 0..10 {
        push(&store, partitions[0], block(1, 500, salt)).await.unwrap();
    }
    clock.advance(Duration::from_secs(1));
    push(&store, partitions[0], block(1, 500, 10)).await.unwrap();
    // What a crash leaves, without what the engine had not synced and without the log's last bytes.
    let cut_by = |bytes: usize| {
        let left = tempfile::tempdir().unwrap();
        copy(directory.path(), left.path());
        for path in files(left.path()).into_iter().filter(|path| is_journal(path)) {
            let length = fs::metadata(&path).unwrap().len();
            fs::write(&path, []).unwrap();
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
        }
        let log = files(left.path()).into_iter().find(|path| is_log(path)).unwrap();
        let bytes_left = written(&fs::read(&log).unwrap()) - bytes;
        fs::OpenOptions::new().write(true).open(&log).unwrap().set_len(bytes_left as u64).unwrap();
        left
    };
    let left = cut_by(3000);
    for _ in 0..2 {
        let refused = open(left.path()).err().unwrap().to_string();
        assert!(refused.contains("commits are missing") && refused.contains("backup"), "{refused}");
    }
    let tail = async |left: &Path| {
        let (store, id) = (open(left).unwrap(), partitions[0]);
        run(&store, move |tx| tx.partition_by_id(id)).await.unwrap().unwrap().tail
    };
    // The last commit may be torn.
    assert_eq!(tail(cut_by(100).path()).await, Offset(10));
    // A directory of an earlier version has no mark.
    fs::remove_file(left.path().join("high-water")).unwrap();
    assert!(tail(left.path()).await < Offset(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_damaged_in_its_middle_is_refused_and_one_that_is_torn_at_its_end_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    let (_, partitions) = lane(&store, 1).await;
    for salt in 0..10 {
        push(&store, partitions[0], block(1, 500, salt)).await.unwrap();
    }
    // What a crash leaves, with bytes changed at this distance from the end.
    let with_damage = |before_end: isize| {
        let left = tempfile::tempdir().unwrap();
        copy(directory.path(), left.path());
        let log = files(left.path()).into_iter().find(|path| is_log(path)).unwrap();
        let mut bytes = fs::read(&log).unwrap();
        let at = written(&bytes).checked_add_signed(-before_end).unwrap();
        bytes[at] ^= 0x55;
        fs::write(&log, bytes).unwrap();
        left
    };
    let middle = with_damage(3000);
    let refused = open(middle.path()).err().unwrap().to_string();
    assert!(refused.contains("file 1 of the log is damaged"), "{refused}");
    let end = with_damage(100);
    let store = open(end.path()).unwrap();
    let partition = partitions[0];
    let told = run(&store, move |tx| tx.partition_by_id(partition)).await.unwrap().unwrap();
    assert_eq!(told.tail, Offset(9));
    // A commit that was never finished may lack its beginning and have its end.
    let ahead = with_damage(-5000);
    for tail in [11, 12] {
        let store = open(ahead.path()).unwrap();
        push(&store, partition, block(1, 10_000, 1)).await.unwrap();
        let told = run(&store, move |tx| tx.partition_by_id(partition)).await.unwrap().unwrap();
        assert_eq!(told.tail, Offset(tail));
    }
    let log = files(ahead.path()).into_iter().find(|path| is_log(path)).unwrap();
    let bytes = fs::read(&log).unwrap();
    assert_eq!(written(&bytes), bytes.len(), "a store that was closed keeps no zeros ahead");
}

/// The length of a log file without the zeros at its end.
fn written(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_replays_what_the_engine_has_lost() {
    let directory = tempfile::tempdir().unwrap();
    let (partitions, group, expected) = furnish(directory.path()).await;
    for path in files(directory.path()).iter().filter(|path| is_journal(path)) {
        let length = fs::metadata(path).unwrap().len();
        fs::write(path, []).unwrap();
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
    }
    let store = open_cold(directory.path()).unwrap();
    assert_eq!(contents(&store, &partitions, group).await.unwrap(), expected);
    drop(store);
    // Without the log the loss is reported.
    for path in files(directory.path()).iter().filter(|path| is_log(path)) {
        fs::remove_file(path).unwrap();
    }
    let refused = open_cold(directory.path()).err().unwrap();
    assert!(matches!(&refused, Error::Corrupt(text) if text.contains("of the log is missing")), "{refused}");
}

/// Like a disk with an I/O error: only the call that needs the unreadable bytes fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_fails_fails_one_call_and_not_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    let (queue, partitions) = lane(&store, 2).await;
    for salt in 0..50 {
        push(&store, partitions[0], block(1, 100, salt)).await.unwrap();
    }
    run(&store, |tx| tx.put_record("unreadable", vec![7; 1000].into(), None)).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let store = open_cold(directory.path()).unwrap();
    for path in files(&directory.path().join("engine/keyspaces")) {
        if path.parent().unwrap().ends_with("tables") {
            let length = usize::try_from(fs::metadata(&path).unwrap().len()).unwrap();
            // In place, as the engine has the file open.
            fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .unwrap()
                .write_all_at(&vec![0; length], 0)
                .unwrap();
        }
    }
    let read = || run(&store, |tx| tx.record("unreadable"));
    assert!(read().await.is_err());
    // The writes before the read that failed are undone.
    let half = run(&store, |tx| {
        tx.put_record("half", "v".into(), None)?;
        tx.record("unreadable")
    });
    assert!(half.await.is_err());
    // Deleted segments cannot be removed, because their places cannot be read.
    run(&store, move |tx| {
        tx.remove_queue(queue);
        Ok(())
    })
    .await
    .unwrap();
    for _ in 0..100 {
        run(&store, |tx| tx.put_record("other", "v".into(), None)).await.unwrap();
    }
    assert!(read().await.is_err());
    assert_eq!(store.failure(), None);
}
