//! Queues, partitions, namespaces and tasks, described.

use baton_types::limits::PAGE_ROWS_MAX;
use http::StatusCode;
use serde_json::json;

use super::describe::{Operation, delete, get, needed_text, text, whole};
use super::shape::shape;

pub(super) fn operations() -> Vec<Operation> {
    let spread = json!({"avg": "whole", "median": "whole", "min": "whole", "max": "whole"});
    let label = |name: &str| {
        json!({
            name: "text", "queues": "whole", "partitions": "whole",
            "messages": {"total": "whole", "pending": "whole"},
        })
    };
    vec![
        get("/api/v1/resources/queues").answers(200, "The queues.", shape(json!({"queues": ["@Queue"]}))),
        get("/api/v1/resources/queues/:queue").answers(
            200,
            "The queue.",
            shape(json!({
                "id": "text", "name": "text", "namespace": "text", "task": "text", "createdAt": "time",
                "options": "@QueueOptions", "partitions": ["@Partition"], "totals": "@Counts",
            })),
        ),
        get("/api/v1/resources/queues/:queue/depth")
            .query([text("group", "Before this group; before consumers without one unless given.")])
            .answers(200, "How much there is.", shape(json!({
                "queue": "text", "group": "text?", "pending": "whole", "processing": "whole", "ready": "whole",
                "partitionsPending": "whole", "partitionsReady": "whole", "conflation": "flag",
                "effectivePending": "whole", "effectiveReady": "whole",
                "partitions": [{
                    "partition": "text", "pending": "whole", "processing": "whole", "ready": "whole",
                }],
            }))),
        delete("/api/v1/resources/queues/:queue").answers(
            200,
            "There is no such queue any more.",
            shape(json!({"deleted": true, "queue": "text", "existed": "flag"})),
        ),
        get("/api/v1/resources/namespaces").answers(
            200,
            "The namespaces.",
            shape(json!({"namespaces": [label("namespace")]})),
        ),
        get("/api/v1/resources/tasks").answers(200, "The tasks.", shape(json!({"tasks": [label("task")]}))),
        get("/api/v1/resources/overview").answers(
            200,
            "The totals.",
            shape(json!({
                "queues": "whole", "partitions": "whole", "namespaces": "whole", "tasks": "whole",
                "messages": "@Counts", "lag": {"time": spread, "offset": spread},
                "throughput": {"ingestedPerSecond": "number", "processedPerSecond": "number"},
                "timestamp": "time", "statsAge": "whole",
            })),
        ),
        get("/api/v1/resources/partitions")
            .query([needed_text("queue", "The queue.")])
            .answers(200, "The partitions.", shape(json!({"queue": "text", "partitions": ["@Partition"]})))
            .answers_error(StatusCode::NOT_FOUND),
        get("/api/v1/queues/:queue")
            .query([
                text("partition", "Only this partition."),
                text("after", "Where the last page said to go on."),
                whole("limit", 1, PAGE_ROWS_MAX as u64, "Partitions to answer; 100 unless given."),
            ])
            .answers(200, "The queue, and partitions in the order of their creation.", shape(json!({
                "name": "text", "namespace": "text", "task": "text", "createdAt": "time", "options": "@QueueOptions",
                "partitions": [{
                    "id": "text", "name": "text", "createdAt": "time", "total": "whole", "pending": "whole",
                    "processing": "whole", "oldestMessage": "time?", "newestMessage": "time?",
                }],
                "nextAfter": "text?",
            }))),
        delete("/api/v1/queues/:queue/clear")
            .query([
                text("partition", "Only this partition."),
                text("cursor", "Go on where an earlier call ended."),
            ])
            .answers(
            200,
            "It is empty, or, if there is a cursor, empty up to there.",
            shape(json!({
                "success": true, "cleared": "flag", "queue": "text", "partition": "text?",
                "partitionsCleared": "whole", "nextCursor": "text?",
            })),
        ),
    ]
}
