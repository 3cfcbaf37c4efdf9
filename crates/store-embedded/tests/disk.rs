//! What the embedded store does about its directory: damage, space, and whose it is.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_env::sleep;
use baton_store::{
    Block, Cursor, Durability, Error, GroupSpec, NewMessage, QueueSpec, Start, Store, begin, run,
};
use baton_store_embedded::{EmbeddedStore, Options};
use baton_types::{GroupId, Offset, PartitionId, QueueId, QueueOptions};

fn open(directory: &Path) -> Result<EmbeddedStore, Error> {
    EmbeddedStore::open(Options { min_free_disk: 0, ..Options::new(directory) })
}

/// Without young messages in memory: everything is read from disk.
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

/// Messages that differ from each other and from every other block's.
fn block(messages: usize, bytes: usize, salt: u64) -> Block {
    let mut block = Block::default();
    for index in 0..messages {
        let mut payload = format!("{salt}/{index}/").into_bytes();
        payload.resize(bytes, b'a' + u8::try_from(salt % 26).unwrap());
        block.push(&NewMessage { payload: &payload, ..NewMessage::default() });
    }
    block
}

async fn push(store: &dyn Store, partition: PartitionId, block: Block) -> Result<Offset, Error> {
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

/// What the directory takes on disk. Journals are made larger than they are, with nothing behind it.
fn bytes_in(directory: &Path) -> u64 {
    files(directory).iter().filter_map(|path| fs::metadata(path).ok()).map(|meta| meta.blocks() * 512).sum()
}

/// Copies a directory. A journal is made larger than it is, with zeros that need not be written.
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

/// Copies a directory where one file is about to be damaged; the others that are never changed are shared.
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

/// Whether it is a list of files that a newer one has replaced.
fn is_old_list(path: &Path) -> bool {
    let Ok(current) = fs::read(path.with_file_name("current")) else { return false };
    let number = u64::from_le_bytes(current[..8].try_into().unwrap());
    let name = path.file_name().unwrap().to_string_lossy();
    name.starts_with('v') && *name != *format!("v{number}")
}

fn is_log(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "log")
}

/// Copies a directory, unless it changes meanwhile.
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

fn without_zeros(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    bytes
}

/// Whether it is the engine's journal, on which nothing rests.
fn is_journal(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "jnl")
}

/// Everything that a store tells: payloads per partition, records, and how far a group is.
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
    let options = Options { min_free_disk: 0, log_file_bytes: 512 << 10, ..Options::new(directory) };
    let store = EmbeddedStore::open(options).unwrap();
    let (queue, partitions) = lane(&store, 4).await;
    let group = run(&store, move |tx| {
        let subscribed_at = tx.now();
        Ok(tx
            .put_group(
                queue,
                &GroupSpec { name: "g", start: Start::Oldest, subscribed_at, conflation: false },
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
    let (_, partitions) = lane(&store, 1).await;
    for salt in 0..400 {
        push(&store, partitions[0], block(1, 500, salt)).await.unwrap();
    }
    copy(directory.path(), left.path());
    let log = files(left.path()).into_iter().find(|path| is_log(path)).unwrap();
    let written = written(&fs::read(&log).unwrap()) as u64;
    // Commits were torn off after they had been answered and the engine had written down that it knows of them.
    fs::OpenOptions::new().write(true).open(&log).unwrap().set_len(written / 4).unwrap();
    let refused = open(left.path()).err().unwrap().to_string();
    assert!(refused.contains("commits are missing") && refused.contains("backup"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_damaged_in_its_middle_is_refused_and_one_that_is_torn_at_its_end_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    let (_, partitions) = lane(&store, 1).await;
    for salt in 0..10 {
        push(&store, partitions[0], block(1, 500, salt)).await.unwrap();
    }
    // As a crash leaves it, with bytes changed so many before its end.
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
    // Something of a commit that was never finished stands after its beginning is missing.
    let ahead = with_damage(-5000);
    for tail in [11, 12] {
        let store = open(ahead.path()).unwrap();
        push(&store, partition, block(1, 10_000, 1)).await.unwrap();
        let told = run(&store, move |tx| tx.partition_by_id(partition)).await.unwrap().unwrap();
        assert_eq!(told.tail, Offset(tail));
    }
    let log = files(ahead.path()).into_iter().find(|path| is_log(path)).unwrap();
    let bytes = fs::read(&log).unwrap();
    assert_eq!(written(&bytes), bytes.len(), "a store that was closed keeps no space ahead");
}

/// Where a file of the log ends, without the space that it has ahead.
fn written(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_gives_disk_space_back() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { min_free_disk: 0, log_file_bytes: 4 << 20, ..Options::new(directory.path()) };
    let store = EmbeddedStore::open(options).unwrap();
    let (_, partitions) = lane(&store, 8).await;
    // 100 MB, a hundred messages to a segment.
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
async fn what_stays_of_a_file_is_written_again_and_found_there() {
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
    // Three of four messages go, a few at a time, so every file has some that stay.
    let mut crashes = 0;
    for step in 1..=10 {
        for partition in partitions[1..].iter().copied() {
            run(&store, move |tx| tx.trim(partition, Offset(step * 10))).await.unwrap();
        }
        // Whatever moves meanwhile, a crash loses nothing.
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
    // They held four times as much as is still needed of them.
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
async fn what_the_engine_forgets_the_log_tells_again() {
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
    // Without the log, that is noticed.
    for path in files(directory.path()).iter().filter(|path| is_log(path)) {
        fs::remove_file(path).unwrap();
    }
    let refused = open_cold(directory.path()).err().unwrap();
    assert!(matches!(&refused, Error::Corrupt(text) if text.contains("of the log is missing")), "{refused}");
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
async fn below_the_floor_messages_are_refused_and_the_rest_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { min_free_disk: u64::MAX, ..Options::new(directory.path()) };
    let store = EmbeddedStore::open(options).unwrap();
    let (_, partitions) = lane(&store, 1).await;
    let refused = run(&store, |tx| tx.admit(1)).await;
    assert!(matches!(refused, Err(Error::DiskFull { floor: u64::MAX })), "{refused:?}");
    push(&store, partitions[0], block(1, 10, 0)).await.unwrap();
    run(&store, move |tx| tx.trim(partitions[0], Offset(1))).await.unwrap();
    run(&store, |tx| tx.put_record("k", "v".into(), None)).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let store = open(directory.path()).unwrap();
    run(&store, |tx| tx.admit(1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_decision_is_never_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    run(&store, |tx| tx.put_record("before", "v".into(), None)).await.unwrap();
    let half = begin(&store, |tx| -> Result<(), _> {
        tx.put_record("half", "v".into(), None)?;
        Err(Error::Busy(Duration::ZERO).into())
    });
    let after = begin(&store, |tx| tx.put_record("after", "v".into(), None));
    assert!(half.await.is_err());
    assert!(after.await.is_err());
    assert!(store.failure().unwrap().contains("after its first write"));
    assert!(store.close().await.is_err());
    drop(store);
    let store = open(directory.path()).unwrap();
    let found = run(&store, |tx| tx.records("", None, 9)).await.unwrap();
    assert_eq!(found.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), ["before"]);
}

/// Of this process so far: unlike the time of day, it does not depend on what else the machine does.
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
                &GroupSpec { name: "g", start: Start::Oldest, subscribed_at, conflation: false },
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
        // More than the log of tails holds before its beginning goes.
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
                Ok((rows?, tx.kept(queue)?))
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
    // Nothing of a queue that is deleted is left, also when there was no time for it.
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
