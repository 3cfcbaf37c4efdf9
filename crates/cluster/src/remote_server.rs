//! Another server: its address, its connections, and its counters.
//!
//! A server that restarts at another address gets a new [`RemoteServer`]. Not here: whether it may be asked
//! (`breaker`), and what is sent to it (`forward`).

use std::sync::Arc;

use http::HeaderValue;
use tokio_util::sync::CancellationToken;

use crate::numbers::Counter;
use crate::pool::ConnectionPool;

/// Another server that takes forwarded requests.
#[derive(Debug)]
pub struct RemoteServer {
    /// Its address.
    pub url: Arc<str>,
    /// Cancelled when the server is dead: requests to it are abandoned.
    pub removed: CancellationToken,
    /// Requests that were forwarded to it.
    pub forwarded: Counter,
    /// Forwarded requests that it did not answer.
    pub failed: Counter,
    pub(crate) pool: Arc<ConnectionPool>,
    pub(crate) authority: HeaderValue,
}

impl RemoteServer {
    pub(crate) fn new(url: &Arc<str>, pool: ConnectionPool) -> Option<Self> {
        let authority = url.split_once("://").map(|(_, rest)| rest.trim_end_matches('/'))?;
        Some(Self {
            url: Arc::clone(url),
            removed: CancellationToken::new(),
            forwarded: Counter::default(),
            failed: Counter::default(),
            pool: Arc::new(pool),
            authority: HeaderValue::from_str(authority).ok()?,
        })
    }
}
