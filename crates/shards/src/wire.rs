//! Messages between workers and a server, as JSON: the same over ZeroMQ and HTTP.
//!
//! A worker that uses only the plain protocol gets plain answers: a list of numbers. One that sends a `sessionId`
//! gets ranges, tokens, a lease and a generation. Always: unknown members are ignored; errors have a text. Start at
//! [`ShardMessage::parse`].

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Number, Value, json};

use crate::limits::{NAME_BYTES_MAX, WEIGHT_MAX};
use crate::request::{Heartbeat, Refusal, Request};
use crate::view::{Snapshot, WorkerView};
use crate::{Outcome, Ranges};

/// How many heartbeats a worker should send within its lease.
const BEATS_PER_LEASE: u32 = 3;

/// The content of a message, not yet validated.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageData<'a> {
    /// The service; over HTTP it is in the path.
    pub service_name: Option<String>,
    worker_id: Option<String>,
    session_id: Option<String>,
    max_shard_count: Option<Number>,
    weight: Option<u32>,
    capacity: Option<u32>,
    draining: Option<bool>,
    generation: Option<u64>,
    #[serde(borrow)]
    assigned_shards: Option<&'a RawValue>,
    releasing: Option<Vec<u32>>,
    ranges: Option<Ranges>,
    take_over: Option<bool>,
    sequence: Option<u64>,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

/// A valid message.
#[derive(Debug)]
pub struct ShardMessage {
    /// The service.
    pub service: Arc<str>,
    /// The request.
    pub request: Request,
    /// A number that the answer repeats, so that the worker knows which of its heartbeats was answered.
    pub sequence: Option<u64>,
}

impl ShardMessage {
    /// Parses a message from ZeroMQ: `{"type", "data"}`, from the peer that authenticated as `caller`.
    pub fn parse(bytes: &[u8], caller: Option<Arc<str>>) -> Result<Self, Refusal> {
        let envelope: Envelope<'_> = serde_json::from_slice(bytes).map_err(|problem| {
            Refusal::Invalid(format!(
                "not a message ({problem}): send {{\"type\":\"register\",\"data\":{{…}}}}"
            ))
        })?;
        let data = envelope.data.ok_or_else(|| Refusal::Invalid("data is missing".into()))?;
        let mut data: MessageData<'_> = serde_json::from_str(data.get())
            .map_err(|problem| Refusal::Invalid(format!("data cannot be read: {problem}")))?;
        let service = data.service_name.take();
        let service = checked_name("serviceName", service)?;
        Self::from_data(&envelope.kind, service, data, caller)
    }

    /// Validates a message of this kind with `data`, from the peer that authenticated as `caller`.
    pub fn from_data(
        kind: &str,
        service: Arc<str>,
        data: MessageData<'_>,
        caller: Option<Arc<str>>,
    ) -> Result<Self, Refusal> {
        let sequence = data.sequence;
        let worker = checked_name("workerId", data.worker_id.clone())?;
        let session =
            data.session_id.clone().map(|session| checked_name("sessionId", Some(session))).transpose()?;
        let request = match kind {
            "register" | "heartbeat" => Request::Heartbeat(Heartbeat {
                caller,
                ..heartbeat(kind == "register", worker, session, data)?
            }),
            "leave" | "release" => Request::Leave { worker, session, caller },
            "drain" => Request::Drain { worker, draining: data.draining.unwrap_or(true) },
            "undrain" => Request::Drain { worker, draining: false },
            other => {
                let known = "register, heartbeat, leave and drain are known";
                return Err(Refusal::Invalid(format!("the type {other:?} is not known: {known}")));
            }
        };
        Ok(Self { service, request, sequence })
    }
}

fn heartbeat(
    registers: bool,
    worker: Arc<str>,
    session: Option<Arc<str>>,
    data: MessageData<'_>,
) -> Result<Heartbeat, Refusal> {
    let count = data.max_shard_count.as_ref().map(shard_count).transpose()?;
    if registers && count.is_none() {
        return Err(Refusal::Invalid(
            "maxShardCount is missing: how many shards does the service have?".into(),
        ));
    }
    if let Some(weight) = data.weight.filter(|weight| !(1..=WEIGHT_MAX).contains(weight)) {
        return Err(Refusal::Invalid(format!("weight is {weight}: give 1 to {WEIGHT_MAX}")));
    }
    let held = match session {
        Some(_) => held_shards(data.assigned_shards, data.releasing, data.ranges)?,
        // Without a session there is nothing to confirm; the answer corrects the worker's state.
        None => None,
    };
    Ok(Heartbeat {
        worker,
        is_registration: registers,
        session,
        shard_count: count,
        weight: data.weight,
        capacity: data.capacity,
        draining: data.draining,
        generation: data.generation,
        held,
        take_over: data.take_over.unwrap_or(false),
        caller: None,
    })
}

