//! The lease of a process, which covers the terms of its members in any number of groups.
//!
//! Renewing a record per group costs one write per group and interval. Here one renewal serves all groups, and the
//! record of a group is written only when its coordinator changes. Always: a lease is trusted from before the write
//! that renewed it was sent; a lease that was fenced, removed or expired never comes back. The process continues under
//! a new lease, so that a stale claim cannot stay valid through later renewals. Deliberately absent: groups, and I/O. Start at [`ProcessLease::step`].

use std::time::Duration;

use super::{HeldLease, Now, Random, SwapAnswer, millis};
use crate::record::ProcessRecord;
use crate::settings::Settings;
use crate::store::Version;

/// Unconfirmed renewals that are remembered.
const UNCONFIRMED_MAX: usize = 16;

/// What happened.
#[derive(Clone, Debug)]
pub enum ProcessLeaseInput {
    /// Time has passed.
    Tick,
    /// The answer to [`ProcessLeaseEffect::Read`].
    Read(Result<Option<(Version, ProcessRecord)>, String>),
    /// The answer to [`ProcessLeaseEffect::Swap`].
    SwapAnswered(SwapAnswer),
    /// A claim that no member acts upon may rest on the lease.
    Abandon,
    /// The last user of the lease has ended.
    Stop,
}

/// What the runtime has to do.
#[derive(Clone, Debug)]
pub enum ProcessLeaseEffect {
    /// Read the process's record.
    Read(String),
    /// Compare and set it; with `None`, create it.
    Swap(String, Option<Version>, ProcessRecord),
    /// The lease that covers the terms from now on; `None` while there is none.
    LeaseChanged(Option<HeldLease>),
    /// The lease has ended; its record may be removed.
    Finished,
}

/// The lease of one process.
#[derive(Debug)]
pub struct ProcessLease {
    settings: Settings,
    random: Random,
    record: ProcessRecord,
    version: Option<Version>,
    /// Sequence numbers of renewals without a confirmed answer, each with the time before it was sent.
    unconfirmed_renewals: Vec<(u64, Duration)>,
    call_in_flight: bool,
    /// Whether the call in flight concerns a lease that was abandoned.
    discard_next_answer: bool,
    /// From when the lease counts; `None` until a renewal is confirmed.
    valid_from: Option<Duration>,
    next_renewal: Duration,
    stopping: bool,
    finished: bool,
    effects: Vec<ProcessLeaseEffect>,
}

impl ProcessLease {
    /// The lease of the process that `worker_id` names. `settings` have been checked; `seed` is random.
    pub fn new(settings: Settings, worker_id: String, seed: [u64; 2]) -> Self {
        let mut random = Random(seed);
        let record = ProcessRecord {
            worker_id,
            incarnation: random.hex_128(),
            seq: 0,
            lease_ms: millis(settings.worker_timeout),
            renewed_at: 0,
            epoch: 0,
            fenced: false,
        };
        Self {
            settings,
            random,
            record,
            version: None,
            unconfirmed_renewals: Vec::new(),
            call_in_flight: false,
            discard_next_answer: false,
            valid_from: None,
            next_renewal: Duration::ZERO,
            stopping: false,
            finished: false,
            effects: Vec::new(),
        }
    }

    /// Applies an input and returns what to do.
    pub fn step(&mut self, now: Now, input: ProcessLeaseInput) -> Vec<ProcessLeaseEffect> {
        if self.finished {
            return Vec::new();
        }
        if self.valid_from.is_some_and(|since| now.mono >= since + self.settings.trusted_lease()) {
            self.start_new_lease(now);
        }
        match input {
            ProcessLeaseInput::Tick => {}
            ProcessLeaseInput::Read(_) | ProcessLeaseInput::SwapAnswered(_) if self.discard_next_answer => {
                (self.discard_next_answer, self.call_in_flight) = (false, false);
            }
            ProcessLeaseInput::Abandon => self.start_new_lease(now),
            ProcessLeaseInput::Read(outcome) => self.on_read(now, outcome),
            ProcessLeaseInput::SwapAnswered(outcome) => self.on_swapped(now, outcome),
            ProcessLeaseInput::Stop => self.stopping = true,
        }
        if self.stopping && !self.call_in_flight {
            self.effects.push(ProcessLeaseEffect::LeaseChanged(None));
            self.effects.push(ProcessLeaseEffect::Finished);
            self.finished = true;
        } else if !self.call_in_flight && now.mono >= self.next_renewal {
            self.renew(now);
        }
        std::mem::take(&mut self.effects)
    }

    /// When [`ProcessLeaseInput::Tick`] is due, if nothing else comes before.
    pub fn wake_at(&self) -> Duration {
        let end = self.valid_from.map_or(Duration::MAX, |since| since + self.settings.trusted_lease());
        if self.call_in_flight { end } else { end.min(self.next_renewal) }
    }

    /// The record as it was last sent, and its version if that is known.
    pub fn current(&self) -> (&ProcessRecord, Option<&Version>) {
        (&self.record, self.version.as_ref())
    }

    fn renew(&mut self, now: Now) {
        self.record.seq += 1;
        self.record.renewed_at = now.wall_ms;
        self.record.epoch = now.wall_ms + millis(self.settings.max_epoch_duration);
        if self.unconfirmed_renewals.len() == UNCONFIRMED_MAX {
            self.unconfirmed_renewals.remove(0);
        }
        self.unconfirmed_renewals.push((self.record.seq, now.mono));
        self.call_in_flight = true;
        self.next_renewal = now.mono + self.settings.heartbeat_interval;
        let (key, version) = (self.record.key(), self.version.clone());
        self.effects.push(ProcessLeaseEffect::Swap(key, version, self.record.clone()));
    }

