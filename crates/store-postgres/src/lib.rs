//! Queues on PostgreSQL: any number of servers on one database, no other component.
//!
//! Operations of all callers are joined into groups. A group is one database transaction: the decisions say which
//! rows they miss, these are fetched and locked for all of them together, the decisions are run, and what changed
//! is written with a few statements over arrays. So the round trips are counted per group, not per operation. Queues
//! are spread over lanes, each with groups and a connection of its own, as many as make callers wait least (`pace`).
//!
//! Always: **a partition's row is its lock.** Whoever changes anything of a partition (its tail, a group's place in
//! it, a lease) holds it until the commit, so decisions on one partition run one after the other on all servers
//! together. Partitions are locked in the order of their numbers; a pop that takes any partition skips those that
//! are locked, and waits for one only when there is no other. Queues and groups are kept in memory and compared by
//! number; records are compared by number at the commit. What a group relied on is either locked or compared, so
//! its commit fails, and the group runs again, when another server was faster. Time is the database's (`clock`).
//!
//! Deliberately absent: rules (`baton-queue` has them; no SQL function knows what a retry is), LISTEN/NOTIFY,
//! advisory locks, triggers, any wall clock of a server. A lock instead of optimistic reads, because producers and
//! consumers of one partition meet all the time and would keep undoing each other's groups.
//!
//! Start at `lanes`, then `writer`, `memory` and `schema`.

mod address;
mod carried;
mod clock;
mod decider;
mod failure;
mod flush;
mod lanes;
mod link;
mod load;
mod memory;
mod pace;
mod remembered;
mod schema;
mod slot;
mod store;
mod structure;
mod sweeper;
mod tx;
mod wanted;
mod wire;
mod writer;

pub use schema::Standing;
pub use store::{Options, PostgresStore, check, migrate};
