//! How many queues, partitions and groups there may be: what would be more is refused as a whole, on both stores.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use baton_queue::{
    Broker, Error, Options, PopRequest, Position, PushBatch, Step, Subscription, Target, Transaction, timer,
};
use baton_store::{NewMessage, Store, StoreLimits};
use baton_store_embedded::EmbeddedStore;
use baton_store_postgres::PostgresStore;
use baton_testing_postgres::Postgres;
use serde_json::Map;

const BOUNDS: StoreLimits = StoreLimits { queues: 3, partitions: 4, groups: 2 };

struct Bench {
    broker: Broker,
}

impl Bench {
    async fn embedded(directory: &tempfile::TempDir) -> Self {
        let options = baton_store_embedded::Options {
            min_free_disk: 0,
            bounds: BOUNDS,
            ..baton_store_embedded::Options::new(directory.path())
        };
        Self::with(Arc::new(EmbeddedStore::open(options).unwrap()))
    }

    async fn postgres() -> Self {
        let url = tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap();
        let options =
            baton_store_postgres::Options { bounds: BOUNDS, ..baton_store_postgres::Options::new(url) };
        Self::with(Arc::new(PostgresStore::open(options).await.unwrap()))
    }

    fn with(store: Arc<dyn Store>) -> Self {
        Self { broker: Broker::start(store, Options { pop_creates_queue: true, ..Options::default() }) }
    }

    async fn push(&self, places: &[(&str, &str)]) -> Result<(), Error> {
        self.broker.push(batch(places)).await.map(drop)
    }

    async fn pop(&self, queue: &str, group: &str, wait: Option<Duration>) -> Result<(), Error> {
        let request = PopRequest {
            target: Target::Queue(queue.into()),
            group: group.into(),
            batch: 1,
            partitions: 1,
            auto_ack: false,
            wait,
            lease: None,
            subscription: Subscription::All,
            attempt: None,
            conflation: false,
        };
        self.broker.pop(request).await.map(drop)
    }

    async fn configure(&self, queue: &str) -> Result<(), Error> {
        self.broker.configure(queue, None, None, &Map::new(), false).await.map(drop)
    }

    /// The culprit of a transaction that is refused because of a limit.
    async fn transact(&self, places: &[(&str, &str)]) -> Option<usize> {
        let steps = vec![Step::Push(batch(places))];
        let transaction = Transaction { steps, ..Transaction::default() };
        let refused = self.broker.transaction(transaction).await.unwrap();
        assert_eq!(refused.reason, Some("limit_reached"));
        refused.failed_index
    }

    async fn schedule(&self, queue: &str, partition: &str) {
        let operation = timer::Operation::Schedule {
            queue: queue.into(),
            key: "t".into(),
            partition: partition.into(),
            transaction_id: format!("timer of {queue}"),
            payload: "{}".into(),
            producer: None,
            delay: Duration::ZERO,
        };
        self.broker.timers(vec![operation]).await.unwrap();
    }

    async fn partitions(&self, queue: &str) -> Option<u64> {
        self.broker.queue(queue).await.unwrap().map(|(summary, _)| summary.partitions)
    }

    async fn keeps_to_its_bounds(self) {
        self.queues().await;
        self.partitions_of_a_queue().await;
        self.groups().await;
        self.timers().await;
        self.broker.shutdown().await;
    }

