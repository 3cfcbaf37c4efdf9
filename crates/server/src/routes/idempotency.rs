//! `Idempotency-Key`: the key under which a call may be repeated.

use baton_store::IdempotencyKey;

use crate::call::Call;
use crate::error::Error;

/// Bytes of a key.
const KEY_BYTES_MAX: usize = 255;

/// The caller's key, from the header or the query parameter, for a call of `operation` with this body.
pub(super) fn key(call: &Call, operation: &str, body: &[u8]) -> Result<Option<IdempotencyKey>, Error> {
    let key = match call.idempotency_key() {
        Some(key) => Some(key.to_owned()),
        None => call.query()?.owned("idempotencyKey"),
    };
    if key.as_ref().is_some_and(|key| key.len() > KEY_BYTES_MAX) {
        return Err(Error::invalid(format!("an idempotency key has at most {KEY_BYTES_MAX} bytes")));
    }
    Ok(key.map(|key| IdempotencyKey::new(key, operation, body)))
}
