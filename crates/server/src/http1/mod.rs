//! HTTP/1 as this server needs it: few headers, whole bodies, and connections that cost nothing while they wait.
//!
//! A general HTTP library keeps a read and a write buffer for every connection and builds a map of headers for
//! every request; thousands of parked pops pay for both. Always: a connection that waits, for its peer or for a
//! handler, holds no buffer; a request whose end could be read in two ways is refused and its connection closed;
//! answers leave in the order of their requests. Deliberately absent: HTTP/2, upgrades, compression, trailers;
//! the only streamed answers are events. `head`, `chunked` and `answer` decide without a socket; `wire` moves bytes under deadlines.
//! Start at [`Connection::run`].

mod answer;
mod buffer;
mod chunked;
mod connection;
mod head;
pub mod media;
mod stream;
mod wire;

pub use connection::Connection;
pub use head::Head;
pub use stream::Stream;
