//! What a participant does that does not coordinate: watch, and claim when nobody does.
//!
//! A claim goes: the record is free (released, missing, or unchanged for its lease); list the workers; let those
//! before this one go first; read again; compare-and-set. Always: a claim is made only from a version that was seen
//! to be free, and never while this worker's own earlier work is still ending.

use std::time::Duration;

use super::{Call, Effect, Machine, Now, Role, Swapped, Term, millis};
use crate::record::Epoch;
use crate::settings::RANK_MAX;
use crate::store::Version;

/// Where a claim is.
#[derive(Debug, Default)]
pub struct Claim {
    stage: Stage,
    /// The last claim sent: by its nonce it is recognised in the record, by its time it ends.
    sent: Option<Sent>,
}

#[derive(Debug)]
struct Sent {
    record: Epoch,
    at: Duration,
    /// Whether the answer was lost.
    unsure: bool,
}

#[derive(Debug, Default, PartialEq)]
enum Stage {
    /// Nothing to do but look.
    #[default]
    Watching,
    /// Free; waiting for the list of workers.
    Listing,
    /// Free; letting others go first until then.
    Holding(Duration),
    /// Free after the last look: claim.
    Due,
}

impl Claim {
    /// Begins again: the record has changed.
    pub fn restart(&mut self) {
        self.stage = Stage::Watching;
    }

    pub fn is_unsure(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.unsure)
    }

    pub fn wake_at(&self) -> Duration {
        match self.stage {
            Stage::Holding(until) => until,
            _ => Duration::MAX,
        }
    }
}

impl Machine {
    pub(super) fn follow(&mut self, now: Now) {
        if let Some(since) = self.stopping {
            return self.leave(now, since);
        }
        if self.call.is_some() {
            return;
        }
        if self.wish.as_ref().is_some_and(|wish| wish.listed && wish.ready) {
            return self.write_step_down();
        }
        if self.claim.stage == Stage::Due {
            return self.send_claim(now);
        }
        if let Stage::Holding(until) = self.claim.stage
            && now.mono >= until
        {
            self.claim.stage = Stage::Due;
            return self.read();
        }
        if self.may_claim(now) && self.claim.stage == Stage::Watching && self.seen_free() {
            return self.prepare_claim(now);
        }
        self.watch(now);
    }

    /// Looks at the record when that is due, and at the workers when the coordinator seems to be in trouble.
    fn watch(&mut self, now: Now) {
        if let Some(seen) = &self.seen
            && !self.workers.listing
        {
            let troubled = seen.since + self.lease / 2;
            let listed = self.workers.listed_at;
            if listed.is_none() || (now.mono >= troubled && listed < Some(troubled)) {
                self.list();
            }
        }
        if now.mono >= self.next_read {
            self.read();
        }
    }

    fn read(&mut self) {
        self.call = Some(Call::Read);
        self.effects.push(Effect::Read);
    }

    pub(super) fn list(&mut self) {
        self.workers.listing = true;
        self.effects.push(Effect::List);
    }

    /// When the record that was seen is free to be claimed.
    pub(super) fn free_at(&self) -> Option<Duration> {
        let seen = self.seen.as_ref()?;
        Some(match &seen.current {
            // Nobody knows of a coordinator: there never was one.
            None if self.highest == 0 => seen.since,
            // There was one, and it may not have noticed yet.
            None => seen.since + self.lease,
            Some((_, epoch)) if epoch.released => seen.since,
            // Its own, from a claim or a renewal that landed late. It is not being acted upon.
            Some((_, epoch)) if epoch.incarnation == self.incarnation => seen.since,
            Some((_, epoch)) => seen.since + Duration::from_millis(epoch.lease_ms),
        })
    }

    pub(super) fn is_claimable(&self, now: Now) -> bool {
        self.free_at().is_some_and(|at| now.mono >= at)
    }

    fn may_claim(&self, now: Now) -> bool {
        !self.working
            && self.phase != crate::record::Phase::Observing
            && self.is_claimable(now)
            && self.trusted_from(now.mono).is_some_and(|since| now.mono < since + self.settings.lease())
    }

    /// From when a term counts that is claimed at `sent_at`; `None` while it could not be held.
    fn trusted_from(&self, sent_at: Duration) -> Option<Duration> {
        if self.sharing { self.held.as_ref().map(|held| held.since) } else { Some(sent_at) }
    }

    /// Whether the record was looked at after it became free.
    fn seen_free(&self) -> bool {
        self.free_at().is_some_and(|at| self.looked_at >= Some(at))
    }

    /// Looks again after a pause, before anything else is tried.
    fn look_again(&mut self, now: Now) {
        self.looked_at = None;
        self.next_read = now.mono + self.pause(self.settings.poll());
    }

    fn prepare_claim(&mut self, now: Now) {
        let missing = self.seen.as_ref().is_some_and(|seen| seen.current.is_none());
        if missing && !self.surveyed {
            self.claim.stage = Stage::Listing;
            return self.effects.push(Effect::Survey);
        }
        if self.coordinator().is_some_and(|epoch| epoch.handover_to.as_deref() == Some(&self.worker_id)) {
            return self.send_claim(now);
        }
        self.claim.stage = Stage::Listing;
        if !self.workers.listing {
            self.list();
        }
    }

