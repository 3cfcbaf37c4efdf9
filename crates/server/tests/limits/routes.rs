//! Routes that change what others have made: seeks, deletes, replays, settings.

use baton_types::limits;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::bench::Bench;
use crate::{Filling, NAMESPACE};

/// A text as a segment of a path.
fn segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// What no other part of a case calls. Names are at their limit also where they stand in a path.
pub async fn play(server: &Bench, with: Filling) {
    let partition = messages(server, with).await;
    streams(server, with, &partition).await;
    groups(server, with).await;
    records(server, with).await;
    owners(server, with).await;
    jobs(server, with).await;
    schedules(server, with).await;
    system(server, with).await;
    deletes(server, with).await;
}

async fn push(server: &Bench, queue: &str, partition: &str, with: Filling, salt: &str) {
    let id = format!("{salt}{}", with.bytes(200));
    let item =
        json!({"queue": queue, "partition": partition, "transactionId": id, "payload": with.bytes(1000)});
    server.call("POST", "/api/v1/push", &json!({"items": [item]})).await;
}

async fn messages(server: &Bench, with: Filling) -> Value {
    let (queue, partition) = (with.name(20), with.name(21));
    let labels = json!({"queue": queue, "namespace": with.name(22), "task": with.name(23), "options": {}});
    server.call("POST", "/api/v1/configure", &labels).await;
    for salt in ["a", "b", "c", "d"] {
        push(server, &queue, &partition, with, salt).await;
    }
    let of_partition = format!(
        "/api/v1/pop/queue/{}/partition/{}?batch=1&consumerGroup={}",
        segment(&queue),
        segment(&partition),
        segment(&with.name(24))
    );
    let popped = server.call("GET", &of_partition, &Value::Null).await;
    let extend = format!("/api/v1/lease/{}/extend", text(&popped["messages"][0]["leaseId"]));
    server.call("POST", &extend, &json!({"seconds": 600})).await;
    let labelled =
        format!("/api/v1/pop?namespace={}&task={}&batch=2", segment(&with.name(22)), segment(&with.name(23)));
    let popped = server.call("GET", &labelled, &Value::Null).await;
    let place = |number: usize| {
        let message = &popped["messages"][number];
        let (partition, id) = (text(&message["partitionId"]), text(&message["transactionId"]));
        format!("/api/v1/messages/{partition}/{}", segment(id))
    };
    let error = with.bytes(limits::ERROR_TEXT_BYTES_MAX);
    server.call("POST", &format!("{}/dlq", place(0)), &json!({"error": error})).await;
    server.call("POST", &format!("{}/retry", place(0)), &json!({})).await;
    let letters =
        json!({"queue": queue, "partition": partition, "consumerGroup": with.name(24), "error": error});
    server.call("POST", "/api/v1/dlq:replay", &json!({"filter": letters, "limit": 1000})).await;
    server.call("POST", "/api/v1/dlq:purge", &json!({"filter": letters, "limit": 10_000})).await;
    server.call("DELETE", &place(1), &Value::Null).await;
    let entry = json!({"queue": queue, "partition": partition, "offset": 0, "timestamp": 0});
    server.call("POST", "/api/v1/fetch", &json!({"entries": [entry], "maxWaitMs": 0})).await;
    server.call("POST", "/api/v1/fetch/offsets", &json!({"entries": [entry]})).await;
    server.call("POST", "/api/v1/partitions/changed", &json!({"entries": [entry]})).await;
    popped["messages"][0]["partitionId"].clone()
}

async fn groups(server: &Bench, with: Filling) {
    let (queue, partition, group) = (with.name(20), with.name(21), with.name(24));
    let of_group = format!("/api/v1/consumer-groups/{}", segment(&group));
    let moment =
        json!({"subscriptionTimestamp": "2026-01-01T00:00:00Z", "timestamp": "2026-01-01T00:00:00Z"});
    server.call("POST", &format!("{of_group}/subscription"), &moment).await;
    let of_queue = format!("{of_group}/queues/{}", segment(&queue));
    server.call("POST", &format!("{of_queue}/seek"), &moment).await;
    let seek = format!("{of_queue}/partitions/{}/seek", segment(&partition));
    server.call("POST", &seek, &json!({"toEnd": true})).await;
    server.call("DELETE", &of_queue, &Value::Null).await;
    server.call("DELETE", &of_group, &Value::Null).await;
}

