//! A month of simulated time under a steady load: nothing that the process or the directory holds may grow with time.
//!
//! The clock is moved 40 minutes at a time, so every resource that is kept per window, per queue, per group or per
//! lease comes and goes as it does in a month. The files of the log and the cache of messages are
//! small, so that they are full long before the month is over.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use baton_env::{ManualClock, Stopwatch};
use baton_queue::{
    AckItem, Broker, LeaseClaim, Options, PopRequest, Popped, PushBatch, Subscription, Target,
};
use baton_store::{NewMessage, Store};
use baton_store_embedded::EmbeddedStore;
use baton_types::Timestamp;
use baton_types::wire::AckStatus;
use serde_json::json;

const STEP: Duration = Duration::from_secs(40 * 60);
const STEPS_A_DAY: u32 = 36;
const DAYS: u32 = 30;
const PAYLOAD: [u8; 500] = [b'1'; 500];
/// The first days and the last, which are compared: the engine merges its files every week or so under this load.
const COMPARED_DAYS: u32 = 10;

/// What is watched, at its highest in some days.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    descriptors: u64,
    files: u64,
    disk: u64,
    memory: u64,
    records: u64,
    ids: u64,
}

impl Usage {
    fn max(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors.max(other.descriptors),
            files: self.files.max(other.files),
            disk: self.disk.max(other.disk),
            memory: self.memory.max(other.memory),
            records: self.records.max(other.records),
            ids: self.ids.max(other.ids),
        }
    }
}

/// Files below a directory and their bytes.
fn files(directory: &Path) -> (u64, u64) {
    let Ok(entries) = fs::read_dir(directory) else { return (0, 0) };
    entries.flatten().fold((0, 0), |(files, bytes), entry| {
        // Files come and go meanwhile.
        let Ok(meta) = entry.metadata() else { return (files, bytes) };
        let (more, more_bytes) = if meta.is_dir() { files_in(&entry.path()) } else { (1, meta.len()) };
        (files + more, bytes + more_bytes)
    })
}

fn files_in(directory: &Path) -> (u64, u64) {
    let (count, bytes) = files(directory);
    (count + 1, bytes)
}

struct Bench {
    directory: tempfile::TempDir,
    clock: Arc<ManualClock>,
    store: Arc<EmbeddedStore>,
    broker: Broker,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000)));
        let store = baton_store_embedded::Options {
            clock: clock.clone(),
            min_free_disk: 0,
            log_file_bytes: 256 << 10,
            cache_bytes: 1 << 20,
            ..baton_store_embedded::Options::new(directory.path())
        };
        let store = Arc::new(EmbeddedStore::open(store).unwrap());
        let options = Options { retention_interval: Duration::from_millis(100), ..Options::default() };
        let broker = Broker::start(store.clone(), options);
        Self { directory, clock, store, broker }
    }

    async fn usage(&self) -> Usage {
        let (files, disk) = files(self.directory.path());
        let resident = fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = resident.split(' ').nth(1).unwrap().parse().unwrap();
        let records =
            baton_store::run(&*self.store, |tx| Ok(tx.records("", None, 100_000)?.len())).await.unwrap();
        Usage {
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count() as u64,
            files,
            disk,
            memory: pages * 4096,
            records: records as u64,
            ids: self.store.statistics().remembered,
        }
    }

    async fn push(&self, queue: &str, step: u32) {
        let mut batch = PushBatch::default();
        for number in 0..20 {
            let (id, partition) = (format!("{queue}-{step}-{number}"), format!("p{}", number % 4));
            let message =
                NewMessage { transaction_id: Some(&id), payload: &PAYLOAD, ..NewMessage::default() };
            batch.add(queue, &partition, &message).unwrap();
        }
        self.broker.push(batch).await.unwrap();
    }

    async fn pop(&self, queue: &str, group: &str) -> Option<Popped> {
        let request = PopRequest {
            conflation: false,
            target: Target::Queue(queue.into()),
            group: group.into(),
            batch: 100,
            partitions: 10,
            auto_ack: false,
            wait: Some(Duration::from_millis(1)),
            lease: None,
            subscription: Subscription::All,
            attempt: None,
        };
        self.broker.pop(request).await.unwrap()
    }

    /// Takes what there is and acks it; some of it becomes dead letters.
    async fn consume(&self, queue: &str, group: &str, dead: usize) {
        let Some(popped) = self.pop(queue, group).await else { return };
        let messages = popped.claims.iter().flat_map(|claim| &claim.messages).enumerate();
        let item = |(number, message): (usize, &baton_store::StoredMessage)| AckItem {
            partition: Some(message.partition),
            transaction_id: message.transaction_text(),
            group: group.into(),
            lease: popped.lease.map_or(LeaseClaim::None, LeaseClaim::Held),
            status: if number < dead { AckStatus::Dlq } else { AckStatus::Completed },
            error: None,
        };
        self.broker.ack(messages.map(item).collect()).await.unwrap();
    }

    async fn step(&self, step: u32) {
        self.push("q", step).await;
        self.consume("q", "g", 0).await;
        // A queue and a group that live for a while, one that waits for more, and leases that nobody acks.
        let fleeting = format!("fleeting-{}", step / 10);
        self.push(&fleeting, step).await;
        self.consume(&fleeting, "g", 1).await;
        self.consume(&fleeting, "g", 1).await;
        self.consume("q", &fleeting, 0).await;
        self.pop("q", "never acks").await;
        if step % 10 == 9 {
            self.broker.delete_queue(&fleeting).await.unwrap();
            self.broker.delete_group(&fleeting, Some("q"), false).await.unwrap();
        }
        let record = baton_store::run(&*self.store, move |tx| {
            let (key, until) = (format!("record {step}"), tx.now().after(3 * STEP));
            baton_store::expiry::put(tx, &key, None, "1".into(), Some(until))
        });
        record.await.unwrap();
        self.clock.advance(STEP);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_month_nothing_grows() {
    let (bench, watch) = (Bench::new(), Stopwatch::start());
    let options = json!({"retentionEnabled": true, "retentionSeconds": 86400});
    bench.broker.configure("q", None, None, options.as_object().unwrap(), false).await.unwrap();
    let (mut first, mut last) = (Usage::default(), Usage::default());
    for day in 0..DAYS {
        for step in 0..STEPS_A_DAY {
            bench.step(day * STEPS_A_DAY + step).await;
        }
        let usage = bench.usage().await;
        println!("day {day}, {:.1?}: {usage:?}", watch.elapsed());
        if day < COMPARED_DAYS {
            first = first.max(usage);
        } else if day >= DAYS - COMPARED_DAYS {
            last = last.max(usage);
        }
    }
    assert!(last.descriptors <= first.descriptors + 30, "{first:?} {last:?}");
    assert!(last.files <= first.files + 100, "{first:?} {last:?}");
    assert!(last.disk <= first.disk + (8 << 20), "{first:?} {last:?}");
    assert!(last.memory <= first.memory + (16 << 20), "{first:?} {last:?}");
    assert!(last.records <= first.records + 10, "{first:?} {last:?}");
    assert!(last.ids <= first.ids + 100, "{first:?} {last:?}");
}
