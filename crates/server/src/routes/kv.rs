//! `/api/v1/kv…`: records with an expiry, compare-and-set and counters.
//!
//! Always: a condition that does not hold is an answer with status 200, only a request that cannot be read is an
//! error; values pass through as they came, without the space between their tokens. Not here: what an operation
//! means (`baton_queue::kv`). The same operations ride in a transaction. Start at [`batch`], then [`read`].

use std::collections::BTreeSet;
use std::time::Duration;

use baton_queue::counter::Addition;
use baton_queue::kv::{LOCKS, Life, Lost, Operation, Outcome, Place, Precondition, Row, Step};
use baton_types::Timestamp;
use baton_types::limits::{
    KEY_BYTES_MAX, KV_KEYS_MAX, KV_OPERATIONS_MAX, KV_VALUE_BYTES_MAX, PAGE_ROWS_MAX, RECORD_LIFE_MAX,
    TRANSACTION_KV_KEYS_MAX, TRANSACTION_KV_OPERATIONS_MAX,
};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde_json::value::RawValue;

use crate::call::{Answer, Call};
use crate::error::{Error, Kind};
use crate::json::{self, List, lenient};
use crate::members::Members;
use crate::reply::Reply;

const NAMESPACE_BYTES_MAX: usize = 64;
const DEFAULT_ROWS: usize = 100;

lenient! {
    struct Body<'a> {
        "operations" => operations: List<&'a RawValue>,
    }
}

/// An operation with the name that it was asked by.
#[derive(Debug)]
pub(super) struct Named {
    name: &'static str,
    /// What to do.
    pub step: Step,
}

/// How much a call may ask for.
pub(super) struct Bounds {
    operations: usize,
    keys: usize,
    /// Whether it may read by prefix, which costs what the caller does not know.
    prefixes: bool,
}

/// The bounds of a call of its own.
const CALL: Bounds = Bounds { operations: KV_OPERATIONS_MAX, keys: KV_KEYS_MAX, prefixes: true };
/// The bounds inside a transaction.
pub(super) const RIDER: Bounds =
    Bounds { operations: TRANSACTION_KV_OPERATIONS_MAX, keys: TRANSACTION_KV_KEYS_MAX, prefixes: false };

fn refuse(reason: &'static str, detail: impl Into<String>) -> Error {
    Error::refused(Kind::KvInvalid, reason, detail)
}

fn bad_body(detail: String) -> Error {
    refuse("kv_bad_body", detail)
}

/// Does several operations.
pub(super) fn batch(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let body: Body<'_> = json::parse(&body)?;
        let List::Is(operations) = body.operations else {
            return Err(bad_body("operations must be a list of operations".into()));
        };
        if operations.is_empty() {
            return Err(bad_body("operations must not be empty".into()));
        }
        let named = read(&operations, &CALL)?;
        let steps = named.iter().map(|named| named.step.clone()).collect();
        let mut out = Vec::with_capacity(256 * named.len());
        match call.broker().kv(steps).await? {
            Ok(outcomes) => {
                out.extend_from_slice(b"{\"results\":[");
                for (index, (named, outcome)) in named.iter().zip(&outcomes).enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    out.extend_from_slice(b"{\"index\":");
                    json::number(&mut out, index as u64);
                    write(&mut out, named, outcome);
                    out.push(b'}');
                }
                out.extend_from_slice(b"]}");
            }
            Err(lost) => {
                out.extend_from_slice(b"{\"reason\":\"kv_precondition\"");
                write_precondition(&mut out, &lost, lost.index);
                out.push(b'}');
            }
        }
        Ok(Reply::json(StatusCode::OK, out))
    })
}

/// Reads one record.
pub(super) fn get(call: Call) -> Answer {
    Box::pin(async move {
        let place = path_place(&call)?;
        let step = Step { operation: Operation::Get(place), required: false };
        answer_one(&call, Named { name: "get", step }).await
    })
}

/// Writes one record.
pub(super) fn put(mut call: Call) -> Answer {
    Box::pin(async move {
        let place = path_place(&call)?;
        let body = call.body()?;
        let members = path_members(&body)?.ok_or_else(|| bad_body("the body must be an object".into()))?;
        writable(&place)?;
        let operation = Operation::Put {
            place,
            value: value(&members)?,
            life: life(&members)?,
            expect: expect(&members)?,
        };
        let required = members.flag("required").map_err(bad_body)?;
        answer_one(&call, Named { name: "put", step: Step { operation, required } }).await
    })
}

