//! Requests of any form over real sockets: what is well-formed is answered in its turn, and nothing else does harm.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};
use std::time::Duration;

use baton_http::{
    Accepted, Connection, Decision, Error, Head, Limits, Received, Reply, Running, Service, Stream, Traffic,
};
use http::StatusCode;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const BODY_MAX: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(30);

static STOPPING: AtomicBool = AtomicBool::new(false);

/// Answers with the body that it was sent.
#[derive(Default)]
struct Echo(Traffic);

struct Answer(Option<Reply>);

impl Service for Echo {
    type Request = ();
    type Running = Answer;

    fn accept(self: &Arc<Self>, _: &Head<'_>) -> Accepted<()> {
        Accepted { decision: Decision::Proceed(()), sharing: None }
    }

    fn body_max(&self, (): &()) -> usize {
        BODY_MAX
    }

    fn start(self: &Arc<Self>, (): (), body: Received) -> Result<Answer, Reply> {
        Ok(Answer(Some(Reply::text(StatusCode::OK, "text/plain", body.to_vec()))))
    }

    fn refusal(&self, error: Error) -> Reply {
        Reply::text(StatusCode::BAD_REQUEST, "text/plain", error.to_string())
    }

    fn limits(&self) -> Limits {
        Limits { connections_max: 1, connections_per_address: 0, shutdown_deadline: PATIENCE }
    }

    fn traffic(&self) -> &Traffic {
        &self.0
    }
}

impl Running for Answer {
    fn poll_reply(&mut self, _: &mut Context<'_>) -> Poll<Reply> {
        self.0.take().map_or(Poll::Pending, Poll::Ready)
    }

    fn allowed(&self) -> Option<Duration> {
        None
    }

    fn timed_out(&self) -> Reply {
        Reply::nothing()
    }

    fn events_allowed(&self) -> Option<Duration> {
        None
    }
}

/// All that comes back for `bytes`, which are sent in pieces of these sizes, again and again.
fn exchange(bytes: &[u8], pieces: &[usize]) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        peer.set_nodelay(true).unwrap();
        let stream = Stream::plain(listener.accept().await.unwrap().0);
        let service = Arc::new(Echo::default());
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let served = tokio::spawn(Connection::new(stream, address, Arc::clone(&service), &STOPPING).run());
        let (mut read, mut write) = peer.split();
        let mut answers = Vec::new();
        let send = async {
            let (mut rest, mut sizes) = (bytes, pieces.iter().cycle());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
                rest = after;
                // A refusal ends the connection before the end of what is sent.
                if write.write_all(piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            let _ = write.shutdown().await;
        };
        let receive = async {
            // A reset after a refusal takes nothing back of what was read before it.
            let _ = read.read_to_end(&mut answers).await;
        };
        let both = async { tokio::join!(send, receive) };
        tokio::time::timeout(PATIENCE, both).await.expect("the server ends the connection");
        drop(peer);
        let ended = tokio::time::timeout(PATIENCE, served).await.expect("the connection's task ends");
        assert!(ended.is_ok(), "the connection's task panicked");
        assert_eq!(service.traffic().budget.used(), 0, "a body is still charged");
        answers
    })
}

/// The bodies of answers, one after the other; all must be 200.
fn bodies(mut answers: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while !answers.is_empty() {
        let end = answers.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let head = std::str::from_utf8(&answers[..end]).unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
        let (body, rest) = answers[end..].split_at(length.parse().unwrap());
        found.push(body.to_vec());
        answers = rest;
    }
    found
}

/// A request with this body: counted, or in chunks of a size.
fn request(body: &[u8], chunk: Option<usize>) -> Vec<u8> {
    let mut text = b"POST / HTTP/1.1\r\nHost: h\r\n".to_vec();
    match chunk {
        None => text.extend(format!("Content-Length: {}\r\n\r\n", body.len()).bytes()),
        Some(_) => text.extend(b"Transfer-Encoding: chunked\r\n\r\n"),
    }
    match chunk {
        None => text.extend(body),
        Some(size) => {
            for part in body.chunks(size) {
                text.extend(format!("{:x}\r\n", part.len()).bytes());
                text.extend(part);
                text.extend(b"\r\n");
            }
            text.extend(b"0\r\n\r\n");
        }
    }
    text
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![1..20usize, 20..5000usize], 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn requests_in_any_framing_and_any_pieces_are_answered_in_their_turn(
        sent in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..3000), prop::option::of(1..700usize)), 1..5
        ),
        pieces in sizes(),
    ) {
        let bytes: Vec<u8> = sent.iter().flat_map(|(body, chunk)| request(body, *chunk)).collect();
        let expected: Vec<_> = sent.into_iter().map(|(body, _)| body).collect();
        prop_assert_eq!(bodies(&exchange(&bytes, &pieces)), expected);
    }

    #[test]
    fn changed_requests_are_answered_or_refused_and_end_the_connection(
        bodies in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..50), prop::option::of(1..9usize)), 1..4),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        pieces in sizes(),
    ) {
        let mut bytes: Vec<u8> = bodies.iter().flat_map(|(body, chunk)| request(body, *chunk)).collect();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let answers = exchange(&bytes, &pieces);
        prop_assert!(answers.is_empty() || answers.starts_with(b"HTTP/1."), "{:?}", String::from_utf8_lossy(&answers));
    }

    #[test]
    fn any_bytes_are_refused_or_ignored(bytes in prop::collection::vec(any::<u8>(), 0..300), pieces in sizes()) {
        let answers = exchange(&bytes, &pieces);
        prop_assert!(answers.is_empty() || answers.starts_with(b"HTTP/1."), "{:?}", String::from_utf8_lossy(&answers));
    }
}

#[test]
fn a_body_beyond_the_limit_is_refused_in_both_framings() {
    for chunk in [None, Some(1000)] {
        let answer = exchange(&request(&vec![b'x'; BODY_MAX + 1], chunk), &[100_000]);
        assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
    }
}
