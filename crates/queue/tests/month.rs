//! A month of simulated time under a steady load: nothing that the process or the directory holds may grow with time.
//!
//! The clock is moved 40 minutes at a time, so every resource that is kept per window, per queue, per group or per
//! lease comes and goes as it does in a month: messages, dead letters, traces, records, timers, the numbers of each minute,
//! jobs with their logs and schedules. The files of the log, the caches and the write buffers of the
//! engine are small, so that they are full long before the month is over.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use baton_env::{ManualClock, Stopwatch};
use baton_jobs::schedule::ScheduleSpec;
use baton_jobs::{
    Jobs, NewJob, NewLogLine, NewLogLines, NewWorker, Outcome, Report, Unique, UniqueScope, When,
};
use baton_queue::{
    AckItem, Broker, LeaseClaim, NewTrace, Options, PopRequest, Popped, PushBatch, Subscription, Target,
    timer,
};
use baton_store::{IdempotencyKey, NewMessage, Store};
use baton_store_embedded::EmbeddedStore;
use baton_types::Timestamp;
use baton_types::wire::AckStatus;
use serde_json::json;
use serde_json::value::RawValue;

const STEP: Duration = Duration::from_secs(40 * 60);
const STEPS_A_DAY: u32 = 36;
/// How often the broker and the jobs begin anew on the same store, as servers do. A broker that ends writes the numbers of
/// its last minute.
const STEPS_A_RUN: u32 = 9;
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
    jobs: Jobs,
}

fn broker(store: &Arc<EmbeddedStore>) -> Broker {
    let options = Options { retention_interval: Duration::from_millis(50), ..Options::default() };
    Broker::start(store.clone(), options)
}

