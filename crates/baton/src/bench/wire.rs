//! A minimal HTTP/1.1 client connection with keep-alive.
//!
//! The load generator shares the machine with the measured server, so a request costs one write and a response
//! usually one read, and the buffers are reused. Always: one request at a time, or several with one write whose
//! responses are read in order. Not here: TLS, chunked bodies, redirects, and everything else that a general client
//! needs.

use std::io::Write;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::token::Token;

/// Bytes of a response head; the measured server sends no longer one.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Headers of a response.
const HEADERS_MAX: usize = 32;
/// Bytes of each read.
const READ_BYTES: usize = 4 << 10;

/// A connection and its two buffers.
pub struct Connection {
    stream: TcpStream,
    /// The headers of every request.
    headers: String,
    /// Requests to send.
    output: Vec<u8>,
    /// Requests without a response, sent or not.
    unanswered: usize,
    input: Vec<u8>,
    /// Bytes of the input that belong to the last response.
    answered: usize,
}

/// A response head.
struct Head {
    status: u16,
    head_bytes: usize,
    body_bytes: usize,
}

impl Connection {
    /// Connects to `host`, which is `HOST:PORT`, and sends `token` with each request.
    pub async fn open(host: &str, token: Option<&Token>) -> Result<Self> {
        let stream = TcpStream::connect(host).await.with_context(|| format!("cannot connect to {host}"))?;
        stream.set_nodelay(true)?;
        let token =
            token.map_or_else(String::new, |token| format!("authorization: Bearer {}\r\n", token.expose()));
        let headers = format!("host: {host}\r\n{token}");
        Ok(Self { stream, headers, output: Vec::new(), unanswered: 0, input: Vec::new(), answered: 0 })
    }

    /// Sends a GET. Returns the status and the body.
    pub async fn get(&mut self, path: &str) -> Result<(u16, &[u8])> {
        self.add_get(path)?;
        self.send().await?;
        self.answer().await
    }

    /// Sends a POST with a JSON body. Returns the status and the body.
    pub async fn post(&mut self, path: &str, body: &[u8]) -> Result<(u16, &[u8])> {
        self.add_post(path, body)?;
        self.send().await?;
        self.answer().await
    }

    /// Queues a GET.
    pub fn add_get(&mut self, path: &str) -> Result<()> {
        self.unanswered += 1;
        Ok(write!(self.output, "GET {path} HTTP/1.1\r\n{}\r\n", self.headers)?)
    }

    /// Queues a POST with a JSON body.
    pub fn add_post(&mut self, path: &str, body: &[u8]) -> Result<()> {
        self.unanswered += 1;
        write!(
            self.output,
            "POST {path} HTTP/1.1\r\n{}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.headers,
            body.len()
        )?;
        self.output.extend_from_slice(body);
        Ok(())
    }

    /// Sends the queued requests.
    pub async fn send(&mut self) -> Result<()> {
        self.stream.write_all(&self.output).await?;
        self.output.clear();
        Ok(())
    }

    /// Waits for the next response: its status and its body.
    pub async fn answer(&mut self) -> Result<(u16, &[u8])> {
        self.input.drain(..self.answered);
        self.answered = 0;
        let head = loop {
            if let Some(head) = parse_head(&self.input)? {
                break head;
            }
            ensure!(self.input.len() < HEAD_BYTES_MAX, "an answer whose head does not end");
            self.read().await?;
        };
        let end = head.head_bytes + head.body_bytes;
        self.input.reserve(end.saturating_sub(self.input.len()));
        while self.input.len() < end {
            self.read().await?;
        }
        (self.answered, self.unanswered) = (end, self.unanswered.saturating_sub(1));
        ensure!(self.input.len() == end || self.unanswered > 0, "bytes after the end of an answer");
        Ok((head.status, &self.input[head.head_bytes..end]))
    }

    async fn read(&mut self) -> Result<()> {
        if self.input.spare_capacity_mut().is_empty() {
            self.input.reserve(READ_BYTES);
        }
        ensure!(self.stream.read_buf(&mut self.input).await? > 0, "the server closed the connection");
        Ok(())
    }
}

/// The head of a response, once it is complete.
fn parse_head(input: &[u8]) -> Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut answer = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head_bytes) = answer.parse(input)? else { return Ok(None) };
    let mut body_bytes = 0;
    for header in answer.headers {
        if header.name.eq_ignore_ascii_case("content-length") {
            let length = std::str::from_utf8(header.value).ok().and_then(|text| text.parse().ok());
            body_bytes = length.with_context(|| format!("no length: {header:?}"))?;
        }
        ensure!(!header.name.eq_ignore_ascii_case("transfer-encoding"), "an answer without a length");
    }
    Ok(Some(Head { status: answer.code.context("no status")?, head_bytes, body_bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_understood_only_when_it_is_whole() {
        let answer = b"HTTP/1.1 201 Created\r\nContent-Length:  5\r\n\r\nhello";
        assert!(parse_head(&answer[..30]).unwrap().is_none());
        let head = parse_head(answer).unwrap().unwrap();
        assert_eq!((head.status, head.body_bytes, &answer[head.head_bytes..]), (201, 5, b"hello".as_slice()));
    }

    #[test]
    fn an_answer_without_a_body_has_none() {
        let head = parse_head(b"HTTP/1.1 204 No Content\r\ndate: x\r\n\r\n").unwrap().unwrap();
        assert_eq!((head.status, head.body_bytes), (204, 0));
    }

    #[test]
    fn chunked_answers_are_refused() {
        assert!(parse_head(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
    }
}
