//! A request for another coordinator: list the living workers, then ask the coordinator to step down.
//!
//! Always: a failed call is repeated until the request is written, refused, or timed out; the error then includes what
//! the store said. Start at [`Machine::advance_step_down`].

use std::time::Duration;

use super::{Effect, Machine, Now, PendingCall, SwapAnswer};
use crate::record::EpochRecord;

/// Attempts to write the request while other writers change the record.
const ATTEMPTS_MAX: u32 = 8;

/// A request in progress.
#[derive(Debug)]
pub struct StepDownRequest {
    pub desired: Option<String>,
    /// Whether the workers were listed since the request; true if it names no worker.
    pub listed: bool,
    /// Whether the record was read since the request.
    pub record_read: bool,
    /// When to list the workers, until a list has come.
    next_list: Duration,
    attempts: u32,
    /// When the request times out.
    deadline: Duration,
    /// The last error of the store.
    failure: Option<String>,
}

impl Machine {
    pub(super) fn on_step_down(&mut self, now: Now, desired: Option<String>) {
        if self.step_down.is_some() {
            return self.effects.push(Effect::SteppedDown(Err("another such call is under way".into())));
        }
        // Followers do not list workers while the coordinator is healthy.
        let listed = desired.as_ref().is_none_or(|desired| *desired == self.worker_id);
        self.step_down = Some(StepDownRequest {
            desired,
            listed,
            record_read: false,
            next_list: now.mono,
            attempts: 0,
            deadline: now.mono + self.settings.worker_timeout,
            failure: None,
        });
        self.next_read = self.next_read.min(now.mono);
    }

    /// When the request has something to do.
    pub(super) fn step_down_wake_at(&self) -> Duration {
        match &self.step_down {
            Some(request) if !request.listed && !self.workers.list_in_flight => {
                request.next_list.min(request.deadline)
            }
            Some(request) if self.pending_call != Some(PendingCall::StepDown) => request.deadline,
            _ => Duration::MAX,
        }
    }

    /// Lists the workers when that is due, and times the request out.
    pub(super) fn advance_step_down(&mut self, now: Now) {
        let Some(request) = &self.step_down else { return };
        if now.mono >= request.deadline && self.pending_call != Some(PendingCall::StepDown) {
            let failure = request.failure.as_deref().unwrap_or("the store does not answer");
            let error = format!("no hand-over within {:?}: {failure}", self.settings.worker_timeout);
            return self.refuse_step_down(error);
        }
        if !request.listed && !self.workers.list_in_flight && now.mono >= request.next_list {
            self.list_workers();
        }
    }

    fn refuse_step_down(&mut self, error: String) {
        self.step_down = None;
        self.effects.push(Effect::SteppedDown(Err(error)));
    }

    /// Remembers the error of a call that the request waits for.
    pub(super) fn record_step_down_failure(&mut self, error: &str) {
        if let Some(request) = &mut self.step_down {
            request.failure = Some(error.to_owned());
        }
    }

    /// Schedules another list after a failed one.
    pub(super) fn retry_step_down_list(&mut self, now: Now, error: &str) {
        self.record_step_down_failure(error);
        let pause = self.retry_backoff(self.settings.effective_poll_interval());
        if let Some(request) = &mut self.step_down {
            request.next_list = now.mono + pause;
        }
    }

    /// After a list: refuses a request that names a worker which is not alive.
    pub(super) fn check_desired_is_alive(&mut self, now: Now) {
        let Some(request) = self.step_down.as_mut().filter(|request| !request.listed) else { return };
        request.listed = true;
        let alive = self.workers.alive(now.mono, self.settings.worker_timeout, &self.worker_id);
        if let Some(desired) = request.desired.clone().filter(|desired| !alive.contains(desired)) {
            let alive = alive.join(", ");
            self.refuse_step_down(format!(
                "{desired:?} is not known to be alive; the workers alive are {alive}"
            ));
        }
    }

    /// Writes the request into the epoch record.
    pub(super) fn write_step_down(&mut self) {
        let Some(request) = self.step_down.as_mut() else { return };
        let Some(Some((version, epoch))) = self.observed.as_ref().map(|seen| seen.current.clone()) else {
            // There is no coordinator.
            self.step_down = None;
            return self.effects.push(Effect::SteppedDown(Ok(())));
        };
        request.attempts += 1;
        if request.attempts > ATTEMPTS_MAX {
            return self.refuse_step_down("the record changed too often; try again".into());
        }
        let record = EpochRecord {
            step_down: true,
            handover_to: request.desired.clone(),
            lease_seq: epoch.lease_seq + 1,
            ..epoch
        };
        self.pending_call = Some(PendingCall::StepDown);
        self.effects.push(Effect::Swap(Some(version), record));
    }

    pub(super) fn on_step_down_written(&mut self, now: Now, outcome: SwapAnswer) {
        self.next_read = now.mono;
        match outcome {
            SwapAnswer::Done(_) => {
                self.step_down = None;
                return self.effects.push(Effect::SteppedDown(Ok(())));
            }
            SwapAnswer::Conflict => {}
            SwapAnswer::Unknown(error) => self.record_step_down_failure(&error),
        }
        // A second request does no harm if the first landed. Read the record first.
        if let Some(request) = &mut self.step_down {
            request.record_read = false;
        }
    }
}
