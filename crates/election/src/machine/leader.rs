//! What the coordinator does: renew, watch its deadline, and give the term up in good order.
//!
//! Always: the deadline is counted from before the renewal was sent, and moves only for a write that is known to
//! have landed; a release is written only after the work has ended.

use std::time::Duration;

use super::{Call, Effect, Held, Machine, Now, Role, Swapped, millis};
use crate::event::{Event, Reason};
use crate::record::{Epoch, Phase};
use crate::settings::Settings;
use crate::store::Version;

/// Renewals without an answer that are remembered.
const SENT_MAX: usize = 16;

/// After how many time-outs the record of a silent worker is removed.
const SILENT_TIMEOUTS: u32 = 3;

/// Records of silent workers removed at a time.
const REMOVED_MAX: usize = 100;

/// A term of this worker.
#[derive(Debug)]
pub struct Term {
    version: Version,
    /// What the store holds, as far as is known.
    pub record: Epoch,
    deadline: Duration,
    /// Renewals sent whose answers were lost, each with the time before it was sent.
    sent: Vec<(Epoch, Duration)>,
    /// The highest `leaseSeq` that was ever sent.
    seq: u64,
    next_renewal: Duration,
    begun: Duration,
    /// When the mandate began.
    mandate: Duration,
    next_list: Duration,
    promoted: bool,
    ending: Option<Ending>,
}

#[derive(Debug)]
struct Ending {
    handover_to: Option<String>,
    next_try: Duration,
    /// The release that was sent last.
    sent: Option<Epoch>,
}

impl Term {
    pub fn new(
        version: Version,
        record: Epoch,
        deadline: Duration,
        sent_at: Duration,
        settings: &Settings,
    ) -> Self {
        // What is held by the lease of a process is renewed with that.
        let shared = record.process.is_some();
        Self {
            version,
            seq: record.lease_seq,
            record,
            deadline,
            sent: Vec::new(),
            next_renewal: if shared { Duration::MAX } else { sent_at + settings.heartbeat_interval },
            begun: sent_at,
            mandate: sent_at,
            next_list: sent_at + settings.worker_timeout,
            promoted: false,
            ending: None,
        }
    }

    pub fn wake_at(&self, idle: bool, working: bool, next_read: Duration) -> Duration {
        match &self.ending {
            Some(ending) if idle && !working => self.deadline.min(ending.next_try),
            None if idle => self.deadline.min(self.next_renewal).min(next_read),
            _ => self.deadline,
        }
    }
}

impl Machine {
    /// Ends a term whose deadline has passed.
    pub(super) fn expire(&mut self, now: Now) {
        if matches!(&self.role, Role::Leader(term) if now.mono >= term.deadline) {
            self.lose(now, Reason::LeaseExpired);
        }
    }

    pub(super) fn lead(&mut self, now: Now) {
        let Role::Leader(term) = &mut self.role else { return };
        if term.ending.is_none() {
            if self.stopping.is_some() {
                self.give_up(now, Reason::Stopped, None);
            } else if let Some(wish) = self.wish.take_if(|wish| wish.listed) {
                self.effects.push(Effect::SteppedDown(Ok(())));
                self.give_up(now, Reason::Requested, wish.desired);
            }
        }
        let Role::Leader(term) = &mut self.role else { return };
        if let Some(ending) = &mut term.ending {
            // A look that is under way has nothing to say to somebody who leaves: the first release overtakes it.
            let looks = self.call == Some(Call::Read) && ending.sent.is_none();
            if !self.working && (self.call.is_none() || looks) && now.mono >= ending.next_try {
                self.overtaken += u32::from(looks);
                let handover_to = ending.handover_to.clone();
                ending.next_try = now.mono + self.settings.call_timeout;
                term.seq += 1;
                let lease_seq = term.seq;
                let record =
                    Epoch { released: true, step_down: false, handover_to, lease_seq, ..term.record.clone() };
                ending.sent = Some(record.clone());
                self.call = Some(Call::Release);
                self.effects.push(Effect::Swap(Some(term.version.clone()), record));
            }
            return;
        }
        if self.phase == Phase::Ready && !term.promoted && !self.working {
            term.promoted = true;
            self.working = true;
            self.counters.promotions += 1;
            let (token, deadline) = (term.record.epoch_number, term.deadline);
            self.effects.push(Effect::Promote { token, deadline });
            let worker_id = self.worker_id.clone();
            self.emit(Event::CoordinatorPromoted { worker_id, timestamp: now.wall_ms, epoch_number: token });
        }
        let Role::Leader(term) = &mut self.role else { return };
        if now.mono >= term.next_list && !self.workers.listing {
            let prefers = self.settings.prefer_first;
            let every = if prefers { self.settings.heartbeat_interval } else { self.settings.worker_timeout };
            term.next_list = now.mono + every;
            self.list();
        }
        if self.call.is_some() {
            return;
        }
        let Role::Leader(term) = &self.role else { return };
        if now.mono >= term.next_renewal {
            self.renew(now);
        } else if now.mono >= self.next_read {
            self.call = Some(Call::Read);
            self.effects.push(Effect::Read);
        }
    }

