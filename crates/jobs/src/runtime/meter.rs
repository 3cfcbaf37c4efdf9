//! Counters and distributions since the server started.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use baton_store::{DURATION_BOUNDS, Distribution, Histogram};

use crate::model::ownership::{HandoffCase, OwnershipReason};
use crate::model::state::Outcome;
use crate::storage::Counts;

/// The counters.
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
    leads: AtomicBool,
    handoffs: [AtomicU64; 4],
    claims: [AtomicU64; 4],
    orphans: AtomicU64,
    rebalanced: AtomicU64,
    misfires: AtomicU64,
    overlapped: AtomicU64,
    pickup: Histogram,
    run: Histogram,
    lateness: Histogram,
}

/// A copy of the counters.
#[derive(Clone, Debug)]
pub struct JobCounters {
    /// Jobs accepted.
    pub enqueued: u64,
    /// Enqueued jobs that existed already.
    pub deduplicated: u64,
    /// Jobs leased to workers.
    pub leased: u64,
    /// Executions that ended, by outcome.
    pub outcomes: Vec<(Outcome, u64)>,
    /// Requests refused because of an old fence.
    pub stale: u64,
    /// Jobs that became dead letters.
    pub dead: u64,
    /// Jobs deleted after their retention.
    pub forgotten: u64,
    /// Log lines stored.
    pub lines: u64,
    /// Log lines dropped beyond the limit of an execution.
    pub lines_dropped: u64,
    /// How often this node became leader.
    pub terms: u64,
    /// Whether this node leads, as far as it knows.
    pub is_leader: bool,
    /// Slices of jobs that this node handed over when it drained, by case A to D.
    pub handoffs: [u64; 4],
    /// Slices of jobs that this node claimed, by reason.
    pub claims: [(OwnershipReason, u64); 4],
    /// Slices of dead nodes that this node offered.
    pub orphans: u64,
    /// Slices that this node moved to balance the load.
    pub rebalanced: u64,
    /// Checks of schedules that found missed fires.
    pub misfires: u64,
    /// Fires that enqueued no job because of the last one.
    pub overlapped: u64,
    /// How late fires were, in microseconds.
    pub lateness: Distribution,
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
            leads: AtomicBool::new(false),
            handoffs: Default::default(),
            claims: Default::default(),
            orphans: AtomicU64::default(),
            rebalanced: AtomicU64::default(),
            misfires: AtomicU64::default(),
            overlapped: AtomicU64::default(),
            lateness: Histogram::new(DURATION_BOUNDS),
            pickup: Histogram::new(DURATION_BOUNDS),
            run: Histogram::new(DURATION_BOUNDS),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Meter {
    /// Adds the counts of one commit.
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
        add(&self.misfires, counts.misfires);
        add(&self.overlapped, counts.overlapped);
        counts.fired.iter().for_each(|late| self.lateness.observe(micros(*late)));
        counts.leased.iter().for_each(|waited| self.pickup.observe(micros(*waited)));
        for (outcome, ran) in &counts.ended {
            add(&self.outcomes[*outcome as usize], 1);
            self.run.observe(micros(*ran));
        }
    }

    /// This node became leader.
    pub fn became_leader(&self) {
        self.terms.fetch_add(1, Ordering::Relaxed);
        self.leads.store(true, Ordering::Relaxed);
    }

    /// This node is no longer leader.
    pub fn was_leader(&self) {
        self.leads.store(false, Ordering::Relaxed);
    }

    /// Counts slices that this node handed over or left behind.
    pub fn handed_over(&self, case: HandoffCase, slices: u64) {
        self.handoffs[case as usize].fetch_add(slices, Ordering::Relaxed);
    }

    /// Counts slices that this node claimed.
    pub fn claimed(&self, reason: OwnershipReason, slices: u64) {
        self.claims[reason as usize].fetch_add(slices, Ordering::Relaxed);
    }

    /// Counts slices of dead nodes that this node offered.
    pub fn orphaned(&self, slices: u64) {
        self.orphans.fetch_add(slices, Ordering::Relaxed);
    }

    /// Counts slices that this node moved to balance the load.
    pub fn rebalanced(&self, slices: u64) {
        self.rebalanced.fetch_add(slices, Ordering::Relaxed);
    }

    /// A copy of the counters.
    pub fn numbers(&self) -> JobCounters {
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        JobCounters {
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
            is_leader: self.leads.load(Ordering::Relaxed),
            handoffs: HandoffCase::ALL.map(|case| get(&self.handoffs[case as usize])),
            claims: OwnershipReason::ALL.map(|reason| (reason, get(&self.claims[reason as usize]))),
            orphans: get(&self.orphans),
            rebalanced: get(&self.rebalanced),
            misfires: get(&self.misfires),
            overlapped: get(&self.overlapped),
            lateness: self.lateness.snapshot(),
            pickup: self.pickup.snapshot(),
            run: self.run.snapshot(),
        }
    }
}
