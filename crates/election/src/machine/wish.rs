//! A wish for another coordinator: who is alive is listed, then the coordinator is asked to step down.
//!
//! Always: a call that fails is repeated until the wish is granted, refused, or out of time; then the answer says what
//! the store said. Start at [`Machine::pursue_wish`].

use std::time::Duration;

use super::{Call, Effect, Machine, Now, Swapped};
use crate::record::Epoch;

/// How often a wish is tried against a record that changes meanwhile.
const TRIES_MAX: u32 = 8;

/// A wish for another coordinator on its way.
#[derive(Debug)]
pub struct Wish {
    pub desired: Option<String>,
    /// Whether the workers were listed since, if one is desired.
    pub listed: bool,
    /// Whether the record was looked at since.
    pub ready: bool,
    /// When to list the workers, while they were not.
    next_list: Duration,
    tries: u32,
    /// When it is given up.
    deadline: Duration,
    /// What the store said when it failed last.
    failure: Option<String>,
}

impl Machine {
    pub(super) fn on_step_down(&mut self, now: Now, desired: Option<String>) {
        if self.wish.is_some() {
            return self.effects.push(Effect::SteppedDown(Err("another such call is under way".into())));
        }
        // Who is alive is not watched while all is well.
        let listed = desired.as_ref().is_none_or(|desired| *desired == self.worker_id);
        self.wish = Some(Wish {
            desired,
            listed,
            ready: false,
            next_list: now.mono,
            tries: 0,
            deadline: now.mono + self.settings.worker_timeout,
            failure: None,
        });
        self.next_read = self.next_read.min(now.mono);
    }

    /// When the wish has something to do.
    pub(super) fn wish_wake_at(&self) -> Duration {
        match &self.wish {
            Some(wish) if !wish.listed && !self.workers.listing => wish.next_list.min(wish.deadline),
            Some(wish) if self.call != Some(Call::StepDown) => wish.deadline,
            _ => Duration::MAX,
        }
    }

    /// Lists the workers when that is due, and gives the wish up when its time is over.
    pub(super) fn pursue_wish(&mut self, now: Now) {
        let Some(wish) = &self.wish else { return };
        if now.mono >= wish.deadline && self.call != Some(Call::StepDown) {
            let failure = wish.failure.as_deref().unwrap_or("the store does not answer");
            let error = format!("no hand-over within {:?}: {failure}", self.settings.worker_timeout);
            return self.refuse_wish(error);
        }
        if !wish.listed && !self.workers.listing && now.mono >= wish.next_list {
            self.list();
        }
    }

    fn refuse_wish(&mut self, error: String) {
        self.wish = None;
        self.effects.push(Effect::SteppedDown(Err(error)));
    }

    /// A call that the wish waits for has failed.
    pub(super) fn fail_wish(&mut self, error: &str) {
        if let Some(wish) = &mut self.wish {
            wish.failure = Some(error.to_owned());
        }
    }

    /// A list has failed: another follows.
    pub(super) fn delay_wish(&mut self, now: Now, error: &str) {
        self.fail_wish(error);
        let pause = self.pause(self.settings.poll());
        if let Some(wish) = &mut self.wish {
            wish.next_list = now.mono + pause;
        }
    }

    /// Refuses a wish for a worker that is not alive, after a list that came.
    pub(super) fn check_wish(&mut self, now: Now) {
        let Some(wish) = self.wish.as_mut().filter(|wish| !wish.listed) else { return };
        wish.listed = true;
        let alive = self.workers.alive(now.mono, self.settings.worker_timeout, &self.worker_id);
        if let Some(desired) = wish.desired.clone().filter(|desired| !alive.contains(desired)) {
            let alive = alive.join(", ");
            self.refuse_wish(format!("{desired:?} is not known to be alive; the workers alive are {alive}"));
        }
    }

    /// Asks the coordinator to step down.
    pub(super) fn write_step_down(&mut self) {
        let Some(wish) = self.wish.as_mut() else { return };
        let Some(Some((version, epoch))) = self.seen.as_ref().map(|seen| seen.current.clone()) else {
            // Nobody coordinates.
            self.wish = None;
            return self.effects.push(Effect::SteppedDown(Ok(())));
        };
        wish.tries += 1;
        if wish.tries > TRIES_MAX {
            return self.refuse_wish("the record changed too often; try again".into());
        }
        let record = Epoch {
            step_down: true,
            handover_to: wish.desired.clone(),
            lease_seq: epoch.lease_seq + 1,
            ..epoch
        };
        self.call = Some(Call::StepDown);
        self.effects.push(Effect::Swap(Some(version), record));
    }

    pub(super) fn on_step_down_written(&mut self, now: Now, outcome: Swapped) {
        self.next_read = now.mono;
        match outcome {
            Swapped::Done(_) => {
                self.wish = None;
                return self.effects.push(Effect::SteppedDown(Ok(())));
            }
            Swapped::Conflict => {}
            Swapped::Unknown(error) => self.fail_wish(&error),
        }
        // Whether it landed or not, asking once more does no harm; but look first.
        if let Some(wish) = &mut self.wish {
            wish.ready = false;
        }
    }
}
