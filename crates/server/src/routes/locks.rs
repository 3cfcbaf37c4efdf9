//! `POST /api/v1/locks`: locks and semaphores.
//!
//! Always: a lock that somebody else holds is an answer with status 200; operations of a call are on different
//! locks and independent of each other. The `guard` of a permit can be put into the `kv` of a transaction as it is.
//! Start at [`batch`].

use std::collections::BTreeSet;
use std::time::Duration;

use baton_http::Reply;
use baton_records::lock::{self, Action, Operation, Outcome, Permit};
use baton_types::limits::{
    LOCK_NAME_BYTES_MAX, LOCK_OPERATIONS_MAX, LOCK_PERMITS_MAX, PAGE_ROWS_MAX, RECORD_LIFE_MAX,
};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::call::{Answer, Call};
use crate::error::{Error, Kind};
use crate::json::{self, List, lenient};
use crate::members::Members;

/// Rows of a list that does not say how many.
const DEFAULT_ROWS: u64 = 100;

lenient! {
    struct Body<'a> {
        "operations" => operations: List<&'a RawValue>,
    }
}

fn refuse(reason: &'static str, detail: impl Into<String>) -> Error {
    Error::refused(Kind::LocksInvalid, reason, detail)
}

/// Does several operations.
pub(super) fn batch(mut call: Call) -> Answer {
    Box::pin(async move {
        let operations = read(&call.body()?)?;
        let outcomes = call.broker().locks(operations.clone()).await?;
        let results = operations.iter().zip(&outcomes).enumerate();
        let results: Vec<_> =
            results.map(|(index, (operation, outcome))| show(index, operation, outcome)).collect();
        Reply::ok(&json!({"results": results}))
    })
}

/// Lists the permits that are held.
pub(super) fn list(call: Call) -> Answer {
    Box::pin(async move {
        let (after, limit) = {
            let query = call.query()?;
            (query.owned("after"), query.number("limit", 1, PAGE_ROWS_MAX as u64)?.unwrap_or(DEFAULT_ROWS))
        };
        let lock::PermitPage { permits, next } =
            call.broker().list_locks(after, usize::try_from(limit).unwrap_or(1)).await?;
        let rows = permits.iter().map(|(name, permit)| {
            let mut row = holder(permit);
            row["name"] = name.as_str().into();
            row
        });
        let now = call.broker().store().now().to_iso_millis();
        Reply::ok(&json!({"now": now, "permits": rows.collect::<Vec<_>>(), "nextAfter": next}))
    })
}

fn read(body: &[u8]) -> Result<Vec<Operation>, Error> {
    let body: Body<'_> = json::parse(body)?;
    let List::Is(operations) = body.operations else {
        return Err(refuse("locks_bad_body", "operations must be a list of operations"));
    };
    if operations.is_empty() || operations.len() > LOCK_OPERATIONS_MAX {
        let detail =
            format!("a call has 1 to {LOCK_OPERATIONS_MAX} operations, this one has {}", operations.len());
        return Err(refuse("locks_too_many_ops", detail));
    }
    let mut names = BTreeSet::new();
    let mut read = Vec::with_capacity(operations.len());
    for raw in operations {
        let members = Members::of(raw.get())
            .ok_or_else(|| refuse("locks_bad_body", "an operation must be an object"))?;
        let operation = read_one(&members)?;
        if !names.insert(operation.name.clone()) {
            let detail =
                format!("{:?} is named twice; operations of a call are on different locks", operation.name);
            return Err(refuse("locks_duplicate_name", detail));
        }
        read.push(operation);
    }
    Ok(read)
}

fn read_one(members: &Members<'_>) -> Result<Operation, Error> {
    let bad_body = |detail: String| refuse("locks_bad_body", detail);
    let op: String = members.need("op", "the name of an operation").map_err(bad_body)?;
    let name: String = members.need("name", "a string").map_err(|detail| refuse("locks_bad_name", detail))?;
    check_text("locks_bad_name", "name", &name)?;
    if name.contains('#') {
        return Err(refuse("locks_bad_name", "a name cannot contain '#'"));
    }
    let owner: Option<String> =
        members.get("owner", "a string").map_err(|detail| refuse("locks_bad_owner", detail))?;
    if let Some(owner) = &owner {
        check_text("locks_bad_owner", "owner", owner)?;
    }
    let token = || {
        let token: u64 = members
            .need("token", "the number that acquire or renew answered")
            .map_err(|detail| refuse("locks_bad_token", detail))?;
        Ok::<_, Error>(token)
    };
    let slot = || {
        let slot: Option<u32> =
            members.get("slot", "a whole number").map_err(|detail| refuse("locks_bad_slot", detail))?;
        match slot {
            Some(slot) if slot >= LOCK_PERMITS_MAX => {
                Err(refuse("locks_bad_slot", format!("slot is from 0 to {}", LOCK_PERMITS_MAX - 1)))
            }
            slot => Ok(slot),
        }
    };
    let action = match op.as_str() {
        "acquire" => Action::Acquire {
            owner: owner.unwrap_or_else(|| baton_env::fresh_uuid().to_string()),
            life: life(members)?,
            permits: permits(members)?,
        },
        "renew" => Action::Renew { token: token()?, slot: slot()?, owner, life: life(members)? },
        "release" => Action::Release { token: token()?, slot: slot()? },
        "get" => Action::Get,
        other => {
            let detail = format!("{other:?} is none of acquire, renew, release and get");
            return Err(refuse("locks_unknown_op", detail));
        }
    };
    Ok(Operation { name, action })
}

