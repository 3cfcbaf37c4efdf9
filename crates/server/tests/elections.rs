//! Elections over HTTP, as a program without any library of ours takes part in them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use baton_env::Stopwatch;
use baton_server::{Testing, testing};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(60);

async fn send(server: &Testing, head: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.url().strip_prefix("http://").unwrap()).await.unwrap();
    let text = format!("{head}\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

async fn ask(server: &Testing, method: &str, path: &str, body: &str) -> (u16, Value) {
    let head = format!("{method} /api/v1/elections{path} HTTP/1.1\r\nConnection: close");
    let mut answer = String::new();
    send(server, &head, body).await.read_to_string(&mut answer).await.unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(text).unwrap())
}

async fn act(server: &Testing, action: Value) -> Value {
    let (status, answer) = ask(server, "POST", "/g", &action.to_string()).await;
    assert_eq!(status, 200, "{action}: {answer}");
    answer
}

fn join(worker: &str, lease_ms: u64) -> Value {
    json!({"action": "join", "workerId": worker, "leaseMs": lease_ms})
}

#[tokio::test]
async fn the_first_to_join_coordinates_until_it_resigns() {
    let server = testing().await.unwrap();
    assert_eq!(ask(&server, "GET", "/g", "").await.0, 404);
    let won = act(&server, join("b", 30_000)).await;
    assert_eq!(
        (&won["isCoordinator"], &won["token"], &won["epochNumber"]),
        (&json!(true), &json!(1), &json!(1))
    );
    assert!(won["leaseMs"].as_u64().unwrap() < 30_000 && won["heartbeatMs"] == 10_000, "{won}");
    let other = act(&server, join("a", 30_000)).await;
    assert_eq!(
        (&other["isCoordinator"], &other["coordinator"], &other["token"]),
        (&json!(false), &json!("b"), &Value::Null)
    );
    // Beating keeps the term and its token.
    let beat = act(&server, json!({"action": "heartbeat", "workerId": "b"})).await;
    assert_eq!((&beat["isCoordinator"], &beat["token"]), (&json!(true), &json!(1)));
    // Another life of the same name does not have it.
    let twin = act(&server, json!({"action": "join", "workerId": "b", "incarnation": "other"})).await;
    assert_eq!(twin["isCoordinator"], false);
    let shown = ask(&server, "GET", "/g", "").await.1;
    assert_eq!(shown["workers"].as_array().unwrap().len(), 2);
    let resigned = act(&server, json!({"action": "resign", "workerId": "b"})).await;
    assert_eq!((&resigned["coordinator"], &resigned["released"]), (&Value::Null, &json!(true)));
    let next = act(&server, join("a", 30_000)).await;
    assert_eq!((&next["isCoordinator"], &next["token"]), (&json!(true), &json!(2)));
    let listed = ask(&server, "GET", "", "").await.1;
    assert_eq!(
        (&listed["elections"][0]["group"], &listed["elections"][0]["coordinator"]),
        (&json!("g"), &json!("a"))
    );
}

#[tokio::test]
async fn a_silent_coordinator_is_replaced_when_its_lease_has_run_out_and_not_before() {
    let server = testing().await.unwrap();
    let watch = Stopwatch::start();
    act(&server, join("a", 2_000)).await;
    let won = tokio::time::timeout(PATIENCE, async {
        loop {
            let seen = watch.elapsed();
            let answer = act(&server, join("b", 30_000)).await;
            if answer["isCoordinator"] == true {
                return answer;
            }
            assert!(seen < Duration::from_secs(20), "{answer}");
            baton_env::sleep(Duration::from_millis(50)).await;
        }
    });
    assert_eq!(won.await.unwrap()["token"], 2);
    assert!(watch.elapsed() >= Duration::from_secs(2));
    let late = act(&server, join("a", 2_000)).await;
    assert_eq!((&late["isCoordinator"], &late["coordinator"]), (&json!(false), &json!("b")));
}

