//! Calls over kept-alive HTTP connections, with retries and failover as far as they are safe.
//!
//! Always: a body is serialised once and shared by all attempts; attempts, response bytes ([`ANSWER_BYTES_MAX`]) and
//! waits are bounded. Not here: what to retry (`retry`), which server to ask (`endpoint`), sockets (`pool`), what a
//! body means. Start at [`Transport::call`].

use std::sync::Arc;
use std::time::Duration;

use baton_types::{limits, wire};
use bytes::Bytes;
use http::header::{AUTHORIZATION, RETRY_AFTER};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::Full;
use serde::Deserialize;

use crate::Error;
use crate::endpoint::{Endpoint, Endpoints};
use crate::id::IdGenerator;
use crate::retry::{self, FailedAttempt, RetryPolicy};

/// Bytes of a response: the payloads of the largest pop, doubled for the JSON around them.
const ANSWER_BYTES_MAX: usize = 2 * limits::BODY_BYTES_MAX;

/// The response header that lists unknown names of the request.
const IGNORED_NAMES_HEADER: HeaderName = HeaderName::from_static("baton-ignored");

/// Characters of an error response that is not the expected JSON.
const MESSAGE_CHARS_MAX: usize = 300;

/// One request, with all its attempts.
#[derive(Debug)]
pub(crate) struct ApiCall<'a> {
    pub method: Method,
    pub path: PathAndQuery,
    pub body: Bytes,
    /// The timeout of each attempt.
    pub timeout: Duration,
    pub retry_policy: RetryPolicy,
    /// Calls with the same key go to the same server; usually the queue's name.
    pub routing_key: &'a str,
    /// By which the server recognises a retry of a call that is not idempotent.
    pub idempotency_key: Option<HeaderValue>,
}

impl ApiCall<'_> {
    fn request(&self, endpoint: &Endpoint) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = Uri::from(self.path.clone());
        *request.headers_mut() = endpoint.headers.clone();
        if let Some(once) = &self.idempotency_key {
            request.headers_mut().insert(HeaderName::from_static("idempotency-key"), once.clone());
        }
        request
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct ApiResponse {
    pub url: Arc<str>,
    pub status: StatusCode,
    pub body: Bytes,
}

impl ApiResponse {
    /// Parses the body, borrowing from it where the type does.
    pub fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Error> {
        serde_json::from_slice(&self.body).map_err(|e| Error::Protocol {
            url: self.url.to_string(),
            problem: format!("{e} ({})", self.status),
        })
    }

    /// An error for a body that parses but makes no sense.
    pub fn protocol_error(&self, problem: impl Into<String>) -> Error {
        Error::Protocol { url: self.url.to_string(), problem: problem.into() }
    }
}

/// The servers, the connections to them, and how long to try.
#[derive(Debug)]
pub(crate) struct Transport {
    endpoints: Endpoints,
    /// Generates transaction ids.
    pub transaction_ids: IdGenerator,
    /// The timeout of every call that is not a long poll.
    pub timeout: Duration,
    /// Retries after the first attempt at all servers.
    repetitions_max: u32,
}

