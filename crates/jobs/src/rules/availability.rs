//! Availability: since when the servers could hear workers without a gap.
//!
//! A worker is dead when it was silent for a whole lease in which a server could have received its heartbeats. While
//! all servers or their store are away, heartbeats are lost and leases end. So after a gap an execution that began
//! before it keeps its lease for a full term. Always: a gap is measured in store time, from the last moment at which
//! the leader is known to have run; a new leader reads that moment from the store, where each renewal of the leader's
//! lease writes it. A gap counts if it is longer than [`Availability::tolerated`], so a worker can miss no more than
//! that before its lease ends. Not here: what happens when a lease ends (`timeouts`). Start at
//! [`Availability::extend`].

use std::time::Duration;

use baton_store::{Tx, TxError};
use baton_types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::keys;
use crate::model::policy::Policy;
use crate::storage::{Abort, JobsTx};

/// A time without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Availability {
    /// Its beginning.
    pub since: Timestamp,
    /// Its last known moment.
    pub until: Timestamp,
}

impl Availability {
    /// The longest gap that does not count: half of what a lease is longer than the pause between heartbeats.
    pub fn tolerated(policy: &Policy) -> Duration {
        (policy.lease.saturating_sub(policy.heartbeat) / 2).max(Duration::from_secs(1))
    }

    /// Extends the time up to now, or starts a new one after a gap. `known` is what the leader itself remembers.
    pub fn extend(known: Option<Self>, tx: &mut JobsTx<'_>) -> Result<Self, Abort> {
        let now = tx.now();
        let last = match known {
            Some(known) => Some(known),
            None => tx.record(keys::AVAILABILITY)?.and_then(|value| serde_json::from_slice(&value).ok()),
        };
        let unbroken = last.filter(|last: &Self| now.since(last.until) <= Self::tolerated(&tx.policy));
        Ok(Self { since: unbroken.map_or(now, |last| last.since), until: now })
    }

    /// Stores it for the next leader.
    pub fn save(&self, tx: &mut dyn Tx) -> Result<(), TxError> {
        tx.put_record(keys::AVAILABILITY, serde_json::to_vec(self).unwrap_or_default().into(), None).map(drop)
    }
}
