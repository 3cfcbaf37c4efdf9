//! One walk through the routes over a real socket, broker and store: that they are wired, and what they look like.
//! What queues promise is tested in `baton-queue`; crashes and load in the process-level suite.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::time::Duration;

use baton_server::{Testing, testing};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

struct Answer {
    status: u16,
    head: String,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }
}

async fn ask(server: &Testing, method: &str, path: &str, body: &str) -> Answer {
    let address = server.url().strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    // A refusal comes before the end of a large body, and the connection ends with it.
    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), text: text.into() }
}

async fn get(server: &Testing, path: &str) -> Answer {
    ask(server, "GET", path, "").await
}

async fn post(server: &Testing, path: &str, body: &Value) -> Answer {
    ask(server, "POST", path, &body.to_string()).await
}

#[tokio::test]
async fn a_message_goes_in_comes_out_byte_for_byte_and_is_finished() {
    let server = testing().await.unwrap();
    let body =
        r#"{"items":[{"queue":"a b","partition":"p/1","payload":{ "n" : 1.0 },"transactionId":"t1"}]}"#;
    let pushed = ask(&server, "POST", "/api/v1/push", body).await;
    assert_eq!((pushed.status, &pushed.json()[0]["status"]), (201, &json!("queued")));
    let again = ask(&server, "POST", "/api/v1/push", body).await.json();
    assert_eq!(
        (&again[0]["status"], &again[0]["message_id"]),
        (&json!("duplicate"), &pushed.json()[0]["messageId"])
    );

    let popped = get(&server, "/api/v1/pop/queue/a%20b/partition/p%2F1?batch=10").await;
    assert_eq!(popped.status, 200);
    assert!(popped.text.contains(r#""data":{ "n" : 1.0 },"#), "{}", popped.text);
    let message = popped.json()["messages"][0].clone();
    let empty = get(&server, "/api/v1/pop/queue/a%20b").await;
    assert_eq!((empty.status, empty.text.as_str()), (204, ""));

    let lease = message["leaseId"].as_str().unwrap();
    let extended = ask(&server, "POST", &format!("/api/v1/lease/{lease}/extend"), "").await.json();
    assert_eq!((&extended["success"], &extended["renewed"]), (&json!(true), &json!(1)));

    let ack = json!({"transactionId": "t1", "partitionId": message["partitionId"], "leaseId": lease});
    let acked = post(&server, "/api/v1/ack", &ack).await.json();
    assert_eq!((&acked[0]["success"], &acked[0]["leaseReleased"]), (&json!(true), &json!(true)));
    let unknown = json!({"acknowledgments": [{"transactionId": "x", "partitionId": "none"}]});
    let refused = post(&server, "/api/v1/ack/batch", &unknown).await;
    assert_eq!(
        (refused.status, &refused.json()[0]["error"]),
        (200, &json!("unresolvable: Message not found"))
    );
    server.stop().await.unwrap();
}

#[tokio::test]
async fn what_failed_is_a_dead_letter_and_can_be_pushed_again() {
    let server = testing().await.unwrap();
    let configured =
        post(&server, "/api/v1/configure", &json!({"queue": "q", "options": {"retryLimit": 0}})).await.json();
    assert_eq!((&configured["configured"], &configured["options"]["retryLimit"]), (&json!(true), &json!(0)));
    post(&server, "/api/v1/push", &json!({"items": [{"queue": "q", "payload": [1], "transactionId": "t"}]}))
        .await;
    let message = get(&server, "/api/v1/pop/queue/q").await.json()["messages"][0].clone();
    let partition = message["partitionId"].as_str().unwrap().to_owned();
    let ack = json!({"type": "ack", "transactionId": "t", "partitionId": partition, "status": "failed", "error": "boom"});
    let body = json!({"operations": [ack, {"type": "push", "queue": "next", "data": 5}],
        "requiredLeases": [message["leaseId"]]});
    let done = post(&server, "/api/v1/transaction", &body).await.json();
    assert_eq!(
        (&done["success"], &done["results"][0]["dlq"], &done["results"][1]["queueName"]),
        (&json!(true), &json!(true), &json!("next")),
        "{done}"
    );

    let letters = get(&server, "/api/v1/dlq?queue=q").await.json();
    assert_eq!((&letters["total"], &letters["messages"][0]["errorMessage"]), (&json!(1), &json!("boom")));
    assert_eq!(letters["messages"][0]["data"], json!([1]));
    let path = format!("/api/v1/messages/{partition}/t");
    let detail = get(&server, &path).await.json();
    assert_eq!((&detail["status"], &detail["payload"]), (&json!("dead_letter"), &json!([1])));
    let replayed = ask(&server, "POST", &format!("{path}/retry"), "").await.json();
    assert_eq!(replayed["result"], "moved", "{replayed}");
    assert_eq!(get(&server, "/api/v1/pop/queue/q").await.json()["messages"][0]["data"], json!([1]));
    assert_eq!(ask(&server, "DELETE", &path, "").await.status, 200);
    assert_eq!(ask(&server, "DELETE", &path, "").await.status, 404);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn what_there_is_can_be_looked_at_moved_and_deleted() {
    let server = testing().await.unwrap();
    let items: Vec<_> = (0..3).map(|n| json!({"queue": "ns.task", "payload": n})).collect();
    post(&server, "/api/v1/push", &json!({"items": items})).await;
    let popped = get(&server, "/api/v1/pop?namespace=ns&consumerGroup=g&batch=5&autoAck=true").await.json();
    assert_eq!(popped["messages"].as_array().unwrap().len(), 3, "{popped}");

    assert_eq!(get(&server, "/api/v1/messages?queue=ns.task").await.json()["total"], 3);
    assert_eq!(get(&server, "/api/v1/consumer-groups").await.json()[0]["name"], "g");
    assert_eq!(get(&server, "/api/v1/consumer-groups/lagging").await.json(), json!([]));
    let group = get(&server, "/api/v1/consumer-groups/g").await.json();
    assert_eq!(group["ns.task"]["partitions"][0]["totalConsumed"], 3, "{group}");
    let seek = json!({"timestamp": "2020-01-01T00:00:00Z"});
    let moved = post(&server, "/api/v1/consumer-groups/g/queues/ns.task/seek", &seek).await.json();
    assert_eq!((&moved["success"], &moved["partitionsUpdated"]), (&json!(true), &json!(1)));
    assert_eq!(get(&server, "/api/v1/pop/queue/ns.task?consumerGroup=g").await.status, 200);
    assert_eq!(post(&server, "/api/v1/consumer-groups/g/queues/none/seek", &seek).await.status, 404);
    let deleted = ask(&server, "DELETE", "/api/v1/consumer-groups/g", "").await.json();
    assert_eq!((&deleted["success"], &deleted["deletedPartitions"]), (&json!(true), &json!(1)));

    assert_eq!(get(&server, "/api/v1/resources/queues").await.json()["queues"][0]["messages"]["total"], 3);
    let queue = get(&server, "/api/v1/resources/queues/ns.task").await.json();
    assert_eq!(
        (&queue["options"]["leaseTime"], &queue["partitions"][0]["name"]),
        (&json!(300), &json!("Default"))
    );
    assert_eq!(get(&server, "/api/v1/resources/namespaces").await.json()["namespaces"][0]["namespace"], "ns");
    assert_eq!(get(&server, "/api/v1/resources/tasks").await.json()["tasks"][0]["task"], "task");
    assert_eq!(get(&server, "/api/v1/resources/overview").await.json()["messages"]["total"], 3);
    let partitions = get(&server, "/api/v1/resources/partitions?queue=ns.task").await.json();
    assert_eq!(partitions["partitions"].as_array().unwrap().len(), 1);
    assert_eq!(
        ask(&server, "DELETE", "/api/v1/queues/ns.task/clear", "").await.json()["partitionsCleared"],
        1
    );
    let deleted = ask(&server, "DELETE", "/api/v1/resources/queues/ns.task", "").await.json();
    assert_eq!((&deleted["deleted"], &deleted["existed"]), (&json!(true), &json!(true)));
    assert_eq!(get(&server, "/api/v1/resources/queues/ns.task").await.status, 404);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_served_says_why() {
    let server = testing().await.unwrap();
    let nowhere = get(&server, "/api/v1/nowhere").await;
    assert_eq!(
        (nowhere.status, nowhere.json()),
        (404, json!({"error": "Not Found", "code": "no_such_route"}))
    );
    let method = get(&server, "/api/v1/push").await;
    assert!(method.status == 405 && method.head.contains("allow: post"), "{}", method.head);
    let options = ask(&server, "OPTIONS", "/anything", "").await;
    assert!(options.status == 204 && !options.head.contains("access-control"), "{}", options.head);
    assert_eq!(get(&server, "/api/v1/pop/queue/%ff").await.status, 400);
    assert_eq!(ask(&server, "POST", "/api/v1/push", "{").await.json()["code"], "bad_body");
    let long = json!({"items": [{"queue": "x".repeat(256)}]});
    assert_eq!(post(&server, "/api/v1/push", &long).await.json()["code"], "name_too_long");
    let huge =
        ask(&server, "POST", "/api/v1/push", &" ".repeat(baton_types::limits::BODY_BYTES_MAX + 1)).await;
    assert_eq!((huge.status, &huge.json()["code"]), (413, &json!("body_too_large")));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn stopping_answers_parked_pops_and_health_tells_the_truth() {
    let server = testing().await.unwrap();
    let health = get(&server, "/health").await;
    assert_eq!((health.status, &health.json()["status"]), (200, &json!("healthy")));
    let address = server.url().strip_prefix("http://").unwrap().to_owned();
    let mut parked = TcpStream::connect(address).await.unwrap();
    parked.write_all(b"GET /api/v1/pop/queue/q?wait=true HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    while get(&server, "/health").await.json()["popWait"]["waiters"] != 1 {
        tokio::task::yield_now().await;
    }
    let stopped = tokio::time::timeout(Duration::from_secs(5), server.stop());
    let mut answer = String::new();
    let (stopped, read) = tokio::join!(stopped, parked.read_to_string(&mut answer));
    stopped.unwrap().unwrap();
    read.unwrap();
    assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
}
