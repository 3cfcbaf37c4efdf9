//! A connection that does not let its peer waste it.
//!
//! A peer may be idle between requests for a while, must send a request's head within seconds, must keep a body
//! coming, and must take its answers. While a request is worked on (a parked pop, above all) nothing is expected
//! of it. The deadlines stand here, below HTTP, because here is where bytes are seen to arrive. Always: one timer
//! per connection, moved rather than made anew; a second one only while a write is stuck. Start at [`Phase`].

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use baton_env::Deadline;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// How long a connection may rest between requests. Longer than the pause of a client that polls once a minute.
const IDLE_MAX: Duration = Duration::from_secs(75);
/// How long the head of a request may take, from its first byte.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// How long a body may take to bring its next [`BODY_PROGRESS_BYTES`], or its end.
const BODY_WINDOW: Duration = Duration::from_secs(30);
const BODY_PROGRESS_BYTES: usize = 64 << 10;
/// How long the peer may leave an answer untaken.
const WRITE_MAX: Duration = Duration::from_secs(30);

/// What is expected of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Nothing was sent since the last answer.
    Idle,
    /// The head of a request is coming.
    Head,
    /// The body of a request is coming.
    Body,
    /// The request is being worked on.
    Busy,
}

/// The phase of one connection, shared by what moves its bytes and what works on its requests.
#[derive(Clone, Debug, Default)]
pub struct SharedPhase(Arc<AtomicU8>);

impl SharedPhase {
    /// Enters `phase`.
    pub fn set(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Relaxed);
    }

    fn get(&self) -> Phase {
        match self.0.load(Ordering::Relaxed) {
            0 => Phase::Idle,
            1 => Phase::Head,
            2 => Phase::Body,
            _ => Phase::Busy,
        }
    }
}

/// A TCP stream with deadlines.
#[derive(Debug)]
pub struct Transport {
    stream: TcpStream,
    phase: SharedPhase,
    deadline: Deadline,
    /// The phase that the deadline was set for.
    armed: Option<Phase>,
    /// Body bytes since the deadline was set.
    progress: usize,
    stuck: Option<Deadline>,
}

impl Transport {
    /// Guards `stream`.
    pub fn new(stream: TcpStream, phase: SharedPhase) -> Self {
        Self {
            stream,
            phase,
            deadline: Deadline::after(IDLE_MAX),
            armed: Some(Phase::Idle),
            progress: 0,
            stuck: None,
        }
    }

    fn received(&mut self, bytes: usize) {
        match self.phase.get() {
            Phase::Idle if bytes > 0 => self.phase.set(Phase::Head),
            Phase::Body => {
                self.progress += bytes;
                if self.progress >= BODY_PROGRESS_BYTES {
                    self.armed = None;
                }
            }
            _ => {}
        }
    }

    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let phase = self.phase.get();
        let allowed = match phase {
            Phase::Idle => IDLE_MAX,
            Phase::Head => HEAD_MAX,
            Phase::Body => BODY_WINDOW,
            Phase::Busy => return Poll::Pending,
        };
        if self.armed != Some(phase) {
            self.armed = Some(phase);
            self.progress = 0;
            self.deadline.reset(allowed);
        }
        ready!(self.deadline.poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer was too slow")))
    }

    /// Turns the outcome of a write into one that is bounded in time.
    fn written(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if outcome.is_pending() {
            let stuck = self.stuck.get_or_insert_with(|| Deadline::after(WRITE_MAX));
            ready!(stuck.poll(cx));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes no answer")));
        }
        self.stuck = None;
        self.armed = None;
        // An answer is on its way, unless it is the `100 Continue` that asks for the body: from now on the peer
        // may rest, and rests anew with every part of the answer.
        if self.phase.get() != Phase::Body {
            self.phase.set(Phase::Idle);
        }
        outcome
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buffer) {
            Poll::Ready(Ok(())) => {
                self.received(buffer.filled().len() - before);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.poll_late(cx),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.written(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
