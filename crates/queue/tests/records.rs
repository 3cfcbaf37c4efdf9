//! Timers, and records and locks in transactions, shown on the embedded store with a clock that moves when the test says so.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use baton_env::ManualClock;
use baton_queue::timer::{self, Status};
use baton_queue::{
    Broker, FetchEntry, Fetched, Options, PopRequest, PushBatch, Step as TransactionStep, Subscription,
    Target, Transaction,
};
use baton_records::counter::Addition;
use baton_records::kv::{Life, Lost, Operation, Outcome, Place, Step};
use baton_records::lock::{self, Action};
use baton_store::{NewMessage, Store, run};
use baton_store_embedded::EmbeddedStore;
use baton_types::{Offset, QUEUE_MODE, Timestamp};
use serde_json::Number;

const SECOND: Duration = Duration::from_secs(1);

/// A broker on a directory. Its own alarm and sweeps are far apart in real time, so tests move things by hand.
struct Bench {
    clock: Arc<ManualClock>,
    store: Arc<EmbeddedStore>,
    broker: Broker,
}

impl Bench {
    fn open(directory: &Path) -> Self {
        Self::open_at(directory, Timestamp::from_micros(1_800_000_000_000_000))
    }

    fn open_at(directory: &Path, now: Timestamp) -> Self {
        Self::open_with(directory, now, "")
    }

    fn open_with(directory: &Path, now: Timestamp, keys: &str) -> Self {
        let clock = Arc::new(ManualClock::new(now));
        let options = baton_store_embedded::Options {
            clock: clock.clone(),
            min_free_disk: 0,
            ..baton_store_embedded::Options::new(directory)
        };
        let store = Arc::new(EmbeddedStore::open(options).unwrap());
        let retention_interval = Duration::from_millis(20);
        let options = Options { retention_interval, keys: keys.parse().unwrap(), ..Options::default() };
        let broker = Broker::start(store.clone(), options);
        Self { clock, store, broker }
    }

    async fn close(self) {
        self.broker.shutdown().await;
        self.store.close().await.unwrap();
    }

    async fn kv(&self, operation: Operation) -> Outcome {
        let step = Step { operation, required: false };
        self.broker.kv(vec![step]).await.unwrap().unwrap().pop().unwrap()
    }

