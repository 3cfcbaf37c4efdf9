//! Several servers that meet at the same rows: each decision makes progress, however many rows it misses and whatever
//! the others do, and no two servers wait for each other.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_env::{ManualClock, Stopwatch};
use baton_store::{
    Cursor, Durability, GroupSpec, GroupStart, MessageBlock, NewMessage, QueueSpec, Store, Tx, TxError, run,
};
use baton_store_postgres::{Options, PostgresStore};
use baton_testing_postgres::Postgres;
use baton_types::{GroupId, PartitionId, QueueId, QueueOptions, Timestamp};

/// Servers on a database of their own, and its name.
async fn servers(count: usize) -> (Vec<Arc<PostgresStore>>, String) {
    let url = tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap();
    let name = url.rsplit('/').next().unwrap().to_owned();
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(Arc::new(PostgresStore::open(Options::new(&url)).await.unwrap()));
    }
    (servers, name)
}

async fn sql(database: &str, statement: &'static str) -> String {
    let database = database.to_owned();
    tokio::task::spawn_blocking(move || Postgres::shared().sql(&database, statement)).await.unwrap()
}

fn queue(tx: &mut dyn Tx, name: &str) -> Result<QueueId, TxError> {
    let (namespace, task, options) = ("".into(), "".into(), QueueOptions::default());
    Ok(tx.put_queue(QueueSpec { name: name.into(), namespace, task, options })?.id)
}

fn group(tx: &mut dyn Tx, queue: QueueId, name: &str) -> GroupId {
    let subscribed_at = tx.now();
    tx.put_group(queue, &GroupSpec { name, start: GroupStart::Oldest, subscribed_at, conflation: false }).id
}

fn block(payload: &str) -> MessageBlock {
    let mut block = MessageBlock::default();
    block.push(&NewMessage { payload: payload.as_bytes(), ..NewMessage::default() });
    block
}

/// As many rows as a page of retention has partitions, each asked for only when the one before is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_may_miss_any_number_of_rows_one_after_the_other() {
    let (servers, _) = servers(2).await;
    let ids = run(&*servers[0], |tx| {
        let queue = queue(tx, "q")?;
        Ok((0..300).map(|number| tx.create_partition(queue, &format!("p{number}"))).collect::<Vec<_>>())
    });
    let ids = ids.await.unwrap();
    let found = run(&*servers[1], move |tx| {
        let mut found = 0;
        for id in &ids {
            found += usize::from(tx.partition_by_id(*id)?.is_some());
        }
        Ok(found)
    });
    assert_eq!(found.await.unwrap(), 300);
}

/// Groups are created on another server all the time, and each creation concerns what every decision rests on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_ends_while_another_server_creates_groups_all_the_time() {
    let (servers, _) = servers(2).await;
    let (of_groups, ids) = run(&*servers[0], |tx| {
        let (of_groups, queue) = (queue(tx, "groups")?, queue(tx, "q")?);
        let ids = (0..100).map(|number| tx.create_partition(queue, &format!("p{number}")));
        Ok((of_groups, ids.collect::<Vec<_>>()))
    })
    .await
    .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let creating = tokio::spawn({
        let (server, stop) = (servers[0].clone(), stop.clone());
        async move {
            let mut created = 0;
            while !stop.load(Ordering::Relaxed) {
                let name = format!("g{created}");
                run(&*server, move |tx| Ok(group(tx, of_groups, &name))).await.unwrap();
                created += 1;
            }
            created
        }
    });
    for round in 0..5 {
        let ids = ids.clone();
        let pushed = run(&*servers[1], move |tx| {
            for id in &ids {
                if tx.partition_by_id(*id)?.is_none() {
                    return Ok(0);
                }
            }
            Ok(tx.append(ids[0], &block("text"), Duration::ZERO).first.0)
        });
        assert_eq!(pushed.await.unwrap(), round);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(creating.await.unwrap() > 10, "groups were created meanwhile");
}

