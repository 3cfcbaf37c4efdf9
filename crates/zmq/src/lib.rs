//! The ZeroMQ socket for workers of shards: JSON messages on a ROUTER socket, as existing workers send them from
//! DEALER sockets.
//!
//! It lets workers written for the older coordinator connect unchanged. Always: no peer delays another, nothing that
//! a peer sends ends the socket, and every queue, rate and number of connections is bounded. Not here: the rules of
//! shards (`baton-shards`). The protocol and its cryptography come from a library; `router` and `peer` are the only
//! files that name it.
//!
//! Start at [`ShardSocket`].

mod idle;
mod peer;
mod router;
mod socket;

pub use router::{check_public_key, check_secret_key};
pub use socket::{Options, ShardSocket};
