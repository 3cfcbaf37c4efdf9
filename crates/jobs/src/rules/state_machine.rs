//! The state machine of one job: what each event does to its slot.
//!
//! Pure functions of a slot and a time; they read and write nothing else. Always: a fence only rises; an event with
//! an old fence is refused; an ended job stays as it is unless a caller retries it; counted attempts never exceed its
//! retries plus one. Not here: the consequences of an end (`completion`), and timers (`maintenance::timeouts`). Start
//! at [`lease`].

use std::time::Duration;

use baton_types::Timestamp;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::model::limits::{LOSSES_MAX, LOSSES_WITHIN};
use crate::model::policy::Policy;
use crate::model::retry::Retry;
use crate::model::slot::Slot;
use crate::model::state::{Outcome, State};

/// Why an event of a worker is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The fence is old: another execution has or had the job since, or none has it.
    StaleFence,
    /// The same event was accepted before.
    Repeated,
}

/// What happens to a job after an execution without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It waits until then for its retry.
    RetryAt(Timestamp),
    /// It is retried at once.
    Again,
    /// It has ended in this state.
    Ended(State),
}

/// Leases a dispatched job to a worker. Returns the fence; `None` when the job is not dispatched.
pub fn lease(slot: &mut Slot, now: Timestamp, worker: u64, policy: &Policy) -> Option<u64> {
    if slot.state != State::Dispatched {
        return None;
    }
    slot.state = State::Running;
    slot.fence += 1;
    slot.attempts += 1;
    slot.executions += 1;
    slot.worker = worker;
    slot.started_at = now;
    slot.lease_until = now.after(policy.lease);
    slot.deadline = match slot.timeout_ms {
        0 => Timestamp::MAX,
        timeout => now.after(Duration::from_millis(timeout)),
    };
    Some(slot.fence)
}

/// Whether `fence` is that of the running execution.
pub fn check(slot: &Slot, fence: u64) -> Result<(), Refusal> {
    match slot.state.is_held() && slot.fence == fence {
        true => Ok(()),
        false => Err(Refusal::StaleFence),
    }
}

/// Renews the lease. Returns whether the worker should stop.
pub fn renew(slot: &mut Slot, now: Timestamp, fence: u64, policy: &Policy) -> Result<bool, Refusal> {
    check(slot, fence)?;
    if slot.state == State::Cancelling {
        return Ok(true);
    }
    slot.lease_until = slot.lease_until.max(now.after(policy.lease));
    Ok(false)
}

/// The worker reports success.
pub fn succeed(slot: &mut Slot, now: Timestamp, fence: u64, policy: &Policy) -> Result<(), Refusal> {
    if slot.state == State::Completed && slot.fence == fence {
        return Err(Refusal::Repeated);
    }
    check(slot, fence)?;
    close(slot, now, State::Completed, policy);
    Ok(())
}

/// The worker releases the job, which does not count as an attempt. A job that was asked to stop is cancelled.
pub fn release(slot: &mut Slot, now: Timestamp, fence: u64, policy: &Policy) -> Result<Verdict, Refusal> {
    check(slot, fence)?;
    slot.fence += 1;
    slot.attempts = slot.attempts.saturating_sub(1);
    if slot.state == State::Cancelling {
        close(slot, now, State::Cancelled, policy);
        return Ok(Verdict::Ended(State::Cancelled));
    }
    slot.state = State::Pending;
    Ok(Verdict::Again)
}

/// The worker reports a failure, a timeout, or that it stopped as asked.
pub fn fail(
    slot: &mut Slot,
    now: Timestamp,
    fence: u64,
    failure: &Failure,
    retry: &Retry,
    policy: &Policy,
) -> Result<Verdict, Refusal> {
    check(slot, fence)?;
    if slot.state == State::Cancelling || failure.outcome == Outcome::Cancelled {
        close(slot, now, State::Cancelled, policy);
        return Ok(Verdict::Ended(State::Cancelled));
    }
    Ok(retry_or_end(slot, now, failure, retry, policy))
}

