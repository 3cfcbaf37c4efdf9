//! `POST /api/v1/fetch`, `/api/v1/fetch/offsets` and `/api/v1/partitions/changed`: reading without a lease.
//!
//! Always: as many entries come back as were asked for, in that order; what is wrong with one of them stands in its
//! own `error`. Neither moves a group. Start at [`fetch`].

use std::time::Duration;

use baton_http::{Reply, moment};
use baton_queue::{FetchEntry, Fetched};
use baton_store::Partition;
use baton_types::limits::{FETCH_BYTES_MAX, FETCH_ENTRIES_MAX, FETCH_WAIT_MAX, PAGE_ROWS_MAX};
use baton_types::{Offset, PartitionId, Timestamp};
use http::StatusCode;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::call::{Answer, Call};
use crate::error::Error;
use crate::json::{self, List, lenient};
use crate::members::Members;
use crate::names;

const DEFAULT_BYTES: u64 = 1 << 20;
const DEFAULT_PARTITION: &str = "Default";
const UNKNOWN_QUEUE: &str = "UNKNOWN_TOPIC_OR_PARTITION";
const OUT_OF_RANGE: &str = "OFFSET_OUT_OF_RANGE";
const BAD_CURSOR: &str = "BAD_CURSOR";

lenient! {
    struct Body<'a> {
        "entries" => entries: List<&'a RawValue>,
        "maxBytes" => bytes_max: Option<&'a RawValue>,
        "minBytes" => bytes_min: Option<&'a RawValue>,
        "maxWaitMs" => wait: Option<&'a RawValue>,
    }
}

impl<'a> Body<'a> {
    fn entries(&mut self) -> Result<Vec<Members<'a>>, Error> {
        let entries = std::mem::take(&mut self.entries).required("entries must be a list")?;
        if entries.is_empty() || entries.len() > FETCH_ENTRIES_MAX {
            return Err(Error::invalid(format!("a call has 1 to {FETCH_ENTRIES_MAX} entries")));
        }
        let members = |raw: &'a RawValue| {
            Members::of(raw.get()).ok_or_else(|| Error::invalid("an entry must be an object"))
        };
        entries.into_iter().map(members).collect()
    }
}

fn number(raw: Option<&RawValue>, name: &str, default: u64) -> Result<u64, Error> {
    let Some(raw) = raw else { return Ok(default) };
    serde_json::from_str(raw.get()).map_err(|_| Error::invalid(format!("{name} must be a whole number")))
}

fn bytes(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX).min(FETCH_BYTES_MAX)
}

/// Reads partitions by offset.
pub(super) fn fetch(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let mut body: Body<'_> = json::parse(&body)?;
        let entries = body.entries()?.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        let bytes_max = bytes(number(body.bytes_max, "maxBytes", FETCH_BYTES_MAX as u64)?);
        let bytes_min = bytes(number(body.bytes_min, "minBytes", 1)?);
        let longest = u64::try_from(FETCH_WAIT_MAX.as_millis()).unwrap_or(u64::MAX);
        let wait = Duration::from_millis(number(body.wait, "maxWaitMs", 0)?.min(longest));
        drop(body);
        let fetched = call.broker().fetch(&entries, bytes_max, bytes_min, wait).await?;
        Ok(Reply::json(StatusCode::OK, write(&entries, &fetched)))
    })
}

/// Finds the first messages at or after a moment.
pub(super) fn offsets(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let mut body: Body<'_> = json::parse(&body)?;
        let read = |members: &Members<'_>| {
            let (queue, partition) = place(members)?;
            let at: Value = members.need("timestamp", "milliseconds or a moment").map_err(Error::invalid)?;
            let at = match &at {
                Value::Number(number) => {
                    number.as_i64().map(|ms| Timestamp::from_micros(ms.saturating_mul(1000)))
                }
                Value::String(text) => Some(moment("timestamp", text)?),
                _ => None,
            };
            let at = at.ok_or_else(|| Error::invalid("timestamp must be milliseconds or a moment"))?;
            Ok((queue, partition, at))
        };
        let asked = body.entries()?.iter().map(read).collect::<Result<Vec<_>, Error>>()?;
        drop(body);
        let mut entries = Vec::with_capacity(asked.len());
        for (queue, partition, at) in asked {
            let found = call.broker().offset_at(&queue, &partition, at).await?;
            let marks = found.unwrap_or_default();
            let mut entry = json!({
                "queue": queue,
                "partition": partition,
                "offset": marks.first.map(|(offset, _)| offset.0),
                "ts": marks.first.map(|(_, at)| at.to_iso_micros()),
                "highWatermark": marks.tail.0,
                "logStartOffset": marks.start.0,
            });
            if found.is_none() {
                entry["error"] = UNKNOWN_QUEUE.into();
            }
            entries.push(entry);
        }
        Reply::ok(&json!({"entries": entries}))
    })
}

/// The queue and the partition that an entry names.
fn place(members: &Members<'_>) -> Result<(String, String), Error> {
    let queue: String = members.need("queue", "a string").map_err(Error::invalid)?;
    names::check("queue", &queue)?;
    let partition = match members.get::<Value>("partition", "a string").map_err(Error::invalid)? {
        None | Some(Value::Null) => DEFAULT_PARTITION.to_owned(),
        Some(Value::String(name)) => name,
        Some(Value::Number(number)) => number.to_string(),
        Some(_) => return Err(Error::invalid("partition must be a string")),
    };
    names::check("partition", &partition)?;
    Ok((queue, partition))
}

