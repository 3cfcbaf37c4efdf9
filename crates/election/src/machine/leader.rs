//! What the coordinator does: renew, watch its deadline, and release the term.
//!
//! Always: the deadline counts from before the renewal was sent, and moves only for a write that is known to have
//! landed; a release is written only after the work has ended.

use std::time::Duration;

use super::{Effect, HeldLease, Machine, Now, PendingCall, Role, SwapAnswer, millis};
use crate::event::{Event, Reason};
use crate::record::{EpochRecord, Phase};
use crate::settings::Settings;
use crate::store::Version;

/// Unconfirmed renewals that are remembered.
const UNCONFIRMED_MAX: usize = 16;

/// After how many worker time-outs the record of a silent worker is removed.
const REMOVE_AFTER_TIMEOUTS: u32 = 3;

/// Records of silent workers removed per list.
const REMOVALS_MAX: usize = 100;

/// A term of this worker.
#[derive(Debug)]
pub struct Term {
    version: Version,
    /// The record, as the store last confirmed it.
    pub record: EpochRecord,
    deadline: Duration,
    /// Renewals sent whose answers were lost, each with the time before it was sent.
    unconfirmed_renewals: Vec<(EpochRecord, Duration)>,
    /// The highest `leaseSeq` that was ever sent.
    highest_seq: u64,
    next_renewal: Duration,
    started_at: Duration,
    /// When the mandate began.
    mandate_started_at: Duration,
    next_list: Duration,
    promoted: bool,
    resignation: Option<Resignation>,
}

#[derive(Debug)]
struct Resignation {
    handover_to: Option<String>,
    next_try: Duration,
    /// The release that was sent last.
    sent_release: Option<EpochRecord>,
}

impl Term {
    pub fn new(
        version: Version,
        record: EpochRecord,
        deadline: Duration,
        sent_at: Duration,
        settings: &Settings,
    ) -> Self {
        // The lease of a process is renewed once for all its terms.
        let shared = record.process.is_some();
        Self {
            version,
            highest_seq: record.lease_seq,
            record,
            deadline,
            unconfirmed_renewals: Vec::new(),
            next_renewal: if shared { Duration::MAX } else { sent_at + settings.heartbeat_interval },
            started_at: sent_at,
            mandate_started_at: sent_at,
            next_list: sent_at + settings.worker_timeout,
            promoted: false,
            resignation: None,
        }
    }

    pub fn wake_at(&self, idle: bool, working: bool, next_read: Duration) -> Duration {
        match &self.resignation {
            Some(ending) if idle && !working => self.deadline.min(ending.next_try),
            None if idle => self.deadline.min(self.next_renewal).min(next_read),
            _ => self.deadline,
        }
    }
}

impl Machine {
    /// Ends a term whose deadline has passed.
    pub(super) fn expire_term(&mut self, now: Now) {
        if matches!(&self.role, Role::Leader(term) if now.mono >= term.deadline) {
            self.end_term(now, Reason::LeaseExpired);
        }
    }

    pub(super) fn lead(&mut self, now: Now) {
        let Role::Leader(term) = &mut self.role else { return };
        if term.resignation.is_none() {
            if self.stop_requested_at.is_some() {
                self.resign(now, Reason::Stopped, None);
            } else if let Some(request) = self.step_down.take_if(|request| request.listed) {
                self.effects.push(Effect::SteppedDown(Ok(())));
                self.resign(now, Reason::Requested, request.desired);
            }
        }
        let Role::Leader(term) = &mut self.role else { return };
        if let Some(ending) = &mut term.resignation {
            // The first release does not wait for a read in flight: its answer cannot matter any more.
            let reading = self.pending_call == Some(PendingCall::Read) && ending.sent_release.is_none();
            if !self.work_running && (self.pending_call.is_none() || reading) && now.mono >= ending.next_try {
                self.stale_reads += u32::from(reading);
                let handover_to = ending.handover_to.clone();
                ending.next_try = now.mono + self.settings.call_timeout;
                term.highest_seq += 1;
                let lease_seq = term.highest_seq;
                let record = EpochRecord {
                    released: true,
                    step_down: false,
                    handover_to,
                    lease_seq,
                    ..term.record.clone()
                };
                ending.sent_release = Some(record.clone());
                self.pending_call = Some(PendingCall::Release);
                self.effects.push(Effect::Swap(Some(term.version.clone()), record));
            }
            return;
        }
        if self.phase == Phase::Ready && !term.promoted && !self.work_running {
            term.promoted = true;
            self.work_running = true;
            self.counters.promotions += 1;
            let (token, deadline) = (term.record.epoch_number, term.deadline);
            self.effects.push(Effect::Promote { token, deadline });
            let worker_id = self.worker_id.clone();
            self.emit(Event::CoordinatorPromoted { worker_id, timestamp: now.wall_ms, epoch_number: token });
        }
        let Role::Leader(term) = &mut self.role else { return };
        if now.mono >= term.next_list && !self.workers.list_in_flight {
            let prefers = self.settings.prefer_first;
            let every = if prefers { self.settings.heartbeat_interval } else { self.settings.worker_timeout };
            term.next_list = now.mono + every;
            self.list_workers();
        }
        if self.pending_call.is_some() {
            return;
        }
        let Role::Leader(term) = &self.role else { return };
        if now.mono >= term.next_renewal {
            self.renew(now);
        } else if now.mono >= self.next_read {
            self.pending_call = Some(PendingCall::Read);
            self.effects.push(Effect::Read);
        }
    }

