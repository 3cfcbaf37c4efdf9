//! What is counted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::affinity::AffinityEvent;
use crate::wire::RejectReason;

/// What a request is about.
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

/// Where a request ended up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingOutcome {
    /// Here, as it should.
    Local,
    /// On another server.
    Forwarded,
    /// Here, because the servers that were asked did not answer.
    Fallback,
    /// Here, for another server.
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

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts `more`.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// What was counted.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Everything that is counted.
#[derive(Debug, Default)]
pub struct ClusterCounters {
    decisions: [[Counter; RoutingOutcome::ALL.len()]; RequestKind::ALL.len()],
    steps: [Counter; AffinityEvent::ALL.len()],
    rejected: [Counter; RejectReason::ALL.len()],
    /// Affinities that were forgotten because nobody used them.
    pub expired: Counter,
    /// Affinities that were forgotten because their server was gone.
    pub lost: Counter,
    /// Requests that another server did not answer.
    pub failures: Counter,
    /// Breakers that opened.
    pub opened: Counter,
    /// Datagrams sent, once for each server that they went to.
    pub sent: Counter,
    /// Bytes of them.
    pub sent_bytes: Counter,
    /// Datagrams that counted.
    pub received: Counter,
    /// Bytes of all that came.
    pub received_bytes: Counter,
    /// Heartbeats that counted.
    pub heartbeats: Counter,
    /// Notices that were not sent because too many waited.
    pub dropped: Counter,
}

impl ClusterCounters {
    /// Requests of a kind that ended up somewhere.
    pub fn decisions(&self, kind: RequestKind, outcome: RoutingOutcome) -> &Counter {
        &self.decisions[kind as usize][outcome as usize]
    }

    /// What was done with affinities.
    pub fn steps(&self, step: AffinityEvent) -> &Counter {
        &self.steps[step as usize]
    }

    /// Datagrams that were not believed.
    pub fn rejected(&self, reason: RejectReason) -> &Counter {
        &self.rejected[reason as usize]
    }
}
