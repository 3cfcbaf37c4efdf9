//! HTTP/1 as this server needs it: few headers, whole bodies, and connections that cost nothing while they wait.
//!
//! A general HTTP library keeps a read and a write buffer for every connection and builds a map of headers for
//! every request; thousands of parked pops pay for both. Always: a connection that waits, for its peer or for a
//! handler, holds no buffer; a request whose end could be read in two ways is refused and its connection closed;
//! answers leave in the order of their requests; every head, body and connection counts against a limit. Deliberately
//! absent: routes, tokens, queues and the codes of errors, which a [`Service`] has; HTTP/2, upgrades, compression,
//! trailers. The only streamed answers are events, and bodies that come from another server. `head`, `chunked` and
//! `answer` decide without a socket; `wire` moves bytes under deadlines. Start at [`Service`], then [`Connection::run`].

mod answer;
mod body;
mod buffer;
mod chunked;
mod connection;
mod connection_slots;
mod decimal;
mod error;
mod head;
mod listener;
pub mod media;
pub mod path;
mod query;
mod reply;
mod service;
mod sites;
mod stream;
mod wire;

pub use body::{Budget, Received};
pub use connection::Connection;
pub use connection_slots::{Limit, Refusals};
pub use decimal::write_decimal;
pub use error::{Error, Kind};
pub use head::{Framing, Head, Version};
pub use listener::{Listener, listen, resolve};
pub use query::{Query, moment};
pub use reply::{ProxiedBody, Reply};
pub use service::{Accepted, Decision, Limits, Running, Service, Traffic};
pub use sites::Sites;
pub use stream::Stream;
