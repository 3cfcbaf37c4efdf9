//! A store on PostgreSQL: any number of servers share one database and need no other component.
//!
//! Operations of all callers form commit batches. A batch is one database transaction with optimistic
//! concurrency control. One round trip fetches the rows that the decisions miss and the last batch did not
//! leave in memory (`state::row_cache`). The decisions run in memory. A few statements over arrays write what
//! changed. So the number of round trips depends on the batches and not on the operations. A server has
//! one writer with one connection (`writer::task`); more servers bring more writers.
//!
//! Always: **a partition's row stands for everything in it** (its messages, a group's cursor, a lease), and
//! its version changes with any of that. The catalog of queues and groups has a version in the same way, and
//! so have the records. A commit validates the versions of its read set. If another server changed one
//! first, the commit fails and the batch runs again. So decisions on one partition are serializable across
//! all servers. Time is the database's (`state::hybrid_clock`).
//!
//! Optimistic validation suits a server that has partitions to itself, as routing by affinity makes likely.
//! Where servers contend for the same partitions most validations would fail. So after a conflict a writer
//! locks partitions when it reads them, for some batches (`writer::lock_mode`), in the order of their
//! numbers. A pop of any partition skips those that are locked, and waits for one only when no other is
//! ready.
//!
//! Deliberately absent: rules (`baton-queue` has them; no SQL function knows what a retry is), LISTEN/NOTIFY,
//! advisory locks, triggers, any wall clock of a server.
//!
//! Start at `writer`, then `state::batch`, `commit` and `schema`.

mod client;
mod commit;
mod context;
mod fetch;
mod maintenance;
mod schema;
mod state;
mod store;
#[cfg(test)]
mod two_server_model;
mod tx;
mod writer;

pub use schema::SchemaStatus;
pub use store::{Options, PostgresStore, check, migrate};
