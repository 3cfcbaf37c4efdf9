use std::time::Duration;

use baton_client::{AckStatus, Acknowledgement, Client, Confirmation, Error, Message};
use serde_json::{Value, json};

use crate::support::{Reply, TestServer, acked, batch, queued};

fn client(server: &TestServer) -> Client {
    Client::builder().url(&server.url).retries(0).build().unwrap()
}

async fn answering(status: u16, body: Value) -> TestServer {
    TestServer::start(move |_| Reply::Json(status, body.clone())).await
}

/// Two messages of the group `billing`.
async fn popped() -> Vec<Message> {
    let server = TestServer::start(|_| batch("p", 0, 2)).await;
    client(&server).queue("orders").pop().batch(2).send().await.unwrap()
}

#[tokio::test]
async fn an_empty_pop_is_no_error_in_either_form() {
    let empty = TestServer::start(|_| Reply::Nothing).await;
    assert!(client(&empty).queue("orders").pop().send().await.unwrap().is_empty());
    let old =
        answering(200, json!({"success": false, "error": "no_available_partition", "messages": []})).await;
    assert!(client(&old).queue("orders").pop().send().await.unwrap().is_empty());
}

#[tokio::test]
async fn an_ack_carries_its_lease_and_group() {
    let server = TestServer::start(acked).await;
    let messages = popped().await;
    client(&server).fail(&messages[0], "boom").await.unwrap();
    let expected = json!({"transactionId": "t-0", "partitionId": "id-p", "leaseId": "lease-1", "status": "failed",
                          "consumerGroup": "billing", "error": "boom"});
    assert_eq!(server.seen()[0].body, expected);
}