async fn records(server: &Bench, with: Filling) {
    let key = format!("5{}", with.bytes(limits::KEY_BYTES_MAX - 4)).replace('/', "-");
    let record = format!("/api/v1/kv/{}/{}", NAMESPACE, segment(&key));
    let value = json!({"value": with.json(limits::KV_VALUE_BYTES_MAX), "ttlSeconds": 1});
    server.call("PUT", &record, &value).await;
    server.call("DELETE", &record, &json!({})).await;
    let queue = with.name(26);
    let timer = json!({"op": "schedule", "queue": queue, "timerKey": key, "delayMs": 600_000, "payload": with.payload(1000)});
    server.call("POST", "/api/v1/timers", &json!({"operations": [timer]})).await;
    server
        .call("DELETE", &format!("/api/v1/timers/{}/{}", segment(&queue), segment(&key)), &Value::Null)
        .await;
}

async fn streams(server: &Bench, with: Filling, partition: &Value) {
    let query = json!({
        "name": with.name(27), "source_queue": with.name(20), "sink_queue": with.name(28), "config_hash": with.name(29),
    });
    let registered = server.call("POST", "/streams/v1/queries", &query).await;
    let keys: Vec<_> = (0..10).map(|salt| format!("{salt}{}", with.bytes(1020))).collect();
    let state = json!({"query_id": registered["query_id"], "partition_id": partition, "keys": keys});
    server.call("POST", "/streams/v1/state/get", &state).await;
}

/// Elections and shards.
async fn owners(server: &Bench, with: Filling) {
    let short = |salt: usize| format!("{salt}{}", with.bytes(120)).replace(['\u{1}', '"', 'ä'], "x");
    let process = format!("{}.1", short(1));
    let record = json!({"process_id": process, "beat": 1, "lease_ms": 1000});
    let kept = json!({"action": "swap", "version": null, "record": record});
    let of_process = format!("/api/v1/election-processes/{}", segment(&process));
    server.call("POST", &of_process, &kept).await;
    server.call("POST", &of_process, &json!({"action": "remove"})).await;
    let group = format!("/api/v1/elections/{}", segment(&short(2)));
    server
        .call("POST", &group, &json!({"action": "join", "workerId": short(3), "incarnation": short(4)}))
        .await;
    server
        .call("POST", &group, &json!({"action": "resign", "workerId": short(3), "incarnation": short(4)}))
        .await;
    server.call("DELETE", &group, &Value::Null).await;
    let service = format!("/api/v1/shards/{}", segment(&short(5)));
    let worker = json!({"action": "register", "workerId": short(6), "maxShardCount": 10, "weight": 1});
    server.call("POST", &service, &worker).await;
    server.call("POST", &service, &json!({"action": "release", "workerId": short(6)})).await;
    server.call("DELETE", &service, &Value::Null).await;
}

async fn jobs(server: &Bench, with: Filling) {
    let queue = with.name(30);
    let of_queue = format!("/api/v1/job-queues/{}", segment(&queue));
    let limits = json!({"concurrency": 100_000, "rateLimit": {"count": 1000, "perMs": 1}, "weight": 1000, "dlq": true});
    server.call("PUT", &of_queue, &limits).await;
    server.call("POST", &format!("{of_queue}/pause"), &json!({})).await;
    server.call("POST", &format!("{of_queue}/resume"), &json!({})).await;
    let args = with.json(baton_jobs::limits::ARGS_BYTES_MAX);
    let job = |salt: usize| {
        json!({
            "queue": queue, "jobType": with.name(salt), "args": args, "concurrencyKey": with.name(salt),
            "uniqueKey": with.name(salt), "correlationId": with.name(31),
            "tags": (0..16).map(|tag| with.name(tag)).collect::<Vec<_>>(),
        })
    };
    let keyed = format!("/api/v1/jobs?idempotencyKey={}", segment(&with.name(32)));
    server.call("POST", &keyed, &job(0)).await;
    server.call("POST", "/api/v1/jobs", &job(1)).await;
    let listed = server.call("GET", &format!("/api/v1/jobs?queue={}", segment(&queue)), &Value::Null).await;
    for job in listed["jobs"].as_array().into_iter().flatten() {
        let job = format!("/api/v1/jobs/{}", text(&job["jobId"]));
        let cancel = json!({"reason": with.bytes(1000), "force": true});
        server.call("POST", &format!("{job}/cancel"), &cancel).await;
        server.call("POST", &format!("{job}/retry"), &json!({"resetAttempts": true, "args": args})).await;
    }
    let filter =
        json!({"queue": queue, "tag": with.name(0), "correlationId": with.name(31), "q": with.bytes(255)});
    for filter in [filter, json!({"queue": queue})] {
        server.call("POST", "/api/v1/jobs:bulk", &json!({"action": "cancel", "filter": filter})).await;
        server.call("POST", "/api/v1/jobs:bulk", &json!({"action": "retry", "filter": filter})).await;
    }
    dead_letters(server, with).await;
}

