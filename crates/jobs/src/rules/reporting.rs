//! Reports: how executions ended, by word of their workers.

use std::time::Duration;

use bytes::Bytes;

use crate::model::error::Error;
use crate::model::history_entry::JobError;
use crate::model::ids::{JobId, Place};
use crate::model::limits::{REPORTS_MAX, RESULT_BYTES_MAX};
use crate::model::state::{Outcome, State};
use crate::rules::state_machine::{self, Failure, Refusal, Verdict};
use crate::rules::{cancellation, completion, history};
use crate::storage::{Book, Halt, each};

/// What a worker says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The job.
    pub job: JobId,
    /// What proves that it is the worker's own.
    pub fence: u64,
    /// How the execution ended.
    pub outcome: Outcome,
    /// What it came to, as JSON; empty when nothing.
    pub result: Bytes,
    /// Why it failed.
    pub error: Option<JobError>,
    /// Whether trying again may help.
    pub retryable: bool,
    /// The pause that the worker asks for.
    pub retry_after: Option<Duration>,
}

impl Report {
    /// A report without result or error.
    pub fn new(job: JobId, fence: u64, outcome: Outcome) -> Self {
        Self { job, fence, outcome, result: Bytes::new(), error: None, retryable: true, retry_after: None }
    }
}

/// What a report came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// It counts; the job now stands so.
    Accepted(State),
    /// The same was accepted before.
    Repeated,
    /// The worker's time with the job was over; nothing was changed.
    StaleFence {
        /// The fence that counts.
        current: u64,
    },
    /// There is no such job any more.
    NotFound,
}

/// Refuses reports that are too many or too large.
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

/// Takes reports in, one answer for each.
pub fn report(book: &mut Book<'_>, reports: &[Report]) -> Result<Vec<Reported>, Halt> {
    book.want_places(reports.iter().filter_map(|report| report.job.place()))?;
    each(reports, |report| one(book, report))
}

fn one(book: &mut Book<'_>, report: &Report) -> Result<Reported, Halt> {
    let Some(place) = book.find(report.job)? else { return Ok(Reported::NotFound) };
    let Some(current) = book.slot(place)?.map(|slot| (slot.fence, slot.started_at)) else {
        return Ok(Reported::NotFound);
    };
    match apply(book, place, report)? {
        Ok(verdict) => {
            let ran = book.now().since(current.1);
            book.news.counts.ended.push((report.outcome, ran));
            completion::settle(book, place, verdict)?;
            let state = book.slot(place)?.map_or(State::Gone, |slot| slot.state);
            Ok(Reported::Accepted(state))
        }
        Err(Refusal::Repeated) => Ok(Reported::Repeated),
        Err(Refusal::StaleFence) => {
            book.news.counts.stale += 1;
            Ok(Reported::StaleFence { current: current.0 })
        }
    }
}

fn apply(book: &mut Book<'_>, place: Place, report: &Report) -> Result<Result<Verdict, Refusal>, Halt> {
    let (now, policy, fence) = (book.now(), book.policy, report.fence);
    let reason = cancellation::reason_of(book, place)?;
    let verdict = match report.outcome {
        Outcome::Succeeded => {
            let done = state_machine::succeed(book.slot_mut(place)?, now, fence, &policy);
            if done.is_ok() && report.result.is_empty() {
                // Its slot says it all.
                return Ok(done.map(|()| Verdict::Ended(State::Completed)));
            }
            done.map(|()| Verdict::Ended(State::Completed))
        }
        Outcome::Released => state_machine::release(book.slot_mut(place)?, now, fence, &policy),
        Outcome::Failed | Outcome::TimedOut | Outcome::Cancelled | Outcome::Lost => {
            if let Some(Err(refusal)) = book.slot(place)?.map(|slot| state_machine::check(slot, fence)) {
                return Ok(Err(refusal));
            }
            let failure = Failure {
                outcome: report.outcome,
                retryable: report.retryable,
                retry_after: report.retry_after,
            };
            let (spec, _) = book.spec(place)?;
            state_machine::fail(book.slot_mut(place)?, now, fence, &failure, &spec.retry, &policy)
        }
    };
    if let Ok(verdict) = &verdict {
        let reason = reason.filter(|_| *verdict == Verdict::Ended(State::Cancelled));
        let error = reason.map(|reason| JobError::of_server("cancelled", reason));
        let error = report.error.clone().or(error);
        history::note(book, place, fence, report.outcome, error, &report.result)?;
    }
    Ok(verdict)
}
