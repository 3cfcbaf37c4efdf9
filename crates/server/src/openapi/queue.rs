//! Push, pop, ack, transactions, leases and the options of queues, described.

use baton_types::limits::{BATCH_ITEMS_MAX, LEASE_MAX, POP_BATCH_MAX, POP_PARTITIONS_MAX, POP_WAIT_MAX};
use serde_json::{Value, json};

use super::describe::{Operation, flag, get, one_of, post, text, whole};
use super::shape::{shape, word};

pub(super) fn operations() -> Vec<Operation> {
    vec![
        post("/api/v1/push")
            .body(shape(json!({"items": ["@Push"]})))
            .answers(201, "What became of each item, in order.", pushed()),
        post("/api/v1/ack").body(word("@Ack")).answers(200, "A list of one outcome.", acked()),
        post("/api/v1/ack/batch")
            .body(shape(json!({"acknowledgments": ["@Ack"], "consumerGroup?": "name?"})))
            .answers(200, "The outcome of each ack, in order; one that is refused says why.", acked()),
        pop("/api/v1/pop/queue/:queue"),
        pop("/api/v1/pop/queue/:queue/partition/:partition"),
        pop("/api/v1/pop").query([
            text("namespace", "Queues with this namespace; this or `task` is needed."),
            text("task", "Queues with this task."),
        ]),
        post("/api/v1/transaction")
            .body(transaction())
            .query([text("idempotencyKey", "A repeated call with the same key gets the first answer; also a header.")])
            .answers(
            200,
            "All was done, or, with `success` false and a `reason`, nothing.",
            shape(json!({
                "transactionId": "uuid", "success": "flag", "error?": "text", "reason?": "text?",
                "results": [{"index": "whole", "type": "ack|push|kv|timer|position|job", "opIndex?": "whole", "transactionId?": "text"}],
                "failedIndex?": "whole", "kvReason?": "text",
            })),
        ),
        post("/api/v1/lease/:lease/extend")
            .body_or_none(json!({
                "type": "object",
                "properties": {"seconds": {"anyOf": [
                    {"type": "integer", "minimum": 1, "maximum": LEASE_MAX.as_secs()}, {"type": "null"},
                ], "default": 60}},
            }))
            .answers(200, "Until when; a lease that is not held any more is `success` false.", shape(json!({
                "leaseId": "text", "success": "flag", "renewed": "whole", "newExpiresAt": "time?",
                "expiresAt": "time?", "lease_expires_at": "time?", "error": "text?",
            }))),
        post("/api/v1/configure")
            .body(json!({"allOf": [word("@QueueOptionChanges"), shape(json!({
                "queue": "name", "namespace?": "name?", "task?": "name?", "mode?": "merge|replace",
                "options?": "@QueueOptionChanges",
            }))]}))
            .answers(200, "The queue as it is now.", shape(json!({
                "configured": true, "queueId": "text", "partitionId": "null", "queue": "text", "namespace": "text",
                "task": "text", "storage": "text", "options": "@QueueOptions",
            }))),
    ]
}

fn pushed() -> Value {
    let kept = shape(json!({
        "index": "whole", "transaction_id": "text", "transactionId": "text", "status": "queued|duplicate",
        "message_id": "uuid", "messageId": "uuid", "partition_id": "text", "partitionId": "text",
        "trace_id": "uuid?", "queueName": "text", "offset": "whole",
    }));
    let mut spooled = shape(json!({
        "index": "whole", "transactionId?": "text", "status": "text", "queueName": "text", "partition": "text",
    }));
    spooled["properties"]["status"] = json!({"const": "buffered"});
    json!({"type": "array", "items": {"anyOf": [kept, spooled]}})
}

fn acked() -> Value {
    shape(json!([{
        "index": "whole", "transactionId": "text", "success": "flag", "error": "text?", "dlq": "flag",
        "queueName": "text?", "partitionName": "text?", "leaseReleased": "flag", "noop": "flag",
        "conflated?": "whole",
    }]))
}

fn pop(path: &'static str) -> Operation {
    let wait_max = u64::try_from(POP_WAIT_MAX.as_millis()).unwrap_or(u64::MAX);
    get(path)
        .query([
            whole("batch", 1, POP_BATCH_MAX.into(), "Messages at most."),
            whole("partitions", 1, POP_PARTITIONS_MAX.into(), "Partitions at most; 1 unless given, or as many as `batch`, up to 64, with `conflation`."),
            text("consumerGroup", "The group that consumes; each group gets every message."),
            text("group", "The same as `consumerGroup`."),
            flag("wait", "Wait for messages when there are none."),
            whole("timeout", 0, wait_max, "Milliseconds to wait at most."),
            flag("autoAck", "Finish the messages with their delivery."),
            flag("commitOnDelivery", "The same as `autoAck`."),
            flag("autopilot", "Leave to the server what of `batch` and `partitions` is not given."),
            flag("conflation", "Only the newest message of each partition; decided by the first pop of a group."),
            whole("leaseSeconds", 0, LEASE_MAX.as_secs(), "How long to hold them; 0 is as the queue says."),
            one_of("subscriptionMode", "all|new|new-only|from_beginning", "Where a group begins that is new."),
            text("subscriptionFrom", "The same as a moment, or `now`."),
        ])
        .answers(200, "Messages, in the order of their partition, under a lease.", shape(json!({
            "success": true, "queue": "text", "partition?": "text", "partitionId?": "text", "leaseId?": "text",
            "consumerGroup": "text", "partitionsClaimed": "whole",
            "conflation?": "flag", "conflationConflict?": "flag",
            "autopilot?": {"partitions": "whole", "batch": "whole", "waitMs": "whole"},
            "messages": [{
                "id": "uuid", "transactionId": "text", "traceId": "uuid?", "data": "any", "producerSub": "text?",
                "createdAt": "time", "offset": "whole", "queue": "text", "partition": "text", "partitionId": "text",
                "leaseId": "text", "consumerGroup": "text", "deliveryAttempt": "whole",
            }],
        })))
        .answers_nothing(204, "There is nothing to give.")
}

fn transaction() -> Value {
    let typed = |kind: &str| {
        let mut typed = shape(json!({"type": "text"}));
        typed["properties"]["type"] = json!({"const": kind});
        typed
    };
    let item = json!({"allOf": [word("@Push"), shape(json!({"data?": "any"}))]});
    let mut items = shape(json!({"items": []}));
    items["properties"]["items"]["items"] = item.clone();
    let mut body = shape(json!({
        "operations?": [], "requiredLeases?": ["text?"], "kv?": ["@RecordOperation"], "timers?": ["@TimerOperation"],
        "jobs?": [super::jobs::new_job()],
        "positions?": [{
            "queue": "name", "consumerGroup": "name", "partition?": "name?", "offset": "whole?", "metadata?": "text?",
        }],
    }));
    body["properties"]["operations"] = json!({
        "type": "array",
        "maxItems": BATCH_ITEMS_MAX,
        "items": {"anyOf": [
            {"allOf": [typed("ack"), word("@Ack")]},
            {"allOf": [typed("push"), items]},
            {"allOf": [typed("push"), item]},
        ]},
    });
    body
}