    async fn get(&self, key: &str) -> Option<String> {
        match self.kv(Operation::Get(place(key))).await {
            Outcome::Found(row) => row.map(|row| String::from_utf8(row.value.to_vec()).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    /// The records of the store whose keys begin so, expired ones left out.
    async fn keys(&self, prefix: &'static str) -> Vec<String> {
        let records = run(&*self.store, move |tx| tx.records(prefix, None, 1000)).await.unwrap();
        records.into_iter().map(|(key, _)| key).collect()
    }

    async fn lock(&self, name: &str, action: Action) -> lock::Outcome {
        let operation = lock::Operation { name: name.into(), action };
        self.broker.locks(vec![operation]).await.unwrap().pop().unwrap()
    }

    async fn acquire(&self, name: &str, owner: &str, permits: u32) -> lock::Outcome {
        self.lock(name, Action::Acquire { owner: owner.into(), life: 10 * SECOND, permits }).await
    }

    async fn texts(&self, queue: &str) -> Vec<String> {
        let popped = self.broker.pop(from(queue)).await.unwrap();
        let claims = popped.iter().flat_map(|popped| &popped.claims);
        let messages = claims.flat_map(|claim| &claim.messages);
        messages.map(|message| String::from_utf8(message.payload.to_vec()).unwrap()).collect()
    }

    async fn schedule(&self, key: &str, delay: Duration) -> Status {
        let operation = schedule(key, delay);
        self.broker.timers(vec![operation]).await.unwrap()[0].status
    }
}

fn place(key: &str) -> Place {
    Place { namespace: "test".into(), key: key.into() }
}

fn put(key: &str, value: &str, life: Life, expect: Option<u64>) -> Operation {
    Operation::Put { place: place(key), value: value.to_owned().into(), life, expect }
}

fn add(key: &str, delta: i64, max: Option<i64>) -> Operation {
    let addition = Addition { delta: Number::from(delta), min: None, max: max.map(Number::from) };
    Operation::Add { place: place(key), addition, life: Life::For(10 * SECOND) }
}

fn permit(outcome: &lock::Outcome) -> &lock::Permit {
    match outcome {
        lock::Outcome::Acquired { permit, .. } | lock::Outcome::Renewed(permit) => permit,
        other => panic!("no permit: {other:?}"),
    }
}

fn schedule(key: &str, delay: Duration) -> timer::Operation {
    timer::Operation::Schedule {
        queue: "later".into(),
        key: key.into(),
        partition: "p".into(),
        transaction_id: format!("t-{key}"),
        payload: format!("\"{key}\"").into(),
        producer: None,
        delay,
    }
}

fn from(queue: &str) -> PopRequest {
    PopRequest {
        conflation: false,
        target: Target::Queue(queue.into()),
        group: QUEUE_MODE.into(),
        batch: 1000,
        partitions: 1,
        auto_ack: true,
        wait: None,
        lease: None,
        subscription: Subscription::All,
        attempt: None,
    }
}

fn one(queue: &str, payload: &str) -> PushBatch {
    let mut batch = PushBatch::default();
    let message = NewMessage { payload: payload.as_bytes(), ..NewMessage::default() };
    batch.add(queue, "p", &message).unwrap();
    batch
}

#[tokio::test]
async fn what_has_expired_leaves_the_disk_and_what_was_written_again_stays() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    bench.kv(put("gone", "1", Life::For(SECOND), None)).await;
    bench.kv(put("longer", "1", Life::For(SECOND), None)).await;
    bench.kv(put("longer", "2", Life::For(9 * SECOND), None)).await;
    bench.kv(put("kept", "1", Life::For(SECOND), None)).await;
    bench.kv(put("kept", "2", Life::Forever, None)).await;
    assert_eq!(bench.keys("expiry/").await.len(), 2, "one entry for each record that expires");
    bench.clock.advance(2 * SECOND);
    while bench.keys("expiry/").await.len() > 1 {
        baton_env::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(bench.get("gone").await, None);
    assert_eq!(bench.get("longer").await.as_deref(), Some("2"));
    assert_eq!(bench.get("kept").await.as_deref(), Some("2"));
}

#[tokio::test]
async fn a_transaction_under_a_lock_is_done_only_while_it_is_held() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    let held = bench.acquire("l", "a", 1).await;
    let guarded = |token| Transaction {
        steps: vec![TransactionStep::Push(one("q", "1"))],
        kv: vec![
            Step {
                operation: Operation::Check { place: lock::place("l", 0), expect: token },
                required: true,
            },
            Step { operation: add("done", 1, None), required: false },
        ],
        timers: vec![schedule("t", SECOND)],
        ..Transaction::default()
    };
    let token = permit(&held).holder.token;
    let result = bench.broker.transaction(guarded(token)).await.unwrap();
    assert_eq!((result.reason, result.kv.len(), result.timers.len()), (None, 2, 1));
    bench.clock.advance(11 * SECOND);
    bench.acquire("l", "b", 1).await;
    let result = bench.broker.transaction(guarded(token)).await.unwrap();
    assert_eq!(result.reason, Some("kv_precondition"));
    let lost = result.precondition.unwrap();
    assert_eq!((lost.index, lost.lost), (0, Lost::Version));
    assert_eq!(bench.texts("q").await, ["1"], "the second push was undone");
}

#[tokio::test]
async fn a_refused_ack_undoes_records_and_timers() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    let transaction = Transaction {
        required_leases: vec![None],
        kv: vec![Step { operation: put("k", "1", Life::Forever, None), required: false }],
        timers: vec![schedule("t", SECOND)],
        ..Transaction::default()
    };
    assert!(bench.broker.transaction(transaction).await.unwrap().error.is_some());
    assert_eq!(bench.get("k").await, None);
    assert_eq!(bench.broker.timer("later", "t").await.unwrap(), None);
}

#[tokio::test]
async fn a_timer_fires_once_not_before_its_time_and_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    assert_eq!(bench.schedule("a", 5 * SECOND).await, Status::Scheduled);
    assert_eq!(bench.schedule("b", 5 * SECOND).await, Status::Scheduled);
    assert_eq!(bench.schedule("b", 60 * SECOND).await, Status::Rescheduled);
    assert_eq!(bench.broker.fire_timers().await.unwrap().fired, 0);
    bench.clock.advance(4 * SECOND);
    assert_eq!(bench.texts("later").await, [""; 0]);
    bench.close().await;
    let bench = Bench::open_at(directory.path(), Timestamp::from_micros(1_800_000_006_000_000));
    // The alarm looks when the broker starts, so this may find the work done.
    bench.broker.fire_timers().await.unwrap();
    assert_eq!(bench.texts("later").await, ["\"a\""]);
    let fired = bench.broker.fire_timers().await.unwrap();
    assert_eq!((fired.fired, fired.postponed), (0, 0));
    assert!(fired.next.is_some(), "the other timer is still to come");
    assert_eq!(bench.texts("later").await, [""; 0]);
    let cancel = |key: &str| timer::Operation::Cancel { queue: "later".into(), key: key.into() };
    let outcomes = bench.broker.timers(vec![cancel("a"), cancel("b")]).await.unwrap();
    assert_eq!(outcomes.iter().map(|o| o.status).collect::<Vec<_>>(), [Status::Absent, Status::Cancelled]);
    assert_eq!(bench.keys("timer").await, [""; 0], "nothing of a timer is left");
}

