//! Encrypted queues: a payload opens in its own message only, by every way in and out.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use baton_queue::{
    AckItem, Broker, DeadLetterFilter, FetchEntry, Fetched, LeaseClaim, LetterFilter, MessageFilter, Options,
    PopRequest, Popped, PushBatch, PushMode, Step, Subscription, Target, Transaction, timer,
};
use baton_store::{MessageBlock, NewMessage, Segment, Store, StoredMessage, run};
use baton_store_embedded::EmbeddedStore;
use baton_types::wire::AckStatus;
use baton_types::{Offset, PartitionId, QUEUE_MODE};

const QUEUE: &str = "q";

struct Bench {
    store: Arc<EmbeddedStore>,
    broker: Broker,
    _directory: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = baton_store_embedded::Options {
            min_free_disk: 0,
            ..baton_store_embedded::Options::new(directory.path())
        };
        let store = Arc::new(EmbeddedStore::open(options).unwrap());
        let options = Options { keys: "07".repeat(32).parse().unwrap(), ..Options::default() };
        let bench = Self { broker: Broker::start(store.clone(), options), store, _directory: directory };
        let options = serde_json::json!({"encryptionEnabled": true});
        bench.broker.configure(QUEUE, None, None, options.as_object().unwrap(), false).await.unwrap();
        bench
    }

    /// Pushes a message whose payload is `text`.
    async fn push(&self, partition: &str, id: Option<&str>, text: &str) -> PartitionId {
        self.broker.push(batch(partition, id, text)).await.unwrap()[0].partition
    }

    /// What the store holds of a partition.
    async fn stored(&self, partition: PartitionId) -> Vec<StoredMessage> {
        let row = run(&*self.store, move |tx| tx.partition_by_id(partition)).await.unwrap().unwrap();
        let segments = self.store.read(partition, row.start, row.tail, 1 << 20).await.unwrap();
        let messages = segments.iter().flat_map(Segment::messages);
        messages.map(Result::unwrap).filter(|message| message.offset >= row.start).collect()
    }

    /// Replaces everything in a partition by messages with these transaction ids and stored payloads.
    async fn tamper(&self, partition: PartitionId, messages: &[(&str, &[u8])]) {
        let mut block = MessageBlock::default();
        for (id, payload) in messages {
            block.push(&message(Some(id), payload));
        }
        let replace = move |tx: &mut dyn baton_store::Tx| {
            let row = tx.partition_by_id(partition)?;
            tx.trim(partition, row.map_or(Offset(0), |row| row.tail))?;
            tx.append(partition, &block, Duration::ZERO);
            Ok(())
        };
        run(&*self.store, replace).await.unwrap();
    }

    async fn pop(&self, partition: &str, group: &str) -> Option<Popped> {
        let request = PopRequest {
            target: Target::Partition { queue: QUEUE.into(), partition: partition.into() },
            group: group.into(),
            batch: 100,
            partitions: 1,
            auto_ack: false,
            wait: None,
            lease: None,
            subscription: Subscription::All,
            attempt: None,
            conflation: false,
        };
        self.broker.pop(request).await.unwrap()
    }

    async fn popped(&self, partition: &str, group: &str) -> Vec<String> {
        let claims = self.pop(partition, group).await.into_iter().flat_map(|popped| popped.claims);
        claims.flat_map(|claim| claim.messages).map(|message| text(&message.payload)).collect()
    }

    async fn fetched(&self, partition: &str) -> Result<Vec<String>, baton_queue::Error> {
        let from = run(&*self.store, {
            let partition = partition.to_owned();
            move |tx| {
                let queue = tx.queue(QUEUE)?.map(|queue| queue.id);
                Ok(queue.map(|queue| tx.partition(queue, &partition)).transpose()?.flatten())
            }
        });
        let from = from.await.unwrap().unwrap().start;
        let entry =
            FetchEntry { queue: QUEUE.into(), partition: partition.into(), offset: from, bytes_max: 1 << 20 };
        let fetched = self.broker.fetch(&[entry], 1 << 20, 1, Duration::ZERO).await?;
        let Fetched::Read { messages, .. } = &fetched[0] else { return Ok(Vec::new()) };
        Ok(messages.iter().map(|message| text(&message.payload)).collect())
    }

    async fn listed(&self, partition: &str) -> Vec<String> {
        let filter = MessageFilter {
            queue: Some(QUEUE.into()),
            partition: Some(partition.into()),
            limit: 100,
            ..MessageFilter::default()
        };
        let found = self.broker.messages(filter).await.unwrap();
        let mut found: Vec<_> = found.iter().map(|summary| text(&summary.message.payload)).collect();
        found.sort();
        found
    }

    async fn letters(&self) -> Vec<(String, String)> {
        let filter =
            DeadLetterFilter { queue: Some(QUEUE.into()), limit: 100, ..DeadLetterFilter::default() };
        let page = self.broker.dead_letters(filter).await.unwrap();
        let letter = |listed: &baton_queue::ListedLetter| {
            (text(&listed.letter.payload), listed.letter.error.clone().unwrap_or_default())
        };
        let mut letters: Vec<_> = page.letters.iter().map(letter).collect();
        letters.sort();
        letters
    }

    /// Makes dead letters of what a partition has.
    async fn give_up(&self, partition: &str) -> Vec<String> {
        let popped = self.pop(partition, QUEUE_MODE).await.unwrap();
        let claim = &popped.claims[0];
        let ids: Vec<_> = claim.messages.iter().map(StoredMessage::transaction_text).collect();
        let item = |id: &String| AckItem {
            partition: Some(claim.partition),
            transaction_id: id.clone(),
            group: QUEUE_MODE.into(),
            lease: LeaseClaim::None,
            status: AckStatus::Dlq,
            error: Some("given up".into()),
        };
        let acked = self.broker.ack(ids.iter().map(item).collect()).await.unwrap();
        assert!(acked.iter().all(|acked| acked.dead_lettered), "{acked:?}");
        ids
    }

    /// Every reader sees these payloads, and the store holds none of them as plain text.
    async fn shows(&self, partition: PartitionId, name: &str, expected: &[&str]) {
        assert_eq!(self.popped(name, &format!("reader of {}", expected.len())).await, expected);
        assert_eq!(self.fetched(name).await.unwrap(), expected);
        let mut sorted = expected.to_vec();
        sorted.sort_unstable();
        assert_eq!(self.listed(name).await, sorted);
        for (stored, expected) in self.stored(partition).await.iter().zip(expected) {
            assert!(stored.payload.starts_with(b"\0BE\x03"), "{stored:?}");
            let id = stored.transaction_text();
            let detail = self.broker.message(partition, &id).await.unwrap().unwrap();
            assert_eq!(text(&detail.summary.message.payload), *expected);
        }
    }
}