    fn renew(&mut self, now: Now) {
        let Role::Leader(term) = &mut self.role else { return };
        let max = self.settings.max_epoch_duration;
        let mut record = term.next_record();
        if now.mono.saturating_sub(term.mandate_started_at) >= max.mul_f64(0.8) {
            record.epoch = now.wall_ms + millis(max);
        }
        if term.unconfirmed_renewals.len() == UNCONFIRMED_MAX {
            term.unconfirmed_renewals.remove(0);
        }
        term.unconfirmed_renewals.push((record.clone(), now.mono));
        term.next_renewal = now.mono + self.settings.heartbeat_interval;
        self.pending_call = Some(PendingCall::Renew);
        self.effects.push(Effect::Swap(Some(term.version.clone()), record));
    }

    pub(super) fn on_renewed(&mut self, now: Now, outcome: SwapAnswer) {
        let Role::Leader(term) = &mut self.role else { return };
        match outcome {
            SwapAnswer::Done(version) => {
                self.consecutive_failures = 0;
                self.next_read = now.mono + self.settings.effective_poll_interval();
                let Some((record, sent_at)) = term.unconfirmed_renewals.pop() else { return };
                term.unconfirmed_renewals.clear();
                self.confirm_record(now, version, record, Some(sent_at));
            }
            // The record shows which write landed.
            SwapAnswer::Conflict => self.next_read = now.mono,
            SwapAnswer::Unknown(_) => {
                self.next_read = now.mono;
                let pause = self.retry_backoff(self.settings.heartbeat_interval);
                let Role::Leader(term) = &mut self.role else { return };
                term.next_renewal = now.mono + pause;
            }
        }
    }

    /// The lease of the process was renewed or lost.
    pub(super) fn on_lease_changed(&mut self, now: Now, held: Option<HeldLease>) {
        if held.is_some() {
            self.count_heartbeat(now);
        }
        self.process_lease = held;
        let Role::Leader(term) = &mut self.role else { return };
        let Some(held) =
            self.process_lease.as_ref().filter(|held| Some(&held.process) == term.record.process.as_ref())
        else {
            return self.end_term(now, Reason::Superseded);
        };
        self.counters.renewals += 1;
        let deadline = held.valid_from + self.settings.trusted_lease();
        if deadline > term.deadline {
            term.deadline = deadline;
            if term.promoted && term.resignation.is_none() {
                self.effects.push(Effect::Extend(deadline));
            }
        }
        let max = self.settings.max_epoch_duration;
        if now.mono.saturating_sub(term.mandate_started_at) >= max.mul_f64(0.8) {
            term.mandate_started_at = now.mono;
            let (worker_id, epoch_number) = (self.worker_id.clone(), term.record.epoch_number);
            let new_epoch = now.wall_ms + millis(max);
            self.emit(Event::CoordinatorEpochRenewed { worker_id, new_epoch, epoch_number });
        }
    }

    /// Applies a new state of the own record: a renewal sent at `sent_at`, or a step-down request of another worker.
    fn confirm_record(&mut self, now: Now, version: Version, record: EpochRecord, sent_at: Option<Duration>) {
        let Role::Leader(term) = &mut self.role else { return };
        let renewed = record.epoch != term.record.epoch;
        term.version = version.clone();
        term.highest_seq = term.highest_seq.max(record.lease_seq);
        term.record = record.clone();
        self.observed =
            Some(super::ObservedRecord { current: Some((version, record.clone())), since: now.mono });
        if let Some(sent_at) = sent_at {
            self.counters.renewals += 1;
            let deadline = sent_at + self.settings.trusted_lease();
            if deadline > term.deadline {
                term.deadline = deadline;
                if term.promoted && term.resignation.is_none() {
                    self.effects.push(Effect::Extend(deadline));
                }
            }
        }
        if renewed {
            term.mandate_started_at = now.mono;
            let (worker_id, epoch_number) = (self.worker_id.clone(), record.epoch_number);
            self.emit(Event::CoordinatorEpochRenewed { worker_id, new_epoch: record.epoch, epoch_number });
        }
        if record.step_down && !record.released {
            self.resign(now, Reason::Requested, record.handover_to);
        }
    }

