//! Several servers on one database, and a database that misbehaves. What is checked is the history that callers
//! saw: nothing acknowledged is lost or doubled, order holds, one lease at a time.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_store::{
    Cursor, Durability, Error, GroupSpec, GroupStart, Lease, MessageBlock, NewMessage, QueueSpec, Store, Tx,
    TxError, run,
};
use baton_store_postgres::{Options, PostgresStore, SchemaStatus, check};
use baton_testing_postgres::Postgres;
use baton_types::{GroupId, IdHash, Offset, PartitionId, QueueOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PARTITIONS: u64 = 4;

async fn open(url: &str) -> Arc<PostgresStore> {
    Arc::new(PostgresStore::open(Options::new(url)).await.unwrap())
}

fn block(payload: &str) -> MessageBlock {
    let mut block = MessageBlock::default();
    block.push(&NewMessage {
        transaction_id: Some(payload),
        payload: payload.as_bytes(),
        ..NewMessage::default()
    });
    block
}

/// The queue with its partitions and group, found or made: all servers do it at once.
fn create_partitions(tx: &mut dyn Tx) -> Result<(Vec<PartitionId>, GroupId), TxError> {
    let queue = match tx.queue("q")? {
        Some(queue) => queue,
        None => tx.put_queue(QueueSpec {
            name: "q".into(),
            namespace: "".into(),
            task: "".into(),
            options: QueueOptions::default(),
        })?,
    };
    let group = match tx.group(queue.id, "g")? {
        Some(group) => group,
        None => {
            let subscribed_at = tx.now();
            tx.put_group(
                queue.id,
                &GroupSpec { name: "g", start: GroupStart::Oldest, subscribed_at, conflation: false },
            )
        }
    };
    let mut ids = Vec::new();
    for index in 0..PARTITIONS {
        let name = format!("p{index}");
        ids.push(match tx.partition(queue.id, &name)? {
            Some(row) => row.id,
            None => tx.create_partition(queue.id, &name),
        });
    }
    Ok((ids, group.id))
}

/// Runs a decision until the store says that it is kept, as a client that retries would; each decision is
/// recognised by its transaction id, so repeating it is safe.
async fn push(store: &dyn Store, partition: PartitionId, payload: String) -> Offset {
    loop {
        let (block, id) = (block(&payload), IdHash::new(payload.as_bytes()));
        let pushed = run(store, move |tx| {
            if let Some(known) = tx.find_remembered(partition, id)? {
                return Ok(known.offset);
            }
            Ok(tx.append(partition, &block, Duration::from_secs(3600)).first)
        });
        match pushed.await {
            Ok(offset) => return offset,
            Err(Error::Busy(_) | Error::Closed(_)) => baton_env::sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Takes everything of one partition that is ready, under a lease; tells the token and the range.
fn claim(tx: &mut dyn Tx, group: GroupId) -> Result<Option<(PartitionId, u64, Offset, Offset)>, TxError> {
    let Some(id) = tx.ready_partitions(group, 1)?.first().copied() else { return Ok(None) };
    let Some(row) = tx.partition_by_id(id)? else { return Ok(None) };
    let cursor = tx.cursor(group, id)?.unwrap_or_default();
    let (now, token) = (tx.now(), tx.fresh_token());
    let until = now.after(Duration::from_secs(30));
    let lease = Lease { id: baton_env::fresh_lease(), token, until, end: row.tail };
    let next = cursor.next;
    let cursor = Cursor { lease: Some(Box::new(lease)), available_at: until, ..cursor };
    tx.put_cursor(group, id, cursor, Durability::Soon);
    Ok(Some((id, token, next, row.tail)))
}

/// Finishes a claim, if its lease is still the live one.
fn finish(tx: &mut dyn Tx, group: GroupId, id: PartitionId, token: u64, to: Offset) -> Result<bool, TxError> {
    let Some(cursor) = tx.cursor(group, id)? else { return Ok(false) };
    if cursor.lease.as_ref().is_none_or(|lease| lease.token != token) {
        return Ok(false);
    }
    let cursor = Cursor { next: to, lease: None, available_at: tx.now(), ..cursor };
    tx.put_cursor(group, id, cursor, Durability::Now);
    Ok(true)
}

/// What consumers saw: per partition the ranges they finished, and who holds it now.
#[derive(Default)]
struct History {
    finished: BTreeMap<PartitionId, Vec<(Offset, Offset)>>,
    held: BTreeMap<PartitionId, u64>,
    tokens: BTreeMap<PartitionId, u64>,
}

async fn consume(
    store: Arc<PostgresStore>,
    group: GroupId,
    history: Arc<Mutex<History>>,
    stop: Arc<AtomicBool>,
) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(Some((id, token, from, to))) = run(&*store, move |tx| claim(tx, group)).await else {
            baton_env::sleep(Duration::from_millis(3)).await;
            continue;
        };
        {
            let mut history = history.lock().unwrap();
            let last = history.tokens.insert(id, token);
            assert!(last < Some(token), "token {token} after {last:?}");
            let before = history.held.insert(id, token);
            assert_eq!(before, None, "partition {id} was held by two at once");
        }
        let mut read = Vec::new();
        while read.len() < usize::try_from(to.since(from)).unwrap() {
            let Ok(segments) = store.read(id, from, to, usize::MAX).await else { continue };
            let messages = segments.iter().flat_map(|s| s.messages().collect::<Vec<_>>()).map(Result::unwrap);
            read = messages.map(|m| m.offset).filter(|o| (from..to).contains(o)).collect();
        }
        assert!(read.into_iter().eq((from.0..to.0).map(Offset)), "messages are read in order, each once");
        // Given back in the history first: the next may have it before our answer is here.
        history.lock().unwrap().held.remove(&id);
        let finished = loop {
            match run(&*store, move |tx| finish(tx, group, id, token, to)).await {
                Ok(finished) => break finished,
                Err(_) => baton_env::sleep(Duration::from_millis(5)).await,
            }
        };
        assert!(finished, "the lease was live");
        history.lock().unwrap().finished.entry(id).or_default().push((from, to));
    }
}

/// Three servers, producers and consumers on each, until every message is finished.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_servers_share_one_database() {
    let url = tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap();
    let stores = futures((0..3).map(|_| {
        let url = url.clone();
        async move { open(&url).await }
    }))
    .await;
    let found = futures(stores.iter().map(|store| {
        let store = store.clone();
        async move { run(&*store, create_partitions).await.unwrap() }
    }))
    .await;
    assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "all made the same: {found:?}");
    let (partitions, group) = found[0].clone();
    let (history, stop) = (Arc::new(Mutex::new(History::default())), Arc::new(AtomicBool::new(false)));
    let mut tasks = Vec::new();
    for store in stores.iter().chain(&stores) {
        tasks.push(tokio::spawn(consume(store.clone(), group, history.clone(), stop.clone())));
    }
    let each = 15u64;
    let producers = futures((0..36u64).map(|producer| {
        let (store, partitions) =
            (stores[usize::try_from(producer % 3).unwrap()].clone(), partitions.clone());
        async move {
            let mut places = Vec::new();
            for number in 0..each {
                let partition = partitions[usize::try_from((producer + number) % PARTITIONS).unwrap()];
                places.push((partition, push(&*store, partition, format!("{producer}-{number}")).await));
            }
            places
        }
    }));
    let mut places: Vec<(PartitionId, Offset)> = producers.await.into_iter().flatten().collect();
    places.sort();
    let all = places.len();
    places.dedup();
    assert_eq!((all, places.len()), (540, 540), "every push has a place of its own");
    let watch = Stopwatch::start();
    while finished(&history) < 540 {
        assert!(watch.elapsed() < Duration::from_secs(60), "{} of 540 were consumed", finished(&history));
        baton_env::sleep(Duration::from_millis(10)).await;
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    for ranges in history.lock().unwrap().finished.values_mut() {
        ranges.sort();
        assert_eq!(ranges.first().map(|(from, _)| from.0), Some(0));
        assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0), "no gap and no overlap: {ranges:?}");
    }
}

