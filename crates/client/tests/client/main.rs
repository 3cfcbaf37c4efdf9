//! The client against a tiny HTTP server on a real socket, and against a whole server where its rules matter.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod buffer;
mod calls;
mod consume;
mod places;
mod retry;
mod shards;
mod support;
mod worker;
