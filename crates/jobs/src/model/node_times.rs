//! Timing of a cluster: leases, heartbeats, offers.

use std::time::Duration;

/// How long nodes wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
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

impl Default for Times {
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

impl Times {
    /// How often a node reads the state of the cluster.
    pub fn look(&self) -> Duration {
        (self.heartbeat / 4).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }

    /// How often a follower tries to become leader.
    pub fn try_lead(&self) -> Duration {
        (self.term / 10).clamp(Duration::from_millis(20), Duration::from_secs(2))
    }

    /// How long after it asked for its lease the leader may act.
    pub fn trusted(&self) -> Duration {
        self.term.saturating_sub(self.margin)
    }

    /// Refuses times that do not fit together.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.renew + self.margin >= self.term {
            return Err("the leader's renewal and margin must together be shorter than its lease");
        }
        if self.heartbeat * 2 > self.dead_after {
            return Err("a node must be heard at least twice before it is taken for dead");
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
    fn the_defaults_fit_together_and_what_does_not_is_refused() {
        assert_eq!(Times::default().check(), Ok(()));
        let wrong = |change: fn(&mut Times)| {
            let mut times = Times::default();
            change(&mut times);
            times.check().is_err()
        };
        assert!(wrong(|times| times.renew = times.term));
        assert!(wrong(|times| times.dead_after = times.heartbeat));
        assert!(wrong(|times| times.tries = 0));
        assert!(wrong(|times| times.tries = 100));
    }
}