/// How an execution failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Failed, timed out, or cancelled.
    pub outcome: Outcome,
    /// Whether a retry may help.
    pub retryable: bool,
    /// The retry delay that the worker asks for.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// It exceeded its timeout.
    pub const TIMED_OUT: Self = Self { outcome: Outcome::TimedOut, retryable: true, retry_after: None };
}

fn retry_or_end(
    slot: &mut Slot,
    now: Timestamp,
    failure: &Failure,
    retry: &Retry,
    policy: &Policy,
) -> Verdict {
    if failure.retryable && slot.attempts <= retry.max_retries {
        slot.fence += 1;
        let chance = xxh3_64_with_seed(&slot.created_at.micros().to_le_bytes(), slot.fence);
        let pause = failure.retry_after.unwrap_or_else(|| retry.pause(slot.attempts, chance));
        let at = now.after(pause.min(crate::model::limits::DELAY_MAX));
        slot.state = State::Scheduled;
        slot.run_at = Some(at);
        return Verdict::RetryAt(at);
    }
    let state = if failure.outcome == Outcome::TimedOut { State::TimedOut } else { State::Failed };
    slot.fence += 1;
    close(slot, now, state, policy);
    Verdict::Ended(state)
}

/// Why an execution is overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// Its worker's lease expired.
    Lost,
    /// It exceeded its timeout.
    TimedOut,
    /// Its worker did not confirm a cancellation in time.
    NotStopped,
}

/// Renews the lease of an execution that began before `available_since`, when a gap ended in which no server could
/// hear its worker. So neither the worker's silence nor a late report counts.
pub fn renew_after_gap(slot: &mut Slot, available_since: Timestamp, policy: &Policy) {
    let term = if slot.state == State::Cancelling { policy.cancel_grace } else { policy.lease };
    if slot.started_at < available_since {
        let until = available_since.after(term);
        slot.lease_until = slot.lease_until.max(until);
        slot.deadline = slot.deadline.max(until);
    }
}

/// Whether and why the execution of a job is overdue.
pub fn overdue(slot: &Slot, now: Timestamp) -> Option<Overdue> {
    match slot.state {
        State::Cancelling if slot.lease_until <= now => Some(Overdue::NotStopped),
        State::Running if slot.lease_until <= now => Some(Overdue::Lost),
        State::Running if slot.deadline <= now => Some(Overdue::TimedOut),
        _ => None,
    }
}

/// Ends an execution whose lease expired. It does not count as an attempt, up to `LOSSES_MAX` times.
pub fn on_lease_expired(slot: &mut Slot, now: Timestamp, policy: &Policy) -> Verdict {
    slot.fence += 1;
    slot.attempts = slot.attempts.saturating_sub(1);
    if slot.losses == 0 || now.since(slot.losses_since) > LOSSES_WITHIN {
        (slot.losses, slot.losses_since) = (0, now);
    }
    slot.losses += 1;
    if slot.losses >= LOSSES_MAX {
        close(slot, now, State::Failed, policy);
        return Verdict::Ended(State::Failed);
    }
    slot.state = State::Pending;
    Verdict::Again
}

/// Ends an execution that exceeded its timeout.
pub fn time_out(slot: &mut Slot, now: Timestamp, retry: &Retry, policy: &Policy) -> Verdict {
    retry_or_end(slot, now, &Failure::TIMED_OUT, retry, policy)
}

/// The result of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It has ended.
    Done,
    /// Its worker was asked to stop.
    Asked,
    /// It had ended before.
    TooLate,
}

