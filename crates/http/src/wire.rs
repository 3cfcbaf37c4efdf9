//! A stream that does not let its peer waste it.
//!
//! A peer may be idle between requests for a while, must send a request's head within seconds, must keep a body
//! coming, and must take its answers. While a request is worked on (a parked pop, above all) nothing is expected
//! of it, but that it is there, and something of us: to answer in time. Always: one timer per connection, moved rather
//! than made anew, and moved only when there is something to wait for; a second one only while a write is stuck; no
//! memory is taken for reading before there is something to read. Start at [`Wire::poll_fill`].

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use baton_env::{ResettableSleep, Stopwatch};
use bytes::BufMut;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use super::buffer::Buffer;
use super::stream::Stream;

/// How long a connection may rest between requests. Longer than the pause of a client that polls once a minute.
const IDLE_MAX: Duration = Duration::from_secs(75);
/// How long the head of a request may take, from its first byte.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// How long a body may take to bring its next [`BODY_PROGRESS_BYTES`], or its end.
const BODY_WINDOW: Duration = Duration::from_secs(30);
const BODY_PROGRESS_BYTES: usize = 64 << 10;
/// How long a whole body may take.
const BODY_MAX: Duration = Duration::from_secs(300);
/// How long the peer may leave an answer untaken.
const WRITE_MAX: Duration = Duration::from_secs(30);
/// How long we listen to a peer after the last answer, so that it reads that instead of a reset.
const LINGER_MAX: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 16 << 20;

/// What is expected of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing was sent since the last answer.
    Idle,
    /// The head of a request is coming.
    Head,
    /// The body of a request is coming.
    Body,
    /// A request is worked on, which may take so long.
    Answer(Duration),
    /// The end is coming.
    Linger,
}

impl Phase {
    fn allowed(self) -> Duration {
        match self {
            Self::Idle => IDLE_MAX,
            Self::Head => HEAD_MAX,
            Self::Body => BODY_WINDOW,
            Self::Answer(allowed) => allowed,
            Self::Linger => LINGER_MAX,
        }
    }
}

/// A stream with deadlines, and what arrived on it.
#[derive(Debug)]
pub struct Wire {
    stream: Stream,
    /// What arrived and was not used yet.
    pub buffer: Buffer,
    deadline: ResettableSleep,
    /// The phase that the deadline was set for.
    armed: Option<Phase>,
    /// Body bytes since the deadline was set.
    progress: usize,
    /// Since when a body is waited for.
    body_since: Option<Stopwatch>,
    /// How long a whole body may take.
    body_max: Duration,
}

impl Wire {
    /// Guards `stream`.
    pub fn new(stream: Stream) -> Self {
        Self {
            stream,
            buffer: Buffer::default(),
            deadline: ResettableSleep::after(IDLE_MAX),
            armed: Some(Phase::Idle),
            progress: 0,
            body_since: None,
            body_max: BODY_MAX,
        }
    }

    /// A body has come, or is waited for no longer.
    pub fn end_body(&mut self) {
        self.body_since = None;
    }

    /// Whether the peer has closed its side, also behind bytes that were not read. Under TLS that is not known.
    pub fn is_ended(&self) -> bool {
        self.stream.is_ended()
    }

    /// Forgets the deadline of the last wait: the next one begins anew.
    pub fn reset_deadline(&mut self) {
        self.armed = None;
        self.progress = 0;
    }