/// Deletes one record.
pub(super) fn delete(mut call: Call) -> Answer {
    Box::pin(async move {
        let place = path_place(&call)?;
        writable(&place)?;
        let body = call.body()?;
        let members = path_members(&body)?;
        let expect = members.as_ref().map(expect).transpose()?.flatten();
        let required = members.map(|members| members.flag("required")).transpose().map_err(bad_body)?;
        let step =
            Step { operation: Operation::Delete { place, expect }, required: required.unwrap_or(false) };
        answer_one(&call, Named { name: "delete", step }).await
    })
}

fn path_place(call: &Call) -> Result<Place, Error> {
    if call.has_query() {
        return Err(refuse("kv_no_query_string", "a record's path takes no query; send a body instead"));
    }
    place(call.parameter(0).to_owned(), call.parameter(1).to_owned())
}

/// The members of the body of a call whose path names the record.
fn path_members(body: &[u8]) -> Result<Option<Members<'_>>, Error> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let raw: &RawValue = json::parse(body)?;
    let members = Members::of(raw.get()).ok_or_else(|| bad_body("the body must be an object".into()))?;
    if let Some(name) = members.names().find(|name| matches!(*name, "op" | "ns" | "namespace" | "key")) {
        return Err(refuse("kv_field_in_path", format!("{name} stands in the path and not in the body")));
    }
    Ok(Some(members))
}

async fn answer_one(call: &Call, named: Named) -> Result<Reply, Error> {
    let mut out = Vec::with_capacity(256);
    let mut version = None;
    match call.broker().kv(vec![named.step.clone()]).await? {
        Ok(outcomes) => {
            out.extend_from_slice(b"{\"index\":0");
            for outcome in &outcomes {
                write(&mut out, &named, outcome);
                if let Outcome::Found(Some(row)) = outcome {
                    version = Some(row.version);
                }
            }
        }
        Err(lost) => {
            out.extend_from_slice(b"{\"reason\":\"kv_precondition\"");
            write_precondition(&mut out, &lost, lost.index);
        }
    }
    out.push(b'}');
    let reply = Reply::json(StatusCode::OK, out);
    Ok(match version.and_then(|version| HeaderValue::from_str(&format!("\"{version}\"")).ok()) {
        Some(tag) => reply.with_header(header::ETAG, tag),
        None => reply,
    })
}

/// Reads the operations of a call.
pub(super) fn read(operations: &[&RawValue], bounds: &Bounds) -> Result<Vec<Named>, Error> {
    if operations.len() > bounds.operations {
        let detail = format!("{} operations, {} are allowed", operations.len(), bounds.operations);
        return Err(refuse("kv_too_many_ops", detail));
    }
    let (mut named, mut written, mut keys) = (Vec::with_capacity(operations.len()), BTreeSet::new(), 0);
    for raw in operations {
        let members =
            Members::of(raw.get()).ok_or_else(|| bad_body("an operation must be an object".into()))?;
        let one = read_one(&members)?;
        keys += match &one.step.operation {
            Operation::GetMany { keys, .. } => keys.len(),
            Operation::GetPrefix { .. } if !bounds.prefixes => {
                let detail = "getPrefix is not allowed in a transaction; name the keys with getMany";
                return Err(refuse("kv_unknown_op", detail));
            }
            _ => 1,
        };
        if keys > bounds.keys {
            return Err(refuse("kv_too_many_keys", format!("a call names at most {} keys", bounds.keys)));
        }
        if let Some(place) = one.step.operation.written()
            && !written.insert(place.clone())
        {
            let detail = format!("{:?} would be written twice in one call", place.key);
            return Err(refuse("kv_duplicate_key_in_call", detail));
        }
        named.push(one);
    }
    Ok(named)
}

