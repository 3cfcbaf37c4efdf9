//! No request makes a decision fail after its first write, at whatever limit and however JSON escapes its texts.
//!
//! On both stores. The routes that write are taken from the server's own description: one that no case calls with success
//! fails the test. Start at [`bench::Bench`].

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod bench;
mod routes;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use baton_types::limits;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use bench::Bench;

/// Texts of all kinds: JSON writes a control character with six bytes, a quote with two, and others as they are.
const LETTERS: [&str; 4] = ["x", "\"", "\u{1}", "ä"];

/// A namespace of records at its limit: it takes no other letters.
const NAMESPACE: &str = "a234567890123456789012345678901234567890123456789012345678901234";

/// How the texts and lists of a case are filled.
#[derive(Clone, Copy, Debug)]
struct Filling {
    letter: &'static str,
    /// Above its limit by so much, or below.
    off: isize,
}

impl Filling {
    fn bytes(self, max: usize) -> String {
        self.letter.repeat(max.saturating_add_signed(self.off) / self.letter.len())
    }

    fn name(self, salt: usize) -> String {
        let salt = format!("{salt}-");
        let mut text = self.bytes(limits::NAME_BYTES_MAX);
        let keep = (0..=text.len().saturating_sub(salt.len())).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(keep.unwrap_or(0));
        salt + &text
    }

    /// A text that has so many bytes as a JSON string.
    fn json(self, max: usize) -> String {
        let per_letter = serde_json::to_string(self.letter).unwrap().len() - 2;
        self.letter.repeat((max - 2).saturating_add_signed(self.off) / per_letter)
    }

    /// The same JSON string as base64.
    fn payload(self, max: usize) -> String {
        STANDARD.encode(serde_json::to_string(&self.json(max)).unwrap())
    }
}

