//! Shards, described.

use http::StatusCode;
use serde_json::{Value, json};

use super::describe::{Operation, delete, get, post, text, whole};
use super::shape::{shape, word};

/// The longest wait for news of shards, in milliseconds.
const WAIT_MS_MAX: u64 = 60_000;

pub(super) fn operations() -> Vec<Operation> {
    let service = "/api/v1/shards/:service";
    let found = "The service, or what the worker has; events of it when the caller accepts those.";
    vec![
        get("/api/v1/shards").answers(200, "The services.", shape(json!({"services": [summary()]}))),
        get(service)
            .query([
                text("worker", "Only what this worker has."),
                whole("wait", 0, WAIT_MS_MAX, "Milliseconds to wait for news at most."),
                text(
                    "after",
                    "The `version`, or of a worker the `generation`, that is known; anything else is news.",
                ),
            ])
            .answers(200, found, word("object"))
            .answers_with(200, found, "text/event-stream", word("text"))
            .answers_error(StatusCode::NOT_FOUND),
        post(service)
            .body(action())
            .answers(200, "What the worker has now.", assignment())
            .answers_error(StatusCode::UNPROCESSABLE_ENTITY)
            .answers_error(StatusCode::CONFLICT)
            .answers_error(StatusCode::NOT_FOUND),
        delete(service)
            .answers(200, "It is gone.", shape(json!({"service": "text", "deleted": true})))
            .answers_error(StatusCode::CONFLICT)
            .answers_error(StatusCode::NOT_FOUND),
    ]
}

fn summary() -> Value {
    json!({
        "service": "text", "maxShardCount": "whole", "generation": "whole", "version": "text", "workers": "whole",
        "unassigned": "whole", "revoking": "whole", "moves": "whole",
    })
}

fn assignment() -> Value {
    shape(json!({
        "assignedShards?": ["whole"], "workerId?": "text", "sessionId?": "text", "generation?": "whole",
        "grants?": [{"from": "whole", "to": "whole", "token": "whole"}], "revoking?": [["whole"]],
        "draining?": "flag", "maxShardCount?": "whole", "leaseMs?": "whole", "heartbeatMs?": "whole", "sequence?": "whole",
        "left?": "flag",
    }))
}

fn action() -> Value {
    let mut schema = shape(json!({
        "action": "register|heartbeat|release|leave|drain|undrain", "workerId": "name", "sessionId?": "name?",
        "maxShardCount?": "whole?", "weight?": "whole?", "capacity?": "whole?", "draining?": "flag?",
        "generation?": "whole?", "assignedShards?": ["whole"], "releasing?": ["whole"], "ranges?": [["whole"]],
        "takeOver?": "flag?", "sequence?": "whole?",
    }));
    schema["properties"]["weight"] = json!({"type": ["integer", "null"], "minimum": 1, "maximum": 1000});
    schema
}
