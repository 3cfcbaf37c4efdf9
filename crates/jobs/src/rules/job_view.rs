//! A job as the API shows it: its state, why it waits, and each execution.

use std::sync::Arc;

use baton_types::{Offset, PartitionId, Timestamp};
use bytes::Bytes;

use crate::model::error::Error;
use crate::model::history_entry::JobError;
use crate::model::ids::{ExecutionId, JobId, JobPosition, WorkerId};
use crate::model::slot::Slot;
use crate::model::spec::Spec;
use crate::model::state::{Outcome, State, WaitReason};
use crate::rules::heartbeat::ProgressAt;
use crate::rules::leasing::held_back;
use crate::storage::{Abort, JobsTx};

/// One execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Its id.
    pub execution: ExecutionId,
    /// Its number, from 1; 0 for an action of the server.
    pub number: u32,
    /// Its worker.
    pub worker: WorkerId,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Its outcome; `None` while it runs.
    pub outcome: Option<Outcome>,
    /// Why it failed.
    pub error: Option<JobError>,
}

/// A job without its arguments and history.
#[derive(Clone, Debug, PartialEq)]
pub struct JobView {
    /// Its id.
    pub id: JobId,
    /// Its queue.
    pub queue: Arc<str>,
    /// Its specification.
    pub spec: Spec,
    /// Its arguments.
    pub args: Bytes,
    /// Its state.
    pub state: State,
    /// Why it waits.
    pub wait_reason: Option<WaitReason>,
    /// 0 to 3.
    pub priority: u8,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it becomes due.
    pub run_at: Option<Timestamp>,
    /// When it was last leased.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Attempts that count.
    pub attempts: u32,
    /// All executions.
    pub executions: u32,
    /// Executions that were lost.
    pub losses: u32,
    /// The present fence.
    pub fence: u64,
    /// The worker that has it, or had it last.
    pub worker: Option<WorkerId>,
    /// Since when it is a dead letter.
    pub dead_at: Option<Timestamp>,
    /// The error of a failed job, or the reason of a cancelled one.
    pub error: Option<JobError>,
    pub(crate) history: Option<Offset>,
    pub(crate) history_in: PartitionId,
    pub(crate) has_result: bool,
}

/// A job with its history.
#[derive(Clone, Debug, PartialEq)]
pub struct JobDetail {
    /// The job.
    pub job: JobView,
    /// Its executions, the oldest first.
    pub history: Vec<Attempt>,
    /// Its last reported progress.
    pub progress: Option<ProgressAt>,
    /// Its result, as JSON.
    pub result: Option<Bytes>,
}

/// The part of a job's view that its slot and its queue give, without the specification.
#[derive(Clone, Debug)]
pub struct PartialView {
    pub position: JobPosition,
    pub slot: Slot,
    pub queue: Arc<str>,
    pub history_in: PartitionId,
    pub wait_reason: Option<WaitReason>,
}

impl PartialView {
    /// The position of the specification.
    pub fn spec_at(&self) -> (PartitionId, u64) {
        (self.position.partition, self.slot.spec.unwrap_or(self.position.offset).0)
    }

    /// The view, with the specification and the arguments.
    pub fn with(self, spec: Spec, args: Bytes) -> JobView {
        let slot = self.slot;
        let has_run = slot.executions > 0;
        JobView {
            id: JobId::new(slot.created_at, self.position),
            queue: self.queue,
            spec,
            args,
            state: slot.state,
            wait_reason: self.wait_reason,
            priority: slot.priority,
            created_at: slot.created_at,
            run_at: slot.run_at,
            started_at: has_run.then_some(slot.started_at),
            ended_at: slot.state.is_terminal().then_some(slot.ended_at),
            attempts: slot.attempts,
            executions: slot.executions,
            losses: slot.losses,
            fence: slot.fence,
            worker: has_run.then_some(WorkerId(slot.worker)),
            dead_at: slot.dead_at,
            error: None,
            history: slot.history,
            history_in: self.history_in,
            has_result: slot.has_result,
        }
    }
}

/// Reads a job's slot and queue.
pub fn partial_view(tx: &mut JobsTx<'_>, position: JobPosition) -> Result<Option<PartialView>, Abort> {
    let Some(slot) = tx.slot(position)?.cloned() else { return Ok(None) };
    let now = tx.now();
    let head = tx.head(position.partition)?;
    let wait_reason = match slot.state {
        State::Scheduled if slot.executions > 0 => Some(WaitReason::Retry),
        State::Scheduled => Some(WaitReason::Delayed),
        State::Pending if slot.blockers > 0 || slot.has_failed_blocker => Some(WaitReason::Depends),
        State::Pending => Some(WaitReason::KeyLimit),
        State::Dispatched => Some(held_back(head, now).unwrap_or(WaitReason::NoWorker)),
        _ => None,
    };
    let (queue, history_in) = (head.name.clone(), head.history);
    Ok(Some(PartialView { position, slot, queue, history_in, wait_reason }))
}

/// Reads a job's slot and queue; an error if no such job exists.
pub fn expect_partial_view(tx: &mut JobsTx<'_>, id: JobId) -> Result<PartialView, Abort> {
    let position = tx.expect(id)?;
    partial_view(tx, position)?.ok_or_else(|| Error::no_job(id).into())
}
