//! Reports: workers say how executions ended.

use std::time::Duration;

use bytes::Bytes;

use crate::model::error::Error;
use crate::model::history_entry::JobError;
use crate::model::ids::{JobId, JobPosition};
use crate::model::limits::{REPORTS_MAX, RESULT_BYTES_MAX};
use crate::model::state::{Outcome, State};
use crate::rules::state_machine::{self, Failure, Refusal, Verdict};
use crate::rules::{cancellation, completion, history};
use crate::storage::{Abort, JobsTx, each};

/// A worker's report about one execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The job.
    pub job: JobId,
    /// The fence of the execution.
    pub fence: u64,
    /// How the execution ended.
    pub outcome: Outcome,
    /// The result, as JSON; empty when there is none.
    pub result: Bytes,
    /// Why it failed.
    pub error: Option<JobError>,
    /// Whether a retry may help.
    pub retryable: bool,
    /// The retry delay that the worker asks for.
    pub retry_after: Option<Duration>,
}

impl Report {
    /// A report without result or error.
    pub fn new(job: JobId, fence: u64, outcome: Outcome) -> Self {
        Self { job, fence, outcome, result: Bytes::new(), error: None, retryable: true, retry_after: None }
    }
}

/// The answer to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// Accepted; the job now has this state.
    Accepted(State),
    /// The same report was accepted before.
    Repeated,
    /// The execution is over; nothing was changed.
    StaleFence {
        /// The present fence.
        current: u64,
    },
    /// The job does not exist.
    NotFound,
}

/// Refuses too many or too large reports.
pub fn check(reports: &[Report]) -> Result<(), Error> {
    if reports.len() > REPORTS_MAX {
        return Err(Error::TooLarge(format!("a call reports at most {REPORTS_MAX} outcomes; split it")));
    }
    if reports.iter().any(|report| report.result.len() > RESULT_BYTES_MAX) {
        let message =
            format!("a result has at most {RESULT_BYTES_MAX} bytes; keep it elsewhere and report where");
        return Err(Error::TooLarge(message));
    }
    Ok(())
}

/// Applies reports. Returns one answer for each.
pub fn report(tx: &mut JobsTx<'_>, reports: &[Report]) -> Result<Vec<Reported>, Abort> {
    tx.prefetch_slots(reports.iter().filter_map(|report| report.job.position()))?;
    each(reports, |report| report_one(tx, report))
}

fn report_one(tx: &mut JobsTx<'_>, report: &Report) -> Result<Reported, Abort> {
    let Some(position) = tx.find(report.job)? else { return Ok(Reported::NotFound) };
    let Some(current) = tx.slot(position)?.map(|slot| (slot.fence, slot.started_at)) else {
        return Ok(Reported::NotFound);
    };
    match apply(tx, position, report)? {
        Ok(verdict) => {
            let ran = tx.now().since(current.1);
            tx.effects.counts.ended.push((report.outcome, ran));
            completion::on_execution_ended(tx, position, verdict)?;
            let state = tx.slot(position)?.map_or(State::Gone, |slot| slot.state);
            Ok(Reported::Accepted(state))
        }
        Err(Refusal::Repeated) => Ok(Reported::Repeated),
        Err(Refusal::StaleFence) => {
            tx.effects.counts.stale += 1;
            Ok(Reported::StaleFence { current: current.0 })
        }
    }
}

fn apply(
    tx: &mut JobsTx<'_>,
    position: JobPosition,
    report: &Report,
) -> Result<Result<Verdict, Refusal>, Abort> {
    let (now, policy, fence) = (tx.now(), tx.policy, report.fence);
    let reason = cancellation::reason_of(tx, position)?;
    let verdict = match report.outcome {
        Outcome::Succeeded => {
            let done = state_machine::succeed(tx.slot_mut(position)?, now, fence, &policy);
            if done.is_ok() && report.result.is_empty() {
                // The slot already has everything that a plain success changes.
                return Ok(done.map(|()| Verdict::Ended(State::Completed)));
            }
            done.map(|()| Verdict::Ended(State::Completed))
        }
        Outcome::Released => state_machine::release(tx.slot_mut(position)?, now, fence, &policy),
        Outcome::Failed | Outcome::TimedOut | Outcome::Cancelled | Outcome::Lost => {
            if let Some(Err(refusal)) = tx.slot(position)?.map(|slot| state_machine::check(slot, fence)) {
                return Ok(Err(refusal));
            }
            let failure = Failure {
                outcome: report.outcome,
                retryable: report.retryable,
                retry_after: report.retry_after,
            };
            let (spec, _) = tx.spec(position)?;
            state_machine::fail(tx.slot_mut(position)?, now, fence, &failure, &spec.retry, &policy)
        }
    };
    if let Ok(verdict) = &verdict {
        let reason = reason.filter(|_| *verdict == Verdict::Ended(State::Cancelled));
        let error = reason.map(|reason| JobError::from_server("cancelled", reason));
        let error = report.error.clone().or(error);
        history::append(tx, position, fence, report.outcome, error, &report.result)?;
    }
    Ok(verdict)
}
