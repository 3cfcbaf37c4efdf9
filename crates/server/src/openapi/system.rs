//! Elections, streams, traces, maintenance and what servers tell each other, described.

use http::StatusCode;
use serde_json::{Value, json};

use super::describe::{Operation, delete, get, page, post, text, whole};
use super::shape::{shape, word};

/// The longest wait for news of an election, in milliseconds.
const ELECTION_WAIT_MS_MAX: u64 = 60_000;

pub(super) fn elections() -> Vec<Operation> {
    let (group, process) = ("/api/v1/elections/:group", "/api/v1/election-processes/:process");
    vec![
        get("/api/v1/elections").answers(
            200,
            "The groups.",
            shape(json!({"elections": [{
                "group": "text", "coordinator": "text?", "epochNumber": "whole", "leaseMs": "whole",
                "stepDown": "flag", "released": "flag",
            }]})),
        ),
        get(group)
            .query([
                whole("wait", 0, ELECTION_WAIT_MS_MAX, "Milliseconds to wait for news at most."),
                text("after", "The `version` that is known; anything else is news."),
            ])
            .answers(
                200,
                "The group; events of it when the caller accepts those.",
                shape(json!({
                    "group": "text", "version": "any", "coordinator": "text?", "epochNumber": "whole",
                    "leaseMs": "whole", "stepDown": "flag", "released": "flag", "recordVersion": "text?",
                    "record": "object?", "workers": ["object"],
                })),
            )
            .answers_with(
                200,
                "The group; events of it when the caller accepts those.",
                "text/event-stream",
                word("text"),
            ),
        post(group).body(action()).answers(200, "What it came to.", word("object")),
        delete(group).answers(200, "It is gone.", shape(json!({"group": "text", "deleted": true}))),
        get("/api/v1/election-processes").answers(
            200,
            "The processes.",
            shape(json!({"processes": [{
                "process": "text", "version": "text", "workerId": "text", "incarnation": "text", "seq": "whole",
                "leaseMs": "whole", "renewedAt": "whole", "epoch": "whole", "fenced": "flag",
            }]})),
        ),
        get(process).answers(
            200,
            "Its lease, with nothing in it when there is none.",
            shape(json!({"process": "text", "version": "text?", "record": "object?"})),
        ),
        post(process)
            .body(json!({"oneOf": [
                one_of(&["swap"], json!({"version?": "text?", "record": process_record()})),
                one_of(&["remove"], json!({})),
            ]}))
            .answers(200, "What it came to.", word("object")),
    ]
}

/// What a body is that asks for one of these actions.
fn one_of(action: &[&str], members: Value) -> Value {
    let mut schema = shape(members);
    schema["properties"]["action"] = json!({"enum": action});
    match schema["required"].as_array_mut() {
        Some(required) => required.push("action".into()),
        None => schema["required"] = json!(["action"]),
    }
    schema
}

fn action() -> Value {
    let of = one_of;
    json!({"oneOf": [
        of(&["join", "heartbeat"], json!({"workerId": "text", "incarnation?": "text?", "leaseMs?": "whole?"})),
        of(&["resign"], json!({"workerId": "text", "incarnation?": "text?", "handoverTo?": "text?"})),
        of(&["force"], json!({"desiredCoordinator?": "text?"})),
        of(&["swap"], json!({"version?": "text?", "record": epoch_record()})),
        of(&["beat"], json!({"record": worker_record()})),
        of(&["leave"], json!({"workerId": "text"})),
    ]})
}

/// Who coordinates a group, as a participant that decides for itself writes it.
fn epoch_record() -> Value {
    json!({
        "epochNumber": "whole", "coordinatorId": "text", "incarnation": "text", "nonce": "text", "leaseSeq": "whole",
        "epoch": "whole", "epochStart": "whole", "released?": "flag", "stepDown?": "flag", "handoverTo?": "text?",
        "electedBy": "text", "durationMs": "whole", "leaseMs": "whole", "process?": "text?",
    })
}

