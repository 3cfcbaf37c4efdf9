//! A pool of kept-alive connections to one server.
//!
//! A stack of idle connections on top of hyper's own, because every call uses it: measured on small pushes, a
//! general-purpose pool cost as much as the request itself. Always: one call uses a connection at a time; a
//! connection whose call was abandoned is closed; a request that found its connection closed, and so was never sent,
//! uses another. Not here: a bound on connections in use (the number of callers bounds it).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_tls::TlsClient;
use bytes::Bytes;
use http::uri::Authority;
use http::{Request, response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::error::Cause;

/// The timeout of a connection attempt, with or without TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an unused connection is kept; servers and balancers commonly close theirs after a minute.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// The port of an address that names none, with and without TLS.
const DEFAULT_PORTS: (u16, u16) = (443, 80);

/// The connections to one server.
#[derive(Debug)]
pub(crate) struct ConnectionPool {
    host: String,
    port: u16,
    /// The trusted authorities, for a server with TLS.
    trust: Option<TlsClient>,
    /// The connection used last is used first, so that spare ones expire. Never locked across an await.
    idle: Mutex<Vec<IdleConnection>>,
    idle_max: usize,
}

#[derive(Debug)]
struct IdleConnection {
    sender: Sender,
    since: Stopwatch,
}

type Sender = SendRequest<Full<Bytes>>;

/// Why there is no response.
pub(crate) struct ExchangeError {
    pub cause: Cause,
    /// Whether the request was certainly never sent.
    pub unsent: bool,
    /// Whether the connection had been used before, so that the server may have closed it meanwhile.
    pub stale: bool,
}

impl ConnectionPool {
    pub fn new(authority: &Authority, trust: Option<TlsClient>, idle_max: usize) -> Self {
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let default_port = if trust.is_some() { DEFAULT_PORTS.0 } else { DEFAULT_PORTS.1 };
        let port = authority.port_u16().unwrap_or(default_port);
        Self { host, port, trust, idle: Mutex::default(), idle_max }
    }

    /// Sends a request and reads its whole response, up to `bytes_max`; over a new connection when `fresh`.
    pub async fn exchange(
        &self,
        mut request: Request<Full<Bytes>>,
        bytes_max: usize,
        fresh: bool,
    ) -> Result<(response::Parts, Bytes), ExchangeError> {
        let (sender, response) = loop {
            let idle = if fresh { None } else { self.take_idle() };
            let stale = idle.is_some();
            let mut sender = match idle {
                Some(sender) => sender,
                None => self.connect().await.map_err(|cause| ExchangeError { cause, unsent: true, stale })?,
            };
            if sender.ready().await.is_err() && stale {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => break (sender, response),
                Err(mut refused) => match refused.take_message() {
                    Some(unsent) if stale => request = unsent,
                    message => {
                        let unsent = message.is_some();
                        return Err(ExchangeError { cause: refused.into_error().into(), unsent, stale });
                    }
                },
            }
        };
        let (head, body) = response.into_parts();
        let body = Limited::new(body, bytes_max).collect().await;
        let body = body.map_err(|cause| ExchangeError { cause, unsent: false, stale: false })?.to_bytes();
        // The connection may not be ready yet; the next caller waits for that.
        self.return_idle(sender);
        Ok((head, body))
    }

    async fn connect(&self) -> Result<Sender, Cause> {
        tokio::time::timeout(CONNECT_TIMEOUT, self.open())
            .await
            .map_err(|_| format!("no connection within {CONNECT_TIMEOUT:?}"))?
    }

    async fn open(&self) -> Result<Sender, Cause> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        // The driver task ends with its connection; the call that used the connection gets the error.
        match &self.trust {
            None => {
                let (sender, connection) = handshake(TokioIo::new(stream)).await?;
                tokio::spawn(connection);
                Ok(sender)
            }
            Some(trust) => {
                let stream = trust.connect(&self.host, stream).await?;
                let (sender, connection) = handshake(TokioIo::new(stream)).await?;
                tokio::spawn(connection);
                Ok(sender)
            }
        }
    }

    fn take_idle(&self) -> Option<Sender> {
        let mut idle = self.lock_idle();
        while let Some(last) = idle.pop() {
            if !last.sender.is_closed() && last.since.elapsed() < IDLE_TIMEOUT {
                return Some(last.sender);
            }
        }
        None
    }

    fn return_idle(&self, sender: Sender) {
        let mut idle = self.lock_idle();
        if idle.first().is_some_and(|oldest| oldest.since.elapsed() >= IDLE_TIMEOUT) {
            idle.retain(|one| one.since.elapsed() < IDLE_TIMEOUT);
        }
        if idle.len() < self.idle_max {
            idle.push(IdleConnection { sender, since: Stopwatch::start() });
        }
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<IdleConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
