//! `/streams/v1/…`: the server's part of stream processing: queries, their state, and their cycles.
//!
//! Always: a cycle that was not done is status 200 with `success: false` and the reason, as clients expect; only a
//! request that cannot be read is an error. Start at [`cycle`].

use baton_http::Reply;
use baton_queue::{
    Cycle, CycleAck, Cycled, KEY_BYTES_MAX, NewQuery, PushBatch, StateChange, StateRow, VALUE_BYTES_MAX,
    Wanted,
};
use baton_types::wire::AckStatus;
use baton_types::{PartitionId, QUEUE_MODE};
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::push::{self, Item, RawItem};
use crate::call::{Answer, Call};
use crate::error::{Error, Kind};
use crate::json::{self, Kept, List, Text, lenient};
use crate::names;

/// Keys that a call may ask for by name.
const KEYS_MAX: usize = 10_000;

lenient! {
    struct QueryBody<'a> {
        "name" => name: Text<'a>,
        "source_queue" => source: Text<'a>,
        "sink_queue" => sink: Text<'a>,
        "config_hash" => config_hash: Text<'a>,
        "reset" => reset: Option<&'a RawValue>,
    }
}

/// A text that must be there and not be empty.
fn filled(text: Text<'_>, what: &str) -> Result<String, Error> {
    let message = format!("{what} is required");
    let text = text.required(&message)?;
    if text.is_empty() { Err(Error::invalid(message)) } else { Ok(text.into_owned()) }
}

fn parse_query(body: &[u8]) -> Result<NewQuery, Error> {
    let body: QueryBody<'_> = json::parse(body)?;
    let query = NewQuery {
        id: baton_env::fresh_uuid().to_string(),
        name: filled(body.name, "name")?,
        source: filled(body.source, "source_queue")?,
        config_hash: filled(body.config_hash, "config_hash")?,
        sink: body
            .sink
            .or_null("sink_queue must be a string")?
            .filter(|sink| !sink.is_empty())
            .map(std::borrow::Cow::into_owned),
        reset: body.reset.is_some_and(|reset| reset.get() == "true"),
    };
    names::check("name", &query.name)?;
    names::check("source_queue", &query.source)?;
    names::check("sink_queue", query.sink.as_deref().unwrap_or_default())?;
    names::check("config_hash", &query.config_hash)?;
    Ok(query)
}

/// Registers a query.
pub(super) fn register(mut call: Call) -> Answer {
    Box::pin(async move {
        let query = parse_query(&call.body()?)?;
        let (name, config_hash) = (query.name.clone(), query.config_hash.clone());
        let registered = call.broker().register_query(query).await?;
        if let Some(stored) = registered.mismatch {
            let error = format!(
                "config_hash mismatch: the query {name:?} is registered with {stored}, this is {config_hash}; \
                 register it with reset to give up its state, or under another name"
            );
            let body = json!({
                "success": false, "query_id": registered.id, "name": name, "error": error,
                "code": "config_mismatch",
            });
            return Reply::of(StatusCode::CONFLICT, &body);
        }
        Reply::ok(&json!({
            "success": true,
            "query_id": registered.id,
            "name": name,
            "config_hash": config_hash,
            "fresh": registered.fresh,
            "reset": registered.reset,
        }))
    })
}

lenient! {
    struct StateBody<'a> {
        "query_id" => query_id: Text<'a>,
        "partition_id" => partition_id: Text<'a>,
        "keys" => keys: List<Text<'a>>,
        "key_prefix" => key_prefix: Text<'a>,
        "ripe_at_or_before" => ripe: Option<&'a RawValue>,
    }
}

/// Which state is asked for.
#[derive(Debug)]
struct Asked {
    query: String,
    partition: Option<PartitionId>,
    wanted: Wanted,
    /// The end of the latest window that counts, in milliseconds.
    ripe: Option<f64>,
}