fn finished(history: &Mutex<History>) -> u64 {
    let history = history.lock().unwrap();
    history.finished.values().flatten().map(|(from, to)| to.since(*from)).sum()
}

async fn futures<T: Send + 'static>(
    work: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let tasks: Vec<_> = work.map(tokio::spawn).collect();
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.unwrap());
    }
    done
}

/// Stands between a store and the database, and cuts the connection right after a COMMIT was sent: sometimes before
/// the database sees it, sometimes after it has answered.
async fn cutting_proxy(port: u16, cuts: Arc<AtomicU64>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let cuts = cuts.clone();
            tokio::spawn(async move {
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let back =
                    tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
                let (mut bytes, mut commits, mut statement) = (vec![0; 1 << 16], 0u64, None);
                while let Ok(count) = from_client.read(&mut bytes).await {
                    let sent = &bytes[..count];
                    statement = statement.or_else(|| commit_statement(sent));
                    let commit = statement.as_ref().is_some_and(|name| binds(sent, name));
                    commits += u64::from(commit);
                    // Every fifth commit is cut, now this way, now that.
                    if commit && commits.is_multiple_of(5) {
                        let cut = cuts.fetch_add(1, Ordering::Relaxed);
                        if cut.is_multiple_of(2) {
                            back.abort();
                            // The database receives it; its answer is lost.
                            let _ = to_server.write_all(sent).await;
                            baton_env::sleep(Duration::from_millis(30)).await;
                        }
                        break;
                    }
                    if count == 0 || to_server.write_all(sent).await.is_err() {
                        break;
                    }
                }
                back.abort();
            });
        }
    });
    own
}

