//! A writer that locks what it reads after a conflict.

use std::sync::Arc;
use std::time::Duration;

use baton_env::ManualClock;
use baton_store::conformance::{START_TIME, block, cursor_at, put_group, queue_spec};
use baton_store::{Cursor, Durability, Error, GroupStart, Operation, Store, Tx, TxError, run};
use baton_testing_postgres::Postgres;
use baton_types::PartitionId;
use tokio::sync::oneshot;

use crate::client::address::DatabaseAddress;
use crate::client::connection::{PgConnection, param, statement, to_bigint};
use crate::{Options, PostgresStore};

/// Two servers, of which the first can be made to lock, and a connection of the test's own.
struct ContendedPartition {
    one: PostgresStore,
    other: PostgresStore,
    connection: Arc<PgConnection>,
    /// The partition for which both contend.
    partition: PartitionId,
}

impl ContendedPartition {
    async fn new() -> Self {
        let url = tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap();
        let options = Options { clock: Some(Arc::new(ManualClock::new(START_TIME))), ..Options::new(url) };
        let one = PostgresStore::open(options.clone()).await.unwrap();
        let other = PostgresStore::open(options.clone()).await.unwrap();
        let connection =
            PgConnection::connect(&DatabaseAddress::parse(&options.url).unwrap(), &options.schema)
                .await
                .unwrap();
        let made = run(&one, |tx| {
            let queue = tx.put_queue(queue_spec("meeting"))?.id;
            Ok(tx.create_partition(queue, "p"))
        });
        let partition = made.await.unwrap();
        Self { one, other, connection: Arc::new(connection), partition }
    }

    /// Provokes a conflict, so that the next batch of the first server locks.
    async fn provoke_conflict(&self) {
        let partition = self.partition;
        for server in [&self.one, &self.other, &self.one] {
            let push = run(server, move |tx| Ok(tx.append(partition, &block(&["text"]), Duration::ZERO)));
            push.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_ready_and_held_by_others_is_waited_for_though_more_is_ready_in_a_moment() {
    let meeting = ContendedPartition::new().await;
    let made = run(&meeting.one, |tx| {
        let queue = tx.put_queue(queue_spec("q"))?.id;
        let group = put_group(tx, queue, "g", GroupStart::Oldest);
        let [ready, later] = ["ready", "later"].map(|name| tx.create_partition(queue, name));
        tx.append(ready, &block(&["text"]), Duration::ZERO);
        tx.append(later, &block(&["text"]), Duration::ZERO);
        let available_at = tx.now().after(Duration::from_millis(50));
        tx.put_cursor(group, later, Cursor { available_at, ..cursor_at(0) }, Durability::Now);
        Ok((ready, group))
    });
    let (ready, group) = made.await.unwrap();
    let hold = "SELECT id FROM partitions WHERE id = $1 FOR UPDATE";
    meeting.connection.run_script("BEGIN").await.unwrap();
    meeting.connection.run(vec![statement(hold, vec![param(to_bigint(ready.0))])]).await.unwrap();
    meeting.provoke_conflict().await;
    let mut looking = std::pin::pin!(run(&meeting.one, move |tx| tx.ready_partitions(group, 1)));
    // Wait until the pop waits for the lock.
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    let found = loop {
        let count =
            meeting.connection.run(vec![statement(waiting, Vec::new())]).await.unwrap()[0][0].get::<i64>(0);
        if count > 0 {
            meeting.connection.run_script("COMMIT").await.unwrap();
            break looking.await;
        }
        tokio::select! {
            biased;
            found = &mut looking => break found,
            () = tokio::task::yield_now() => {}
        }
    };
    assert_eq!(found.unwrap(), [ready]);
}

/// Reads a partition, and reports with its answer whether the partition can be locked.
struct ReadThenTryLock {
    partition: PartitionId,
    connection: Arc<PgConnection>,
    reply: oneshot::Sender<bool>,
}

impl Operation for ReadThenTryLock {
    fn apply(&mut self, tx: &mut dyn Tx) -> Result<(), TxError> {
        tx.partition_by_id(self.partition).map(drop)
    }

    fn finish(self: Box<Self>, outcome: Result<(), Error>) {
        outcome.unwrap();
        let lock = "SELECT id FROM partitions WHERE id = $1 FOR UPDATE SKIP LOCKED";
        let lock = self.connection.run(vec![statement(lock, vec![param(to_bigint(self.partition.0))])]);
        let rows = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(lock));
        self.reply.send(!rows.unwrap()[0].is_empty()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_an_answer_has_left_nothing_locked() {
    let meeting = ContendedPartition::new().await;
    meeting.provoke_conflict().await;
    let (reply, is_free) = oneshot::channel();
    let (partition, connection) = (meeting.partition, meeting.connection.clone());
    meeting.one.submit(Box::new(ReadThenTryLock { partition, connection, reply }));
    assert!(is_free.await.unwrap());
}