/// Everything that writes, with texts and lists at their limits.
async fn play(server: &Bench, with: Filling) {
    let names: Vec<String> = (0..limits::KV_KEYS_MAX).map(|salt| with.name(salt)).collect();
    let (queue, partition) = (&names[0], &names[1]);
    let txn = with.bytes(limits::TRANSACTION_ID_BYTES_MAX);
    let key = |salt: usize| format!("{salt}{}", with.bytes(limits::KEY_BYTES_MAX - 4));
    let options =
        json!({"namespace": names[2], "task": names[3], "queue": queue, "options": {"leaseTime": 600}});
    server.call("POST", "/api/v1/configure", &options).await;

    let timer = |salt: usize, max: usize| {
        json!({
            "op": "schedule", "queue": queue, "timerKey": key(salt), "partition": partition, "txn": txn,
            "delayMs": 0, "payload": with.payload(max),
        })
    };
    for max in [limits::TIMER_PAYLOAD_BYTES_MAX, limits::TIMER_PAYLOAD_BYTES_MAX / 2, 1000] {
        let operations = json!({"operations": [timer(1, 100), timer(2, max), timer(3, max)]});
        server.call("POST", "/api/v1/timers", &operations).await;
    }

    let item = |payload: &str| json!({"queue": queue, "partition": partition, "transactionId": txn, "payload": payload});
    let pushed = json!({"items": [item(&with.bytes(1 << 20)), {"queue": "q", "payload": 1}]});
    server.call("POST", "/api/v1/push", &pushed).await;
    server
        .call(
            "POST",
            "/api/v1/push",
            &json!({"items": [{"queue": "plain", "payload": 1, "transactionId": txn}]}),
        )
        .await;
    let popped = server.call("GET", "/api/v1/pop/queue/plain?batch=10", &json!(null)).await;
    let (message, group) = (popped["messages"][0].clone(), with.name(9));
    let place = json!({"transactionId": message["transactionId"], "partitionId": message["partitionId"]});
    let trace = json!({
        "transactionId": message["transactionId"], "partitionId": message["partitionId"], "consumerGroup": group,
        "eventType": with.bytes(255), "traceNames": names[..16], "data": with.json(16 << 10),
    });
    server.call("POST", "/api/v1/traces", &trace).await;
    let ack = |status: &str| {
        json!({
            "transactionId": place["transactionId"], "partitionId": place["partitionId"],
            "leaseId": message["leaseId"], "status": status, "error": with.bytes(limits::ERROR_TEXT_BYTES_MAX),
        })
    };
    server.call("POST", "/api/v1/ack", &ack("dlq")).await;
    server
        .call("POST", "/api/v1/ack/batch", &json!({"acknowledgments": [ack("failed"), ack("completed")]}))
        .await;

    let value = with.json(limits::KV_VALUE_BYTES_MAX);
    let put = |salt: usize| json!({"op": "put", "ns": NAMESPACE, "key": key(salt), "value": value, "ttlSeconds": 1});
    let records: Vec<_> = (0..limits::TRANSACTION_KV_OPERATIONS_MAX).map(put).collect();
    server.call("POST", "/api/v1/kv", &json!({"operations": records})).await;
    let lock = |salt: usize| {
        let name = format!("{salt}{}", with.bytes(limits::LOCK_NAME_BYTES_MAX - 4));
        json!({"op": "acquire", "name": name, "owner": with.bytes(limits::LOCK_NAME_BYTES_MAX), "ttlSeconds": 5})
    };
    let locks: Vec<_> = (0..limits::LOCK_OPERATIONS_MAX).map(lock).collect();
    server.call("POST", "/api/v1/locks", &json!({"operations": locks})).await;
    let transaction = json!({
        "operations": [{"type": "push", "items": [item("t")]}], "kv": records,
        "timers": [timer(4, limits::TIMER_PAYLOAD_BYTES_MAX), timer(5, limits::TIMER_PAYLOAD_BYTES_MAX)],
        "jobs": [{"queue": names[5], "jobType": names[6], "args": with.json(1 << 20)}],
    });
    server.call("POST", "/api/v1/transaction", &transaction).await;

    let query =
        json!({"name": names[0], "source_queue": names[1], "sink_queue": names[2], "config_hash": names[3]});
    let registered = server.call("POST", "/streams/v1/queries", &query).await;
    let change = |salt: usize| json!({"type": "upsert", "key": format!("{salt}{}", with.bytes(1020)), "value": with.bytes((1 << 20) - 10)});
    let cycle = json!({
        "query_id": registered["query_id"], "partition_id": message["partitionId"], "consumer_group": group,
        "state_ops": [change(1), {"type": "upsert", "key": "k", "value": 1}, change(2)], "push_items": [item("c")],
    });
    server.call("POST", "/streams/v1/cycle", &cycle).await;

    for action in ["join", "heartbeat", "resign", "force"] {
        let body = json!({
            "action": action, "workerId": "w", "incarnation": with.bytes(255), "desiredCoordinator": with.name(1),
        });
        server.call("POST", "/api/v1/elections/g", &body).await;
    }
    for action in ["register", "heartbeat", "drain", "undrain", "release"] {
        let body = json!({"action": action, "workerId": with.name(1), "maxShardCount": 1000, "weight": 1000});
        server.call("POST", "/api/v1/shards/s", &body).await;
    }
    jobs(server, with).await;
    routes::play(server, with).await;
}