fn message<'a>(id: Option<&'a str>, payload: &'a [u8]) -> NewMessage<'a> {
    NewMessage { transaction_id: id, trace_id: None, producer: None, payload }
}

fn batch(partition: &str, id: Option<&str>, text: &str) -> PushBatch {
    let mut batch = PushBatch::default();
    batch.add(QUEUE, partition, &message(id, text.as_bytes())).unwrap();
    batch
}

fn text(payload: &[u8]) -> String {
    String::from_utf8(payload.to_vec()).unwrap()
}

#[tokio::test]
async fn payloads_that_were_swapped_in_one_partition_do_not_open() {
    let bench = Bench::new().await;
    let partition = bench.push("p", Some("1"), "\"pay 1\"").await;
    bench.push("p", Some("2"), "\"pay 2\"").await;
    let stored = bench.stored(partition).await;
    let (one, two) = (&stored[0].payload, &stored[1].payload);
    bench.tamper(partition, &[("1", one), ("2", two)]).await;
    assert_eq!(bench.fetched("p").await.unwrap(), ["\"pay 1\"", "\"pay 2\""], "the test leaves them whole");
    bench.tamper(partition, &[("1", two), ("2", one)]).await;
    does_not_open(&bench, partition).await;
}

#[tokio::test]
async fn payloads_that_were_swapped_between_partitions_do_not_open() {
    let bench = Bench::new().await;
    let (a, b) =
        (bench.push("p", Some("1"), "\"of p\"").await, bench.push("other", Some("1"), "\"of other\"").await);
    let (of_a, of_b) = (bench.stored(a).await[0].payload.clone(), bench.stored(b).await[0].payload.clone());
    bench.tamper(a, &[("1", &of_b), ("2", &of_b)]).await;
    bench.tamper(b, &[("1", &of_a)]).await;
    assert_eq!(bench.listed("other").await, [""]);
    does_not_open(&bench, a).await;
}

