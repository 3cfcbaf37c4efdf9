//! Several servers on one store, embedded and PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use baton_shards::limits::{ACTORS_MAX, SERVICES_MAX};
use baton_shards::{
    Allocation, Heartbeat, Options, Outcome, Refusal, Request, Rules, Shards, Snapshot, first_snapshot,
};
use baton_store::Store;
use baton_store_embedded::EmbeddedStore;
use baton_store_postgres::PostgresStore;
use baton_testing_postgres::Postgres;

/// Long enough for a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Two servers that expire silent workers so rarely that it does not affect these tests.
fn servers(store: &Arc<dyn Store>) -> [Shards; 2] {
    let options = Options {
        rules: Rules {
            allocation: Allocation::Contiguous,
            timeout: Duration::from_secs(600),
            forget_after: Duration::from_secs(600),
            rebalance_interval: Duration::ZERO,
        },
        check_interval: Duration::from_secs(600),
        shards_max: 1_000,
        shared: true,
    };
    [0, 1].map(|_| Shards::start(Arc::clone(store), options))
}

async fn register(server: &Shards, service: &Arc<str>, worker: &str) -> Result<Outcome, Refusal> {
    let beat = Heartbeat {
        is_registration: true,
        shard_count: Some(6),
        session: Some(worker.into()),
        ..Heartbeat::from_worker(worker)
    };
    server.submit_and_wait(service, Request::Heartbeat(beat)).await
}

/// Waits until a server's snapshot meets a condition.
async fn wait_for_snapshot(server: &Shards, service: &Arc<str>, expected: impl Fn(&Snapshot) -> bool) {
    let mut news = server.subscribe(service).await.unwrap();
    let hear = async {
        while !expected(&first_snapshot(&mut news).await.unwrap()) {
            news.changed().await.unwrap();
        }
    };
    tokio::time::timeout(WAIT_MAX, hear).await.unwrap();
}

/// The service gets its first registration on this server just before, so that its actor knows of no watcher yet.
async fn changes_by_another_server_are_seen_soon(store: Arc<dyn Store>) {
    let [here, there] = servers(&store);
    let service: Arc<str> = "orders".into();
    register(&there, &service, "a").await.unwrap();
    register(&here, &service, "b").await.unwrap();
    let watch = wait_for_snapshot(&here, &service, |shown| shown.service.number("c").is_some());
    let join = async { register(&there, &service, "c").await.unwrap() };
    tokio::join!(watch, join);
}

fn leave(worker: &str) -> Request {
    Request::Leave { worker: worker.into(), session: Some(worker.into()), caller: None }
}

/// Watchers on every server see it, and tokens of a service that is created again are above its earlier ones.
async fn a_service_without_live_workers_can_be_deleted(store: Arc<dyn Store>) {
    let [here, there] = servers(&store);
    let service: Arc<str> = "invoices".into();
    let delete = || Request::Delete(Arc::clone(&service));
    let unknown = Refusal::UnknownService(Arc::clone(&service));
    assert_eq!(here.submit_and_wait(&service, delete()).await.unwrap_err(), unknown);
    let before = register(&here, &service, "a").await.unwrap().worker().unwrap().generation;
    let mut news = there.subscribe(&service).await.unwrap();
    assert!(first_snapshot(&mut news).await.unwrap().version > 0);
    assert_eq!(
        there.submit_and_wait(&service, delete()).await.unwrap_err(),
        Refusal::InUse(Arc::clone(&service))
    );
    there.submit_and_wait(&service, leave("a")).await.unwrap();
    here.submit_and_wait(&service, delete()).await.unwrap();
    let gone = async {
        while first_snapshot(&mut news).await.unwrap().version > 0 {
            news.changed().await.unwrap();
        }
    };
    tokio::time::timeout(WAIT_MAX, gone).await.unwrap();
    for server in [&here, &there] {
        assert_eq!(server.snapshot(&service).await.unwrap_err(), unknown);
        assert!(server.list().await.unwrap().iter().all(|(name, _)| *name != service));
    }
    let again = register(&there, &service, "a").await.unwrap();
    assert!(again.view().grants[0].token > before);
}

/// A name without a registered worker keeps no actor, and the limit of services is an error without retry.
async fn services_are_bounded_and_names_that_are_not_stored_take_no_room(store: Arc<dyn Store>) {
    let [here, _] = servers(&store);
    let name = |number: usize| Arc::from(format!("service-{number}"));
    for number in 0..ACTORS_MAX + 10 {
        let refused = here.submit_and_wait(&name(number), leave("unknown")).await.unwrap_err();
        assert_eq!(refused, Refusal::UnknownWorker("unknown".into()));
    }
    let stored = here.list().await.unwrap().len();
    for number in stored..SERVICES_MAX {
        register(&here, &name(number), "w").await.unwrap();
    }
    let refused = register(&here, &name(SERVICES_MAX), "w").await.unwrap_err();
    assert!(matches!(&refused, Refusal::Full(text) if text.contains("delete")), "{refused}");
    here.submit_and_wait(&name(stored), leave("w")).await.unwrap();
    here.submit_and_wait(&name(stored), Request::Delete(name(stored))).await.unwrap();
    register(&here, &name(SERVICES_MAX), "w").await.unwrap();
}

async fn every_rule(store: Arc<dyn Store>) {
    changes_by_another_server_are_seen_soon(Arc::clone(&store)).await;
    a_service_without_live_workers_can_be_deleted(Arc::clone(&store)).await;
    services_are_bounded_and_names_that_are_not_stored_take_no_room(store).await;
}

#[tokio::test]
async fn embedded() {
    let directory = tempfile::tempdir().unwrap();
    let options = baton_store_embedded::Options::new(directory.path());
    every_rule(Arc::new(EmbeddedStore::open(options).unwrap())).await;
}

#[tokio::test]
async fn postgres() {
    let url = tokio::task::spawn_blocking(|| Postgres::shared().database()).await.unwrap();
    let options = baton_store_postgres::Options::new(url);
    every_rule(Arc::new(PostgresStore::open(options).await.unwrap())).await;
}