fn read_one(members: &Members<'_>) -> Result<Named, Error> {
    let name: String = members.need("op", "the name of an operation").map_err(bad_body)?;
    let namespace: String =
        members.need("ns", "a namespace").map_err(|detail| refuse("kv_bad_namespace", detail))?;
    let a_key = || members.need::<String>("key", "a string").map_err(|detail| refuse("kv_bad_key", detail));
    let required = members.flag("required").map_err(bad_body)?;
    let (name, operation) = match name.as_str() {
        "get" => ("get", Operation::Get(place(namespace, a_key()?)?)),
        "getMany" => {
            let keys: Vec<String> =
                members.need("keys", "a list of strings").map_err(|detail| refuse("kv_bad_key", detail))?;
            if keys.is_empty() {
                return Err(refuse("kv_bad_key", "keys must not be empty"));
            }
            check_namespace(&namespace)?;
            keys.iter().try_for_each(|key| check_key(key))?;
            ("getMany", Operation::GetMany { namespace, keys })
        }
        "getPrefix" => ("getPrefix", prefix(members, namespace)?),
        "put" | "putIfAbsent" => {
            let place = place(namespace, a_key()?)?;
            writable(&place)?;
            let expected = expect(members)?;
            let (name, expect) = if name == "put" {
                ("put", expected)
            } else if expected.is_none_or(|expected| expected == 0) {
                ("putIfAbsent", Some(0))
            } else {
                return Err(refuse("kv_bad_expect", "putIfAbsent expects 0 and nothing else"));
            };
            (name, Operation::Put { place, value: value(members)?, life: life(members)?, expect })
        }
        "delete" => {
            let place = place(namespace, a_key()?)?;
            writable(&place)?;
            ("delete", Operation::Delete { place, expect: expect(members)? })
        }
        "incr" => {
            let place = place(namespace, a_key()?)?;
            writable(&place)?;
            if members.raw("expect").is_some() {
                return Err(refuse(
                    "kv_bad_expect",
                    "incr takes no expect; it cannot lose to another writer",
                ));
            }
            let addition = Addition {
                delta: members.need("delta", "a number").map_err(bad_body)?,
                min: members.get("min", "a number").map_err(bad_body)?,
                max: members.get("max", "a number").map_err(bad_body)?,
            };
            ("incr", Operation::Add { place, addition, life: life(members)? })
        }
        "check" => {
            let expected = expect(members)?
                .ok_or_else(|| refuse("kv_bad_expect", "check needs expect: a version, or 0 for none"))?;
            ("check", Operation::Check { place: place(namespace, a_key()?)?, expect: expected })
        }
        other => {
            let known = "get, getMany, getPrefix, put, putIfAbsent, delete, incr and check";
            return Err(refuse("kv_unknown_op", format!("{other:?} is none of {known}")));
        }
    };
    Ok(Named { name, step: Step { operation, required } })
}

fn prefix(members: &Members<'_>, namespace: String) -> Result<Operation, Error> {
    check_namespace(&namespace)?;
    let needed = || refuse("kv_prefix_required", "prefix must be a string that is not empty");
    let prefix: String = members.need("prefix", "a string").map_err(|_| needed())?;
    if prefix.is_empty() {
        return Err(needed());
    }
    check_key(&prefix)?;
    let after: Option<String> =
        members.get("after", "a key").map_err(|detail| refuse("kv_bad_key", detail))?;
    after.iter().try_for_each(|after| check_key(after))?;
    let limit: Option<i64> = members.get("limit", "a whole number").map_err(bad_body)?;
    Ok(Operation::GetPrefix {
        namespace,
        prefix,
        after,
        limit: limit
            .map_or(DEFAULT_ROWS, |limit| usize::try_from(limit).unwrap_or(1))
            .clamp(1, PAGE_ROWS_MAX),
        keys_only: members.flag("keysOnly").map_err(bad_body)?,
    })
}

fn place(namespace: String, key: String) -> Result<Place, Error> {
    check_namespace(&namespace)?;
    check_key(&key)?;
    Ok(Place { namespace, key })
}

fn check_namespace(namespace: &str) -> Result<(), Error> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_fine = namespace.len() <= NAMESPACE_BYTES_MAX
        && namespace.bytes().next().is_some_and(is_plain)
        && namespace.bytes().all(|byte| is_plain(byte) || b"._-".contains(&byte));
    if is_fine {
        return Ok(());
    }
    let detail = "a namespace has 1 to 64 of a-z, 0-9, '.', '_' and '-', and begins with a letter or a digit";
    Err(refuse("kv_bad_namespace", detail))
}

fn check_key(key: &str) -> Result<(), Error> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX || key.contains('\0') {
        return Err(refuse("kv_bad_key", format!("a key has 1 to {KEY_BYTES_MAX} bytes and no NUL")));
    }
    Ok(())
}

