//! Messages and dead letters, described.

use serde_json::{Value, json};

use super::describe::{Operation, delete, get, moment, one_of, page, post, span, text};
use super::shape::shape;

pub(super) fn operations() -> Vec<Operation> {
    vec![
        get("/api/v1/messages")
            .query([
                text("queue", "Only of this queue."),
                text("partition", "Only of this partition."),
                text("namespace", "Only of queues with this namespace."),
                text("ns", "The same as `namespace`."),
                text("task", "Only of queues with this task."),
                one_of("status", "pending|processing|completed|dead_letter", "Only in this state."),
            ])
            .query(span("an hour"))
            .query(page(200))
            .answers(200, "A page of messages.", shape(json!({
                "messages": ["@Message"], "total": "whole",
                "mode": {
                    "hasQueueMode": "flag", "busGroupsCount": "whole", "type": "hybrid|queue|bus|none",
                },
            }))),
        get("/api/v1/messages/:partition/:transaction").answers(200, "The message.", detail()),
        delete("/api/v1/messages/:partition/:transaction").answers(200, "It is gone.", shape(json!({
            "success": true, "partitionId": "text", "transactionId": "text", "message": "text",
        }))),
        post("/api/v1/messages/:partition/:transaction/retry").answers(200, "It waits again.", shape(json!({
            "success": true, "result": "moved|duplicate", "queue": "text", "partition": "text",
            "consumerGroup": "text", "dlqId": "text", "originalTransactionId": "text",
            "replayedAs": {
                "index": "whole", "message_id": "uuid", "transaction_id": "text", "partition_id": "text",
                "queueName": "text", "status": "queued|duplicate", "offset": "whole",
            },
            "dlqRowRemoved": "flag",
        }))),
        post("/api/v1/messages/:partition/:transaction/dlq")
            .body_or_none(shape(json!({"consumerGroup?": "name?", "error?": "text?"})))
            .answers(200, "It is a dead letter, if the queue keeps those.", shape(json!({
                "success": true, "partitionId": "text", "transactionId": "text", "consumerGroup": "text",
                "dlq": "flag",
            }))),
        get("/api/v1/dlq")
            .query([
                text("queue", "Only of this queue."),
                text("partition", "Only of this partition."),
                text("consumerGroup", "Only what this group gave up on."),
                moment("from", "Not older than this."),
                moment("to", "Not younger than this."),
            ])
            .query(page(100))
            .answers(200, "A page of dead letters.", shape(json!({
                "messages": [{
                    "id": "uuid", "transactionId": "text", "partitionId": "text", "queue": "text",
                    "partition": "text", "consumerGroup": "text", "errorMessage": "text?", "retryCount": "whole",
                    "data": "any", "dataOmitted?": "flag", "producerSub": "text?", "traceId": "uuid?", "offset": "whole",
                    "createdAt": "time", "failedAt": "time",
                }],
                "total": "whole", "pagination": "@Page",
            }))),
        get("/api/v1/dlq/errors")
            .query([
                text("queue", "Only of this queue."),
                text("partition", "Only of this partition."),
                text("consumerGroup", "Only what this group gave up on."),
                moment("from", "Not older than this."),
                moment("to", "Not younger than this."),
                text("error", "Only with exactly this error."),
                text("errorContains", "Only with an error that contains this text."),
                text("cursor", "Go on where an earlier call ended; its counts are to be added."),
            ])
            .answers(200, "The errors of up to 10,000 letters, the most frequent first.", shape(json!({
                "errors": [{
                    "error": "text?", "count": "whole", "firstFailedAt": "time", "lastFailedAt": "time",
                    "sample": {
                        "queue": "text", "partition": "text", "partitionId": "text", "transactionId": "text",
                        "consumerGroup": "text",
                    },
                }],
                "counted": "whole", "nextCursor": "text?",
            }))),
        post("/api/v1/dlq:replay").body(bulk(true)).answers(
            200,
            "How many wait again; the rest begins at the cursor.",
            shape(json!({
                "dryRun": "flag", "matched": "whole", "replayed": "whole", "duplicates": "whole",
                "stopped": "text?", "nextCursor": "text?",
            })),
        ),
        post("/api/v1/dlq:purge").body(bulk(false)).answers(
            200,
            "How many are gone; the rest begins at the cursor.",
            shape(json!({"dryRun": "flag", "matched": "whole", "purged": "whole", "nextCursor": "text?"})),
        ),
    ]
}

/// The body of a call that changes many letters.
fn bulk(paced: bool) -> Value {
    let mut members = json!({
        "filter?": {
            "queue?": "text?", "partition?": "text?", "consumerGroup?": "text?", "from?": "time?", "to?": "time?",
            "error?": "text?", "errorContains?": "text?",
        },
        "all?": "flag", "dryRun?": "flag", "limit?": "whole", "cursor?": "text?",
    });
    if paced {
        members["ratePerSec?"] = "number".into();
    }
    shape(members)
}

fn detail() -> Value {
    let more = shape(json!({
        "isEncrypted": "flag", "errorMessage": "text?", "retryCount": "whole?",
        "queueConfig": {
            "leaseTime": "whole", "retryLimit": "whole", "retryDelay": "whole", "ttl": "whole",
            "priority": "number",
        },
        "mode": {
            "type": "hybrid|queue|bus|none", "hasQueueMode": "flag", "busGroupsCount": "whole",
            "consumedByGroups": "whole",
        },
        "consumerGroups": [{"name": "text", "consumed": "flag", "leaseExpiresAt": "time?"}],
    }));
    json!({"allOf": [shape(json!("@Message")), more]})
}
