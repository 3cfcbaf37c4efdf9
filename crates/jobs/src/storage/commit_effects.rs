//! The effects of a commit on this server: which waiters to wake, and what to count.

use std::time::Duration;

use baton_types::{PartitionId, Timestamp};

use crate::model::ids::{JobPosition, WorkerId};
use crate::model::state::Outcome;

/// What to do on this server after a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitEffects {
    /// Queues with newly dispatched jobs, and how many.
    pub ready: Vec<(PartitionId, u64)>,
    /// The earliest new due time.
    pub due: Option<Timestamp>,
    /// Whether a schedule's next check moved.
    pub fires: bool,
    /// Jobs that callers may be watching.
    pub changed: Vec<JobPosition>,
    /// Workers whose heartbeats to answer.
    pub called: Vec<WorkerId>,
    /// The number of pages of concurrency keys, if it was read.
    pub permit_pages: Option<u64>,
    /// What to count.
    pub counts: Counts,
}

/// Counts of one commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs accepted.
    pub enqueued: u64,
    /// Enqueued jobs that existed already.
    pub deduplicated: u64,
    /// Leased jobs, each with how long it had waited.
    pub leased: Vec<Duration>,
    /// Executions that ended, by outcome, each with how long it ran.
    pub ended: Vec<(Outcome, Duration)>,
    /// Reports, heartbeats and log lines under an old fence.
    pub stale: u64,
    /// Jobs that became dead letters.
    pub dead: u64,
    /// Jobs that were deleted.
    pub forgotten: u64,
    /// Log lines stored, and dropped.
    pub lines: (u64, u64),
    /// Fires that enqueued a job, each with how late it was.
    pub fired: Vec<Duration>,
    /// Checks of schedules that found missed fires.
    pub misfires: u64,
    /// Fires that enqueued no job because of the last one.
    pub overlapped: u64,
}
