//! Forwarding: passes a request on to another server, and its response back.
//!
//! Always: a request is forwarded once, since the server that gets it serves it. Each has a time limit, and is
//! abandoned at once when its server is found dead. Long responses are streamed. The breaker gets every outcome. Not
//! here: what to do after a failure. Start at [`Cluster::forward`].

use std::sync::Arc;
use std::time::Duration;

use baton_types::LeaseId;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use tokio::sync::mpsc;

use crate::cluster::Cluster;
use crate::limits::WHOLE_ANSWER_BYTES_MAX;
use crate::pool::ForwardError;
use crate::remote_server::RemoteServer;

/// On a request and on its response: the server that forwarded the request.
pub const FORWARDED_BY: HeaderName = HeaderName::from_static("x-forwarded-by");
/// On a response: the server that served it.
pub const SERVED_BY: HeaderName = HeaderName::from_static("x-served-by");
/// On a response: another server should have served the request.
pub const FALLBACK: HeaderName = HeaderName::from_static("x-fallback");
/// On a forwarded request: the cluster, and for a pop the lease to take, separated by a space.
pub const ATTEMPT: HeaderName = HeaderName::from_static("x-forwarded-attempt");
/// The key under which a call may be repeated.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// On the response to a forwarded pop: the claimed partitions, each with the hash of its queue's name.
pub const CLAIMS: HeaderName = HeaderName::from_static("x-claims");

/// How much later than its wait the response to a forwarded request may come.
const LATE_ANSWER_MAX: Duration = Duration::from_millis(500);

/// Chunks of a streamed response in the channel.
const CHUNKS_MAX: usize = 8;

/// A request to forward.
#[derive(Clone, Debug)]
pub struct ForwardRequest {
    /// Its method.
    pub method: Method,
    /// Its path and query, unchanged.
    pub target: String,
    /// Its token, unchanged.
    pub authorization: Option<HeaderValue>,
    /// Its idempotency key, unchanged.
    pub idempotency_key: Option<HeaderValue>,
    /// Its body.
    pub body: Bytes,
    /// The lease that a pop takes.
    pub attempt: Option<LeaseId>,
    /// How long the request may wait, beyond the usual time limit.
    pub wait: Duration,
}

impl ForwardRequest {
    /// The time limit. A long poll is late when its wait is over, and can then be served elsewhere.
    fn limit(&self, timeout: Duration) -> Duration {
        if self.wait.is_zero() { timeout } else { self.wait + timeout.min(LATE_ANSWER_MAX) }
    }
}

/// The response of another server.
#[derive(Debug)]
pub struct ForwardedResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers for the caller, and the server that served it.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The partitions that a pop claimed.
    pub claims: Option<HeaderValue>,
    /// The body.
    pub body: ForwardedBody,
}

/// The body of a response.
#[derive(Debug)]
pub enum ForwardedBody {
    /// A complete body.
    Whole(Bytes),
    /// A streamed body.
    Streaming {
        /// Its full length.
        length: u64,
        /// The chunks. If they end early, the rest will not come.
        chunks: mpsc::Receiver<Bytes>,
    },
}