    fn renew(&mut self, now: Now) {
        let Role::Leader(term) = &mut self.role else { return };
        let max = self.settings.max_epoch_duration;
        let mut record = term.next_record();
        if now.mono.saturating_sub(term.mandate) >= max.mul_f64(0.8) {
            record.epoch = now.wall_ms + millis(max);
        }
        if term.sent.len() == SENT_MAX {
            term.sent.remove(0);
        }
        term.sent.push((record.clone(), now.mono));
        term.next_renewal = now.mono + self.settings.heartbeat_interval;
        self.call = Some(Call::Renew);
        self.effects.push(Effect::Swap(Some(term.version.clone()), record));
    }

    pub(super) fn on_renewed(&mut self, now: Now, outcome: Swapped) {
        let Role::Leader(term) = &mut self.role else { return };
        match outcome {
            Swapped::Done(version) => {
                self.failures = 0;
                self.next_read = now.mono + self.settings.poll();
                let Some((record, sent_at)) = term.sent.pop() else { return };
                term.sent.clear();
                self.confirm(now, version, record, Some(sent_at));
            }
            // The record tells.
            Swapped::Conflict => self.next_read = now.mono,
            Swapped::Unknown(_) => {
                self.next_read = now.mono;
                let pause = self.pause(self.settings.heartbeat_interval);
                let Role::Leader(term) = &mut self.role else { return };
                term.next_renewal = now.mono + pause;
            }
        }
    }

    /// The lease of the process was renewed, or is lost.
    pub(super) fn on_held(&mut self, now: Now, held: Option<Held>) {
        if held.is_some() {
            self.on_sign_of_life(now);
        }
        self.held = held;
        let Role::Leader(term) = &mut self.role else { return };
        let Some(held) =
            self.held.as_ref().filter(|held| Some(&held.process) == term.record.process.as_ref())
        else {
            return self.lose(now, Reason::Superseded);
        };
        self.counters.renewals += 1;
        let deadline = held.since + self.settings.lease();
        if deadline > term.deadline {
            term.deadline = deadline;
            if term.promoted && term.ending.is_none() {
                self.effects.push(Effect::Extend(deadline));
            }
        }
        let max = self.settings.max_epoch_duration;
        if now.mono.saturating_sub(term.mandate) >= max.mul_f64(0.8) {
            term.mandate = now.mono;
            let (worker_id, epoch_number) = (self.worker_id.clone(), term.record.epoch_number);
            let new_epoch = now.wall_ms + millis(max);
            self.emit(Event::CoordinatorEpochRenewed { worker_id, new_epoch, epoch_number });
        }
    }

    /// Takes in a state of the own record, which was written by a renewal sent at `sent_at` or by somebody's wish.
    fn confirm(&mut self, now: Now, version: Version, record: Epoch, sent_at: Option<Duration>) {
        let Role::Leader(term) = &mut self.role else { return };
        let renewed = record.epoch != term.record.epoch;
        term.version = version.clone();
        term.seq = term.seq.max(record.lease_seq);
        term.record = record.clone();
        self.seen = Some(super::Seen { current: Some((version, record.clone())), since: now.mono });
        if let Some(sent_at) = sent_at {
            self.counters.renewals += 1;
            let deadline = sent_at + self.settings.lease();
            if deadline > term.deadline {
                term.deadline = deadline;
                if term.promoted && term.ending.is_none() {
                    self.effects.push(Effect::Extend(deadline));
                }
            }
        }
        if renewed {
            term.mandate = now.mono;
            let (worker_id, epoch_number) = (self.worker_id.clone(), record.epoch_number);
            self.emit(Event::CoordinatorEpochRenewed { worker_id, new_epoch: record.epoch, epoch_number });
        }
        if record.step_down && !record.released {
            self.give_up(now, Reason::Requested, record.handover_to);
        }
    }