/// The heartbeat of such a participant.
fn worker_record() -> Value {
    let phase = "observing|election|preparation|ready";
    json!({
        "workerId": "text", "lastHeartbeat": "whole", "epoch?": "whole?", "isCoordinator?": "flag?",
        "incarnation?": "text", "seq?": "whole", "epochNumber?": "whole", "phase?": phase,
        "phases?": [{"phase": phase, "at": "whole", "duration": "whole"}],
    })
}

/// The lease of a process that takes part in many groups.
fn process_record() -> Value {
    json!({
        "workerId": "text", "incarnation": "text", "seq": "whole", "leaseMs": "whole", "renewedAt": "whole",
        "epoch": "whole", "fenced?": "flag",
    })
}

pub(super) fn streams() -> Vec<Operation> {
    vec![
        post("/streams/v1/queries")
            .body(shape(json!({
                "name": "name", "source_queue": "name", "config_hash": "name", "sink_queue?": "name?",
                "reset?": "flag",
            })))
            .answers(200, "The query.", shape(json!({
                "success": true, "query_id": "text", "name": "text", "config_hash": "text", "fresh": "flag",
                "reset": "flag",
            })))
            .answers(409, "It is registered with another configuration.", shape(json!({
                "success": false, "query_id": "text", "name": "text", "error": "text", "code": "text",
            }))),
        post("/streams/v1/cycle")
            .body(shape(json!({
                "query_id": "text", "partition_id": "text", "consumer_group?": "name?",
                "state_ops?": [{"type": "upsert|delete", "key": "text", "value?": "any"}],
                "push_items?": ["@Push"],
                "ack?": {
                    "transactionId": "text", "leaseId?": "text?", "status?": "completed|failed|dlq",
                    "error?": "text?",
                },
                "release_lease?": "flag",
            })))
            .answers(200, "All was done, or, with `success` false and an `error`, nothing.", shape(json!({
                "success": "flag", "query_id": "text", "partition_id": "text", "queueName": "text?",
                "state_ops_applied": "whole", "push_results": ["object"], "ack_result": "object?",
                "error?": "text",
            }))),
        post("/streams/v1/state/get")
            .body(shape(json!({
                "query_id": "text", "partition_id": "text", "keys?": ["text"], "key_prefix?": "text?",
                "ripe_at_or_before?": "number?",
            })))
            .answers(200, "The state.", shape(json!({
                "success": true, "rows": [{"key": "text", "value": "any", "updated_at": "time"}],
            }))),
    ]
}

pub(super) fn traces() -> Vec<Operation> {
    vec![
        post("/api/v1/traces")
            .body(shape(json!({
                "transactionId": "text", "partitionId": "text", "consumerGroup?": "name?", "eventType?": "name?",
                "traceNames?": ["name"], "data": "any",
            })))
            .answers(201, "It is kept.", shape(json!({"success": true, "traceId": "uuid"})))
            .answers_error(StatusCode::NOT_FOUND),
        get("/api/v1/traces/names").query(page(50)).answers(200, "A page of names.", shape(json!({
            "trace_names": [{
                "trace_name": "text", "trace_count": "whole", "message_count": "whole", "last_seen": "time",
            }],
            "total": "whole", "pagination": "@Page",
        }))),
        get("/api/v1/traces/by-name/:name").query(page(100)).answers(200, "A page of traces.", shape(json!({
            "traces": ["@Trace"], "total": "whole", "pagination": "@Page",
        }))),
        get("/api/v1/traces/:partition/:transaction").answers(
            200,
            "The traces; none when there is no such message.",
            shape(json!({"traces": ["@Trace"]})),
        ),
    ]
}

fn nodes() -> Value {
    json!({
        "leader": "object?",
        "nodes": [{
            "nodeId": "text", "name": "text", "state": "active|draining|dead", "isLeader": "flag", "isOwn": "flag",
            "ownedJobs": "whole", "load": "whole", "slices": "whole", "offered": "whole", "startedAt": "time",
            "silentMs": "whole", "version": "text",
        }],
        "orphanedSlices": "whole",
    })
}