fn check_text(reason: &'static str, what: &str, text: &str) -> Result<(), Error> {
    if text.is_empty() || text.len() > LOCK_NAME_BYTES_MAX || text.chars().any(char::is_control) {
        let detail = format!("{what} has 1 to {LOCK_NAME_BYTES_MAX} bytes and no control characters");
        return Err(refuse(reason, detail));
    }
    Ok(())
}

fn life(members: &Members<'_>) -> Result<Duration, Error> {
    let bad_ttl = |detail: String| refuse("locks_bad_ttl", detail);
    let seconds: u64 = members.need("ttlSeconds", "a whole number above zero").map_err(bad_ttl)?;
    if !(1..=RECORD_LIFE_MAX.as_secs()).contains(&seconds) {
        return Err(bad_ttl(format!("ttlSeconds is from 1 to {}", RECORD_LIFE_MAX.as_secs())));
    }
    Ok(Duration::from_secs(seconds))
}

fn permits(members: &Members<'_>) -> Result<u32, Error> {
    let bad_limit = |detail: String| refuse("locks_bad_limit", detail);
    let permits: u32 = members.get("limit", "a whole number").map_err(bad_limit)?.unwrap_or(1);
    if !(1..=LOCK_PERMITS_MAX).contains(&permits) {
        return Err(bad_limit(format!("limit is from 1 to {LOCK_PERMITS_MAX}")));
    }
    Ok(permits)
}

fn show(index: usize, operation: &Operation, outcome: &Outcome) -> Value {
    let name = operation.name.as_str();
    let mut shown = match outcome {
        Outcome::Acquired { permit, already } => {
            let mut shown = json!({
                "acquired": true,
                "slot": permit.slot,
                "token": permit.holder.token,
                "owner": permit.holder.owner,
                "guard": guard(name, permit),
            });
            if *already {
                shown["already"] = true.into();
            }
            shown
        }
        Outcome::Held(permits) => json!({"acquired": false, "reason": "held", "holders": holders(permits)}),
        Outcome::Renewed(permit) => json!({
            "renewed": true,
            "slot": permit.slot,
            "token": permit.holder.token,
            "guard": guard(name, permit),
        }),
        Outcome::Released => json!({"released": true}),
        Outcome::Lost(permits) => {
            let verdict =
                if matches!(operation.action, Action::Renew { .. }) { "renewed" } else { "released" };
            json!({verdict: false, "reason": "lost", "holders": holders(permits)})
        }
        Outcome::Holders(permits) => json!({"held": !permits.is_empty(), "holders": holders(permits)}),
    };
    shown["index"] = index.into();
    shown["name"] = name.into();
    shown["op"] = match operation.action {
        Action::Acquire { .. } => "acquire",
        Action::Renew { .. } => "renew",
        Action::Release { .. } => "release",
        Action::Get => "get",
    }
    .into();
    shown
}

/// What to put into a transaction that is to be done only while the permit is held.
fn guard(name: &str, permit: &Permit) -> Value {
    let place = lock::place(name, permit.slot);
    json!({"op": "check", "ns": place.namespace, "key": place.key, "expect": permit.holder.token, "required": true})
}

fn holders(permits: &[Permit]) -> Vec<Value> {
    permits.iter().map(holder).collect()
}

fn holder(permit: &Permit) -> Value {
    let holder = &permit.holder;
    json!({
        "slot": permit.slot,
        "owner": holder.owner,
        "token": holder.token,
        "since": holder.since.to_iso_micros(),
        "expiresAt": holder.until.to_iso_micros(),
        "renewedAt": holder.renewed_at.to_iso_micros(),
    })
}