async fn jobs(server: &Bench, with: Filling) {
    let queue = format!("j{}", LETTERS.iter().position(|letter| *letter == with.letter).unwrap());
    let error = json!({"type": with.bytes(255), "message": with.bytes(8 << 10)});
    let worker = json!({
        "name": with.name(0), "queues": [queue], "jobTypes": [], "maxConcurrency": 1000, "version": with.bytes(255),
    });
    server.call("POST", "/api/v1/workers", &worker).await;
    let many = json!({
        "name": "w", "queues": [queue], "version": "1",
        "jobTypes": (0..256).map(|salt| with.name(salt)).collect::<Vec<_>>(),
        "labels": (0..32).map(|salt| (with.name(salt), json!(with.name(salt)))).collect::<serde_json::Map<_, _>>(),
    });
    server.call("POST", "/api/v1/workers", &many).await;
    let worker = server.call("POST", "/api/v1/workers", &json!({"name": "w", "queues": [queue]})).await;
    let id = worker["workerId"].as_str().unwrap().to_owned();
    let job = |salt: usize| {
        json!({
            "queue": queue, "jobType": with.name(salt), "args": salt, "concurrencyKey": with.name(salt),
            "concurrencyLimit": 10, "correlationId": with.name(salt),
            "tags": (0..16).map(|tag| with.name(tag)).collect::<Vec<_>>(),
        })
    };
    let plain = json!({"jobs": [{"queue": queue, "jobType": "t", "priority": "critical"}]});
    let enqueued = server.call("POST", "/api/v1/jobs:batch", &plain).await;
    assert!(!enqueued.is_null());
    let batch: Vec<_> = (0..990).map(job).collect();
    server.call("POST", "/api/v1/jobs:batch", &json!({"jobs": batch})).await;
    let leased =
        server.call("POST", &format!("/api/v1/workers/{id}/lease"), &json!({"max": 100, "waitMs": 0})).await;
    let jobs = leased["leases"].as_array().cloned().unwrap_or_default();
    assert!(!jobs.is_empty(), "{leased}");
    let running: Vec<_> = jobs
        .iter()
        .map(|job| {
            json!({"jobId": job["jobId"], "fence": job["fence"],
            "progress": {"percent": 5, "message": with.bytes(1024)}})
        })
        .collect();
    server.call("POST", &format!("/api/v1/workers/{id}/heartbeat"), &json!({"running": running})).await;
    let execution = jobs[0]["executionId"].as_str().unwrap();
    let line = json!({"level": "info", "message": with.bytes(16 << 10), "at": with.bytes(64)});
    let lines = json!({"firstSeq": 1, "lines": vec![line; 500]});
    let logged = server.call("POST", &format!("/api/v1/executions/{execution}/logs"), &lines).await;
    assert_eq!(logged["nextSeq"], 501, "{logged}");
    let (job, mut after, mut read) = (jobs[0]["jobId"].as_str().unwrap(), json!(0), 0);
    while read < 500 {
        let path = format!("/api/v1/jobs/{job}/logs?limit=1000&after={after}");
        let page = server.call("GET", &path, &json!(null)).await;
        let lines = page["lines"].as_array().unwrap();
        assert!(!lines.is_empty(), "after {after} of 500 lines none is kept");
        read += lines.len();
        after = page["after"].clone();
    }
    let report: Vec<_> = jobs
        .iter()
        .map(|job| {
            json!({"jobId": job["jobId"], "fence": job["fence"], "outcome": "failed", "error": error,
                "result": with.bytes((256 << 10) - 2)})
        })
        .collect();
    server.call("POST", "/api/v1/executions:report", &json!({"items": report})).await;
    let args = with.bytes((256 << 10) - 2);
    let schedule = json!({"kind": "interval", "everyMs": 60_000, "job": {"queue": queue, "jobType": with.name(1), "args": args,
        "tags": (0..16).map(|tag| with.name(tag)).collect::<Vec<_>>()}});
    server.call("PUT", "/api/v1/schedules/s", &schedule).await;
    server.call("POST", "/api/v1/schedules/s/trigger", &json!({})).await;
}

fn filling() -> impl Strategy<Value = Filling> {
    (0..LETTERS.len(), prop_oneof![2 => Just(0isize), 1 => -64isize..=2])
        .prop_map(|(letter, off)| Filling { letter: LETTERS[letter], off })
}

/// Plays every letter at its limits, then `cases` as they come.
async fn check(bench: Bench, cases: u32) {
    for letter in LETTERS {
        play(&bench, Filling { letter, off: 0 }).await;
    }
    let runtime = tokio::runtime::Handle::current();
    let (bench, played) = (std::sync::Arc::new(bench), tokio::task::spawn_blocking);
    let asked = bench.clone();
    let checked = played(move || {
        let config = Config { cases, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
        TestRunner::new(config).run(&filling(), |with| {
            runtime.block_on(play(&asked, with));
            Ok(())
        })
    });
    checked.await.unwrap().unwrap();
    // A timer at its limits becomes a message at its limits.
    bench.check_store("at the end");
    bench.check_routes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_makes_a_decision_fail_after_its_first_write() {
    check(Bench::embedded().await, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_makes_a_decision_fail_after_its_first_write_on_postgres() {
    check(Bench::postgres().await, 1).await;
}
