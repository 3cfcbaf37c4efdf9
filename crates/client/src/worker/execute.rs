//! One execution, from its lease to its report.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use baton_env::Stopwatch;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

use super::Failure;
use super::context::{Context, Execution, StopReason};
use super::handler::HandlerResult;
use super::report::{PendingReport, ReportAnswer};
use super::session::Session;
use super::wire::{Outcome, Report};

/// How long a handler may take to stop, before it is dropped.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// How long to wait for the answer to a report after a heartbeat says that the job is lost. Both may be in flight
/// when the outcome was accepted.
const LATE_ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Bytes of a result: the server accepts no more.
const RESULT_BYTES_MAX: usize = 256 << 10;

/// Runs a job and reports it.
pub(super) async fn execute(session: Arc<Session>, execution: Arc<Execution>) {
    // A job that arrives while the worker drains is not started.
    let handled =
        if execution.stop_reason().is_some() { None } else { run_handler(&session, &execution).await };
    let verdict = match outcome(execution.stop_reason(), handled) {
        None => None,
        Some(outcome) => Some(report(&session, &execution, outcome).await),
    };
    session.finish_execution(&execution, verdict);
}

/// Runs the handler until it returns, or until its time to stop is over.
async fn run_handler(session: &Session, execution: &Arc<Execution>) -> Option<HandlerResult> {
    let work = session.handlers().work(Context::new(Arc::clone(execution)));
    let mut work = AbortOnDropHandle::new(tokio::spawn(work));
    let handled = tokio::select! {
        handled = &mut work => Some(handled),
        () = wait_for_stop(session, execution) => tokio::time::timeout(stop_grace(session, execution), &mut work).await.ok(),
    };
    handled.map(handled_or_panicked)
}

/// Returns when the handler must stop.
async fn wait_for_stop(session: &Session, execution: &Execution) {
    let (watch, limit) = (Stopwatch::start(), execution.lease.deadline_ms.map(Duration::from_millis));
    loop {
        let trusted = session.trusted_for(execution);
        let left = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(watch.elapsed()));
        if trusted.is_zero() {
            execution.stop_handler(StopReason::Unrenewed);
        } else if left.is_zero() {
            execution.stop_handler(StopReason::TimedOut);
        }
        tokio::select! {
            () = execution.stop.cancelled() => return,
            () = baton_env::sleep(trusted.min(left)) => {}
        }
    }
}

/// How long the handler may take to stop.
fn stop_grace(session: &Session, execution: &Execution) -> Duration {
    match execution.stop_reason() {
        // Within the margin in which the lease is not trusted.
        Some(StopReason::Lost | StopReason::Unrenewed) => session.margin() / 2,
        _ => STOP_GRACE.min(session.trusted_for(execution)),
    }
}

fn handled_or_panicked(handled: Result<HandlerResult, JoinError>) -> HandlerResult {
    handled.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => {
            Err(Failure::new(format!("the handler panicked: {}", panic_text(&*panic))).kind("panic"))
        }
        Err(error) => Err(Failure::new(error.to_string())),
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

type ReportContents = (Outcome, Option<Box<RawValue>>, Option<Failure>);

/// The report, given why the handler was stopped, if it was, and what it returned, if it did.
fn outcome(end: Option<StopReason>, handled: Option<HandlerResult>) -> Option<ReportContents> {
    match (end, handled) {
        (Some(StopReason::Lost), _) => None,
        (_, Some(Ok(result))) if result.get().len() > RESULT_BYTES_MAX => {
            let why =
                format!("a result has at most {RESULT_BYTES_MAX} bytes; keep it elsewhere and return where");
            Some((Outcome::Failed, None, Some(Failure::permanent(why).kind("result"))))
        }
        (_, Some(Ok(result))) => Some((Outcome::Succeeded, Some(result), None)),
        (None, Some(Err(failure))) => Some((Outcome::Failed, None, Some(failure))),
        (None, None) => Some((Outcome::Failed, None, Some(Failure::new("the handler did not return")))),
        (Some(StopReason::Cancelled), _) => Some((Outcome::Cancelled, None, None)),
        (Some(StopReason::TimedOut), _) => Some((Outcome::TimedOut, None, None)),
        (Some(StopReason::Drained | StopReason::Unrenewed), _) => Some((Outcome::Released, None, None)),
    }
}

async fn report(session: &Session, execution: &Execution, told: ReportContents) -> (Outcome, ReportAnswer) {
    let gone = execution.log.lease_over.clone();
    tokio::select! {
        () = execution.log.close() => {}
        () = gone.cancelled() => {}
    }
    let (outcome, result, failure) = told;
    let (verdict, mut answer) = oneshot::channel();
    let report = Report {
        job_id: execution.lease.job_id.clone(),
        execution_id: execution.lease.execution_id.clone(),
        fence: execution.lease.fence,
        outcome,
        result,
        error: failure.map(Failure::into_wire),
    };
    session.report(PendingReport { report, verdict }).await;
    // Heartbeats renew the lease meanwhile, so that the job does not go to another worker while its report is in
    // flight.
    let answered = tokio::select! {
        biased;
        verdict = &mut answer => verdict.ok(),
        () = gone.cancelled() => tokio::time::timeout(LATE_ANSWER_WAIT, answer).await.ok().and_then(Result::ok),
    };
    (outcome, answered.unwrap_or(ReportAnswer::Unreported))
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;

    use super::*;

    #[test]
    fn what_is_reported_follows_from_why_it_ended_and_what_was_returned() {
        let done = || Some(Ok(to_raw_value(&1).unwrap()));
        let failed = || Some(Err(Failure::new("no")));
        let told = |end, handled| outcome(end, handled).map(|(outcome, ..)| outcome);
        assert_eq!(told(None, done()), Some(Outcome::Succeeded));
        assert_eq!(told(None, failed()), Some(Outcome::Failed));
        assert_eq!(told(Some(StopReason::Cancelled), done()), Some(Outcome::Succeeded));
        assert_eq!(told(Some(StopReason::Cancelled), failed()), Some(Outcome::Cancelled));
        assert_eq!(told(Some(StopReason::TimedOut), None), Some(Outcome::TimedOut));
        assert_eq!(told(Some(StopReason::Drained), failed()), Some(Outcome::Released));
        assert_eq!(told(Some(StopReason::Unrenewed), failed()), Some(Outcome::Released));
        assert_eq!(told(Some(StopReason::Unrenewed), done()), Some(Outcome::Succeeded));
        assert_eq!(told(Some(StopReason::Lost), done()), None);
    }
}
