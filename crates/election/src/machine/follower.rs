//! What a follower does: poll the record, and claim the term when it is free.
//!
//! Steps of a claim: the record is free (released, missing, or unchanged for its lease); list the workers; defer to
//! those that come first; read again; compare-and-set. Always: a claim is made only from a version that was seen to
//! be free, and never while this worker's own earlier work is still ending.

use std::time::Duration;

use super::{Effect, Machine, Now, PendingCall, Role, SwapAnswer, Term, millis};
use crate::record::EpochRecord;
use crate::settings::STAGGER_RANK_MAX;
use crate::store::Version;

/// Where a claim is.
#[derive(Debug, Default)]
pub struct Claim {
    stage: Stage,
    /// The last claim sent. Its nonce identifies it in the record; its time limits the term.
    sent: Option<SentClaim>,
}

#[derive(Debug)]
struct SentClaim {
    record: EpochRecord,
    at: Duration,
    /// Whether the answer was lost.
    answer_lost: bool,
}

#[derive(Debug, Default, PartialEq)]
enum Stage {
    /// Polls the record.
    #[default]
    Watching,
    /// Free; waiting for the list of workers.
    Listing,
    /// Free; defers to other workers until then.
    Deferring(Duration),
    /// Free at the last read: claim.
    Ready,
}

impl Claim {
    /// Starts over, because the record has changed.
    pub fn restart(&mut self) {
        self.stage = Stage::Watching;
    }

    pub fn answer_was_lost(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.answer_lost)
    }

    pub fn wake_at(&self) -> Duration {
        match self.stage {
            Stage::Deferring(until) => until,
            _ => Duration::MAX,
        }
    }
}

impl Machine {
    pub(super) fn follow(&mut self, now: Now) {
        if let Some(since) = self.stop_requested_at {
            return self.leave_group(now, since);
        }
        if self.pending_call.is_some() {
            return;
        }
        if self.step_down.as_ref().is_some_and(|request| request.listed && request.record_read) {
            return self.write_step_down();
        }
        if self.claim.stage == Stage::Ready {
            return self.send_claim(now);
        }
        if let Stage::Deferring(until) = self.claim.stage
            && now.mono >= until
        {
            self.claim.stage = Stage::Ready;
            return self.read_record();
        }
        if self.may_claim(now) && self.claim.stage == Stage::Watching && self.was_read_since_free() {
            return self.prepare_claim(now);
        }
        self.poll_store(now);
    }

    /// Reads the record when that is due, and lists the workers when the coordinator seems to be in trouble.
    fn poll_store(&mut self, now: Now) {
        if let Some(seen) = &self.observed
            && !self.workers.list_in_flight
        {
            let troubled = seen.since + self.observed_lease / 2;
            let listed = self.workers.listed_at;
            if listed.is_none() || (now.mono >= troubled && listed < Some(troubled)) {
                self.list_workers();
            }
        }
        if now.mono >= self.next_read {
            self.read_record();
        }
    }

    fn read_record(&mut self) {
        self.pending_call = Some(PendingCall::Read);
        self.effects.push(Effect::Read);
    }

    pub(super) fn list_workers(&mut self) {
        self.workers.list_in_flight = true;
        self.effects.push(Effect::List);
    }

    /// When the record that was seen is free to be claimed.
    pub(super) fn free_at(&self) -> Option<Duration> {
        let seen = self.observed.as_ref()?;
        Some(match &seen.current {
            // No coordinator is known: there never was one.
            None if self.highest_epoch == 0 => seen.since,
            // There was one, and it may not have noticed yet.
            None => seen.since + self.observed_lease,
            Some((_, epoch)) if epoch.released => seen.since,
            // Its own, from a claim or renewal that landed late. This worker does not act on it.
            Some((_, epoch)) if epoch.incarnation == self.incarnation => seen.since,
            Some((_, epoch)) => seen.since + Duration::from_millis(epoch.lease_ms),
        })
    }

    pub(super) fn is_claimable(&self, now: Now) -> bool {
        self.free_at().is_some_and(|at| now.mono >= at)
    }

