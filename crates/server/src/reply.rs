//! An answer, before it becomes bytes.
//!
//! Not here: the headers that every answer has (`http1` writes them). Start at [`Reply`].

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::error::{Error, Kind};

/// What a handler answers.
#[derive(Debug)]
pub struct Reply {
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
    extra: Vec<(HeaderName, HeaderValue)>,
    events: Option<mpsc::Receiver<Bytes>>,
}

impl Reply {
    /// An answer with a JSON text.
    pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self::text(status, "application/json", body)
    }

    /// An answer with some other text.
    pub fn text(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self { status, content_type, body: body.into(), extra: Vec::new(), events: None }
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
