//! A pool of kept-alive connections to one peer.
//!
//! Always: a connection serves one request at a time; an abandoned request closes its connection, which tells the
//! peer to stop; an error says whether the request can have reached the peer. Not here: time limits other than that
//! of connecting (`forward`). Start at [`ConnectionPool::send`].

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_tls::TlsClient;
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::limits::{IDLE_CONNECTION_MAX, IDLE_CONNECTIONS_MAX};

type Sender = SendRequest<Full<Bytes>>;

/// Why a request has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// It never reached the peer.
    #[error("{0}")]
    Unsent(String),
    /// It may have reached the peer.
    #[error("{0}")]
    Unknown(String),
}

/// The connections to one peer.
#[derive(Debug)]
pub struct ConnectionPool {
    host: String,
    port: u16,
    trust: Option<TlsClient>,
    connect_timeout: Duration,
    /// The connection used last is used first. Never locked across an await.
    idle: Mutex<Vec<(Sender, Stopwatch)>>,
}

impl ConnectionPool {
    /// Connections to the server at `url`; `None` when that is no address. `trust` is for a server with TLS.
    pub fn new(url: &str, trust: Option<&TlsClient>, connect_timeout: Duration) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let (port, trust) = match uri.scheme_str()? {
            "http" => (80, None),
            "https" => (443, Some(trust?.clone())),
            _ => return None,
        };
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(port);
        (!host.is_empty()).then(|| Self { host, port, trust, connect_timeout, idle: Mutex::default() })
    }

    /// Sends a request. When the response was read to its end, [return](Self::return_idle) the connection.
    pub async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Sender, Response<Incoming>), ForwardError> {
        loop {
            let idle = self.take_idle();
            let is_used = idle.is_some();
            let mut sender = match idle {
                Some(sender) => sender,
                None => self.connect().await.map_err(ForwardError::Unsent)?,
            };
            if sender.ready().await.is_err() && is_used {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((sender, response)),
                Err(mut refused) => match refused.take_message() {
                    Some(unsent) if is_used => request = unsent,
                    Some(_) => return Err(ForwardError::Unsent(refused.into_error().to_string())),
                    None => return Err(ForwardError::Unknown(refused.into_error().to_string())),
                },
            }
        }
    }

    async fn connect(&self) -> Result<Sender, String> {
        match tokio::time::timeout(self.connect_timeout, self.open()).await {
            Ok(opened) => opened.map_err(|e| e.to_string()),
            Err(_) => Err(format!("no connection within {:?}", self.connect_timeout)),
        }
    }

    async fn open(&self) -> Result<Sender, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        // The driver task ends with its connection; the request that used the connection gets the error.
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
        while let Some((sender, since)) = idle.pop() {
            if !sender.is_closed() && since.elapsed() < IDLE_CONNECTION_MAX {
                return Some(sender);
            }
        }
        None
    }

    /// Keeps a connection for the next request.
    pub fn return_idle(&self, sender: Sender) {
        let mut idle = self.lock_idle();
        if idle.first().is_some_and(|(_, since)| since.elapsed() >= IDLE_CONNECTION_MAX) {
            idle.retain(|(_, since)| since.elapsed() < IDLE_CONNECTION_MAX);
        }
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push((sender, Stopwatch::start()));
        }
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<(Sender, Stopwatch)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_of_http_is_one() {
        let of = |url: &str| ConnectionPool::new(url, None, Duration::from_secs(1)).map(|p| (p.host, p.port));
        assert_eq!(of("http://10.0.0.1:6632"), Some(("10.0.0.1".into(), 6632)));
        assert_eq!(of("http://[::1]:1"), Some(("::1".into(), 1)));
        for url in ["", "10.0.0.1:6632", "ftp://a:1", "https://a:1", "http://:6632", "/path"] {
            assert_eq!(of(url), None, "{url}");
        }
    }

    #[tokio::test]
    async fn a_peer_that_is_not_there_was_not_reached() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let pool = ConnectionPool::new(&url, None, Duration::from_secs(1)).unwrap();
        let failure = pool.send(Request::new(Full::default())).await.unwrap_err();
        assert!(matches!(failure, ForwardError::Unsent(_)), "{failure:?}");
    }
}
