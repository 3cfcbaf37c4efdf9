use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_client::{Client, Error};
use baton_env::Stopwatch;
use serde_json::json;

use crate::support::{Reply, Seen, TestServer, queued};

const LONG: Duration = Duration::from_secs(600);

fn client(server: &TestServer) -> Client {
    Client::builder().url(&server.url).retries(0).build().unwrap()
}

/// All payloads that arrived, in order.
fn payloads(server: &TestServer) -> Vec<u64> {
    let seen = server.seen();
    seen.iter()
        .flat_map(|s| s.body["items"].as_array().unwrap())
        .map(|i| i["payload"].as_u64().unwrap())
        .collect()
}

#[tokio::test]
async fn messages_leave_together_and_in_order() {
    let server = TestServer::start(queued).await;
    let buffer = client(&server).queue("orders").buffer(100, LONG);
    for n in 0..1_050_u64 {
        buffer.push(&n).await.unwrap();
    }
    buffer.close().await.unwrap();
    assert_eq!(payloads(&server), (0..1_050).collect::<Vec<_>>());
    assert!(server.seen().len() <= 11, "{} requests", server.seen().len());
}

#[tokio::test]
async fn a_lonely_message_leaves_when_its_time_is_up() {
    let server = TestServer::start(queued).await;
    let buffer = client(&server).queue("orders").buffer(100, Duration::from_millis(50));
    buffer.push(&7).await.unwrap();
    let watch = Stopwatch::start();
    while buffer.waiting() > 0 {
        assert!(watch.elapsed() < Duration::from_secs(10));
        tokio::task::yield_now().await;
    }
    assert_eq!(payloads(&server), [7]);
}

#[tokio::test]
async fn a_full_buffer_makes_the_producer_wait() {
    let open = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&open);
    let server = TestServer::start(move |seen| {
        if gate.load(Ordering::SeqCst) { queued(seen) } else { Reply::RetryAfter(429, "0.05") }
    })
    .await;
    let buffer = client(&server).queue("orders").buffer(10, LONG);
    for n in 0..40 {
        buffer.push(&n).await.unwrap();
    }
    let late = tokio::time::timeout(Duration::from_millis(300), buffer.push(&40)).await;
    assert!(late.is_err(), "the 41st message should have waited");
    assert_eq!(buffer.waiting(), 40);
    open.store(true, Ordering::SeqCst);
    buffer.push(&40).await.unwrap();
    buffer.close().await.unwrap();
    let mut arrived = payloads(&server);
    arrived.dedup();
    assert_eq!(arrived.last(), Some(&40));
}

#[tokio::test]
async fn large_messages_do_not_wait_for_a_full_batch() {
    let server = TestServer::start(queued).await;
    let buffer = client(&server).queue("orders").buffer(1_000, LONG);
    let large = "x".repeat(7 << 20);
    for _ in 0..4 {
        let push = tokio::time::timeout(Duration::from_secs(20), buffer.push(&large));
        push.await.expect("room comes without a flush").unwrap();
    }
    let huge = "x".repeat(20 << 20);
    buffer.push(&huge).await.unwrap();
    buffer.close().await.unwrap();
    assert_eq!(server.seen().iter().map(Seen::items).sum::<usize>(), 5);
}

#[tokio::test]
async fn a_flush_that_fails_keeps_the_messages_for_the_next() {
    let server = TestServer::start(|seen| match seen.number {
        0 => Reply::Json(500, json!({"error": "disk"})),
        _ => queued(seen),
    })
    .await;
    let buffer = client(&server).queue("orders").buffer(10, LONG);
    buffer.push(&1).await.unwrap();
    let first = buffer.flush().await;
    assert!(matches!(first, Err(Error::Unavailable { .. })), "{first:?}");
    buffer.flush().await.unwrap();
    assert_eq!(buffer.waiting(), 0);
    let seen = server.seen();
    assert_eq!(seen[0].body, seen[1].body);
}

#[tokio::test]
async fn a_refused_batch_is_told_once_and_the_buffer_goes_on() {
    let server = TestServer::start(|seen| match seen.number {
        0 => Reply::Json(413, json!({"error": "too large"})),
        _ => queued(seen),
    })
    .await;
    let buffer = client(&server).queue("orders").buffer(10, LONG);
    buffer.push(&1).await.unwrap();
    assert!(matches!(buffer.flush().await, Err(Error::Invalid(_))));
    buffer.push(&2).await.unwrap();
    buffer.close().await.unwrap();
    assert_eq!(payloads(&server), [1, 2]);
}

#[tokio::test]
async fn closing_while_the_server_is_away_says_so() {
    let server = TestServer::start(|_| Reply::HangUp).await;
    let buffer = client(&server).queue("orders").buffer(10, LONG);
    buffer.push(&1).await.unwrap();
    let outcome = buffer.close().await;
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
}

#[tokio::test]
async fn a_dropped_buffer_still_sends() {
    let server = TestServer::start(queued).await;
    let buffer = client(&server).queue("orders").buffer(10, LONG);
    buffer.push(&1).await.unwrap();
    drop(buffer);
    let watch = Stopwatch::start();
    while server.seen().is_empty() {
        assert!(watch.elapsed() < Duration::from_secs(10));
        tokio::task::yield_now().await;
    }
    assert_eq!(payloads(&server), [1]);
}
