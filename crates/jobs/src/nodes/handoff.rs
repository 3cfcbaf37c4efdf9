//! Handoff: the next step of a draining node, and how its handoffs ended.
//!
//! The cases: A, claimed at the first offer; B, claimed after a repeated offer; C, left behind for the leader to
//! offer; D, left behind because no other node exists. Always: the table alone shows what was claimed, so a lost
//! message costs nothing; a drain ends by its ceiling, whatever happens. Not here: waiting. Start at [`Drain::step`].

use std::time::Duration;

use crate::model::node_times::Times;
use crate::model::ownership::Case;

/// The next step of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Offer the remaining slices, or repeat the offer.
    Offer,
    /// Mark the remaining slices as left behind.
    Leave(Case),
    /// Check again a little later.
    Wait,
    /// The drain is over.
    Done,
}

/// What the draining node sees at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
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
    times: Times,
    /// Slices at the last step.
    known: usize,
    /// Offers made.
    tries: u32,
    offered_at: Duration,
    left_at: Option<(Duration, Case)>,
    /// Slices by case.
    pub ended: [u64; 4],
}

impl Drain {
    /// Starts the drain of a node with so many slices.
    pub fn new(times: Times, slices: usize) -> Self {
        Self { times, known: slices, tries: 0, offered_at: Duration::ZERO, left_at: None, ended: [0; 4] }
    }

    fn end(&mut self, slices: usize, case: Case) {
        self.ended[case as usize] += slices as u64;
    }

    /// The next step.
    pub fn step(&mut self, seen: Sight) -> Step {
        let taken = self.known.saturating_sub(seen.left);
        self.known = seen.left;
        if let Some((_, case)) = self.left_at {
            // A slice that is claimed in the last moments was not left behind after all.
            self.ended[case as usize] -= taken as u64;
        }
        self.end(taken, if self.tries > 1 { Case::B } else { Case::A });
        if seen.left == 0 || seen.elapsed >= self.times.ceiling {
            if seen.left > 0 && self.left_at.is_none() {
                self.end(seen.left, Case::C);
            }
            return Step::Done;
        }
        if let Some((at, case)) = self.left_at {
            let is_over = seen.elapsed >= at + self.times.tail;
            // A node that could claim them would have sent a heartbeat by now.
            let is_alone = case == Case::D || !seen.has_peers || !seen.has_heard;
            return if is_over || is_alone { Step::Done } else { Step::Wait };
        }
        if !seen.has_peers {
            return self.leave(seen, Case::D);
        }
        if !seen.has_jobs && self.tries > 0 {
            // The slices are on offer and have no jobs, so the node need not wait for their claims.
            self.end(seen.left, Case::C);
            return Step::Done;
        }
        let is_unheard = self.tries == 0 || seen.elapsed >= self.offered_at + self.times.ack;
        match is_unheard {
            true if self.tries == self.times.tries => self.leave(seen, Case::C),
            true => {
                self.tries += 1;
                self.offered_at = seen.elapsed;
                Step::Offer
            }
            false => Step::Wait,
        }
    }

    fn leave(&mut self, seen: Sight, case: Case) -> Step {
        self.left_at = Some((seen.elapsed, case));
        self.end(seen.left, case);
        Step::Leave(case)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(seconds: u64, left: usize, peers: bool) -> Sight {
        let elapsed = Duration::from_secs(seconds);
        Sight { elapsed, left, has_jobs: true, has_peers: peers, has_heard: peers }
    }

    fn drain() -> Drain {
        Drain::new(Times::default(), 10)
    }

    #[test]
    fn taken_at_once_is_case_a() {
        let mut drain = drain();
        assert_eq!(drain.step(sight(0, 10, true)), Step::Offer);
        assert_eq!(drain.step(sight(1, 4, true)), Step::Wait);
        assert_eq!(drain.step(sight(2, 0, true)), Step::Done);
        assert_eq!(drain.ended, [10, 0, 0, 0]);
    }

    #[test]
    fn taken_at_the_second_offer_is_case_b() {
        let mut drain = drain();
        drain.step(sight(0, 10, true));
        assert_eq!(drain.step(sight(4, 8, true)), Step::Wait);
        assert_eq!(drain.step(sight(5, 8, true)), Step::Offer);
        assert_eq!(drain.step(sight(6, 0, true)), Step::Done);
        assert_eq!(drain.ended, [2, 8, 0, 0]);
    }

    #[test]
    fn what_nobody_takes_is_left_behind_and_leaving_ends_inside_the_ceiling() {
        let mut drain = drain();
        let steps: Vec<_> = (0..=60).map(|second| drain.step(sight(second, 10, true))).collect();
        let at = |step: Step| steps.iter().enumerate().filter(move |(_, s)| **s == step).map(|(at, _)| at);
        assert_eq!(at(Step::Offer).collect::<Vec<_>>(), [0, 5, 10]);
        assert_eq!(at(Step::Leave(Case::C)).collect::<Vec<_>>(), [15]);
        assert_eq!(at(Step::Done).next(), Some(45));
        assert_eq!(drain.ended, [0, 0, 10, 0]);
    }

    #[test]
    fn what_is_taken_in_the_tail_was_not_left_behind() {
        let mut drain = drain();
        for second in 0..20 {
            drain.step(sight(second, 10, true));
        }
        assert_eq!(drain.step(sight(20, 0, true)), Step::Done);
        assert_eq!(drain.ended, [0, 10, 0, 0]);
    }

    #[test]
    fn the_last_node_does_not_wait_for_anybody() {
        let mut drain = drain();
        assert_eq!(drain.step(sight(0, 10, false)), Step::Leave(Case::D));
        assert_eq!(drain.step(sight(0, 10, false)), Step::Done);
        assert_eq!(drain.ended, [0, 0, 0, 10]);
    }

    #[test]
    fn peers_that_are_never_heard_are_not_waited_for_in_the_tail() {
        let mut drain = drain();
        let silent = |second| Sight { has_heard: false, ..sight(second, 10, true) };
        for second in 0..15 {
            drain.step(silent(second));
        }
        assert_eq!(drain.step(silent(15)), Step::Leave(Case::C));
        assert_eq!(drain.step(silent(16)), Step::Done);
    }

    #[test]
    fn without_a_job_nobody_is_waited_for() {
        let mut drain = drain();
        let empty = Sight { has_jobs: false, ..sight(0, 10, true) };
        assert_eq!((drain.step(empty), drain.step(empty)), (Step::Offer, Step::Done));
        assert_eq!(drain.ended, [0, 0, 10, 0]);
    }

    #[test]
    fn the_ceiling_ends_it() {
        let mut drain = drain();
        drain.step(sight(0, 10, true));
        assert_eq!(drain.step(sight(60, 10, true)), Step::Done);
        assert_eq!(drain.ended, [0, 0, 10, 0]);
    }
}
