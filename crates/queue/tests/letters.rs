//! Many dead letters at once, and queues without their messages, on both stores.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use baton_queue::{
    AckItem, Broker, LeaseClaim, LetterFilter, LetterPlace, Options, PopRequest, Popped, PushBatch,
    Subscription, Target,
};
use baton_store::{NewMessage, Store};
use baton_store_embedded::EmbeddedStore;
use baton_store_postgres::PostgresStore;
use baton_testing_postgres::Postgres;
use baton_types::QUEUE_MODE;
use baton_types::wire::AckStatus;
use serde_json::json;

struct Bench {
    broker: Broker,
    _directory: Option<tempfile::TempDir>,
}

impl Bench {
    fn new(store: Arc<dyn Store>, directory: Option<tempfile::TempDir>) -> Self {
        Self { broker: Broker::start(store, Options::default()), _directory: directory }
    }

    fn embedded() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = baton_store_embedded::Options {
            min_free_disk: 0,
            ..baton_store_embedded::Options::new(directory.path())
        };
        Self::new(Arc::new(EmbeddedStore::open(options).unwrap()), Some(directory))
    }

    async fn postgres() -> Self {
        let url = tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap();
        let store = PostgresStore::open(baton_store_postgres::Options::new(url)).await.unwrap();
        Self::new(Arc::new(store), None)
    }

    /// Pushes messages that are their own transaction ids.
    async fn push(&self, queue: &str, partition: &str, ids: &[String]) -> Vec<bool> {
        let mut batch = PushBatch::default();
        for id in ids {
            let payload = json!(id).to_string();
            let message = NewMessage {
                transaction_id: Some(id),
                trace_id: None,
                producer: None,
                payload: payload.as_bytes(),
            };
            batch.add(queue, partition, &message).unwrap();
        }
        self.broker.push(batch).await.unwrap().iter().map(|pushed| pushed.duplicate).collect()
    }

    async fn pop(&self, queue: &str, partition: &str, group: &str) -> Option<Popped> {
        let request = PopRequest {
            target: Target::Partition { queue: queue.into(), partition: partition.into() },
            group: group.into(),
            batch: 1000,
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

    /// The transaction ids that a pop gives, in order.
    async fn ids(&self, queue: &str, partition: &str, group: &str) -> Vec<String> {
        let popped = self.pop(queue, partition, group).await;
        let claims = popped.into_iter().flat_map(|popped| popped.claims);
        claims.flat_map(|claim| claim.messages).map(|message| message.transaction_text()).collect()
    }

    /// Makes dead letters of a partition's messages, each with an error.
    async fn give_up(
        &self,
        queue: &str,
        partition: &str,
        group: &str,
        ids: &[String],
        error: impl Fn(usize) -> String,
    ) {
        self.push(queue, partition, ids).await;
        let popped = self.pop(queue, partition, group).await.unwrap();
        let number = popped.claims[0].partition;
        let item = |(index, id): (usize, &String)| AckItem {
            partition: Some(number),
            transaction_id: id.clone(),
            group: group.into(),
            lease: LeaseClaim::None,
            status: AckStatus::Dlq,
            error: Some(error(index)),
        };
        let acked = self.broker.ack(ids.iter().enumerate().map(item).collect()).await.unwrap();
        assert!(acked.iter().all(|acked| acked.dead_lettered), "{acked:?}");
    }

    async fn count(&self, filter: LetterFilter) -> u64 {
        self.broker.count_letters(filter, None).await.unwrap().matched
    }

    async fn groups_errors(&self) {
        self.give_up("q", "a", QUEUE_MODE, &ids("a", 40), |index| format!("error {}", index % 2)).await;
        self.give_up("q", "b", QUEUE_MODE, &ids("b", 5), |_| "error 0".into()).await;
        self.give_up("other", "a", QUEUE_MODE, &ids("c", 1), |_| "timed out".into()).await;
        let (errors, progress) = self.broker.letter_errors(LetterFilter::default(), None).await.unwrap();
        let counts: Vec<_> =
            errors.iter().map(|(text, error)| (text.as_deref().unwrap(), error.count)).collect();
        assert_eq!(counts, [("error 0", 25), ("error 1", 20), ("timed out", 1)]);
        assert_eq!((progress.matched, progress.next), (46, None));
        let timed_out = &errors[&Some("timed out".into())];
        assert_eq!((&*timed_out.sample.queue, timed_out.sample.transaction_id.as_str()), ("other", "c-00"));
        assert!(errors.values().all(|error| error.first <= error.last));
        let of_q = LetterFilter { queue: Some("q".into()), ..LetterFilter::default() };
        assert_eq!(self.count(of_q.clone()).await, 45);
        assert_eq!(self.count(LetterFilter { partition: Some("b".into()), ..of_q.clone() }).await, 5);
        assert_eq!(self.count(LetterFilter { error: Some("error 1".into()), ..of_q.clone() }).await, 20);
        assert_eq!(self.count(LetterFilter { error_contains: Some("ror".into()), ..of_q.clone() }).await, 45);
        assert_eq!(self.count(LetterFilter { group: Some("unknown".into()), ..of_q.clone() }).await, 0);
        assert_eq!(self.count(LetterFilter { to: Some(timed_out.first), ..of_q.clone() }).await, 45);
        assert_eq!(self.count(LetterFilter { from: Some(timed_out.last), ..of_q }).await, 0);
    }

    async fn replays_in_order_and_in_parts(&self) {
        let all = ids("m", 50);
        self.give_up("q", "p", QUEUE_MODE, &all, |index| format!("error {}", index % 2)).await;
        let filter = LetterFilter { error: Some("error 0".into()), ..LetterFilter::default() };
        let (mut place, mut changed): (Option<LetterPlace>, _) = (None, Vec::new());
        loop {
            let progress = self.broker.replay_letters(filter.clone(), place, 10, None).await.unwrap();
            changed.push(progress.changed);
            assert_eq!((progress.duplicates, progress.stopped), (0, None));
            place = progress.next.map(|next| next.to_string().parse().unwrap());
            if place.is_none() {
                break;
            }
        }
        assert_eq!(changed.iter().sum::<u64>(), 25, "{changed:?}");
        assert!(changed.iter().all(|changed| *changed <= 10), "{changed:?}");
        let payloads: Vec<_> = {
            let popped = self.pop("q", "p", QUEUE_MODE).await.unwrap();
            let messages = popped.claims.into_iter().flat_map(|claim| claim.messages);
            messages.map(|message| serde_json::from_slice::<String>(&message.payload).unwrap()).collect()
        };
        let expected: Vec<_> = all.iter().step_by(2).cloned().collect();
        assert_eq!(payloads, expected, "they return in their order");
        assert_eq!(self.count(LetterFilter::default()).await, 25);
        let again = self.broker.replay_letters(filter, None, 1000, None).await.unwrap();
        assert_eq!((again.matched, again.changed, again.next), (0, 0, None));
    }

    async fn keeps_what_another_group_has_replayed(&self) {
        let one = ids("m", 1);
        self.give_up("q", "p", "g", &one, |_| "g's".into()).await;
        self.give_up("q", "p", "h", &one, |_| "h's".into()).await;
        let progress = self.broker.replay_letters(LetterFilter::default(), None, 1000, None).await.unwrap();
        assert_eq!((progress.matched, progress.changed, progress.duplicates), (2, 1, 1));
        assert_eq!(self.ids("q", "p", "new").await.len(), 2, "the message and one copy");
    }

    async fn stops_at_a_full_queue(&self) {
        let all = ids("m", 30);
        self.give_up("q", "p", QUEUE_MODE, &all, |_| "boom".into()).await;
        let options = json!({"maxSize": 20});
        self.broker.configure("q", None, None, options.as_object().unwrap(), false).await.unwrap();
        let progress = self.broker.replay_letters(LetterFilter::default(), None, 1000, None).await.unwrap();
        assert!(progress.stopped.unwrap().contains("full"));
        assert_eq!(progress.changed, 20);
        assert_eq!(self.count(LetterFilter::default()).await, 10);
        assert!(self.broker.replay_letters(LetterFilter::default(), None, 1000, None).await.is_err());
        assert_eq!(self.count(LetterFilter::default()).await, 10, "what cannot be pushed stays");
    }

    async fn purges_by_filter(&self) {
        self.give_up("q", "a", QUEUE_MODE, &ids("a", 30), |index| format!("error {}", index % 3)).await;
        self.give_up("q", "b", QUEUE_MODE, &ids("b", 30), |_| "other".into()).await;
        let filter = LetterFilter { error: Some("error 1".into()), ..LetterFilter::default() };
        let progress = self.broker.remove_letters(filter.clone(), None, 1000).await.unwrap();
        assert_eq!((progress.changed, progress.next), (10, None));
        assert_eq!((self.count(filter).await, self.count(LetterFilter::default()).await), (0, 50));
        let (mut place, mut calls) = (None, 0);
        loop {
            place = self.broker.remove_letters(LetterFilter::default(), place, 20).await.unwrap().next;
            calls += 1;
            if place.is_none() {
                break;
            }
        }
        assert_eq!((self.count(LetterFilter::default()).await, calls), (0, 3));
        assert_eq!(self.ids("q", "a", QUEUE_MODE).await, [""; 0], "nothing was pushed again");
    }

    async fn empties_a_queue(&self) {
        let (first, second) = (ids("m", 10), ids("n", 3));
        self.push("q", "p", &first).await;
        self.push("q", "r", &second).await;
        let options = json!({"retryLimit": 7});
        self.broker.configure("q", None, None, options.as_object().unwrap(), false).await.unwrap();
        let held = self.pop("q", "p", "g").await.unwrap();
        self.give_up("q", "letters", "h", &ids("l", 1), |_| "boom".into()).await;
        let cleared = self.broker.clear_queue("q", None, None).await.unwrap().unwrap();
        assert_eq!((cleared.partitions, cleared.next), (3, None));
        for group in ["g", "h", "new"] {
            assert_eq!(self.ids("q", "p", group).await, [""; 0], "{group}");
        }
        assert_eq!(self.count(LetterFilter::default()).await, 1, "dead letters stay");
        let (summary, _) = self.broker.queue("q").await.unwrap().unwrap();
        assert_eq!(summary.queue.spec.options.retry_limit, 7);
        assert_eq!(self.push("q", "p", &first[..2]).await, [false, false], "the ids are accepted again");
        assert_eq!(self.push("q", "p", &first[..1]).await, [true], "once");
        assert_eq!(self.ids("q", "p", "g").await, [""; 0], "the lease goes on until its holder acks");
        let item = |id: &String| AckItem {
            partition: Some(held.claims[0].partition),
            transaction_id: id.clone(),
            group: "g".into(),
            lease: held.lease.map_or(LeaseClaim::None, LeaseClaim::Held),
            status: AckStatus::Completed,
            error: None,
        };
        let acked = self.broker.ack(first.iter().map(item).collect()).await.unwrap();
        assert!(acked.iter().all(|acked| acked.error.is_none() && acked.lease_released), "{acked:?}");
        for group in ["g", "h", "new"] {
            assert_eq!(self.ids("q", "p", group).await, first[..2], "{group}");
        }
        assert_eq!(self.broker.clear_queue("none", None, None).await.unwrap(), None);
    }
}

fn ids(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number:02}")).collect()
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
    letters_are_grouped_by_error_and_counted_by_filter: groups_errors;
    letters_return_in_their_order_in_calls_of_bounded_size: replays_in_order_and_in_parts;
    a_letter_whose_message_was_pushed_again_for_another_group_stays: keeps_what_another_group_has_replayed;
    a_replay_ends_where_a_queue_is_full_and_loses_nothing: stops_at_a_full_queue;
    letters_are_removed_by_filter_in_calls_of_bounded_size: purges_by_filter;
    an_emptied_queue_keeps_options_groups_and_letters: empties_a_queue;
}
