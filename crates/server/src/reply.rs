//! An answer, before it becomes a hyper response.
//!
//! Every answer carries the headers that let a browser page of another origin read it. They are cloned from one
//! prepared map, which costs less than inserting five headers. Start at [`Reply::into_response`].

use std::sync::LazyLock;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;

use crate::error::{Error, Kind};

/// What a handler answers.
#[derive(Debug)]
pub struct Reply {
    status: StatusCode,
    body: Bytes,
    extra: Vec<(HeaderName, HeaderValue)>,
}

static EMPTY_HEADERS: LazyLock<HeaderMap> = LazyLock::new(|| {
    HeaderMap::from_iter([
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*")),
        (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, PUT, DELETE, OPTIONS")),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("Content-Type, Authorization")),
        (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400")),
    ])
});

static JSON_HEADERS: LazyLock<HeaderMap> = LazyLock::new(|| {
    let mut headers = EMPTY_HEADERS.clone();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers
});

impl Reply {
    /// An answer with a JSON text.
    pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self { status, body: body.into(), extra: Vec::new() }
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
        Self { status: StatusCode::NO_CONTENT, body: Bytes::new(), extra: Vec::new() }
    }

    /// The same answer with one more header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.extra.push((name, value));
        self
    }

    /// The response that hyper sends.
    pub fn into_response(self) -> Response<Full<Bytes>> {
        let template = if self.status == StatusCode::NO_CONTENT { &EMPTY_HEADERS } else { &JSON_HEADERS };
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() = self.status;
        *response.headers_mut() = (**template).clone();
        response.headers_mut().extend(self.extra);
        response
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
