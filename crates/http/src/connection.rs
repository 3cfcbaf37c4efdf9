//! One connection: requests in, answers out, in order.
//!
//! Always: every request gets an answer, and within the time that its route allows, unless its peer has gone, and
//! then its handler is dropped at once, also when pipelined bytes arrived before the end (up to the size of the
//! buffer; behind more, when the handler is next polled); a refused body is answered before it is read; a body is
//! read only for a caller who may call the route; what was not read of a request ends the connection. Start at
//! [`Connection::run`].

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use baton_env::ResettableSleep;
use bytes::Bytes;
use http::Method;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::mpsc;

use super::answer::{CONTINUE, EVENTS, Outgoing, ResponseFraming};
use super::body::{Charge, Received, too_large};
use super::chunked::{Chunked, Malformed};
use super::connection_slots::Limit;
use super::error::{Error, Kind};
use super::head::{Framing, HEAD_BYTES_MAX, Head, Version};
use super::reply::{ProxiedBody, Reply};
use super::service::{Accepted, Decision, Running, Service};
use super::stream::Stream;
use super::wire::{Phase, Wire};

/// How long a peer that is refused may take to ask for something before it is told.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);

/// How an answer is written that comes before any valid request.
const CLOSE_RESPONSE: ResponseFraming =
    ResponseFraming { version: Version::Http11, keep_alive: false, head_only: false, sharing: None };

/// Memory for a body that is taken at once; more is taken as the body arrives.
const BODY_FIRST_BYTES: usize = 256 << 10;

/// Bytes of a body that is ignored, on a route that takes none.
const IGNORED_BYTES_MAX: u64 = 64 << 10;

/// A body of more bytes is worked on apart, so that other connections of the same thread are served meanwhile.
const WORKED_ON_APART: usize = 256 << 10;

/// A connection of a peer.
#[derive(Debug)]
pub struct Connection<'s, S> {
    wire: Wire,
    service: Arc<S>,
    peer: IpAddr,
    /// Set when the server stops; the connection is polled after that.
    stopping: &'s AtomicBool,
}

/// A request without its body, free of the buffer it came in.
struct Begun<R> {
    decision: Decision<R>,
    manner: ResponseFraming,
    framing: Framing,
    expects_continue: bool,
}

/// What became of a request.
enum Handled {
    /// It is to be answered so; and whether it was read to its end.
    Replied(Reply, bool),
    /// It is answered with events, until the caller's token expires.
    Events(mpsc::Receiver<Bytes>, Option<Duration>),
    /// The peer has left.
    Gone,
}

/// What became of a body.
enum Body {
    /// It was read whole.
    Whole(Received),
    /// It was refused, and all of it had arrived.
    Refused(Error),
    /// It was refused before its end, so the connection ends.
    Cut(Error),
}

impl<'s, S: Service> Connection<'s, S> {
    /// A connection of `peer` over `stream`.
    pub fn new(stream: Stream, peer: IpAddr, service: Arc<S>, stopping: &'s AtomicBool) -> Self {
        Self { wire: Wire::new(stream), service, peer, stopping }
    }

    /// Answers requests until the peer leaves, breaks the rules, or the server stops.
    pub async fn run(mut self) -> io::Result<()> {
        loop {
            if self.wire.buffer.is_empty() && !self.wire.begins(self.stopping).await? {
                return Ok(());
            }
            let begun = match self.begin().await? {
                Some(Ok(begun)) => begun,
                Some(Err(error)) => {
                    let refusal = self.service.complete(self.service.refusal(error));
                    self.answer(refusal, &CLOSE_RESPONSE).await?;
                    self.wire.lingering_close().await;
                    return Ok(());
                }
                None => return Ok(()),
            };
            let mut manner = begun.manner.clone();
            let handled = self.handle(begun).await?;
            manner.keep_alive &= !self.stopping.load(Ordering::Relaxed);
            let whole = match handled {
                Handled::Events(events, remaining) => {
                    return self.stream(events, &manner, remaining).await;
                }
                Handled::Replied(reply, whole) => {
                    let mut reply = self.service.complete(reply);
                    manner.keep_alive &= whole;
                    if let Some(body) = reply.take_proxied() {
                        self.answer(reply, &manner).await?;
                        Box::pin(self.pass(*body)).await?;
                    } else {
                        self.answer(reply, &manner).await?;
                    }
                    whole
                }
                // What it has sent before it left is still done.
                Handled::Gone if !self.wire.buffer.is_empty() => continue,
                Handled::Gone => return Ok(()),
            };
            if !manner.keep_alive {
                if !whole || !self.wire.buffer.is_empty() {
                    self.wire.lingering_close().await;
                }
                return Ok(());
            }
        }
    }