/// The name under which COMMIT was prepared, if it was just now: `P`, length, name, 0, text, 0.
fn commit_statement(sent: &[u8]) -> Option<Vec<u8>> {
    let at = sent.windows(8).position(|window| window == b"\0COMMIT\0")?;
    // The name follows the four bytes of the length.
    let start = sent[..at].iter().rposition(|byte| *byte == b'P')? + 5;
    Some(sent[start..at].to_vec())
}

/// Whether a statement of that name is bound: portal name, 0, statement name, 0.
fn binds(sent: &[u8], name: &[u8]) -> bool {
    let mut pattern = vec![0];
    pattern.extend_from_slice(name);
    pattern.push(0);
    let prepared = sent.windows(8).any(|window| window == b"\0COMMIT\0");
    !prepared && sent.windows(pattern.len()).any(|window| window == pattern)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_of_unknown_outcome_happens_once() {
    unknown_outcomes(1, 80).await;
}

/// Now several commits are under way when the connection is cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_of_unknown_outcome_that_follow_each_other_happen_once() {
    unknown_outcomes(48, 50).await;
}

/// So many callers push so many messages each.
async fn unknown_outcomes(callers: u64, each: u64) {
    let (url, port) =
        tokio::task::spawn_blocking(|| (Postgres::shared().database(), Postgres::shared().port()))
            .await
            .unwrap();
    let cuts = Arc::new(AtomicU64::new(0));
    let proxied = cutting_proxy(port, cuts.clone()).await;
    let store = open(&url.replace(&format!(":{port}/"), &format!(":{proxied}/"))).await;
    let (partitions, _) = loop {
        if let Ok(created) = run(&*store, create_partitions).await {
            break created;
        }
    };
    let partition = partitions[0];
    // No transaction ids here: whether a push happened is for the store alone to find out.
    let pushing = futures((0..callers).map(|caller| {
        let store = store.clone();
        async move {
            let mut kept = Vec::new();
            for number in 0..each {
                let payload = format!("{caller}-{number}");
                let block = block(&payload);
                let appended = run(&*store, move |tx| Ok(tx.append(partition, &block, Duration::ZERO)));
                match appended.await {
                    Ok(appended) => kept.push((appended.first, payload)),
                    Err(Error::Busy(_)) => {}
                    Err(error) => panic!("it was not found out: {error}"),
                }
            }
            assert!(kept.is_sorted(), "a caller's order holds");
            kept
        }
    }));
    let mut kept: Vec<(Offset, String)> = pushing.await.into_iter().flatten().collect();
    kept.sort();
    assert!(cuts.load(Ordering::Relaxed) >= 10, "the cuts happened: {cuts:?}");
    assert!(kept.len() as u64 >= callers * each / 2, "{} were kept", kept.len());
    let other = open(&url).await;
    let tail = run(&*other, move |tx| tx.partition_by_id(partition)).await.unwrap().unwrap().tail;
    let read = other.read(partition, Offset(0), tail, usize::MAX).await.unwrap();
    let messages = read.iter().flat_map(|s| s.messages().collect::<Vec<_>>()).map(Result::unwrap);
    let stored: Vec<(Offset, String)> =
        messages.map(|m| (m.offset, String::from_utf8_lossy(&m.payload).into_owned())).collect();
    assert_eq!(stored, kept, "what was acknowledged, where it was told to be, and nothing else");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_crashes_under_load_loses_nothing_acknowledged() {
    let postgres = Arc::new(tokio::task::spawn_blocking(Postgres::start).await.unwrap());
    let store = open(&postgres.url()).await;
    let (partitions, _) = run(&*store, create_partitions).await.unwrap();
    let acknowledged = Arc::new(AtomicU64::new(0));
    let producers: Vec<_> = (0..24u64)
        .map(|producer| {
            let (store, partition) =
                (store.clone(), partitions[usize::try_from(producer % PARTITIONS).unwrap()]);
            let acknowledged = acknowledged.clone();
            tokio::spawn(async move {
                let mut places = Vec::new();
                for number in 0..50u64 {
                    places.push(push(&*store, partition, format!("{producer}-{number}")).await);
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                }
                (partition, places)
            })
        })
        .collect();
    for moment in [200, 700] {
        while acknowledged.load(Ordering::Relaxed) < moment {
            baton_env::sleep(Duration::from_millis(5)).await;
        }
        let stopped = postgres.clone();
        tokio::task::spawn_blocking(move || stopped.stop()).await.unwrap();
        assert!(eventually(|| store.outage().is_some()).await, "readiness tells the truth");
        let resumed = postgres.clone();
        tokio::task::spawn_blocking(move || resumed.resume()).await.unwrap();
    }
    let mut used = BTreeSet::new();
    for producer in producers {
        let (partition, places) = producer.await.unwrap();
        assert!(places.is_sorted_by(|one, other| one < other), "a producer's order holds: {places:?}");
        used.insert(partition);
    }
    for partition in used {
        let tail = run(&*store, move |tx| tx.partition_by_id(partition)).await.unwrap().unwrap().tail;
        assert_eq!(tail, Offset(24 / PARTITIONS * 50), "each once");
    }
    assert!(eventually(|| store.outage().is_none()).await);
    store.close().await.unwrap();
}

/// The connection that messages are read over is noticed to be gone only when it is used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_can_be_read_as_soon_as_the_database_is_back() {
    let postgres = Arc::new(tokio::task::spawn_blocking(Postgres::start).await.unwrap());
    let options = Options { cache_bytes: 0, ..Options::new(postgres.url()) };
    let store = Arc::new(PostgresStore::open(options).await.unwrap());
    let (partitions, _) = run(&*store, create_partitions).await.unwrap();
    push(&*store, partitions[0], "text".into()).await;
    for _ in 0..3 {
        let read = store.read(partitions[0], Offset(0), Offset(1), usize::MAX).await.unwrap();
        assert_eq!(read.len(), 1);
        let restarted = postgres.clone();
        let restart = move || (restarted.stop(), restarted.resume());
        tokio::task::spawn_blocking(restart).await.unwrap();
    }
}

