//! Keeps the lease of a process, by which its participants in any number of groups hold what they hold.
//!
//! Renewing a record per group costs a write per group and interval; here one record is renewed for all of them, and
//! records of groups are written only when their coordinator changes. Always: a lease is trusted from before the write
//! that renewed it was sent; one that was fenced, is gone, or ran out, never comes back: the process goes on under a
//! fresh one, so that nothing hangs on the old one for ever that nobody acts upon.
//! Deliberately absent: groups, and I/O. Start at [`Keeper::step`].

use std::time::Duration;

use super::{Held, Now, Random, Swapped, millis};
use crate::record::Process;
use crate::settings::Settings;
use crate::store::Version;

/// Renewals without an answer that are remembered.
const SENT_MAX: usize = 16;

/// Something for the keeper to take in.
#[derive(Clone, Debug)]
pub enum KeeperInput {
    /// Time has passed.
    Tick,
    /// The answer to [`KeeperEffect::Read`].
    Read(Result<Option<(Version, Process)>, String>),
    /// The answer to [`KeeperEffect::Swap`].
    Swapped(Swapped),
    /// Something may be held by the lease that nobody acts upon.
    Forsake,
    /// Nobody holds by the lease any more.
    Stop,
}

/// Something for the runtime to do.
#[derive(Clone, Debug)]
pub enum KeeperEffect {
    /// Read the process's record.
    Read(String),
    /// Write it, if its version is this one; create it, if that is `None` and there is none.
    Swap(String, Option<Version>, Process),
    /// By what participants hold from now on; `None` when by nothing.
    Held(Option<Held>),
    /// The end: the record may be removed.
    Finished,
}

/// The lease of one process.
#[derive(Debug)]
pub struct Keeper {
    settings: Settings,
    random: Random,
    record: Process,
    version: Option<Version>,
    /// Renewals whose answers have not come, each with the time before it was sent.
    sent: Vec<(u64, Duration)>,
    calling: bool,
    /// Whether the call under way is about a lease that was given up.
    stale: bool,
    /// From when the lease counts.
    since: Option<Duration>,
    next: Duration,
    stopping: bool,
    finished: bool,
    effects: Vec<KeeperEffect>,
}

impl Keeper {
    /// The lease of the process that `worker_id` names. `settings` have been checked; `seed` is random.
    pub fn new(settings: Settings, worker_id: String, seed: [u64; 2]) -> Self {
        let mut random = Random(seed);
        let record = Process {
            worker_id,
            incarnation: random.text(),
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
            sent: Vec::new(),
            calling: false,
            stale: false,
            since: None,
            next: Duration::ZERO,
            stopping: false,
            finished: false,
            effects: Vec::new(),
        }
    }

    /// Takes an input in and says what to do.
    pub fn step(&mut self, now: Now, input: KeeperInput) -> Vec<KeeperEffect> {
        if self.finished {
            return Vec::new();
        }
        if self.since.is_some_and(|since| now.mono >= since + self.settings.lease()) {
            self.begin_anew(now);
        }
        match input {
            KeeperInput::Tick => {}
            KeeperInput::Read(_) | KeeperInput::Swapped(_) if self.stale => {
                (self.stale, self.calling) = (false, false);
            }
            KeeperInput::Forsake => self.begin_anew(now),
            KeeperInput::Read(outcome) => self.on_read(now, outcome),
            KeeperInput::Swapped(outcome) => self.on_swapped(now, outcome),
            KeeperInput::Stop => self.stopping = true,
        }
        if self.stopping && !self.calling {
            self.effects.push(KeeperEffect::Held(None));
            self.effects.push(KeeperEffect::Finished);
            self.finished = true;
        } else if !self.calling && now.mono >= self.next {
            self.renew(now);
        }
        std::mem::take(&mut self.effects)
    }

    /// When [`KeeperInput::Tick`] is due, if nothing else comes before.
    pub fn wake_at(&self) -> Duration {
        let end = self.since.map_or(Duration::MAX, |since| since + self.settings.lease());
        if self.calling { end } else { end.min(self.next) }
    }

    /// The record as it was last sent, and its version if that is known.
    pub fn current(&self) -> (&Process, Option<&Version>) {
        (&self.record, self.version.as_ref())
    }

    fn renew(&mut self, now: Now) {
        self.record.seq += 1;
        self.record.renewed_at = now.wall_ms;
        self.record.epoch = now.wall_ms + millis(self.settings.max_epoch_duration);
        if self.sent.len() == SENT_MAX {
            self.sent.remove(0);
        }
        self.sent.push((self.record.seq, now.mono));
        self.calling = true;
        self.next = now.mono + self.settings.heartbeat_interval;
        let (key, version) = (self.record.key(), self.version.clone());
        self.effects.push(KeeperEffect::Swap(key, version, self.record.clone()));
    }