    fn may_claim(&self, now: Now) -> bool {
        !self.work_running
            && self.phase != crate::record::Phase::Observing
            && self.is_claimable(now)
            && self
                .lease_start(now.mono)
                .is_some_and(|since| now.mono < since + self.settings.trusted_lease())
    }

    /// The start of the lease of a claim sent at `sent_at`; `None` without a valid lease.
    fn lease_start(&self, sent_at: Duration) -> Option<Duration> {
        if self.uses_process_lease {
            self.process_lease.as_ref().map(|held| held.valid_from)
        } else {
            Some(sent_at)
        }
    }

    /// Whether the record was read after it became free.
    fn was_read_since_free(&self) -> bool {
        self.free_at().is_some_and(|at| self.last_read_at >= Some(at))
    }

    /// Requires another read, after a pause, before the next step.
    fn read_after_backoff(&mut self, now: Now) {
        self.last_read_at = None;
        self.next_read = now.mono + self.retry_backoff(self.settings.effective_poll_interval());
    }

    fn prepare_claim(&mut self, now: Now) {
        let missing = self.observed.as_ref().is_some_and(|seen| seen.current.is_none());
        if missing && !self.worker_records_read {
            self.claim.stage = Stage::Listing;
            return self.effects.push(Effect::ReadHighestEpoch);
        }
        if self.coordinator().is_some_and(|epoch| epoch.handover_to.as_deref() == Some(&self.worker_id)) {
            return self.send_claim(now);
        }
        self.claim.stage = Stage::Listing;
        if !self.workers.list_in_flight {
            self.list_workers();
        }
    }

    pub(super) fn on_highest_epoch(&mut self, now: Now, outcome: Result<u64, String>) {
        match outcome {
            Ok(highest) => {
                // A higher number proves an earlier coordinator: wait its lease, then read the records again.
                self.worker_records_read = highest <= self.highest_epoch;
                self.highest_epoch = self.highest_epoch.max(highest);
            }
            Err(error) => {
                self.read_after_backoff(now);
                self.record_failure(error);
            }
        }
        if self.claim.stage == Stage::Listing {
            self.claim.stage = Stage::Watching;
        }
    }

    pub(super) fn on_listed(&mut self, now: Now, outcome: Result<Vec<(String, String)>, String>) {
        self.workers.list_in_flight = false;
        match outcome {
            Ok(list) => {
                self.workers.update(now.mono, list);
                self.check_desired_is_alive(now);
            }
            // A claim uses the previous list; a step-down request waits for another one.
            Err(error) => {
                self.workers.listed_at = Some(now.mono);
                self.retry_step_down_list(now, &error);
                self.record_failure(error);
            }
        }
        self.emit_elected(now);
        if matches!(self.role, Role::Leader(_)) {
            return self.remove_silent_or_hand_over(now);
        }
        if self.claim.stage != Stage::Listing {
            return;
        }
        let rank = self.rank(now);
        if rank == 0 {
            self.claim.stage = Stage::Ready;
        } else {
            let wait = self.settings.claim_stagger * rank.min(STAGGER_RANK_MAX);
            let jitter = self.random.duration_below(wait / 4);
            self.claim.stage = Stage::Deferring(now.mono + wait + jitter);
        }
    }

    /// How many workers this one defers to.
    fn rank(&self, now: Now) -> u32 {
        let epoch = self.coordinator();
        let gone = epoch.map_or("", |epoch| epoch.coordinator_id.as_str());
        let alive = self.workers.alive(now.mono, self.settings.worker_timeout, &self.worker_id);
        let before = alive.iter().filter(|id| **id < self.worker_id && *id != gone).count();
        let named = epoch.and_then(|epoch| epoch.handover_to.as_deref());
        let yields = named.is_some_and(|named| named != self.worker_id);
        u32::try_from(before).unwrap_or(u32::MAX).saturating_add(yields.into())
    }

    fn send_claim(&mut self, now: Now) {
        self.claim.stage = Stage::Watching;
        if !self.may_claim(now) {
            return self.poll_store(now);
        }
        let expected = self.version().cloned();
        let record = self.claim_record(now);
        self.claim.sent = Some(SentClaim { record: record.clone(), at: now.mono, answer_lost: false });
        self.counters.claims += 1;
        self.pending_call = Some(PendingCall::Claim);
        self.effects.push(Effect::Swap(expected, record));
    }

