//! `/api/v1/timers…`: messages that are pushed later.
//!
//! The payload travels as base64 of a JSON text and is kept as that text. Always: only delays, never moments, so
//! that there is one clock. Not here: when timers fire (`baton_queue::timer`). Start at [`batch`], then [`read`].

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use baton_http::Reply;
use baton_queue::timer::{Operation, Outcome, Status, Timer};
use baton_types::IdHash;
use baton_types::limits::{
    KEY_BYTES_MAX, PAGE_ROWS_MAX, TIMER_DELAY_MAX, TIMER_OPERATIONS_MAX, TIMER_PAYLOAD_BYTES_MAX,
};
use bytes::Bytes;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::call::{Answer, Call};
use crate::error::{Error, Kind};
use crate::json::{self, List, lenient};
use crate::members::Members;
use crate::names;
use crate::unknown;

const DEFAULT_PARTITION: &str = "Default";
const DEFAULT_ROWS: u64 = 100;

/// The members of an operation.
const KNOWN: &[&str] = &["op", "queue", "timerKey", "partition", "txn", "payload", "payloadZstd", "delayMs"];

/// What only the server says of a timer.
const SERVER_OWNED: &[&str] = &[
    "producerSub",
    "producer_sub",
    "messageId",
    "message_id",
    "tenant",
    "tenantId",
    "tenant_id",
    "deliverAt",
    "deliver_at",
    "delaySeconds",
    "delay_seconds",
    "attempts",
    "claimToken",
    "claim_token",
    "claimedUntil",
];

lenient! {
    struct Body<'a> {
        "operations" => operations: List<&'a RawValue>,
    }
}

/// An operation with what its answer repeats when there is no timer.
#[derive(Clone, Debug)]
pub(super) struct Named {
    operation: Operation,
    transaction_id: Option<String>,
}

impl Named {
    /// What to do, in the name of whom the caller's token speaks for.
    pub fn by(&self, caller: Option<&str>) -> Operation {
        let mut operation = self.operation.clone();
        if let Operation::Schedule { producer, .. } = &mut operation {
            *producer = caller.map(str::to_owned);
        }
        operation
    }
}

fn refuse(reason: &'static str, detail: impl Into<String>) -> Error {
    Error::refused(Kind::TimersInvalid, reason, detail)
}

fn bad_body(detail: String) -> Error {
    refuse("timers_bad_body", detail)
}

/// Does several operations.
pub(super) fn batch(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let (body, others) = json::parse_noting::<Body<'_>>(&body)?;
        if let Some(name) = others.first() {
            return Err(bad_body(unknown::message("member", name, &["operations"])));
        }
        let List::Is(operations) = body.operations else {
            return Err(bad_body("operations must be a list of operations".into()));
        };
        if operations.is_empty() {
            return Err(bad_body("operations must not be empty".into()));
        }
        let named = read(&operations)?;
        let operations = named.iter().map(|named| named.by(call.caller())).collect();
        let outcomes = call.broker().timers(operations).await?;
        let results: Vec<_> =
            named.iter().zip(&outcomes).map(|(named, outcome)| show(named, outcome)).collect();
        Reply::ok(&json!({"results": results}))
    })
}

/// Cancels one timer.
pub(super) fn cancel(mut call: Call) -> Answer {
    Box::pin(async move {
        unknown::check_empty(&call.body()?).map_err(|error| bad_body(error.to_string()))?;
        let transaction_id = call.query()?.owned("txn");
        let (queue, key) = (call.take_parameter(0), call.take_parameter(1));
        check_place(&queue, &key)?;
        let named = Named { operation: Operation::Cancel { queue, key }, transaction_id };
        let outcomes = call.broker().timers(vec![named.operation.clone()]).await?;
        Reply::ok(&outcomes.first().map(|outcome| show(&named, outcome)))
    })
}

/// Shows one timer.
pub(super) fn peek(call: Call) -> Answer {
    Box::pin(async move {
        check_place(call.parameter(0), call.parameter(1))?;
        let Some(timer) = call.broker().timer(call.parameter(0), call.parameter(1)).await? else {
            return Reply::ok(&json!({"found": false}));
        };
        let mut shown = row(&timer);
        shown["found"] = true.into();
        shown["payload"] = STANDARD.encode(&timer.payload).into();
        Reply::ok(&shown)
    })
}

