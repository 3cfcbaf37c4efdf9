//! Listings of many queues: what they cost grows with the number of queues and no faster, on both stores.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use baton_env::{ManualClock, Stopwatch};
use baton_queue::{Broker, Options, PopRequest, PushBatch, Subscription, Target};
use baton_store::{NewMessage, Store, Tx, run};
use baton_store_embedded::EmbeddedStore;
use baton_store_postgres::PostgresStore;
use baton_testing_postgres::Postgres;
use baton_types::Timestamp;
use bytes::Bytes;

/// More partitions than are looked at together with other queues.
const PARTITIONS: usize = 50;

/// How many decisions there were. Some are counted with the next commit only.
async fn decisions(broker: &Broker) -> u64 {
    for _ in 0..2 {
        let write = |tx: &mut dyn Tx| tx.put_record("counted", Bytes::new(), None);
        run(&**broker.store(), write).await.unwrap();
    }
    broker.store().statistics().operations
}

struct Bench {
    _directory: Option<tempfile::TempDir>,
    broker: Broker,
    queues: usize,
}

impl Bench {
    /// The first has a group and many partitions, the second a group, and each a message in every partition.
    async fn new(store: Arc<dyn Store>, directory: Option<tempfile::TempDir>, queues: usize) -> Self {
        let broker = Broker::start(store, Options::default());
        let mut batch = PushBatch::default();
        let message = NewMessage { payload: b"{}", ..NewMessage::default() };
        for number in 0..queues {
            batch.add(&format!("q{number}"), "p", &message).unwrap();
        }
        for number in 1..PARTITIONS {
            batch.add("q0", &format!("p{number}"), &message).unwrap();
        }
        broker.push(batch).await.unwrap();
        let bench = Self { _directory: directory, broker, queues };
        bench.pop_from("q0").await;
        bench.pop_from("q1").await;
        bench
    }

    async fn embedded(queues: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = baton_store_embedded::Options {
            min_free_disk: 0,
            ..baton_store_embedded::Options::new(directory.path())
        };
        Self::new(Arc::new(EmbeddedStore::open(options).unwrap()), Some(directory), queues).await
    }

    async fn postgres(queues: usize) -> Self {
        let url = tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap();
        let store = PostgresStore::open(baton_store_postgres::Options::new(url)).await.unwrap();
        Self::new(Arc::new(store), None, queues).await
    }

    async fn pop_from(&self, queue: &str) {
        let request = PopRequest {
            target: Target::Queue(queue.into()),
            group: "g".into(),
            batch: 1,
            partitions: 1,
            auto_ack: false,
            wait: None,
            lease: None,
            subscription: Subscription::All,
            attempt: None,
            conflation: false,
        };
        self.broker.pop(request).await.unwrap().unwrap();
    }

    /// Lists everything; how long it took, and how many decisions.
    async fn list(&self) -> (Duration, u64) {
        let before = decisions(&self.broker).await;
        let watch = Stopwatch::start();
        let numbers = self.broker.fresh_numbers().await.unwrap();
        let took = watch.elapsed();
        let cost = (took, decisions(&self.broker).await - before);
        assert_eq!(numbers.queues.len(), self.queues);
        let (first, others) = numbers.queues.split_last().unwrap();
        assert_eq!((first.partitions, first.counts.total), (PARTITIONS as u64, PARTITIONS as u64));
        assert!(others.iter().all(|queue| (queue.partitions, queue.counts.total) == (1, 1)));
        let lags: Vec<_> = numbers.groups.iter().map(|group| (&*group.queue, group.total_lag)).collect();
        assert_eq!(lags, [("q0", PARTITIONS as u64), ("q1", 1)]);
        let partitions = self.broker.group_partitions("g").await.unwrap();
        assert_eq!(partitions.len(), PARTITIONS + 1);
        cost
    }