async fn eventually(holds: impl Fn() -> bool) -> bool {
    let watch = Stopwatch::start();
    while !holds() && watch.elapsed() < Duration::from_secs(20) {
        baton_env::sleep(Duration::from_millis(10)).await;
    }
    holds()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_servers_may_start_at_once() {
    let url = tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap();
    assert_eq!(check(&Options::new(&url)).await.unwrap(), SchemaStatus::Missing);
    let starts = (0..10).map(|_| {
        let url = url.clone();
        async move { PostgresStore::open(Options::new(url)).await.is_ok() }
    });
    assert_eq!(futures(starts).await, [true; 10]);
    assert_eq!(check(&Options::new(&url)).await.unwrap(), SchemaStatus::Current);
}

/// A fresh database by its address and its name.
async fn database() -> (String, String) {
    let url = tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap();
    let name = url.rsplit('/').next().unwrap().to_owned();
    (url, name)
}

async fn sql(database: &str, statement: &'static str) -> String {
    let database = database.to_owned();
    tokio::task::spawn_blocking(move || Postgres::shared().sql(&database, statement)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_row_was_cleared_away_goes_on_with_another() {
    let (url, database) = database().await;
    let store = open(&url).await;
    let (partitions, _) = run(&*store, create_partitions).await.unwrap();
    sql(&database, "DELETE FROM baton.servers").await;
    for number in 0..3 {
        assert_eq!(push(&*store, partitions[0], format!("{number}")).await, Offset(number));
    }
    assert_eq!(sql(&database, "SELECT sum(commits_made) FROM baton.servers").await, "2");
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_removed_and_trimmed_is_cleared_away() {
    let (url, database) = database().await;
    let store = open(&url).await;
    let (partitions, _) = run(&*store, create_partitions).await.unwrap();
    let partition = partitions[0];
    for number in 0..5 {
        push(&*store, partition, format!("{number}")).await;
    }
    run(&*store, move |tx| tx.trim(partition, Offset(4))).await.unwrap();
    let watch = Stopwatch::start();
    while sql(&database, "SELECT count(*) FROM baton.segments").await != "1" {
        assert!(watch.elapsed() < Duration::from_secs(20), "trimmed segments stay");
        baton_env::sleep(Duration::from_millis(50)).await;
    }
}

/// PostgreSQL's log shows a conflict between servers by its name, not as a mistake in a formula.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conflict_between_servers_has_a_code_and_a_text_of_its_own() {
    let (url, database) = database().await;
    let store = open(&url).await;
    let raised = sql(
        &database,
        "CREATE FUNCTION raised() RETURNS text LANGUAGE plpgsql SET search_path = baton AS $$
        BEGIN PERFORM conflict('records'); EXCEPTION WHEN SQLSTATE 'BT001' THEN RETURN SQLERRM; END $$;
        SELECT raised()",
    )
    .await;
    assert!(
        raised.ends_with("baton: another server changed the records first; this transaction is repeated"),
        "{raised}"
    );
    store.close().await.unwrap();
}

/// What a schema of the version before held, with numbers that no double can hold, goes on as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_of_an_older_schema_keep_their_order_and_become_exact_as_doubles() {
    let (url, database) = database().await;
    let store = open(&url).await;
    let (partitions, group) = run(&*store, create_partitions).await.unwrap();
    let partition = partitions[0];
    for number in 0..3 {
        push(&*store, partition, format!("{number}")).await;
    }
    let version = run(&*store, |tx| tx.put_record("r", "v".into(), None)).await.unwrap();
    let claimed = run(&*store, move |tx| claim(tx, group)).await.unwrap().unwrap();
    push(&*store, partitions[1], "later".into()).await;
    store.close().await.unwrap();
    sql(
        &database,
        "BEGIN; SET search_path = baton;
        UPDATE versions SET number = number << 10; UPDATE partitions SET version = version << 10 | 7;
        UPDATE records SET version = version << 10 | 7;
        UPDATE slots SET line = line << 10 | 7, body = CASE WHEN get_byte(body, 0) & 4 = 0 THEN body ELSE
            overlay(body PLACING int8send(('x' || encode(substring(body FROM 34 FOR 8), 'hex'))::bit(64)::bigint
                << 10 | 7) FROM 34 FOR 8) END;
        ALTER TABLE servers RENAME COLUMN commits_made TO committed;
        DROP FUNCTION conflict, partition_conflict; DELETE FROM migrations WHERE version >= 3; COMMIT",
    )
    .await;
    assert_eq!(check(&Options::new(&url)).await.unwrap(), SchemaStatus::Behind);
    let store = open(&url).await;
    let record = run(&*store, |tx| tx.record("r")).await.unwrap().unwrap();
    assert_eq!(record.version, version);
    let (id, token, _, to) = claimed;
    assert!(run(&*store, move |tx| finish(tx, group, id, token, to)).await.unwrap(), "the lease is live");
    let next = run(&*store, move |tx| claim(tx, group)).await.unwrap().unwrap();
    assert_eq!((next.0, next.1 > token), (partitions[1], true));
    let second = run(&*store, |tx| tx.put_record("r", "w".into(), None)).await.unwrap();
    assert!(version < second && second < 1 << 53);
    store.close().await.unwrap();
}
