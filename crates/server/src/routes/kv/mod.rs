//! `/api/v1/kv…`: records with an expiry, compare-and-set and counters.
//!
//! Always: a condition that does not hold is an answer with status 200, only a request that cannot be read is an
//! error; values pass through as they came, without the space between their tokens. Not here: what an operation
//! means (`baton_records::kv`). The same operations ride in a transaction. Start at [`batch`], then `read`.

mod read;
mod show;

use baton_http::Reply;
use baton_records::kv::{Operation, Outcome, Place, Step};
use baton_types::limits::PAGE_ROWS_MAX;
use http::{HeaderValue, StatusCode, header};
use serde_json::json;
use serde_json::value::RawValue;

pub(super) use read::{Named, RIDER, operations};
pub(super) use show::{write, write_precondition};

use self::read::{CALL, DEFAULT_ROWS, bad_body, expect, life, page, place, refuse, value, writable};
use crate::call::{Answer, Call};
use crate::error::Error;
use crate::json::{self, List, lenient};
use crate::members::Members;
use crate::unknown;

lenient! {
    struct Body<'a> {
        "operations" => operations: List<&'a RawValue>,
    }
}

/// Does several operations.
pub(super) fn batch(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let body: Body<'_> = json::parse(&body)?;
        let List::Is(listed) = body.operations else {
            return Err(bad_body("operations must be a list of operations".into()));
        };
        if listed.is_empty() {
            return Err(bad_body("operations must not be empty".into()));
        }
        let named = operations(&listed, &CALL)?;
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

/// Lists the namespaces that hold records.
pub(super) fn namespaces(call: Call) -> Answer {
    Box::pin(async move {
        let namespaces = call.broker().namespaces(PAGE_ROWS_MAX).await?;
        Reply::ok(&json!({"namespaces": namespaces}))
    })
}

/// Lists the records of a namespace.
pub(super) fn list(call: Call) -> Answer {
    Box::pin(async move {
        let query = call.query()?;
        let limit = query.number("limit", 1, PAGE_ROWS_MAX as u64)?.unwrap_or(DEFAULT_ROWS);
        let operation = page(
            call.parameter(0),
            query.get("prefix").unwrap_or_default(),
            query.owned("after"),
            usize::try_from(limit).unwrap_or(1),
        )?;
        drop(query);
        answer_one(&call, Named { name: "getPrefix", step: Step { operation, required: false } }).await
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
        let members = path_members(&body, &["value", "ttlSeconds", "forever", "expect", "required"])?
            .ok_or_else(|| bad_body("the body must be an object".into()))?;
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
        let members = path_members(&body, &["expect", "required"])?;
        let expect = members.as_ref().map(expect).transpose()?.flatten();
        let required = members.map(|members| members.flag("required")).transpose().map_err(bad_body)?;
        let step =
            Step { operation: Operation::Delete { place, expect }, required: required.unwrap_or(false) };
        answer_one(&call, Named { name: "delete", step }).await
    })
}

fn path_place(call: &Call) -> Result<Place, Error> {
    place(call.parameter(0).to_owned(), call.parameter(1).to_owned())
}

/// The members of the body of a call whose path names the record, which are among `known`.
fn path_members<'a>(body: &'a [u8], known: &[&str]) -> Result<Option<Members<'a>>, Error> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let raw: &RawValue = json::parse(body)?;
    let members = Members::of(raw.get()).ok_or_else(|| bad_body("the body must be an object".into()))?;
    if let Some(name) = members.names().find(|name| matches!(*name, "op" | "ns" | "namespace" | "key")) {
        return Err(refuse("kv_field_in_path", format!("{name} stands in the path and not in the body")));
    }
    unknown::check(members.names(), known).map_err(bad_body)?;
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