async fn dead_letters(server: &Bench, with: Filling) {
    let job = json!({"queue": "dead", "jobType": "t", "args": with.json(1000), "retry": {"maxRetries": 0}});
    server.call("POST", "/api/v1/jobs:batch", &json!({"jobs": [job, job]})).await;
    let worker = server.call("POST", "/api/v1/workers", &json!({"name": "w", "queues": ["dead"]})).await;
    let worker = format!("/api/v1/workers/{}", text(&worker["workerId"]));
    let leased = server.call("POST", &format!("{worker}/lease"), &json!({"max": 2, "waitMs": 2000})).await;
    let leases = leased["leases"].as_array().cloned().unwrap_or_default();
    assert_eq!(leases.len(), 2, "{leased}");
    let error = json!({"type": with.bytes(255), "message": with.bytes(8 << 10)});
    let failed = |lease: &Value| json!({"jobId": lease["jobId"], "fence": lease["fence"], "outcome": "failed", "error": error});
    let report: Vec<_> = leases.iter().map(failed).collect();
    server.call("POST", "/api/v1/executions:report", &json!({"items": report})).await;
    let letter = |number: usize| format!("/api/v1/dead-letters/{}", text(&leases[number]["jobId"]));
    server.call("DELETE", &letter(1), &Value::Null).await;
    server.call("POST", &format!("{}/replay", letter(0)), &json!({})).await;
    let filter = json!({"queue": "dead", "tag": with.name(0), "q": with.bytes(255)});
    for filter in [filter, json!({"queue": "dead"})] {
        server.call("POST", "/api/v1/dead-letters:replay", &json!({"filter": filter, "limit": 10})).await;
    }
    server.call("POST", &format!("{worker}/drain"), &json!({})).await;
    server.call("DELETE", &worker, &Value::Null).await;
    // What comes again is not in the next case's way.
    server.call("POST", "/api/v1/jobs:bulk", &json!({"action": "cancel", "filter": {"queue": "dead"}})).await;
}

async fn schedules(server: &Bench, with: Filling) {
    let id = with.name(34);
    let schedule = format!("/api/v1/schedules/{}", segment(&id));
    let plain = "/api/v1/schedules/plain".to_owned();
    let job = json!({"queue": with.name(30), "jobType": with.name(35), "args": with.json(256 << 10)});
    let every = json!({"kind": "interval", "everyMs": 60_000, "job": job});
    for schedule in [schedule, plain] {
        server.call("PUT", &schedule, &every).await;
        server.call("POST", &format!("{schedule}/pause"), &json!({})).await;
        server.call("POST", &format!("{schedule}/resume"), &json!({})).await;
        let past = json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:05:00Z", "max": 5});
        server.call("POST", &format!("{schedule}/backfill"), &past).await;
        server.call("DELETE", &schedule, &Value::Null).await;
    }
}

async fn system(server: &Bench, with: Filling) {
    server.call("POST", "/internal/api/notify", &json!({"queue": with.name(20)})).await;
    server.call("POST", "/api/v1/stats/refresh", &json!({})).await;
    for enabled in [true, false] {
        let mode = json!({"enabled": enabled});
        server.call("POST", "/api/v1/system/maintenance/pop", &mode).await;
        server.call("POST", "/api/v1/system/maintenance", &mode).await;
        push(server, &with.name(20), &with.name(21), with, "spooled").await;
    }
    let nodes = server.call("GET", "/api/v1/nodes", &Value::Null).await;
    for node in nodes["nodes"].as_array().into_iter().flatten() {
        let drain = format!("/api/v1/nodes/{}/drain", segment(text(&node["nodeId"])));
        for mode in ["on", "off"] {
            server.call("POST", &drain, &json!({"mode": mode})).await;
        }
    }
    let cluster = server.call("GET", "/api/v1/cluster", &Value::Null).await;
    let drain = format!("/api/v1/cluster/{}/drain", segment(text(&cluster["server_id"])));
    for mode in ["on", "off"] {
        server.call("POST", &drain, &json!({"mode": mode})).await;
    }
}

async fn deletes(server: &Bench, with: Filling) {
    let (queue, partition) = (segment(&with.name(20)), segment(&with.name(21)));
    server.call("DELETE", &format!("/api/v1/queues/{queue}/clear?partition={partition}"), &Value::Null).await;
    server.call("DELETE", &format!("/api/v1/queues/{queue}/clear"), &Value::Null).await;
    server.call("DELETE", &format!("/api/v1/resources/queues/{queue}"), &Value::Null).await;
}
