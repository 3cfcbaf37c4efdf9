//! `/api/v1/messages…`: look at messages, delete one, push a dead letter again.

use std::time::Duration;

use baton_http::{Query, Reply};
use baton_queue::{
    AckItem, LeaseClaim, LeaseView, MessageDetail, MessageFilter, MessageStatus, MessageSummary,
};
use baton_types::limits::PAGE_ROWS_MAX;
use baton_types::wire::AckStatus;
use baton_types::{PartitionId, QUEUE_MODE, Timestamp};
use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::call::{Answer, Call};
use crate::error::Error;
use crate::json::{self, Text, lenient};
use crate::names;

const DEFAULT_LIMIT: u64 = 200;
const DEFAULT_RANGE: Duration = Duration::from_secs(3600);
const MINUTE_MICROS: i64 = 60_000_000;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    id: String,
    transaction_id: String,
    partition_id: String,
    queue_path: String,
    queue: &'a str,
    partition: &'a str,
    namespace: &'a str,
    task: &'a str,
    status: &'static str,
    queue_status: &'static str,
    bus_status: Value,
    trace_id: Option<String>,
    producer_sub: Option<String>,
    queue_priority: i32,
    created_at: String,
    lease_expires_at: Option<String>,
    leases: Vec<Value>,
    offset: u64,
    data: &'a RawValue,
    payload: &'a RawValue,
}

impl<'a> Row<'a> {
    fn new(summary: &'a MessageSummary) -> Self {
        let (message, spec) = (&summary.message, &summary.queue.spec);
        let payload = payload(&message.payload);
        Self {
            id: message.id().to_string(),
            transaction_id: message.transaction_text(),
            partition_id: message.partition.to_string(),
            queue_path: format!("{}/{}", spec.name, summary.partition_name),
            queue: &spec.name,
            partition: &summary.partition_name,
            namespace: &spec.namespace,
            task: &spec.task,
            status: word(summary.status),
            queue_status: word(summary.status),
            bus_status: json!({"consumedBy": summary.named_groups_done, "totalGroups": summary.named_groups}),
            trace_id: message.trace_id.map(|id| id.to_string()),
            producer_sub: message.producer.as_ref().map(|sub| String::from_utf8_lossy(sub).into_owned()),
            queue_priority: spec.options.priority,
            created_at: message.created_at.to_iso_millis(),
            lease_expires_at: summary
                .leases
                .iter()
                .map(|lease| lease.until)
                .max()
                .map(Timestamp::to_iso_millis),
            leases: summary.leases.iter().map(lease).collect(),
            offset: message.offset.0,
            data: payload,
            payload,
        }
    }
}

/// A lease as it is shown.
pub(super) fn lease(lease: &LeaseView) -> Value {
    json!({
        "group": lease.group,
        "leaseId": lease.id.to_string(),
        "token": lease.token,
        "since": lease.since.to_iso_millis(),
        "until": lease.until.to_iso_millis(),
    })
}

/// A stored payload as JSON to be written out unchanged.
pub(super) fn payload(bytes: &[u8]) -> &RawValue {
    serde_json::from_slice(bytes).unwrap_or(RawValue::NULL)
}

fn word(status: MessageStatus) -> &'static str {
    match status {
        MessageStatus::Pending => "pending",
        MessageStatus::Processing => "processing",
        MessageStatus::Completed => "completed",
        MessageStatus::DeadLetter => "dead_letter",
    }
}

/// A message in few words.
pub(super) fn short_row(summary: &MessageSummary) -> Value {
    let row = Row::new(summary);
    json!({
        "id": row.id,
        "transactionId": row.transaction_id,
        "partitionId": row.partition_id,
        "queuePath": row.queue_path,
        "queue": row.queue,
        "partition": row.partition,
        "status": row.status,
        "createdAt": row.created_at,
    })
}

/// Lists messages.
pub(super) fn list(call: Call) -> Answer {
    Box::pin(async move {
        let filter = filter(&call.query()?, call.broker().store().now())?;
        let found = call.broker().messages(filter).await?;
        let has_queue_mode = found.iter().any(|summary| summary.has_queue_mode);
        let groups = found.iter().map(|summary| summary.named_groups).max().unwrap_or(0);
        #[derive(Serialize)]
        struct Page<'a> {
            messages: Vec<Row<'a>>,
            total: usize,
            mode: Value,
        }
        let messages: Vec<_> = found.iter().map(Row::new).collect();
        let mode = json!({
            "hasQueueMode": has_queue_mode,
            "busGroupsCount": groups,
            "type": mode(has_queue_mode, groups),
        });
        Reply::ok(&Page { total: messages.len(), messages, mode })
    })
}

fn mode(has_queue_mode: bool, named_groups: u64) -> &'static str {
    match (has_queue_mode, named_groups > 0) {
        (true, true) => "hybrid",
        (true, false) => "queue",
        (false, true) => "bus",
        (false, false) => "none",
    }
}