    /// Refuses a peer because of `limit`, once it has asked for something: a client that is answered before that may take
    /// it for a mistake.
    pub async fn refuse(mut self, limit: Limit) -> io::Result<()> {
        let manner = match tokio::time::timeout(REFUSED_WITHIN, self.begin()).await {
            Ok(Ok(Some(Ok(begun)))) => ResponseFraming { keep_alive: false, ..begun.manner },
            _ => CLOSE_RESPONSE,
        };
        let limits = self.service.limits();
        let (holder, max) = match limit {
            Limit::Server => ("the server", limits.connections_max),
            Limit::Address => ("this address", limits.connections_per_address),
        };
        let setting = limit.setting();
        let error = Error::overloaded(format!(
            "{holder} has {max} connections, as many as {setting} allows; close some that are idle, or try again"
        ));
        let refusal = self.service.complete(self.service.refusal(error));
        self.answer(refusal, &manner).await?;
        self.wire.lingering_close().await;
        Ok(())
    }

    /// Passes events on until there are no more, the peer leaves, or its token expires after `remaining`.
    async fn stream(
        &mut self,
        mut events: mpsc::Receiver<Bytes>,
        manner: &ResponseFraming,
        remaining: Option<Duration>,
    ) -> io::Result<()> {
        let headers = self.service.event_headers();
        let head = format!("{EVENTS}{headers}{}\r\n", manner.sharing.as_deref().unwrap_or_default());
        self.wire.send(head.as_bytes(), &[]).await?;
        let head_only = manner.head_only;
        let mut end = remaining.map(ResettableSleep::after);
        loop {
            let mut is_over = |cx: &mut Context<'_>| end.as_mut().is_some_and(|end| end.poll(cx).is_ready());
            let next = poll_fn(|cx| match head_only || is_over(cx) || self.has_gone(cx) {
                true => Poll::Ready(None),
                false => events.poll_recv(cx),
            });
            let Some(event) = next.await else { break };
            self.wire.send(&event, &[]).await?;
        }
        Ok(())
    }

