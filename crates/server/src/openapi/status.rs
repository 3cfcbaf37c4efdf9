//! Status, analytics, metrics, health and this document, described.

use baton_types::limits::PAGE_ROWS_MAX;
use serde_json::{Value, json};

use super::describe::{Operation, get, one_of, page, post, span, text, whole};
use super::shape::{shape, word};

pub(super) fn operations() -> Vec<Operation> {
    let queue = || [text("queue", "Only this queue.")];
    let labels = || {
        [
            text("queue", "Only this queue."),
            text("namespace", "Only queues with this namespace."),
            text("task", "Only queues with this task."),
        ]
    };
    let hour = "an hour";
    vec![
        get("/api/v1/caller").answers(200, "What the token allows; everything while authentication is off.", shape(json!({
            "authentication": "flag", "subject": "text?", "may": ["read|push|write|admin"],
        }))),
        get("/api/v1/fleet").answers(200, "Queues and groups.", shape(json!({
            "now": "time", "countedAt": "time",
            "queues": [{
                "name": "text", "namespace": "text", "task": "text", "createdAt": "time", "partitions": "whole",
                "messages": "@Counts",
            }],
            "groups": [{
                "name": "text", "queue": "text", "leases": "whole", "partitionsWithLag": "whole", "totalLag": "whole",
                "maxTimeLag": "whole", "everConsumed": "flag", "subscriptionMode": "text", "subscribedAt": "time",
                "conflation": "flag",
            }],
        }))),
        get("/api/v1/leases")
            .query([whole("limit", 1, PAGE_ROWS_MAX as u64, "Leases to answer; 500 unless given.")])
            .answers(200, "The leases.", shape(json!({
                "now": "time", "truncated": "flag",
                "leases": [{
                    "group": "text", "leaseId": "uuid", "token": "whole", "since": "time", "until": "time",
                    "queue": "text", "partition": "text", "partitionId": "text", "lag": "whole",
                }],
            }))),
        get("/api/v1/settings").answers(200, "The settings.", shape(json!({
            "settings": [{"name": "text", "value": "text", "default": "text", "isDefault": "flag", "help": "text"}],
        }))),
        get("/api/v1/status").query(labels()).query(span(hour)).answers(200, "The picture.", overview()),
        get("/api/v1/status/queues").query(labels()).query(page(100)).answers(
            200,
            "A page of queues.",
            shape(json!({"queues": ["@Queue"], "pagination": "@Page"})),
        ),
        get("/api/v1/status/analytics")
            .query(labels())
            .query(span("a day"))
            .query([one_of("interval", "minute|hour|day", "The width of a point; an hour unless given.")])
            .answers(200, "Points, oldest first.", shape(json!({
                "interval": "minute|hour|day", "from": "time", "to": "time",
                "dataPoints": [{"timestamp": "time", "messages": "whole"}],
            }))),
        get("/api/v1/status/queues/:queue").answers(200, "The queue.", shape(json!({
            "queue": {
                "id": "text", "name": "text", "namespace": "text", "task": "text", "priority": "number",
                "createdAt": "time", "config": "object",
            },
            "partitions": ["@Partition"],
            "totals": "@Counts",
        }))),
        get("/api/v1/status/queues/:queue/messages").query(page(50)).answers(
            200,
            "A page of messages, in few words; empty when there is no such queue.",
            shape(json!([{
                "id": "uuid", "transactionId": "text", "partitionId": "text", "queuePath": "text",
                "queue": "text", "partition": "text", "status": "pending|processing|completed|dead_letter",
                "createdAt": "time",
            }])),
        ),
        post("/api/v1/stats/refresh").answers(200, "What was counted.", shape(json!({
            "partition": {"partitionsUpdated": "whole"}, "queue": {"queuesUpdated": "whole"},
            "namespace": {"namespacesUpdated": "whole"}, "task": {"tasksUpdated": "whole"},
            "system": {"updatedAt": "time"}, "cleanup": {"orphanedDeleted": "whole"},
        }))),
        get("/api/v1/analytics/system-metrics")
            .query(span(hour))
            .query([text("hostname", "Only this server.")])
            .answers(200, "By server, then by point.", shape(json!({
                "timeRange": "@Span", "replicaCount": "whole", "bucketMinutes": "whole", "pointCount": "whole",
                "replicas": [{
                    "hostname": "text", "port": "whole", "workerId": "text",
                    "timeSeries": [{"timestamp": "time", "sampleCount": "whole", "metrics": "object"}],
                }],
            }))),
        get("/api/v1/analytics/worker-metrics").query(span(hour)).query(queue()).answers(
            200,
            "Points, newest first, and their sum.",
            shape(json!({
                "timeRange": "@Span", "bucketMinutes": "whole", "pointCount": "whole", "timeSeries": ["object"],
                "workers": ["object"], "summary": {"*": "whole"},
                "queues": [{
                    "queueName": "text", "popCount": "whole", "avgLagMs": "number", "maxLagMs": "number",
                }],
            })),
        ),
        get("/api/v1/analytics/queue-lag").query(span(hour)).query(queue()).answers(
            200,
            "By point and queue.",
            shape(json!([{
                "queueName": "text", "popCount": "whole", "avgLagMs": "number", "maxLagMs": "number",
                "bucketTime": "time",
            }])),
        ),
        get("/api/v1/analytics/queue-ops").query(span(hour)).query(queue()).answers(
            200,
            "By point and queue.",
            shape(json!({
                "timeRange": "@Span", "bucketMinutes": "whole", "queues": ["text"], "series": ["object"],
            })),
        ),
        get("/api/v1/analytics/queue-parked-replicas").query(span(hour)).query(queue()).answers(
            200,
            "How many, now.",
            shape(json!({
                "timeRange": "@Span", "bucketMinutes": "whole", "replicas": ["text"],
                "series": [{
                    "bucket": "time", "queueName": "text", "hostname": "text", "workerId": "whole",
                    "parkedCount": "whole",
                }],
            })),
        ),
        get("/api/v1/analytics/retention").query(span(hour)).query(queue()).answers(
            200,
            "Points where messages were given up, and their sum.",
            shape(json!({
                "timeRange": "@Span", "bucketMinutes": "whole", "series": ["object"], "totals": {"*": "whole"},
            })),
        ),
        get("/api/v1/analytics/postgres-stats").answers(
            200,
            "Empty lists: this store is no database.",
            shape(json!({"timestamp": "time", "database": "object", "cacheSummary": "object"})),
        ),
        get("/metrics").answers(200, "The numbers.", shape(json!({
            "uptime": "number", "requests": {"total": "whole", "rate": "number"},
            "messages": {"total": "whole", "rate": "number"}, "database": {"*": "whole"},
            "memory": {"*": "whole"}, "cpu": {"*": "whole"},
        }))),
        get("/metrics/prometheus").answers_with(200, "Prometheus text.", "text/plain", word("text")),
        health("/health"),
        health("/ready"),
        get("/api/openapi.json").answers(200, "This document.", word("object")),
        get("/api/docs").answers_with(200, "A page that shows this document.", "text/html", word("text")),
    ]
}

fn overview() -> Value {
    shape(json!({
        "timeRange": "@Span", "bucketMinutes": "whole", "pointCount": "whole", "throughput": ["object"],
        "queues": [{
            "id": "text", "name": "text", "namespace": "text", "task": "text", "partitions": "whole",
            "totalConsumed": "whole",
        }],
        "messages": "@Counts",
        "leases": {"*": "whole"},
        "deadLetterQueue": {"totalMessages": "whole", "affectedPartitions": "whole", "topErrors": []},
        "workers": ["object"],
        "errors": {"*": "whole"},
        "statsAge": "whole",
    }))
}

fn health(path: &'static str) -> Operation {
    let state = || {
        shape(json!({
            "status": "healthy|draining|stopping|unhealthy", "database": "connected|disconnected", "error": "text?",
            "warnings": ["text"], "server": "text", "version": "text", "node": "text", "connections": "whole",
            "bodyBytesInFlight": "whole", "popWait": {"*": "whole"},
        }))
    };
    get(path).answers(200, "The server works.", state()).answers(
        503,
        "The server is stopping, drained (/ready only), or its store has failed.",
        state(),
    )
}
