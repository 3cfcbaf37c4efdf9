//! What concerns many partitions, messages, keys or queues at once, on PostgreSQL, where every row that a decision misses
//! is fetched: those of all of them together.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use baton_env::{ManualClock, Stopwatch};
use baton_queue::{AckItem, Broker, LeaseClaim, Options, PopRequest, PushBatch, Subscription, Target};
use baton_store::NewMessage;
use baton_store_postgres::PostgresStore;
use baton_testing_postgres::Postgres;
use baton_types::Timestamp;
use baton_types::wire::AckStatus;
use serde_json::json;

/// More than a decision looks up one after the other in good time.
const PARTITIONS: usize = 300;

struct Bench {
    clock: Arc<ManualClock>,
    broker: Broker,
}

impl Bench {
    async fn new(options: Options) -> Self {
        let url = tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000)));
        let of_store = baton_store_postgres::Options {
            clock: Some(clock.clone()),
            ..baton_store_postgres::Options::new(url)
        };
        let store = PostgresStore::open(of_store).await.unwrap();
        Self { broker: Broker::start(Arc::new(store), options), clock }
    }

    async fn push_to_all(&self, queue: &str) {
        let mut batch = PushBatch::default();
        for number in 0..PARTITIONS {
            let message = NewMessage { payload: b"{}", ..NewMessage::default() };
            batch.add(queue, &format!("p{number}"), &message).unwrap();
        }
        self.broker.push(batch).await.unwrap();
    }

    async fn kept(&self, queue: &str) -> u64 {
        let depth = self.broker.depth(queue, None).await.unwrap().unwrap();
        depth.iter().map(|partition| partition.counts.total).sum()
    }
}

/// Each queue keeps more partitions than fit into a few fetches, and none stands in the way of another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_gives_up_messages_of_queues_with_many_partitions() {
    let retention_interval = Duration::from_millis(20);
    let bench = Bench::new(Options { retention_interval, ..Options::default() }).await;
    for queue in ["one", "two"] {
        let options = json!({"retentionEnabled": true, "retentionSeconds": 10});
        bench.broker.configure(queue, None, None, options.as_object().unwrap(), false).await.unwrap();
        bench.push_to_all(queue).await;
        // So that what is old is found among what is not.
        bench.clock.advance(Duration::from_secs(8));
        bench.push_to_all(queue).await;
    }
    bench.clock.advance(Duration::from_secs(4));
    let watch = Stopwatch::start();
    while (bench.kept("one").await, bench.kept("two").await) != (0, PARTITIONS as u64) {
        assert!(watch.elapsed() < Duration::from_secs(30), "retention stands still");
        baton_env::sleep(Duration::from_millis(50)).await;
    }
    bench.broker.shutdown().await;
}

/// Each message is a row of its own, which its dead letter is made from.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_call_makes_dead_letters_of_many_messages() {
    let bench = Bench::new(Options::default()).await;
    let options = json!({"retryLimit": 0});
    bench.broker.configure("q", None, None, options.as_object().unwrap(), false).await.unwrap();
    let (mut ids, mut partition) = (Vec::new(), None);
    for number in 0..PARTITIONS {
        let id = number.to_string();
        let message = NewMessage { payload: b"{}", transaction_id: Some(&id), ..NewMessage::default() };
        let mut batch = PushBatch::default();
        batch.add("q", "p", &message).unwrap();
        partition = Some(bench.broker.push(batch).await.unwrap()[0].partition);
        ids.push(id);
    }
    let request = PopRequest {
        conflation: false,
        target: Target::Queue("q".into()),
        group: "g".into(),
        batch: 1000,
        partitions: 1,
        auto_ack: false,
        wait: None,
        lease: None,
        subscription: Subscription::All,
        attempt: None,
    };
    let popped = bench.broker.pop(request).await.unwrap().unwrap();
    let failed = ids.iter().map(|id| AckItem {
        partition,
        transaction_id: id.clone(),
        group: "g".into(),
        lease: popped.lease.map_or(LeaseClaim::None, LeaseClaim::Held),
        status: AckStatus::Failed,
        error: None,
    });
    let acked = bench.broker.ack(failed.collect()).await.unwrap();
    assert_eq!(acked.iter().filter(|acked| acked.dead_lettered).count(), PARTITIONS);
    bench.broker.shutdown().await;
}
