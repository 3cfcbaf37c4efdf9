//! Leaving in good order: what a node that drains does next, and how its handoffs ended.
//!
//! The cases are those of the document that jobs were built from: A, taken at the first offer; B, taken after it was
//! offered again; C, left behind for the leader to offer; D, left behind because no other node is there. Always: what is
//! taken is known from the table alone, so a lost message costs nothing; leaving ends by its ceiling, whatever happens.
//! Not here: waiting. Start at [`Drain::step`].

use std::time::Duration;

use crate::model::node_times::Times;
use crate::model::ownership::Case;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Offer what is left (again).
    Offer,
    /// Mark what is left as left behind.
    Leave(Case),
    /// Look again a little later.
    Wait,
    /// It is over.
    Done,
}

/// What is seen at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// Time since the drain began.
    pub elapsed: Duration,
    /// Slices that are still the node's own.
    pub left: usize,
    /// Whether there are jobs in them, as far as is known.
    pub has_jobs: bool,
    /// Whether another node could take them.
    pub has_peers: bool,
    /// Whether another node was heard since the drain began.
    pub has_heard: bool,
}

/// A drain under way.
#[derive(Clone, Debug)]
pub struct Drain {
    times: Times,
    /// Slices at the last look.
    known: usize,
    /// Offers made.
    tries: u32,
    offered_at: Duration,
    left_at: Option<(Duration, Case)>,
    /// Slices by how they ended.
    pub ended: [u64; 4],
}

impl Drain {
    /// The drain of a node that owns so many slices.
    pub fn new(times: Times, slices: usize) -> Self {
        Self { times, known: slices, tries: 0, offered_at: Duration::ZERO, left_at: None, ended: [0; 4] }
    }

    fn end(&mut self, slices: usize, case: Case) {
        self.ended[case as usize] += slices as u64;
    }

    /// What to do now.
    pub fn step(&mut self, seen: Sight) -> Step {
        let taken = self.known.saturating_sub(seen.left);
        self.known = seen.left;
        if let Some((_, case)) = self.left_at {
            // What is taken in the last moments was not left behind after all.
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
            // Whoever could take them would have been heard by now.
            let is_alone = case == Case::D || !seen.has_peers || !seen.has_heard;
            return if is_over || is_alone { Step::Done } else { Step::Wait };
        }
        if !seen.has_peers {
            return self.leave(seen, Case::D);
        }
        if !seen.has_jobs && self.tries > 0 {
            // They are on offer; there is nothing in them that would wait for it to be taken.
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