/// Every call is answered with the group that it asked for, on whichever server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_new_groups_on_all_servers_refuses_none() {
    let (servers, database) = servers(3).await;
    let queue = run(&*servers[0], |tx| queue(tx, "q")).await.unwrap();
    let calls: Vec<_> = (0..900)
        .map(|number| {
            let (server, name) = (servers[number % 3].clone(), format!("g{number}"));
            tokio::spawn(async move {
                run(&*server, move |tx| {
                    let group = group(tx, queue, &name);
                    Ok((tx.ready_partitions(group, 1)?, tx.next_ready_at(group)?))
                })
                .await
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), (Vec::new(), None));
    }
    assert_eq!(sql(&database, "SELECT count(*) FROM baton.groups").await, "900");
}

/// What was read may be from a time that is yet to come here. Looking for what is ready by then ends all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pop_ends_on_a_server_that_reads_what_another_wrote_with_a_clock_ahead() {
    let url = tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap();
    let open = async |ahead: u64| {
        let clock = ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000));
        clock.advance(Duration::from_secs(ahead));
        let options = Options { clock: Some(Arc::new(clock)), ..Options::new(&url) };
        PostgresStore::open(options).await.unwrap()
    };
    let (behind, ahead) = (open(0).await, open(10).await);
    let made = run(&behind, |tx| {
        let queue = queue(tx, "q")?;
        Ok((tx.create_partition(queue, "p"), group(tx, queue, "g")))
    });
    let (partition, group) = made.await.unwrap();
    run(&ahead, move |tx| Ok(tx.append(partition, &block("text"), Duration::ZERO))).await.unwrap();
    let found = run(&behind, move |tx| {
        tx.partition_by_id(partition)?;
        tx.ready_partitions(group, 2)
    });
    assert_eq!(found.await.unwrap(), [partition]);
}

/// The creation of a partition knows nothing of a group that begins at the same moment on another server, nor that of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_begins_while_a_partition_is_created_elsewhere_gets_its_messages() {
    let (servers, _) = servers(2).await;
    let races = (0..8).map(|racer| {
        let servers = servers.clone();
        tokio::spawn(async move {
            for round in 0..125 {
                race(&servers, format!("q{racer}-{round}")).await;
            }
        })
    });
    for racer in races.collect::<Vec<_>>() {
        racer.await.unwrap();
    }
}

async fn race(servers: &[Arc<PostgresStore>], name: String) {
    let queue = run(&*servers[0], move |tx| queue(tx, &name)).await.unwrap();
    let group = run(&*servers[0], move |tx| {
        let group = group(tx, queue, "g");
        tx.ready_partitions(group, 1)?;
        Ok(group)
    });
    let push = async {
        baton_env::sleep(Duration::from_micros(baton_env::random_u64() % 3_000)).await;
        let push = run(&*servers[1], move |tx| {
            let partition = tx.create_partition(queue, "p");
            tx.append(partition, &block("text"), Duration::ZERO);
            Ok(partition)
        });
        push.await
    };
    let (group, partition) = tokio::join!(group, push);
    let (group, partition) = (group.unwrap(), partition.unwrap());
    let found = run(&*servers[0], move |tx| tx.ready_partitions(group, 1)).await.unwrap();
    assert_eq!(found, [partition], "the message is offered");
}

