//! Idempotency keys: a request that is repeated under its key gets the first answer.
//!
//! The answer is written in the same commit as the effects of the request, and expires after [`KEPT_FOR`]. Always: a key
//! stands for one request, and the same key with another request is a conflict that changes nothing; a refused
//! request leaves no answer, so its repetition is decided anew. Not here: which routes accept a key. Start at
//! [`Request::earlier`] in a decision over a [`Tx`], or at [`Request::read`] for a caller that reads and writes the
//! record itself.

use std::time::Duration;

use baton_types::limits::RECORD_BYTES_MAX;
use bytes::{Buf, BufMut, Bytes};
use xxhash_rust::xxh3::xxh3_128;

use crate::{Error, Stop, Tx, expiry, look_at_all};

/// How long an answer is kept.
pub const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// The first byte of a record; one of an older server begins with the answer itself, which is JSON.
const VERSION: u8 = 1;
/// Bytes before the answer: the version, the number of records, and the digest of the request.
const HEADER_BYTES: usize = 1 + 4 + 16;
/// Bytes of the answer in one record.
const PART_BYTES: usize = RECORD_BYTES_MAX - HEADER_BYTES;

/// A request made under an idempotency key.
#[derive(Clone, Debug)]
pub struct Request {
    record: String,
    digest: u128,
}

/// What an earlier request under the same key came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// There was none, or it was refused, or its answer has expired.
    None,
    /// It was the same request; this is its answer.
    Answered(Bytes),
    /// It was another request.
    Different,
}

impl Request {
    /// The request whose meaning is `content`, made under `key`. Keys are told apart within `scope`, the beginning of
    /// the names of their records.
    pub fn new(scope: &str, key: &str, content: &[u8]) -> Self {
        let record = format!("{scope}{:032x}", xxh3_128(key.as_bytes()));
        Self { record, digest: xxh3_128(content) }
    }

    /// The key of the record that holds the answer.
    pub fn record(&self) -> &str {
        &self.record
    }

    /// The value of that record, for an answer short enough for one record.
    pub fn value(&self, answer: &[u8]) -> Bytes {
        self.part(1, answer)
    }

    /// What such a value says.
    pub fn read(&self, value: &Bytes) -> Result<Earlier, Error> {
        Ok(match self.header(value)? {
            Header::Older => Earlier::Answered(value.clone()),
            Header::Different => Earlier::Different,
            Header::Same { .. } => Earlier::Answered(value.slice(HEADER_BYTES..)),
        })
    }

    /// Looks for an earlier request. Must be asked before anything is written.
    pub fn earlier(&self, tx: &mut dyn Tx) -> Result<Earlier, Stop> {
        let Some(first) = tx.record(&self.record)? else { return Ok(Earlier::None) };
        let parts = match self.header(&first.value)? {
            Header::Same { parts } if parts > 1 => parts,
            _ => return Ok(self.read(&first.value)?),
        };
        let mut answer = first.value.slice(HEADER_BYTES..).to_vec();
        look_at_all(1..parts, |number| {
            let rest = tx.record(&self.rest(number))?;
            let rest = rest.ok_or_else(|| Error::Corrupt("a kept answer is incomplete".into()))?;
            answer.extend_from_slice(&rest.value);
            Ok(())
        })?;
        Ok(Earlier::Answered(answer.into()))
    }

    /// Keeps the answer, after [`earlier`](Self::earlier) found none.
    pub fn keep(&self, tx: &mut dyn Tx, answer: &[u8]) -> Result<(), Stop> {
        let until = Some(tx.now().after(KEPT_FOR));
        let (first, rest) = answer.split_at(answer.len().min(PART_BYTES));
        let parts = rest.chunks(PART_BYTES);
        let count = u32::try_from(1 + parts.len()).unwrap_or(u32::MAX);
        expiry::put(tx, &self.record, None, self.part(count, first), until)?;
        for (number, part) in (1..).zip(parts) {
            expiry::put(tx, &self.rest(number), None, Bytes::copy_from_slice(part), until)?;
        }
        Ok(())
    }

    fn rest(&self, number: u32) -> String {
        format!("{}/{number}", self.record)
    }

    fn part(&self, parts: u32, answer: &[u8]) -> Bytes {
        let mut value = Vec::with_capacity(HEADER_BYTES + answer.len());
        value.put_u8(VERSION);
        value.put_u32(parts);
        value.put_u128(self.digest);
        value.extend_from_slice(answer);
        value.into()
    }

    fn header(&self, mut value: &[u8]) -> Result<Header, Error> {
        if value.first() != Some(&VERSION) {
            return Ok(Header::Older);
        }
        let mut read = || {
            value.try_get_u8().ok()?;
            Some((value.try_get_u32().ok()?, value.try_get_u128().ok()?))
        };
        let (parts, digest) = read().ok_or_else(|| Error::Corrupt("a kept answer is cut short".into()))?;
        Ok(if digest == self.digest { Header::Same { parts } } else { Header::Different })
    }
}

enum Header {
    /// Of an older server, which kept no digest.
    Older,
    Same {
        parts: u32,
    },
    Different,
}
