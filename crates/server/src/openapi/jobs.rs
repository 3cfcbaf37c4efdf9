//! Jobs, job queues, dead letters, workers and executions, described.

use baton_jobs::limits::{PAGE_MAX, WAIT_MAX};
use http::StatusCode;
use serde_json::{Value, json};

use super::describe::{Operation, delete, flag, get, moment, one_of, post, put, text, whole};
use super::shape::shape;

const STATES: &str = "scheduled|pending|dispatched|running|cancelling|completed|failed|timed_out|cancelled";

/// How often and when a job is tried again.
pub(super) fn retry() -> Value {
    json!({
        "maxRetries?": "whole", "initialDelayMs?": "whole", "multiplier?": "number", "maxDelayMs?": "whole",
        "jitter?": "number",
    })
}

/// A job as a caller describes it.
pub(super) fn new_job() -> Value {
    json!({
        "jobType": "name", "queue?": "name", "args?": "any", "priority?": "any", "runAt?": "time", "delayMs?": "whole",
        "timeoutMs?": "whole",
        "retry?": retry(),
        "uniqueKey?": "name", "uniqueScope?": "active|window", "uniqueWindowMs?": "whole",
        "onConflict?": "return|reject|replace", "concurrencyKey?": "name", "concurrencyLimit?": "whole",
        "correlationId?": "name", "tags?": ["name"], "parentId?": "uuid", "dependsOn?": ["text"],
    })
}

fn enqueued() -> Value {
    json!({"jobId": "uuid", "state": STATES, "runAt": "time?", "deduplicated": "flag"})
}

fn job() -> Value {
    json!({
        "jobId": "uuid", "jobType": "text", "queue": "text", "state": STATES,
        "waitReason": "any", "priority": "whole", "args": "any", "createdAt": "time", "runAt": "time?",
        "startedAt": "time?", "endedAt": "time?", "deadAt": "time?", "attempts": "whole", "executions": "whole",
        "losses": "whole", "fence": "whole", "workerId": "text?", "timeoutMs": "whole", "retry": "object",
        "uniqueKey": "text?", "concurrencyKey": "text?", "concurrencyLimit": "whole?", "correlationId": "text?",
        "tags": ["text"], "parentId": "text?", "dependsOn": ["uuid"], "scheduleId": "text?", "scheduledFor": "time?",
        "error": "any",
    })
}