/// The shards that a worker uses: a list, ranges, or both, and those that it is still stopping.
fn held_shards(
    list: Option<&RawValue>,
    releasing: Option<Vec<u32>>,
    ranges: Option<Ranges>,
) -> Result<Option<Ranges>, Refusal> {
    if list.is_none() && ranges.is_none() {
        return Ok(None);
    }
    let list: Option<Vec<u32>> =
        list.map(|list| serde_json::from_str(list.get())).transpose().map_err(|problem| {
            Refusal::Invalid(format!("assignedShards is not a list of shard numbers: {problem}"))
        })?;
    let mut all: Vec<(u32, u32)> = ranges.map(Vec::from).unwrap_or_default();
    let numbers = list.into_iter().chain(releasing).flatten().collect();
    all.extend(Ranges::from_numbers(numbers).iter());
    Ranges::try_from(all).map(Some).map_err(Refusal::Invalid)
}

fn shard_count(number: &Number) -> Result<u32, Refusal> {
    let exact = number.as_f64().filter(|n| n.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(n));
    exact.map(|n| n as u32).ok_or_else(|| {
        Refusal::Invalid(format!("maxShardCount is {number}: give a whole number that is not negative"))
    })
}

/// A name that is present and valid.
pub fn checked_name(what: &str, given: Option<String>) -> Result<Arc<str>, Refusal> {
    let problem = match given {
        None => "is missing".into(),
        Some(name) if name.is_empty() => "is empty".into(),
        Some(name) if name.len() > NAME_BYTES_MAX => {
            format!("has {} bytes: give at most {NAME_BYTES_MAX}", name.len())
        }
        Some(name) if name.chars().any(char::is_control) => "has a control character in it".into(),
        Some(name) => return Ok(name.into()),
    };
    Err(Refusal::Invalid(format!("{what} {problem}")))
}

/// The message with a worker's assignment.
pub fn assignment(answer: &Outcome, sequence: Option<u64>) -> Bytes {
    let Some(worker) = answer.worker() else { return envelope("left", &json!({})) };
    if worker.session.is_none() {
        return plain_assignment(answer.view());
    }
    envelope("assignment", &assignment_with_tokens(answer, sequence))
}

/// The assignment, without the envelope.
pub fn assignment_data(answer: &Outcome, sequence: Option<u64>) -> Value {
    match answer.worker() {
        None => json!({"left": true}),
        Some(worker) if worker.session.is_some() => assignment_with_tokens(answer, sequence),
        Some(_) => json!({"assignedShards": answer.view().shards().numbers().collect::<Vec<_>>()}),
    }
}

fn assignment_with_tokens(answer: &Outcome, sequence: Option<u64>) -> Value {
    let Some(worker) = answer.worker() else { return Value::Null };
    let view = answer.view();
    let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut data = json!({
        "workerId": &*worker.id,
        "sessionId": worker.session.as_deref(),
        "generation": worker.generation,
        "grants": grants(view),
        "revoking": view.revoking,
        "draining": worker.draining,
        "maxShardCount": answer.snapshot.service.count,
        "leaseMs": millis(worker.usable_lease()),
        "heartbeatMs": millis(worker.timeout / BEATS_PER_LEASE),
    });
    if let Some(sequence) = sequence {
        data["sequence"] = sequence.into();
    }
    data
}

fn grants(view: &WorkerView) -> Vec<Value> {
    view.grants
        .iter()
        .map(|grant| json!({"from": grant.from, "to": grant.to, "token": grant.token}))
        .collect()
}

/// The answer to a worker of the plain protocol, encoded once for each assignment.
fn plain_assignment(view: &WorkerView) -> Bytes {
    view.plain
        .get_or_init(|| {
            let mut text = String::from("{\"type\":\"assignment\",\"data\":{\"assignedShards\":[");
            for (place, number) in view.grants.iter().flat_map(|grant| grant.from..=grant.to).enumerate() {
                // Writing to a string cannot fail.
                let _ = if place == 0 { write!(text, "{number}") } else { write!(text, ",{number}") };
            }
            text.push_str("]}}");
            text.into()
        })
        .clone()
}

fn envelope(kind: &str, data: &Value) -> Bytes {
    json!({"type": kind, "data": data}).to_string().into()
}

/// The message with a refusal.
pub fn error(refusal: &Refusal, sequence: Option<u64>) -> Bytes {
    let mut data = json!({"code": refusal.code(), "message": refusal.to_string()});
    if let Some(sequence) = sequence {
        data["sequence"] = sequence.into();
    }
    envelope("error", &data)
}