fn writable(place: &Place) -> Result<(), Error> {
    if place.namespace == LOCKS {
        return Err(refuse("kv_bad_namespace", format!("{LOCKS} is written through /api/v1/locks only")));
    }
    Ok(())
}

fn value(members: &Members<'_>) -> Result<Bytes, Error> {
    let raw = members.raw("value").ok_or_else(|| bad_body("value is missing; null is a value too".into()))?;
    let value = compact(raw);
    if value.len() > KV_VALUE_BYTES_MAX {
        let detail = format!("a value has at most {KV_VALUE_BYTES_MAX} bytes, this one has {}", value.len());
        return Err(Error::refused(Kind::PayloadTooLarge, "kv_value_too_large", detail));
    }
    Ok(value.into())
}

/// JSON without the space between its tokens.
fn compact(text: &str) -> Vec<u8> {
    let (mut in_string, mut escaped) = (false, false);
    let mut keep = |byte: u8| {
        if in_string {
            in_string = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            return true;
        }
        in_string = byte == b'"';
        !byte.is_ascii_whitespace()
    };
    text.bytes().filter(|byte| keep(*byte)).collect()
}

fn life(members: &Members<'_>) -> Result<Life, Error> {
    let bad_ttl = |detail| refuse("kv_bad_ttl", detail);
    let seconds: Option<u64> = members.get("ttlSeconds", "a whole number above zero").map_err(bad_ttl)?;
    let forever: Option<bool> = members.get("forever", "true").map_err(bad_ttl)?;
    match (seconds, forever) {
        (Some(seconds), None) if (1..=RECORD_LIFE_MAX.as_secs()).contains(&seconds) => {
            Ok(Life::For(Duration::from_secs(seconds)))
        }
        (Some(_), None) => {
            let max = RECORD_LIFE_MAX.as_secs();
            Err(bad_ttl(format!("ttlSeconds is from 1 to {max}; use forever for longer")))
        }
        (None, Some(true)) => Ok(Life::Forever),
        _ => Err(refuse("kv_expiry_not_specified", "say exactly one of ttlSeconds and forever: true")),
    }
}

fn expect(members: &Members<'_>) -> Result<Option<u64>, Error> {
    members.get("expect", "a version, or 0 for none").map_err(|detail| refuse("kv_bad_expect", detail))
}

/// Writes the members of a result, each with a comma before it.
pub(super) fn write(out: &mut Vec<u8>, named: &Named, outcome: &Outcome) {
    out.extend_from_slice(b",\"op\":");
    json::string(out, named.name);
    let key = match &named.step.operation {
        Operation::Get(place) | Operation::Check { place, .. } => Some(place.key.as_str()),
        operation => operation.written().map(|place| place.key.as_str()),
    };
    match outcome {
        Outcome::Found(None) => {
            out.extend_from_slice(b",\"found\":false,\"key\":");
            json::string_or_null(out, key);
            out.extend_from_slice(b",\"value\":null,\"version\":0,\"expiresAt\":null,\"updatedAt\":null");
        }
        Outcome::Found(Some(row)) => {
            out.extend_from_slice(b",\"found\":true,");
            write_row(out, row);
        }
        Outcome::Rows { rows, missing, truncated } => {
            out.extend_from_slice(b",\"rows\":[");
            for (index, row) in rows.iter().enumerate() {
                out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
                write_row(out, row);
                out.push(b'}');
            }
            out.extend_from_slice(b"],\"truncated\":");
            json::boolean(out, *truncated);
            if let Operation::GetMany { .. } = &named.step.operation {
                out.extend_from_slice(b",\"missing\":[");
                for (index, key) in missing.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    json::string(out, key);
                }
                out.push(b']');
            } else {
                out.extend_from_slice(b",\"nextAfter\":");
                let last = rows.last().filter(|_| *truncated);
                json::string_or_null(out, last.map(|row| row.key.as_str()));
            }
        }
        Outcome::Judged { lost, value, version } => {
            out.extend_from_slice(b",\"applied\":");
            json::boolean(out, lost.is_none());
            if let Some(lost) = lost {
                out.extend_from_slice(b",\"reason\":");
                json::string(out, word(*lost));
            }
            out.extend_from_slice(b",\"key\":");
            json::string_or_null(out, key);
            write_value(out, value.as_ref());
            out.extend_from_slice(b",\"version\":");
            json::number(out, *version);
        }
    }
}

