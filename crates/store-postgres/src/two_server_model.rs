//! Model tests of two servers that take turns at random on the same rows, as fast as they can. Whatever one
//! has in its row cache, the other has changed. Together they must be as correct as one.

mod locking;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use baton_env::{Clock, ManualClock};
use baton_store::conformance::{Backend, START_TIME, block, cursor_at, model, put_group, queue_spec};
use baton_store::{
    BoxFuture, Durability, Error, GroupStart, Listener, Operation, Segment, Statistics, Store, Tx, TxError,
    run,
};
use baton_testing_postgres::Postgres;
use baton_types::{Offset, PartitionId, Timestamp};

use crate::{Options, PostgresStore};

struct TestSchema(String);

impl Backend for TestSchema {
    async fn empty() -> Self {
        Self(format!("rivals {}", baton_env::fresh_uuid()))
    }

    async fn open(&self, clock: Arc<ManualClock>) -> Arc<dyn Store> {
        let url = tokio::task::spawn_blocking(|| Postgres::shared().url()).await.unwrap();
        let options = Options { schema: self.0.clone(), clock: Some(clock), ..Options::new(url) };
        let servers = [
            PostgresStore::open(options.clone()).await.unwrap(),
            PostgresStore::open(options).await.unwrap(),
        ];
        Arc::new(TwoServers { servers, turn: AtomicUsize::new(0), in_flight: Arc::default() })
    }

    async fn crash(self, store: Arc<dyn Store>) -> Self {
        drop(store);
        self
    }
}

/// When no operation is in flight, a random server takes the next; otherwise the same server continues,
/// because order is promised on one server only.
struct TwoServers {
    servers: [PostgresStore; 2],
    turn: AtomicUsize,
    in_flight: Arc<AtomicUsize>,
}

impl Store for TwoServers {
    fn submit(&self, operation: Box<dyn Operation>) {
        if self.in_flight.fetch_add(1, Ordering::AcqRel) == 0 {
            self.turn.store(usize::from(baton_env::random_u64().is_multiple_of(2)), Ordering::Release);
        }
        let operation = Box::new(CountedOperation { operation, in_flight: self.in_flight.clone() });
        self.servers[self.turn.load(Ordering::Acquire)].submit(operation);
    }

    fn read(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Segment>, Error>> {
        self.servers[0].read(partition, from, to, bytes_max)
    }

    fn set_listener(&self, listener: Listener) {
        self.servers[0].set_listener(listener);
    }

    fn now(&self) -> Timestamp {
        self.servers[0].now().max(self.servers[1].now())
    }

    fn statistics(&self) -> Statistics {
        self.servers[0].statistics()
    }

    fn failure(&self) -> Option<String> {
        None
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            self.servers[0].close().await?;
            self.servers[1].close().await
        })
    }
}

struct CountedOperation {
    operation: Box<dyn Operation>,
    in_flight: Arc<AtomicUsize>,
}

impl Operation for CountedOperation {
    fn apply(&mut self, tx: &mut dyn Tx) -> Result<(), TxError> {
        self.operation.apply(tx)
    }

