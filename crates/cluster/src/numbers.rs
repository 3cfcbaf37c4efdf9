//! Counters.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::affinity::AffinityEvent;
use crate::wire::RejectReason;

/// The kinds of routed requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A pop.
    Pop,
    /// A push.
    Push,
    /// An ack, or several.
    Ack,
    /// A transaction.
    Transaction,
}

impl RequestKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Pop, Self::Push, Self::Ack, Self::Transaction];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pop => "pop",
            Self::Push => "push",
            Self::Ack => "ack",
            Self::Transaction => "transaction",
        }
    }
}

/// Where a request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingOutcome {
    /// Here, by choice.
    Local,
    /// On another server.
    Forwarded,
    /// Here, because no other server answered.
    Fallback,
    /// Here, forwarded by another server.
    Received,
}

impl RoutingOutcome {
    /// Every outcome.
    pub const ALL: [Self; 4] = [Self::Local, Self::Forwarded, Self::Fallback, Self::Received];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Forwarded => "forwarded",
            Self::Fallback => "fallback",
            Self::Received => "received",
        }
    }
}

/// A counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts `more`.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All counters.
#[derive(Debug, Default)]
pub struct ClusterCounters {
    decisions: [[Counter; RoutingOutcome::ALL.len()]; RequestKind::ALL.len()],
    steps: [Counter; AffinityEvent::ALL.len()],
    rejected: [Counter; RejectReason::ALL.len()],
    /// Affinities that expired.
    pub expired: Counter,
    /// Affinities that were deleted because their server was dead.
    pub lost: Counter,
    /// Requests that another server did not answer.
    pub failures: Counter,
    /// Breakers that opened.
    pub opened: Counter,
    /// Datagrams sent, once for each server that they went to.
    pub sent: Counter,
    /// Bytes of them.
    pub sent_bytes: Counter,
    /// Accepted datagrams.
    pub received: Counter,
    /// Bytes of all received datagrams.
    pub received_bytes: Counter,
    /// Accepted heartbeats.
    pub heartbeats: Counter,
    /// Notices that were dropped because too many waited.
    pub dropped: Counter,
}

impl ClusterCounters {
    /// Requests of a kind with an outcome.
    pub fn decisions(&self, kind: RequestKind, outcome: RoutingOutcome) -> &Counter {
        &self.decisions[kind as usize][outcome as usize]
    }

    /// Affinity events.
    pub fn steps(&self, step: AffinityEvent) -> &Counter {
        &self.steps[step as usize]
    }

    /// Refused datagrams.
    pub fn rejected(&self, reason: RejectReason) -> &Counter {
        &self.rejected[reason as usize]
    }
}