#[tokio::test]
async fn a_forced_change_waits_for_the_coordinator_and_ends_with_the_one_desired() {
    let server = testing().await.unwrap();
    for worker in ["a", "b", "c"] {
        act(&server, join(worker, 30_000)).await;
    }
    act(&server, json!({"action": "force", "desiredCoordinator": "c"})).await;
    // Nobody is appointed: the coordinator is asked, and goes on until it resigns.
    assert_eq!(act(&server, join("c", 30_000)).await["isCoordinator"], false);
    let asked = act(&server, join("a", 30_000)).await;
    assert_eq!((&asked["isCoordinator"], &asked["stepDown"]), (&json!(true), &json!(true)));
    act(&server, json!({"action": "resign", "workerId": "a"})).await;
    assert_eq!(act(&server, join("b", 30_000)).await["isCoordinator"], false);
    assert_eq!(act(&server, join("c", 30_000)).await["isCoordinator"], true);
}

#[tokio::test]
async fn a_worker_that_does_not_take_part_is_not_made_the_next() {
    let server = testing().await.unwrap();
    assert_eq!(ask(&server, "POST", "/g", r#"{"action":"force"}"#).await.0, 404);
    for worker in ["a", "b"] {
        act(&server, join(worker, 30_000)).await;
    }
    let force = r#"{"action":"force","desiredCoordinator":"x"}"#;
    let (status, answer) = ask(&server, "POST", "/g", force).await;
    let text = answer["error"].as_str().unwrap();
    assert!(
        status == 400 && text.contains("\"x\" is not known to be alive; the workers alive are a, b"),
        "{answer}"
    );
    assert_eq!(act(&server, join("a", 30_000)).await["stepDown"], false);
    // Nor do the others hold back for it when a coordinator resigns.
    act(&server, json!({"action": "resign", "workerId": "a", "handoverTo": "x"})).await;
    assert_eq!(act(&server, join("b", 30_000)).await["isCoordinator"], true);
}

#[tokio::test]
async fn of_those_that_wait_for_a_free_term_the_first_by_name_gets_it() {
    let server = testing().await.unwrap();
    // There is no cold start over HTTP: a fresh group belongs to the first that asks.
    assert_eq!(act(&server, join("c", 30_000)).await["isCoordinator"], true);
    for worker in ["b", "a"] {
        assert_eq!(act(&server, join(worker, 30_000)).await["isCoordinator"], false);
    }
    act(&server, json!({"action": "resign", "workerId": "c"})).await;
    assert_eq!(act(&server, join("b", 30_000)).await["isCoordinator"], false);
    assert_eq!(act(&server, join("a", 30_000)).await["isCoordinator"], true);
}

#[tokio::test]
async fn a_group_that_nobody_coordinates_can_be_deleted() {
    let server = testing().await.unwrap();
    assert_eq!(ask(&server, "DELETE", "/g", "").await.0, 404);
    act(&server, join("a", 30_000)).await;
    act(&server, join("b", 30_000)).await;
    let (status, answer) = ask(&server, "DELETE", "/g", "").await;
    assert_eq!(
        (status, &answer["error"]),
        (409, &json!("\"a\" coordinates the group: stop its workers first"))
    );
    act(&server, json!({"action": "resign", "workerId": "a"})).await;
    assert_eq!(ask(&server, "DELETE", "/g", "").await, (200, json!({"group": "g", "deleted": true})));
    assert_eq!(ask(&server, "GET", "/g", "").await.0, 404);
    assert_eq!(ask(&server, "GET", "", "").await.1, json!({"elections": []}));
    let anew = act(&server, join("b", 30_000)).await;
    assert_eq!((&anew["isCoordinator"], &anew["token"]), (&json!(true), &json!(1)));
}

#[tokio::test]
async fn a_stream_tells_of_every_step_of_a_cold_start_that_is_over_at_once() {
    let server = testing().await.unwrap();
    // Beside the server, which looks once a second what has been written there.
    let store = std::sync::Arc::new(baton_election::store::RecordStore::new(server.store()));
    let head = "GET /api/v1/elections/g HTTP/1.1\r\nAccept: text/event-stream";
    let mut lines = BufReader::new(send(&server, head, "").await).lines();
    let settings = baton_election::Settings {
        cold_start_observation_window: Duration::from_millis(1),
        cold_start_preparation_delay: Duration::from_millis(1),
        ..baton_election::Settings::fast()
    };
    let worker_id = Some("a".to_owned());
    let options = baton_election::Options { settings, worker_id, ..baton_election::Options::default() };
    // The stream has begun before the worker does.
    while !lines.next_line().await.unwrap().unwrap().contains("text/event-stream") {}
    let elector = baton_election::Elector::start(store, "g", options, ()).await.unwrap();
    let mut steps = Vec::new();
    let told = async {
        while steps.last().is_none_or(|step| step != "ready") {
            let line = lines.next_line().await.unwrap().expect("the stream goes on");
            let data = line.strip_prefix("data: ").and_then(|text| serde_json::from_str::<Value>(text).ok());
            let phase = data.and_then(|data| Some(data.get("phase")?.as_str()?.to_owned()));
            steps.extend(phase);
        }
    };
    tokio::time::timeout(PATIENCE, told).await.unwrap();
    assert_eq!(steps, ["observing", "election", "preparation", "ready"]);
    elector.stop().await;
}

#[tokio::test]
async fn a_watcher_hears_of_a_change_at_once() {
    let server = testing().await.unwrap();
    act(&server, join("a", 30_000)).await;
    let version = ask(&server, "GET", "/g", "").await.1["version"].as_str().unwrap().to_owned();
    let path = format!("/g?wait=50000&after={version}");
    let watch = Stopwatch::start();
    let (seen, _) = tokio::join!(ask(&server, "GET", &path, ""), async {
        act(&server, json!({"action": "resign", "workerId": "a"})).await
    });
    assert_eq!((&seen.1["released"], &seen.1["coordinator"]), (&json!(true), &Value::Null));
    assert!(watch.elapsed() < Duration::from_secs(20), "{:?}", watch.elapsed());
    // Without a change it ends when its time is over.
    let version = seen.1["version"].as_str().unwrap();
    let same = ask(&server, "GET", &format!("/g?wait=100&after={version}"), "").await.1;
    assert_eq!(same["version"], version);
}

#[tokio::test]
async fn events_are_streamed_until_the_server_stops() {
    let server = testing().await.unwrap();
    let head = "GET /api/v1/elections/g HTTP/1.1\r\nAccept: text/event-stream";
    let mut lines = BufReader::new(send(&server, head, "").await).lines();
    let mut next = async |what: &str| {
        let found = async {
            loop {
                let line = lines.next_line().await.unwrap().expect("the stream goes on");
                if line.contains(what) {
                    return line;
                }
            }
        };
        tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("no {what}"))
    };
    next("content-type: text/event-stream").await;
    act(&server, join("a", 30_000)).await;
    next("event: coord:coordinator-elected").await;
    assert!(next("data: ").await.contains("\"epochNumber\":1"));
    act(&server, json!({"action": "resign", "workerId": "a"})).await;
    next("event: coord:coordinator-demoted").await;
    assert!(next("data: ").await.contains("\"reason\":\"released\""));
    tokio::time::timeout(PATIENCE, server.stop()).await.expect("no stream keeps the server").unwrap();
    while let Some(rest) = lines.next_line().await.unwrap() {
        assert_eq!(rest, "");
    }
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_a_reason() {
    let server = testing().await.unwrap();
    for (path, body, reason) in [
        ("/g", "", "the body is not an action"),
        ("/g", r#"{"action":"dance"}"#, "actions are join, heartbeat, resign, force"),
        ("/g", r#"{"action":"join"}"#, "workerId"),
        ("/g", r#"{"action":"join","workerId":"a/b"}"#, "letters, digits"),
        ("/g", r#"{"action":"join","workerId":"a","leaseMs":5}"#, "leaseMs is 5: give 1000"),
        ("/a%2Fb", r#"{"action":"join","workerId":"a"}"#, "letters, digits"),
    ] {
        let (status, answer) = ask(&server, "POST", path, body).await;
        assert!(status == 400 && answer["error"].as_str().unwrap().contains(reason), "{body}: {answer}");
    }
    assert_eq!(ask(&server, "GET", "", "").await.1, json!({"elections": []}));
}