fn parse_state(body: &[u8]) -> Result<Asked, Error> {
    let body: StateBody<'_> = json::parse(body)?;
    let query = filled(body.query_id, "query_id")?;
    let partition = filled(body.partition_id, "partition_id")?.parse().ok();
    let keys = match body.keys {
        List::Not => Vec::new(),
        keys => keys.required("keys must be an array of strings")?,
    };
    if keys.len() > KEYS_MAX {
        let message = format!("keys holds at most {KEYS_MAX} of them; split the request");
        return Err(Error::new(Kind::BatchTooLarge, message));
    }
    let keys = keys.into_iter().map(|key| key.required("keys must be an array of strings").map(Into::into));
    let mut keys: Vec<String> = keys.collect::<Result<_, Error>>()?;
    keys.sort_unstable();
    keys.dedup();
    let prefix = body.key_prefix.or_null("key_prefix must be a string")?.unwrap_or_default();
    let wanted = if keys.is_empty() {
        Wanted::Prefix(prefix.into_owned())
    } else {
        keys.retain(|key| key.starts_with(&*prefix));
        Wanted::Keys(keys)
    };
    let ripe = body.ripe.filter(|ripe| ripe.get() != "null").map(|ripe| serde_json::from_str(ripe.get()));
    let ripe = ripe.transpose().map_err(|_| Error::invalid("ripe_at_or_before must be a number"))?;
    Ok(Asked { query, partition, wanted, ripe })
}

/// Whether a value is that of a window which ends by `moment`.
fn is_ripe(value: &[u8], moment: f64) -> bool {
    #[derive(Deserialize)]
    struct Window {
        #[serde(rename = "windowEnd")]
        end: Value,
    }
    let window = serde_json::from_slice::<Window>(value).ok();
    window.and_then(|window| window.end.as_f64()).is_some_and(|end| end <= moment)
}

/// Reads the state of a query in a partition.
pub(super) fn state(mut call: Call) -> Answer {
    Box::pin(async move {
        let asked = parse_state(&call.body()?)?;
        let mut rows = match asked.partition {
            Some(partition) => call.broker().query_state(&asked.query, partition, asked.wanted).await?,
            None => Vec::new(),
        };
        if let Some(ripe) = asked.ripe {
            rows.retain(|row| is_ripe(&row.value, ripe));
        }
        Ok(Reply::json(StatusCode::OK, write_state(&rows)))
    })
}

fn write_state(rows: &[StateRow]) -> Vec<u8> {
    let mut out = b"{\"success\":true,\"rows\":[".to_vec();
    for (index, row) in rows.iter().enumerate() {
        out.extend_from_slice(if index > 0 { b",{\"key\":" } else { b"{\"key\":" });
        json::string(&mut out, &row.key);
        out.extend_from_slice(b",\"value\":");
        out.extend_from_slice(&row.value);
        out.extend_from_slice(b",\"updated_at\":");
        json::string(&mut out, &row.updated_at.to_iso_micros().replace('Z', "+00:00"));
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    out
}

lenient! {
    struct CycleBody<'a> {
        "query_id" => query_id: Text<'a>,
        "partition_id" => partition_id: Text<'a>,
        "consumer_group" => consumer_group: Text<'a>,
        "state_ops" => state_ops: List<RawChange<'a>>,
        "push_items" => push_items: List<RawItem<'a>>,
        "ack" => ack: Option<&'a RawValue>,
        "release_lease" => release_lease: Option<&'a RawValue>,
    }
}

lenient! {
    struct RawChange<'a> {
        "type" => kind: Text<'a>,
        "key" => name: Text<'a>,
        "value" => value: Option<Kept<'a>>,
    }
}

lenient! {
    struct RawAck<'a> {
        "transactionId" => transaction_id: Text<'a>,
        "leaseId" => lease_id: Text<'a>,
        "status" => status: Text<'a>,
        "error" => error: Text<'a>,
    }
}

/// A cycle as it was sent.
#[derive(Debug)]
struct Plan<'a> {
    query: String,
    partition_id: String,
    group: String,
    items: Vec<Item<'a>>,
    /// What it does; or why it cannot be done, which is an answer and not an error.
    work: Result<(Vec<StateChange>, Option<CycleAck>), String>,
}