#[tokio::test]
async fn a_timer_for_a_full_queue_waits_and_holds_up_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    let options = serde_json::json!({"maxSize": 1});
    bench.broker.configure("later", None, None, options.as_object().unwrap(), false).await.unwrap();
    bench.broker.push(one("later", "0")).await.unwrap();
    bench.schedule("a", SECOND).await;
    let other = timer::Operation::Schedule {
        queue: "other".into(),
        key: "b".into(),
        partition: "p".into(),
        transaction_id: "b".into(),
        payload: "1".into(),
        producer: None,
        delay: SECOND,
    };
    bench.broker.timers(vec![other]).await.unwrap();
    bench.clock.advance(2 * SECOND);
    for _ in 0..3 {
        bench.broker.fire_timers().await.unwrap();
    }
    assert_eq!(bench.texts("other").await, ["1"]);
    let waiting = bench.broker.timer("later", "a").await.unwrap().unwrap();
    assert!(waiting.attempts > 0 && waiting.last_error.unwrap().contains("full"));
    assert_eq!(bench.texts("later").await, ["0"]);
    bench.clock.advance(100 * SECOND);
    bench.broker.fire_timers().await.unwrap();
    assert_eq!(bench.texts("later").await, ["\"a\""]);
}

#[tokio::test]
async fn a_timer_of_an_encrypted_queue_waits_encrypted() {
    let directory = tempfile::tempdir().unwrap();
    let (start, key) = (Timestamp::from_micros(1_800_000_000_000_000), "07".repeat(32));
    let bench = Bench::open_with(directory.path(), start, &key);
    // Set before the queue exists, so nothing says that it must be encrypted.
    bench.schedule("early", SECOND).await;
    let options = serde_json::json!({"encryptionEnabled": true});
    bench.broker.configure("later", None, None, options.as_object().unwrap(), false).await.unwrap();
    bench.schedule("secret", SECOND).await;
    let stored = run(&*bench.store, |tx| tx.records("timer/later\0s", None, 9)).await.unwrap();
    assert_eq!(stored.len(), 1);
    assert!(
        !stored[0].1.value.ends_with(b"\"secret\""),
        "the payload stands at the end, and is not to be read"
    );
    assert_eq!(bench.broker.timer("later", "secret").await.unwrap().unwrap().payload, "\"secret\"");
    bench.close().await;

    let bench = Bench::open_with(directory.path(), start, "");
    let refused = bench.broker.timers(vec![schedule("plain", SECOND)]).await.unwrap_err();
    assert!(matches!(refused, baton_queue::Error::KeyMissing(_)), "{refused}");
    bench.close().await;

    let bench = Bench::open_with(directory.path(), start.after(5 * SECOND), &key);
    bench.broker.fire_timers().await.unwrap();
    let entry =
        FetchEntry { queue: "later".into(), partition: "p".into(), offset: Offset(0), bytes_max: 1000 };
    let fetched = bench.broker.fetch(&[entry], 1000, 1, Duration::ZERO).await.unwrap();
    assert!(matches!(&fetched[0], Fetched::Read { messages, .. }
        if messages.len() == 2 && messages[1].payload == "\"secret\""));
    assert_eq!(bench.texts("later").await, ["\"early\"", "\"secret\""]);
}

