use std::time::Duration;

use baton_client::{Client, Error};
use baton_env::Stopwatch;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::support::{Reply, TestServer, queued};

/// An address at which no server listens.
async fn unused_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[tokio::test]
async fn a_push_is_repeated_with_the_same_transaction_ids() {
    let server = TestServer::start(|seen| match seen.number {
        0 => Reply::Json(500, json!({"error": "disk"})),
        1 => Reply::HangUp,
        _ => queued(seen),
    })
    .await;
    let baton = Client::new(&server.url).unwrap();
    let results = baton.queue("orders").push_all([1, 2, 3]).send().await.unwrap();
    assert_eq!(results.len(), 3);
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[0].body, seen[1].body);
    assert_eq!(seen[0].body, seen[2].body);
}

#[tokio::test]
async fn a_push_without_ids_is_not_repeated_once_it_may_have_arrived() {
    let server = TestServer::start(|_| Reply::HangUp).await;
    let baton = Client::new(&server.url).unwrap();
    let outcome = baton.queue("orders").push(&1).without_transaction_ids().send().await;
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_push_without_ids_moves_on_when_it_never_left() {
    let server = TestServer::start(queued).await;
    let baton = Client::builder().url(unused_address().await).url(&server.url).build().unwrap();
    for queue in ["a", "b", "c", "d"] {
        baton.queue(queue).push(&1).without_transaction_ids().send().await.unwrap();
    }
    assert_eq!(server.seen().len(), 4);
}

#[tokio::test]
async fn a_refusal_is_not_repeated() {
    let server = TestServer::start(|_| Reply::Json(400, json!({"error": "Queue must be a string"}))).await;
    let baton = Client::new(&server.url).unwrap();
    let outcome = baton.queue("orders").push(&1).send().await;
    assert!(matches!(&outcome, Err(Error::Invalid(text)) if text == "Queue must be a string"), "{outcome:?}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_full_server_is_asked_again_when_it_says() {
    let server = TestServer::start(|seen| match seen.number {
        0 => Reply::RetryAfter(429, "0.4"),
        _ => queued(seen),
    })
    .await;
    let baton = Client::new(&server.url).unwrap();
    let watch = Stopwatch::start();
    baton.queue("orders").push(&1).send().await.unwrap();
    assert!(watch.elapsed() >= Duration::from_millis(400), "{:?}", watch.elapsed());
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn retries_end() {
    let server = TestServer::start(|_| Reply::RetryAfter(429, "0")).await;
    let baton = Client::builder().url(&server.url).retries(2).build().unwrap();
    let outcome = baton.queue("orders").push(&1).send().await;
    assert!(matches!(outcome, Err(Error::Full { .. })), "{outcome:?}");
    assert_eq!(server.seen().len(), 3);
}

#[tokio::test]
async fn every_server_is_tried_once_in_each_round() {
    let broken = || TestServer::start(|_| Reply::Json(500, json!({"error": "disk"})));
    let servers = [broken().await, broken().await];
    let baton = Client::builder().url(&servers[0].url).url(&servers[1].url).retries(1).build().unwrap();
    let outcome = baton.queue("orders").push(&1).send().await;
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    assert_eq!(servers.map(|server| server.seen().len()), [2, 2]);
}

#[tokio::test]
async fn a_failed_server_is_passed_over_for_a_while() {
    let broken = TestServer::start(|_| Reply::Json(503, json!({"error": "starting"}))).await;
    let sound = TestServer::start(queued).await;
    let baton = Client::builder().url(&broken.url).url(&sound.url).build().unwrap();
    for n in 0..10 {
        baton.queue(format!("queue-{n}")).push(&1).send().await.unwrap();
    }
    assert_eq!(sound.seen().len(), 10);
    assert_eq!(broken.seen().len(), 1);
}

#[tokio::test]
async fn nobody_listening_is_recognised() {
    let baton = Client::builder().url(unused_address().await).retries(0).build().unwrap();
    let error = baton.queue("orders").push(&1).send().await.unwrap_err();
    assert!(error.is_connection_refused(), "{error:?}");
    assert!(error.is_temporary());
}

#[tokio::test]
async fn a_silent_server_is_not_waited_for_longer_than_allowed() {
    let server = TestServer::start(|_| Reply::Silence).await;
    let baton =
        Client::builder().url(&server.url).timeout(Duration::from_millis(200)).retries(0).build().unwrap();
    let outcome = baton.queues().await;
    assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
}

#[tokio::test]
async fn a_connection_is_used_again_and_carries_the_token() {
    let server = TestServer::start(queued).await;
    let baton = Client::builder().url(&server.url).token("secret").build().unwrap();
    for _ in 0..20 {
        baton.queue("orders").push(&1).send().await.unwrap();
    }
    assert_eq!(server.connections(), 1);
    assert!(server.seen().iter().all(|seen| seen.authorization.as_deref() == Some("Bearer secret")));
}

/// A server that announces keep-alive but closes each connection after one response.
async fn fickle() -> (String, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // Headers and body arrive in one write; an empty read is an unused connection.
            if stream.read(&mut [0; 4096]).await.is_ok_and(|bytes| bytes > 0) {
                let body = r#"[{"status":"queued"}]"#;
                let answer = format!("HTTP/1.1 201 Created\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    });
    (url, AbortOnDropHandle::new(task))
}

#[tokio::test]
async fn a_connection_that_the_server_closed_meanwhile_costs_no_error() {
    let (url, _server) = fickle().await;
    let orders = Client::builder().url(url).retries(0).build().unwrap().queue("orders");
    for n in 0..20 {
        orders.push(&n).confirm().await.unwrap();
    }
    for n in 0..5 {
        // Gives the close time to arrive: without ids a push that may have been sent is not retried.
        baton_env::sleep(Duration::from_millis(20)).await;
        orders.push(&n).without_transaction_ids().confirm().await.unwrap();
    }
}
