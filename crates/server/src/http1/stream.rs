//! What a connection is made of: a TCP stream, plain or inside TLS.
//!
//! Always: a plain one is used as it is; what TLS needs more is boxed. Start at [`Stream`].

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use baton_tls::ServerStream;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

use super::outlet::Line;

/// A TCP stream, plain or inside TLS.
#[derive(Debug)]
pub enum Stream {
    /// As it is, with a way out for others.
    Plain(OwnedReadHalf, Arc<Line>),
    /// Inside TLS.
    Tls(Box<ServerStream>),
}

impl Stream {
    /// A stream as it is.
    pub fn plain(stream: TcpStream) -> Self {
        let (read, write) = stream.into_split();
        Self::Plain(read, Arc::new(Line::new(write)))
    }

    /// The way out for others than its connection, if there can be one.
    pub fn line(&self) -> Option<&Arc<Line>> {
        match self {
            Self::Plain(_, line) => Some(line),
            Self::Tls(_) => None,
        }
    }

    /// Waits until a read may find something. TLS may hold something already, so there it does not wait.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(read, _) => read.as_ref().poll_read_ready(cx),
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
            (Self::Plain(_, line), ..) => line.poll_write(cx, first, second),
            (Self::Tls(stream), only, []) | (Self::Tls(stream), [], only) => {
                Pin::new(stream).poll_write(cx, only)
            }
            (Self::Tls(stream), ..) => {
                let both = [io::IoSlice::new(first), io::IoSlice::new(second)];
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
            Self::Plain(_, line) => line.shutdown(),
            Self::Tls(stream) => stream.shutdown().await,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(read, _) => Pin::new(read).poll_read(cx, room),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, room),
        }
    }
}