#[tokio::test]
async fn the_alarm_rings_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    bench.schedule("a", Duration::ZERO).await;
    let waiting = PopRequest { wait: Some(30 * SECOND), ..from("later") };
    assert!(bench.broker.pop(waiting).await.unwrap().is_some());
}

#[tokio::test]
async fn a_partition_is_read_by_offset_within_a_budget() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    for i in 0..5 {
        bench.broker.push(one("q", &format!("{i}00"))).await.unwrap();
    }
    let entry = |queue: &str, offset, bytes_max| FetchEntry {
        queue: queue.into(),
        partition: "p".into(),
        offset: Offset(offset),
        bytes_max,
    };
    let read = async |entry| {
        let fetched = bench.broker.fetch(&[entry], 1000, 1, Duration::ZERO).await.unwrap().pop().unwrap();
        match fetched {
            Fetched::Read { messages, tail, out_of_range, .. } => {
                (messages.iter().map(|m| m.offset.0).collect::<Vec<_>>(), tail.0, out_of_range)
            }
            Fetched::NoQueue => (Vec::new(), 99, false),
        }
    };
    assert_eq!(read(entry("q", 0, 1000)).await, (vec![0, 1, 2, 3, 4], 5, false));
    assert_eq!(read(entry("q", 3, 1000)).await, (vec![3, 4], 5, false));
    assert_eq!(read(entry("q", 1, 7)).await, (vec![1, 2], 5, false));
    assert_eq!(read(entry("q", 1, 1)).await, (vec![1], 5, false), "at least one");
    assert_eq!(read(entry("q", 5, 1000)).await, (vec![], 5, false));
    assert_eq!(read(entry("q", 6, 1000)).await, (vec![], 5, true));
    assert_eq!(read(entry("none", 0, 1000)).await, (vec![], 99, false));
}

#[tokio::test]
async fn changed_partitions_are_those_written_since_a_safe_time() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    let push = async |partition: &str| {
        let mut batch = PushBatch::default();
        batch.add("q", partition, &NewMessage { payload: b"1", ..NewMessage::default() }).unwrap();
        bench.broker.push(batch).await.unwrap();
    };
    let changed = async |since| {
        let (found, next) = bench.broker.changed_partitions("q", since, None, 100).await.unwrap().unwrap();
        assert_eq!(next, None);
        found.iter().map(|partition| partition.name.to_string()).collect::<Vec<_>>()
    };
    push("a").await;
    push("b").await;
    let safe = bench.broker.safe_time().await.unwrap();
    assert_eq!(changed(None).await, ["a", "b"]);
    push("b").await;
    push("c").await;
    assert_eq!(changed(Some(safe)).await, ["b", "c"]);
    assert!(bench.broker.changed_partitions("none", None, None, 1).await.unwrap().is_none());
}
