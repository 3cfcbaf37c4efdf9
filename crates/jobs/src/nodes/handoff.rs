//! Handoff: the next step of a draining node, and how its handoffs ended.
//!
//! The cases: A, claimed at the first offer; B, claimed after a repeated offer; C, left behind for the leader to
//! offer; D, left behind because no other node exists. Always: the table alone shows what was claimed, so a lost
//! message costs nothing; a drain ends by its ceiling, whatever happens. Not here: waiting. Start at [`Drain::step`].

use std::time::Duration;

use crate::model::node_times::ClusterTimes;
use crate::model::ownership::HandoffCase;

/// The next step of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainStep {
    /// Offer the remaining slices, or repeat the offer.
    Offer,
    /// Mark the remaining slices as left behind.
    Leave(HandoffCase),
    /// Check again a little later.
    Wait,
    /// The drain is over.
    Done,
}

/// What the draining node sees at one moment.
#[derive(Clone, Copy, Debug)]
pub struct DrainObservation {
    /// Time since the drain began.
    pub elapsed: Duration,
    /// Slices that the node still owns.
    pub left: usize,
    /// Whether they have jobs, as far as is known.
    pub has_jobs: bool,
    /// Whether another node could claim them.
    pub has_peers: bool,
    /// Whether another node sent a heartbeat since the drain began.
    pub has_heard: bool,
}

/// A drain under way.
#[derive(Clone, Debug)]
pub struct Drain {
    times: ClusterTimes,
    /// Slices at the last step.
    known: usize,
    /// Offers made.
    tries: u32,
    offered_at: Duration,
    left_at: Option<(Duration, HandoffCase)>,
    /// Slices by case.
    pub ended: [u64; 4],
}

impl Drain {
    /// Starts the drain of a node with so many slices.
    pub fn new(times: ClusterTimes, slices: usize) -> Self {
        Self { times, known: slices, tries: 0, offered_at: Duration::ZERO, left_at: None, ended: [0; 4] }
    }

    fn end(&mut self, slices: usize, case: HandoffCase) {
        self.ended[case as usize] += slices as u64;
    }

    /// The next step.
    pub fn step(&mut self, seen: DrainObservation) -> DrainStep {
        let taken = self.known.saturating_sub(seen.left);
        self.known = seen.left;
        if let Some((_, case)) = self.left_at {
            // A slice that is claimed in the last moments was not left behind after all.
            self.ended[case as usize] -= taken as u64;
        }
        self.end(taken, if self.tries > 1 { HandoffCase::B } else { HandoffCase::A });
        if seen.left == 0 || seen.elapsed >= self.times.ceiling {
            if seen.left > 0 && self.left_at.is_none() {
                self.end(seen.left, HandoffCase::C);
            }
            return DrainStep::Done;
        }
        if let Some((at, case)) = self.left_at {
            let is_over = seen.elapsed >= at + self.times.tail;
            // A node that could claim them would have sent a heartbeat by now.
            let is_alone = case == HandoffCase::D || !seen.has_peers || !seen.has_heard;
            return if is_over || is_alone { DrainStep::Done } else { DrainStep::Wait };
        }
        if !seen.has_peers {
            return self.leave(seen, HandoffCase::D);
        }
        if !seen.has_jobs && self.tries > 0 {
            // The slices are on offer and have no jobs, so the node need not wait for their claims.
            self.end(seen.left, HandoffCase::C);
            return DrainStep::Done;
        }
        let is_unheard = self.tries == 0 || seen.elapsed >= self.offered_at + self.times.ack;
        match is_unheard {
            true if self.tries == self.times.tries => self.leave(seen, HandoffCase::C),
            true => {
                self.tries += 1;
                self.offered_at = seen.elapsed;
                DrainStep::Offer
            }
            false => DrainStep::Wait,
        }
    }