    pub(super) fn on_surveyed(&mut self, now: Now, outcome: Result<u64, String>) {
        match outcome {
            Ok(highest) => {
                // News mean that there was a coordinator, who is given its time; then it is asked once more.
                self.surveyed = highest <= self.highest;
                self.highest = self.highest.max(highest);
            }
            Err(error) => {
                self.look_again(now);
                self.failed(error);
            }
        }
        if self.claim.stage == Stage::Listing {
            self.claim.stage = Stage::Watching;
        }
    }

    pub(super) fn on_listed(&mut self, now: Now, outcome: Result<Vec<(String, String)>, String>) {
        self.workers.listing = false;
        match outcome {
            Ok(list) => {
                self.workers.learn(now.mono, list);
                self.check_wish(now);
            }
            // What was known before has to do for a claim; a wish waits for another list.
            Err(error) => {
                self.workers.listed_at = Some(now.mono);
                self.delay_wish(now, &error);
                self.failed(error);
            }
        }
        self.emit_elected(now);
        if matches!(self.role, Role::Leader(_)) {
            return self.after_list(now);
        }
        if self.claim.stage != Stage::Listing {
            return;
        }
        let rank = self.rank(now);
        if rank == 0 {
            self.claim.stage = Stage::Due;
        } else {
            let wait = self.settings.claim_stagger * rank.min(RANK_MAX);
            let jitter = self.random.up_to(wait / 4);
            self.claim.stage = Stage::Holding(now.mono + wait + jitter);
        }
    }

    /// How many workers come before this one.
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
            return self.watch(now);
        }
        let expected = self.version().cloned();
        let record = self.claim_record(now);
        self.claim.sent = Some(Sent { record: record.clone(), at: now.mono, unsure: false });
        self.counters.claims += 1;
        self.call = Some(Call::Claim);
        self.effects.push(Effect::Swap(expected, record));
    }

    fn claim_record(&mut self, now: Now) -> Epoch {
        // A number that was once tried is not tried again: the first try may still land.
        self.highest += 1;
        Epoch {
            epoch_number: self.highest,
            coordinator_id: self.worker_id.clone(),
            incarnation: self.incarnation.clone(),
            nonce: self.random.text(),
            lease_seq: 0,
            epoch: now.wall_ms + millis(self.settings.max_epoch_duration),
            epoch_start: now.wall_ms,
            released: false,
            step_down: false,
            handover_to: None,
            elected_by: self.worker_id.clone(),
            duration_ms: millis(self.settings.max_epoch_duration),
            lease_ms: millis(self.settings.worker_timeout),
            process: self.held.as_ref().map(|held| held.process.clone()),
        }
    }

    pub(super) fn on_claimed(&mut self, now: Now, outcome: Swapped) {
        let Some(sent) = self.claim.sent.as_mut() else { return };
        match outcome {
            Swapped::Done(version) => {
                sent.unsure = false;
                let (record, at) = (sent.record.clone(), sent.at);
                self.adopt(now, version, record, at);
            }
            // Whatever the answer was, the record tells.
            Swapped::Conflict | Swapped::Unknown(_) => {
                sent.unsure = true;
                self.look_again(now);
            }
        }
    }

    /// Becomes the coordinator of a term whose claim was sent at `sent_at`.
    fn adopt(&mut self, now: Now, version: Version, record: Epoch, sent_at: Duration) {
        self.highest = self.highest.max(record.epoch_number);
        let lost = self.lapsed_coordinator();
        self.seen = Some(super::Seen { current: Some((version.clone(), record.clone())), since: now.mono });
        // The process may have lost the lease by which it claimed.
        let process = self.held.as_ref().map(|held| &held.process);
        let since = self.trusted_from(sent_at).filter(|_| record.process.as_ref() == process);
        let Some(deadline) = since.map(|since| since + self.settings.lease()).filter(|at| now.mono < *at)
        else {
            return;
        };
        self.claim.restart();
        self.tell(now, &record, lost);
        // So that the number outlives the record, should somebody delete it.
        self.next_beat = now.mono;
        self.role = Role::Leader(Box::new(Term::new(version, record, deadline, sent_at, &self.settings)));
    }

    /// Looks whether a claim whose answer was lost has won after all.
    pub(super) fn check_claim(&mut self, now: Now, current: Option<(Version, Epoch)>) {
        let Some(sent) = self.claim.sent.as_mut().filter(|sent| sent.unsure) else { return };
        let at = sent.at;
        if let Some((version, record)) = current
            && record.nonce == sent.record.nonce
            && !record.released
            && !self.working
        {
            sent.unsure = false;
            return self.adopt(now, version, record, at);
        }
        // It may still land; then it is found later, with the time it was sent at.
        if now.mono > at + self.settings.lease() {
            sent.unsure = false;
        }
    }

    /// Leaves the group. A claim under way may still win, and then has to be released.
    fn leave(&mut self, now: Now, since: Duration) {
        if self.call.is_some() || self.working {
            return;
        }
        let patience = since + self.settings.call_timeout * 2;
        if self.claim.is_unsure() && now.mono < patience {
            self.next_read = self.next_read.min(patience);
            if now.mono >= self.next_read {
                self.read();
            }
            return;
        }
        if self.wish.take().is_some() {
            self.effects.push(Effect::SteppedDown(Err("the participant was stopped".into())));
        }
        self.effects.push(Effect::Remove(self.worker_id.clone()));
        self.effects.push(Effect::Finished);
        self.finished = true;
    }
}
