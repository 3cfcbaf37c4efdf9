//! The messages between a worker and the server.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RegistrationRequest<'a> {
    pub name: &'a str,
    pub queues: &'a [String],
    pub job_types: Vec<&'a str>,
    pub max_concurrency: usize,

    pub labels: &'a std::collections::BTreeMap<String, String>,
    pub version: &'a str,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RegistrationResponse {
    pub worker_id: String,
    /// Returned with every heartbeat, unchanged.
    #[serde(default)]
    pub incarnation: Value,
    pub heartbeat_ms: u64,
    pub lease_ms: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LeaseRequest {
    pub max: usize,
    pub wait_ms: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct LeaseResponse {
    pub leases: Vec<JobLease>,
}

/// A leased job.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct JobLease {
    pub job_id: String,
    pub execution_id: String,
    pub fence: u64,
    pub lease_ms: u64,
    /// Its timeout, if it has one.
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
pub(super) struct HeartbeatRequest<'a> {
    pub incarnation: &'a Value,
    pub wait_ms: u64,
    pub running: Vec<RunningJob>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunningJob {
    pub job_id: String,
    pub fence: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HeartbeatResponse {
    #[serde(default)]
    pub desired_state: String,
    #[serde(default)]
    pub lost: Vec<String>,
    #[serde(default)]
    pub cancel: Vec<String>,
}

/// The outcome of an execution.
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
    pub error: Option<FailureBody>,
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
pub(super) struct FailureBody {
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
    pub retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct ReportRequest<'a> {
    pub items: &'a [Report],
}

#[derive(Debug, Deserialize)]
pub(super) struct ReportResponse {
    pub items: Vec<ReportResult>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ReportResult {
    pub ok: bool,
    #[serde(default)]
    pub code: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LogRequest<'a> {
    pub first_seq: u64,
    pub lines: &'a [LogLine],
}

#[derive(Debug, Serialize)]
pub(super) struct LogLine {
    pub level: Level,
    pub message: String,
}

/// The severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Details for finding a bug.
    Debug,
    /// Normal events.
    Info,
    /// Unexpected events.
    Warn,
    /// Failures.
    Error,
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
