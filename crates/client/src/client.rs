//! The client, where every call starts.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method};
use serde::Serialize;

use crate::connection::{ApiCall, ApiResponse, Transport};
use crate::endpoint::Endpoints;
use crate::retry::RetryPolicy;
use crate::{Error, Health};

/// How long a call that is not a long poll may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Repetitions of a call before its error reaches the caller.
const REPETITIONS_MAX: u32 = 3;

/// Unused connections kept for each server.
const IDLE_CONNECTIONS_MAX: usize = 256;

/// A client of one Baton, or of several that share a store. Cheap to clone; clones share their connections.
///
/// ```
/// let baton = baton_client::Client::new("http://127.0.0.1:6632")?;
/// let orders = baton.queue("orders");
/// # Ok::<(), baton_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    transport: Arc<Transport>,
}

impl Client {
    /// A client of the server at `url`, such as `http://127.0.0.1:6632`. Connects when first used.
    pub fn new(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder().url(url).build()
    }

    /// A client of several servers, with a token, or with other limits.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Reads the health of a server, once; an unhealthy server is [`Error::Unavailable`].
    pub async fn health(&self) -> Result<Health, Error> {
        let call = ApiCall {
            method: Method::GET,
            path: PathAndQuery::from_static("/health"),
            body: Bytes::new(),
            timeout: self.transport.timeout,
            retry_policy: RetryPolicy::Never,
            routing_key: "",
            idempotency_key: None,
        };
        self.transport.call(call).await?.parse()
    }

    /// A call that may be retried, with the default timeout.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: PathAndQuery,
        body: Bytes,
        key: &str,
    ) -> Result<ApiResponse, Error> {
        let timeout = self.transport.timeout;
        self.transport
            .call(ApiCall {
                method,
                path,
                body,
                timeout,
                retry_policy: RetryPolicy::Always,
                routing_key: key,
                idempotency_key: None,
            })
            .await
    }

    /// A POST that may be retried.
    pub(crate) async fn post(
        &self,
        path: PathAndQuery,
        body: &impl Serialize,
        key: &str,
    ) -> Result<ApiResponse, Error> {
        let body = serde_json::to_vec(body).map_err(Error::Payload)?;
        self.call(Method::POST, path, body.into(), key).await
    }

    /// A POST that is not idempotent: it carries an idempotency key, so that the server recognises a retry.
    pub(crate) async fn post_once(
        &self,
        path: PathAndQuery,
        body: &impl Serialize,
        key: &str,
    ) -> Result<ApiResponse, Error> {
        let body = serde_json::to_vec(body).map_err(Error::Payload)?;
        let once = HeaderValue::try_from(baton_env::fresh_uuid().to_string()).ok();
        let timeout = self.transport.timeout;
        let (method, repeat) = (Method::POST, RetryPolicy::Always);
        self.transport
            .call(ApiCall {
                method,
                path,
                body: body.into(),
                timeout,
                retry_policy: repeat,
                routing_key: key,
                idempotency_key: once,
            })
            .await
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }
}

/// Settings of a [`Client`].
#[derive(Clone)]
pub struct Builder {
    urls: Vec<String>,
    token: Option<String>,
    ca: Option<PathBuf>,
    timeout: Duration,
    repetitions_max: u32,
    idle_connections_max: usize,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Everything except the token.
        f.debug_struct("Builder").field("urls", &self.urls).field("ca", &self.ca).finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            token: None,
            ca: None,
            timeout: TIMEOUT,
            repetitions_max: REPETITIONS_MAX,
            idle_connections_max: IDLE_CONNECTIONS_MAX,
        }
    }
}

impl Builder {
    /// Adds a server. With several, the calls of one queue prefer the same one, and go to the others when it fails.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.urls.push(url.into());
        self
    }

    /// Sends this token with every call.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Trusts, for `https` addresses, the certificate authorities in this PEM file instead of those of the system.
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// The timeout of one attempt; 30 seconds by default. A long poll takes its own wait plus 5 seconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How often a call is retried after it failed at every server; 3 by default.
    pub fn retries(mut self, repetitions: u32) -> Self {
        self.repetitions_max = repetitions;
        self
    }

    /// How many unused connections are kept for each server; 256 by default.
    pub fn idle_connections(mut self, max: usize) -> Self {
        self.idle_connections_max = max;
        self
    }

    /// The client.
    pub fn build(self) -> Result<Client, Error> {
        let endpoints = Endpoints::parse(&self.urls, self.ca.as_deref(), self.idle_connections_max)?;
        let connection =
            Transport::new(endpoints, self.token.as_deref(), self.timeout, self.repetitions_max)?;
        Ok(Client { transport: Arc::new(connection) })
    }
}
