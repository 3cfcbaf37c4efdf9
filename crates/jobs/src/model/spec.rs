//! The specification of a job: the stored part of its description.

use std::sync::Arc;

use baton_types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::ids::JobId;
use crate::model::limits::TIMEOUT;
use crate::model::retry::{Retry, is_usual};

/// The stored part of a job's description.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The job type.
    pub job_type: Arc<str>,
    /// Its timeout; zero is none.
    #[serde(default = "timeout_ms", skip_serializing_if = "is_usual_timeout")]
    pub timeout_ms: u64,
    /// How it is retried.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub retry: Retry,
    /// A key that only one active job may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// Limits how many jobs of the same key run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_key: Option<String>,
    /// How many jobs of the key may run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_limit: Option<u32>,
    /// The caller's own id for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Tags for searches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The job that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<JobId>,
    /// The jobs it depends on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<JobId>,
    /// The schedule that fired it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
    /// The nominal time of the fire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_for: Option<Timestamp>,
}

pub(crate) fn timeout_ms() -> u64 {
    u64::try_from(TIMEOUT.as_millis()).unwrap_or(u64::MAX)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
pub(crate) fn is_usual_timeout(given: &u64) -> bool {
    *given == timeout_ms()
}

impl Spec {
    /// The specification of a job type, with default options.
    pub fn new(job_type: impl Into<Arc<str>>) -> Self {
        Self {
            job_type: job_type.into(),
            timeout_ms: timeout_ms(),
            retry: Retry::default(),
            unique_key: None,
            concurrency_key: None,
            concurrency_limit: None,
            correlation_id: None,
            tags: Vec::new(),
            parent_id: None,
            depends_on: Vec::new(),
            schedule_id: None,
            scheduled_for: None,
        }
    }
}
