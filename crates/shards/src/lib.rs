//! Shards: numbered pieces of a service's work, spread over the workers that are there.
//!
//! A worker registers and beats; it is told which shards are its own. When workers come, go or fall silent, or when the
//! number of shards changes, the shards are spread anew. Always: workers that take part with a session never use one
//! shard at the same time, whatever is lost, late, paused or killed, because a shard is granted only after its former
//! owner has given it up or its lease has run out; every grant has a token that only rises; all of it is in the store,
//! so a restarted or another server goes on. Workers without a session are told their shards at once, and may overlap
//! for as long as the message is on its way.
//!
//! Deliberately absent: routing of work to shards (that is the service's), a leader among servers (see `service_actor`),
//! sockets (the server has them).
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