    async fn queues(&self) {
        is_full(self.push(&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")]).await);
        assert_eq!(self.partitions("a").await, None, "all or nothing");
        self.push(&[("a", "1"), ("b", "1"), ("c", "1")]).await.unwrap();
        is_full(self.push(&[("a", "1"), ("d", "1")]).await);
        is_full(self.configure("d").await);
        is_full(self.pop("d", "g", None).await);
        assert_eq!(self.transact(&[("d", "1")]).await, Some(0));
        assert_eq!(self.transact(&[("a", "1"), ("a", "2"), ("d", "1"), ("d", "2")]).await, Some(2));
        self.configure("a").await.unwrap();
        assert!(self.broker.delete_queue("c").await.unwrap());
        self.configure("d").await.unwrap();
        is_full(self.configure("c").await);
    }

    async fn partitions_of_a_queue(&self) {
        is_full(self.push(&[("a", "2"), ("b", "2"), ("a", "3"), ("a", "4"), ("a", "5")]).await);
        assert_eq!((self.partitions("a").await, self.partitions("b").await), (Some(1), Some(1)));
        self.push(&[("a", "2"), ("a", "3")]).await.unwrap();
        is_full(self.push(&[("a", "4"), ("a", "5")]).await);
        self.push(&[("a", "4")]).await.unwrap();
        for _ in 0..3 {
            is_full(self.push(&[("a", "5")]).await);
        }
        assert_eq!(self.transact(&[("b", "2"), ("a", "5")]).await, Some(1));
        let places = [("b", "2"), ("b", "3"), ("a", "1"), ("b", "2"), ("b", "4"), ("b", "5"), ("a", "5")];
        assert_eq!(self.transact(&places).await, Some(5));
        self.push(&[("a", "1"), ("a", "4"), ("b", "2")]).await.unwrap();
        assert_eq!((self.partitions("a").await, self.partitions("b").await), (Some(4), Some(2)));
    }

    async fn groups(&self) {
        self.pop("a", "one", None).await.unwrap();
        self.pop("a", "two", None).await.unwrap();
        is_full(self.pop("a", "three", None).await);
        is_full(self.pop("a", "three", Some(Duration::from_secs(60))).await);
        is_full(self.broker.seek("three", "a", Position::End).await.map(drop));
        is_full(self.broker.seek_partition("three", "a", "1", Position::End).await.map(drop));
        let place = |group: &str| baton_queue::Place {
            queue: "a".into(),
            partition: "1".into(),
            group: group.into(),
            next: None,
        };
        let positions = vec![place("one"), place("three")];
        let transaction = Transaction { positions, ..Transaction::default() };
        let refused = self.broker.transaction(transaction).await.unwrap();
        assert_eq!((refused.reason, refused.failed_index), (Some("limit_reached"), Some(1)));
        self.broker.seek("two", "a", Position::End).await.unwrap();
        self.pop("a", "two", None).await.unwrap();
        self.pop("b", "three", None).await.unwrap();
        self.broker.delete_group("two", Some("a"), false).await.unwrap();
        self.pop("a", "three", None).await.unwrap();
    }

    /// One that cannot be pushed is tried again later and holds up no other.
    async fn timers(&self) {
        self.schedule("a", "5").await;
        self.schedule("b", "3").await;
        let fired = async {
            while self.partitions("b").await != Some(3) {
                baton_env::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), fired).await.unwrap();
        let tried = async {
            loop {
                let timer = self.broker.timer("a", "t").await.unwrap().unwrap();
                match timer.last_error {
                    Some(error) => return error,
                    None => baton_env::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let error = tokio::time::timeout(Duration::from_secs(30), tried).await.unwrap();
        assert!(error.contains("at most 4 partitions"), "{error}");
    }
}

fn batch(places: &[(&str, &str)]) -> PushBatch {
    let mut batch = PushBatch::default();
    for (queue, partition) in places {
        let message = NewMessage { payload: b"{}", ..NewMessage::default() };
        batch.add(queue, partition, &message).unwrap();
    }
    batch
}

#[track_caller]
fn is_full(outcome: Result<(), Error>) {
    let is_full = |error: &Error| {
        matches!(error, Error::NoRoom { .. } | Error::Store(baton_store::Error::LimitReached(_)))
    };
    assert!(outcome.as_ref().is_err_and(is_full), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_no_more_queues_partitions_and_groups_than_there_may_be() {
    let directory = tempfile::tempdir().unwrap();
    Bench::embedded(&directory).await.keeps_to_its_bounds().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_no_more_queues_partitions_and_groups_on_postgres_than_there_may_be() {
    Bench::postgres().await.keeps_to_its_bounds().await;
}