/// Lists the timers of a queue.
pub(super) fn list(call: Call) -> Answer {
    Box::pin(async move {
        let (queue, query) = (call.parameter(0), call.query()?);
        names::check("queue", queue)?;
        let prefix = query.text("prefix").unwrap_or("");
        if query.one_of("mode", &["list", "count"])? == Some("count") {
            let (mut count, mut after) = (0, None::<String>);
            loop {
                let (timers, more) =
                    call.broker().list_timers(queue, prefix, after.as_deref(), PAGE_ROWS_MAX).await?;
                count += timers.len();
                after = timers.last().map(|timer| timer.key.clone());
                if !more {
                    return Reply::ok(&json!({"count": count}));
                }
            }
        }
        let limit = query.number("limit", 1, PAGE_ROWS_MAX as u64)?.unwrap_or(DEFAULT_ROWS);
        let limit = usize::try_from(limit).unwrap_or(PAGE_ROWS_MAX);
        let (timers, more) = call.broker().list_timers(queue, prefix, query.text("after"), limit).await?;
        let next = timers.last().filter(|_| more).map(|timer| timer.key.as_str());
        let rows: Vec<_> = timers.iter().map(row).collect();
        Reply::ok(&json!({"rows": rows, "truncated": more, "nextAfter": next}))
    })
}

/// Reads the operations of a call.
pub(super) fn read(operations: &[&RawValue]) -> Result<Vec<Named>, Error> {
    if operations.len() > TIMER_OPERATIONS_MAX {
        let detail = format!("{} operations, {TIMER_OPERATIONS_MAX} are allowed", operations.len());
        return Err(refuse("timers_too_many_ops", detail));
    }
    let (mut named, mut places) = (Vec::with_capacity(operations.len()), BTreeSet::new());
    for raw in operations {
        let members =
            Members::of(raw.get()).ok_or_else(|| bad_body("an operation must be an object".into()))?;
        let one = read_one(&members)?;
        let (queue, key) = one.operation.place();
        if !places.insert((queue.to_owned(), key.to_owned())) {
            let detail = format!("{key:?} is named twice; operations of a call are on different timers");
            return Err(refuse("timers_duplicate_key_in_call", detail));
        }
        named.push(one);
    }
    Ok(named)
}

fn read_one(members: &Members<'_>) -> Result<Named, Error> {
    if let Some(name) = members.names().find(|name| SERVER_OWNED.contains(name) || name.starts_with('_')) {
        let detail = format!("{name} is said by the server; say how long from now with delayMs");
        return Err(refuse("timers_server_owned_field", detail));
    }
    unknown::check(members.names(), KNOWN).map_err(bad_body)?;
    let op: String = members.need("op", "the name of an operation").map_err(bad_body)?;
    let queue: String = members.need("queue", "a string").map_err(bad_body)?;
    let key: String =
        members.need("timerKey", "a string").map_err(|detail| refuse("timers_bad_key", detail))?;
    check_place(&queue, &key)?;
    let transaction_id: Option<String> = members.get("txn", "a string").map_err(bad_body)?;
    if let Some(id) = &transaction_id {
        names::check_transaction_id(id)?;
    }
    let operation = match op.as_str() {
        "schedule" | "reschedule" => {
            let partition: Option<String> = members.get("partition", "a string").map_err(bad_body)?;
            let partition = partition.unwrap_or_else(|| DEFAULT_PARTITION.into());
            names::check("partition", &partition)?;
            let transaction_id = transaction_id.clone().filter(|id| !id.is_empty());
            Operation::Schedule {
                queue,
                key,
                partition,
                transaction_id: transaction_id.unwrap_or_else(|| baton_env::fresh_uuid().to_string()),
                payload: payload(members)?,
                producer: None,
                delay: delay(members)?,
            }
        }
        "cancel" => Operation::Cancel { queue, key },
        other => {
            let detail = format!("{other:?} is none of schedule, reschedule and cancel");
            return Err(refuse("timers_unknown_op", detail));
        }
    };
    Ok(Named { operation, transaction_id })
}

fn check_place(queue: &str, key: &str) -> Result<(), Error> {
    names::check("queue", queue)?;
    if queue.is_empty() {
        return Err(bad_body("queue must not be empty".into()));
    }
    if key.is_empty() || key.len() > KEY_BYTES_MAX || key.contains('\0') {
        return Err(refuse("timers_bad_key", format!("timerKey has 1 to {KEY_BYTES_MAX} bytes and no NUL")));
    }
    Ok(())
}