    fn leave(&mut self, seen: DrainObservation, case: HandoffCase) -> DrainStep {
        self.left_at = Some((seen.elapsed, case));
        self.end(seen.left, case);
        DrainStep::Leave(case)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(seconds: u64, left: usize, peers: bool) -> DrainObservation {
        let elapsed = Duration::from_secs(seconds);
        DrainObservation { elapsed, left, has_jobs: true, has_peers: peers, has_heard: peers }
    }

    fn drain() -> Drain {
        Drain::new(ClusterTimes::default(), 10)
    }

    #[test]
    fn taken_at_once_is_case_a() {
        let mut drain = drain();
        assert_eq!(drain.step(sight(0, 10, true)), DrainStep::Offer);
        assert_eq!(drain.step(sight(1, 4, true)), DrainStep::Wait);
        assert_eq!(drain.step(sight(2, 0, true)), DrainStep::Done);
        assert_eq!(drain.ended, [10, 0, 0, 0]);
    }

    #[test]
    fn taken_at_the_second_offer_is_case_b() {
        let mut drain = drain();
        drain.step(sight(0, 10, true));
        assert_eq!(drain.step(sight(4, 8, true)), DrainStep::Wait);
        assert_eq!(drain.step(sight(5, 8, true)), DrainStep::Offer);
        assert_eq!(drain.step(sight(6, 0, true)), DrainStep::Done);
        assert_eq!(drain.ended, [2, 8, 0, 0]);
    }

    #[test]
    fn unclaimed_slices_are_left_behind_and_a_drain_ends_within_the_ceiling() {
        let mut drain = drain();
        let steps: Vec<_> = (0..=60).map(|second| drain.step(sight(second, 10, true))).collect();
        let at =
            |step: DrainStep| steps.iter().enumerate().filter(move |(_, s)| **s == step).map(|(at, _)| at);
        assert_eq!(at(DrainStep::Offer).collect::<Vec<_>>(), [0, 5, 10]);
        assert_eq!(at(DrainStep::Leave(HandoffCase::C)).collect::<Vec<_>>(), [15]);
        assert_eq!(at(DrainStep::Done).next(), Some(45));
        assert_eq!(drain.ended, [0, 0, 10, 0]);
    }

    #[test]
    fn a_slice_claimed_in_the_tail_was_not_left_behind() {
        let mut drain = drain();
        for second in 0..20 {
            drain.step(sight(second, 10, true));
        }
        assert_eq!(drain.step(sight(20, 0, true)), DrainStep::Done);
        assert_eq!(drain.ended, [0, 10, 0, 0]);
    }

    #[test]
    fn the_last_node_does_not_wait() {
        let mut drain = drain();
        assert_eq!(drain.step(sight(0, 10, false)), DrainStep::Leave(HandoffCase::D));
        assert_eq!(drain.step(sight(0, 10, false)), DrainStep::Done);
        assert_eq!(drain.ended, [0, 0, 0, 10]);
    }

    #[test]
    fn peers_that_are_never_heard_are_not_waited_for_in_the_tail() {
        let mut drain = drain();
        let silent = |second| DrainObservation { has_heard: false, ..sight(second, 10, true) };
        for second in 0..15 {
            drain.step(silent(second));
        }
        assert_eq!(drain.step(silent(15)), DrainStep::Leave(HandoffCase::C));
        assert_eq!(drain.step(silent(16)), DrainStep::Done);
    }

    #[test]
    fn without_jobs_a_drain_does_not_wait() {
        let mut drain = drain();
        let empty = DrainObservation { has_jobs: false, ..sight(0, 10, true) };
        assert_eq!((drain.step(empty), drain.step(empty)), (DrainStep::Offer, DrainStep::Done));
        assert_eq!(drain.ended, [0, 0, 10, 0]);
    }

    #[test]
    fn the_ceiling_ends_it() {
        let mut drain = drain();
        drain.step(sight(0, 10, true));
        assert_eq!(drain.step(sight(60, 10, true)), DrainStep::Done);
        assert_eq!(drain.ended, [0, 0, 10, 0]);
    }
}
