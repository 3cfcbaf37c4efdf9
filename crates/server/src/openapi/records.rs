//! Records, locks, timers, and reading without a lease, described.

use baton_types::limits::{FETCH_WAIT_MAX, PAGE_ROWS_MAX};
use serde_json::{Value, json};

use super::describe::{Operation, delete, get, one_of, post, put, text, whole};
use super::shape::shape;

pub(super) fn operations() -> Vec<Operation> {
    let record = "/api/v1/kv/:namespace/*key";
    let change = json!({"expect?": "whole", "required?": "flag"});
    vec![
        post("/api/v1/kv").body(shape(json!({"operations": ["@RecordOperation"]}))).answers(
            200,
            "A result for each; or, when something `required` did not hold, `ok` false and nothing done.",
            json!({"anyOf": [shape(json!({"results": ["@RecordResult"]})), undone()]}),
        ),
        get("/api/v1/kv").answers(200, "The namespaces, in order.", shape(json!({"namespaces": ["text"]}))),
        get("/api/v1/kv/:namespace")
            .query([
                text("prefix", "Only records whose key begins so."),
                text("after", "Only records whose key comes after this."),
                whole("limit", 1, PAGE_ROWS_MAX as u64, "Rows to answer; 100 unless given."),
            ])
            .answers(200, "A page of records.", shape(json!("@RecordResult"))),
        get(record).answers(200, "The record, or `found` false.", shape(json!("@RecordResult"))),
        put(record)
            .body(shape(json!({
                "value": "any", "ttlSeconds?": "whole", "forever?": "flag", "expect?": "whole", "required?": "flag",
            })))
            .answers(200, "Whether it was `applied`.", judged()),
        delete(record).body_or_none(shape(change)).answers(200, "Whether it was `applied`.", judged()),
        post("/api/v1/locks")
            .body(shape(json!({"operations": [{
                "op": "acquire|renew|release|get", "name": "text", "owner?": "text", "ttlSeconds?": "whole",
                "limit?": "whole", "token?": "whole", "slot?": "whole",
            }]})))
            .answers(200, "A result for each; a lock that somebody else holds has `holders`.", shape(json!({
                "results": [{
                    "index": "whole", "name": "text", "op": "acquire|renew|release|get", "acquired?": "flag",
                    "renewed?": "flag", "released?": "flag", "held?": "flag", "already?": "flag",
                    "reason?": "held|lost", "slot?": "whole", "token?": "whole", "owner?": "text",
                    "guard?": "object",
                    "holders?": [{
                        "slot": "whole", "owner": "text", "token": "whole", "since": "time", "expiresAt": "time",
                        "renewedAt": "time",
                    }],
                }],
            }))),
        get("/api/v1/locks")
            .query([
                text("after", "Where the last page said to go on."),
                whole("limit", 1, PAGE_ROWS_MAX as u64, "Rows to answer; 100 unless given."),
            ])
            .answers(200, "A page of held permits, by the name of their lock.", shape(json!({
                "now": "time",
                "permits": [{
                    "name": "text", "slot": "whole", "owner": "text", "token": "whole", "since": "time",
                    "expiresAt": "time", "renewedAt": "time",
                }],
                "nextAfter": "text?",
            }))),
        post("/api/v1/timers")
            .body(shape(json!({"operations": ["@TimerOperation"]})))
            .answers(200, "A result for each.", shape(json!({"results": ["@TimerResult"]}))),
        get("/api/v1/timers/:queue")
            .query([
                text("prefix", "Only timers whose key begins so."),
                text("after", "Only timers whose key comes after this."),
                whole("limit", 1, PAGE_ROWS_MAX as u64, "Rows to answer; 100 unless given."),
                one_of("mode", "list|count", "`count` answers their number only."),
            ])
            .answers(200, "A page of timers, or their number.", shape(json!({
                "rows?": ["@Timer"], "truncated?": "flag", "nextAfter?": "text?", "count?": "whole",
            }))),
        get("/api/v1/timers/:queue/*key").answers(
            200,
            "The timer with its payload in base64, or `found` false.",
            json!({"anyOf": [
                shape(json!({"found": false})),
                {"allOf": [shape(json!("@Timer")), shape(json!({"found": true, "payload": "text"}))]},
            ]}),
        ),
        delete("/api/v1/timers/:queue/*key")
            .query([text("txn", "What the answer repeats when there is no such timer.")])
            .answers(200, "Whether there was one to cancel.", shape(json!("@TimerResult"))),
        post("/api/v1/fetch").body(fetch()).answers(200, "As many entries as were asked for.", shape(json!({
            "entries": [{
                "queue": "text", "partition": "text", "highWatermark": "whole", "logStartOffset": "whole",
                "error?": "UNKNOWN_TOPIC_OR_PARTITION|OFFSET_OUT_OF_RANGE",
                "records": [{"offset": "whole", "transactionId": "text", "payload": "any", "ts": "time"}],
            }],
        }))),
        post("/api/v1/fetch/offsets")
            .body(shape(json!({"entries": [{"queue": "name", "partition?": "name?", "timestamp": "time"}]})))
            .answers(200, "As many entries as were asked for.", shape(json!({
                "entries": [{
                    "queue": "text", "partition": "text", "offset": "whole?", "ts": "time?",
                    "highWatermark": "whole", "logStartOffset": "whole", "error?": "text",
                }],
            }))),
        post("/api/v1/partitions/changed")
            .body(shape(json!({"entries": [{
                "queue": "name", "since?": "time?", "after?": "text?", "limit?": "whole",
            }]})))
            .answers(200, "As many entries as were asked for.", shape(json!({
                "safeTime": "time",
                "entries": [{
                    "queue": "text", "next": "text?", "error?": "UNKNOWN_TOPIC_OR_PARTITION|BAD_CURSOR",
                    "partitions": [{
                        "name": "text", "id": "text", "lastOffset": "number", "logStart": "whole",
                        "lastWriteAt": "time",
                    }],
                }],
            }))),
    ]
}

fn undone() -> Value {
    shape(json!({
        "ok": false, "reason": "text", "failedIndex": "whole", "kvReason": "exists|absent|version|limit|type",
        "version": "whole", "value": "any",
    }))
}

fn judged() -> Value {
    json!({"anyOf": [shape(json!("@RecordResult")), undone()]})
}

fn fetch() -> Value {
    let mut body = shape(json!({
        "entries": [{"queue": "name", "partition?": "name?", "offset": "whole", "maxBytes?": "whole"}],
        "maxBytes?": "whole", "minBytes?": "whole", "maxWaitMs?": "whole",
    }));
    body["properties"]["maxWaitMs"]["maximum"] =
        json!(u64::try_from(FETCH_WAIT_MAX.as_millis()).unwrap_or(0));
    body
}
