//! Answers as bytes.
//!
//! Always: one small answer is one run of bytes, so that it leaves with one write; a large body is not copied.
//! Start at [`Outgoing::new`].

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;

use super::decimal::write_decimal;
use super::head::Version;
use super::reply::Reply;

/// What asks for a body that its sender announced.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The head of a stream of events, which ends with its connection, up to the headers for a page of another site.
pub const EVENTS: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\n\
    connection: close\r\n";

/// Bodies up to this many bytes are copied behind their head, which costs less than a second slice.
const COPIED_BYTES_MAX: usize = 8 << 10;

/// How an answer has to be written.
#[derive(Clone, Debug)]
pub struct ResponseFraming {
    /// The version that the request spoke.
    pub version: Version,
    /// Whether the connection can be used again.
    pub keep_alive: bool,
    /// Whether only the head is wanted.
    pub head_only: bool,
    /// Headers that let a page of another site read the answer, if it may.
    pub sharing: Option<Arc<str>>,
}

/// An answer, ready to be written.
#[derive(Debug)]
pub struct Outgoing {
    /// The head, and the body if it is small.
    pub first: Vec<u8>,
    /// The body, if it is large.
    pub second: Bytes,
}

impl Outgoing {
    /// Writes `reply` down.
    pub fn new(reply: Reply, manner: &ResponseFraming) -> Self {
        let length = reply.length();
        let (status, content_type, extra, body) = reply.into_parts();
        let has_body = !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let sent = if has_body && !manner.head_only { body.len() } else { 0 };
        let copied = if sent <= COPIED_BYTES_MAX { sent } else { 0 };
        let mut out = Vec::with_capacity(448 + copied);
        out.extend_from_slice(match manner.version {
            Version::Http10 => b"HTTP/1.0 ",
            Version::Http11 => b"HTTP/1.1 ",
        });
        out.extend_from_slice(status.as_str().as_bytes());
        out.push(b' ');
        out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
        out.extend_from_slice(b"\r\n");
        if let Some(sharing) = &manner.sharing {
            out.extend_from_slice(sharing.as_bytes());
        }
        for (name, value) in &extra {
            out.extend_from_slice(name.as_str().as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        match (manner.version, manner.keep_alive) {
            (_, false) => out.extend_from_slice(b"connection: close\r\n"),
            (Version::Http10, true) => out.extend_from_slice(b"connection: keep-alive\r\n"),
            (Version::Http11, true) => {}
        }
        if has_body {
            out.extend_from_slice(b"content-type: ");
            out.extend_from_slice(content_type.as_bytes());
            out.extend_from_slice(b"\r\ncontent-length: ");
            write_decimal(&mut out, length);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        let mut second = Bytes::new();
        if copied > 0 {
            out.extend_from_slice(&body);
        } else if sent > 0 {
            second = body;
        }
        Self { first: out, second }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    const USUAL: ResponseFraming =
        ResponseFraming { version: Version::Http11, keep_alive: true, head_only: false, sharing: None };

    fn text(reply: Reply, manner: ResponseFraming) -> String {
        let outgoing = Outgoing::new(reply, &manner);
        String::from_utf8([outgoing.first, outgoing.second.to_vec()].concat()).unwrap()
    }

    #[test]
    fn an_answer_has_its_length_its_headers_and_its_body() {
        let reply = Reply::json(StatusCode::CREATED, "[1]")
            .with_header(header::RETRY_AFTER, HeaderValue::from_static("7"));
        let text = text(reply, USUAL);
        assert!(text.starts_with("HTTP/1.1 201 Created\r\n") && !text.contains("access-control"), "{text}");
        assert!(text.contains("\r\nretry-after: 7\r\n") && !text.contains("connection:"), "{text}");
        assert!(
            text.ends_with("\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n[1]"),
            "{text}"
        );
    }

    #[test]
    fn nothing_has_neither_length_nor_body() {
        let text = text(Reply::nothing(), ResponseFraming { keep_alive: false, ..USUAL });
        assert!(text.starts_with("HTTP/1.1 204 No Content\r\n") && !text.contains("content-"), "{text}");
        assert!(text.ends_with("\r\nconnection: close\r\n\r\n"), "{text}");
    }

    #[test]
    fn a_head_tells_of_the_body_that_is_not_sent() {
        for size in [3, COPIED_BYTES_MAX + 1] {
            let manner = ResponseFraming {
                version: Version::Http10,
                keep_alive: true,
                head_only: true,
                sharing: None,
            };
            let text = text(Reply::json(StatusCode::OK, vec![b'1'; size]), manner);
            assert!(text.starts_with("HTTP/1.0 200 OK\r\n") && text.contains("keep-alive"), "{text}");
            assert!(text.ends_with(&format!("content-length: {size}\r\n\r\n")), "{text}");
        }
    }

    #[test]
    fn a_large_body_is_not_copied() {
        let outgoing = Outgoing::new(Reply::json(StatusCode::OK, vec![b'1'; COPIED_BYTES_MAX + 1]), &USUAL);
        assert!(outgoing.first.ends_with(b"\r\n\r\n") && outgoing.second.len() == COPIED_BYTES_MAX + 1);
    }
}
