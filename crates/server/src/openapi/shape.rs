//! Schemas in short: JSON in which each value is the word for its type.
//!
//! `{"id": "text", "tags?": ["text"], "by": {"*": "whole"}}` is an object with a text, perhaps a list of texts, and
//! an object of numbers under any names. A `?` behind a name: it may be absent; behind a type: it may be `null`.
//! `a|b` is one of these words, `@Name` a schema of [`shared`]. Start at [`shape`].

use baton_types::QueueOptions;
use baton_types::limits::LEASE_MAX;
use serde_json::{Map, Value, json};

/// The member of a schema that was made from an unknown word; a test looks for it.
pub const UNKNOWN: &str = "x-unknown";

/// The schema of a shape.
pub fn shape(given: Value) -> Value {
    match given {
        Value::String(text) => word(&text),
        Value::Array(elements) => {
            json!({"type": "array", "items": elements.into_iter().next().map_or(json!({}), shape)})
        }
        Value::Object(members) => object(members),
        other => json!({"const": other}),
    }
}

fn object(mut members: Map<String, Value>) -> Value {
    if let Some(any) = members.remove("*") {
        return json!({"type": "object", "additionalProperties": shape(any)});
    }
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for (name, value) in members {
        let optional = name.strip_suffix('?').map(str::to_owned);
        let name = optional.unwrap_or_else(|| {
            required.push(Value::String(name.clone()));
            name
        });
        properties.insert(name, shape(value));
    }
    json!({"type": "object", "properties": properties, "required": required})
}

/// The schema of one word.
pub fn word(text: &str) -> Value {
    if let Some(name) = text.strip_prefix('@').filter(|name| !name.ends_with('?')) {
        return json!({"$ref": format!("#/components/schemas/{name}")});
    }
    if text.contains('|') {
        return json!({"enum": text.split('|').collect::<Vec<_>>()});
    }
    if let Some(name) = text.strip_suffix('?') {
        return json!({"anyOf": [word(name), {"type": "null"}]});
    }
    match text {
        "any" => json!({}),
        "object" => json!({"type": "object"}),
        "text" => json!({"type": "string"}),
        "name" => json!({"type": "string", "maxLength": baton_types::limits::NAME_BYTES_MAX}),
        "namespace" => json!({"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$"}),
        "uuid" => json!({"type": "string", "format": "uuid"}),
        "time" => json!({"type": "string", "format": "date-time"}),
        "flag" => json!({"type": "boolean"}),
        "whole" => json!({"type": "integer", "minimum": 0}),
        "number" => json!({"type": "number"}),
        "null" => json!({"type": "null"}),
        _ => json!({UNKNOWN: text}),
    }
}