fn filter(query: &Query<'_>, now: Timestamp) -> Result<MessageFilter, Error> {
    let status = match query.text("status") {
        None => None,
        Some("pending") => Some(MessageStatus::Pending),
        Some("processing") => Some(MessageStatus::Processing),
        Some("completed") => Some(MessageStatus::Completed),
        Some("dead_letter") => Some(MessageStatus::DeadLetter),
        Some(_) => {
            return Err(Error::invalid("status must be pending, processing, completed or dead_letter"));
        }
    };
    let (limit, offset) = page(query, DEFAULT_LIMIT)?;
    Ok(MessageFilter {
        queue: query.owned("queue"),
        partition: query.owned("partition"),
        namespace: query.owned("namespace").or_else(|| query.owned("ns")),
        task: query.owned("task"),
        status,
        from: Some(query.moment("from")?.unwrap_or_else(|| now.before(DEFAULT_RANGE))),
        to: Some(end_of_minute(query.moment("to")?.unwrap_or(now))),
        limit,
        offset,
    })
}

/// The end of the minute that holds `moment`: a listing includes the whole of its last minute.
fn end_of_minute(moment: Timestamp) -> Timestamp {
    let minute = moment.micros().div_euclid(MINUTE_MICROS);
    Timestamp::from_micros(minute.saturating_add(1).saturating_mul(MINUTE_MICROS))
}

/// `limit` and `offset` of a listing.
pub(super) fn page(query: &Query<'_>, default_limit: u64) -> Result<(usize, usize), Error> {
    let limit = query.number("limit", 1, PAGE_ROWS_MAX as u64)?.unwrap_or(default_limit);
    let offset = query.number("offset", 0, u64::MAX)?.unwrap_or(0);
    Ok((usize::try_from(limit).unwrap_or(PAGE_ROWS_MAX), usize::try_from(offset).unwrap_or(usize::MAX)))
}

fn message_not_found() -> Error {
    Error::not_found("Message not found")
}

/// The partition that a path names; a text that is no partition id names a message that does not exist.
fn partition(call: &Call) -> Option<PartitionId> {
    call.parameter(0).parse().ok()
}

