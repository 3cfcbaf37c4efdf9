//! `POST /api/v1/lease/:lease/extend`: hold messages for longer.
//!
//! The body may be missing, `{}` or `[]`: clients send all three. A lease that is gone is an answer with
//! `success: false`, not an error.

use std::time::Duration;

use baton_http::Reply;
use baton_types::LeaseId;
use baton_types::limits::LEASE_MAX;
use serde_json::{Value, json};

use crate::call::{Answer, Call};
use crate::error::Error;
use crate::json;

const DEFAULT_SECONDS: u64 = 60;

/// Extends a lease.
pub(super) fn extend(mut call: Call) -> Answer {
    Box::pin(async move {
        let by = parse(&call.body()?)?;
        let (renewed, until) = match call.parameter(0).parse::<LeaseId>() {
            Ok(lease) => call.broker().extend(lease, by).await?,
            Err(_) => (0, None),
        };
        let until = until.filter(|_| renewed > 0).map(baton_types::Timestamp::to_iso_millis);
        let success = renewed > 0;
        Reply::ok(&json!({
            "leaseId": call.parameter(0),
            "success": success,
            "renewed": renewed,
            "newExpiresAt": until,
            "expiresAt": until,
            "lease_expires_at": until,
            "error": (!success).then_some("Lease not found"),
        }))
    })
}

fn parse(body: &[u8]) -> Result<Duration, Error> {
    let seconds = match json::parse_or_default(body)? {
        Value::Object(members) => whole(members.get("seconds").unwrap_or(&Value::Null))?,
        _ => DEFAULT_SECONDS,
    };
    Ok(Duration::from_secs(seconds.clamp(1, LEASE_MAX.as_secs())))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, which is what is wanted"
)]
fn whole(seconds: &Value) -> Result<u64, Error> {
    match seconds {
        Value::Null => Ok(DEFAULT_SECONDS),
        Value::Number(number) => Ok(number.as_u64().unwrap_or_else(|| number.as_f64().unwrap_or(0.0) as u64)),
        _ => Err(Error::invalid("seconds must be a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_a_default_and_bounds() {
        let seconds = |body: &str| parse(body.as_bytes()).unwrap().as_secs();
        for body in ["", "{}", "[]", "null", r#"{"seconds":null}"#] {
            assert_eq!(seconds(body), 60, "{body}");
        }
        assert_eq!(seconds(r#"{"seconds":5}"#), 5);
        assert_eq!(seconds(r#"{"seconds":2.9}"#), 2);
        assert_eq!(seconds(r#"{"seconds":-5}"#), 1);
        assert_eq!(seconds(r#"{"seconds":1e300}"#), LEASE_MAX.as_secs());
        assert!(parse(br#"{"seconds":"5"}"#).is_err());
        assert!(parse(b"{").is_err());
    }
}
