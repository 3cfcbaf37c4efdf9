//! An answer, before it becomes bytes.
//!
//! Not here: the headers that every answer has (`http1` writes them). Start at [`Reply`].

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::cluster::Attempt;
use crate::error::{Error, Kind};
use crate::ignored::{self, Ignored};

/// What a handler answers.
#[derive(Debug)]
pub struct Reply {
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
    extra: Vec<(HeaderName, HeaderValue)>,
    events: Option<mpsc::Receiver<Bytes>>,
    passage: Option<Box<Passage>>,
    /// The length of a body that arrives behind its head.
    announced: Option<u64>,
}

/// A body of another server's answer that is passed on as it arrives.
#[derive(Debug)]
pub struct Passage {
    length: u64,
    passed: u64,
    chunks: mpsc::Receiver<Bytes>,
    /// What has to be given back if it does not arrive.
    attempt: Option<Attempt>,
}

impl Passage {
    pub(crate) fn new(length: u64, chunks: mpsc::Receiver<Bytes>, attempt: Option<Attempt>) -> Self {
        Self { length, passed: 0, chunks, attempt }
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
    pub fn arrived(self) {
        if let Some(attempt) = self.attempt {
            attempt.arrived();
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
            passage: None,
            announced: None,
        }
    }

    /// 200 with `value` as JSON.
    pub fn ok(value: &impl Serialize) -> Result<Self, Error> {
        Self::of(StatusCode::OK, value)
    }

    /// `status` with `value` as JSON.
    pub fn of(status: StatusCode, value: &impl Serialize) -> Result<Self, Error> {
        let body = serde_json::to_vec(value).map_err(|e| Error::new(Kind::Internal, e.to_string()))?;
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
    pub(crate) fn passing(status: StatusCode, passage: Passage) -> Self {
        let announced = Some(passage.length);
        Self { announced, passage: Some(Box::new(passage)), ..Self::json(status, Bytes::new()) }
    }

    /// The body that is passed on, if this is such an answer.
    pub fn take_passage(&mut self) -> Option<Box<Passage>> {
        self.passage.take()
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

    /// The same answer with the header that lists what its route ignored, if it did and the answer has none.
    #[must_use]
    pub fn listing(self, ignored: &Ignored) -> Self {
        match HeaderValue::from_str(&ignored.to_string()) {
            Ok(value) if !ignored.is_empty() && !self.has_header(&ignored::HEADER) => {
                self.with_header(ignored::HEADER, value)
            }
            _ => self,
        }
    }

    /// Whether it has this header beyond the usual ones.
    pub fn has_header(&self, name: &HeaderName) -> bool {
        self.extra.iter().any(|(known, _)| known == name)
    }

    /// The status, the type of the body, the headers beyond the usual ones, and the body.
    pub fn into_parts(self) -> (StatusCode, &'static str, Vec<(HeaderName, HeaderValue)>, Bytes) {
        (self.status, self.content_type, self.extra, self.body)
    }

    #[cfg(test)]
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    #[cfg(test)]
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    #[cfg(test)]
    pub(crate) fn header(&self, name: HeaderName) -> Option<&HeaderValue> {
        self.extra.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }
}
