//! Timing of a cluster: leases, heartbeats, offers.

use std::time::Duration;

/// How long nodes wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterTimes {
    /// The leader's lease.
    pub term: Duration,
    /// How often it is renewed.
    pub renew: Duration,
    /// How long before the lease ends the leader stops acting, by its own clock.
    pub margin: Duration,
    /// How often a node sends a heartbeat.
    pub heartbeat: Duration,
    /// A node that was silent for this long, in store time, is dead.
    pub dead_after: Duration,
    /// How long an offer waits to be claimed before it is repeated.
    pub ack: Duration,
    /// How often an offer is made.
    pub tries: u32,
    /// How long a leaving node waits after its last offer.
    pub tail: Duration,
    /// How long a drain may take in total.
    pub ceiling: Duration,
    /// How often the leader looks for slices without an owner, besides when a node dies.
    pub orphans_every: Duration,
    /// The least time between two rebalances.
    pub cooldown: Duration,
}

impl Default for ClusterTimes {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            term: seconds(30),
            renew: seconds(10),
            margin: seconds(5),
            heartbeat: seconds(10),
            dead_after: seconds(30),
            ack: seconds(5),
            tries: 3,
            tail: seconds(30),
            ceiling: seconds(60),
            orphans_every: seconds(30),
            cooldown: seconds(30),
        }
    }
}

impl ClusterTimes {
    /// How often a node reads the state of the cluster.
    pub fn refresh_interval(&self) -> Duration {
        (self.heartbeat / 4).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }

    /// How often a follower tries to become leader.
    pub fn election_interval(&self) -> Duration {
        (self.term / 10).clamp(Duration::from_millis(20), Duration::from_secs(2))
    }

    /// How long after it asked for its lease the leader may act.
    pub fn lease_trust(&self) -> Duration {
        self.term.saturating_sub(self.margin)
    }

    /// Refuses times that do not fit together.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.renew + self.margin >= self.term {
            return Err("the leader's renewal and margin must together be shorter than its lease");
        }
        if self.heartbeat * 2 > self.dead_after {
            return Err("a node must have time for at least two heartbeats before it counts as dead");
        }
        if self.tries == 0 || self.ack * self.tries > self.ceiling {
            return Err("the tries of a handoff must fit into its ceiling, and there must be one");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_contradictions_are_refused() {
        assert_eq!(ClusterTimes::default().check(), Ok(()));
        let wrong = |change: fn(&mut ClusterTimes)| {
            let mut times = ClusterTimes::default();
            change(&mut times);
            times.check().is_err()
        };
        assert!(wrong(|times| times.renew = times.term));
        assert!(wrong(|times| times.dead_after = times.heartbeat));
        assert!(wrong(|times| times.tries = 0));
        assert!(wrong(|times| times.tries = 100));
    }
}
