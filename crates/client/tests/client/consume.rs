use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_client::{CancellationToken, Client, Consume, ConsumerStats, Error, Message};
use serde_json::{Value, json};

use crate::support::{Reply, Seen, TestServer, acked, batch};

fn consume(server: &TestServer) -> Consume {
    Client::new(&server.url).unwrap().queue("orders").group("billing").consume()
}

/// Serves `pops` in turn and then nothing; accepts every ack.
async fn server(pops: impl Fn(usize) -> Reply + Send + Sync + 'static) -> TestServer {
    let popped = AtomicUsize::new(0);
    TestServer::start(move |seen: &Seen| match seen {
        _ if seen.is("/pop/") => pops(popped.fetch_add(1, Ordering::SeqCst)),
        _ if seen.is("/extend") => {
            Reply::Json(200, json!({"leaseId": "lease-1", "success": true, "renewed": 1}))
        }
        _ => acked(seen),
    })
    .await
}

/// The statuses of all acks, by transaction id.
fn acks(server: &TestServer) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let seen = server.seen_at("/ack/batch");
    let all = seen.iter().flat_map(|s| s.body["acknowledgments"].as_array().unwrap());
    all.map(|ack| (text(&ack["transactionId"]), text(&ack["status"]))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(id, status)| ((*id).to_owned(), (*status).to_owned())).collect()
}

async fn accept(_: Message) -> Result<(), Error> {
    Ok(())
}

#[tokio::test]
async fn messages_are_handled_in_order_and_acked_together() {
    let server = server(|n| if n == 0 { batch("p", 0, 3) } else { Reply::Nothing }).await;
    let handled = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&handled);
    let consumed = consume(&server)
        .batch(10)
        .idle(Duration::from_millis(300))
        .each(move |message| {
            log.lock().unwrap().push(message.data::<u32>().unwrap());
            async { Ok::<_, Error>(()) }
        })
        .await
        .unwrap();
    assert_eq!(*handled.lock().unwrap(), [0, 1, 2]);
    assert_eq!(consumed, ConsumerStats { completed: 3, failed: 0, refused: 0 });
    let acks = server.seen_at("/ack/batch");
    assert_eq!(acks.len(), 1);
    assert_eq!(acks[0].body["consumerGroup"], "billing");
    assert_eq!(acks[0].body["acknowledgments"][0]["leaseId"], "lease-1");
}

#[tokio::test]
async fn after_a_failure_the_rest_of_the_partition_is_left_for_later() {
    let server = server(|n| if n == 0 { batch("p", 0, 4) } else { Reply::Nothing }).await;
    let consumed = consume(&server)
        .batch(10)
        .limit(4)
        .each(|message| async move { if message.offset() == 1 { Err("boom") } else { Ok(()) } })
        .await
        .unwrap();
    assert_eq!(consumed, ConsumerStats { completed: 1, failed: 1, refused: 0 });
    assert_eq!(acks(&server), pairs(&[("t-0", "completed"), ("t-1", "failed")]));
    assert_eq!(server.seen_at("/ack/batch")[0].body["acknowledgments"][1]["error"], "boom");
}

#[tokio::test]
async fn a_batch_succeeds_or_fails_as_one() {
    let server = server(|n| batch("p", 2 * n, 2 * n + 2)).await;
    let consumed = consume(&server)
        .batch(2)
        .limit(4)
        .batches(|messages| async move { if messages[0].offset() == 0 { Err("boom") } else { Ok(()) } })
        .await
        .unwrap();
    assert_eq!(consumed, ConsumerStats { completed: 2, failed: 2, refused: 0 });
    let expected = [("t-0", "failed"), ("t-1", "failed"), ("t-2", "completed"), ("t-3", "completed")];
    assert_eq!(acks(&server), pairs(&expected));
}

#[tokio::test]
async fn the_limit_is_never_passed_by_several_workers() {
    let server = TestServer::start(|seen| {
        if !seen.is("/pop/") {
            return acked(seen);
        }
        let wanted = seen.path.split("batch=").nth(1).unwrap().split('&').next().unwrap().parse().unwrap();
        batch("p", 0, wanted)
    })
    .await;
    let consumed = consume(&server).batch(7).concurrency(4).limit(100).each(accept).await.unwrap();
    assert_eq!(consumed.completed, 100);
}

#[tokio::test]
async fn a_stop_ends_the_poll_but_not_the_handler() {
    let server = server(|n| if n == 0 { batch("p", 0, 1) } else { Reply::Silence }).await;
    let stop = CancellationToken::new();
    let inner = stop.clone();
    let consumed = consume(&server)
        .stop_on(stop)
        .each(move |_| {
            let stop = inner.clone();
            async move {
                stop.cancel();
                baton_env::sleep(Duration::from_millis(50)).await;
                Ok::<_, Error>(())
            }
        })
        .await
        .unwrap();
    assert_eq!(consumed.completed, 1);
    assert_eq!(acks(&server), pairs(&[("t-0", "completed")]));
}

#[tokio::test]
async fn a_parked_poll_ends_when_told_to_stop() {
    let server = server(|_| Reply::Silence).await;
    let stop = CancellationToken::new();
    let consumer = tokio::spawn(consume(&server).concurrency(3).stop_on(stop.clone()).each(accept));
    while server.seen().len() < 3 {
        tokio::task::yield_now().await;
    }
    stop.cancel();
    assert_eq!(consumer.await.unwrap().unwrap(), ConsumerStats::default());
}

#[tokio::test]
async fn the_lease_of_a_slow_batch_is_renewed() {
    let server = server(|n| if n == 0 { batch("p", 0, 1) } else { Reply::Nothing }).await;
    let slow = |_| async {
        baton_env::sleep(Duration::from_millis(350)).await;
        Ok::<_, Error>(())
    };
    consume(&server).limit(1).renew_lease(Duration::from_millis(100)).each(slow).await.unwrap();
    let renewals = server.seen_at("/lease/lease-1/extend").len();
    assert!((2..=3).contains(&renewals), "{renewals} renewals");
}

#[tokio::test]
async fn a_server_that_is_away_is_waited_for() {
    let server = server(|n| match n {
        0..6 => Reply::HangUp,
        6 => batch("p", 0, 1),
        _ => Reply::Nothing,
    })
    .await;
    let consumed = consume(&server).limit(1).each(accept).await.unwrap();
    assert_eq!(consumed.completed, 1);
}

#[tokio::test]
async fn a_refusal_ends_the_consumer() {
    let server = server(|_| Reply::Json(403, json!({"error": "Insufficient permissions"}))).await;
    let outcome = consume(&server).concurrency(3).each(accept).await;
    assert!(matches!(outcome, Err(Error::Denied { status: 403, .. })), "{outcome:?}");
}

#[tokio::test]
async fn nothing_is_acked_by_a_consumer_that_acks_itself() {
    let server = server(|_| batch("p", 0, 1)).await;
    let consumed = consume(&server).auto_ack(false).limit(1).each(accept).await.unwrap();
    assert_eq!(consumed.completed, 1);
    assert!(server.seen_at("/ack").is_empty());
}