fn write_value(out: &mut Vec<u8>, value: Option<&Bytes>) {
    out.extend_from_slice(b",\"value\":");
    out.extend_from_slice(value.filter(|value| !value.is_empty()).map_or(b"null", |value| &value[..]));
}

fn write_row(out: &mut Vec<u8>, row: &Row) {
    out.extend_from_slice(b"\"key\":");
    json::string(out, &row.key);
    if !row.value.is_empty() {
        write_value(out, Some(&row.value));
    }
    out.extend_from_slice(b",\"version\":");
    json::number(out, row.version);
    out.extend_from_slice(b",\"expiresAt\":");
    json::string_or_null(out, row.expires_at.map(Timestamp::to_iso_micros).as_deref());
    out.extend_from_slice(b",\"updatedAt\":");
    json::string(out, &row.updated_at.to_iso_micros());
}

/// Writes what undid a call, each member with a comma before it; `index` counts as the answer counts.
pub(super) fn write_precondition(out: &mut Vec<u8>, lost: &Precondition, index: usize) {
    out.extend_from_slice(b",\"ok\":false,\"failedIndex\":");
    json::number(out, index as u64);
    out.extend_from_slice(b",\"kvReason\":");
    json::string(out, word(lost.lost));
    out.extend_from_slice(b",\"version\":");
    json::number(out, lost.version);
    write_value(out, lost.value.as_ref());
}

fn word(lost: Lost) -> &'static str {
    match lost {
        Lost::Exists => "exists",
        Lost::Absent => "absent",
        Lost::Version => "version",
        Lost::Limit => "limit",
        Lost::Type => "type",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(operation: &str) -> String {
        let members = Members::of(operation).unwrap();
        let reply = read_one(&members).unwrap_err().into_reply();
        let body: serde_json::Value = serde_json::from_slice(reply.body()).unwrap();
        body["reason"].as_str().unwrap().to_owned()
    }

    #[test]
    fn each_mistake_has_its_own_reason() {
        let check = |operation: &str, reason: &str| assert_eq!(refusal(operation), reason, "{operation}");
        check(r#"{}"#, "kv_bad_body");
        check(r#"{"op":"jump","ns":"n","key":"k"}"#, "kv_unknown_op");
        check(r#"{"op":"get","ns":"N","key":"k"}"#, "kv_bad_namespace");
        check(r#"{"op":"get","key":"k"}"#, "kv_bad_namespace");
        check(r#"{"op":"get","ns":"n","key":""}"#, "kv_bad_key");
        check(r#"{"op":"get","ns":"n"}"#, "kv_bad_key");
        check(r#"{"op":"put","ns":"n","key":"k","value":1}"#, "kv_expiry_not_specified");
        check(
            r#"{"op":"put","ns":"n","key":"k","value":1,"ttlSeconds":1,"forever":true}"#,
            "kv_expiry_not_specified",
        );
        check(r#"{"op":"put","ns":"n","key":"k","value":1,"ttlSeconds":0}"#, "kv_bad_ttl");
        check(r#"{"op":"put","ns":"n","key":"k","value":1,"ttlSeconds":1.5}"#, "kv_bad_ttl");
        check(r#"{"op":"put","ns":"n","key":"k","forever":true}"#, "kv_bad_body");
        check(r#"{"op":"put","ns":"n","key":"k","value":1,"forever":true,"expect":null}"#, "kv_bad_expect");
        check(r#"{"op":"check","ns":"n","key":"k"}"#, "kv_bad_expect");
        check(r#"{"op":"incr","ns":"n","key":"k","delta":1,"forever":true,"expect":1}"#, "kv_bad_expect");
        check(r#"{"op":"incr","ns":"n","key":"k","delta":"1","forever":true}"#, "kv_bad_body");
        check(r#"{"op":"getPrefix","ns":"n","prefix":""}"#, "kv_prefix_required");
        check(r#"{"op":"delete","ns":"queen-locks","key":"k#0"}"#, "kv_bad_namespace");
    }

    #[test]
    fn a_value_loses_its_space_and_nothing_else() {
        assert_eq!(compact(" { \"a b\" : [ 1 , \"x \\\" y\\\\\" , 2 ] }\n"), br#"{"a b":[1,"x \" y\\",2]}"#);
    }
}
