//! `/api/v1/traces…`: what consumers say about messages while they work on them.

use std::borrow::Cow;
use std::collections::BTreeSet;

use baton_http::Reply;
use baton_queue::{DATA_BYTES_MAX, NAMES_MAX, NewTrace, Trace};
use baton_types::{PartitionId, QUEUE_MODE};
use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::messages;
use crate::call::{Answer, Call};
use crate::error::{Error, Kind};
use crate::json::{self, Kept, List, Text, lenient};
use crate::names;

const DEFAULT_LIMIT: u64 = 100;
const DEFAULT_NAMES_LIMIT: u64 = 50;
/// How far a listing by name reaches: everything before a page is walked over.
const OFFSET_MAX: usize = 10_000;
const REQUIRED: &str = "transactionId and partitionId are required";

lenient! {
    struct Body<'a> {
        "transactionId" => transaction_id: Text<'a>,
        "partitionId" => partition_id: Text<'a>,
        "consumerGroup" => consumer_group: Text<'a>,
        "eventType" => event_type: Text<'a>,
        "traceNames" => trace_names: Option<&'a RawValue>,
        "data" => data: Option<Kept<'a>>,
    }
}

/// A trace as it was sent; `None` for the partition when the text is no partition id.
fn parse(body: &[u8], worker: &str) -> Result<(NewTrace, Option<PartitionId>), Error> {
    let body: Body<'_> = json::parse(body)?;
    let transaction_id = filled(body.transaction_id)?;
    let partition = filled(body.partition_id)?;
    let data = body.data.ok_or_else(|| Error::invalid("data is required"))?;
    if data.get().len() > DATA_BYTES_MAX {
        let message = format!("data has {} bytes, {DATA_BYTES_MAX} are allowed", data.get().len());
        return Err(Error::new(Kind::BodyTooLarge, message));
    }
    let group = body.consumer_group.or_null("consumerGroup must be a string")?;
    let group = group.filter(|group| !group.is_empty()).unwrap_or(QUEUE_MODE.into());
    let event_type = body.event_type.or_null("eventType must be a string")?.unwrap_or("info".into());
    names::check_transaction_id(&transaction_id)?;
    names::check("consumerGroup", &group)?;
    names::check("eventType", &event_type)?;
    let partition: Option<PartitionId> = partition.parse().ok();
    let trace = NewTrace {
        id: baton_env::fresh_uuid().to_string(),
        partition: partition.unwrap_or_default(),
        transaction_id: transaction_id.into_owned(),
        group: group.into_owned(),
        event_type: event_type.into_owned(),
        names: trace_names(body.trace_names)?,
        data: data.to_owned(),
        worker: worker.to_owned(),
    };
    Ok((trace, partition))
}

fn filled(text: Text<'_>) -> Result<Cow<'_, str>, Error> {
    let text = text.required(REQUIRED)?;
    if text.is_empty() { Err(Error::invalid(REQUIRED)) } else { Ok(text) }
}

fn trace_names(given: Option<&RawValue>) -> Result<BTreeSet<String>, Error> {
    let wrong = || Error::invalid("traceNames must be null, a string or an array of strings");
    let Some(given) = given.map(RawValue::get).filter(|given| *given != "null") else {
        return Ok(BTreeSet::new());
    };
    let given: Vec<Text<'_>> = match json::parse::<List<_, NAMES_MAX>>(given.as_bytes())? {
        List::Is(given) => given,
        List::Not => vec![json::parse(given.as_bytes())?],
        List::TooLong => {
            return Err(Error::invalid(format!("a trace has at most {NAMES_MAX} traceNames")));
        }
    };
    let mut found = BTreeSet::new();
    for name in given {
        let Text::Is(name) = name else { return Err(wrong()) };
        names::check("a trace name", &name)?;
        if !name.is_empty() {
            found.insert(name.into_owned());
        }
    }
    Ok(found)
}

/// Keeps a trace.
pub(super) fn record(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let (trace, partition) = parse(&body, &call.app().options.node_id)?;
        if partition.is_none() {
            return Err(Error::not_found("Message not found").of_outcome());
        }
        let id = trace.id.clone();
        call.broker().trace(trace).await.map_err(|e| Error::from(e).of_outcome())?;
        Reply::of(StatusCode::CREATED, &json!({"success": true, "traceId": id}))
    })
}

#[derive(Serialize)]
struct Row<'a> {
    id: &'a str,
    event_type: &'a str,
    data: &'a RawValue,
    consumer_group: &'a str,
    worker_id: &'a str,
    created_at: String,
    trace_names: &'a BTreeSet<String>,
}