/// As servers of earlier versions left it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_gives_groups_a_place_where_they_have_messages_and_none() {
    let (servers, database) = servers(1).await;
    let made = run(&*servers[0], |tx| {
        let queue = queue(tx, "q")?;
        let (lost, empty) = (tx.create_partition(queue, "lost"), tx.create_partition(queue, "empty"));
        let group = group(tx, queue, "g");
        tx.append(lost, &block("text"), Duration::ZERO);
        Ok((lost, empty, group))
    });
    let (lost, _, group) = made.await.unwrap();
    assert!(!servers[0].has_other_servers());
    servers[0].close().await.unwrap();
    sql(&database, "DELETE FROM baton.slots").await;
    let url = tokio::task::spawn_blocking(|| Postgres::shared().url()).await.unwrap();
    let url = format!("{}/{database}", url.rsplit_once('/').unwrap().0);
    let server = PostgresStore::open(Options::new(&url)).await.unwrap();
    let watch = Stopwatch::start();
    while run(&server, move |tx| tx.ready_partitions(group, 2)).await.unwrap() != [lost] {
        assert!(watch.elapsed() < Duration::from_secs(30), "no pop gets the message");
        baton_env::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.statistics().missing_slots, 1);
    assert!(PostgresStore::open(Options::new(&url)).await.unwrap().has_other_servers());
}

const QUEUES: usize = 10;

/// The load of several servers behind a balancer: one call pushes to many queues, and consumers of all of them are
/// everywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_push_to_many_queues_and_pop_from_them_never_deadlock() {
    let (servers, database) = servers(3).await;
    let made = run(&*servers[0], |tx| {
        (0..QUEUES)
            .map(|number| {
                let queue = queue(tx, &format!("q{number}"))?;
                Ok((tx.create_partition(queue, "p"), group(tx, queue, "g")))
            })
            .collect::<Result<Vec<_>, _>>()
    });
    let places: Vec<(PartitionId, GroupId)> = made.await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for (number, (_, group)) in (0..3 * QUEUES).map(|number| (number, places[number % QUEUES])) {
        let (server, stop) = (servers[number / QUEUES].clone(), stop.clone());
        tasks.push(tokio::spawn(async move {
            let mut taken = 0;
            while !stop.load(Ordering::Relaxed) {
                match run(&*server, move |tx| take(tx, group)).await {
                    Ok(0) => baton_env::sleep(Duration::from_millis(2)).await,
                    Ok(count) => taken += count,
                    Err(error) => panic!("a pop failed: {error}"),
                }
            }
            taken
        }));
    }
    let producers = (0..6).map(|number| {
        let (server, places) = (servers[number % 3].clone(), places.clone());
        tokio::spawn(async move {
            for round in 0..40 {
                let mut order: Vec<PartitionId> = places.iter().map(|(partition, _)| *partition).collect();
                order.rotate_left((number + round) % QUEUES);
                let push = run(&*server, move |tx| {
                    for partition in &order {
                        tx.append(*partition, &block("text"), Duration::ZERO);
                    }
                    Ok(())
                });
                push.await.unwrap();
            }
        })
    });
    for producer in producers.collect::<Vec<_>>() {
        producer.await.unwrap();
    }
    let all = 6 * 40 * QUEUES as u64;
    let watch = Stopwatch::start();
    let waiting = "SELECT sum(p.tail - s.next)::bigint FROM baton.partitions p
        JOIN baton.slots s ON s.partition_id = p.id";
    while sql(&database, waiting).await != "0" {
        assert!(watch.elapsed() < Duration::from_secs(60), "messages are left");
        baton_env::sleep(Duration::from_millis(20)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut taken = 0;
    for task in tasks {
        taken += task.await.unwrap();
    }
    assert_eq!(taken, all, "each message was taken once");
    assert_eq!(
        sql(&database, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").await,
        "0"
    );
}

/// Takes what is ready for a group; tells how much.
fn take(tx: &mut dyn Tx, group: GroupId) -> Result<u64, TxError> {
    let Some(id) = tx.ready_partitions(group, 1)?.first().copied() else {
        tx.next_ready_at(group)?;
        return Ok(0);
    };
    let (Some(row), cursor) = (tx.partition_by_id(id)?, tx.cursor(group, id)?.unwrap_or_default()) else {
        return Ok(0);
    };
    let (taken, now) = (row.tail.since(cursor.next), tx.now());
    let cursor = Cursor { next: row.tail, available_at: now, ..cursor };
    tx.put_cursor(group, id, cursor, Durability::Now);
    Ok(taken)
}