/// Jobs whose duties the test runs, as they go by the clock that it moves.
fn jobs(store: &Arc<EmbeddedStore>) -> Jobs {
    let options = baton_jobs::Options { sole: true, duties: false, ..baton_jobs::Options::default() };
    Jobs::start(store.clone(), options)
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
            index_cache_bytes: 1 << 20,
            write_buffer_bytes: 512 << 10,
            ..baton_store_embedded::Options::new(directory.path())
        };
        let store = Arc::new(EmbeddedStore::open(store).unwrap());
        let (broker, jobs) = (broker(&store), jobs(&store));
        Self { directory, clock, store, broker, jobs }
    }

    async fn restart(&mut self) {
        self.broker.shutdown().await;
        self.jobs.shutdown().await;
        (self.broker, self.jobs) = (broker(&self.store), jobs(&self.store));
    }

    /// How many records there are of each kind. Only so many events of the cluster are kept, more than a month has here.
    async fn records(&self) -> BTreeMap<String, u64> {
        let records = baton_store::run(&*self.store, |tx| tx.records("", None, 100_000)).await.unwrap();
        let mut kinds = BTreeMap::new();
        for (key, _) in records.into_iter().filter(|(key, _)| !key.starts_with("jobs/event/")) {
            let end = if key.starts_with("jobs/") { 2 } else { 1 };
            let kind: Vec<_> = key.split(['/', ' ']).take(end).collect();
            *kinds.entry(kind.join("/")).or_default() += 1;
        }
        kinds
    }

    async fn usage(&self) -> Usage {
        let (files, disk) = files(self.directory.path());
        let resident = fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = resident.split(' ').nth(1).unwrap().parse().unwrap();
        Usage {
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count() as u64,
            files,
            disk,
            memory: pages * 4096,
            records: self.records().await.values().sum(),
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

    /// Timers that become messages, that are set anew, and that are called off.
    async fn timers(&self, step: u32) {
        let set = |key: String, delay: Duration| timer::Operation::Schedule {
            queue: "q".into(),
            transaction_id: format!("timer {key} {step}"),
            key,
            partition: "timers".into(),
            payload: PAYLOAD.to_vec().into(),
            producer: None,
            delay,
        };
        let later = set(format!("later {step}"), 50 * STEP);
        let moved = set("moved".into(), 2 * STEP);
        let operations = (0..5).map(|number| set(format!("{number} {step}"), STEP / 2)).chain([later, moved]);
        self.broker.timers(operations.collect()).await.unwrap();
        if step.is_multiple_of(2) {
            let (queue, key) = ("q".into(), format!("later {step}"));
            self.broker.timers(vec![timer::Operation::Cancel { queue, key }]).await.unwrap();
        }
        while self.broker.fire_timers().await.unwrap().fired > 0 {}
    }

    /// Jobs that end in every way, with logs and keys, and those of a schedule.
    async fn work(&self, step: u32) {
        let worker = NewWorker {
            name: "w".into(),
            queues: vec!["work".into()],
            max_concurrency: 100,
            ..NewWorker::default()
        };
        let worker = self.jobs.register(worker).await.unwrap().worker;
        let job = |kind: &str| {
            let mut job = NewJob::new("work", kind, PAYLOAD.to_vec());
            job.spec.retry.max_retries = 0;
            job.spec.tags = vec![format!("tag {step}")];
            job.spec.correlation_id = Some(format!("correlation {step}"));
            job.spec.concurrency_key = Some(format!("key {}", step / 10));
            job.spec.concurrency_limit = Some(100);
            job
        };
        let mut delayed = job("plain");
        delayed.when = When::After(3 * STEP);
        let mut unique = job("plain");
        let (key, window) = (format!("unique {step}"), 3 * STEP);
        unique.unique =
            Some(Unique { key, scope: UniqueScope::Window, window, on_conflict: Default::default() });
        let jobs = vec![job("plain"), job("fails"), job("lost"), job("cancelled"), delayed, unique];
        let key = IdempotencyKey::new(format!("call {step}"), "month", b"");
        let enqueued = self.jobs.enqueue(jobs, Some(key)).await.unwrap();
        self.jobs.cancel(enqueued[3].job_id, false, Some("not needed".into())).await.unwrap();
        let leased = self.jobs.lease(worker, 100, Duration::ZERO).await.unwrap().jobs;
        assert!(leased.len() >= 4, "{leased:?}");
        let mut reports = Vec::new();
        for one in &leased {
            let line = NewLogLine { level: Default::default(), message: "at work".into(), at: None };
            self.jobs
                .log(NewLogLines { execution: one.execution, first: 1, lines: vec![line] })
                .await
                .unwrap();
            let outcome = match &*one.spec.job_type {
                "lost" => continue,
                "fails" => Outcome::Failed,
                _ => Outcome::Succeeded,
            };
            reports.push(Report::new(one.id, one.execution.fence, outcome));
        }
        self.jobs.report(reports).await.unwrap();
        // The leader finds a worker silent for a lease only while it looks often enough.
        for _ in 0..8 {
            self.clock.advance(Duration::from_secs(5));
            self.jobs.sweep().await.unwrap();
        }
    }

    /// Notes of a consumer about a message.
    async fn trace(&self, step: u32) {
        let mut batch = PushBatch::default();
        let id = format!("traced {step}");
        let message = NewMessage { transaction_id: Some(&id), payload: b"1", ..NewMessage::default() };
        batch.add("q", "traced", &message).unwrap();
        let partition = self.broker.push(batch).await.unwrap()[0].partition;
        let trace = NewTrace {
            id: id.clone(),
            partition,
            transaction_id: id,
            group: "g".into(),
            event_type: "info".into(),
            names: ["always".into(), format!("name {step}")].into(),
            data: RawValue::from_string("{}".into()).unwrap(),
            worker: "w".into(),
        };
        self.broker.trace(trace).await.unwrap();
    }

    async fn step(&self, step: u32) {
        self.push("q", step).await;
        self.trace(step).await;
        self.timers(step).await;
        if step.is_multiple_of(3) {
            self.work(step).await;
        }
        self.consume("q", "g", 0).await;
        // A queue and a group that live for a while, one that waits for more, and leases that get no ack.
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
    let (mut bench, watch) = (Bench::new(), Stopwatch::start());
    let options = json!({"retentionEnabled": true, "retentionSeconds": 86400});
    bench.broker.configure("q", None, None, options.as_object().unwrap(), false).await.unwrap();
    let hourly = r#"{"kind": "interval", "everyMs": 3600000, "job": {"jobType": "plain", "queue": "work"}}"#;
    bench.jobs.put_schedule("hourly".into(), ScheduleSpec::parse(hourly).unwrap(), None).await.unwrap();
    let (mut first, mut last) = (Usage::default(), Usage::default());
    for day in 0..DAYS {
        for step in 0..STEPS_A_DAY {
            bench.step(day * STEPS_A_DAY + step).await;
            if step % STEPS_A_RUN == 0 {
                bench.restart().await;
            }
        }
        let usage = bench.usage().await;
        println!("day {day}, {:.1?}: {usage:?} {:?}", watch.elapsed(), bench.records().await);
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
    // Traces and expired records come and go; two a day that stay would be noticed.
    assert!(last.records <= first.records + 40, "{first:?} {last:?}");
    assert!(last.ids <= first.ids + 100, "{first:?} {last:?}");
}
