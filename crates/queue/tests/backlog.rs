//! How many messages a group has not finished, where it begins in the middle of a partition and where messages are
//! deleted. On both stores.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use baton_env::ManualClock;
use baton_queue::{
    Broker, Error, GroupOverview, GroupPartition, Options, PopRequest, Position, PushBatch, Subscription,
    Target,
};
use baton_store::{NewMessage, Store};
use baton_store_embedded::EmbeddedStore;
use baton_store_postgres::PostgresStore;
use baton_testing_postgres::Postgres;
use baton_types::{PartitionId, Timestamp};
use serde_json::json;

/// More than a listing looks at in one decision, and as many as it reads of the log.
const MANY: usize = 100;

struct Bench {
    clock: Arc<ManualClock>,
    broker: Broker,
    _directory: Option<tempfile::TempDir>,
}

impl Bench {
    fn new(store: Arc<dyn Store>, clock: Arc<ManualClock>, directory: Option<tempfile::TempDir>) -> Self {
        Self { clock, broker: Broker::start(store, Options::default()), _directory: directory }
    }

    fn clock() -> Arc<ManualClock> {
        Arc::new(ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000)))
    }

    fn embedded() -> Self {
        let (directory, clock) = (tempfile::tempdir().unwrap(), Self::clock());
        let options = baton_store_embedded::Options {
            min_free_disk: 0,
            clock: clock.clone(),
            ..baton_store_embedded::Options::new(directory.path())
        };
        Self::new(Arc::new(EmbeddedStore::open(options).unwrap()), clock, Some(directory))
    }

    async fn postgres() -> Self {
        let clock = Self::clock();
        let url = tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap();
        let options = baton_store_postgres::Options {
            clock: Some(clock.clone()),
            ..baton_store_postgres::Options::new(url)
        };
        Self::new(Arc::new(PostgresStore::open(options).await.unwrap()), clock, None)
    }

    /// Pushes messages that are their own transaction ids; where the first of them is.
    async fn push(&self, partition: &str, ids: &[&str]) -> Result<PartitionId, Error> {
        let mut batch = PushBatch::default();
        for id in ids {
            let message = NewMessage { transaction_id: Some(id), payload: b"1", ..NewMessage::default() };
            batch.add("q", partition, &message).unwrap();
        }
        Ok(self.broker.push(batch).await?[0].partition)
    }

    /// Some messages before a moment and some after it.
    async fn straddle(&self, partition: &str) -> Timestamp {
        self.push(partition, &["a", "b", "c", "d", "e"]).await.unwrap();
        self.clock.advance(Duration::from_secs(10));
        let between = self.broker.store().now();
        self.clock.advance(Duration::from_secs(10));
        self.push(partition, &["f", "g"]).await.unwrap();
        between
    }

    async fn group(&self, name: &str) -> (GroupOverview, Vec<GroupPartition>) {
        let overview = self.broker.groups().await.unwrap().into_iter().find(|group| &*group.name == name);
        (overview.unwrap(), self.broker.group_partitions(name).await.unwrap())
    }

    async fn pop(&self, group: &str, batch: u32, auto_ack: bool) -> usize {
        let request = PopRequest {
            target: Target::Queue("q".into()),
            group: group.into(),
            batch,
            partitions: 10,
            auto_ack,
            wait: None,
            lease: None,
            subscription: Subscription::All,
            attempt: None,
            conflation: false,
        };
        let popped = self.broker.pop(request).await.unwrap();
        popped.map_or(0, |popped| popped.claims.iter().map(|claim| claim.messages.len()).sum())
    }

    async fn counts_what_came_since(&self) {
        let between = self.straddle("p").await;
        self.broker.seek("g", "q", Position::After(between)).await.unwrap();
        self.push("other", &["h"]).await.unwrap();
        let (overview, partitions) = self.group("g").await;
        assert_eq!(partitions.iter().map(|partition| partition.lag).sum::<u64>(), 3);
        assert_eq!((overview.total_lag, overview.partitions_with_lag), (3, 2));
        assert_eq!(self.pop("g", 10, true).await, 3);
        assert_eq!(self.group("g").await.0.total_lag, 0);
    }

    async fn counts_what_came_since_in_many_partitions(&self) {
        let mut batch = PushBatch::default();
        let names: Vec<_> = (0..MANY).map(|number| format!("p{number}")).collect();
        for name in &names {
            batch.add("q", name, &NewMessage { payload: b"1", ..NewMessage::default() }).unwrap();
        }
        self.broker.push(batch.clone()).await.unwrap();
        self.clock.advance(Duration::from_secs(10));
        let between = self.broker.store().now();
        self.clock.advance(Duration::from_secs(10));
        self.broker.push(batch).await.unwrap();
        self.broker.seek("g", "q", Position::After(between)).await.unwrap();
        assert_eq!(self.group("g").await.0.total_lag, MANY as u64);
    }

    async fn lets_in_what_there_is_room_for(&self) {
        let between = self.straddle("p").await;
        let options = json!({"maxSize": 4});
        self.broker.configure("q", None, None, options.as_object().unwrap(), false).await.unwrap();
        self.broker.seek("g", "q", Position::After(between)).await.unwrap();
        let refused = self.push("p", &["h", "i", "j"]).await;
        assert!(matches!(refused, Err(Error::QueueFull { size: 2, max: 4, .. })), "{refused:?}");
        self.push("p", &["h", "i"]).await.unwrap();
        let refused = self.push("other", &["j"]).await;
        assert!(matches!(refused, Err(Error::QueueFull { size: 4, .. })), "{refused:?}");
        assert_eq!(self.pop("g", 1, true).await, 1);
        self.push("other", &["j"]).await.unwrap();
    }

    async fn counts_no_deleted_message(&self) {
        let partition = self.push("p", &["a", "b", "c", "d", "e"]).await.unwrap();
        assert_eq!(self.pop("g", 2, true).await, 2);
        for id in ["b", "c", "e"] {
            assert!(self.broker.delete_message(partition, id).await.unwrap());
        }
        self.clock.advance(Duration::from_secs(10));
        self.push("p", &["f"]).await.unwrap();
        let (overview, partitions) = self.group("g").await;
        assert_eq!((overview.total_lag, partitions[0].lag), (2, 2));
        assert!(partitions[0].oldest_unfinished_at.is_some());
        let depth = self.broker.depth("q", Some("g")).await.unwrap().unwrap();
        let counts = depth[0].counts;
        assert_eq!((counts.total, counts.pending, counts.completed), (3, 2, 1));
    }
}

macro_rules! on_both_stores {
    ($($name:ident: $method:ident;)*) => {$(
        mod $name {
            use super::Bench;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn embedded() {
                Bench::embedded().$method().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                Bench::postgres().await.$method().await;
            }
        }
    )*};
}

on_both_stores! {
    a_group_that_begins_between_two_messages_lags_by_the_later_ones: counts_what_came_since;
    a_group_that_begins_between_two_messages_of_many_partitions_lags_by_the_later_ones: counts_what_came_since_in_many_partitions;
    a_queue_is_not_full_of_messages_older_than_its_group: lets_in_what_there_is_room_for;
    a_deleted_message_is_neither_pending_nor_finished: counts_no_deleted_message;
}
