//! Jobs in a cluster: nodes, which node owns which jobs, and how ownership moves.
//!
//! Jobs are divided into [`SLICES`] slices by the last digits of their offset, so that neighbours are spread. A slice
//! has one owner and an epoch, in one record with all others (`jobs/owners`, see [`OwnershipTable`]). So every job has an
//! owner, and enqueuing, leasing or reporting a job writes nothing for it. The owner consumes the events and logs of
//! its jobs, in order, and publishes them (`channels`). Its read position is stored beside its epoch, so the commit
//! that publishes also proves the ownership. Always: an epoch only rises; a node with an old epoch publishes nothing;
//! only the store's time makes a node dead; losing an owner runs no job again, because a worker's lease does not
//! depend on it. Deliberately absent: a node that serves only its own jobs (any node takes any report), and all of
//! this on a store with one server (which owns everything, and writes nothing to say so).
//!
//! Rules: [`OwnershipTable`], [`balance`], [`handoff`], [`Node`]. Tasks: `membership` (every node), `dead_nodes` (the leader).

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