fn payload(members: &Members<'_>) -> Result<Bytes, Error> {
    let bad_payload = |detail: &str| refuse("timers_bad_payload", detail);
    if members.flag("payloadZstd").map_err(bad_body)? {
        return Err(bad_payload("payloadZstd is not supported; send the payload uncompressed"));
    }
    let text: String = members
        .need("payload", "base64 of a JSON text")
        .map_err(|detail| refuse("timers_bad_payload", detail))?;
    let payload = STANDARD.decode(text).map_err(|_| bad_payload("payload must be base64"))?;
    if payload.len() > TIMER_PAYLOAD_BYTES_MAX {
        let detail =
            format!("a payload has at most {TIMER_PAYLOAD_BYTES_MAX} bytes, this one has {}", payload.len());
        return Err(Error::refused(Kind::PayloadTooLarge, "timers_payload_too_large", detail));
    }
    // It becomes a part of a JSON answer as it is.
    let text = std::str::from_utf8(&payload).ok();
    let text = text.filter(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
    let text = text.ok_or_else(|| bad_payload("payload must be base64 of a JSON text"))?;
    json::check_kept(text).map_err(|detail| bad_payload(&detail))?;
    Ok(payload.into())
}

fn delay(members: &Members<'_>) -> Result<Duration, Error> {
    let millis: i64 = members
        .need("delayMs", "a whole number of milliseconds")
        .map_err(|detail| refuse("timers_bad_delay", detail))?;
    let delay = Duration::from_millis(u64::try_from(millis).unwrap_or(0));
    if delay > TIMER_DELAY_MAX {
        let detail = format!("delayMs is at most {}", TIMER_DELAY_MAX.as_millis());
        return Err(Error::refused(Kind::TimerTooFar, "timer_horizon_exceeded", detail));
    }
    Ok(delay)
}

/// A result, with the names of the timer.
fn show(named: &Named, outcome: &Outcome) -> Value {
    let (queue, key) = named.operation.place();
    let status = match outcome.status {
        Status::Scheduled => "scheduled",
        Status::Rescheduled => "rescheduled",
        Status::Cancelled => "cancelled",
        Status::Absent => "absent",
    };
    let timer = outcome.timer.as_ref();
    json!({
        "ok": outcome.status != Status::Absent,
        "status": status,
        "queue": queue,
        "timerKey": key,
        "txn": timer.map_or(named.transaction_id.as_deref(), |timer| Some(&timer.transaction_id)),
        "messageId": timer.map(message_id),
        "deliverAt": timer.map(|timer| timer.deliver_at.to_iso_micros()),
    })
}

/// Writes the members of a result, each with a comma before it.
pub(super) fn write(out: &mut Vec<u8>, named: &Named, outcome: &Outcome) {
    let Value::Object(members) = show(named, outcome) else { return };
    for (name, value) in members {
        out.push(b',');
        json::string(out, &name);
        out.push(b':');
        out.extend_from_slice(value.to_string().as_bytes());
    }
}

/// An id that stays the same for as long as the timer keeps its transaction id. It is not the id of the message, which is
/// the place that the message gets when it is pushed.
fn message_id(timer: &Timer) -> Uuid {
    let id =
        IdHash::new(format!("{}\0{}\0{}", timer.queue, timer.partition, timer.transaction_id).as_bytes());
    let bits = (u128::from(id.hash) << 64) | (u128::from(id.check) << 32) | u128::from(id.check);
    uuid::Builder::from_custom_bytes(bits.to_be_bytes()).into_uuid()
}

fn row(timer: &Timer) -> Value {
    json!({
        "queue": timer.queue,
        "timerKey": timer.key,
        "partition": timer.partition,
        "deliverAt": timer.deliver_at.to_iso_micros(),
        "txn": timer.transaction_id,
        "messageId": message_id(timer),
        "payloadZstd": false,
        "encrypted": false,
        "producerSub": timer.producer,
        "attempts": timer.attempts,
        "lastError": timer.last_error,
        "claimed": false,
        "createdAt": timer.created_at.to_iso_micros(),
        "updatedAt": timer.updated_at.to_iso_micros(),
    })
}