impl Transport {
    pub fn new(
        endpoints: Endpoints,
        token: Option<&str>,
        timeout: Duration,
        repetitions_max: u32,
    ) -> Result<Self, Error> {
        let endpoints = match token {
            None => endpoints,
            Some(token) => {
                let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| {
                    Error::Invalid("the token holds characters that no header may hold".into())
                })?;
                value.set_sensitive(true);
                endpoints.with_header(AUTHORIZATION, &value)
            }
        };
        Ok(Self { endpoints, transaction_ids: IdGenerator::default(), timeout, repetitions_max })
    }

    /// Sends the call, to every server and again after a wait as far as allowed. Returns the first successful
    /// response.
    pub async fn call(&self, call: ApiCall<'_>) -> Result<ApiResponse, Error> {
        if call.body.len() > limits::BODY_BYTES_MAX {
            let (bytes, max) = (call.body.len(), limits::BODY_BYTES_MAX);
            return Err(Error::Invalid(format!(
                "a request of {bytes} bytes is over the limit of {max}; send less at once"
            )));
        }
        let mut tries = 0;
        loop {
            let failure = match self.try_all_servers(&call).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if tries == self.repetitions_max || !call.retry_policy.allows(&failure) {
                return Err(failure.error);
            }
            let wait = retry::backoff(tries, &failure.error, baton_env::random_u64());
            tracing::debug!(path = %call.path, error = %failure.error, ?wait, "trying again");
            baton_env::sleep(wait).await;
            tries += 1;
        }
    }

    /// Tries every server once.
    async fn try_all_servers(&self, call: &ApiCall<'_>) -> Result<ApiResponse, FailedAttempt> {
        let mut last = None;
        for endpoint in self.endpoints.candidates(call.routing_key) {
            match self.try_server(endpoint, call).await {
                Ok(answer) => {
                    self.endpoints.mark_healthy(endpoint);
                    return Ok(answer);
                }
                Err(failure) => {
                    if matches!(failure.error, Error::Unavailable { .. } | Error::Timeout { .. }) {
                        self.endpoints.mark_failed(endpoint);
                    }
                    if !call.retry_policy.allows(&failure) {
                        return Err(failure);
                    }
                    last = Some(failure);
                }
            }
        }
        Err(last.unwrap_or_else(|| FailedAttempt {
            error: Error::Invalid("no server is known".into()),
            unsent: true,
        }))
    }

    /// Tries one server once.
    async fn try_server(
        &self,
        endpoint: &Endpoint,
        call: &ApiCall<'_>,
    ) -> Result<ApiResponse, FailedAttempt> {
        match tokio::time::timeout(call.timeout, self.exchange(endpoint, call)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let error = Error::Timeout { url: endpoint.url.to_string(), after: call.timeout };
                Err(FailedAttempt { error, unsent: false })
            }
        }
    }

    async fn exchange(&self, endpoint: &Endpoint, call: &ApiCall<'_>) -> Result<ApiResponse, FailedAttempt> {
        let mut outcome = endpoint.pool.exchange(call.request(endpoint), ANSWER_BYTES_MAX, false).await;
        if outcome.as_ref().is_err_and(|broken| broken.stale) && call.retry_policy.is_idempotent() {
            // A kept-alive connection was closed, which is normal and no sign that the server is unhealthy.
            outcome = endpoint.pool.exchange(call.request(endpoint), ANSWER_BYTES_MAX, true).await;
        }
        let (head, body) = outcome.map_err(|broken| {
            let error = Error::Unavailable { url: endpoint.url.to_string(), cause: broken.cause };
            FailedAttempt { error, unsent: broken.unsent }
        })?;
        if let Some(names) = head.headers.get(IGNORED_NAMES_HEADER) {
            tracing::warn!(
                target: "baton_client::ignored",
                path = %call.path,
                ?names,
                "the server does not know these names and ignored them; it may be older than this client"
            );
        }
        if head.status.is_success() {
            return Ok(ApiResponse { url: Arc::clone(&endpoint.url), status: head.status, body });
        }
        // A server that sends Retry-After has done nothing, except for a call that timed out and may still happen.
        let after = retry_after(&head.headers).filter(|_| !outcome_is_unknown(&body));
        let error = Error::from_status(&endpoint.url, head.status, error_message(&body), after);
        Err(FailedAttempt { error, unsent: false })
    }
}

/// The message of an error response.
fn error_message(body: &[u8]) -> String {
    if let Ok(refusal) = serde_json::from_slice::<wire::ErrorBody>(body) {
        return refusal.detail.unwrap_or(refusal.error);
    }
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    if text.is_empty() { "no explanation".into() } else { text.chars().take(MESSAGE_CHARS_MAX).collect() }
}

/// Whether an error response leaves open whether the call happened.
fn outcome_is_unknown(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Coded<'a> {
        code: &'a str,
    }
    serde_json::from_slice::<Coded<'_>>(body).is_ok_and(|refusal| refusal.code == "took_too_long")
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: f64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_in_the_words_of_the_server() {
        assert_eq!(error_message(br#"{"error":"queue is required","code":7}"#), "queue is required");
        let with_reason =
            br#"{"error":"conflict","reason":"stale_fence","detail":"another has it","code":"conflict"}"#;
        assert_eq!(error_message(with_reason), "another has it");
        assert_eq!(error_message(b"<h1>Bad Gateway</h1>"), "<h1>Bad Gateway</h1>");
        assert_eq!(error_message(b""), "no explanation");
    }

    #[test]
    fn only_a_call_that_took_too_long_may_still_happen() {
        assert!(outcome_is_unknown(br#"{"error":"words","code":"took_too_long"}"#));
        assert!(!outcome_is_unknown(br#"{"error":"words","code":"retry"}"#));
        assert!(!outcome_is_unknown(br#"{"error":"words","code":7}"#));
        assert!(!outcome_is_unknown(b"words"));
    }

    #[test]
    fn retry_after_is_seconds() {
        let headers =
            |value: &'static str| HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]);
        assert_eq!(retry_after(&headers("2")), Some(Duration::from_secs(2)));
        assert_eq!(retry_after(&headers("0.5")), Some(Duration::from_millis(500)));
        assert_eq!(retry_after(&headers("-1")), None);
        assert_eq!(retry_after(&headers("Wed, 21 Oct 2026 07:28:00 GMT")), None);
    }
}
