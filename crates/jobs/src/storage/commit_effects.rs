//! What a commit is news of: who is to be woken by it, and what is to be counted.

use std::time::Duration;

use baton_types::{PartitionId, Timestamp};

use crate::model::ids::{Place, WorkerId};
use crate::model::state::Outcome;

/// What waits for a commit: who is to be woken by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Queues with newly dispatched jobs, and how many.
    pub ready: Vec<(PartitionId, u64)>,
    /// The first moment at which something new is due.
    pub due: Option<Timestamp>,
    /// Whether a schedule is to be looked at at another moment.
    pub fires: bool,
    /// Jobs that somebody may be watching.
    pub changed: Vec<Place>,
    /// Workers that are to hear something.
    pub called: Vec<WorkerId>,
    /// On how many pages concurrency keys are kept, if that was looked at.
    pub permit_pages: Option<u64>,
    /// Things to count.
    pub counts: Counts,
}

/// What happened to jobs in one commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs accepted.
    pub enqueued: u64,
    /// Jobs that were there already.
    pub deduplicated: u64,
    /// Jobs given to workers, each with how long it had waited.
    pub leased: Vec<Duration>,
    /// Executions that ended, by outcome, each with how long it ran.
    pub ended: Vec<(Outcome, Duration)>,
    /// Reports, heartbeats and log lines under an old fence.
    pub stale: u64,
    /// Jobs that became dead letters.
    pub dead: u64,
    /// Jobs that were forgotten.
    pub forgotten: u64,
    /// Lines of logs, and those that were not kept.
    pub lines: (u64, u64),
    /// Fires of schedules that made a job, each with how late it was.
    pub fired: Vec<Duration>,
    /// Looks at schedules that found missed fires.
    pub misfires: u64,
    /// Fires that made no job because of the last one.
    pub overlapped: u64,
}