    fn finish(self: Box<Self>, outcome: Result<(), Error>) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.operation.finish(outcome);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_of_two_servers_agrees_with_a_plain_model() {
    model::random_work_that_is_waited_for_agrees_with_a_plain_model::<TestSchema>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_of_two_servers_in_groups_agrees_with_a_plain_model() {
    model::random_work_agrees_with_a_plain_model::<TestSchema>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_records_of_two_servers_agree_with_a_plain_model() {
    model::random_records_agree_with_a_plain_model::<TestSchema>().await;
}

/// Two servers on a database of their own.
async fn two_servers() -> [PostgresStore; 2] {
    two_servers_at(None).await
}

async fn two_servers_at(clock: Option<Arc<ManualClock>>) -> [PostgresStore; 2] {
    let url = tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap();
    let clock = clock.map(|clock| clock as Arc<dyn Clock>);
    let options = Options { clock, ..Options::new(url) };
    let open = || async { PostgresStore::open(options.clone()).await.unwrap() };
    [open().await, open().await]
}

/// A write may depend on a record that is only read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_that_rests_on_a_record_sees_what_another_server_made_of_it() {
    let [one, other] = two_servers().await;
    let partition = run(&one, |tx| {
        let queue = tx.put_queue(queue_spec("q"))?.id;
        Ok(tx.create_partition(queue, "p"))
    });
    let partition = partition.await.unwrap();
    for round in 0..30u8 {
        let put = run(&other, move |tx| tx.put_record("k", vec![b'a' + round].into(), None));
        put.await.unwrap();
        for _ in 0..2 {
            let push = run(&one, move |tx| {
                let record = tx.record("k")?.map(|record| record.value).unwrap_or_default();
                let payload = String::from_utf8_lossy(&record).into_owned();
                tx.append(partition, &block(&[&payload]), Duration::ZERO);
                Ok(record)
            });
            assert_eq!(*push.await.unwrap(), [b'a' + round]);
        }
    }
}

/// An empty answer must be validated too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_another_server_took_in_is_offered_at_once() {
    let [one, other] = two_servers().await;
    let made = run(&one, |tx| {
        let queue = tx.put_queue(queue_spec("q"))?.id;
        Ok((tx.create_partition(queue, "p"), put_group(tx, queue, "g", GroupStart::Oldest)))
    });
    let (partition, group) = made.await.unwrap();
    for round in 0..30 {
        for _ in 0..2 {
            let nothing = run(&one, move |tx| Ok((tx.ready_partitions(group, 1)?, tx.next_ready_at(group)?)));
            assert_eq!(nothing.await.unwrap(), (vec![], None));
        }
        let push = run(&other, move |tx| Ok(tx.append(partition, &block(&["text"]), Duration::ZERO).first));
        assert_eq!(push.await.unwrap(), Offset(round));
        assert_eq!(run(&one, move |tx| tx.ready_partitions(group, 1)).await.unwrap(), [partition]);
        let finish = run(&one, move |tx| {
            tx.put_cursor(group, partition, cursor_at(round + 1), Durability::Now);
            Ok(())
        });
        finish.await.unwrap();
    }
}

/// A partition that is fetched because time has passed replaces the cached one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_another_server_took_in_is_offered_also_when_the_line_is_fetched_anew() {
    let clock = Arc::new(ManualClock::new(START_TIME));
    let [one, other] = two_servers_at(Some(clock.clone())).await;
    let made = run(&one, |tx| {
        let queue = tx.put_queue(queue_spec("q"))?.id;
        let partitions = ["p", "r"].map(|name| tx.create_partition(queue, name));
        Ok((partitions, put_group(tx, queue, "g", GroupStart::Oldest)))
    });
    let ([partition, _], group) = made.await.unwrap();
    for round in 0..30 {
        assert_eq!(run(&one, move |tx| tx.ready_partitions(group, 2)).await.unwrap(), []);
        let push = run(&other, move |tx| Ok(tx.append(partition, &block(&["text"]), Duration::ZERO).first));
        assert_eq!(push.await.unwrap(), Offset(round));
        clock.advance(Duration::from_secs(1));
        assert_eq!(run(&one, move |tx| tx.ready_partitions(group, 2)).await.unwrap(), [partition]);
        let finish = run(&one, move |tx| {
            tx.put_cursor(group, partition, cursor_at(round + 1), Durability::Now);
            Ok(())
        });
        finish.await.unwrap();
    }
}

/// A ready index fetched before another server's commit does not count as fetched after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_message_that_another_server_took_in_between_two_fetches_is_offered() {
    let [one, other] = two_servers().await;
    let other = Arc::new(other);
    let made = run(&one, |tx| {
        let queue = tx.put_queue(queue_spec("q"))?.id;
        Ok((tx.create_partition(queue, "p"), put_group(tx, queue, "g", GroupStart::Oldest)))
    });
    let (partition, group) = made.await.unwrap();
    for round in 0..10 {
        // Invalidates the row cache.
        run(&*other, |tx| tx.put_record("other", "".into(), None)).await.unwrap();
        let (pushing, runtime) = (other.clone(), tokio::runtime::Handle::current());
        let (mut has_fetched, mut has_pushed) = (false, false);
        let look = run(&one, move |tx| {
            let Ok(found) = tx.ready_partitions(group, 1) else {
                has_fetched = true;
                return Err(TxError::RowsMissing);
            };
            if has_fetched && !has_pushed {
                has_pushed = true;
                let push = run(&*pushing, move |tx| {
                    Ok(tx.append(partition, &block(&["text"]), Duration::ZERO).first)
                });
                let push = tokio::task::block_in_place(|| runtime.block_on(push));
                assert_eq!((push.unwrap(), found.len()), (Offset(round), 0));
            }
            tx.record(&format!("key {round}"))?;
            Ok(has_pushed)
        });
        assert!(look.await.unwrap());
        assert_eq!(run(&one, move |tx| tx.ready_partitions(group, 1)).await.unwrap(), [partition]);
        let finish = run(&one, move |tx| {
            tx.put_cursor(group, partition, cursor_at(round + 1), Durability::Now);
            Ok(())
        });
        finish.await.unwrap();
    }
}

/// A new group finds messages that another server has just written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_begins_sees_what_another_server_took_in() {
    let [one, other] = two_servers().await;
    for round in 0..20 {
        let made = run(&one, move |tx| {
            let queue = tx.put_queue(queue_spec(&format!("q{round}")))?.id;
            Ok((queue, tx.create_partition(queue, "p")))
        });
        let (queue, partition) = made.await.unwrap();
        let push = run(&other, move |tx| Ok(tx.append(partition, &block(&["text"]), Duration::ZERO).first));
        assert_eq!(push.await.unwrap(), Offset(0));
        let begin = run(&one, move |tx| Ok(put_group(tx, queue, "g", GroupStart::Oldest)));
        let group = begin.await.unwrap();
        assert_eq!(run(&one, move |tx| tx.ready_partitions(group, 1)).await.unwrap(), [partition]);
    }
}