    /// Reads what has arrived into the buffer and says how much that was; 0 is the end.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.buffer.release();
        ready!(self.stream.poll_read_ready(cx))?;
        let mut room = ReadBuf::new(self.buffer.room());
        let read = Pin::new(&mut self.stream).poll_read(cx, &mut room);
        let count = room.filled().len();
        self.buffer.filled(count);
        if read.is_pending() {
            self.buffer.release();
        }
        ready!(read)?;
        Poll::Ready(Ok(count))
    }

    /// The same, with the patience that `phase` allows.
    pub async fn fill(&mut self, phase: Phase) -> io::Result<usize> {
        let count = poll_fn(|cx| match self.poll_fill(cx) {
            Poll::Pending => self.poll_late(cx, phase),
            ready => ready,
        })
        .await?;
        self.advance(count);
        Ok(count)
    }

    /// Waits for the first bytes of a request; `false` when there will be none, or `stopping` says to stop.
    pub async fn begins(&mut self, stopping: &AtomicBool) -> io::Result<bool> {
        let count = poll_fn(|cx| match self.poll_fill(cx) {
            Poll::Pending if stopping.load(Ordering::Relaxed) => Poll::Ready(Ok(0)),
            Poll::Pending => self.poll_late(cx, Phase::Idle),
            ready => ready,
        })
        .await?;
        Ok(count > 0)
    }

    /// Reads at most `max` bytes of a body straight to where they are kept.
    pub async fn fill_body(&mut self, body: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        let count = poll_fn(|cx| {
            let mut target = (&mut *body).limit(max);
            let read = pin!(self.stream.read_buf(&mut target)).poll(cx);
            match read {
                Poll::Pending => self.poll_late(cx, Phase::Body),
                ready => ready,
            }
        })
        .await?;
        self.advance(count);
        Ok(count)
    }

    fn advance(&mut self, count: usize) {
        self.progress += count;
        if self.armed == Some(Phase::Body) && self.progress >= BODY_PROGRESS_BYTES {
            self.reset_deadline();
        }
    }

    fn poll_late(&mut self, cx: &mut Context<'_>, phase: Phase) -> Poll<io::Result<usize>> {
        ready!(self.poll_over(cx, phase));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer was too slow")))
    }

    /// Whether what `phase` allows is over. It begins when this is asked first.
    pub fn poll_over(&mut self, cx: &mut Context<'_>, phase: Phase) -> Poll<()> {
        if self.armed != Some(phase) {
            self.reset_deadline();
            self.armed = Some(phase);
            let left = match phase {
                Phase::Body => {
                    let since = self.body_since.get_or_insert_with(Stopwatch::start);
                    self.body_max.saturating_sub(since.elapsed())
                }
                _ => Duration::MAX,
            };
            self.deadline.reset(phase.allowed().min(left));
        }
        self.deadline.poll(cx)
    }

    /// Writes `first`, then `second`, with one call if the peer has room for all.
    pub async fn send(&mut self, mut first: &[u8], mut second: &[u8]) -> io::Result<()> {
        let mut stuck = None;
        while !first.is_empty() || !second.is_empty() {
            let count = poll_fn(|cx| {
                let written = self.stream.poll_write(cx, first, second);
                if written.is_ready() {
                    return written;
                }
                ready!(stuck.get_or_insert_with(|| ResettableSleep::after(WRITE_MAX)).poll(cx));
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes no answer")))
            })
            .await?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            stuck = None;
            let of_first = count.min(first.len());
            first = first.get(of_first..).unwrap_or_default();
            second = second.get(count - of_first..).unwrap_or_default();
        }
        if self.stream.keeps_back() { self.flush().await } else { Ok(()) }
    }

    /// Sees that what was written leaves.
    async fn flush(&mut self) -> io::Result<()> {
        match tokio::time::timeout(WRITE_MAX, self.stream.flush()).await {
            Ok(flushed) => flushed,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes no answer")),
        }
    }

    /// Says that nothing more will be said, then listens until the peer has understood or a while has passed.
    /// Closing at once, with bytes unread, would reset the connection and could take the last answer with it.
    pub async fn lingering_close(&mut self) {
        if self.stream.shutdown().await.is_err() {
            return;
        }
        self.reset_deadline();
        // The deadline is looked at only when there is nothing to read, and a peer may never pause.
        let (mut heard, began) = (0, Stopwatch::start());
        while heard < LINGER_BYTES_MAX && began.elapsed() < LINGER_MAX {
            self.buffer.consume(usize::MAX);
            match self.fill(Phase::Linger).await {
                Ok(count @ 1..) => heard += count,
                Ok(0) | Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const BODY_MAX_IN_TEST: Duration = Duration::from_millis(400);

    /// A wire whose peer sends what counts as progress, again and again, until the connection ends.
    async fn trickling() -> (Wire, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut wire = Wire::new(Stream::plain(listener.accept().await.unwrap().0));
        wire.body_max = BODY_MAX_IN_TEST;
        let sending = tokio::spawn(async move {
            let piece = Arc::new(vec![b'x'; BODY_PROGRESS_BYTES]);
            while peer.write_all(&piece).await.is_ok() {
                baton_env::sleep(Duration::from_millis(20)).await;
            }
        });
        (wire, sending)
    }

    #[tokio::test]
    async fn a_body_that_keeps_coming_has_an_end_in_time() {
        for is_counted in [true, false] {
            let (mut wire, sending) = trickling().await;
            let (mut body, mut arrived, began) = (Vec::new(), 0, Stopwatch::start());
            let error = loop {
                let filled = match is_counted {
                    true => wire.fill_body(&mut body, 16 << 10).await,
                    false => wire.fill(Phase::Body).await,
                };
                wire.buffer.consume(usize::MAX);
                match filled {
                    Ok(count) => arrived += count,
                    Err(error) => break error,
                }
                assert!(began.elapsed() < BODY_WINDOW, "a body comes for ever");
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(arrived > 2 * BODY_PROGRESS_BYTES, "{arrived}");
            assert!(began.elapsed() >= BODY_MAX_IN_TEST);
            // The next body has its own time.
            wire.end_body();
            wire.reset_deadline();
            assert!(wire.fill_body(&mut body, 1).await.is_ok());
            sending.abort();
        }
    }
}
