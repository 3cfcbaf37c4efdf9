//! What a worker and the server say to each other.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Registration<'a> {
    pub name: &'a str,
    pub queues: &'a [String],
    pub job_types: Vec<&'a str>,
    pub max_concurrency: usize,

    pub labels: &'a std::collections::BTreeMap<String, String>,
    pub version: &'a str,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Registered {
    pub worker_id: String,
    /// Given back with every beat, as it came.
    #[serde(default)]
    pub incarnation: Value,
    pub heartbeat_ms: u64,
    pub lease_ms: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ask {
    pub max: usize,
    pub wait_ms: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Leases {
    pub leases: Vec<Lease>,
}

/// A job that this worker has until its lease runs out.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Lease {
    pub job_id: String,
    pub execution_id: String,
    pub fence: u64,
    pub lease_ms: u64,
    /// How long it may run; none when that is not limited.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
    pub job_type: String,
    #[serde(default)]
    pub args: Option<Box<RawValue>>,
    #[serde(default)]
    pub attempt: u32,
    #[serde(default)]
    pub schedule_id: Option<String>,
    #[serde(default)]
    pub scheduled_for: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Progress {
    pub percent: f64,
    pub message: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Beat<'a> {
    pub incarnation: &'a Value,
    pub wait_ms: u64,
    pub running: Vec<Pulse>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pulse {
    pub job_id: String,
    pub fence: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Beaten {
    #[serde(default)]
    pub desired_state: String,
    #[serde(default)]
    pub lost: Vec<String>,
    #[serde(default)]
    pub cancel: Vec<String>,
}

/// What became of an execution.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub job_id: String,
    pub execution_id: String,
    pub fence: u64,
    pub outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Succeeded,
    Failed,
    TimedOut,
    Cancelled,
    Released,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Failed {
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
    pub retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Reports<'a> {
    pub items: &'a [Report],
}

#[derive(Debug, Deserialize)]
pub(super) struct Reported {
    pub items: Vec<ReportedItem>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ReportedItem {
    pub ok: bool,
    #[serde(default)]
    pub code: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Lines<'a> {
    pub first_seq: u64,
    pub lines: &'a [Line],
}

#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub level: Level,
    pub message: String,
}

/// How much a line of a log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// For whoever looks for a fault.
    Debug,
    /// What happens.
    Info,
    /// What should not happen.
    Warn,
    /// What went wrong.
    Error,
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
