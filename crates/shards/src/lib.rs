//! Shards: a fixed set of numbered shards of a service, distributed over its live workers.
//!
//! A worker registers, sends heartbeats, and receives its shards. When workers join, leave or die, or the number of
//! shards changes, the shards are rebalanced. Always: workers with a session never use one shard at the same time,
//! whatever is lost, late, paused or killed, because a shard is granted only after its former owner released it or
//! its lease expired; every grant has a token that only rises; all state is in the store, so a restarted or another
//! server continues. Workers without a session get their shards at once, and may overlap while a message is in
//! flight.
//!
//! Deliberately absent: routing of work to shards (the service does that), a leader among servers (see
//! `service_actor`), sockets (the server has them).
//!
//! Start at [`Service`], then [`allocation::plan`], then [`Shards`].

pub mod allocation;
mod codec;
pub mod limits;
mod options;
mod outcome;
mod ranges;
mod registry;
mod request;
mod service;
mod service_actor;
mod service_record;
mod view;
pub mod wire;

pub use allocation::Allocation;
pub use options::Options;
pub use outcome::{Outcome, ReplyCallback};
pub use ranges::Ranges;
pub use registry::{Shards, SnapshotReceiver, WatcherPermit, first_snapshot};
pub use request::{Heartbeat, Refusal, Request};
pub use service::{Rules, Service, Shard, Status, Worker};
pub use service_actor::ServiceCounters;
pub use view::{Grant, Snapshot, WorkerView};