    fn on_swapped(&mut self, now: Now, outcome: SwapAnswer) {
        match outcome {
            SwapAnswer::Done(version) => {
                self.call_in_flight = false;
                self.confirm_renewal(now, version, self.record.seq);
            }
            // The record shows which write landed.
            SwapAnswer::Conflict | SwapAnswer::Unknown(_) => {
                self.effects.push(ProcessLeaseEffect::Read(self.record.key()));
            }
        }
    }

    fn on_read(&mut self, now: Now, outcome: Result<Option<(Version, ProcessRecord)>, String>) {
        self.call_in_flight = false;
        self.next_renewal = self.next_renewal.min(now.mono + self.retry_backoff());
        match outcome {
            Ok(Some((_, found))) if found.fenced => self.start_new_lease(now),
            Ok(Some((version, found))) => self.confirm_renewal(now, version, found.seq),
            Ok(None) if self.version.is_some() => self.start_new_lease(now),
            // Not created yet, or unknown.
            Ok(None) | Err(_) => {}
        }
    }

    /// The store holds the renewal with the number `seq`.
    fn confirm_renewal(&mut self, now: Now, version: Version, seq: u64) {
        let since = self.unconfirmed_renewals.iter().find(|(sent, _)| *sent == seq).map(|(_, at)| *at);
        self.unconfirmed_renewals.retain(|(sent, _)| *sent > seq);
        self.version = Some(version);
        if let Some(since) = since.filter(|since| now.mono < *since + self.settings.trusted_lease()) {
            self.valid_from = Some(since);
            self.effects.push(ProcessLeaseEffect::LeaseChanged(Some(HeldLease {
                process: self.record.id(),
                valid_from: since,
            })));
        }
    }

    fn start_new_lease(&mut self, now: Now) {
        self.effects.push(ProcessLeaseEffect::LeaseChanged(None));
        self.record.incarnation = self.random.hex_128();
        self.record.seq = 0;
        self.version = None;
        self.unconfirmed_renewals.clear();
        (self.valid_from, self.discard_next_answer) = (None, self.call_in_flight);
        self.next_renewal = now.mono;
    }

    fn retry_backoff(&mut self) -> Duration {
        let base =
            (self.settings.heartbeat_interval / 8).clamp(Duration::from_millis(20), Duration::from_secs(2));
        base + self.random.duration_below(base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Now {
        Now { mono: Duration::from_secs(seconds), wall_ms: seconds * 1000 }
    }

    fn held(effects: &[ProcessLeaseEffect]) -> Option<Option<Duration>> {
        effects.iter().rev().find_map(|effect| match effect {
            ProcessLeaseEffect::LeaseChanged(held) => Some(held.as_ref().map(|held| held.valid_from)),
            _ => None,
        })
    }

    fn sent(effects: &[ProcessLeaseEffect]) -> &ProcessRecord {
        let swap = effects.iter().find_map(|effect| match effect {
            ProcessLeaseEffect::Swap(_, _, process) => Some(process),
            _ => None,
        });
        swap.expect("a write")
    }

    #[test]
    fn a_renewal_counts_from_before_it_was_sent_even_if_its_answer_is_lost() {
        let mut keeper = ProcessLease::new(Settings::default(), "w".into(), [1, 2]);
        let first = keeper.step(at(100), ProcessLeaseInput::Tick);
        let process = sent(&first).clone();
        let lost = keeper.step(at(105), ProcessLeaseInput::SwapAnswered(SwapAnswer::Unknown("late".into())));
        assert!(matches!(&lost[..], [ProcessLeaseEffect::Read(key)] if *key == process.key()));
        let found = keeper.step(at(106), ProcessLeaseInput::Read(Ok(Some((Version("1".into()), process)))));
        assert_eq!(held(&found), Some(Some(Duration::from_secs(100))));
    }

    #[test]
    fn a_lease_that_was_fenced_or_ran_out_is_followed_by_another() {
        let mut keeper = ProcessLease::new(Settings::default(), "w".into(), [1, 2]);
        let process = sent(&keeper.step(at(0), ProcessLeaseInput::Tick)).clone();
        keeper.step(at(0), ProcessLeaseInput::SwapAnswered(SwapAnswer::Done(Version("1".into()))));
        keeper.step(at(30), ProcessLeaseInput::Tick);
        keeper.step(at(31), ProcessLeaseInput::SwapAnswered(SwapAnswer::Conflict));
        let fenced = ProcessRecord { fenced: true, ..process.clone() };
        let lost = keeper.step(at(32), ProcessLeaseInput::Read(Ok(Some((Version("2".into()), fenced)))));
        assert_eq!(held(&lost), Some(None));
        let second = sent(&lost).clone();
        assert_ne!(second.id(), process.id());
        keeper.step(at(32), ProcessLeaseInput::SwapAnswered(SwapAnswer::Done(Version("3".into()))));
        keeper.step(at(62), ProcessLeaseInput::Tick);
        // No answer for a whole lease: a later answer concerns the old lease only.
        let over = keeper.step(at(200), ProcessLeaseInput::Tick);
        assert_eq!(held(&over), Some(None));
        let late =
            keeper.step(at(201), ProcessLeaseInput::SwapAnswered(SwapAnswer::Done(Version("4".into()))));
        assert_eq!(held(&late), None);
        assert_ne!(sent(&late).id(), second.id());
    }
}
