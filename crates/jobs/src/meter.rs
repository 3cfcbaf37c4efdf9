//! What is counted, since the server started.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_store::{Distribution, Histogram, MICROS};

use crate::book::Counts;
use crate::state::Outcome;

/// The numbers.
#[derive(Debug)]
pub struct Meter {
    enqueued: AtomicU64,
    deduplicated: AtomicU64,
    leased: AtomicU64,
    outcomes: Vec<AtomicU64>,
    stale: AtomicU64,
    dead: AtomicU64,
    forgotten: AtomicU64,
    lines: AtomicU64,
    lines_dropped: AtomicU64,
    terms: AtomicU64,
    pickup: Histogram,
    run: Histogram,
}

/// A copy of the numbers.
#[derive(Clone, Debug)]
pub struct Numbers {
    /// Jobs accepted.
    pub enqueued: u64,
    /// Jobs that were there already.
    pub deduplicated: u64,
    /// Jobs given to workers.
    pub leased: u64,
    /// Executions that ended, by outcome.
    pub outcomes: Vec<(Outcome, u64)>,
    /// What was refused for an old fence.
    pub stale: u64,
    /// Jobs that became dead letters.
    pub dead: u64,
    /// Jobs that were forgotten after their time.
    pub forgotten: u64,
    /// Lines of logs kept.
    pub lines: u64,
    /// Lines of logs beyond what is kept of an execution.
    pub lines_dropped: u64,
    /// How often this node became leader.
    pub terms: u64,
    /// How long jobs waited for a worker, in microseconds.
    pub pickup: Distribution,
    /// How long executions took, in microseconds.
    pub run: Distribution,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            enqueued: AtomicU64::default(),
            deduplicated: AtomicU64::default(),
            leased: AtomicU64::default(),
            outcomes: Outcome::ALL.iter().map(|_| AtomicU64::default()).collect(),
            stale: AtomicU64::default(),
            dead: AtomicU64::default(),
            forgotten: AtomicU64::default(),
            lines: AtomicU64::default(),
            lines_dropped: AtomicU64::default(),
            terms: AtomicU64::default(),
            pickup: Histogram::new(MICROS),
            run: Histogram::new(MICROS),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Meter {
    /// Adds what happened in one commit.
    pub fn add(&self, counts: &Counts) {
        let add = |number: &AtomicU64, by: u64| {
            if by > 0 {
                number.fetch_add(by, Ordering::Relaxed);
            }
        };
        add(&self.enqueued, counts.enqueued);
        add(&self.deduplicated, counts.deduplicated);
        add(&self.leased, counts.leased.len() as u64);
        add(&self.stale, counts.stale);
        add(&self.dead, counts.dead);
        add(&self.forgotten, counts.forgotten);
        add(&self.lines, counts.lines.0);
        add(&self.lines_dropped, counts.lines.1);
        counts.leased.iter().for_each(|waited| self.pickup.observe(micros(*waited)));
        for (outcome, ran) in &counts.ended {
            add(&self.outcomes[*outcome as usize], 1);
            self.run.observe(micros(*ran));
        }
    }

    /// Notes that this node became leader.
    pub fn became_leader(&self) {
        self.terms.fetch_add(1, Ordering::Relaxed);
    }

    /// The numbers now.
    pub fn numbers(&self) -> Numbers {
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Numbers {
            enqueued: get(&self.enqueued),
            deduplicated: get(&self.deduplicated),
            leased: get(&self.leased),
            outcomes: Outcome::ALL.iter().copied().zip(self.outcomes.iter().map(get)).collect(),
            stale: get(&self.stale),
            dead: get(&self.dead),
            forgotten: get(&self.forgotten),
            lines: get(&self.lines),
            lines_dropped: get(&self.lines_dropped),
            terms: get(&self.terms),
            pickup: self.pickup.read(),
            run: self.run.read(),
        }
    }
}
