//! Several servers on one store, embedded and PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use baton_shards::{Allocation, Answer, Beat, Options, Refusal, Request, Rules, Shards, Snapshot, first};
use baton_store::Store;
use baton_store_embedded::EmbeddedStore;
use baton_store_postgres::PostgresStore;
use baton_testing_postgres::Postgres;

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Two servers that check for silent workers so seldom that nothing here happens by that.
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

async fn register(server: &Shards, service: &Arc<str>, worker: &str) -> Result<Answer, Refusal> {
    let beat = Beat { registers: true, count: Some(6), session: Some(worker.into()), ..Beat::of(worker) };
    server.ask(service, Request::Beat(beat)).await
}

/// Waits until the news of a server say what they should.
async fn heard(server: &Shards, service: &Arc<str>, expected: impl Fn(&Snapshot) -> bool) {
    let mut news = server.news(service).await.unwrap();
    let hear = async {
        while !expected(&first(&mut news).await.unwrap()) {
            news.changed().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, hear).await.unwrap();
}

/// The service has its first registration on this server just before, so that its keeper knows of no watcher yet.
async fn news_of_another_server_are_heard_soon(store: Arc<dyn Store>) {
    let [here, there] = servers(&store);
    let service: Arc<str> = "orders".into();
    register(&there, &service, "a").await.unwrap();
    register(&here, &service, "b").await.unwrap();
    let watch = heard(&here, &service, |shown| shown.service.number("c").is_some());
    let join = async { register(&there, &service, "c").await.unwrap() };
    tokio::join!(watch, join);
}

async fn every_rule(store: Arc<dyn Store>) {
    news_of_another_server_are_heard_soon(store).await;
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
