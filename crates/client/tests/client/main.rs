//! The client against a tiny HTTP server on a real socket.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod buffer;
mod calls;
mod consume;
mod retry;
mod shards;
mod support;