impl<'a> Row<'a> {
    fn new(trace: &'a Trace) -> Self {
        Self {
            id: &trace.id,
            event_type: &trace.event_type,
            data: &trace.data,
            consumer_group: &trace.group,
            worker_id: &trace.worker,
            created_at: trace.created_at.to_iso_millis(),
            trace_names: &trace.names,
        }
    }
}

/// Shows the traces of a message.
pub(super) fn of_message(call: Call) -> Answer {
    Box::pin(async move {
        let traces = match call.parameter(0).parse::<PartitionId>() {
            Ok(partition) => call.broker().traces(partition, call.parameter(1)).await?,
            Err(_) => Vec::new(),
        };
        #[derive(Serialize)]
        struct Page<'a> {
            traces: Vec<Row<'a>>,
        }
        Reply::ok(&Page { traces: traces.iter().map(Row::new).collect() })
    })
}

#[derive(Serialize)]
struct NamedRow<'a> {
    #[serde(flatten)]
    row: Row<'a>,
    transaction_id: &'a str,
    partition_id: String,
    queue_name: Option<&'a str>,
    partition_name: Option<&'a str>,
    message_payload: Option<&'a RawValue>,
}

/// Shows the traces with a name.
pub(super) fn by_name(call: Call) -> Answer {
    Box::pin(async move {
        let (limit, offset) = messages::page(&call.query()?, DEFAULT_LIMIT)?;
        if offset > OFFSET_MAX {
            return Err(Error::invalid(format!("offset is at most {OFFSET_MAX}")));
        }
        names::check("a trace name", call.parameter(0))?;
        let (found, total) = call.broker().traces_by_name(call.parameter(0), offset, limit).await?;
        #[derive(Serialize)]
        struct Page<'a> {
            traces: Vec<NamedRow<'a>>,
            total: u64,
            pagination: Value,
        }
        let rows = found.iter().map(|found| NamedRow {
            row: Row::new(&found.trace),
            transaction_id: &found.trace.transaction_id,
            partition_id: found.trace.partition.to_string(),
            queue_name: found.queue.as_deref(),
            partition_name: found.partition.as_deref(),
            message_payload: found.message.as_ref().map(|message| messages::payload(&message.payload)),
        });
        let pagination = json!({"limit": limit, "offset": offset});
        Reply::ok(&Page { traces: rows.collect(), total, pagination })
    })
}

/// Lists the names of traces, the one seen last first.
pub(super) fn names(call: Call) -> Answer {
    Box::pin(async move {
        let (limit, offset) = messages::page(&call.query()?, DEFAULT_NAMES_LIMIT)?;
        let found = call.broker().trace_names().await?;
        let row = |count: &baton_queue::NameCount| {
            json!({
                "trace_name": count.name,
                "trace_count": count.traces,
                "message_count": count.messages,
                "last_seen": count.last_seen.to_iso_millis(),
            })
        };
        let rows: Vec<_> = found.iter().skip(offset).take(limit).map(row).collect();
        let pagination = json!({"limit": limit, "offset": offset});
        Reply::ok(&json!({"trace_names": rows, "total": found.len(), "pagination": pagination}))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(body: &str) -> String {
        parse(body.as_bytes(), "n").unwrap_err().to_string()
    }

    #[test]
    fn each_mistake_has_its_own_words() {
        for body in
            ["{}", "[]", r#"{"transactionId":"t"}"#, r#"{"transactionId":"","partitionId":"1","data":{}}"#]
        {
            assert_eq!(refusal(body), REQUIRED, "{body}");
        }
        let with = |rest: &str| refusal(&format!(r#"{{"transactionId":"t","partitionId":"1"{rest}}}"#));
        assert_eq!(with(""), "data is required");
        assert_eq!(with(r#","data":null"#), "data is required");
        assert!(with(r#","data":1,"traceNames":[1]"#).starts_with("traceNames must be"));
        assert!(with(r#","data":1,"consumerGroup":1"#).starts_with("consumerGroup"));
        assert!(with(&format!(r#","data":"{}""#, "x".repeat(DATA_BYTES_MAX))).contains("are allowed"));
        let many = vec!["\"n\""; NAMES_MAX + 1].join(",");
        assert!(with(&format!(r#","data":1,"traceNames":[{many}]"#)).contains("at most"));
    }

    #[test]
    fn what_is_left_out_or_null_has_a_default() {
        let body = r#"{"transactionId":"t","partitionId":"7","consumerGroup":null,"data":{"a": 1},"traceNames":"x"}"#;
        let (trace, partition) = parse(body.as_bytes(), "n").unwrap();
        assert_eq!((trace.group.as_str(), trace.event_type.as_str()), (QUEUE_MODE, "info"));
        assert_eq!((trace.data.get(), partition), (r#"{"a": 1}"#, Some(PartitionId(7))));
        assert_eq!(trace.names.into_iter().collect::<Vec<_>>(), ["x"]);
    }
}