/// Shows one message.
pub(super) fn detail(call: Call) -> Answer {
    Box::pin(async move {
        let partition = partition(&call).ok_or_else(message_not_found)?;
        let found = call.broker().message(partition, call.parameter(1)).await?;
        let found = found.ok_or_else(message_not_found)?;
        Reply::ok(&Detail::new(&found))
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Detail<'a> {
    #[serde(flatten)]
    row: Row<'a>,
    is_encrypted: bool,
    error_message: Option<&'a str>,
    retry_count: Option<u32>,
    queue_config: Value,
    mode: Value,
    consumer_groups: Vec<Value>,
}

impl<'a> Detail<'a> {
    fn new(found: &'a MessageDetail) -> Self {
        let summary = &found.summary;
        let options = &summary.queue.spec.options;
        let groups = found.groups.iter().map(|(name, finished)| {
            let until = summary.leases.iter().find(|lease| lease.group == *name).map(|lease| lease.until);
            json!({"name": name, "consumed": finished, "leaseExpiresAt": until.map(Timestamp::to_iso_millis)})
        });
        Self {
            row: Row::new(summary),
            is_encrypted: options.encryption_enabled,
            error_message: found.dead_letter.as_ref().and_then(|letter| letter.error.as_deref()),
            retry_count: found.dead_letter.as_ref().map(|letter| letter.retries),
            queue_config: json!({
                "leaseTime": options.lease_time,
                "retryLimit": options.retry_limit,
                "retryDelay": options.retry_delay,
                "ttl": options.ttl,
                "priority": options.priority,
            }),
            mode: json!({
                "type": mode(summary.has_queue_mode, summary.named_groups),
                "hasQueueMode": summary.has_queue_mode,
                "busGroupsCount": summary.named_groups,
                "consumedByGroups": summary.named_groups_done,
            }),
            consumer_groups: groups.collect(),
        }
    }
}

/// Deletes a message.
pub(super) fn delete(call: Call) -> Answer {
    Box::pin(async move {
        let deleted = match partition(&call) {
            Some(partition) => call.broker().delete_message(partition, call.parameter(1)).await?,
            None => false,
        };
        let (status, message) = if deleted {
            (StatusCode::OK, "Message deleted successfully")
        } else {
            (StatusCode::NOT_FOUND, "Message not found")
        };
        let mut body = json!({
            "success": deleted,
            "partitionId": call.parameter(0),
            "transactionId": call.parameter(1),
            "message": message,
        });
        if !deleted {
            body["error"] = message.into();
            body["code"] = "not_found".into();
        }
        Reply::of(status, &body)
    })
}

/// Pushes a dead letter again.
pub(super) fn retry(call: Call) -> Answer {
    Box::pin(async move {
        let gone = || message_not_found().of_outcome();
        let partition = partition(&call).ok_or_else(gone)?;
        let replayed = call.broker().replay(partition, call.parameter(1)).await?.ok_or_else(gone)?;
        let letter = replayed.transaction_id.strip_prefix("dlq:").unwrap_or(&replayed.transaction_id);
        Reply::ok(&json!({
            "success": true,
            "result": if replayed.duplicate { "duplicate" } else { "moved" },
            "queue": replayed.queue,
            "partition": replayed.partition_name,
            "consumerGroup": replayed.group,
            "dlqId": letter,
            "originalTransactionId": replayed.original_transaction_id,
            "replayedAs": {
                "index": 0,
                "message_id": replayed.message.to_string(),
                "transaction_id": replayed.transaction_id,
                "partition_id": replayed.partition.to_string(),
                "queueName": replayed.queue,
                "status": if replayed.duplicate { "duplicate" } else { "queued" },
                "offset": replayed.offset.0,
            },
            "dlqRowRemoved": !replayed.duplicate,
        }))
    })
}

lenient! {
    struct Burial<'a> {
        "consumerGroup" => consumer_group: Text<'a>,
        "error" => error: Text<'a>,
    }
}

/// Makes a message a dead letter of a group.
pub(super) fn bury(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let body: Burial<'_> = json::parse_or_default(&body)?;
        let group = body.consumer_group.or_null("consumerGroup must be a string")?;
        let group = group.filter(|group| !group.is_empty()).unwrap_or(QUEUE_MODE.into()).into_owned();
        names::check("consumerGroup", &group)?;
        let error = body.error.or_null("error must be a string")?;
        let item = AckItem {
            partition: partition(&call),
            transaction_id: call.parameter(1).to_owned(),
            group: group.clone(),
            lease: LeaseClaim::None,
            status: AckStatus::Dlq,
            error: Some(error.unwrap_or("Moved to the dead letters by hand".into()).into_owned()),
        };
        let acked = call.broker().ack(vec![item]).await?.pop().unwrap_or_default();
        if let Some(error) = acked.error {
            return Err(Error::not_found(error).of_outcome());
        }
        Reply::ok(&json!({
            "success": true,
            "partitionId": call.parameter(0),
            "transactionId": call.parameter(1),
            "consumerGroup": group,
            "dlq": acked.dead_lettered,
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_covers_the_last_hour_and_the_whole_last_minute() {
        let now: Timestamp = "2026-11-15T18:34:07Z".parse().unwrap();
        let filter = |query: &str| filter(&Query::parse(query).unwrap(), now).unwrap();
        let all = filter("");
        assert_eq!(all.from.unwrap().to_iso_millis(), "2026-11-15T17:34:07.000Z");
        assert_eq!(all.to.unwrap().to_iso_millis(), "2026-11-15T18:35:00.000Z");
        assert_eq!((all.limit, all.offset, all.status), (200, 0, None));
        let some = filter("ns=a&limit=5000&offset=7&status=dead_letter&to=2026-11-15T10:00:59.9Z");
        assert_eq!((some.namespace.as_deref(), some.limit, some.offset), (Some("a"), 1000, 7));
        assert_eq!(some.to.unwrap().to_iso_millis(), "2026-11-15T10:01:00.000Z");
    }

    #[test]
    fn an_unknown_status_is_refused() {
        assert!(filter(&Query::parse("status=lost").unwrap(), Timestamp::default()).is_err());
    }

    #[test]
    fn a_message_is_shown_with_its_payload_as_stored() {
        let queue = baton_store::Queue {
            id: baton_types::QueueId(1),
            created_at: Timestamp::default(),
            spec: baton_store::QueueSpec {
                name: "q".into(),
                namespace: "n".into(),
                task: "".into(),
                options: baton_types::QueueOptions::default(),
            },
        };
        let message = baton_store::StoredMessage {
            partition: PartitionId(4),
            offset: baton_types::Offset(2),
            created_at: Timestamp::default(),
            transaction_id: None,
            trace_id: None,
            producer: None,
            payload: bytes::Bytes::from_static(b"{ \"n\" : 1.0 }"),
        };
        let summary = MessageSummary {
            message,
            queue: std::sync::Arc::new(queue),
            partition_name: "p".into(),
            status: MessageStatus::Completed,
            leases: Vec::new(),
            has_queue_mode: true,
            named_groups: 2,
            named_groups_done: 1,
        };
        let found = MessageDetail { summary, groups: vec![("g".into(), true)], dead_letter: None };
        let text = serde_json::to_string(&Detail::new(&found)).unwrap();
        assert!(text.contains(r#""payload":{ "n" : 1.0 }"#), "{text}");
        let shown: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&shown["queuePath"], &shown["status"]), (&json!("q/p"), &json!("completed")));
        assert_eq!(shown["mode"]["type"], "hybrid");
    }

    #[test]
    fn a_payload_is_shown_as_stored() {
        assert_eq!(payload(b"{ \"a\" : 1 }").get(), "{ \"a\" : 1 }");
        assert_eq!(payload(b"").get(), "null");
    }
}
