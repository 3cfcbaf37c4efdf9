//! Measures how close the embedded store comes to the disk. Prints JSON lines.
//!
//! `engine_limit throughput` compares pushes through the store with a plain loop that appends the same bytes in the
//! same commit batches (`throughput IDS SPREAD BATCH PARTITIONS` runs one such case). `engine_limit partitions` measures
//! the memory of a partition, and whether many partitions slow a push down. `engine_limit restart` measures the time of a
//! start with ten million messages, after a close and after kill -9. Without an argument it does all three.
//! `ENGINE_LIMIT_DIR` names a directory; the default is a temporary one. Memory is measured correctly only by
//! `partitions` alone: after the others the process reuses memory that they freed. Compare only numbers of one run.

#![allow(clippy::unwrap_used, reason = "an example that stops at the first problem")]

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_store::{
    BoxFuture, Cursor, Durability, Error, GroupSpec, GroupStart, MessageBlock, NewMessage, QueueSpec, Store,
    Tx, run, submit,
};
use baton_store_embedded::{EmbeddedStore, Options};
use baton_types::{Offset, PartitionId, QueueId, QueueOptions};
use serde_json::json;

/// The allocator of the server.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PAYLOAD_BYTES: usize = 300;
const WINDOW: Duration = Duration::from_secs(3600);
const ROUNDS: usize = 5;
/// Pushes in flight, unless `ENGINE_LIMIT_IN_FLIGHT` gives another number.
const IN_FLIGHT: usize = 4;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        match arguments.first().map(String::as_str) {
            Some("throughput") if arguments.len() == 5 => {
                let flag = |index: usize| arguments[index].parse().unwrap();
                let number = |index: usize| arguments[index].parse().unwrap();
                let batch = usize::try_from(number(3)).unwrap();
                compare(flag(1), flag(2), batch, number(4)).await;
            }
            Some("throughput") => throughput().await,
            Some("partitions") => partitions().await,
            Some("restart") => restart().await,
            Some("fill") => fill(Path::new(&arguments[1]), arguments[2].parse().unwrap()).await,
            _ => {
                throughput().await;
                partitions().await;
                restart().await;
            }
        }
    });
}

fn in_flight() -> usize {
    std::env::var("ENGINE_LIMIT_IN_FLIGHT").map_or(IN_FLIGHT, |number| number.parse().unwrap())
}

fn scratch() -> tempfile::TempDir {
    match std::env::var_os("ENGINE_LIMIT_DIR") {
        Some(directory) => tempfile::tempdir_in(directory).unwrap(),
        None => tempfile::tempdir().unwrap(),
    }
}

fn open(directory: &Path) -> EmbeddedStore {
    EmbeddedStore::open(Options::new(directory)).unwrap()
}

async fn queue(store: &dyn Store, partitions: u64) -> (QueueId, Vec<PartitionId>) {
    let spec = QueueSpec {
        name: "q".into(),
        namespace: "".into(),
        task: "".into(),
        options: QueueOptions::default(),
    };
    let queue = run(store, move |tx| Ok(tx.put_queue(spec.clone())?.id)).await.unwrap();
    let mut ids = Vec::new();
    for from in (0..partitions).step_by(1000) {
        let to = partitions.min(from + 1000);
        let some = run(store, move |tx| {
            Ok((from..to)
                .map(|index| tx.create_partition(queue, &format!("partition-{index}")))
                .collect::<Vec<_>>())
        });
        ids.extend(some.await.unwrap());
    }
    (queue, ids)
}

/// The messages of one push, with ids that no other push has.
fn block(messages: usize, push: u64, named: bool) -> MessageBlock {
    let payload = [b'x'; PAYLOAD_BYTES];
    let mut block = MessageBlock::default();
    for index in 0..messages {
        let id = format!("{push:012x}-{index:08x}");
        block.push(&NewMessage {
            transaction_id: named.then_some(&id),
            payload: &payload,
            ..NewMessage::default()
        });
    }
    block
}

/// The operation of a push: check the free space, search for duplicates, append.
fn push(
    tx: &mut dyn Tx,
    to: &[(PartitionId, MessageBlock)],
    named: bool,
) -> Result<(), baton_store::TxError> {
    tx.admit_bytes(0)?;
    if named {
        for (partition, block) in to {
            assert_eq!(tx.find_all_remembered(*partition, block)?, []);
        }
    }
    for (partition, block) in to {
        tx.append(*partition, block, if named { WINDOW } else { Duration::ZERO });
    }
    Ok(())
}

type Push = Vec<(PartitionId, MessageBlock)>;