fn parse_cycle<'a>(body: &'a [u8]) -> Result<Plan<'a>, Error> {
    let body: CycleBody<'a> = json::parse(body)?;
    let query = filled(body.query_id, "query_id")?;
    let partition_id = filled(body.partition_id, "partition_id")?;
    let group = body.consumer_group.or_null("consumer_group must be a string")?;
    let group = group.filter(|group| !group.is_empty()).unwrap_or(QUEUE_MODE.into()).into_owned();
    names::check("consumer_group", &group)?;
    let checked = |item: RawItem<'a>| {
        let fallback = item.data.map_or("{}", Kept::get);
        item.checked(fallback)
    };
    let items = some_or_empty(body.push_items)?.into_iter().map(checked).collect::<Result<_, Error>>()?;
    let release = body.release_lease.is_none_or(|release| release.get() != "false");
    let changes = changes(some_or_empty(body.state_ops)?)?;
    let ack = body.ack.map(|raw| ack(raw, release)).transpose()?;
    let work = match (changes, ack.transpose()) {
        (Ok(changes), Ok(ack)) => Ok((changes, ack)),
        (Err(error), _) | (_, Err(error)) => Err(error),
    };
    Ok(Plan { query, partition_id, group, items, work })
}

fn some_or_empty<T>(list: List<T>) -> Result<Vec<T>, Error> {
    match list {
        List::Not => Ok(Vec::new()),
        list => list.required(""),
    }
}

fn changes(raw: Vec<RawChange<'_>>) -> Result<Result<Vec<StateChange>, String>, Error> {
    let mut changes = Vec::with_capacity(raw.len());
    for change in raw {
        let kind = change.kind.required("each state_op needs a type: upsert or delete")?;
        let key = change.name.required("each state_op needs a key")?.into_owned();
        if key.len() > KEY_BYTES_MAX {
            let message = format!("a state key has {} bytes, {KEY_BYTES_MAX} are allowed", key.len());
            return Err(Error::new(Kind::NameTooLong, message));
        }
        if key.contains('\0') {
            return Err(Error::invalid("a state key must not contain a NUL character"));
        }
        match &*kind {
            "upsert" => {
                let value = change.value.map_or("null", Kept::get);
                if value.len() > VALUE_BYTES_MAX {
                    let message =
                        format!("a state value has {} bytes, {VALUE_BYTES_MAX} are allowed", value.len());
                    return Err(Error::new(Kind::BodyTooLarge, message));
                }
                changes.push(StateChange::Put { key, value: Bytes::copy_from_slice(value.as_bytes()) });
            }
            "delete" => changes.push(StateChange::Remove { key }),
            other => return Ok(Err(format!("Unknown state_op type: {other}"))),
        }
    }
    Ok(Ok(changes))
}

fn ack(raw: &RawValue, release: bool) -> Result<Result<CycleAck, String>, Error> {
    let raw: RawAck<'_> = json::parse(raw.get().as_bytes())?;
    let id = raw.transaction_id.or_null("ack.transactionId must be a string")?;
    let Some(transaction_id) = id.filter(|id| !id.is_empty()) else {
        return Ok(Err("ack.transactionId is required".into()));
    };
    let status = match raw.status.or_null("ack.status must be a string")?.as_deref() {
        None | Some("completed") => AckStatus::Completed,
        Some("failed") => AckStatus::Failed,
        Some("dlq") => AckStatus::Dlq,
        Some(other) => return Ok(Err(format!("Unknown ack.status: {other}"))),
    };
    let lease = raw.lease_id.or_null("ack.leaseId must be a string")?;
    Ok(Ok(CycleAck {
        transaction_id: transaction_id.into_owned(),
        lease: lease.and_then(|lease| lease.parse().ok()),
        status,
        error: raw.error.or_null("ack.error must be a string")?.map(std::borrow::Cow::into_owned),
        release,
    }))
}

/// Changes state, pushes and finishes what was read, all or nothing.
pub(super) fn cycle(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let plan = parse_cycle(&body)?;
        let mut pushes = PushBatch::default();
        plan.items.iter().try_for_each(|item| item.add_to(&mut pushes, call.caller()))?;
        let (cycled, applied) = match (&plan.work, plan.partition_id.parse::<PartitionId>()) {
            (Err(error), _) => (Cycled { error: Some(error.clone()), ..Cycled::default() }, 0),
            (_, Err(_)) => (Cycled { error: Some("Partition not found".into()), ..Cycled::default() }, 0),
            (Ok((changes, ack)), Ok(partition)) => {
                let cycle = Cycle {
                    query: plan.query.clone(),
                    partition,
                    group: plan.group.clone(),
                    changes: changes.clone(),
                    pushes,
                    ack: ack.clone(),
                };
                (call.broker().cycle(cycle).await?, changes.len())
            }
        };
        Ok(Reply::json(StatusCode::OK, write_cycle(&plan, &cycled, applied)))
    })
}