pub(super) fn cluster() -> Vec<Operation> {
    vec![
        get("/api/v1/nodes").answers(200, "The servers, as the store knows them.", shape(nodes())),
        post("/api/v1/nodes/:node/drain")
            .body_or_none(shape(json!({"mode?": "on|off"})))
            .answers_error(StatusCode::CONFLICT)
            .answers(200, "It was asked.", shape(json!({"nodeId": "text", "desiredState": "active|draining"}))),
        get("/api/v1/events")
            .query([whole("after", 0, u64::MAX, "Only events after this id.")])
            .answers(200, "Events, oldest first.", shape(json!({"events": ["object"]})))
            .answers_with(200, "Events, oldest first.", "text/event-stream", word("text")),
        get("/api/v1/cluster").answers(200, "The servers.", shape(json!({
            "server_id": "text", "gossip": "flag", "coordinator": "flag", "balanced": "flag",
            "imbalance_score": "number", "leader": nodes()["leader"], "nodes": nodes()["nodes"],
            "orphanedSlices": "whole", "peers_configured": "whole", "peers_heard": "whole",
            "peers": [{
                "peer": "text", "server_id": "text?", "heard": "flag", "silent_ms": "whole?", "reason": "text?",
            }],
            "duplicate_node_id": "text?", "draining": "flag",
            "servers": [{
                "server_id": "text", "url": "text", "load_score": "number", "healthy": "flag", "own?": "flag",
                "alive?": "flag", "draining?": "flag", "incarnation?": "whole", "silent_ms?": "whole",
                "load?": {"outstanding": "number", "poll_intentions": "number", "cpu": "number"},
                "circuit?": {"state": "closed|open|half_open", "failures": "whole", "open_for_ms": "whole"},
                "forwarded?": "whole", "forward_failures?": "whole", "waiting_groups?": "whole",
                "affinities?": "whole",
            }],
            "affinities": {
                "count": "whole", "busiest": [{"key": "text", "server_id": "text", "requests": "whole"}],
            },
        }))),
        post("/api/v1/cluster/:server/drain")
            .body_or_none(shape(json!({"mode?": "on|off"})))
            .answers(200, "It was asked.", shape(json!({"server_id": "text", "draining": "flag"}))),
        get("/api/v1/cluster/balance").answers(200, "How the work is spread.", shape(json!({
            "balanced": "flag", "imbalance_score": "number",
            "servers": [{"server_id": "text", "url": "text", "load_score": "number", "healthy": "flag"}],
        }))),
    ]
}

pub(super) fn maintenance() -> Vec<Operation> {
    let switch = || shape(json!({"enabled": "flag"}));
    let shared = |path| {
        get(path).answers(200, "What it shares.", shape(json!({
            "enabled": "flag", "running": "flag", "server_id": "text", "transport": {"*": "whole"},
            "queue_config_cache": {"*": "number"}, "server_health": {"*": "whole"}, "maintenance_mode": "flag",
            "pop_maintenance_mode": "flag",
        })))
    };
    vec![
        get("/api/v1/system/maintenance").answers(200, "The modes.", shape(json!({
            "maintenanceMode": "flag", "popMaintenanceMode": "flag", "draining": "flag",
            "bufferedMessages": "whole", "bufferHealthy": "flag", "bufferStats": "object",
        }))),
        post("/api/v1/system/maintenance").body(switch()).answers(200, "The mode.", shape(json!({
            "maintenanceMode": "flag", "bufferedMessages": "whole", "bufferHealthy": "flag", "message": "text",
        }))),
        get("/api/v1/system/maintenance/pop").answers(200, "The mode.", shape(json!({
            "popMaintenanceMode": "flag", "message": "text",
        }))),
        post("/api/v1/system/maintenance/pop").body(switch()).answers(200, "The mode.", shape(json!({
            "popMaintenanceMode": "flag", "message": "text",
        }))),
        get("/api/v1/status/buffers").answers(200, "What is spooled.", shape(json!({
            "pending": "whole", "failed": "whole", "dbHealthy": "flag", "worker": "whole",
        }))),
        shared("/api/v1/system/shared-state"),
        shared("/internal/api/shared-state/stats"),
        shared("/internal/api/inter-instance/stats"),
        post("/internal/api/notify")
            .body(shape(json!({"queue": "text"})))
            .answers(200, "They look.", shape(json!({"status": "text"}))),
    ]
}
