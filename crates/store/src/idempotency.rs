//! Idempotency keys: a repeated call gets the first answer, and a different call under the same key is a conflict.
//!
//! The record under a key holds a hash of the request and the answer, and is written in the same commit as the
//! effects of the call. Always: only the same request gets the answer; a refused call stores none, so its repetition
//! is decided again. A caller that writes through a [`Tx`] uses [`IdempotencyKey::find_prior_call`] and
//! [`IdempotencyKey::store_answer`]; one that writes the record itself uses [`IdempotencyKey::encode_record`] and
//! [`IdempotencyKey::compare`].

use std::time::Duration;

use baton_types::limits::RECORD_BYTES_MAX;
use bytes::{Buf, Bytes};

use crate::{Error, Tx, TxError, collect_misses, expiry};

/// How long [`IdempotencyKey::store_answer`] keeps an answer.
pub const ANSWER_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// The record's first byte. Records of earlier versions begin with `[` and hold the answer alone.
const FORMAT_WHOLE: u8 = 1;
/// The first byte of an answer in several records; the number of further records follows.
const FORMAT_IN_PARTS: u8 = 2;
/// Bytes of an answer in one record, without the byte, the number and the hash.
const PART_BYTES: usize = RECORD_BYTES_MAX - 1 - 4 - 16;

/// An idempotency key, and a hash of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The key.
    pub key: String,
    request: [u8; 16],
}

/// How a request compares with the recorded one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestMatch<'a> {
    /// It is the same request; this is its answer.
    Same(&'a [u8]),
    /// It is another request.
    Different,
}

/// The answer to an earlier call under the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PriorCall {
    /// There was no such call, or it was refused, or its answer expired.
    None,
    /// It was the same request; this is its answer.
    Answered(Bytes),
    /// It was another request.
    Different,
}

impl IdempotencyKey {
    /// A key for a call of `operation` with this body, compared byte by byte.
    pub fn new(key: impl Into<String>, operation: &str, body: &[u8]) -> Self {
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        hasher.update(&(operation.len() as u64).to_le_bytes());
        hasher.update(operation.as_bytes());
        hasher.update(body);
        Self { key: key.into(), request: hasher.digest128().to_le_bytes() }
    }

    /// The key for one part of the same call.
    pub fn part(&self, number: usize) -> Self {
        Self { key: format!("{}\0{number}", self.key), request: self.request }
    }

    /// The record for an answer.
    pub fn encode_record(&self, answer: &[u8]) -> Vec<u8> {
        [&[FORMAT_WHOLE], self.request.as_slice(), answer].concat()
    }

    /// Compares the request with the one in a record.
    pub fn compare<'a>(&self, record: &'a [u8]) -> RequestMatch<'a> {
        match record {
            [FORMAT_WHOLE, rest @ ..] => match rest.strip_prefix(&self.request) {
                Some(answer) => RequestMatch::Same(answer),
                None => RequestMatch::Different,
            },
            _ => RequestMatch::Same(record),
        }
    }

    /// The answer to an earlier call under this key. `scope` is the prefix of the records' keys. Must run before the
    /// first write of a decision.
    pub fn find_prior_call(&self, tx: &mut dyn Tx, scope: &str) -> Result<PriorCall, TxError> {
        let name = self.record_name(scope);
        let Some(first) = tx.record(&name)? else { return Ok(PriorCall::None) };
        let (mut whole, mut parts) = (first.value.to_vec(), 0);
        if let [FORMAT_IN_PARTS, rest @ ..] = &first.value[..] {
            let mut rest = rest;
            parts = rest.try_get_u32().map_err(|_| Error::Corrupt("a kept answer is cut short".into()))?;
            whole = [&[FORMAT_WHOLE], rest].concat();
        }
        collect_misses(1..=parts, |number| {
            let part = tx.record(&format!("{name}/{number}"))?;
            let part = part.ok_or_else(|| Error::Corrupt("a kept answer is incomplete".into()))?;
            whole.extend_from_slice(&part.value);
            Ok(())
        })?;
        Ok(match self.compare(&whole) {
            RequestMatch::Same(answer) => PriorCall::Answered(Bytes::copy_from_slice(answer)),
            RequestMatch::Different => PriorCall::Different,
        })
    }

    /// Stores the answer, after [`find_prior_call`](Self::find_prior_call) found none.
    pub fn store_answer(&self, tx: &mut dyn Tx, scope: &str, answer: &[u8]) -> Result<(), TxError> {
        let (name, until) = (self.record_name(scope), Some(tx.now().after(ANSWER_RETENTION)));
        let (first, rest) = answer.split_at(answer.len().min(PART_BYTES));
        let parts = rest.chunks(PART_BYTES);
        let value = match u32::try_from(parts.len()).unwrap_or(u32::MAX) {
            0 => self.encode_record(first),
            parts => [&[FORMAT_IN_PARTS], parts.to_be_bytes().as_slice(), &self.request, first].concat(),
        };
        expiry::put(tx, &name, None, value.into(), until)?;
        for (number, part) in (1..).zip(parts) {
            let name = format!("{name}/{number}");
            expiry::put(tx, &name, None, Bytes::copy_from_slice(part), until)?;
        }
        Ok(())
    }

    fn record_name(&self, scope: &str) -> String {
        format!("{scope}{:032x}", xxhash_rust::xxh3::xxh3_128(self.key.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_request_gets_the_answer() {
        let key = IdempotencyKey::new("k", "jobs", b"{}");
        let record = key.encode_record(b"answer");
        assert_eq!(IdempotencyKey::new("k", "jobs", b"{}").compare(&record), RequestMatch::Same(b"answer"));
        assert_eq!(IdempotencyKey::new("k", "jobs", b"{ }").compare(&record), RequestMatch::Different);
        assert_eq!(IdempotencyKey::new("k", "job", b"s{}").compare(&record), RequestMatch::Different);
        assert_eq!(key.compare(b"[]"), RequestMatch::Same(b"[]"), "a record of an earlier version");
        assert_ne!(key.part(1).key, key.key);
    }
}