/// A service in a list.
pub fn service_summary(name: &str, snapshot: &Snapshot) -> Value {
    let service = &snapshot.service;
    let active = service.workers().filter(|(_, worker)| worker.status == crate::Status::Active).count();
    let revoking: u32 = service.workers().map(|(_, worker)| worker.revoking).sum();
    json!({
        "service": name,
        "maxShardCount": service.count,
        "generation": service.generation,
        "version": snapshot.version.to_string(),
        "workers": active,
        "unassigned": snapshot.unassigned,
        "revoking": revoking,
        "moves": service.moves,
    })
}

/// A service with its workers and their shards.
pub fn service_details(name: &str, snapshot: &Snapshot) -> Value {
    let mut shown = service_summary(name, snapshot);
    let mut workers: Vec<_> = snapshot.service.workers().collect();
    workers.sort_by(|a, b| a.1.id.cmp(&b.1.id).then(a.0.cmp(&b.0)));
    let row = |(number, worker): &(u32, &crate::Worker)| {
        let view = snapshot.view(*number);
        json!({
            "workerId": &*worker.id,
            "sessionId": worker.session.as_deref(),
            "status": match worker.status {
                crate::Status::Active => "active",
                crate::Status::Inactive => "inactive",
                crate::Status::Fenced => "fenced",
            },
            "draining": worker.draining,
            "owner": worker.owner.as_deref(),
            "weight": worker.weight,
            "capacity": worker.capacity,
            "generation": worker.generation,
            "since": worker.registered_at.to_iso_millis(),
            "shards": view.shards(),
            "shardCount": view.shards().count(),
            "grants": grants(view),
            "leaseMs": u64::try_from(worker.timeout.as_millis()).unwrap_or(u64::MAX),
            "revoking": view.revoking,
        })
    };
    shown["assignments"] = workers.iter().map(row).collect::<Vec<_>>().into();
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(message: &str) -> String {
        ShardMessage::parse(message.as_bytes(), None).unwrap_err().to_string()
    }

    #[test]
    fn the_plain_messages_are_understood() {
        let register = r#"{"type":"register","data":{"serviceName":"s","workerId":"w","maxShardCount":10}}"#;
        let message = ShardMessage::parse(register.as_bytes(), None).unwrap();
        assert_eq!(&*message.service, "s");
        let expected =
            Heartbeat { is_registration: true, shard_count: Some(10), ..Heartbeat::from_worker("w") };
        assert_eq!(message.request, Request::Heartbeat(expected));
        let beat = r#"{"type":"heartbeat","data":{"serviceName":"s","workerId":"w","maxShardCount":10,
            "assignedShards":[0,1],"later":{"x":1}}}"#;
        let expected = Heartbeat { shard_count: Some(10), ..Heartbeat::from_worker("w") };
        assert_eq!(ShardMessage::parse(beat.as_bytes(), None).unwrap().request, Request::Heartbeat(expected));
    }

    #[test]
    fn used_shards_may_be_a_list_or_ranges() {
        let beat = r#"{"type":"heartbeat","data":{"serviceName":"s","workerId":"w","sessionId":"1","generation":3,
            "assignedShards":[4,5],"releasing":[9],"ranges":[[0,3]],"sequence":7}}"#;
        let message = ShardMessage::parse(beat.as_bytes(), None).unwrap();
        let Request::Heartbeat(beat) = message.request else { panic!() };
        assert_eq!((beat.held.unwrap().to_string().as_str(), message.sequence), ("0-5,9", Some(7)));
    }

    #[test]
    fn errors_are_explained() {
        assert!(refused("nonsense").contains("not a message"));
        assert!(refused(r#"{"type":"register"}"#).contains("data is missing"));
        assert!(refused(r#"{"type":"register","data":[]}"#).contains("cannot be read"));
        assert!(refused(r#"{"type":"x","data":{"serviceName":"s","workerId":"w"}}"#).contains("\"x\""));
        assert!(refused(r#"{"type":"register","data":{"serviceName":"s"}}"#).contains("workerId is missing"));
        let with = |count: &str| {
            format!(
                r#"{{"type":"register","data":{{"serviceName":"s","workerId":"w","maxShardCount":{count}}}}}"#
            )
        };
        for count in ["-1", "2.5", "1e300", "4294967296"] {
            assert!(refused(&with(count)).contains("maxShardCount"), "{count}");
        }
        assert!(refused(&with("\"7\"")).contains("cannot be read"));
        assert!(ShardMessage::parse(with("10.0").as_bytes(), None).is_ok());
    }

    proptest! {
        #[test]
        fn no_message_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in ".*") {
            let _ = ShardMessage::parse(&bytes, None);
            let _ = ShardMessage::parse(text.as_bytes(), None);
            let _ = ShardMessage::parse(json!({"type": "register", "data": {"serviceName": text}}).to_string().as_bytes(), None);
        }
    }
}