#[tokio::test]
async fn an_ack_that_comes_too_late_is_a_lost_lease() {
    let result =
        json!([{"index": 0, "transactionId": "t-0", "success": false, "error": "Invalid or expired lease"}]);
    let server = answering(200, result).await;
    let messages = popped().await;
    let outcome = client(&server).ack(&messages[0], AckStatus::Completed).await;
    assert!(
        matches!(&outcome, Err(Error::LeaseLost { transaction_id }) if transaction_id == "t-0"),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn a_batch_of_acks_may_differ() {
    let server = TestServer::start(acked).await;
    let messages = popped().await;
    let acks = [
        Acknowledgement::new(&messages[0], AckStatus::Completed),
        Acknowledgement::new(&messages[1], AckStatus::Dlq).because("unreadable"),
    ];
    let results = client(&server).ack_all(&acks).await.unwrap();
    assert_eq!(results.len(), 2);
    let body = &server.seen()[0].body;
    assert_eq!(body["consumerGroup"], "billing");
    assert_eq!(body["acknowledgments"][1]["status"], "dlq");
    assert_eq!(body["acknowledgments"][1]["error"], "unreadable");
}

#[tokio::test]
async fn a_transaction_names_its_leases_and_fences_its_acks() {
    let server = answering(200, json!({"transactionId": "x", "success": true, "results": []})).await;
    let baton = client(&server);
    let messages = popped().await;
    let next = baton.queue("next").partition("a");
    baton
        .transaction()
        .ack(&messages[0])
        .ack(&messages[1])
        .push(&next, &json!({"n": 1}))
        .commit()
        .await
        .unwrap();
    let body = &server.seen()[0].body;
    assert_eq!(body["requiredLeases"], json!(["lease-1"]));
    assert_eq!(body["operations"][0]["type"], "ack");
    assert_eq!(body["operations"][1]["leaseId"], "lease-1");
    let item = &body["operations"][2]["items"][0];
    assert_eq!(
        (&item["queue"], &item["partition"], &item["payload"]),
        (&json!("next"), &json!("a"), &json!({"n": 1}))
    );
    assert!(item["transactionId"].is_string());
}

#[tokio::test]
async fn a_rolled_back_transaction_is_a_conflict() {
    let server =
        answering(200, json!({"success": false, "error": "ACK operation failed: Message not found"})).await;
    let baton = client(&server);
    let outcome = baton.transaction().push(&baton.queue("next"), &1).commit().await;
    assert!(
        matches!(&outcome, Err(Error::Conflict(text)) if text.contains("Message not found")),
        "{outcome:?}"
    );
    assert!(matches!(baton.transaction().commit().await, Err(Error::Invalid(_))));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_lease_that_is_over_cannot_be_extended() {
    let server =
        answering(200, json!({"leaseId": "lease-1", "success": false, "renewed": 0, "newExpiresAt": null}))
            .await;
    let messages = popped().await;
    let outcome = client(&server).extend_lease(&messages[0], Duration::from_secs(60)).await;
    assert!(matches!(outcome, Err(Error::LeaseLost { .. })), "{outcome:?}");
    assert_eq!(server.seen()[0].body, json!({"seconds": 60}));
}

#[tokio::test]
async fn a_push_is_confirmed_or_explained() {
    let server = answering(201, json!([{"status": "queued"}, {"status": "duplicate"}])).await;
    let confirmation = client(&server).queue("orders").push(&1).and(&2).confirm().await.unwrap();
    assert_eq!(confirmation, Confirmation { queued: 1, buffered: 0, duplicates: 1 });
    let server =
        answering(201, json!([{"status": "queued"}, {"status": "failed", "error": "no room"}])).await;
    let outcome = client(&server).queue("orders").push(&1).and(&2).confirm().await;
    assert!(matches!(&outcome, Err(Error::Invalid(text)) if text.contains("no room")), "{outcome:?}");
    let outcome = client(&server).queue("orders").push(&1).send().await;
    assert!(matches!(outcome, Err(Error::Protocol { .. })), "{outcome:?}");
}

#[tokio::test]
async fn a_push_of_nothing_calls_nobody() {
    let server = TestServer::start(queued).await;
    assert!(client(&server).queue("orders").push_all(Vec::<u8>::new()).send().await.unwrap().is_empty());
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn a_payload_that_is_no_json_is_refused_before_the_call() {
    let server = TestServer::start(queued).await;
    let keys = std::collections::HashMap::from([(vec![1], 1)]);
    let outcome = client(&server).queue("orders").push(&1).and(&keys).and(&2).send().await;
    assert!(matches!(outcome, Err(Error::Payload(_))), "{outcome:?}");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn options_come_back_from_the_server_whatever_else_it_knows() {
    let server =
        answering(200, json!({"configured": true, "options": {"leaseTime": 30, "fromTheFuture": 1}})).await;
    let options =
        client(&server).queue("orders").namespace("shop").configure(&json!({"leaseTime": 30})).await.unwrap();
    assert_eq!(options.lease_time, 30);
    let expected = json!({"queue": "orders", "namespace": "shop", "options": {"leaseTime": 30}});
    assert_eq!(server.seen()[0].body, expected);
}

#[tokio::test]
async fn dead_letters_are_read_and_replayed() {
    let letter = json!({"id": "1", "transactionId": "t/1", "partitionId": "7", "queue": "orders", "partition": "p",
        "consumerGroup": "billing", "errorMessage": "boom", "retryCount": 3, "data": {"n": 1}, "producerSub": null,
        "createdAt": "x", "failedAt": "y"});
    let server = TestServer::start(move |seen| {
        if seen.is("/retry") {
            return Reply::Json(
                200,
                json!({"success": true, "result": "moved", "queue": "orders", "partition": "p"}),
            );
        }
        Reply::Json(200, json!({"messages": [letter], "total": 12}))
    })
    .await;
    let baton = client(&server);
    let page = baton.queue("orders").group("billing").dlq().limit(1).get().await.unwrap();
    assert_eq!((page.total, page.messages[0].data.get()), (12, r#"{"n":1}"#));
    assert_eq!(baton.replay(&page.messages[0]).await.unwrap().result, "moved");
    let paths: Vec<_> =
        server.seen().into_iter().map(|seen| format!("{} {}", seen.method, seen.path)).collect();
    let expected =
        ["GET /api/v1/dlq?queue=orders&consumerGroup=billing&limit=1", "POST /api/v1/messages/7/t%2F1/retry"];
    assert_eq!(paths, expected);
}

#[tokio::test]
async fn a_queue_that_is_not_there_is_not_found() {
    let server = answering(404, json!({"error": "Queue not found"})).await;
    let outcome = client(&server).queue("orders").detail().await;
    assert!(matches!(&outcome, Err(Error::NotFound(text)) if text == "Queue not found"), "{outcome:?}");
}
