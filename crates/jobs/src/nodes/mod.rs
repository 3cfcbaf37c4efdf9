//! Jobs in a cluster: nodes, who of them owns which jobs, and how ownership moves.
//!
//! Jobs are cut into [`SLICES`] slices by the last digits of their place, so that neighbours are spread. A slice has one
//! owner and an epoch, in one record with all others (`jobs/owners`, see [`Table`]); so every job has an owner, and
//! neither accepting, leasing nor reporting a job writes anything for it. The owner is who consumes the events and logs
//! of its jobs, in order, and publishes them (`channel`); how far it is stands beside its epoch, so the commit that
//! publishes is also the one that proves ownership. Always: an epoch only rises; who shows an old one publishes nothing;
//! only the store's time makes a node dead; losing an owner runs no job again, because a worker's lease does not depend
//! on it. Deliberately absent: a node that serves its own jobs only (any node takes any report), and everything of this
//! on a store that has one user (it owns all, and writes nothing to say so).
//!
//! Rules: [`Table`], [`balance`], [`handoff`], [`Node`]. Edges: `follower` (every node), `orphan` (the leader).

pub mod balance;
pub mod channels;
pub mod dead_nodes;
pub mod handoff;
pub mod membership;
pub mod node_record;
pub mod ownership_record;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod simulation;