/// Schemas that several routes share.
pub fn shared() -> Map<String, Value> {
    let mut schemas = Map::new();
    let mut add = |name: &str, schema: Value| schemas.insert(name.into(), schema);
    add(
        "Counts",
        shape(json!({
            "total": "whole", "pending": "whole", "processing": "whole", "completed": "whole", "failed": "whole",
            "deadLetter": "whole",
        })),
    );
    add("QueueOptions", options(false));
    add("QueueOptionChanges", options(true));
    add(
        "RecordOperation",
        shape(json!({
            "op": "get|getMany|getPrefix|put|putIfAbsent|delete|incr|check", "ns": "namespace", "key?": "text",
            "keys?": ["text"], "prefix?": "text", "after?": "text", "limit?": "whole", "keysOnly?": "flag",
            "value?": "any", "ttlSeconds?": "whole", "forever?": "flag", "expect?": "whole", "delta?": "number",
            "min?": "number", "max?": "number", "required?": "flag",
        })),
    );
    add(
        "RecordResult",
        shape(json!({
            "index": "whole", "op": "text", "key?": "text", "found?": "flag", "applied?": "flag",
            "reason?": "exists|absent|version|limit|type", "value?": "any", "version?": "whole",
            "expiresAt?": "time?", "updatedAt?": "time?", "rows?": ["object"], "truncated?": "flag",
            "missing?": ["text"], "nextAfter?": "text?",
        })),
    );
    add(
        "TimerOperation",
        shape(json!({
            "op": "schedule|reschedule|cancel", "queue": "name", "timerKey": "text", "partition?": "name",
            "txn?": "text", "payload?": "text", "delayMs?": "whole",
        })),
    );
    add(
        "TimerResult",
        shape(json!({
            "ok": "flag", "status": "scheduled|rescheduled|cancelled|absent", "queue": "text", "timerKey": "text",
            "txn": "text?", "messageId": "uuid?", "deliverAt": "time?",
        })),
    );
    add(
        "Timer",
        shape(json!({
            "queue": "text", "timerKey": "text", "partition": "text", "deliverAt": "time", "txn": "text",
            "messageId": "uuid", "producerSub": "text?", "attempts": "whole", "lastError": "text?", "createdAt": "time",
            "updatedAt": "time",
        })),
    );
    add(
        "Trace",
        shape(json!({
            "id": "text", "event_type": "text", "data": "any", "consumer_group": "text", "worker_id": "text",
            "created_at": "time", "trace_names": ["text"],
        })),
    );
    add("Span", shape(json!({"from": "time", "to": "time"})));
    add("Page", shape(json!({"limit": "whole", "offset": "whole"})));
    add(
        "Ack",
        shape(json!({
            "transactionId": "text", "partitionId": "text", "leaseId?": "text?", "consumerGroup?": "name?",
            "status?": "completed|failed|retry|dlq", "error?": "any",
        })),
    );
    add(
        "Push",
        shape(json!({
            "queue": "name", "partition?": "name", "payload?": "any", "transactionId?": "text",
            "traceId?": "uuid",
        })),
    );
    add(
        "Message",
        shape(json!({
            "id": "uuid", "transactionId": "text", "partitionId": "text", "queuePath": "text", "queue": "text",
            "partition": "text", "namespace": "text", "task": "text",
            "status": "pending|processing|completed|dead_letter",
            "queueStatus": "pending|processing|completed|dead_letter",
            "busStatus": {"consumedBy": "whole", "totalGroups": "whole"},
            "traceId": "uuid?", "producerSub": "text?", "queuePriority": "number", "createdAt": "time",
            "leaseExpiresAt": "time?", "leases": ["@Lease"], "offset": "whole", "data": "any", "payload": "any",
        })),
    );
    add(
        "Lease",
        shape(
            json!({"group": "text", "leaseId": "uuid", "token": "whole", "since": "time", "until": "time"}),
        ),
    );
    add(
        "Queue",
        shape(json!({
            "id": "text", "name": "text", "namespace": "text", "task": "text", "createdAt": "time",
            "partitions": "whole", "messages": "@Counts",
        })),
    );
    add(
        "Partition",
        shape(json!({
            "id": "text", "name": "text", "createdAt": "time", "stats": "@Counts", "oldestMessage": "time?",
            "newestMessage": "time?",
        })),
    );
    schemas
}

/// The options of a queue, all of them; or those that change, of which `null` restores the default.
fn options(changes: bool) -> Value {
    let Ok(Value::Object(defaults)) = serde_json::to_value(QueueOptions::default()) else { return json!({}) };
    let mut properties = Map::new();
    for (name, default) in &defaults {
        let mut schema = match (default, name.as_str()) {
            (Value::Bool(_), _) => json!({"type": "boolean"}),
            (_, "priority") => json!({"type": "integer", "minimum": i32::MIN, "maximum": i32::MAX}),
            (_, "maxSize") => json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}),
            (_, "leaseTime") => json!({"type": "integer", "minimum": 0, "maximum": LEASE_MAX.as_secs()}),
            _ => json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}),
        };
        if changes {
            schema = json!({"anyOf": [schema, {"type": "null"}]});
        }
        schema["default"] = default.clone();
        properties.insert(name.clone(), schema);
    }
    let required: Vec<_> = if changes { Vec::new() } else { defaults.keys().collect() };
    json!({"type": "object", "properties": properties, "required": required})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_a_schema_in_short() {
        let given = shape(json!({"a": "text", "b?": ["whole"], "c": {"*": "x|y"}, "d": "flag?"}));
        let expected = json!({
            "type": "object",
            "required": ["a", "c", "d"],
            "properties": {
                "a": {"type": "string"},
                "b": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                "c": {"type": "object", "additionalProperties": {"enum": ["x", "y"]}},
                "d": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            },
        });
        assert_eq!(given, expected);
    }
}
