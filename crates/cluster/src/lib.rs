//! A cluster of servers on one store: they exchange hints, and each request is forwarded to the server that serves it
//! best.
//!
//! Any server can serve any request, since all of them share the store; the cluster only improves speed. Always:
//! gossip is a hint, so loss, delay, repetition and forgery of datagrams cost time, never correctness; gossip decides
//! no ownership; decisions do no I/O (`wire`, `membership`, `presence`, `load`, `affinity`, `breaker`, `router`), and
//! the I/O modules make no decisions (`gossip`, `pool`, `forward`). Deliberately absent: agreement between servers,
//! which the store provides. Start at [`Router`], then [`Cluster`], then [`Gossip`].

pub mod affinity;
pub mod breaker;
mod cluster;
pub mod forward;
mod gossip;
pub mod limits;
pub mod load;
pub mod membership;
pub mod numbers;
mod peers;
mod pool;
pub mod presence;
mod remote_server;
pub mod router;
mod view;
pub mod wire;

pub use cluster::{Cluster, InFlightGuard, Notice, Options};
pub use forward::{ForwardRequest, ForwardedBody, ForwardedResponse};
pub use gossip::{BindError, Gauge, Gossip, Listener, LoadSample};
pub use numbers::{RequestKind, RoutingOutcome};
pub use peers::PeerView;
pub use pool::ForwardError;
pub use router::{Policy, PopTarget, Router};
pub use view::{ClusterView, ServerView};
pub use wire::{DatagramSeal, GossipMessage, WaitingGroup, name_hash};
