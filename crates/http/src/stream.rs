//! What a connection is made of: a TCP stream, plain or inside TLS.
//!
//! Always: a plain one is used as it is; what TLS needs more is boxed. Start at [`Stream`].

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use baton_tls::ServerStream;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

/// A TCP stream, plain or inside TLS.
#[derive(Debug)]
pub enum Stream {
    /// As it is.
    Plain(TcpStream),
    /// Inside TLS.
    Tls(Box<ServerStream>),
}

impl Stream {
    /// A stream as it is.
    pub fn plain(stream: TcpStream) -> Self {
        Self::Plain(stream)
    }

    /// Whether the peer has closed its side, also behind bytes that were not read yet. It may be noticed late, and under
    /// TLS it is not known.
    pub fn is_ended(&self) -> bool {
        let Self::Plain(stream) = self else { return false };
        let mut ready = std::pin::pin!(stream.ready(Interest::READABLE));
        let state = ready.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        matches!(state, Poll::Ready(Ok(state)) if state.is_read_closed())
    }

    /// Waits until a read may find something. TLS may hold something already, so there it does not wait.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => stream.poll_read_ready(cx),
            Self::Tls(_) => Poll::Ready(Ok(())),
        }
    }

    /// Whether what was written may have to be flushed.
    pub fn keeps_back(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Writes some of two runs of bytes, one after the other.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        first: &[u8],
        second: &[u8],
    ) -> Poll<io::Result<usize>> {
        match (self, first, second) {
            (Self::Plain(stream), ..) => poll_write_plain(stream, cx, first, second),
            (Self::Tls(stream), only, []) | (Self::Tls(stream), [], only) => {
                Pin::new(stream).poll_write(cx, only)
            }
            (Self::Tls(stream), ..) => {
                let both = [IoSlice::new(first), IoSlice::new(second)];
                Pin::new(stream).poll_write_vectored(cx, &both)
            }
        }
    }

    /// Sees that what was written leaves.
    pub async fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(..) => Ok(()),
            Self::Tls(stream) => stream.flush().await,
        }
    }

    /// Says that nothing more will be said.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => SockRef::from(&*stream).shutdown(Shutdown::Write),
            Self::Tls(stream) => stream.shutdown().await,
        }
    }
}

fn poll_write_plain(
    stream: &TcpStream,
    cx: &mut Context<'_>,
    first: &[u8],
    second: &[u8],
) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_write_ready(cx))?;
        let written = match (first, second) {
            (only, []) | ([], only) => stream.try_write(only),
            _ => stream.try_write_vectored(&[IoSlice::new(first), IoSlice::new(second)]),
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, room),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, room),
        }
    }
}