    /// Compares the term with what the store holds.
    pub(super) fn check_term(&mut self, now: Now, current: Option<(Version, Epoch)>) {
        let Role::Leader(term) = &mut self.role else { return };
        let Some((version, record)) = current else { return self.lose(now, Reason::RecordDeleted) };
        if record.nonce != term.record.nonce || record.released {
            return self.lose(now, Reason::Superseded);
        }
        if version == term.version {
            // What was sent has not landed, yet. Try again now rather than at the next interval.
            if !term.sent.is_empty() {
                term.next_renewal = term.next_renewal.min(now.mono + self.settings.heartbeat_interval / 8);
            }
            return;
        }
        let sent = term.sent.iter().find(|(sent, _)| *sent == record).map(|(_, at)| *at);
        if sent.is_some() {
            term.sent.retain(|(sent, _)| sent.lease_seq > record.lease_seq);
        }
        self.confirm(now, version, record, sent);
    }

    /// Begins to end the term in good order: work first, then the record.
    fn give_up(&mut self, now: Now, reason: Reason, handover_to: Option<String>) {
        let Role::Leader(term) = &mut self.role else { return };
        if term.ending.is_some() {
            return;
        }
        term.ending = Some(Ending { handover_to, next_try: now.mono, sent: None });
        if term.promoted {
            self.demote(reason);
        }
    }

    /// The work has ended. If nobody asked for that, its own timer was first to see the deadline.
    pub(super) fn on_work_ended(&mut self, now: Now) {
        self.working = false;
        if matches!(&self.role, Role::Leader(term) if term.promoted && term.ending.is_none()) {
            self.lose(now, Reason::LeaseExpired);
        }
    }

    fn demote(&mut self, reason: Reason) {
        let Role::Leader(term) = &self.role else { return };
        let (worker_id, epoch_number) = (self.worker_id.clone(), term.record.epoch_number);
        self.counters.demotions += 1;
        self.effects.push(Effect::Demote(reason));
        self.emit(Event::CoordinatorDemoted { worker_id, reason, epoch_number });
    }

    /// The term is over.
    fn lose(&mut self, now: Now, reason: Reason) {
        if matches!(&self.role, Role::Leader(term) if term.promoted && term.ending.is_none()) {
            self.demote(reason);
        }
        self.role = Role::Follower;
        self.next_read = self.next_read.min(now.mono);
    }

    pub(super) fn on_released(&mut self, now: Now, outcome: Swapped) {
        match outcome {
            Swapped::Done(version) => {
                if let Role::Leader(term) = &mut self.role
                    && let Some(record) = term.ending.as_mut().and_then(|ending| ending.sent.take())
                {
                    self.seen = Some(super::Seen { current: Some((version, record)), since: now.mono });
                }
                self.role = Role::Follower;
                // Others are meant to have their turn first.
                self.next_read = now.mono + self.settings.poll() * 2;
                self.looked_at = None;
                self.claim.restart();
            }
            Swapped::Conflict | Swapped::Unknown(_) => {
                self.call = Some(Call::Read);
                self.effects.push(Effect::Read);
                let pause = self.pause(self.settings.heartbeat_interval);
                if let Role::Leader(term) = &mut self.role
                    && let Some(ending) = &mut term.ending
                {
                    ending.next_try = now.mono + pause;
                }
            }
        }
    }

    /// Clears away what silent workers left behind, and hands over if another should coordinate.
    pub(super) fn after_list(&mut self, now: Now) {
        let timeout = self.settings.worker_timeout;
        for id in self
            .workers
            .silent(now.mono, timeout * SILENT_TIMEOUTS, &self.worker_id)
            .into_iter()
            .take(REMOVED_MAX)
        {
            self.effects.push(Effect::Remove(id));
        }
        let Role::Leader(term) = &self.role else { return };
        let served = now.mono.saturating_sub(term.begun) >= self.settings.min_epoch_duration;
        if self.settings.prefer_first && served && term.ending.is_none() {
            let first = self.workers.steady_before(now.mono, timeout, &self.worker_id).map(str::to_owned);
            if first.is_some() {
                self.give_up(now, Reason::HandedOver, first);
            }
        }
    }
}

impl Term {
    /// The record with which the term goes on.
    fn next_record(&mut self) -> Epoch {
        self.seq += 1;
        Epoch { lease_seq: self.seq, ..self.record.clone() }
    }
}
