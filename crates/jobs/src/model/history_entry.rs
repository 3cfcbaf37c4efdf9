//! Entries of a job's history: one for each execution that did not simply succeed, with its error or result.
//!
//! Entries are messages of the queue's second partition. Each points to the one before, so a job that succeeds at once
//! and has no result costs nothing here.

use baton_store::Error as StoreError;
use baton_types::Timestamp;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::model::codec::{Reader, Writer};
use crate::model::limits::ERROR_BYTES_MAX;
use crate::model::state::Outcome;

/// The failure that a worker reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobError {
    /// What kind of failure it is.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// What happened.
    pub message: String,
}

impl JobError {
    /// A failure that the server detected.
    pub fn from_server(kind: &str, message: impl Into<String>) -> Self {
        Self { kind: kind.into(), message: message.into() }
    }

    /// The error, cut to the allowed length.
    pub fn bounded(mut self) -> Self {
        for text in [&mut self.kind, &mut self.message] {
            if text.len() > ERROR_BYTES_MAX {
                let end = (0..=ERROR_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
                text.truncate(end);
            }
        }
        self
    }
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Which execution it was.
    pub number: u32,
    /// Its fence.
    pub fence: u64,
    /// The worker that ran it.
    pub worker: u64,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
    /// The entry before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
}

impl Entry {
    pub(crate) fn encode(&self, result: &[u8]) -> Vec<u8> {
        let mut out = Writer::default();
        out.bytes(&serde_json::to_vec(self).unwrap_or_default());
        out.0.extend_from_slice(result);
        out.0
    }

    /// An entry and the result that is stored with it.
    pub fn decode(payload: &Bytes) -> Result<(Self, Bytes), StoreError> {
        let mut from = Reader(payload);
        let entry = serde_json::from_slice(from.bytes()?).map_err(|error| {
            StoreError::Corrupt(format!("an entry of a job's history cannot be read: {error}"))
        })?;
        Ok((entry, payload.slice(payload.len() - from.0.len()..)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_back_with_its_result() {
        let entry = Entry {
            number: 2,
            fence: 3,
            worker: 4,
            started_at: Timestamp::from_micros(5),
            ended_at: Timestamp::from_micros(6),
            outcome: Outcome::Lost,
            error: Some(JobError::from_server("lost", "gone")),
            before: Some(0),
        };
        let (again, result) = Entry::decode(&entry.encode(b"[1]").into()).unwrap();
        assert_eq!((again, &result[..]), (entry, &b"[1]"[..]));
    }

    #[test]
    fn a_long_error_is_cut_between_characters() {
        let error = JobError::from_server("x", "ä".repeat(ERROR_BYTES_MAX)).bounded();
        assert!(error.message.len() <= ERROR_BYTES_MAX && error.message.ends_with('ä'));
    }
}
