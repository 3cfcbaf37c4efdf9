//! What a server does that locks, because another was faster than it a moment ago.

use std::sync::Arc;
use std::time::Duration;

use baton_env::ManualClock;
use baton_store::conformance::{BEGIN, at, block, put_group, spec};
use baton_store::{Cursor, Durability, Error, Operation, Start, Stop, Store, Tx, run};
use baton_testing_postgres::Postgres;
use baton_types::PartitionId;
use tokio::sync::oneshot;

use crate::address::Address;
use crate::link::{Link, call, param, signed};
use crate::{Options, PostgresStore};

/// Two servers, of which the first can be made to lock, and a connection beside them.
struct Meeting {
    one: PostgresStore,
    other: PostgresStore,
    link: Arc<Link>,
    /// Where they meet.
    partition: PartitionId,
}

impl Meeting {
    async fn new() -> Self {
        let url = tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap();
        let options = Options { clock: Some(Arc::new(ManualClock::new(BEGIN))), ..Options::new(url) };
        let one = PostgresStore::open(options.clone()).await.unwrap();
        let other = PostgresStore::open(options.clone()).await.unwrap();
        let link = Link::open(&Address::read(&options.url).unwrap(), &options.schema).await.unwrap();
        let made = run(&one, |tx| {
            let queue = tx.put_queue(spec("meeting"))?.id;
            Ok(tx.create_partition(queue, "p"))
        });
        let partition = made.await.unwrap();
        Self { one, other, link: Arc::new(link), partition }
    }

    /// The next group of the first server locks.
    async fn meet(&self) {
        let partition = self.partition;
        for server in [&self.one, &self.other, &self.one] {
            let push = run(server, move |tx| Ok(tx.append(partition, &block(&["text"]), Duration::ZERO)));
            push.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_ready_and_held_by_others_is_waited_for_though_more_is_ready_in_a_moment() {
    let meeting = Meeting::new().await;
    let made = run(&meeting.one, |tx| {
        let queue = tx.put_queue(spec("q"))?.id;
        let group = put_group(tx, queue, "g", Start::Oldest);
        let [ready, later] = ["ready", "later"].map(|name| tx.create_partition(queue, name));
        tx.append(ready, &block(&["text"]), Duration::ZERO);
        tx.append(later, &block(&["text"]), Duration::ZERO);
        let available_at = tx.now().after(Duration::from_millis(50));
        tx.put_cursor(group, later, Cursor { available_at, ..at(0) }, Durability::Now);
        Ok((ready, group))
    });
    let (ready, group) = made.await.unwrap();
    let hold = "SELECT id FROM partitions WHERE id = $1 FOR UPDATE";
    meeting.link.batch("BEGIN").await.unwrap();
    meeting.link.run(vec![call(hold, vec![param(signed(ready.0))])]).await.unwrap();
    meeting.meet().await;
    let mut looking = std::pin::pin!(run(&meeting.one, move |tx| tx.candidates(group, 1)));
    // Until somebody waits for what is held.
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    let found = loop {
        let count = meeting.link.run(vec![call(waiting, Vec::new())]).await.unwrap()[0][0].get::<i64>(0);
        if count > 0 {
            meeting.link.batch("COMMIT").await.unwrap();
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

/// Tells, when it is answered, whether the partition that it looked at can be locked.
struct Look {
    partition: PartitionId,
    link: Arc<Link>,
    told: oneshot::Sender<bool>,
}

impl Operation for Look {
    fn apply(&mut self, tx: &mut dyn Tx) -> Result<(), Stop> {
        tx.partition_by_id(self.partition).map(drop)
    }

    fn finish(self: Box<Self>, outcome: Result<(), Error>) {
        outcome.unwrap();
        let lock = "SELECT id FROM partitions WHERE id = $1 FOR UPDATE SKIP LOCKED";
        let lock = self.link.run(vec![call(lock, vec![param(signed(self.partition.0))])]);
        let rows = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(lock));
        self.told.send(!rows.unwrap()[0].is_empty()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_an_answer_has_left_nothing_locked() {
    let meeting = Meeting::new().await;
    meeting.meet().await;
    let (told, is_free) = oneshot::channel();
    let (partition, link) = (meeting.partition, meeting.link.clone());
    meeting.one.submit(Box::new(Look { partition, link, told }));
    assert!(is_free.await.unwrap());
}
