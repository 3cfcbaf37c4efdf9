//! Workers of shards against a real server.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_client::{Client, Error, ShardWorker};
use baton_server::{Settings, Testing, testing_with};

const PATIENCE: Duration = Duration::from_secs(60);

async fn server() -> Testing {
    let mut settings = Settings { listen: "127.0.0.1:0".into(), ..Settings::default() };
    // Long enough that a busy machine does not lose a lease by accident.
    settings.shards.timeout = Duration::from_secs(6);
    settings.shards.check_interval = Duration::from_millis(200);
    testing_with(&settings).await.unwrap()
}

/// The shards in use; a shard that two workers use fails the test at once.
#[derive(Clone, Default)]
struct Used(Arc<Mutex<BTreeSet<u32>>>);

impl Used {
    fn begin(&self, shard: u32) {
        assert!(self.0.lock().unwrap().insert(shard), "shard {shard} is used twice");
    }

    fn end(&self, shard: u32) {
        assert!(self.0.lock().unwrap().remove(&shard), "shard {shard} was not used");
    }
}

async fn worker(client: &Client, id: &str, used: &Used) -> ShardWorker {
    let (begin, end) = (used.clone(), used.clone());
    client
        .shards("orders")
        .worker(id, 12)
        .on_gained(move |gained| begin.begin(gained.shard))
        .on_lost(move |lost| {
            let end = end.clone();
            async move {
                baton_env::sleep(Duration::from_millis(20)).await;
                end.end(lost.shard);
            }
        })
        .start()
        .await
        .unwrap()
}

async fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let wait = async {
        while !check() {
            baton_env::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "{what}");
}

#[tokio::test]
async fn workers_share_hand_over_and_leave() {
    let server = server().await;
    let (client, used) = (Client::new(server.url()).unwrap(), Used::default());
    let a = worker(&client, "a", &used).await;
    assert_eq!(a.shards().len(), 12);
    let old = a.token(11).unwrap();
    let b = worker(&client, "b", &used).await;
    eventually("half each", || a.shards().len() == 6 && b.shards().len() == 6).await;
    assert!(b.token(11).unwrap() > old);
    assert_eq!(a.token(11), None);
    a.leave().await.unwrap();
    eventually("all for one", || b.shards().len() == 12).await;
    // Dropped without leaving: the shards wait for the lease.
    drop(b);
    used.0.lock().unwrap().clear();
    let c = worker(&client, "c", &used).await;
    assert!(c.shards().is_empty());
    eventually("the lease has run out", || c.shards().len() == 12).await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_worker_whose_id_is_taken_ends() {
    let server = server().await;
    let (client, used) = (Client::new(server.url()).unwrap(), Used::default());
    let mut first = worker(&client, "a", &used).await;
    let second = worker(&client, "a", &Used::default()).await;
    let ended = tokio::time::timeout(PATIENCE, first.ended()).await.unwrap();
    assert!(matches!(ended, Err(Error::Conflict(_))), "{ended:?}");
    assert!(first.shards().is_empty());
    eventually("the second has all", || second.shards().len() == 12).await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_worker_without_a_server_loses_everything_in_time() {
    let server = server().await;
    let (client, used) = (Client::new(server.url()).unwrap(), Used::default());
    let worker = worker(&client, "a", &used).await;
    assert_eq!(worker.shards().len(), 12);
    server.stop().await.unwrap();
    eventually("the lease has run out", || worker.shards().is_empty()).await;
    eventually("the program knows", || used.0.lock().unwrap().is_empty()).await;
}