fn detail() -> Value {
    let mut shown = job();
    let more = json!({
        "history": [{
            "executionId": "text", "number": "whole", "workerId": "text", "startedAt": "time", "endedAt": "time?",
            "outcome": "any", "error": "any",
        }],
        "hasResult": "flag", "progress": "any", "owner": "any",
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        shown[name] = value.clone();
    }
    shape(shown)
}

fn page() -> Value {
    shape(json!({"jobs": [job()], "nextCursor": "text?"}))
}

fn queue() -> Value {
    json!({
        "name": "text", "paused": "flag", "concurrency": "whole?", "rateLimit": "any", "weight": "whole?", "dlq": "flag", "counts": {"*": "whole"},
        "oldestMs": "whole",
    })
}

fn limit() -> Value {
    whole("limit", 1, PAGE_MAX as u64, "Jobs to answer; 50 unless given.")
}

fn cursor() -> Value {
    text("cursor", "Where the last page said to go on.")
}

pub(super) fn operations() -> Vec<Operation> {
    let mut all = jobs();
    all.extend(job_queues());
    all.extend(dead_letters());
    all
}

fn filter() -> Value {
    json!({
        "state?": "text", "queue?": "text", "jobType?": "text", "tag?": "text", "scheduleId?": "text",
        "correlationId?": "text", "createdAfter?": "time", "q?": "text",
    })
}

/// The parameter that makes a repeated call harmless.
pub(super) fn key() -> Value {
    text(
        "idempotencyKey",
        "The same call with the same key is answered as the first, another call is refused; also a header.",
    )
}

fn jobs() -> Vec<Operation> {
    vec![
        post("/api/v1/jobs")
            .query([key()])
            .body(shape(new_job()))
            .answers(201, "The job was accepted.", shape(enqueued()))
            .answers(200, "Another job has its unique key.", shape(enqueued())),
        post("/api/v1/jobs:batch").query([key()]).body(shape(json!({"jobs": [new_job()], "atomic?": "flag"}))).answers(
            201,
            "One answer for each, in order.",
            shape(json!({"items": ["object"]})),
        ),
        post("/api/v1/jobs:bulk")
            .body(shape(json!({
                "action": "cancel|retry", "dryRun?": "flag", "cursor?": "text", "filter?": filter(), "all?": "flag",
            })))
            .answers_error(StatusCode::NOT_FOUND)
            .answers(200, "How many were changed, or would be.", shape(json!({
                "dryRun": "flag", "matched": "whole", "changed": "whole", "sample": ["uuid"], "nextCursor": "text?",
            }))),
        get("/api/v1/jobs")
            .query([
                text("state", "Only in these states, separated by commas."),
                text("queue", "Only of this queue."),
                text("jobType", "Only of this type."),
                text("tag", "Only with this tag."),
                text("scheduleId", "Only fired by this schedule."),
                text("correlationId", "Only with this correlation id."),
                moment("createdAfter", "Only those accepted later."),
                text("q", "Only with this text in their type or arguments."),
                limit(),
                cursor(),
            ])
            .answers_error(StatusCode::NOT_FOUND)
            .answers(200, "A page. It may be short, or empty, and still name a next one.", page()),
        get("/api/v1/jobs/:job").answers(200, "The job.", detail()),
        get("/api/v1/jobs/:job/wait")
            .query([whole("timeoutMs", 0, WAIT_MAX.as_millis() as u64, "How long to wait; 20000 unless given.")])
            .answers(200, "The job, which has ended unless the time was over.", detail()),
        get("/api/v1/jobs/:job/result")
            .answers_error(StatusCode::CONFLICT)
            .answers(200, "What its worker reported.", json!({})),
        get("/api/v1/jobs/:job/logs")
            .query([
                text("executionId", "Only lines of this execution."),
                whole("after", 0, u64::MAX, "Only lines after this offset."),
                one_of("level", "trace|debug|info|warn|error", "Only lines as grave as this."),
                whole("limit", 1, 1_000, "Lines to answer; 200 unless given."),
                flag("follow", "Answer with server-sent events, as `Accept: text/event-stream` does."),
            ])
            .answers(200, "A page of lines.", shape(json!({
                "lines": [{
                    "offset": "whole", "seq": "whole", "executionId": "text", "at": "text",
                    "level": "trace|debug|info|warn|error", "message": "text",
                }],
                "after": "whole", "more": "flag", "dropped": "whole", "state": STATES,
            })))
            .answers_with(200, "A page of lines, or events.", "text/event-stream", json!({"type": "string"})),
        post("/api/v1/jobs/:job/cancel")
            .body_or_none(shape(json!({"reason?": "text", "force?": "flag"})))
            .answers(200, "It was called off.", shape(json!({"jobId": "uuid", "state": STATES})))
            .answers(202, "Its worker was asked to stop.", shape(json!({"jobId": "uuid", "state": STATES}))),
        post("/api/v1/jobs/:job/retry")
            .body_or_none(shape(json!({"resetAttempts?": "flag", "args?": "any"})))
            .answers(200, "It will be tried again.", shape(json!({"jobId": "uuid", "state": STATES}))),
    ]
}

fn job_queues() -> Vec<Operation> {
    vec![
        get("/api/v1/job-queues").answers(200, "All of them.", shape(json!({"queues": [queue()]}))),
        get("/api/v1/job-queues/:queue").answers(200, "The queue.", shape(queue())),
        put("/api/v1/job-queues/:queue")
            .body_or_none(shape(json!({
                "paused?": "flag", "concurrency?": "whole?",
                "rateLimit?": {"count": "whole", "perMs": "whole"}, "weight?": "whole?", "dlq?": "flag",
            })))
            .query([json!({
                "name": "If-Match", "in": "header", "required": false,
                "schema": {"type": "string", "pattern": "^\"[0-9a-f]{16}\"$"},
                "description": "The `ETag` that the queue was read with, which stands for its settings.",
            })])
            .answers_error(StatusCode::PRECONDITION_FAILED)
            .answers(200, "The queue.", shape(queue())),
        post("/api/v1/job-queues/:queue/pause").answers(200, "The queue.", shape(queue())),
        post("/api/v1/job-queues/:queue/resume").answers(200, "The queue.", shape(queue())),
    ]
}

fn dead_letters() -> Vec<Operation> {
    vec![
        get("/api/v1/dead-letters").query([limit(), cursor()]).answers(200, "A page.", page()),
        post("/api/v1/dead-letters:replay")
            .body(shape(json!({
                "filter?": filter(), "all?": "flag", "limit?": "whole", "ratePerSec?": "number",
            })))
            .answers_error(StatusCode::NOT_FOUND)
            .answers(200, "How many.", shape(json!({"replayed": "whole", "more": "flag"}))),
        post("/api/v1/dead-letters/:job/replay").answers(
            200,
            "It will be tried again.",
            shape(json!({"jobId": "uuid", "state": STATES})),
        ),
        delete("/api/v1/dead-letters/:job").answers(
            200,
            "It is not listed any more.",
            shape(json!({"jobId": "uuid", "deleted": "flag"})),
        ),
    ]
}

fn worker() -> Value {
    json!({
        "workerId": "text", "name": "text", "queues": ["text"], "jobTypes": ["text"], "maxConcurrency": "whole",
        "labels": {"*": "text"}, "version": "text", "state": "active|draining|stopping|offline", "running": "whole",
        "registeredAt": "time", "seenAt": "time", "leaseUntil": "time", "leasedAt": "time", "takesWork": "flag",
    })
}

pub(super) fn workers() -> Vec<Operation> {
    let desired = "active|draining|stopping";
    vec![
        post("/api/v1/workers")
            .body_or_none(shape(json!({
                "name?": "name", "queues?": ["name"], "jobTypes?": ["name"], "maxConcurrency?": "whole",
                "labels?": {"*": "text"}, "version?": "text",
            })))
            .answers(201, "Who it is from now on, and what holds for it.", shape(json!({
                "workerId": "text", "incarnation": "whole", "heartbeatMs": "whole", "leaseMs": "whole",
                "cancelGraceMs": "whole", "defaultTimeoutMs": "whole",
            }))),
        get("/api/v1/workers").answers(200, "Those heard in the last hour.", shape(json!({"workers": [worker()]}))),
        get("/api/v1/workers/:worker").answers(200, "The worker.", shape(worker())),
        delete("/api/v1/workers/:worker").answers_nothing(204, "It is forgotten."),
        post("/api/v1/workers/:worker/lease")
            .body_or_none(shape(json!({"max?": "whole", "waitMs?": "whole", "incarnation?": "whole"})))
            .answers(200, "Jobs; none when none came in time.", shape(json!({
                "leases": [{
                    "jobId": "uuid", "executionId": "text", "fence": "whole", "attempt": "whole", "leaseMs": "whole",
                    "deadlineMs": "whole?", "jobType": "text", "correlationId": "text?", "scheduleId": "text?",
                    "scheduledFor": "time?",
                    "args": "any",
                }],
                "desiredState": desired,
            }))),
        post("/api/v1/workers/:worker/heartbeat")
            .body_or_none(shape(json!({
                "incarnation?": "whole", "waitMs?": "whole",
                "running?": [{
                    "jobId": "uuid", "fence": "whole", "progress?": {"percent": "number", "message?": "text?"},
                }],
            })))
            .answers(200, "What is wanted of it.", shape(json!({
                "desiredState": desired, "graceMs": "whole", "lost": ["uuid"], "cancel": ["uuid"],
            }))),
        post("/api/v1/workers/:worker/drain")
            .body_or_none(shape(json!({"mode?": "graceful|immediate|off", "graceMs?": "whole"})))
            .answers(200, "It hears so with its next heartbeat.", shape(json!({
                "workerId": "text", "desiredState": desired,
            }))),
        post("/api/v1/executions:report")
            .body(shape(json!({"items": [{
                "jobId": "uuid", "executionId?": "text", "fence?": "whole",
                "outcome": "succeeded|failed|timed_out|released|cancelled", "result?": "any",
                "error?": {"type?": "text", "message?": "text", "retryable?": "flag", "retryAfterMs?": "whole"},
            }]})))
            .answers(200, "One answer for each, in order.", shape(json!({"items": [{
                "jobId": "uuid", "ok": "flag", "state?": STATES, "code?": "repeated|stale_fence|not_found",
                "currentFence?": "whole",
            }]}))),
        post("/api/v1/executions/:execution/logs")
            .body(shape(json!({
                "firstSeq?": "whole",
                "lines": [{"level?": "trace|debug|info|warn|error", "message": "text", "at?": "text"}],
            })))
            .answers(200, "The number that the next line must have.", shape(json!({"nextSeq": "whole"}))),
    ]
}
