//! What holds for all jobs of a server unless a job says otherwise.

use std::time::Duration;

use crate::model::limits;

/// Times that rules go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long a worker may be silent before its jobs are given to others.
    pub lease: Duration,
    /// How often a worker is asked to be heard.
    pub heartbeat: Duration,
    /// How long a worker has to end a cancelled job.
    pub cancel_grace: Duration,
    /// How long a completed job is kept.
    pub completed_for: Duration,
    /// How long a cancelled job is kept.
    pub cancelled_for: Duration,
    /// How long a failed job and all history is kept.
    pub failed_for: Duration,
    /// How long a job's log is kept after its end.
    pub logs_for: Duration,
    /// A waiting job rises by one priority after each of these.
    pub ageing: Duration,
    /// Whether other nodes share the store, so that it is counted which of them owns how many jobs.
    pub shared: bool,
    /// Whether somebody watches what happens to jobs, so that commits leave a journal.
    pub watched: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            lease: limits::LEASE,
            heartbeat: limits::HEARTBEAT,
            cancel_grace: limits::CANCEL_GRACE,
            completed_for: limits::COMPLETED_FOR,
            cancelled_for: limits::COMPLETED_FOR,
            failed_for: limits::FAILED_FOR,
            logs_for: limits::LOGS_FOR,
            ageing: limits::AGEING,
            shared: false,
            watched: false,
        }
    }
}