/// Runs all pushes with a few of them in flight.
async fn push_all(store: &dyn Store, pushes: Vec<Push>, named: bool) -> Duration {
    let in_flight = in_flight();
    let watch = Stopwatch::start();
    let mut under_way: VecDeque<BoxFuture<'static, Result<(), Error>>> = VecDeque::new();
    for to in pushes {
        if under_way.len() == in_flight {
            under_way.pop_front().unwrap().await.unwrap();
        }
        under_way.push_back(Box::pin(submit(store, move |tx| push(tx, &to, named))));
    }
    for answer in under_way {
        answer.await.unwrap();
    }
    watch.elapsed()
}

/// Appends as many bytes in as many commits, and does nothing else.
fn plain(directory: &Path, bytes: usize, commits: u64, preallocated: bool) -> Duration {
    let path = directory.join("plain");
    let mut file = File::create(&path).unwrap();
    if preallocated {
        file.set_len(bytes as u64).unwrap();
        file.sync_all().unwrap();
    }
    let commits = usize::try_from(commits).unwrap();
    let data = vec![b'x'; bytes.div_ceil(commits)];
    let watch = Stopwatch::start();
    let mut written = 0;
    for commit in 1..=commits {
        let length = bytes * commit / commits - written;
        file.write_all(&data[..length]).unwrap();
        file.sync_data().unwrap();
        written += length;
    }
    let took = watch.elapsed();
    fs::remove_file(path).unwrap();
    took
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

async fn throughput() {
    for named in [false, true] {
        for spread in [false, true] {
            for batch in [100, 1000] {
                for partitions in [1, 100, 10_000] {
                    if !(spread && partitions == 1) {
                        compare(named, spread, batch, partitions).await;
                    }
                }
            }
        }
    }
}

async fn compare(named: bool, spread: bool, batch: usize, partitions: u64) {
    let directory = scratch();
    let store = open(&directory.path().join("store"));
    let (_, ids) = queue(&store, partitions).await;
    let count = if batch == 100 { 1000 } else { 300 };
    let (mut engine, mut grown, mut fixed, mut group, mut commits_all) = (vec![], vec![], vec![], vec![], 0);
    let mut next = 0;
    // The first round warms up and is not counted.
    for round in 0..=ROUNDS {
        let mut bytes = 0;
        let pushes: Vec<Push> = (0..count as u64)
            .map(|index| {
                let push = round as u64 * count as u64 + index;
                let mut place = || {
                    next += 1;
                    ids[next % ids.len()]
                };
                let to: Push = if spread {
                    (0..batch as u64).map(|i| (place(), block(1, push * 100_000 + i, named))).collect()
                } else {
                    vec![(place(), block(batch, push, named))]
                };
                bytes += to.iter().map(|(_, block)| block.bytes().len() + 36).sum::<usize>();
                to
            })
            .collect();
        let before = store.statistics();
        let took = push_all(&store, pushes, named).await;
        let after = store.statistics();
        let (commits, operations) = (after.commits - before.commits, after.operations - before.operations);
        let plain_grown = plain(directory.path(), bytes, commits, false);
        let plain_fixed = plain(directory.path(), bytes, commits, true);
        if round > 0 {
            let per_second = |took: Duration| (count * batch) as f64 / took.as_secs_f64();
            engine.push(per_second(took));
            grown.push(per_second(plain_grown));
            fixed.push(per_second(plain_fixed));
            group.push(operations as f64 / commits as f64);
            commits_all += commits;
        }
    }
    let ratio = median(engine.iter().zip(&grown).map(|(e, p)| e / p).collect());
    let ratio_preallocated = median(engine.iter().zip(&fixed).map(|(e, p)| e / p).collect());
    let line = json!({
        "test": "throughput", "batch": batch, "partitions": partitions, "transaction_ids": named,
        "batch_goes_to": if spread { "one partition per message" } else { "one partition" },
        "engine_messages_per_s": median(engine).round(), "limit_messages_per_s": median(grown).round(),
        "limit_preallocated_messages_per_s": median(fixed).round(),
        "ratio": (ratio * 100.0).round() / 100.0,
        "ratio_preallocated": (ratio_preallocated * 100.0).round() / 100.0,
        "commits": commits_all, "pushes_per_commit": (median(group) * 100.0).round() / 100.0, "rounds": ROUNDS, "pushes_in_flight": in_flight(),
    });
    println!("{line}");
    store.close().await.unwrap();
}

fn resident_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

async fn partitions() {
    const MANY: u64 = 1_000_000;
    let directory = scratch();
    let store = open(&directory.path().join("store"));
    // The memory of every store: full caches and write buffers.
    let (_, few) = queue(&store, 100).await;
    for _ in 0..6 {
        let pushes = (0..500).map(|index| vec![(few[index % 100], block(100, 0, false))]).collect();
        push_all(&store, pushes, false).await;
    }
    let before = resident_bytes();
    let watch = Stopwatch::start();
    let spec = QueueSpec {
        name: "many".into(),
        namespace: "".into(),
        task: "".into(),
        options: QueueOptions::default(),
    };
    let (queue, group) = run(&store, move |tx| {
        let (queue, subscribed_at) = (tx.put_queue(spec.clone())?.id, tx.now());
        Ok((
            queue,
            tx.put_group(
                queue,
                &GroupSpec { name: "g", start: GroupStart::Oldest, subscribed_at, conflation: false },
            )
            .id,
        ))
    })
    .await
    .unwrap();
    let one = Arc::new(block(1, 0, false));
    let mut many = Vec::new();
    for from in (0..MANY).step_by(1000) {
        let one = one.clone();
        let ids = run(&store, move |tx| {
            let mut ids = Vec::new();
            for index in from..from + 1000 {
                let id = tx.create_partition(queue, &format!("customer-{index}"));
                tx.append(id, &one, Duration::ZERO);
                let cursor = Cursor { next: Offset(0), ..Cursor::default() };
                tx.put_cursor(group, id, cursor, Durability::Now);
                ids.push(id);
            }
            Ok(ids)
        });
        many.extend(ids.await.unwrap());
    }
    let took = watch.elapsed();
    let grown = resident_bytes() - before - MANY * 8;
    let line = json!({
        "test": "partitions", "partitions": MANY, "seconds_to_create": took.as_secs_f64(),
        "resident_bytes_per_partition": grown / MANY,
    });
    println!("{line}");
    let (mut over_few, mut over_many) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        for (ids, times) in [(&few, &mut over_few), (&many, &mut over_many)] {
            let pushes = (0..500usize)
                .map(|push| {
                    let start = (round * 500 + push) * 100;
                    // Far apart, like the partitions of unrelated pushes.
                    (0..100).map(|i| (ids[(start + i) * 7919 % ids.len()], block(1, 0, false))).collect()
                })
                .collect();
            let took = push_all(&store, pushes, false).await;
            if round > 0 {
                times.push(took.as_secs_f64() * 1e6 / 50_000.0);
            }
        }
    }
    let (few, many) = (median(over_few), median(over_many));
    let line = json!({
        "test": "cost per message", "batch": 100, "batch_goes_to": "one partition per message",
        "micros_over_100_partitions": few, "micros_over_1000000_partitions": many, "ratio": many / few,
    });
    println!("{line}");
    let watch = Stopwatch::start();
    store.close().await.unwrap();
    drop(store);
    let closed = watch.elapsed();
    let watch = Stopwatch::start();
    let store = open(&directory.path().join("store"));
    let opened = watch.elapsed();
    assert!(run(&store, move |tx| tx.backlog(group)).await.unwrap() >= MANY);
    let line = json!({
        "test": "restart with partitions", "partitions": MANY,
        "seconds_to_close": closed.as_secs_f64(), "seconds_to_open": opened.as_secs_f64(),
    });
    println!("{line}");
}

