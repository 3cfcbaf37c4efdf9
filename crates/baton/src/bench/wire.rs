//! One HTTP/1.1 connection that is kept alive, written by hand.
//!
//! The load generator shares the machine with the server that it measures, so a request costs one write, an
//! answer usually one read, and nothing is allocated once the buffers have grown. Always: one request at a
//! time, or several with one write whose answers are awaited in turn. Not here: TLS, chunked bodies, redirects,
//! anything a general client needs.

use std::io::Write;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::token::Token;

/// Bytes of an answer's head; a longer one is not from the server that is measured.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Headers of one.
const HEADERS_MAX: usize = 32;
/// Room made for each read.
const READ_BYTES: usize = 4 << 10;

/// A connection and its two buffers.
pub struct Connection {
    stream: TcpStream,
    /// What every request says after its first line.
    headers: String,
    /// Requests to send.
    output: Vec<u8>,
    /// How many of them, and of those that were sent, are not answered.
    unanswered: usize,
    input: Vec<u8>,
    /// How much of the input is the last answer.
    answered: usize,
}

/// What a head says.
struct Head {
    status: u16,
    head_bytes: usize,
    body_bytes: usize,
}

impl Connection {
    /// Connects to `host`, which is `HOST:PORT`, to show it `token`.
    pub async fn open(host: &str, token: Option<&Token>) -> Result<Self> {
        let stream = TcpStream::connect(host).await.with_context(|| format!("cannot connect to {host}"))?;
        stream.set_nodelay(true)?;
        let token =
            token.map_or_else(String::new, |token| format!("authorization: Bearer {}\r\n", token.expose()));
        let headers = format!("host: {host}\r\n{token}");
        Ok(Self { stream, headers, output: Vec::new(), unanswered: 0, input: Vec::new(), answered: 0 })
    }

    /// Sends a GET and waits for the answer: its status and its body.
    pub async fn get(&mut self, path: &str) -> Result<(u16, &[u8])> {
        self.add_get(path)?;
        self.send().await?;
        self.answer().await
    }

    /// Sends a POST with a JSON body and waits for the answer: its status and its body.
    pub async fn post(&mut self, path: &str, body: &[u8]) -> Result<(u16, &[u8])> {
        self.add_post(path, body)?;
        self.send().await?;
        self.answer().await
    }

    /// Adds a GET to what is sent next.
    pub fn add_get(&mut self, path: &str) -> Result<()> {
        self.unanswered += 1;
        Ok(write!(self.output, "GET {path} HTTP/1.1\r\n{}\r\n", self.headers)?)
    }

    /// Adds a POST with a JSON body to what is sent next.
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

    /// Sends what was added.
    pub async fn send(&mut self) -> Result<()> {
        self.stream.write_all(&self.output).await?;
        self.output.clear();
        Ok(())
    }

    /// Waits for the next answer: its status and its body.
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

/// The head of an answer, once all of it is there.
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
