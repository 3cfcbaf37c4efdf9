//! Writing what operations on records came to.
//!
//! Start at [`write`].

use baton_records::kv::{Lost, Operation, Outcome, Precondition, Row};
use baton_types::Timestamp;
use bytes::Bytes;

use super::read::Named;
use crate::json;

/// Writes the members of a result, each with a comma before it.
pub fn write(out: &mut Vec<u8>, named: &Named, outcome: &Outcome) {
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
pub fn write_precondition(out: &mut Vec<u8>, lost: &Precondition, index: usize) {
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