/// The two messages of partition `p` are never shown, and hold up no other.
async fn does_not_open(bench: &Bench, partition: PartitionId) {
    let fetched = bench.fetched("p").await.unwrap_err();
    assert!(fetched.to_string().contains("changed or moved"), "{fetched}");
    assert_eq!(bench.listed("p").await, ["", ""]);
    assert!(bench.broker.message(partition, "1").await.is_err());
    bench.push("p", Some("3"), "\"whole\"").await;
    assert_eq!(bench.popped("p", QUEUE_MODE).await, ["\"whole\""]);
    let letters = bench.letters().await;
    assert_eq!(letters.len(), 2);
    for (payload, error) in letters {
        assert!(payload.is_empty() && error.contains("changed or moved"), "{payload:?} {error}");
    }
    // They stay dead letters, and stop no other one on its way back.
    let refused = bench.broker.replay(partition, "1").await.unwrap_err();
    assert!(refused.to_string().contains("changed or moved"), "{refused}");
    let progress = bench.broker.replay_letters(LetterFilter::default(), None, 100, None).await.unwrap();
    assert_eq!((progress.matched, progress.changed, progress.stopped), (2, 0, None));
    assert_eq!(bench.letters().await.len(), 2);
}

#[tokio::test]
async fn every_way_in_opens_by_every_way_out() {
    let bench = Bench::new().await;
    let partition = bench.push("p", Some("given"), "\"given\"").await;
    bench.push("p", None, "\"without an id\"").await;
    let steps = vec![Step::Push(batch("p", Some("tx"), "\"transaction\""))];
    let done = bench.broker.transaction(Transaction { steps, ..Transaction::default() }).await.unwrap();
    assert_eq!(done.error, None);
    let operation = timer::Operation::Schedule {
        queue: QUEUE.into(),
        key: "k".into(),
        partition: "p".into(),
        transaction_id: "timer".into(),
        payload: "\"timer\"".into(),
        producer: None,
        delay: Duration::ZERO,
    };
    bench.broker.timers(vec![operation]).await.unwrap();
    while bench.broker.timer(QUEUE, "k").await.unwrap().is_some() {
        bench.broker.fire_timers().await.unwrap();
    }
    bench.broker.spool_pushes(true).await.unwrap();
    bench.push("p", Some("spooled"), "\"spooled\"").await;
    bench.push("p", None, "\"spooled without an id\"").await;
    bench.broker.spool_pushes(false).await.unwrap();
    let watch = baton_env::Stopwatch::start();
    while bench.broker.maintenance().await.unwrap().0.push != PushMode::Direct {
        assert!(watch.elapsed() < Duration::from_secs(30), "the spool is never drained");
        baton_env::sleep(Duration::from_millis(5)).await;
    }
    let all = [
        "\"given\"",
        "\"without an id\"",
        "\"transaction\"",
        "\"timer\"",
        "\"spooled\"",
        "\"spooled without an id\"",
    ];
    bench.shows(partition, "p", &all).await;
}

#[tokio::test]
async fn dead_letters_open_and_come_back_with_and_without_an_id() {
    let bench = Bench::new().await;
    for (id, text) in [(Some("1"), "\"a\""), (None, "\"b\""), (Some("3"), "\"c\""), (None, "\"d\"")] {
        bench.push("p", id, text).await;
    }
    let ids = bench.give_up("p").await;
    let texts: Vec<_> = bench.letters().await.into_iter().map(|(payload, _)| payload).collect();
    assert_eq!(texts, ["\"a\"", "\"b\"", "\"c\"", "\"d\""]);
    let partition = bench.push("p", Some("last"), "\"e\"").await;
    for id in &ids[..2] {
        assert!(!bench.broker.replay(partition, id).await.unwrap().unwrap().duplicate);
    }
    let progress = bench.broker.replay_letters(LetterFilter::default(), None, 100, None).await.unwrap();
    assert_eq!((progress.matched, progress.changed), (2, 2));
    let all = ["\"a\"", "\"b\"", "\"c\"", "\"d\"", "\"e\"", "\"a\"", "\"b\"", "\"c\"", "\"d\""];
    bench.shows(partition, "p", &all).await;
    // One that comes back twice is sealed twice.
    let again = ["\"e\"", "\"a\"", "\"b\"", "\"c\"", "\"d\""];
    bench.give_up("p").await;
    bench.broker.replay_letters(LetterFilter::default(), None, 100, None).await.unwrap();
    let mut expected = all.to_vec();
    expected.extend(again);
    bench.shows(partition, "p", &expected).await;
}