/// Stores `messages` in batches of 100 with transaction ids, prints that, and pushes on until it is stopped.
async fn fill(directory: &Path, messages: u64) {
    let store = open(directory);
    let (_, ids) = queue(&store, 100).await;
    let mut push = 0;
    while push * 100 < messages {
        let pushes = (0..500)
            .map(|_| {
                push += 1;
                vec![(ids[usize::try_from(push).unwrap() % 100], block(100, push, true))]
            })
            .collect();
        push_all(&store, pushes, true).await;
    }
    println!("filled {}", push * 100);
    let stop = tokio::task::spawn_blocking(|| std::io::stdin().lines().next());
    while !stop.is_finished() {
        push += 1;
        push_all(&store, vec![vec![(ids[0], block(100, push, true))]], true).await;
    }
    store.close().await.unwrap();
}

async fn restart() {
    const MESSAGES: u64 = 10_000_000;
    for kill in [false, true] {
        let directory = scratch();
        let path: PathBuf = directory.path().join("store");
        let watch = Stopwatch::start();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["fill", path.to_str().unwrap(), &MESSAGES.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().starts_with("filled"));
        let filled = watch.elapsed();
        if kill {
            child.kill().unwrap();
        } else {
            writeln!(child.stdin.take().unwrap(), "stop").unwrap();
        }
        child.wait().unwrap();
        let watch = Stopwatch::start();
        let store = open(&path);
        let opened = watch.elapsed();
        let kept = run(&store, |tx| {
            let queue = tx.queue("q")?.ok_or(Error::Corrupt("no queue".into()))?;
            tx.message_count(queue.id)
        });
        let kept = kept.await.unwrap();
        assert!(kept >= MESSAGES);
        let line = json!({
            "test": "restart", "after": if kill { "kill -9" } else { "close" }, "messages": kept,
            "transaction_ids": store.statistics().remembered, "disk_bytes": store.statistics().disk_bytes,
            "seconds_to_fill": filled.as_secs_f64(), "seconds_to_open": opened.as_secs_f64(),
            "resident_bytes": resident_bytes(),
        });
        println!("{line}");
        store.close().await.unwrap();
    }
}
