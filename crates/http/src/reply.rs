//! An answer, before it becomes bytes.
//!
//! Not here: the headers that every answer has (`answer` writes them). Start at [`Reply`].

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use tokio::sync::mpsc;

use super::error::{Error, Kind};

/// What a handler answers.
#[derive(Debug)]
pub struct Reply {
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
    extra: Vec<(HeaderName, HeaderValue)>,
    events: Option<mpsc::Receiver<Bytes>>,
    proxied: Option<Box<ProxiedBody>>,
    /// The length of a body that arrives behind its head.
    announced: Option<u64>,
}

/// A body of another server's answer that is passed on as it arrives.
pub struct ProxiedBody {
    length: u64,
    passed: u64,
    chunks: mpsc::Receiver<Bytes>,
    /// Called when all of it was passed on, else dropped.
    delivered: Option<Box<dyn FnOnce() + Send>>,
}

impl std::fmt::Debug for ProxiedBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProxiedBody")
            .field("length", &self.length)
            .field("passed", &self.passed)
            .finish_non_exhaustive()
    }
}

impl ProxiedBody {
    /// A body of `length` bytes that arrives as `chunks`. When all of it was passed on, `delivered` is called; where it
    /// breaks off, that is dropped.
    pub fn new(
        length: u64,
        chunks: mpsc::Receiver<Bytes>,
        delivered: Option<Box<dyn FnOnce() + Send>>,
    ) -> Self {
        Self { length, passed: 0, chunks, delivered }
    }

    /// The next part; `None` when there will be no more.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let chunk = ready!(self.chunks.poll_recv(cx));
        self.passed += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        Poll::Ready(chunk)
    }

    /// Whether all parts have come.
    pub fn is_whole(&self) -> bool {
        self.passed == self.length
    }

    /// It was passed on to its end.
    pub fn deliver(self) {
        if let Some(delivered) = self.delivered {
            delivered();
        }
    }
}

impl Reply {
    /// An answer with a JSON text.
    pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self::text(status, "application/json", body)
    }

    /// An answer with some other text.
    pub fn text(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            content_type,
            body: body.into(),
            extra: Vec::new(),
            events: None,
            proxied: None,
            announced: None,
        }
    }

    /// 200 with `value` as JSON.
    pub fn ok<E: From<Error>>(value: &impl Serialize) -> Result<Self, E> {
        Self::of(StatusCode::OK, value)
    }

    /// `status` with `value` as JSON.
    pub fn of<E: From<Error>>(status: StatusCode, value: &impl Serialize) -> Result<Self, E> {
        let body = serde_json::to_vec(value).map_err(|e| Error::new(Kind::Unwritable, e.to_string()))?;
        Ok(Self::json(status, body))
    }

    /// 204: there is nothing to say, and no body to say it in.
    pub fn nothing() -> Self {
        Self::json(StatusCode::NO_CONTENT, Bytes::new())
    }

    /// 200 with server-sent events, until their sender is dropped or the peer leaves.
    pub fn events(events: mpsc::Receiver<Bytes>) -> Self {
        Self { events: Some(events), ..Self::json(StatusCode::OK, Bytes::new()) }
    }

    /// An answer whose body is passed on as it arrives.
    pub fn proxied(status: StatusCode, body: ProxiedBody) -> Self {
        let announced = Some(body.length);
        Self { announced, proxied: Some(Box::new(body)), ..Self::json(status, Bytes::new()) }
    }

    /// The body that is passed on, if this is such an answer.
    pub fn take_proxied(&mut self) -> Option<Box<ProxiedBody>> {
        self.proxied.take()
    }

    /// How long the body is.
    pub fn length(&self) -> u64 {
        self.announced.unwrap_or(self.body.len() as u64)
    }

    /// The events, if this is a stream of them.
    pub fn take_events(&mut self) -> Option<mpsc::Receiver<Bytes>> {
        self.events.take()
    }

    /// The same answer with one more header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.extra.push((name, value));
        self
    }

    /// Whether it has this header beyond the usual ones.
    pub fn has_header(&self, name: &HeaderName) -> bool {
        self.header(name).is_some()
    }

    /// The status, the type of the body, the headers beyond the usual ones, and the body.
    pub fn into_parts(self) -> (StatusCode, &'static str, Vec<(HeaderName, HeaderValue)>, Bytes) {
        (self.status, self.content_type, self.extra, self.body)
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The body, unless it arrives later.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The header of that name beyond the usual ones.
    pub fn header(&self, name: &HeaderName) -> Option<&HeaderValue> {
        self.extra.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }
}