impl Cluster {
    /// Forwards a request to `server`.
    pub async fn forward(
        &self,
        server: &Arc<str>,
        outbound: &ForwardRequest,
    ) -> Result<ForwardedResponse, ForwardError> {
        let Some(peer) = self.peer(server) else {
            return Err(ForwardError::Unsent(format!("{server} is not asked just now")));
        };
        peer.forwarded.add(1);
        // A request that its caller abandons gives no information about the server.
        let mut verdict = BreakerReport { cluster: self, server, outcome: None };
        let exchange = self.exchange(&peer, outbound);
        let limit = outbound.limit(self.options().timeout);
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(limit, exchange) => outcome
                .unwrap_or_else(|_| Err(ForwardError::Unknown(format!("no answer within {limit:?}")))),
            () = peer.removed.cancelled() => Err(ForwardError::Unknown("the server is gone".into())),
        };
        verdict.outcome = Some(outcome.is_ok());
        drop(verdict);
        if let Err(failure) = &outcome {
            peer.failed.add(1);
            tracing::debug!(%server, %failure, "a forwarded request was not answered");
        }
        outcome
    }

    async fn exchange(
        &self,
        peer: &Arc<RemoteServer>,
        outbound: &ForwardRequest,
    ) -> Result<ForwardedResponse, ForwardError> {
        let request = self.request(peer, outbound).map_err(|e| ForwardError::Unsent(e.to_string()))?;
        let (sender, response) = peer.pool.send(request).await?;
        if response.status() == StatusCode::MISDIRECTED_REQUEST {
            return Err(ForwardError::Unsent("another cluster has its address".into()));
        }
        self.receive(peer, sender, response).await
    }

    fn request(
        &self,
        peer: &RemoteServer,
        outbound: &ForwardRequest,
    ) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut attempt = format!("{:016x}", self.options().seal.cluster());
        if let Some(lease) = outbound.attempt {
            attempt.push_str(&format!(" {lease}"));
        }
        let mut request = Request::builder()
            .method(outbound.method.clone())
            .uri(outbound.target.as_str())
            .header(HOST, peer.authority.clone())
            .header(FORWARDED_BY, &*self.options().id)
            .header(ATTEMPT, attempt);
        if let Some(token) = &outbound.authorization {
            request = request.header(AUTHORIZATION, token.clone());
        }
        if let Some(key) = &outbound.idempotency_key {
            request = request.header(IDEMPOTENCY_KEY, key.clone());
        }
        if !outbound.body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        request.body(Full::new(outbound.body.clone()))
    }

    async fn receive(
        &self,
        peer: &Arc<RemoteServer>,
        sender: SendRequest<Full<Bytes>>,
        response: Response<Incoming>,
    ) -> Result<ForwardedResponse, ForwardError> {
        let (head, body) = response.into_parts();
        let length = content_length(&head.headers);
        let kept = [CONTENT_TYPE, RETRY_AFTER, SERVED_BY];
        let headers =
            kept.into_iter().filter_map(|name| Some((name.clone(), head.headers.get(&name)?.clone())));
        let headers = headers.collect();
        let claims = head.headers.get(&CLAIMS).cloned();
        let body = match length {
            Some(length) if length > WHOLE_ANSWER_BYTES_MAX => {
                let (chunks, passing) = mpsc::channel(CHUNKS_MAX);
                let pump = stream_response(Arc::clone(peer), sender, body, chunks, self.options().timeout);
                tokio::spawn(pump);
                ForwardedBody::Streaming { length, chunks: passing }
            }
            _ => {
                let max = usize::try_from(WHOLE_ANSWER_BYTES_MAX).unwrap_or(usize::MAX);
                let whole = Limited::new(body, max).collect().await;
                let whole = whole.map_err(|e| ForwardError::Unknown(format!("the answer broke off: {e}")))?;
                peer.pool.return_idle(sender);
                ForwardedBody::Whole(whole.to_bytes())
            }
        };
        Ok(ForwardedResponse { status: head.status, headers, claims, body })
    }
}

/// Streams a long response. It ends early when the response stalls, breaks off, or the caller is gone.
async fn stream_response(
    peer: Arc<RemoteServer>,
    sender: SendRequest<Full<Bytes>>,
    mut body: Incoming,
    chunks: mpsc::Sender<Bytes>,
    stall: Duration,
) {
    loop {
        let frame = tokio::select! {
            frame = tokio::time::timeout(stall, body.frame()) => frame,
            () = peer.removed.cancelled() => return,
            () = chunks.closed() => return,
        };
        match frame {
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data()
                    && chunks.send(data).await.is_err()
                {
                    return;
                }
            }
            Ok(None) => return peer.pool.return_idle(sender),
            Ok(Some(Err(_))) | Err(_) => return,
        }
    }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reports a request's outcome to the breaker, also when its future is dropped.
struct BreakerReport<'a> {
    cluster: &'a Cluster,
    server: &'a Arc<str>,
    outcome: Option<bool>,
}

impl Drop for BreakerReport<'_> {
    fn drop(&mut self) {
        self.cluster.record_outcome(self.server, self.outcome);
    }
}
