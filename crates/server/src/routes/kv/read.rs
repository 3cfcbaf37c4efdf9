//! Reading operations on records, each mistake with its own reason.
//!
//! Start at [`operations`].

use std::collections::BTreeSet;
use std::time::Duration;

use baton_records::counter::Addition;
use baton_records::kv::{LOCKS, Life, Operation, Place, Step};
use baton_types::limits::{
    KEY_BYTES_MAX, KV_KEYS_MAX, KV_OPERATIONS_MAX, KV_VALUE_BYTES_MAX, PAGE_ROWS_MAX, RECORD_LIFE_MAX,
    TRANSACTION_KV_KEYS_MAX, TRANSACTION_KV_OPERATIONS_MAX,
};
use bytes::Bytes;
use serde_json::value::RawValue;

use crate::error::{Error, Kind};
use crate::json::{self, List};
use crate::members::Members;

const NAMESPACE_BYTES_MAX: usize = 64;
/// Rows of a page that does not say how many.
pub const DEFAULT_ROWS: u64 = 100;
/// One more than a call may name, so that the bounds say what is wrong.
const KEYS_READ: usize = KV_KEYS_MAX + 1;

/// An operation with the name that it was asked by.
#[derive(Clone, Debug)]
pub struct Named {
    /// That name.
    pub name: &'static str,
    /// What to do.
    pub step: Step,
}

/// How much a call may ask for.
pub struct Bounds {
    operations: usize,
    keys: usize,
    /// Whether it may read by prefix, which costs what the caller does not know.
    prefixes: bool,
}

/// The bounds of a call of its own.
pub const CALL: Bounds = Bounds { operations: KV_OPERATIONS_MAX, keys: KV_KEYS_MAX, prefixes: true };
/// The bounds inside a transaction.
pub const RIDER: Bounds =
    Bounds { operations: TRANSACTION_KV_OPERATIONS_MAX, keys: TRANSACTION_KV_KEYS_MAX, prefixes: false };

pub fn refuse(reason: &'static str, detail: impl Into<String>) -> Error {
    Error::refused(Kind::KvInvalid, reason, detail)
}

pub fn bad_body(detail: String) -> Error {
    refuse("kv_bad_body", detail)
}

/// Reads the operations of a call.
pub fn operations(listed: &[&RawValue], bounds: &Bounds) -> Result<Vec<Named>, Error> {
    if listed.len() > bounds.operations {
        let detail = format!("{} operations, {} are allowed", listed.len(), bounds.operations);
        return Err(refuse("kv_too_many_ops", detail));
    }
    let (mut named, mut written, mut keys) = (Vec::with_capacity(listed.len()), BTreeSet::new(), 0);
    for raw in listed {
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
            let keys: List<String, KEYS_READ> =
                members.need("keys", "a list of strings").map_err(|detail| refuse("kv_bad_key", detail))?;
            let List::Is(keys) = keys else {
                let why = format!("keys must be a list of strings, at most {KV_KEYS_MAX}");
                return Err(refuse("kv_bad_key", why));
            };
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
            .map_or(DEFAULT_ROWS as usize, |limit| usize::try_from(limit).unwrap_or(1))
            .clamp(1, PAGE_ROWS_MAX),
        keys_only: members.flag("keysOnly").map_err(bad_body)?,
    })
}

/// The operation that reads a page of a namespace, whole or by prefix.
pub fn page(namespace: &str, prefix: &str, after: Option<String>, limit: usize) -> Result<Operation, Error> {
    check_namespace(namespace)?;
    for key in [Some(prefix), after.as_deref()].into_iter().flatten().filter(|key| !key.is_empty()) {
        check_key(key)?;
    }
    let (namespace, prefix) = (namespace.to_owned(), prefix.to_owned());
    Ok(Operation::GetPrefix { namespace, prefix, after, limit, keys_only: false })
}

pub fn place(namespace: String, key: String) -> Result<Place, Error> {
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

pub fn writable(place: &Place) -> Result<(), Error> {
    if place.namespace == LOCKS {
        return Err(refuse("kv_bad_namespace", format!("{LOCKS} is written through /api/v1/locks only")));
    }
    Ok(())
}

pub fn value(members: &Members<'_>) -> Result<Bytes, Error> {
    let raw = members.raw("value").ok_or_else(|| bad_body("value is missing; null is a value too".into()))?;
    json::check_kept(raw).map_err(bad_body)?;
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

pub fn life(members: &Members<'_>) -> Result<Life, Error> {
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

pub fn expect(members: &Members<'_>) -> Result<Option<u64>, Error> {
    members.get("expect", "a version, or 0 for none").map_err(|detail| refuse("kv_bad_expect", detail))
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
