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
    ]
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
