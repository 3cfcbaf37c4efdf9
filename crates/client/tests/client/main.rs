//! The client against a tiny HTTP server on a real socket.

mod buffer;
mod calls;
mod consume;
mod retry;
mod support;