    fn on_swapped(&mut self, now: Now, outcome: Swapped) {
        match outcome {
            Swapped::Done(version) => {
                self.calling = false;
                self.confirm(now, version, self.record.seq);
            }
            // The record tells.
            Swapped::Conflict | Swapped::Unknown(_) => {
                self.effects.push(KeeperEffect::Read(self.record.key()));
            }
        }
    }

    fn on_read(&mut self, now: Now, outcome: Result<Option<(Version, Process)>, String>) {
        self.calling = false;
        self.next = self.next.min(now.mono + self.pause());
        match outcome {
            Ok(Some((_, found))) if found.fenced => self.begin_anew(now),
            Ok(Some((version, found))) => self.confirm(now, version, found.seq),
            Ok(None) if self.version.is_some() => self.begin_anew(now),
            // Not created yet, or nobody knows.
            Ok(None) | Err(_) => {}
        }
    }

    /// The store holds the renewal with the number `seq`.
    fn confirm(&mut self, now: Now, version: Version, seq: u64) {
        let since = self.sent.iter().find(|(sent, _)| *sent == seq).map(|(_, at)| *at);
        self.sent.retain(|(sent, _)| *sent > seq);
        self.version = Some(version);
        if let Some(since) = since.filter(|since| now.mono < *since + self.settings.lease()) {
            self.since = Some(since);
            self.effects.push(KeeperEffect::Held(Some(Held { process: self.record.id(), since })));
        }
    }

    fn begin_anew(&mut self, now: Now) {
        self.effects.push(KeeperEffect::Held(None));
        self.record.incarnation = self.random.text();
        self.record.seq = 0;
        self.version = None;
        self.sent.clear();
        (self.since, self.stale) = (None, self.calling);
        self.next = now.mono;
    }

    fn pause(&mut self) -> Duration {
        let base =
            (self.settings.heartbeat_interval / 8).clamp(Duration::from_millis(20), Duration::from_secs(2));
        base + self.random.up_to(base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Now {
        Now { mono: Duration::from_secs(seconds), wall_ms: seconds * 1000 }
    }

    fn held(effects: &[KeeperEffect]) -> Option<Option<Duration>> {
        effects.iter().rev().find_map(|effect| match effect {
            KeeperEffect::Held(held) => Some(held.as_ref().map(|held| held.since)),
            _ => None,
        })
    }

    fn sent(effects: &[KeeperEffect]) -> &Process {
        let swap = effects.iter().find_map(|effect| match effect {
            KeeperEffect::Swap(_, _, process) => Some(process),
            _ => None,
        });
        swap.expect("a write")
    }

    #[test]
    fn a_renewal_counts_from_before_it_was_sent_even_if_its_answer_is_lost() {
        let mut keeper = Keeper::new(Settings::default(), "w".into(), [1, 2]);
        let first = keeper.step(at(100), KeeperInput::Tick);
        let process = sent(&first).clone();
        let lost = keeper.step(at(105), KeeperInput::Swapped(Swapped::Unknown("late".into())));
        assert!(matches!(&lost[..], [KeeperEffect::Read(key)] if *key == process.key()));
        let found = keeper.step(at(106), KeeperInput::Read(Ok(Some((Version("1".into()), process)))));
        assert_eq!(held(&found), Some(Some(Duration::from_secs(100))));
    }

    #[test]
    fn a_lease_that_was_fenced_or_ran_out_is_followed_by_another() {
        let mut keeper = Keeper::new(Settings::default(), "w".into(), [1, 2]);
        let process = sent(&keeper.step(at(0), KeeperInput::Tick)).clone();
        keeper.step(at(0), KeeperInput::Swapped(Swapped::Done(Version("1".into()))));
        keeper.step(at(30), KeeperInput::Tick);
        keeper.step(at(31), KeeperInput::Swapped(Swapped::Conflict));
        let fenced = Process { fenced: true, ..process.clone() };
        let lost = keeper.step(at(32), KeeperInput::Read(Ok(Some((Version("2".into()), fenced)))));
        assert_eq!(held(&lost), Some(None));
        let second = sent(&lost).clone();
        assert_ne!(second.id(), process.id());
        keeper.step(at(32), KeeperInput::Swapped(Swapped::Done(Version("3".into()))));
        keeper.step(at(62), KeeperInput::Tick);
        // No answer for a whole lease; when one comes it is no longer about what is held.
        let over = keeper.step(at(200), KeeperInput::Tick);
        assert_eq!(held(&over), Some(None));
        let late = keeper.step(at(201), KeeperInput::Swapped(Swapped::Done(Version("4".into()))));
        assert_eq!(held(&late), None);
        assert_ne!(sent(&late).id(), second.id());
    }
}
