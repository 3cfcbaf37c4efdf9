//! A wish for another coordinator: who is alive is listed, then the coordinator is asked to step down.
//!
//! Always: a call that fails is repeated until the wish is granted, refused, or out of time; then the answer says what
//! the store said. Start at [`Machine::advance_step_down`].

use std::time::Duration;

use super::{Effect, Machine, Now, PendingCall, SwapAnswer};
use crate::record::EpochRecord;

/// How often a wish is tried against a record that changes meanwhile.
const ATTEMPTS_MAX: u32 = 8;

/// A wish for another coordinator on its way.
#[derive(Debug)]
pub struct StepDownRequest {
    pub desired: Option<String>,
    /// Whether the workers were listed since, if one is desired.
    pub listed: bool,
    /// Whether the record was looked at since.
    pub record_read: bool,
    /// When to list the workers, while they were not.
    next_list: Duration,
    attempts: u32,
    /// When it is given up.
    deadline: Duration,
    /// What the store said when it failed last.
    failure: Option<String>,
}

impl Machine {
    pub(super) fn on_step_down(&mut self, now: Now, desired: Option<String>) {
        if self.step_down.is_some() {
            return self.effects.push(Effect::SteppedDown(Err("another such call is under way".into())));
        }
        // Who is alive is not watched while all is well.
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

    /// When the wish has something to do.
    pub(super) fn step_down_wake_at(&self) -> Duration {
        match &self.step_down {
            Some(wish) if !wish.listed && !self.workers.list_in_flight => wish.next_list.min(wish.deadline),
            Some(wish) if self.pending_call != Some(PendingCall::StepDown) => wish.deadline,
            _ => Duration::MAX,
        }
    }

    /// Lists the workers when that is due, and gives the wish up when its time is over.
    pub(super) fn advance_step_down(&mut self, now: Now) {
        let Some(wish) = &self.step_down else { return };
        if now.mono >= wish.deadline && self.pending_call != Some(PendingCall::StepDown) {
            let failure = wish.failure.as_deref().unwrap_or("the store does not answer");
            let error = format!("no hand-over within {:?}: {failure}", self.settings.worker_timeout);
            return self.refuse_step_down(error);
        }
        if !wish.listed && !self.workers.list_in_flight && now.mono >= wish.next_list {
            self.list_workers();
        }
    }

    fn refuse_step_down(&mut self, error: String) {
        self.step_down = None;
        self.effects.push(Effect::SteppedDown(Err(error)));
    }

    /// A call that the wish waits for has failed.
    pub(super) fn record_step_down_failure(&mut self, error: &str) {
        if let Some(wish) = &mut self.step_down {
            wish.failure = Some(error.to_owned());
        }
    }

    /// A list has failed: another follows.
    pub(super) fn retry_step_down_list(&mut self, now: Now, error: &str) {
        self.record_step_down_failure(error);
        let pause = self.retry_backoff(self.settings.effective_poll_interval());
        if let Some(wish) = &mut self.step_down {
            wish.next_list = now.mono + pause;
        }
    }

    /// Refuses a wish for a worker that is not alive, after a list that came.
    pub(super) fn check_desired_is_alive(&mut self, now: Now) {
        let Some(wish) = self.step_down.as_mut().filter(|wish| !wish.listed) else { return };
        wish.listed = true;
        let alive = self.workers.alive(now.mono, self.settings.worker_timeout, &self.worker_id);
        if let Some(desired) = wish.desired.clone().filter(|desired| !alive.contains(desired)) {
            let alive = alive.join(", ");
            self.refuse_step_down(format!(
                "{desired:?} is not known to be alive; the workers alive are {alive}"
            ));
        }
    }

    /// Asks the coordinator to step down.
    pub(super) fn write_step_down(&mut self) {
        let Some(wish) = self.step_down.as_mut() else { return };
        let Some(Some((version, epoch))) = self.observed.as_ref().map(|seen| seen.current.clone()) else {
            // Nobody coordinates.
            self.step_down = None;
            return self.effects.push(Effect::SteppedDown(Ok(())));
        };
        wish.attempts += 1;
        if wish.attempts > ATTEMPTS_MAX {
            return self.refuse_step_down("the record changed too often; try again".into());
        }
        let record = EpochRecord {
            step_down: true,
            handover_to: wish.desired.clone(),
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
        // Whether it landed or not, asking once more does no harm; but look first.
        if let Some(wish) = &mut self.step_down {
            wish.record_read = false;
        }
    }
}