fn entry(members: &Members<'_>) -> Result<FetchEntry, Error> {
    let (queue, partition) = place(members)?;
    let offset: u64 = members.need("offset", "a whole number from 0").map_err(Error::invalid)?;
    let bytes_max: Option<u64> = members.get("maxBytes", "a whole number").map_err(Error::invalid)?;
    Ok(FetchEntry {
        queue,
        partition,
        offset: Offset(offset),
        bytes_max: bytes(bytes_max.unwrap_or(DEFAULT_BYTES)),
    })
}

fn write(entries: &[FetchEntry], fetched: &[Fetched]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4096);
    out.extend_from_slice(b"{\"entries\":[");
    for (index, (entry, fetched)) in entries.iter().zip(fetched).enumerate() {
        out.extend_from_slice(if index == 0 { b"{\"queue\":" } else { b",{\"queue\":" });
        json::string(&mut out, &entry.queue);
        out.extend_from_slice(b",\"partition\":");
        json::string(&mut out, &entry.partition);
        out.extend_from_slice(b",\"records\":[");
        let (start, tail, error) = match fetched {
            Fetched::NoQueue => (Offset(0), Offset(0), Some(UNKNOWN_QUEUE)),
            Fetched::Read { messages, start, tail, out_of_range } => {
                for (index, message) in messages.iter().enumerate() {
                    out.extend_from_slice(if index == 0 { b"{\"offset\":" } else { b",{\"offset\":" });
                    json::number(&mut out, message.offset.0);
                    out.extend_from_slice(b",\"transactionId\":");
                    json::string(&mut out, &message.transaction_text());
                    out.extend_from_slice(b",\"payload\":");
                    out.extend_from_slice(&message.payload);
                    out.extend_from_slice(b",\"ts\":");
                    json::string(&mut out, &message.created_at.to_iso_micros());
                    out.push(b'}');
                }
                (*start, *tail, out_of_range.then_some(OUT_OF_RANGE))
            }
        };
        out.extend_from_slice(b"],\"highWatermark\":");
        json::number(&mut out, tail.0);
        out.extend_from_slice(b",\"logStartOffset\":");
        json::number(&mut out, start.0);
        if let Some(error) = error {
            out.extend_from_slice(b",\"error\":");
            json::string(&mut out, error);
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    out
}

/// Lists partitions that were written since a moment.
pub(super) fn changed(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let mut body: Body<'_> = json::parse(&body)?;
        let asked = body.entries()?.iter().map(Asked::read).collect::<Result<Vec<_>, _>>()?;
        drop(body);
        let safe_time = call.broker().safe_time().await?;
        let mut entries = Vec::with_capacity(asked.len());
        for asked in asked {
            entries.push(asked.answer(&call).await?);
        }
        Reply::ok(&json!({"safeTime": safe_time.to_iso_micros(), "entries": entries}))
    })
}

/// One queue whose partitions are asked for.
struct Asked {
    queue: String,
    since: Option<Timestamp>,
    /// Where to go on; the inner `None` is a text that is no place.
    after: Option<Option<PartitionId>>,
    limit: usize,
}

impl Asked {
    fn read(members: &Members<'_>) -> Result<Self, Error> {
        let queue: String = members.need("queue", "a string").map_err(Error::invalid)?;
        names::check("queue", &queue)?;
        let text = |name| {
            members.get::<Option<String>>(name, "a string").map_err(Error::invalid).map(Option::flatten)
        };
        let since = text("since")?.map(|since| moment("since", &since)).transpose()?;
        // A place in one kind of listing is none in the other.
        let mode = if since.is_some() { "since:" } else { "all:" };
        let place = |after: String| after.strip_prefix(mode)?.parse().ok().map(PartitionId);
        let after = text("after")?.map(place);
        let limit: Option<u64> = members.get("limit", "a whole number").map_err(Error::invalid)?;
        let limit = limit.map_or(PAGE_ROWS_MAX, |limit| usize::try_from(limit).unwrap_or(PAGE_ROWS_MAX));
        Ok(Self { queue, since, after, limit: limit.clamp(1, PAGE_ROWS_MAX) })
    }

    async fn answer(&self, call: &Call) -> Result<Value, Error> {
        let failed =
            |error: &str| json!({"queue": self.queue, "partitions": [], "next": null, "error": error});
        if self.after == Some(None) {
            return Ok(failed(BAD_CURSOR));
        }
        let found = call
            .broker()
            .changed_partitions(&self.queue, self.since, self.after.flatten(), self.limit)
            .await?;
        let Some((partitions, next)) = found else { return Ok(failed(UNKNOWN_QUEUE)) };
        let mode = if self.since.is_some() { "since:" } else { "all:" };
        Ok(json!({
            "queue": self.queue,
            "partitions": partitions.iter().map(partition_row).collect::<Vec<_>>(),
            "next": next.map(|next| format!("{mode}{next}")),
        }))
    }
}

fn partition_row(partition: &Partition) -> Value {
    let last = partition.tail.0.checked_sub(1);
    json!({
        "name": partition.name,
        "id": partition.id.to_string(),
        "lastOffset": last.map_or(json!(-1), |last| json!(last)),
        "logStart": partition.start.0,
        "lastWriteAt": if last.is_some() { partition.last_at } else { partition.created_at }.to_iso_micros(),
    })
}