/// Cancels a job; with `force`, at once even if a worker has it.
pub fn cancel(slot: &mut Slot, now: Timestamp, force: bool, policy: &Policy) -> Cancelled {
    match slot.state {
        state if state.is_terminal() => Cancelled::TooLate,
        State::Running if !force => {
            slot.state = State::Cancelling;
            slot.lease_until = now.after(policy.cancel_grace);
            Cancelled::Asked
        }
        State::Cancelling if !force => Cancelled::Asked,
        state => {
            slot.fence += u64::from(state.is_held());
            close(slot, now, State::Cancelled, policy);
            Cancelled::Done
        }
    }
}

/// Ends a job whose worker did not stop in time.
pub fn end_unstopped(slot: &mut Slot, now: Timestamp, policy: &Policy) {
    slot.fence += 1;
    close(slot, now, State::Cancelled, policy);
}

/// Retries an ended job; `false` when it has not ended.
pub fn reopen(slot: &mut Slot, reset_attempts: bool) -> bool {
    if !slot.state.is_terminal() || slot.state == State::Gone {
        return false;
    }
    slot.state = State::Pending;
    slot.fence += 1;
    slot.run_at = None;
    slot.dead_at = None;
    slot.has_failed_blocker = false;
    slot.blockers = 0;
    slot.has_result = false;
    slot.losses = 0;
    if reset_attempts {
        slot.attempts = 0;
    }
    true
}

