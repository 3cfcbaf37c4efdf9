//! Defaults for all jobs of a server.

use std::time::Duration;

use crate::model::limits;

/// Times and switches that rules use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long a worker may be silent before its jobs go to others.
    pub lease: Duration,
    /// How often a worker should send a heartbeat.
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
    /// A waiting job gains one priority after each of these.
    pub ageing: Duration,
    /// Whether other nodes share the store, so that commits keep the tally of jobs by slice.
    pub shared: bool,
    /// Whether a client watches jobs, so that commits write a journal.
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