    fn claim_record(&mut self, now: Now) -> EpochRecord {
        // Never reuse a number: the earlier claim may still land.
        self.highest_epoch += 1;
        EpochRecord {
            epoch_number: self.highest_epoch,
            coordinator_id: self.worker_id.clone(),
            incarnation: self.incarnation.clone(),
            nonce: self.random.hex_128(),
            lease_seq: 0,
            epoch: now.wall_ms + millis(self.settings.max_epoch_duration),
            epoch_start: now.wall_ms,
            released: false,
            step_down: false,
            handover_to: None,
            elected_by: self.worker_id.clone(),
            duration_ms: millis(self.settings.max_epoch_duration),
            lease_ms: millis(self.settings.worker_timeout),
            process: self.process_lease.as_ref().map(|held| held.process.clone()),
        }
    }

    pub(super) fn on_claimed(&mut self, now: Now, outcome: SwapAnswer) {
        let Some(sent) = self.claim.sent.as_mut() else { return };
        match outcome {
            SwapAnswer::Done(version) => {
                sent.answer_lost = false;
                let (record, at) = (sent.record.clone(), sent.at);
                self.become_leader(now, version, record, at);
            }
            // The record shows whether the claim landed.
            SwapAnswer::Conflict | SwapAnswer::Unknown(_) => {
                sent.answer_lost = true;
                self.read_after_backoff(now);
            }
        }
    }

    /// Becomes the coordinator of a term whose claim was sent at `sent_at`.
    fn become_leader(&mut self, now: Now, version: Version, record: EpochRecord, sent_at: Duration) {
        self.highest_epoch = self.highest_epoch.max(record.epoch_number);
        let lost = self.lapsed_coordinator();
        self.observed =
            Some(super::ObservedRecord { current: Some((version.clone(), record.clone())), since: now.mono });
        // The process may have lost the lease by which it claimed.
        let process = self.process_lease.as_ref().map(|held| &held.process);
        let since = self.lease_start(sent_at).filter(|_| record.process.as_ref() == process);
        let Some(deadline) =
            since.map(|since| since + self.settings.trusted_lease()).filter(|at| now.mono < *at)
        else {
            return;
        };
        self.claim.restart();
        self.announce_coordinator(now, &record, lost);
        // The heartbeat stores the epoch number, so that it survives a deleted epoch record.
        self.next_heartbeat = now.mono;
        self.role = Role::Leader(Box::new(Term::new(version, record, deadline, sent_at, &self.settings)));
    }

    /// Checks whether a claim whose answer was lost has landed.
    pub(super) fn check_claim(&mut self, now: Now, current: Option<(Version, EpochRecord)>) {
        let Some(sent) = self.claim.sent.as_mut().filter(|sent| sent.answer_lost) else { return };
        let at = sent.at;
        if let Some((version, record)) = current
            && record.nonce == sent.record.nonce
            && !record.released
            && !self.work_running
        {
            sent.answer_lost = false;
            return self.become_leader(now, version, record, at);
        }
        // It may still land; a later read then finds it.
        if now.mono > at + self.settings.trusted_lease() {
            sent.answer_lost = false;
        }
    }

    /// Leaves the group. A claim in flight may still win and must then be released.
    fn leave_group(&mut self, now: Now, since: Duration) {
        if self.pending_call.is_some() || self.work_running {
            return;
        }
        let wait_until = since + self.settings.call_timeout * 2;
        if self.claim.answer_was_lost() && now.mono < wait_until {
            self.next_read = self.next_read.min(wait_until);
            if now.mono >= self.next_read {
                self.read_record();
            }
            return;
        }
        if self.step_down.take().is_some() {
            self.effects.push(Effect::SteppedDown(Err("the participant was stopped".into())));
        }
        self.effects.push(Effect::Remove(self.worker_id.clone()));
        self.effects.push(Effect::Finished);
        self.finished = true;
    }
}