fn close(slot: &mut Slot, now: Timestamp, state: State, policy: &Policy) {
    slot.state = state;
    slot.ended_at = now;
    slot.forget_at = now.after(match state {
        State::Completed => policy.completed_for,
        State::Cancelled => policy.cancelled_for,
        _ => policy.failed_for,
    });
    slot.blockers = 0;
    slot.has_failed_blocker = false;
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_794_767_647_638_487);

    fn policy() -> Policy {
        Policy::default()
    }

    fn running() -> Slot {
        let mut slot = Slot::new(State::Dispatched, 1, 0, NOW);
        assert_eq!(lease(&mut slot, NOW, 7, &policy()), Some(1));
        slot
    }

    const FAILED: Failure = Failure { outcome: Outcome::Failed, retryable: true, retry_after: None };

    #[test]
    fn a_job_is_leased_once() {
        let mut slot = running();
        assert_eq!(lease(&mut slot, NOW, 8, &policy()), None);
        assert_eq!(slot.worker, 7);
    }

    #[test]
    fn an_old_fence_changes_nothing() {
        let mut slot = running();
        let before = slot.clone();
        let retry = Retry::default();
        assert_eq!(succeed(&mut slot, NOW, 0, &policy()), Err(Refusal::StaleFence));
        assert_eq!(renew(&mut slot, NOW, 2, &policy()), Err(Refusal::StaleFence));
        assert_eq!(release(&mut slot, NOW, 0, &policy()), Err(Refusal::StaleFence));
        assert_eq!(fail(&mut slot, NOW, 0, &FAILED, &retry, &policy()), Err(Refusal::StaleFence));
        assert_eq!(slot, before);
    }

    #[test]
    fn a_success_said_twice_is_one_success() {
        let mut slot = running();
        assert_eq!(succeed(&mut slot, NOW, 1, &policy()), Ok(()));
        assert_eq!(succeed(&mut slot, NOW, 1, &policy()), Err(Refusal::Repeated));
        assert_eq!(fail(&mut slot, NOW, 1, &FAILED, &Retry::default(), &policy()), Err(Refusal::StaleFence));
        assert_eq!(slot.state, State::Completed);
    }

    #[test]
    fn a_job_is_tried_as_often_as_it_may() {
        let (mut slot, retry) =
            (Slot::new(State::Dispatched, 1, 0, NOW), Retry { max_retries: 2, ..Retry::default() });
        for attempt in 1..=3 {
            let fence = lease(&mut slot, NOW, 7, &policy()).unwrap();
            let verdict = fail(&mut slot, NOW, fence, &FAILED, &retry, &policy()).unwrap();
            assert_eq!(matches!(verdict, Verdict::RetryAt(_)), attempt < 3, "{attempt}");
            if attempt < 3 {
                slot.state = State::Dispatched;
            }
        }
        assert_eq!((slot.state, slot.attempts), (State::Failed, 3));
    }

    #[test]
    fn what_cannot_be_helped_is_not_tried_again() {
        let mut slot = running();
        let failure = Failure { retryable: false, ..FAILED };
        let verdict = fail(&mut slot, NOW, 1, &failure, &Retry::default(), &policy());
        assert_eq!(verdict, Ok(Verdict::Ended(State::Failed)));
    }

    #[test]
    fn giving_back_counts_for_nothing_and_losing_three_times_ends_it() {
        let mut slot = running();
        assert_eq!(release(&mut slot, NOW, 1, &policy()), Ok(Verdict::Again));
        assert_eq!((slot.attempts, slot.fence), (0, 2));
        for loss in 1..=3 {
            slot.state = State::Dispatched;
            lease(&mut slot, NOW, 7, &policy()).unwrap();
            let verdict = on_lease_expired(&mut slot, NOW, &policy());
            assert_eq!(verdict == Verdict::Ended(State::Failed), loss == 3);
        }
        assert_eq!(slot.attempts, 0);
    }

    #[test]
    fn only_an_execution_from_before_a_gap_is_granted_a_term_after_it() {
        let mut slot = running();
        let before = slot.clone();
        renew_after_gap(&mut slot, NOW, &policy());
        assert_eq!(slot, before);
        let end = NOW.after(Duration::from_secs(600));
        renew_after_gap(&mut slot, end, &policy());
        let until = end.after(policy().lease);
        assert_eq!((slot.lease_until, slot.deadline, slot.losses), (until, until, 0));
        assert_eq!(overdue(&slot, until.before(Duration::from_millis(1))), None);
        assert_eq!(overdue(&slot, until), Some(Overdue::Lost));
    }

    #[test]
    fn losses_long_ago_do_not_count() {
        let mut slot = running();
        for hours in [0, 70, 140, 210, 280] {
            let at = NOW.after(Duration::from_secs(hours * 3600));
            assert_eq!(on_lease_expired(&mut slot, at, &policy()), Verdict::Again, "{hours}");
        }
    }

    #[test]
    fn a_running_job_is_asked_to_stop_and_then_made_to() {
        let mut slot = running();
        assert_eq!(cancel(&mut slot, NOW, false, &policy()), Cancelled::Asked);
        assert_eq!(renew(&mut slot, NOW, 1, &policy()), Ok(true));
        assert_eq!(overdue(&slot, NOW.after(Duration::from_secs(31))), Some(Overdue::NotStopped));
        end_unstopped(&mut slot, NOW, &policy());
        assert_eq!(succeed(&mut slot, NOW, 1, &policy()), Err(Refusal::StaleFence));
        assert_eq!(cancel(&mut slot, NOW, true, &policy()), Cancelled::TooLate);
    }

    #[test]
    fn an_ended_job_can_be_tried_again_under_a_new_fence() {
        let mut slot = running();
        assert!(!reopen(&mut slot, true));
        succeed(&mut slot, NOW, 1, &policy()).unwrap();
        assert!(reopen(&mut slot, true));
        assert_eq!((slot.state, slot.fence, slot.attempts), (State::Pending, 2, 0));
    }

    #[test]
    fn the_deadline_is_the_jobs_own() {
        let mut slot = Slot { timeout_ms: 1_000, ..Slot::new(State::Dispatched, 1, 0, NOW) };
        lease(&mut slot, NOW, 7, &policy());
        assert_eq!(overdue(&slot, NOW.after(Duration::from_millis(999))), None);
        assert_eq!(overdue(&slot, NOW.after(Duration::from_millis(1_000))), Some(Overdue::TimedOut));
        assert_eq!(slot.due(), Some(NOW.after(Duration::from_millis(1_000))));
    }
}