fn write_cycle(plan: &Plan<'_>, cycled: &Cycled, applied: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(256 + cycled.pushed.len() * 400);
    out.extend_from_slice(b"{\"success\":");
    json::boolean(&mut out, cycled.error.is_none());
    out.extend_from_slice(b",\"query_id\":");
    json::string(&mut out, &plan.query);
    out.extend_from_slice(b",\"partition_id\":");
    json::string(&mut out, &plan.partition_id);
    out.extend_from_slice(b",\"queueName\":");
    json::string_or_null(&mut out, cycled.queue.as_deref());
    out.extend_from_slice(b",\"state_ops_applied\":");
    json::number(&mut out, if cycled.error.is_none() { applied as u64 } else { 0 });
    out.extend_from_slice(b",\"push_results\":");
    out.extend_from_slice(&push::write(&plan.items[..cycled.pushed.len()], &cycled.pushed));
    out.extend_from_slice(b",\"ack_result\":");
    match &cycled.acked {
        None => out.extend_from_slice(b"null"),
        Some(acked) => {
            out.extend_from_slice(b"{\"success\":true,\"count\":");
            json::number(&mut out, acked.finished);
            out.extend_from_slice(b",\"lease_released\":");
            json::boolean(&mut out, acked.lease_released);
            out.extend_from_slice(b",\"dlq\":");
            json::boolean(&mut out, acked.dead_lettered);
            out.push(b'}');
        }
    }
    if let Some(error) = &cycled.error {
        out.extend_from_slice(b",\"error\":");
        json::string(&mut out, error);
    }
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cycle_cannot_do_is_an_answer_and_what_cannot_be_read_an_error() {
        let plan = |rest: &str| {
            let body = format!(r#"{{"query_id":"q","partition_id":"1"{rest}}}"#);
            parse_cycle(body.as_bytes()).map(|plan| plan.work).map_err(|e| e.to_string())
        };
        assert!(matches!(plan("").unwrap().unwrap(), (changes, None) if changes.is_empty()));
        let unknown = plan(r#","state_ops":[{"type":"grow","key":"k"}]"#).unwrap().unwrap_err();
        assert_eq!(unknown, "Unknown state_op type: grow");
        assert_eq!(plan(r#","ack":{}"#).unwrap().unwrap_err(), "ack.transactionId is required");
        let status = plan(r#","ack":{"transactionId":"t","status":"retry"}"#).unwrap().unwrap_err();
        assert_eq!(status, "Unknown ack.status: retry");
        assert!(plan(r#","state_ops":[{"type":"upsert"}]"#).unwrap_err().contains("key"));
        assert!(plan(r#","push_items":[{}]"#).unwrap_err().contains("Queue"));
        let long = "k".repeat(KEY_BYTES_MAX + 1);
        assert!(
            plan(&format!(r#","state_ops":[{{"type":"delete","key":"{long}"}}]"#))
                .unwrap_err()
                .contains("key")
        );
        for body in ["{}", "[]", "1", r#"{"query_id":""}"#] {
            assert_eq!(parse_cycle(body.as_bytes()).unwrap_err().to_string(), "query_id is required");
        }
    }

    #[test]
    fn only_a_window_that_has_ended_is_ripe() {
        assert!(is_ripe(br#"{"windowEnd": 10}"#, 10.0));
        assert!(is_ripe(br#"{"windowEnd": 9.5, "acc": {}}"#, 10.0));
        for value in [r#"{"windowEnd": 11}"#, r#"{"windowEnd": "9"}"#, "{}", "7", "null"] {
            assert!(!is_ripe(value.as_bytes(), 10.0), "{value}");
        }
    }

    #[test]
    fn keys_and_a_prefix_hold_together() {
        let asked = |rest: &str| {
            let body = format!(r#"{{"query_id":"q","partition_id":"1"{rest}}}"#);
            parse_state(body.as_bytes()).unwrap().wanted
        };
        assert!(
            matches!(asked(r#","keys":["b","a","b"],"key_prefix":"b""#), Wanted::Keys(keys) if keys == ["b"])
        );
        assert!(matches!(asked(r#","keys":[]"#), Wanted::Prefix(prefix) if prefix.is_empty()));
        assert!(matches!(asked(r#","keys":null,"key_prefix":"x""#), Wanted::Prefix(prefix) if prefix == "x"));
    }
}
