//! The rules of queues, each shown on the embedded store with a clock that moves when the test says so.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use baton_env::{ManualClock, Stopwatch};
use baton_queue::{
    AckItem, Acked, Broker, DeadLetterFilter, Error, LeaseClaim, Options, PopRequest, Popped, Position,
    PushBatch, Step, Subscription, Target, Transaction,
};
use baton_store::{NewMessage, Store};
use baton_store_embedded::EmbeddedStore;
use baton_types::wire::AckStatus;
use baton_types::{QUEUE_MODE, Timestamp};
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);

/// A broker in a directory of its own.
struct Bench {
    _directory: tempfile::TempDir,
    clock: Arc<ManualClock>,
    store: Arc<EmbeddedStore>,
    broker: Broker,
}

impl Bench {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000)));
        let store_options = baton_store_embedded::Options {
            clock: clock.clone(),
            min_free_disk: 0,
            ..baton_store_embedded::Options::new(directory.path())
        };
        let store = Arc::new(EmbeddedStore::open(store_options).unwrap());
        let broker = Broker::start(store.clone(), options);
        Self { _directory: directory, clock, store, broker }
    }

    async fn configure(&self, queue: &str, options: Value) {
        self.broker.configure(queue, None, None, options.as_object().unwrap(), false).await.unwrap();
    }

    async fn try_push(&self, queue: &str, partition: &str, payloads: &[&str]) -> Result<Vec<bool>, Error> {
        let mut batch = PushBatch::default();
        for payload in payloads {
            let message = NewMessage { payload: payload.as_bytes(), ..NewMessage::default() };
            batch.add(queue, partition, &message)?;
        }
        Ok(self.broker.push(batch).await?.iter().map(|pushed| pushed.duplicate).collect())
    }

    async fn push(&self, queue: &str, partition: &str, payloads: &[&str]) {
        self.try_push(queue, partition, payloads).await.unwrap();
    }

    async fn push_as(&self, queue: &str, id: &str) -> bool {
        let mut batch = PushBatch::default();
        let message = NewMessage { transaction_id: Some(id), payload: b"1", ..NewMessage::default() };
        batch.add(queue, "p", &message).unwrap();
        self.broker.push(batch).await.unwrap()[0].duplicate
    }

    async fn pop(&self, request: PopRequest) -> Option<Popped> {
        self.broker.pop(request).await.unwrap()
    }

    async fn texts(&self, request: PopRequest) -> Vec<String> {
        self.pop(request).await.map(|popped| texts(&popped)).unwrap_or_default()
    }

    async fn ack(&self, popped: &Popped, group: &str, status: AckStatus) -> Vec<Acked> {
        self.broker.ack(items(popped, group, status)).await.unwrap()
    }

    async fn dead_letters(&self, queue: &str) -> Vec<(String, Option<String>)> {
        let filter = DeadLetterFilter { queue: Some(queue.into()), limit: 100, ..Default::default() };
        let page = self.broker.dead_letters(filter).await.unwrap();
        page.letters.into_iter().map(|l| (text(&l.letter.payload), l.letter.error)).collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn texts(popped: &Popped) -> Vec<String> {
    popped.claims.iter().flat_map(|claim| &claim.messages).map(|message| text(&message.payload)).collect()
}

fn items(popped: &Popped, group: &str, status: AckStatus) -> Vec<AckItem> {
    let messages = popped.claims.iter().flat_map(|claim| &claim.messages);
    let item = |message: &baton_store::StoredMessage| AckItem {
        partition: Some(message.partition),
        transaction_id: message.transaction_text(),
        group: group.into(),
        lease: popped.lease.map_or(LeaseClaim::None, LeaseClaim::Held),
        status,
        error: None,
    };
    messages.map(item).collect()
}

fn from(queue: &str) -> PopRequest {
    PopRequest {
        conflation: false,
        target: Target::Queue(queue.into()),
        group: QUEUE_MODE.into(),
        batch: 10,
        partitions: 1,
        auto_ack: false,
        wait: None,
        lease: None,
        subscription: Subscription::All,
        attempt: None,
    }
}

fn as_group(queue: &str, group: &str, subscription: Subscription) -> PopRequest {
    PopRequest { group: group.into(), auto_ack: true, partitions: 10, subscription, ..from(queue) }
}

#[tokio::test]
async fn an_expired_lease_returns_the_messages_to_the_next_consumer() {
    let bench = Bench::new();
    bench.configure("q", json!({"leaseTime": 5})).await;
    bench.push("q", "p", &["1", "2"]).await;
    let first = bench.pop(from("q")).await.unwrap();
    assert!(bench.pop(from("q")).await.is_none());
    bench.clock.advance(6 * SECOND);
    let second = bench.pop(from("q")).await.unwrap();
    assert_eq!(texts(&second), ["1", "2"]);
    assert_eq!(second.claims[0].attempt, 2);
    let refused = bench.ack(&first, QUEUE_MODE, AckStatus::Completed).await;
    assert!(refused.iter().all(|acked| acked.error == Some("Invalid or expired lease")), "{refused:?}");
    assert!(bench.ack(&second, QUEUE_MODE, AckStatus::Completed).await.iter().all(|a| a.error.is_none()));
}

#[tokio::test]
async fn a_failed_message_comes_again_after_the_retry_delay_and_ends_as_a_dead_letter() {
    let bench = Bench::new();
    bench.configure("q", json!({"retryLimit": 1, "retryDelay": 3000})).await;
    bench.push("q", "p", &["1", "2"]).await;
    let popped = bench.pop(from("q")).await.unwrap();
    bench.ack(&popped, QUEUE_MODE, AckStatus::Failed).await;
    assert!(bench.pop(from("q")).await.is_none(), "the delay has not passed");
    bench.clock.advance(4 * SECOND);
    let again = bench.pop(from("q")).await.unwrap();
    assert_eq!(texts(&again), ["1", "2"]);
    let acked = bench.ack(&again, QUEUE_MODE, AckStatus::Failed).await;
    assert!(acked.iter().all(|a| a.dead_lettered && a.lease_released), "{acked:?}");
    let error = || Some("Retries exhausted".to_owned());
    assert_eq!(bench.dead_letters("q").await, [("2".into(), error()), ("1".into(), error())]);
    assert!(bench.pop(from("q")).await.is_none());
}

#[tokio::test]
async fn a_call_charges_each_message_that_failed_and_no_other() {
    let bench = Bench::new();
    bench.configure("q", json!({"retryLimit": 1, "leaseTime": 5})).await;
    bench.push("q", "p", &["given back", "failed", "finished", "failed too", "not named"]).await;
    let popped = bench.pop(from("q")).await.unwrap();
    let mut said = items(&popped, QUEUE_MODE, AckStatus::Failed);
    said.pop();
    (said[0].status, said[2].status) = (AckStatus::Retry, AckStatus::Completed);
    assert!(bench.broker.ack(said).await.unwrap().iter().all(|acked| !acked.dead_lettered));
    // A lease that ends without a word costs nothing either.
    assert_eq!(bench.pop(from("q")).await.unwrap().claims[0].messages.len(), 4);
    bench.clock.advance(6 * SECOND);
    let popped = bench.pop(from("q")).await.unwrap();
    let acked = bench.ack(&popped, QUEUE_MODE, AckStatus::Failed).await;
    let dead: Vec<_> = texts(&popped)
        .into_iter()
        .zip(acked)
        .filter(|(_, a)| a.dead_lettered)
        .map(|(text, _)| text)
        .collect();
    assert_eq!(dead, ["failed", "failed too"]);
    assert_eq!(bench.texts(from("q")).await, ["given back", "not named"]);
}

#[tokio::test]
async fn a_group_that_wants_the_newest_only_is_given_that_and_finishes_what_it_stands_for() {
    let bench = Bench::new();
    bench.push("q", "p", &["1", "2", "3"]).await;
    bench.push("q", "other", &["9"]).await;
    let newest = || PopRequest { conflation: true, auto_ack: false, ..as_group("q", "g", Subscription::All) };
    let popped = bench.pop(newest()).await.unwrap();
    assert!(popped.conflation);
    assert_eq!(texts(&popped), ["3", "9"]);
    // What comes meanwhile is not finished along with what was seen.
    bench.push("q", "p", &["4", "5"]).await;
    assert!(bench.pop(newest()).await.is_none(), "both partitions are held");
    let acked = bench.ack(&popped, "g", AckStatus::Completed).await;
    assert_eq!(acked.iter().map(|a| (a.error, a.conflated)).collect::<Vec<_>>(), [(None, 2), (None, 0)]);
    assert!(acked.iter().all(|acked| acked.lease_released));
    let next = bench.pop(newest()).await.unwrap();
    assert_eq!(texts(&next), ["5"]);
    bench.ack(&next, "g", AckStatus::Retry).await;
    bench.push("q", "p", &["6"]).await;
    let again = bench.pop(newest()).await.unwrap();
    assert_eq!((texts(&again), again.claims[0].attempt), (vec!["6".to_owned()], 2));
    assert_eq!(bench.ack(&again, "g", AckStatus::Completed).await[0].conflated, 2);
    assert!(bench.pop(newest()).await.is_none());
    // It was decided by the first pop; other groups are given everything.
    let plain = PopRequest { conflation: false, ..newest() };
    bench.push("q", "p", &["7", "8"]).await;
    let popped = bench.pop(plain).await.unwrap();
    assert!(popped.conflation && texts(&popped) == ["8"]);
    assert_eq!(bench.texts(as_group("q", "all", Subscription::All)).await.len(), 9);
}

#[tokio::test]
async fn a_dead_letter_can_be_pushed_again_once() {
    let bench = Bench::new();
    bench.push("q", "p", &["1"]).await;
    let popped = bench.pop(from("q")).await.unwrap();
    bench.ack(&popped, QUEUE_MODE, AckStatus::Dlq).await;
    let message = &popped.claims[0].messages[0];
    let replayed =
        bench.broker.replay(message.partition, &message.transaction_text()).await.unwrap().unwrap();
    assert!(!replayed.duplicate);
    assert_eq!(bench.texts(from("q")).await, ["1"]);
    assert!(bench.broker.replay(message.partition, &message.transaction_text()).await.unwrap().is_none());
}

#[tokio::test]
async fn without_dead_letters_a_message_out_of_retries_is_dropped() {
    let bench = Bench::new();
    let options = json!({"retryLimit": 0, "deadLetterQueue": false, "dlqAfterMaxRetries": false});
    bench.configure("q", options).await;
    bench.push("q", "p", &["1"]).await;
    let popped = bench.pop(from("q")).await.unwrap();
    let acked = bench.ack(&popped, QUEUE_MODE, AckStatus::Failed).await;
    assert!(!acked[0].dead_lettered);
    assert!(bench.dead_letters("q").await.is_empty());
    assert!(bench.pop(from("q")).await.is_none());
}

#[tokio::test]
async fn a_delayed_message_is_invisible_until_it_is_old_enough() {
    let bench = Bench::new();
    bench.configure("q", json!({"delayedProcessing": 10})).await;
    bench.push("q", "p", &["1"]).await;
    bench.clock.advance(6 * SECOND);
    bench.push("q", "p", &["2"]).await;
    assert!(bench.pop(from("q")).await.is_none());
    bench.clock.advance(5 * SECOND);
    assert_eq!(bench.texts(from("q")).await, ["1"]);
}

#[tokio::test]
async fn a_window_holds_a_partition_until_pushes_pause_but_not_for_ever() {
    let bench = Bench::new();
    bench.configure("q", json!({"windowBuffer": 10})).await;
    bench.push("q", "quiet", &["a"]).await;
    bench.clock.advance(5 * SECOND);
    bench.push("q", "quiet", &["b"]).await;
    bench.clock.advance(6 * SECOND);
    assert!(bench.pop(from("q")).await.is_none());
    bench.clock.advance(5 * SECOND);
    assert_eq!(bench.texts(from("q")).await, ["a", "b"]);
    for second in 0..11 {
        bench.push("q", "busy", &[&second.to_string()]).await;
        bench.clock.advance(9 * SECOND);
        assert!(bench.pop(from("q")).await.is_none());
    }
    bench.push("q", "busy", &["last"]).await;
    bench.clock.advance(2 * SECOND);
    assert_eq!(bench.texts(from("q")).await.len(), 10);
}

#[tokio::test]
async fn a_message_older_than_its_time_to_live_is_not_delivered_and_its_space_is_given_up() {
    let bench = Bench::with(Options { retention_interval: Duration::from_millis(20), ..Options::default() });
    bench.configure("q", json!({"ttl": 60})).await;
    bench.push("q", "p", &["old"]).await;
    bench.clock.advance(61 * SECOND);
    bench.push("q", "p", &["new"]).await;
    assert_eq!(bench.texts(from("q")).await, ["new"]);
    wait_for_total(&bench, 1).await;
}

#[tokio::test]
async fn completed_messages_are_given_up_only_when_every_group_has_finished_them() {
    let bench = Bench::with(Options { retention_interval: Duration::from_millis(20), ..Options::default() });
    bench.configure("q", json!({"retentionEnabled": true, "completedRetentionSeconds": 10})).await;
    bench.push("q", "p", &["1"]).await;
    bench.pop(as_group("q", "fast", Subscription::All)).await;
    let slow = PopRequest { auto_ack: false, ..as_group("q", "slow", Subscription::All) };
    let held = bench.pop(slow).await.unwrap();
    bench.clock.advance(20 * SECOND);
    baton_env::sleep(Duration::from_millis(100)).await;
    assert_eq!(total(&bench).await, 1, "one group has not finished it");
    bench.ack(&held, "slow", AckStatus::Completed).await;
    wait_for_total(&bench, 0).await;
}

async fn total(bench: &Bench) -> u64 {
    bench.broker.queue("q").await.unwrap().unwrap().0.counts.total
}

async fn wait_for_total(bench: &Bench, expected: u64) {
    let watch = Stopwatch::start();
    while total(bench).await != expected {
        assert!(watch.elapsed() < 10 * SECOND, "{} messages are kept", total(bench).await);
        baton_env::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_full_queue_refuses_pushes_until_something_is_finished() {
    let bench = Bench::new();
    bench.configure("q", json!({"maxSize": 2})).await;
    bench.push("q", "p", &["1", "2"]).await;
    let refused = bench.try_push("q", "p", &["3"]).await.unwrap_err();
    assert!(matches!(refused, Error::QueueFull { size: 2, max: 2, .. }), "{refused}");
    bench.pop(PopRequest { batch: 1, auto_ack: true, ..from("q") }).await.unwrap();
    bench.push("q", "p", &["3"]).await;
    assert!(bench.try_push("q", "p", &["4"]).await.is_err());
}

/// Waits until retention has removed all messages of a partition.
async fn gone(bench: &Bench, partition: baton_types::PartitionId) {
    loop {
        let row =
            baton_store::run(&*bench.store, move |tx| tx.partition_by_id(partition)).await.unwrap().unwrap();
        if row.start == row.tail {
            return;
        }
        baton_env::sleep(Duration::from_millis(5)).await;
    }
}

fn quick_retention() -> Options {
    Options { retention_interval: Duration::from_millis(10), ..Options::default() }
}

/// Pops everything and finishes it.
async fn finish_all(bench: &Bench) {
    let popped = bench.pop(from("q")).await.unwrap();
    bench.ack(&popped, QUEUE_MODE, AckStatus::Completed).await;
}

#[tokio::test]
async fn the_window_of_an_id_goes_on_when_retention_removes_the_message() {
    let bench = Bench::with(quick_retention());
    let options = json!({"retentionEnabled": true, "retentionSeconds": 1, "dedupWindowSeconds": 100});
    bench.configure("q", options).await;
    let push = async || {
        let mut batch = PushBatch::default();
        let message = NewMessage { transaction_id: Some("a"), payload: b"1", ..NewMessage::default() };
        batch.add("q", "p", &message).unwrap();
        bench.broker.push(batch).await.unwrap()[0]
    };
    let first = push().await;
    finish_all(&bench).await;
    bench.clock.advance(50 * SECOND);
    gone(&bench, first.partition).await;
    let again = push().await;
    assert!(again.duplicate, "the message is gone, its id is not");
    assert_eq!((again.id, again.offset), (first.id, first.offset), "told of the original");
    assert!(bench.pop(from("q")).await.is_none());
    bench.clock.advance(51 * SECOND);
    assert!(!push().await.duplicate, "the window is over");
}

#[tokio::test]
async fn the_id_of_a_deleted_message_is_accepted_again() {
    let bench = Bench::with(quick_retention());
    let options = json!({"retentionEnabled": true, "retentionSeconds": 10, "dedupWindowSeconds": 100});
    bench.configure("q", options).await;
    for goes_in_between in [false, true] {
        assert!(!bench.push_as("q", "a").await);
        let popped = bench.pop(from("q")).await.unwrap();
        let message = &popped.claims[0].messages[0];
        assert!(bench.broker.delete_message(message.partition, "a").await.unwrap());
        if goes_in_between {
            bench.clock.advance(50 * SECOND);
            gone(&bench, message.partition).await;
        }
        assert!(!bench.push_as("q", "a").await, "nothing of that name is there");
        assert!(bench.push_as("q", "a").await, "now there is");
        bench.clock.advance(400 * SECOND);
        gone(&bench, message.partition).await;
    }
    // Emptying a queue deletes all that is in it.
    assert!(!bench.push_as("q", "b").await);
    bench.broker.clear_queue("q", None, None).await.unwrap();
    assert!(!bench.push_as("q", "b").await);
    assert!(bench.push_as("q", "b").await);
}

#[tokio::test]
async fn a_transaction_id_is_remembered_for_its_window() {
    let bench = Bench::new();
    bench.configure("q", json!({"dedupWindowSeconds": 60})).await;
    assert!(!bench.push_as("q", "a").await);
    assert!(bench.push_as("q", "a").await);
    bench.clock.advance(61 * SECOND);
    assert!(!bench.push_as("q", "a").await);
    bench.configure("q", json!({"dedupWindowSeconds": 0})).await;
    assert!(!bench.push_as("q", "a").await);
}

#[tokio::test]
async fn queues_of_a_higher_priority_are_served_first() {
    let bench = Bench::new();
    for (queue, priority) in [("low", 1), ("high", 5), ("middle", 3)] {
        let options = json!({"priority": priority});
        let options = options.as_object().unwrap();
        bench.broker.configure(queue, Some("shop"), Some("mail"), options, false).await.unwrap();
        bench.push(queue, "p", &[queue]).await;
    }
    bench.push("elsewhere", "p", &["elsewhere"]).await;
    let labels = Target::Labels { namespace: Some("shop".into()), task: None };
    let request = PopRequest { target: labels, partitions: 10, ..from("") };
    assert_eq!(bench.texts(request).await, ["high", "middle", "low"]);
}

#[tokio::test]
async fn no_partition_starves() {
    let bench = Bench::new();
    for partition in 0..20 {
        bench.push("q", &format!("p{partition}"), &["x"; 50]).await;
    }
    let mut served = std::collections::HashMap::new();
    for _ in 0..100 {
        let popped = bench.pop(PopRequest { batch: 1, auto_ack: true, ..from("q") }).await.unwrap();
        *served.entry(popped.claims[0].partition).or_insert(0) += 1;
    }
    assert!(served.len() == 20 && served.values().all(|times| *times == 5), "{served:?}");
}

#[tokio::test]
async fn one_pop_claims_several_partitions_under_one_lease() {
    let bench = Bench::new();
    for partition in ["a", "b", "c"] {
        bench.push("q", partition, &["1", "2"]).await;
    }
    let popped = bench.pop(PopRequest { batch: 5, partitions: 10, ..from("q") }).await.unwrap();
    assert_eq!((popped.claims.len(), texts(&popped).len()), (3, 5));
    let (renewed, until) = bench.broker.extend(popped.lease.unwrap(), 900 * SECOND).await.unwrap();
    assert_eq!(renewed, 3);
    assert!(until.unwrap() > bench.store.now().after(800 * SECOND));
    bench.ack(&popped, QUEUE_MODE, AckStatus::Completed).await;
    assert_eq!(bench.texts(PopRequest { partitions: 10, ..from("q") }).await, ["2"]);
}

#[tokio::test]
async fn a_group_begins_where_it_asked_to() {
    let bench = Bench::new();
    bench.push("q", "p", &["old"]).await;
    bench.clock.advance(10 * SECOND);
    let middle = bench.store.now();
    bench.clock.advance(10 * SECOND);
    bench.push("q", "p", &["young"]).await;
    bench.push("q", "other", &["young too"]).await;
    assert!(bench.pop(as_group("q", "new", Subscription::New)).await.is_none());
    let timed = bench.texts(as_group("q", "timed", Subscription::From(middle))).await;
    assert_eq!(timed, ["young", "young too"]);
    assert_eq!(bench.texts(as_group("q", "all", Subscription::All)).await.len(), 3);
    bench.push("q", "p", &["newest"]).await;
    assert_eq!(bench.texts(as_group("q", "new", Subscription::All)).await, ["newest"]);
}

#[tokio::test]
async fn a_seek_moves_a_group_and_voids_its_lease() {
    let bench = Bench::new();
    bench.push("q", "p", &["1"]).await;
    bench.clock.advance(SECOND);
    let between = bench.store.now();
    bench.clock.advance(SECOND);
    bench.push("q", "p", &["2"]).await;
    let request = PopRequest { group: "g".into(), ..from("q") };
    let held = bench.pop(request.clone()).await.unwrap();
    assert_eq!(bench.broker.seek("g", "q", Position::After(between)).await.unwrap(), Some(1));
    let acked = bench.ack(&held, "g", AckStatus::Completed).await;
    assert!(acked[0].noop, "the group is past it");
    assert_eq!(acked[1].error, Some("Invalid or expired lease"));
    assert_eq!(bench.texts(request.clone()).await, ["2"]);
    bench.broker.seek("g", "q", Position::End).await.unwrap();
    assert!(bench.pop(request.clone()).await.is_none());
    bench.broker.delete_group("g", None, false).await.unwrap();
    assert_eq!(bench.texts(request).await, ["1", "2"]);
}

#[tokio::test]
async fn a_transaction_does_everything_or_nothing() {
    let bench = Bench::new();
    bench.push("in", "p", &["1"]).await;
    let popped = bench.pop(from("in")).await.unwrap();
    let ack = || items(&popped, QUEUE_MODE, AckStatus::Completed).remove(0);
    let push = || {
        let mut batch = PushBatch::default();
        batch.add("out", "p", &NewMessage { payload: b"2", ..NewMessage::default() }).unwrap();
        Step::Push(batch)
    };
    let wrong = AckItem { transaction_id: "ghost".into(), ..ack() };
    let steps = vec![push(), Step::Ack(ack()), Step::Ack(wrong)];
    let result = bench.broker.transaction(Transaction { steps, ..Transaction::default() }).await.unwrap();
    assert_eq!(
        result.error.as_deref(),
        Some("Transaction rolled back: ACK operation failed: unresolvable: Message not found")
    );
    assert!(bench.pop(from("out")).await.is_none());
    let steps = vec![push(), Step::Ack(ack())];
    let required_leases = vec![popped.lease];
    let result = bench
        .broker
        .transaction(Transaction { steps, required_leases, ..Transaction::default() })
        .await
        .unwrap();
    assert_eq!((result.error, result.results.len()), (None, 2));
    assert_eq!(bench.texts(from("out")).await, ["2"]);
    bench.clock.advance(3600 * SECOND);
    assert!(bench.pop(from("in")).await.is_none());
}

/// Says `status` about one message that was popped.
async fn say(bench: &Bench, popped: &Popped, index: usize, status: AckStatus) -> Acked {
    bench.broker.ack(vec![items(popped, QUEUE_MODE, status).swap_remove(index)]).await.unwrap().remove(0)
}

#[tokio::test]
async fn each_message_has_a_retry_budget_of_its_own() {
    let bench = Bench::new();
    bench.configure("q", json!({"retryLimit": 2})).await;
    bench.push("q", "p", &["1", "2", "3"]).await;
    for index in [0, 1, 2, 0, 1, 2] {
        let popped = bench.pop(from("q")).await.unwrap();
        assert_eq!(texts(&popped), ["1", "2", "3"]);
        let acked = say(&bench, &popped, index, AckStatus::Failed).await;
        assert_eq!((acked.error, acked.dead_lettered), (None, false));
    }
    let popped = bench.pop(from("q")).await.unwrap();
    assert!(say(&bench, &popped, 1, AckStatus::Failed).await.dead_lettered);
    let popped = bench.pop(from("q")).await.unwrap();
    assert_eq!(texts(&popped), ["1", "3"]);
    say(&bench, &popped, 0, AckStatus::Completed).await;
    assert!(say(&bench, &popped, 1, AckStatus::Failed).await.dead_lettered);
    bench.push("q", "p", &["4"]).await;
    let popped = bench.pop(from("q")).await.unwrap();
    assert!(
        !say(&bench, &popped, 0, AckStatus::Failed).await.dead_lettered,
        "a fresh message has its budget"
    );
}

#[tokio::test]
async fn a_dead_letter_ends_the_lease_so_that_the_rest_comes_at_once() {
    for (status, limit) in [(AckStatus::Failed, 0), (AckStatus::Dlq, 3)] {
        let bench = Bench::new();
        bench.configure("q", json!({"retryLimit": limit})).await;
        bench.push("q", "p", &["1", "2", "3"]).await;
        let popped = bench.pop(from("q")).await.unwrap();
        let acked = say(&bench, &popped, 0, status).await;
        assert_eq!((acked.dead_lettered, acked.lease_released), (true, true), "{status:?}");
        assert_eq!(bench.texts(from("q")).await, ["2", "3"]);
    }
}

#[tokio::test]
async fn an_ack_without_a_lease_leaves_the_lease_of_another_consumer() {
    let bench = Bench::new();
    bench.push("q", "p", &["1", "2"]).await;
    let first = bench.pop(PopRequest { lease: Some(SECOND), ..from("q") }).await.unwrap();
    bench.clock.advance(2 * SECOND);
    let second = bench.pop(from("q")).await.unwrap();
    let unfenced = Popped { lease: None, ..first.clone() };
    for status in [AckStatus::Failed, AckStatus::Retry, AckStatus::Dlq] {
        let acked = say(&bench, &unfenced, 0, status).await;
        assert_eq!((acked.error, acked.lease_released), (None, false), "{status:?}");
        assert!(bench.pop(from("q")).await.is_none());
    }
    assert_eq!(say(&bench, &second, 1, AckStatus::Completed).await.error, None, "the lease is live");
}

#[tokio::test]
async fn acks_of_two_messages_with_one_transaction_id_finish_both() {
    for together in [true, false] {
        let bench = Bench::new();
        bench.configure("q", json!({"dedupWindowSeconds": 0})).await;
        bench.push_as("q", "same").await;
        bench.push_as("q", "same").await;
        let popped = bench.pop(from("q")).await.unwrap();
        if together {
            bench.ack(&popped, QUEUE_MODE, AckStatus::Completed).await;
        } else {
            say(&bench, &popped, 0, AckStatus::Completed).await;
            say(&bench, &popped, 1, AckStatus::Completed).await;
        }
        bench.clock.advance(3600 * SECOND);
        assert!(bench.pop(from("q")).await.is_none(), "together: {together}");
    }
}

#[tokio::test]
async fn acks_after_a_restart_read_what_is_held_once() {
    let bench = Bench::new();
    bench.configure("q", json!({"dedupWindowSeconds": 0})).await;
    for round in 0..20 {
        let mut batch = PushBatch::default();
        for number in 0..1000 {
            let id = format!("{round}-{number}");
            let message =
                NewMessage { transaction_id: Some(&id), payload: &[b'1'; 1000], ..NewMessage::default() };
            batch.add("q", "p", &message).unwrap();
        }
        bench.broker.push(batch).await.unwrap();
    }
    let popped = bench.pop(PopRequest { batch: 1000, ..from("q") }).await.unwrap();
    // Another broker on the same store knows nothing of the delivery.
    let restarted = Broker::start(bench.store.clone(), Options::default());
    let mut acks = items(&popped, QUEUE_MODE, AckStatus::Completed);
    let last = acks.split_off(999);
    let watch = Stopwatch::start();
    assert!(restarted.ack(acks).await.unwrap().iter().all(|acked| acked.error.is_none() && !acked.noop));
    assert!(restarted.ack(last).await.unwrap()[0].lease_released);
    assert!(watch.elapsed() < 60 * SECOND, "{:?}", watch.elapsed());
}

#[tokio::test]
async fn a_deleted_message_is_passed_over() {
    let bench = Bench::new();
    bench.push("q", "p", &["1", "2", "3"]).await;
    let first = bench.pop(as_group("q", "g", Subscription::All)).await.unwrap();
    let message = &first.claims[0].messages[1];
    assert!(bench.broker.delete_message(message.partition, &message.transaction_text()).await.unwrap());
    assert_eq!(bench.texts(from("q")).await, ["1", "3"]);
    assert!(!bench.broker.delete_message(message.partition, &message.transaction_text()).await.unwrap());
}

#[tokio::test]
async fn an_answer_holds_no_more_bytes_than_it_may_and_the_rest_comes_next() {
    let bench = Bench::new();
    let large = format!("\"{}\"", "x".repeat(12 << 20));
    bench.push("q", "p", &[&large, &large, &large, "4"]).await;
    let first = bench.pop(from("q")).await.unwrap();
    assert_eq!(texts(&first).len(), 2);
    let acked = bench.ack(&first, QUEUE_MODE, AckStatus::Completed).await;
    assert!(acked.iter().all(|acked| acked.lease_released));
    assert_eq!(bench.texts(from("q")).await.len(), 2);
}

// Waiting. In real time, because these tests show that no pop waits longer than needed.

fn waiting(queue: &str) -> PopRequest {
    PopRequest { wait: Some(20 * SECOND), ..from(queue) }
}

/// Starts a pop that waits, and comes back when it is parked.
async fn park(bench: &Bench, request: PopRequest) -> tokio::task::JoinHandle<Option<Popped>> {
    let before = bench.broker.wait_statistics().waiters;
    let broker = bench.broker.clone();
    let parked = tokio::spawn(async move { broker.pop(request).await.unwrap() });
    while bench.broker.wait_statistics().waiters == before {
        tokio::task::yield_now().await;
    }
    parked
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_wakes_a_waiting_pop() {
    let bench = Bench::new();
    let parked = park(&bench, waiting("q")).await;
    let watch = Stopwatch::start();
    bench.push("q", "p", &["1"]).await;
    assert_eq!(texts(&parked.await.unwrap().unwrap()), ["1"]);
    assert!(watch.elapsed() < 5 * SECOND);
    assert_eq!(bench.broker.wait_statistics().waiters, 0);
}

/// Waits until looks have found nothing so often that the line is at rest.
async fn backed_off(bench: &Bench) {
    while bench.broker.wait_statistics().groups_backed_off == 0 {
        baton_env::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_at_rest_hears_of_whatever_gives_it_something() {
    let bench = Bench::with(Options {
        pop_wait_initial_interval: Duration::from_millis(5),
        pop_wait_max_interval: Duration::from_millis(20),
        ..Options::default()
    });
    let target = Target::Partition { queue: "q".into(), partition: "p".into() };
    let patient = PopRequest { target, wait: Some(600 * SECOND), ..as_group("q", "g", Subscription::All) };
    bench.push("q", "p", &["1"]).await;
    assert_eq!(bench.texts(patient.clone()).await, ["1"]);
    let beginning = Position::After(Timestamp::from_micros(0));

    let parked = park(&bench, patient.clone()).await;
    backed_off(&bench).await;
    bench.broker.seek_partition("g", "q", "p", beginning).await.unwrap().unwrap();
    assert_eq!(texts(&parked.await.unwrap().unwrap()), ["1"]);

    let parked = park(&bench, patient.clone()).await;
    backed_off(&bench).await;
    bench.broker.seek("g", "q", beginning).await.unwrap().unwrap();
    assert_eq!(texts(&parked.await.unwrap().unwrap()), ["1"]);

    let parked = park(&bench, patient.clone()).await;
    backed_off(&bench).await;
    bench.broker.delete_queue("q").await.unwrap();
    bench.push("q", "p", &["2"]).await;
    assert_eq!(texts(&parked.await.unwrap().unwrap()), ["2"]);

    let labelled = Target::Labels { namespace: Some("n".into()), task: None };
    let parked = park(&bench, PopRequest { target: labelled, ..patient }).await;
    backed_off(&bench).await;
    bench.broker.configure("new", Some("n"), None, &serde_json::Map::new(), false).await.unwrap();
    bench.push("new", "p", &["3"]).await;
    assert_eq!(texts(&parked.await.unwrap().unwrap()), ["3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_wakes_one_waiter_per_message_and_every_group() {
    let bench = Bench::new();
    let mut parked = Vec::new();
    for group in ["g", "h"] {
        for _ in 0..3 {
            parked.push(park(&bench, PopRequest { group: group.into(), batch: 1, ..waiting("q") }).await);
        }
    }
    for partition in ["a", "b", "c"] {
        bench.push("q", partition, &["x"]).await;
    }
    for parked in parked {
        assert_eq!(texts(&parked.await.unwrap().unwrap()), ["x"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_that_frees_a_partition_wakes_a_waiting_pop() {
    let bench = Bench::new();
    bench.push("q", "p", &["1", "2"]).await;
    let held = bench.pop(PopRequest { batch: 1, ..from("q") }).await.unwrap();
    let parked = park(&bench, waiting("q")).await;
    bench.ack(&held, QUEUE_MODE, AckStatus::Completed).await;
    assert_eq!(texts(&parked.await.unwrap().unwrap()), ["2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_pop_of_one_partition_is_not_served_from_another() {
    let bench = Bench::new();
    let target = Target::Partition { queue: "q".into(), partition: "mine".into() };
    let parked = park(&bench, PopRequest { target, ..waiting("q") }).await;
    bench.push("q", "other", &["other"]).await;
    bench.push("q", "mine", &["mine"]).await;
    assert_eq!(texts(&parked.await.unwrap().unwrap()), ["mine"]);
    assert_eq!(bench.texts(from("q")).await, ["other"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_becomes_due_by_time_alone_reaches_a_waiting_pop() {
    let bench = Bench::new();
    bench.configure("q", json!({"leaseTime": 30})).await;
    bench.push("q", "p", &["1"]).await;
    bench.pop(from("q")).await.unwrap();
    let parked = park(&bench, waiting("q")).await;
    bench.clock.advance(31 * SECOND);
    assert_eq!(texts(&parked.await.unwrap().unwrap()), ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_pop_is_answered_with_nothing_at_its_deadline() {
    let bench = Bench::new();
    let watch = Stopwatch::start();
    let request = PopRequest { wait: Some(Duration::from_millis(150)), ..from("q") };
    assert!(bench.pop(request).await.is_none());
    assert!(watch.elapsed() >= Duration::from_millis(150));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_takes_nothing_with_it() {
    let bench = Bench::new();
    let gone = park(&bench, waiting("q")).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    assert_eq!(bench.broker.wait_statistics().waiters, 0);
    bench.push("q", "p", &["1"]).await;
    assert_eq!(bench.texts(from("q")).await, ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_answers_everyone_who_waits() {
    let bench = Bench::new();
    let parked = park(&bench, waiting("q")).await;
    bench.broker.shutdown().await;
    assert!(parked.await.unwrap().is_none());
    bench.store.close().await.unwrap();
}