    /// Passes a body on as it arrives. Where it breaks off the connection is cut, so that no peer takes it for whole.
    async fn pass(&mut self, mut body: ProxiedBody) -> io::Result<()> {
        loop {
            let next = poll_fn(|cx| match self.has_gone(cx) {
                true => Poll::Ready(Err(io::ErrorKind::ConnectionReset)),
                false => body.poll_next(cx).map(Ok),
            });
            match next.await? {
                Some(chunk) => self.wire.send(&chunk, &[]).await?,
                None if body.is_whole() => break,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        body.deliver();
        self.wire.reset_deadline();
        Ok(())
    }

    async fn answer(&mut self, reply: Reply, manner: &ResponseFraming) -> io::Result<()> {
        let outgoing = Outgoing::new(reply, manner);
        self.wire.send(&outgoing.first, &outgoing.second).await?;
        self.wire.reset_deadline();
        Ok(())
    }

    /// Reads the head of a request; `None` when the peer leaves before its end.
    async fn begin(&mut self) -> io::Result<Option<Result<Begun<S::Request>, Error>>> {
        loop {
            match Head::parse(self.wire.buffer.bytes()) {
                Ok(Some(head)) => {
                    let Accepted { decision, sharing } = self.service.accept(&head);
                    let begun = Begun {
                        decision,
                        manner: ResponseFraming {
                            version: head.version,
                            keep_alive: head.keep_alive,
                            head_only: head.method == Method::HEAD,
                            sharing,
                        },
                        framing: head.framing,
                        expects_continue: head.expects_continue,
                    };
                    let bytes = head.bytes;
                    self.wire.buffer.consume(bytes);
                    return Ok(Some(Ok(begun)));
                }
                Ok(None) => {}
                Err(error) => return Ok(Some(Err(error))),
            }
            // A line that has not ended cannot change what is known, and parsing it with each byte would be dear.
            loop {
                let before = self.wire.buffer.bytes().len();
                if self.wire.fill(Phase::Head).await? == 0 {
                    return Ok(None);
                }
                let bytes = self.wire.buffer.bytes();
                let news = bytes.get(before..).unwrap_or_default();
                if news.contains(&b'\n') || bytes.len() >= HEAD_BYTES_MAX {
                    break;
                }
            }
        }
    }

    /// Finds the answer to a request.
    async fn handle(&mut self, begun: Begun<S::Request>) -> io::Result<Handled> {
        let Begun { decision, framing, expects_continue, .. } = begun;
        let asked = !expects_continue || framing.is_empty();
        let admitted = match decision {
            Decision::Proceed(request) => Ok(request),
            Decision::Wait(admission) => admission.await,
            Decision::Refuse(reply) => Err(reply),
        };
        let request = match admitted {
            Ok(request) => request,
            Err(reply) => {
                let whole = framing.is_empty() || (asked && self.skip_arrived(framing));
                return Ok(Handled::Replied(reply, whole));
            }
        };
        let body = if framing.is_empty() {
            Received::empty()
        } else {
            let max = self.service.body_max(&request);
            let body = self.body(framing, asked, max).await?;
            self.wire.end_body();
            match body {
                Body::Whole(body) => body,
                Body::Refused(error) => return Ok(Handled::Replied(self.service.refusal(error), true)),
                Body::Cut(error) => return Ok(Handled::Replied(self.service.refusal(error), false)),
            }
        };
        let is_apart = body.len() > WORKED_ON_APART;
        let (reply, events_allowed) = match apart(is_apart, || self.service.start(request, body)) {
            Ok(running) => {
                let allowed = running.events_allowed();
                (self.attend(running, is_apart).await, allowed)
            }
            Err(reply) => (Some(reply), None),
        };
        let Some(mut reply) = reply else { return Ok(Handled::Gone) };
        Ok(match reply.take_events() {
            Some(events) => Handled::Events(events, events_allowed),
            None => Handled::Replied(reply, true),
        })
    }

    /// Waits for a handler for as long as its peer is there and its route allows. Once the handler has had to wait, the
    /// peer is looked at first: what a handler was given for a peer that has gone must go to the next one.
    async fn attend(&mut self, mut running: S::Running, is_apart: bool) -> Option<Reply> {
        let mut has_waited = false;
        self.wire.reset_deadline();
        poll_fn(|cx| {
            if std::mem::replace(&mut has_waited, true) && self.has_gone(cx) {
                return Poll::Ready(None);
            }
            if let Poll::Ready(reply) = apart(is_apart, || running.poll_reply(cx)) {
                return Poll::Ready(Some(reply));
            }
            if self.has_gone(cx) {
                return Poll::Ready(None);
            }
            match running.allowed() {
                Some(allowed) => {
                    self.wire.poll_over(cx, Phase::Answer(allowed)).map(|()| Some(running.timed_out()))
                }
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Whether the peer has left. What it sends ahead is taken into the buffer, since its end stands behind that.
    fn has_gone(&mut self, cx: &mut Context<'_>) -> bool {
        while !self.wire.buffer.is_full() {
            match self.wire.poll_fill(cx) {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(Ok(0) | Err(_)) => return true,
                Poll::Pending => return false,
            }
        }
        self.wire.is_ended()
    }

    /// Reads a body, unless it is refused. `asked` is whether its peer sends it unasked.
    async fn body(&mut self, framing: Framing, asked: bool, max: usize) -> io::Result<Body> {
        let is_ignored = max == 0 && matches!(framing, Framing::Length(..=IGNORED_BYTES_MAX));
        if let Framing::Length(length) = framing
            && length > max as u64
            && !is_ignored
        {
            let whole = asked && self.skip_arrived(framing);
            return Ok(if whole { Body::Refused(too_large(max)) } else { Body::Cut(too_large(max)) });
        }
        if !asked && self.wire.buffer.is_empty() {
            self.wire.send(CONTINUE, &[]).await?;
        }
        Ok(match framing {
            Framing::Length(length) => match self.counted(usize::try_from(length).unwrap_or(0)).await {
                Body::Whole(_) if is_ignored => Body::Whole(Received::empty()),
                body => body,
            },
            Framing::Chunked => self.chunked(max).await,
        })
    }

    async fn counted(&mut self, length: usize) -> Body {
        let mut charge = Charge::new(&self.service.traffic().budget, self.peer);
        let mut bytes = Vec::with_capacity(length.min(BODY_FIRST_BYTES));
        let arrived = self.wire.buffer.bytes();
        bytes.extend_from_slice(arrived.get(..length).unwrap_or(arrived));
        self.wire.buffer.consume(bytes.len());
        let mut charged = charge.grow(bytes.len());
        while charged.is_ok() && bytes.len() < length {
            let missing = length - bytes.len();
            if bytes.len() == bytes.capacity() {
                bytes.reserve_exact(missing.min(bytes.len().max(BODY_FIRST_BYTES)));
            }
            let room = missing.min(bytes.capacity() - bytes.len());
            charged = match self.wire.fill_body(&mut bytes, room).await {
                Ok(0) => return Body::Cut(missing_end(&io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => charge.grow(count),
                Err(error) => return Body::Cut(missing_end(&error)),
            };
        }
        match charged {
            Ok(()) => Body::Whole(Received::new(bytes, charge)),
            Err(error) if bytes.len() == length => Body::Refused(error),
            Err(error) => Body::Cut(error),
        }
    }

    async fn chunked(&mut self, max: usize) -> Body {
        let mut charge = Charge::new(&self.service.traffic().budget, self.peer);
        let mut decoder = Chunked::default();
        let mut bytes = Vec::new();
        loop {
            let before = bytes.len();
            let used = match decoder.decode(self.wire.buffer.bytes(), &mut bytes) {
                Ok(used) => used,
                Err(Malformed) => return Body::Cut(Error::invalid("malformed chunked body")),
            };
            self.wire.buffer.consume(used);
            let grown =
                if bytes.len() > max { Err(too_large(max)) } else { charge.grow(bytes.len() - before) };
            match (grown, decoder.is_done()) {
                (Ok(()), true) => return Body::Whole(Received::new(bytes, charge)),
                (Ok(()), false) => {}
                (Err(error), true) => return Body::Refused(error),
                (Err(error), false) => return Body::Cut(error),
            }
            match self.wire.fill(Phase::Body).await {
                Ok(0) => return Body::Cut(missing_end(&io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => {}
                Err(error) => return Body::Cut(missing_end(&error)),
            }
        }
    }

    /// Forgets what has arrived of a refused body, and says whether that is all of it. Waiting for the rest would let a
    /// stranger keep us busy: the connection ends instead.
    fn skip_arrived(&mut self, framing: Framing) -> bool {
        let arrived = self.wire.buffer.bytes();
        let (used, is_all) = match framing {
            Framing::Length(length) => {
                let used = usize::try_from(length).unwrap_or(usize::MAX).min(arrived.len());
                (used, used as u64 == length)
            }
            Framing::Chunked => {
                let mut decoder = Chunked::default();
                match decoder.decode(arrived, &mut Vec::new()) {
                    Ok(used) => (used, decoder.is_done()),
                    Err(Malformed) => (0, false),
                }
            }
        };
        self.wire.buffer.consume(used);
        is_all
    }
}

/// Does `work`; where it `is_apart` other tasks of this thread go on meanwhile.
fn apart<R>(is_apart: bool, work: impl FnOnce() -> R) -> R {
    let may_move = || Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    if is_apart && may_move() { tokio::task::block_in_place(work) } else { work() }
}

fn missing_end(error: &io::Error) -> Error {
    Error::new(Kind::RequestTimeout, format!("the body did not arrive: {error}"))
}
