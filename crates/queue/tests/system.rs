//! The rules of maintenance, traces and streams, shown on the embedded store with a clock that moves when the test
//! says so.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use baton_env::{ManualClock, Stopwatch};
use baton_queue::{
    AckItem, Broker, Cycle, CycleAck, Cycled, Error, LeaseClaim, NewQuery, NewTrace, Options, PopRequest,
    Popped, PushBatch, PushMode, StateChange, Step, Subscription, Target, Transaction, Wanted, is_hidden,
};
use baton_store::{NewMessage, Store};
use baton_store_embedded::EmbeddedStore;
use baton_types::wire::AckStatus;
use baton_types::{PartitionId, QUEUE_MODE, Timestamp};
use serde_json::{json, value::RawValue};

const GROUP: &str = "streams.q";

/// A broker in a directory of its own.
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
        let (store, broker) = open(&directory, &clock);
        Self { directory, clock, store, broker }
    }

    async fn restart(self) -> Self {
        let Self { directory, clock, store, broker } = self;
        broker.shutdown().await;
        drop(broker);
        store.close().await.unwrap();
        drop(store);
        let (store, broker) = open(&directory, &clock);
        Self { directory, clock, store, broker }
    }

    /// Pushes to one partition; whether each message was spooled.
    async fn push(&self, queue: &str, partition: &str, payloads: &[&str]) -> Vec<bool> {
        let batch = batch(queue, partition, payloads);
        self.broker.push(batch).await.unwrap().iter().map(|pushed| pushed.buffered).collect()
    }

    async fn pop(&self, queue: &str, partition: &str, group: &str) -> Option<Popped> {
        self.pop_as(queue, partition, group, false).await
    }

    async fn pop_as(&self, queue: &str, partition: &str, group: &str, auto_ack: bool) -> Option<Popped> {
        let request = PopRequest {
            target: Target::Partition { queue: queue.into(), partition: partition.into() },
            group: group.into(),
            batch: 100,
            partitions: 1,
            auto_ack,
            wait: None,
            lease: None,
            subscription: Subscription::All,
            attempt: None,
            conflation: false,
        };
        self.broker.pop(request).await.unwrap()
    }

    async fn texts(&self, queue: &str, partition: &str) -> Vec<String> {
        texts_of(self.pop(queue, partition, "reader").await)
    }

    async fn texts_finished(&self, queue: &str, partition: &str) -> Vec<String> {
        texts_of(self.pop_as(queue, partition, "reader", true).await)
    }

    async fn drained(&self) {
        let stopwatch = Stopwatch::start();
        while self.broker.maintenance().await.unwrap().0.push != PushMode::Direct {
            assert!(stopwatch.elapsed() < Duration::from_secs(30), "the spool is never drained");
            baton_env::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn queue_names(&self) -> Vec<String> {
        let queues = self.broker.queues().await.unwrap();
        queues.iter().map(|summary| summary.queue.spec.name.to_string()).collect()
    }
}

fn texts_of(popped: Option<Popped>) -> Vec<String> {
    let messages = popped.iter().flat_map(|popped| &popped.claims).flat_map(|claim| &claim.messages);
    messages.map(|message| String::from_utf8(message.payload.to_vec()).unwrap()).collect()
}

fn open(directory: &tempfile::TempDir, clock: &Arc<ManualClock>) -> (Arc<EmbeddedStore>, Broker) {
    let options = baton_store_embedded::Options {
        clock: clock.clone(),
        min_free_disk: 0,
        ..baton_store_embedded::Options::new(directory.path())
    };
    let store = Arc::new(EmbeddedStore::open(options).unwrap());
    let options = Options { retention_interval: Duration::from_millis(20), ..Options::default() };
    let broker = Broker::start(store.clone(), options);
    (store, broker)
}

fn batch(queue: &str, partition: &str, payloads: &[&str]) -> PushBatch {
    let mut batch = PushBatch::default();
    for payload in payloads {
        let message = NewMessage { payload: payload.as_bytes(), ..NewMessage::default() };
        batch.add(queue, partition, &message).unwrap();
    }
    batch
}

#[tokio::test]
async fn spooled_messages_arrive_in_order_before_what_comes_later() {
    let bench = Bench::new();
    assert_eq!(bench.push("q", "p", &["0"]).await, [false]);
    bench.broker.spool_pushes(true).await.unwrap();
    assert_eq!(bench.push("q", "p", &["1", "2"]).await, [true, true]);
    assert_eq!(bench.broker.maintenance().await.unwrap().1, 2);
    assert_eq!(bench.texts("q", "p").await, ["0"]);
    bench.broker.spool_pushes(false).await.unwrap();
    bench.push("q", "p", &["3"]).await;
    bench.drained().await;
    assert_eq!(bench.push("q", "p", &["4"]).await, [false]);
    bench.clock.advance(Duration::from_secs(1000));
    assert_eq!(bench.texts("q", "p").await, ["0", "1", "2", "3", "4"]);
    assert_eq!(bench.queue_names().await, ["q"], "the spool has gone");
}

#[tokio::test]
async fn a_spool_larger_than_max_size_drains_as_there_is_room() {
    let bench = Bench::new();
    let options = serde_json::json!({"maxSize": 3});
    bench.broker.configure("q", None, None, options.as_object().unwrap(), false).await.unwrap();
    bench.broker.spool_pushes(true).await.unwrap();
    for payloads in [&["0", "1", "2"][..], &["3", "4", "5"], &["6"]] {
        bench.push("q", "p", payloads).await;
    }
    bench.broker.spool_pushes(false).await.unwrap();
    let (stopwatch, mut arrived) = (Stopwatch::start(), Vec::new());
    while arrived.len() < 7 {
        assert!(stopwatch.elapsed() < Duration::from_secs(60), "only {arrived:?} arrived");
        let texts = bench.texts_finished("q", "p").await;
        assert!(texts.len() <= 3, "{texts:?} are more than maxSize");
        arrived.extend(texts);
        baton_env::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(arrived, ["0", "1", "2", "3", "4", "5", "6"]);
    bench.drained().await;
    assert_eq!(bench.push("q", "p", &["7"]).await, [false]);
}

#[tokio::test]
async fn the_modes_and_the_spool_outlive_the_broker() {
    let bench = Bench::new();
    bench.broker.spool_pushes(true).await.unwrap();
    bench.broker.stop_pops(true).await.unwrap();
    bench.push("q", "p", &["1"]).await;
    let bench = bench.restart().await;
    assert_eq!(bench.push("q", "p", &["2"]).await, [true], "the very first push heeds the mode");
    assert!(bench.pop("q", "p", QUEUE_MODE).await.is_none());
    assert_eq!(bench.queue_names().await, [""; 0]);
    bench.broker.spool_pushes(false).await.unwrap();
    // Draining goes on where it was, whichever process began it.
    let bench = bench.restart().await;
    bench.drained().await;
    assert!(bench.pop("q", "p", QUEUE_MODE).await.is_none(), "pops are still stopped");
    bench.broker.stop_pops(false).await.unwrap();
    assert_eq!(bench.texts("q", "p").await, ["1", "2"]);
}

#[tokio::test]
async fn a_transaction_pushes_at_once_unless_something_is_spooled_before_it() {
    let bench = Bench::new();
    bench.broker.spool_pushes(true).await.unwrap();
    bench.push("q", "p", &["1"]).await;
    let steps = vec![Step::Push(batch("q", "p", &["2"])), Step::Push(batch("q", "free", &["now"]))];
    let result = bench.broker.transaction(Transaction { steps, ..Transaction::default() }).await.unwrap();
    assert_eq!(result.error, None);
    assert_eq!(bench.texts("q", "free").await, ["now"]);
    assert!(bench.texts("q", "p").await.is_empty());
    bench.broker.spool_pushes(false).await.unwrap();
    bench.drained().await;
    assert_eq!(bench.texts("q", "p").await, ["1", "2"]);
}

#[tokio::test]
async fn the_spool_cannot_be_named() {
    let bench = Bench::new();
    let refused = PushBatch::default().add("__baton_spool__", "p", &NewMessage::default());
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert!(is_hidden("__baton_spool__") && !is_hidden("spool"));
    assert!(!bench.broker.delete_queue("__baton_spool__").await.unwrap());
}

fn trace(partition: PartitionId, id: &str, names: &[&str]) -> NewTrace {
    NewTrace {
        id: format!("{id}-{}", names.join("-")),
        partition,
        transaction_id: id.into(),
        group: "g".into(),
        event_type: "info".into(),
        names: names.iter().map(ToString::to_string).collect(),
        data: RawValue::from_string("{}".into()).unwrap(),
        worker: "w".into(),
    }
}

async fn push_as(bench: &Bench, ids: &[&str]) -> PartitionId {
    let mut batch = PushBatch::default();
    for id in ids {
        let message = NewMessage { transaction_id: Some(id), payload: b"1", ..NewMessage::default() };
        batch.add("q", "p", &message).unwrap();
    }
    bench.broker.push(batch).await.unwrap()[0].partition
}

async fn counts(bench: &Bench) -> Vec<(String, u64, u64)> {
    let names = bench.broker.trace_names().await.unwrap();
    names.into_iter().map(|count| (count.name, count.traces, count.messages)).collect()
}

#[tokio::test]
async fn expired_traces_leave_their_names_and_counts_as_if_they_had_never_been() {
    let bench = Bench::new();
    let partition = push_as(&bench, &["a", "b"]).await;
    bench.broker.trace(trace(partition, "a", &["x", "y"])).await.unwrap();
    bench.broker.trace(trace(partition, "b", &["x"])).await.unwrap();
    bench.clock.advance(Duration::from_secs(4 * 24 * 3600));
    bench.broker.trace(trace(partition, "a", &["x"])).await.unwrap();
    assert_eq!(counts(&bench).await, [("x".into(), 3, 2), ("y".into(), 1, 1)]);
    bench.clock.advance(Duration::from_secs(4 * 24 * 3600));
    let stopwatch = Stopwatch::start();
    while counts(&bench).await != [("x".to_string(), 1, 1)] {
        assert!(stopwatch.elapsed() < Duration::from_secs(30), "{:?}", counts(&bench).await);
        baton_env::sleep(Duration::from_millis(5)).await;
    }
    let (found, total) = bench.broker.traces_by_name("x", 0, 10).await.unwrap();
    assert_eq!((found.len(), total, found[0].trace.transaction_id.as_str()), (1, 1, "a"));
    assert_eq!(bench.broker.traces(partition, "b").await.unwrap().len(), 0);
}

#[tokio::test]
async fn one_name_is_not_found_under_the_beginning_of_another() {
    let bench = Bench::new();
    let partition = push_as(&bench, &["a"]).await;
    for names in [&["n"][..], &["n/"], &["n/1"], &["nn"]] {
        bench.broker.trace(trace(partition, "a", names)).await.unwrap();
    }
    for name in ["n", "n/", "n/1", "nn"] {
        let (found, total) = bench.broker.traces_by_name(name, 0, 10).await.unwrap();
        assert_eq!((found.len(), total), (1, 1), "{name}");
    }
}

fn query(config_hash: &str, reset: bool) -> NewQuery {
    NewQuery {
        id: format!("id of {config_hash}"),
        name: "q".into(),
        source: "in".into(),
        sink: None,
        config_hash: config_hash.into(),
        reset,
    }
}

/// A cycle that writes `n`, pushes it, and finishes everything up to the last message popped.
fn cycle(popped: &Popped, up_to: usize, n: u64, release: bool) -> Cycle {
    let claim = &popped.claims[0];
    let value = json!({"n": n}).to_string();
    Cycle {
        query: "id of h1".into(),
        partition: claim.partition,
        group: GROUP.into(),
        pushes: batch("out", "p", &[&value]),
        changes: vec![StateChange::Put { key: "k".into(), value: value.into() }],
        ack: Some(CycleAck {
            transaction_id: claim.messages[up_to].transaction_text(),
            lease: popped.lease,
            status: AckStatus::Completed,
            error: None,
            release,
        }),
    }
}

async fn state(bench: &Bench, partition: PartitionId) -> Vec<String> {
    let rows = bench.broker.query_state("id of h1", partition, Wanted::Prefix(String::new())).await.unwrap();
    rows.iter().map(|row| format!("{}={}", row.key, String::from_utf8_lossy(&row.value))).collect()
}

#[tokio::test]
async fn a_cycle_finishes_the_whole_prefix_also_what_was_never_mentioned() {
    let bench = Bench::new();
    bench.broker.register_query(query("h1", false)).await.unwrap();
    bench.push("in", "p", &["1", "2", "3", "4"]).await;
    let popped = bench.pop("in", "p", GROUP).await.unwrap();
    // One in the middle was acked on its own before.
    let second = &popped.claims[0].messages[1];
    let item = AckItem {
        partition: Some(second.partition),
        transaction_id: second.transaction_text(),
        group: GROUP.into(),
        lease: LeaseClaim::Held(popped.lease.unwrap()),
        status: AckStatus::Completed,
        error: None,
    };
    assert_eq!(bench.broker.ack(vec![item]).await.unwrap()[0].error, None);
    let cycled = bench.broker.cycle(cycle(&popped, 2, 1, false)).await.unwrap();
    let acked = cycled.acked.unwrap();
    assert_eq!((acked.finished, acked.lease_released), (2, false));
    let cycled = bench.broker.cycle(cycle(&popped, 3, 2, false)).await.unwrap();
    assert!(cycled.acked.unwrap().lease_released, "nothing is left of the lease");
    assert_eq!(state(&bench, popped.claims[0].partition).await, [r#"k={"n":2}"#]);
    assert!(bench.pop("in", "p", GROUP).await.is_none());
}

#[tokio::test]
async fn a_cycle_under_a_lease_that_has_ended_changes_nothing() {
    let bench = Bench::new();
    bench.broker.register_query(query("h1", false)).await.unwrap();
    bench.push("in", "p", &["1"]).await;
    let old = bench.pop("in", "p", GROUP).await.unwrap();
    bench.clock.advance(Duration::from_secs(301));
    let new = bench.pop("in", "p", GROUP).await.unwrap();
    let error = |cycled: Cycled| cycled.error.unwrap();
    let late = bench.broker.cycle(cycle(&old, 0, 1, true)).await.unwrap();
    assert_eq!(error(late), "Invalid or expired lease");
    assert_eq!(state(&bench, old.claims[0].partition).await, [""; 0]);
    let done = bench.broker.cycle(cycle(&new, 0, 2, true)).await.unwrap();
    assert_eq!(done.error, None);
    let again = bench.broker.cycle(cycle(&new, 0, 3, true)).await.unwrap();
    assert_eq!(error(again), "Invalid or expired lease");
    assert_eq!(bench.texts("out", "p").await, [r#"{"n":2}"#]);
}

#[tokio::test]
async fn a_reset_gives_up_all_state_at_once_and_clears_it_away_later() {
    let bench = Bench::new();
    let first = bench.broker.register_query(query("h1", false)).await.unwrap();
    assert!(first.fresh);
    bench.push("in", "p", &["1"]).await;
    let popped = bench.pop("in", "p", GROUP).await.unwrap();
    let partition = popped.claims[0].partition;
    let changes = (0..3000).map(|n| StateChange::Put { key: format!("k{n:04}"), value: "1".into() });
    let cycle = Cycle { changes: changes.collect(), ..cycle(&popped, 0, 1, true) };
    assert_eq!(bench.broker.cycle(cycle).await.unwrap().error, None);
    assert_eq!(state(&bench, partition).await.len(), 3000);
    let refused = bench.broker.register_query(query("h2", false)).await.unwrap();
    assert_eq!(refused.mismatch.as_deref(), Some("h1"));
    let reset = bench.broker.register_query(query("h2", true)).await.unwrap();
    assert_eq!((reset.id.as_str(), reset.fresh, reset.reset), ("id of h1", false, true));
    assert_eq!(state(&bench, partition).await, [""; 0]);
    let stopwatch = Stopwatch::start();
    loop {
        let store: &dyn Store = &*bench.store;
        let left = baton_store::run(store, |tx| tx.records("stream/s/", None, 10)).await.unwrap();
        if left.is_empty() {
            break;
        }
        assert!(stopwatch.elapsed() < Duration::from_secs(30), "{left:?}");
        baton_env::sleep(Duration::from_millis(5)).await;
    }
    let bench = bench.restart().await;
    assert!(!bench.broker.register_query(query("h2", false)).await.unwrap().fresh);
}