    async fn takes_few_decisions(self) {
        let (_, decisions) = self.list().await;
        let bounds = self.queues as u64 / 100..self.queues as u64 / 5;
        assert!(bounds.contains(&decisions), "{decisions} decisions for {} queues", self.queues);
        self.broker.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_queues_are_listed_in_few_decisions() {
    Bench::embedded(1_000).await.takes_few_decisions().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_queues_are_listed_in_few_decisions_on_postgres() {
    Bench::postgres(1_000).await.takes_few_decisions().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_takes_time_by_the_number_of_queues() {
    let (few, many) = (1_000, 20_000);
    let (some, all) = (Bench::embedded(few).await, Bench::embedded(many).await);
    let (mut quick, mut slow) = (Duration::MAX, Duration::MAX);
    for _ in 0..3 {
        quick = quick.min(some.list().await.0);
        slow = slow.min(all.list().await.0);
    }
    let bound = quick * 4 * u32::try_from(many / few).unwrap();
    assert!(slow < bound, "{quick:?} for {few} queues, {slow:?} for {many}");
    some.broker.shutdown().await;
    all.broker.shutdown().await;
}

const MANY_GROUPS: usize = 60;
const MANY_PARTITIONS: usize = 4_000;
/// Rows that one decision reads.
const PAGE: usize = 1_000;

/// Groups that only look at a queue with many partitions, and some that differ from them in each way.
struct ManyGroups {
    _directory: tempfile::TempDir,
    clock: Arc<ManualClock>,
    broker: Broker,
}

impl ManyGroups {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000)));
        let options = baton_store_embedded::Options {
            min_free_disk: 0,
            clock: clock.clone(),
            ..baton_store_embedded::Options::new(directory.path())
        };
        let broker = Broker::start(Arc::new(EmbeddedStore::open(options).unwrap()), Options::default());
        Self { _directory: directory, clock, broker }
    }

    /// Pushes a message to each of these partitions, and lets 100.3 seconds pass: no lag is near the next second.
    async fn push(&self, partitions: std::ops::Range<usize>) {
        let mut batch = PushBatch::default();
        let message = NewMessage { payload: b"{}", ..NewMessage::default() };
        for number in partitions {
            batch.add("q", &format!("p{number}"), &message).unwrap();
        }
        self.broker.push(batch).await.unwrap();
        self.clock.advance(Duration::from_millis(100_300));
    }

    /// Pops from so many partitions; the group `done` finishes what it gets.
    async fn pop(&self, group: &str, partitions: u32, subscription: Subscription) {
        let request = PopRequest {
            target: Target::Queue("q".into()),
            group: group.into(),
            batch: partitions,
            partitions,
            auto_ack: group == "done",
            wait: None,
            lease: None,
            subscription,
            attempt: None,
            conflation: false,
        };
        self.broker.pop(request).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_groups_on_many_partitions_are_listed_without_a_look_at_each_pair() {
    let bench = ManyGroups::new().await;
    bench.push(0..MANY_PARTITIONS / 2).await;
    let middle = bench.broker.store().now();
    for number in 0..MANY_GROUPS {
        bench.pop(&format!("look-{number:03}"), 1, Subscription::New).await;
    }
    bench.push(0..10).await;
    bench.push(MANY_PARTITIONS / 2 - 50..MANY_PARTITIONS).await;
    bench.pop("all", 1, Subscription::All).await;
    bench.pop("holding", 20, Subscription::All).await;
    bench.pop("middle", 1, Subscription::From(middle)).await;
    bench.pop("done", 30, Subscription::All).await;

    let before = decisions(&bench.broker).await;
    let groups = bench.broker.groups().await.unwrap();
    let cost = decisions(&bench.broker).await - before;
    let each = 3 * groups.len() as u64 + (2 * MANY_PARTITIONS / PAGE) as u64 + 10;
    assert!((groups.len() as u64..each).contains(&cost), "{cost} decisions for {} groups", groups.len());
    assert_eq!(groups.len(), MANY_GROUPS + 4);
    let mut described = Vec::new();
    for group in &groups {
        let partitions = bench.broker.group_partitions(&group.name).await.unwrap();
        let behind = || partitions.iter().filter(|partition| partition.lag > 0);
        let expected = (behind().count() as u64, behind().map(|p| p.time_lag_seconds).max());
        assert_eq!((group.partitions_with_lag, Some(group.time_lag_seconds)), expected, "{}", group.name);
        assert_eq!(group.leases, partitions.iter().filter(|p| p.lease.is_some()).count() as u64);
        assert_eq!(group.ever_consumed, *group.name == *"done");
        described.extend(partitions);
    }

    for (min_seconds, limit) in [(0, 50), (150, usize::MAX), (1_000, 50)] {
        let behind = described.iter().filter(|p| p.lag > 0 && p.time_lag_seconds >= min_seconds);
        let expected: Vec<_> = behind.map(|p| (&p.group, p.partition)).take(limit).collect();
        let before = decisions(&bench.broker).await;
        let found = bench.broker.lagging_partitions(min_seconds, limit).await.unwrap();
        let cost = decisions(&bench.broker).await - before;
        assert_eq!(found.iter().map(|p| (&p.group, p.partition)).collect::<Vec<_>>(), expected);
        let each = 3 * groups.len() + 2 * (found.len() + MANY_PARTITIONS) / PAGE + 10;
        assert!(cost < each as u64, "{cost} decisions for {} rows", found.len());
    }
    bench.broker.shutdown().await;
}
