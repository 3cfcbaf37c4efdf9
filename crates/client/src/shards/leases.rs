//! The shards that a worker holds: answers and time in, gained and lost shards out. No socket, no clock.
//!
//! Always: a lost shard is reported as held until the program has stopped using it; if it returns meanwhile it is
//! gained only after that; nothing is gained without a lease, and everything is lost when the lease expires. A lease
//! counts from when its request was sent. Start at [`ShardLeases::apply_assignment`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;

/// A range of shards and their fencing token.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Grant {
    pub from: u32,
    pub to: u32,
    pub token: u64,
}

/// The server's answer to a worker.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Assignment {
    pub generation: u64,
    pub grants: Vec<Grant>,
    pub lease_ms: u64,
    pub heartbeat_ms: u64,
}

/// Changes for the program.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ShardChanges {
    /// Shards it may use, with their tokens.
    pub gained: Vec<(u32, u64)>,
    /// Shards it must stop using.
    pub lost: Vec<u32>,
}

/// The shards of a worker.
#[derive(Debug, Default)]
pub struct ShardLeases {
    generation: u64,
    /// The shards of the last assignment.
    granted: BTreeMap<u32, u64>,
    /// The shards that the program uses.
    used: BTreeMap<u32, u64>,
    /// The shards that the program is stopping.
    stopping: BTreeSet<u32>,
    /// When the lease expires.
    deadline: Duration,
}

impl ShardLeases {
    /// The generation of the last applied assignment.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The shards in use, with their tokens; none once the lease has expired.
    pub fn shards_in_use(&self, now: Duration) -> BTreeMap<u32, u64> {
        if now < self.deadline { self.used.clone() } else { BTreeMap::new() }
    }

    /// When the lease of the shards in use expires; `None` when there are none.
    pub fn in_use_until(&self) -> Option<Duration> {
        (!self.used.is_empty()).then_some(self.deadline)
    }

    /// The held shards for a heartbeat: those in use and those being stopped, as ranges.
    pub fn held_ranges(&self) -> Vec<(u32, u32)> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        let all: BTreeSet<u32> = self.used.keys().chain(&self.stopping).copied().collect();
        for shard in all {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == shard => *last = shard,
                _ => ranges.push((shard, shard)),
            }
        }
        ranges
    }

    /// Applies an answer to a request that was sent at `sent`.
    pub fn apply_assignment(
        &mut self,
        sent: Duration,
        now: Duration,
        assignment: &Assignment,
    ) -> ShardChanges {
        let mut change = self.check_expiry(now);
        self.deadline = self.deadline.max(sent + Duration::from_millis(assignment.lease_ms));
        if assignment.generation >= self.generation {
            self.generation = assignment.generation;
            let shards = assignment.grants.iter().flat_map(|g| (g.from..=g.to).map(|shard| (shard, g.token)));
            self.granted = shards.collect();
        }
        if now < self.deadline {
            change.lost.extend(self.give_up(|granted, shard, _| !granted.contains_key(&shard)));
            change.gained = self.gain();
        }
        change
    }

    /// Loses everything if the lease has expired.
    pub fn check_expiry(&mut self, now: Duration) -> ShardChanges {
        if now < self.deadline {
            return ShardChanges::default();
        }
        ShardChanges { lost: self.give_up(|_, _, _| true), ..ShardChanges::default() }
    }

    /// Loses everything.
    pub fn revoke_all(&mut self) -> Vec<u32> {
        self.deadline = Duration::ZERO;
        self.granted.clear();
        self.give_up(|_, _, _| true)
    }

    /// Records that the program has stopped using a shard.
    pub fn on_stopped(&mut self, shard: u32, now: Duration) -> ShardChanges {
        self.stopping.remove(&shard);
        let gained = if now < self.deadline { self.gain() } else { Vec::new() };
        ShardChanges { gained, ..ShardChanges::default() }
    }

    /// Whether the program is still stopping a shard.
    pub fn is_stopping(&self) -> bool {
        !self.stopping.is_empty()
    }

    fn give_up(&mut self, which: impl Fn(&BTreeMap<u32, u64>, u32, u64) -> bool) -> Vec<u32> {
        let granted = &self.granted;
        let lost: Vec<u32> = self
            .used
            .iter()
            .filter(|(shard, token)| which(granted, **shard, **token))
            .map(|(s, _)| *s)
            .collect();
        for shard in &lost {
            self.used.remove(shard);
            self.stopping.insert(*shard);
        }
        lost
    }

    fn gain(&mut self) -> Vec<(u32, u64)> {
        let mut gained = Vec::new();
        for (&shard, &token) in &self.granted {
            if !self.stopping.contains(&shard) && self.used.insert(shard, token) != Some(token) {
                gained.push((shard, token));
            }
        }
        gained
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn told(generation: u64, from: u32, to: u32, token: u64) -> Assignment {
        let grants = vec![Grant { from, to, token }];
        Assignment { generation, grants, lease_ms: 10_000, heartbeat_ms: 3_000 }
    }

    #[test]
    fn a_lost_shard_is_held_until_it_is_stopped_and_not_gained_before() {
        let mut share = ShardLeases::default();
        let change = share.apply_assignment(at(1), at(2), &told(1, 0, 3, 1));
        assert_eq!(change.gained, [(0, 1), (1, 1), (2, 1), (3, 1)]);
        assert_eq!(share.apply_assignment(at(3), at(3), &told(2, 0, 1, 1)).lost, [2, 3]);
        assert_eq!(share.held_ranges(), [(0, 3)]);
        assert_eq!(share.on_stopped(3, at(3)), ShardChanges::default());
        assert_eq!(share.held_ranges(), [(0, 2)]);
        // It comes back before the program has stopped using it.
        assert_eq!(share.apply_assignment(at(4), at(4), &told(3, 0, 2, 3)).gained, [(0, 3), (1, 3)]);
        assert_eq!(share.on_stopped(2, at(4)).gained, [(2, 3)]);
    }

    #[test]
    fn an_older_answer_lengthens_the_lease_and_changes_nothing_else() {
        let mut share = ShardLeases::default();
        share.apply_assignment(at(1), at(1), &told(5, 0, 0, 5));
        assert_eq!(share.apply_assignment(at(2), at(2), &told(4, 0, 9, 4)), ShardChanges::default());
        assert_eq!((share.in_use_until(), share.generation()), (Some(at(12)), 5));
    }

    #[test]
    fn everything_is_lost_with_the_lease_and_comes_back_with_the_next() {
        let mut share = ShardLeases::default();
        share.apply_assignment(at(1), at(1), &told(1, 0, 1, 1));
        assert!(share.check_expiry(at(10)).lost.is_empty());
        assert!(share.shards_in_use(at(11)).is_empty());
        assert_eq!(share.check_expiry(at(11)).lost, [0, 1]);
        // An answer that took longer than its lease gives nothing.
        assert_eq!(share.apply_assignment(at(2), at(20), &told(1, 0, 1, 1)), ShardChanges::default());
        share.on_stopped(0, at(20));
        share.on_stopped(1, at(20));
        assert_eq!(share.apply_assignment(at(20), at(21), &told(1, 0, 1, 1)).gained, [(0, 1), (1, 1)]);
    }
}
