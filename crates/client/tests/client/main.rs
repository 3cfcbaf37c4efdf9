//! The client against a tiny HTTP server on a real socket, and where rules matter against a whole one.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod buffer;
mod calls;
mod consume;
mod places;
mod retry;
mod shards;
mod support;
mod worker;
