//! Slots: the mutable state of one job.
//!
//! Always: a slot holds everything that a lease, a report or a timeout needs to decide. So the specification is read
//! only to hand a job out or to try it again. Not here: how slots are stored (`chunk`), what changes them
//! (`rules::state_machine`).

use baton_types::{Offset, Timestamp};

use crate::model::ids::JobPosition;
use crate::model::state::State;

/// How long a job may run unless its slot says otherwise, in milliseconds.
pub(super) const TIMEOUT_MS: u64 = 300_000;

/// A permit under a concurrency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// The hash of the key.
    pub key: u64,
    /// How many jobs of the key may run at once.
    pub limit: u32,
    /// Whether this job holds the permit.
    pub held: bool,
    /// Whether the job is in the key's wait list. A cancelled job stays in it until it reaches the front.
    pub is_waiting: bool,
    /// The next job of the wait list.
    pub next: Option<JobPosition>,
}

/// The mutable state of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub state: State,
    /// 0 to 3.
    pub priority: u8,
    /// The number of its type in its queue.
    pub kind: u32,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it becomes due.
    pub run_at: Option<Timestamp>,
    /// Rises with every lease, and whenever a lease ends without a report.
    pub fence: u64,
    /// Attempts that count against its retries.
    pub attempts: u32,
    /// Executions begun in all.
    pub executions: u32,
    /// Executions lost since `losses_since`.
    pub losses: u32,
    /// See `losses`.
    pub losses_since: Timestamp,
    /// The worker that has it, or had it last.
    pub worker: u64,
    /// When it was last leased.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// When its lease ends unless it is renewed, or its grace after a cancellation.
    pub lease_until: Timestamp,
    /// When it exceeds its timeout.
    pub deadline: Timestamp,
    /// When it is to be deleted.
    pub forget_at: Timestamp,
    /// The last entry of its history.
    pub history: Option<Offset>,
    /// Whether that entry holds its result.
    pub has_result: bool,
    /// The offset of its specification, if that was moved. In a slot without a job: the offset of the job whose
    /// specification is stored here.
    pub spec: Option<Offset>,
    /// Its timeout in milliseconds; zero is none.
    pub timeout_ms: u64,
    /// Jobs it depends on that have not completed.
    pub blockers: u32,
    /// Whether a job it depends on ended without success.
    pub has_failed_blocker: bool,
    /// Whether other jobs depend on it.
    pub has_dependents: bool,
    /// Whether it has tags or other labels.
    pub has_labels: bool,
    /// The hash of the unique key that it holds.
    pub unique: Option<u64>,
    /// Its concurrency key.
    pub permit: Option<Permit>,
    /// Whether it has progress or a log.
    pub has_output: bool,
    /// Since when it is a dead letter.
    pub dead_at: Option<Timestamp>,
}

impl Slot {
    /// A slot without a job.
    pub fn gone() -> Self {
        Self::new(State::Gone, 0, 0, Timestamp::default())
    }

    pub(crate) fn new(state: State, priority: u8, kind: u32, created_at: Timestamp) -> Self {
        let never = Timestamp::default();
        Self {
            state,
            priority,
            kind,
            created_at,
            run_at: None,
            fence: 0,
            attempts: 0,
            executions: 0,
            losses: 0,
            losses_since: never,
            worker: 0,
            started_at: never,
            ended_at: never,
            lease_until: never,
            deadline: never,
            forget_at: never,
            history: None,
            has_result: false,
            spec: None,
            timeout_ms: TIMEOUT_MS,
            blockers: 0,
            has_failed_blocker: false,
            has_dependents: false,
            has_labels: false,
            unique: None,
            permit: None,
            has_output: false,
            dead_at: None,
        }
    }

    /// Whether nothing of the slot is needed any more.
    pub fn is_spent(&self) -> bool {
        self.state == State::Gone
            && self.spec.is_none()
            && !self.permit.is_some_and(|permit| permit.is_waiting)
    }

    /// The permit as it is stored: without a job, only a position in a wait list counts.
    pub(super) fn kept_permit(&self) -> Option<Permit> {
        self.permit.filter(|permit| permit.is_waiting || self.state != State::Gone)
    }

    /// Whether the message at its offset is garbage: no job is here, or its specification was moved.
    pub fn is_free(&self) -> bool {
        (self.state == State::Gone) == self.spec.is_none()
    }

    /// When the leader has to act on the job.
    pub fn due(&self) -> Option<Timestamp> {
        match self.state {
            State::Scheduled => self.run_at,
            State::Running => Some(self.lease_until.min(self.deadline)),
            State::Cancelling => Some(self.lease_until),
            State::Pending if self.has_failed_blocker => Some(self.created_at),
            State::Pending | State::Dispatched | State::Gone => None,
            State::Completed | State::Failed | State::TimedOut | State::Cancelled => Some(self.forget_at),
        }
    }
}
