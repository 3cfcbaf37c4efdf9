//! Slots: the mutable state of one job.
//!
//! Always: a slot holds everything that a lease, a report or a timeout needs to decide. So the specification is read
//! only to hand a job out or to try it again. Not here: how slots are stored (`chunk`), what changes them
//! (`rules::state_machine`).

use baton_types::{Offset, Timestamp};

use crate::model::ids::Place;
use crate::model::state::State;

/// How long a job may run unless its slot says otherwise, in milliseconds.
pub(super) const TIMEOUT_MS: u64 = 300_000;

/// Permission to be under way that jobs of one key share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// The hash of the key.
    pub key: u64,
    /// How many jobs of it may be under way.
    pub limit: u32,
    /// Whether this job has one.
    pub held: bool,
    /// Whether it stands in the key's line. A job that was called off stands there until it is passed.
    pub in_line: bool,
    /// Who is behind it in the line.
    pub next: Option<Place>,
}

/// What changes of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Where it stands.
    pub state: State,
    /// 0 to 3.
    pub priority: u8,
    /// The number of its type in its queue.
    pub kind: u32,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When its time comes.
    pub run_at: Option<Timestamp>,
    /// Rises with every lease and whenever one is taken back.
    pub fence: u64,
    /// Attempts that count against its retries.
    pub attempts: u32,
    /// Executions begun in all.
    pub executions: u32,
    /// Executions lost since `losses_since`.
    pub losses: u32,
    /// See `losses`.
    pub losses_since: Timestamp,
    /// Who has it, or had it last.
    pub worker: u64,
    /// When it was last leased.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// When its lease ends unless it is renewed, or its grace after a cancellation.
    pub lease_until: Timestamp,
    /// When it will have run too long.
    pub deadline: Timestamp,
    /// When it is to be forgotten.
    pub forget_at: Timestamp,
    /// The last entry of its history.
    pub history: Option<Offset>,
    /// Whether that entry holds its result.
    pub has_result: bool,
    /// Where its specification is, unless it is where the job is. Of a place without a job: whose specification stands
    /// there.
    pub spec: Option<Offset>,
    /// How long it may run, in milliseconds; zero is for ever.
    pub timeout_ms: u64,
    /// Jobs it depends on that have not completed.
    pub blockers: u32,
    /// Whether one of them ended otherwise.
    pub is_doomed: bool,
    /// Whether others depend on it.
    pub has_dependents: bool,
    /// Whether it is found by tags or other labels.
    pub has_labels: bool,
    /// Whether it holds a unique key, and which.
    pub unique: Option<u64>,
    /// Its concurrency key.
    pub permit: Option<Permit>,
    /// Whether it said something: progress or a log.
    pub has_words: bool,
    /// Whether it is a dead letter, and since when.
    pub dead_at: Option<Timestamp>,
}

impl Slot {
    /// A place without a job.
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
            is_doomed: false,
            has_dependents: false,
            has_labels: false,
            unique: None,
            permit: None,
            has_words: false,
            dead_at: None,
        }
    }

    /// Whether nothing of it is needed any more.
    pub fn is_spent(&self) -> bool {
        self.state == State::Gone && self.spec.is_none() && !self.permit.is_some_and(|permit| permit.in_line)
    }

    /// Its permit as far as it is stored: without a job, only a place in a line counts.
    pub(super) fn kept_permit(&self) -> Option<Permit> {
        self.permit.filter(|permit| permit.in_line || self.state != State::Gone)
    }

    /// Whether the message in its place is not needed: nothing is there, or it stands elsewhere.
    pub fn is_free(&self) -> bool {
        (self.state == State::Gone) == self.spec.is_none()
    }

    /// When something is due that nobody will ask for.
    pub fn due(&self) -> Option<Timestamp> {
        match self.state {
            State::Scheduled => self.run_at,
            State::Running => Some(self.lease_until.min(self.deadline)),
            State::Cancelling => Some(self.lease_until),
            State::Pending if self.is_doomed => Some(self.created_at),
            State::Pending | State::Dispatched | State::Gone => None,
            State::Completed | State::Failed | State::TimedOut | State::Cancelled => Some(self.forget_at),
        }
    }
}