    /// Compares the term with what the store holds.
    pub(super) fn check_term(&mut self, now: Now, current: Option<(Version, EpochRecord)>) {
        let Role::Leader(term) = &mut self.role else { return };
        let Some((version, record)) = current else { return self.end_term(now, Reason::RecordDeleted) };
        if record.nonce != term.record.nonce || record.released {
            return self.end_term(now, Reason::Superseded);
        }
        if version == term.version {
            // The renewal has not landed yet. Repeat it before the next interval.
            if !term.unconfirmed_renewals.is_empty() {
                term.next_renewal = term.next_renewal.min(now.mono + self.settings.heartbeat_interval / 8);
            }
            return;
        }
        let sent = term.unconfirmed_renewals.iter().find(|(sent, _)| *sent == record).map(|(_, at)| *at);
        if sent.is_some() {
            term.unconfirmed_renewals.retain(|(sent, _)| sent.lease_seq > record.lease_seq);
        }
        self.confirm_record(now, version, record, sent);
    }

    /// Starts to release the term: the work ends first, then the record is written.
    fn resign(&mut self, now: Now, reason: Reason, handover_to: Option<String>) {
        let Role::Leader(term) = &mut self.role else { return };
        if term.resignation.is_some() {
            return;
        }
        term.resignation = Some(Resignation { handover_to, next_try: now.mono, sent_release: None });
        if term.promoted {
            self.demote(reason);
        }
    }

    /// The work has ended. Without a demotion, its own timer saw the deadline first.
    pub(super) fn on_work_ended(&mut self, now: Now) {
        self.work_running = false;
        if matches!(&self.role, Role::Leader(term) if term.promoted && term.resignation.is_none()) {
            self.end_term(now, Reason::LeaseExpired);
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
    fn end_term(&mut self, now: Now, reason: Reason) {
        if matches!(&self.role, Role::Leader(term) if term.promoted && term.resignation.is_none()) {
            self.demote(reason);
        }
        self.role = Role::Follower;
        self.next_read = self.next_read.min(now.mono);
    }

    pub(super) fn on_released(&mut self, now: Now, outcome: SwapAnswer) {
        match outcome {
            SwapAnswer::Done(version) => {
                if let Role::Leader(term) = &mut self.role
                    && let Some(record) =
                        term.resignation.as_mut().and_then(|ending| ending.sent_release.take())
                {
                    self.observed =
                        Some(super::ObservedRecord { current: Some((version, record)), since: now.mono });
                }
                self.role = Role::Follower;
                // Let the others claim first.
                self.next_read = now.mono + self.settings.effective_poll_interval() * 2;
                self.last_read_at = None;
                self.claim.restart();
            }
            SwapAnswer::Conflict | SwapAnswer::Unknown(_) => {
                self.pending_call = Some(PendingCall::Read);
                self.effects.push(Effect::Read);
                let pause = self.retry_backoff(self.settings.heartbeat_interval);
                if let Role::Leader(term) = &mut self.role
                    && let Some(ending) = &mut term.resignation
                {
                    ending.next_try = now.mono + pause;
                }
            }
        }
    }

    /// Removes the records of silent workers, and hands over if `preferFirst` names another worker.
    pub(super) fn remove_silent_or_hand_over(&mut self, now: Now) {
        let timeout = self.settings.worker_timeout;
        for id in self
            .workers
            .silent(now.mono, timeout * REMOVE_AFTER_TIMEOUTS, &self.worker_id)
            .into_iter()
            .take(REMOVALS_MAX)
        {
            self.effects.push(Effect::Remove(id));
        }
        let Role::Leader(term) = &self.role else { return };
        let served = now.mono.saturating_sub(term.started_at) >= self.settings.min_epoch_duration;
        if self.settings.prefer_first && served && term.resignation.is_none() {
            let first =
                self.workers.stable_worker_before(now.mono, timeout, &self.worker_id).map(str::to_owned);
            if first.is_some() {
                self.resign(now, Reason::HandedOver, first);
            }
        }
    }
}

impl Term {
    /// The record of the next renewal.
    fn next_record(&mut self) -> EpochRecord {
        self.highest_seq += 1;
        EpochRecord { lease_seq: self.highest_seq, ..self.record.clone() }
    }
}
