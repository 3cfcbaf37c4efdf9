//! Queues on PostgreSQL: any number of servers on one database, no other component.
//!
//! Operations of all callers are joined into groups. A group is one database transaction: the decisions say which
//! rows they miss, these are fetched for all of them together unless the last group had them (`carried`), the decisions
//! are run, and what changed is written with a few statements over arrays. So the round trips are counted per group, not
//! per operation. Queues are spread over lanes, each with groups and a connection of its own, as many as make callers wait
//! least (`pace`).
//!
//! Always: **a partition's row stands for everything in it** (its messages, a group's place in it, a lease), and its
//! version changes with any of that. Queues and groups have a number in the same way, and so have records. A commit
//! compares what its decisions looked at, so it fails, and the group runs again, when another server was faster: decisions
//! on one partition run one after the other on all servers together. Time is the database's (`clock`).
//!
//! Comparing is right for a server that has partitions to itself, as routing by affinity makes likely. Where several meet
//! at the same ones it would be in vain most of the time, so after a first failure a server locks partitions when it reads
//! them, for a while: in the order of their numbers; a pop that takes any partition skips those that are locked, and
//! waits for one only when there is no other.
//!
//! Deliberately absent: rules (`baton-queue` has them; no SQL function knows what a retry is), LISTEN/NOTIFY,
//! advisory locks, triggers, any wall clock of a server.
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
mod repair;
#[cfg(test)]
mod rivals;
mod room;
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
