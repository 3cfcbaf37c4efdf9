//! Which proof of a password the database may ask for: `require_auth`, as libpq has it.
//!
//! The client library sends whatever the database asks for, the password in clear text too. So this stream stands below
//! it and reads the authentication requests that come in. Always: a request that is not allowed ends the connection before
//! the client library sees it. Not here: the proofs themselves. Start at [`Guarded`].

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

use crate::store::BoxFuture;

const CLEAR_TEXT: &str = "password";
/// Bytes of a message before its body: its type and its length.
const PREFIX_BYTES: usize = 5;
/// The same of an authentication request, with the code of what it asks for.
const REQUEST_BYTES: usize = PREFIX_BYTES + 4;

/// The proofs that are allowed: those that `require_auth` names, or without it all, but not clear text without TLS.
#[derive(Clone, Debug)]
pub struct Allowed {
    named: Option<Arc<str>>,
    is_private: bool,
}

impl Allowed {
    /// What an address allows, over a connection that strangers cannot listen to if it `is_private`.
    pub fn new(require_auth: Option<&str>, is_private: bool) -> Self {
        Self { named: require_auth.map(Into::into), is_private }
    }

    fn check(&self, method: &str) -> io::Result<()> {
        let is_allowed = match &self.named {
            Some(named) => named.split(',').any(|name| name.trim() == method),
            None => self.is_private || method != CLEAR_TEXT,
        };
        if is_allowed {
            return Ok(());
        }
        let problem = match method {
            CLEAR_TEXT => "the database asks for the password in clear text: give sslmode=verify-full, or \
                 require_auth=password if the network is private"
                .into(),
            other => format!("the database asks for {other}, which require_auth does not name"),
        };
        Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
    }
}

/// Makes connections without TLS, each of them guarded. For the client library it is a kind of TLS, since that is where
/// it lets others wrap a stream.
pub struct Clear(pub Allowed);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Clear {
    type Stream = Guarded<S>;
    type TlsConnect = Self;
    type Error = io::Error;

    fn make_tls_connect(&mut self, _host: &str) -> io::Result<Self> {
        Ok(Self(self.0.clone()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Clear {
    type Stream = Guarded<S>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Guarded<S>>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move { Ok(Guarded::new(stream, self.0)) })
    }
}

/// A connection whose authentication requests are checked.
pub struct Guarded<S> {
    stream: S,
    requests: Option<Requests>,
}

impl<S> Guarded<S> {
    /// Checks what arrives on `stream`, from its first byte.
    pub fn new(stream: S, allowed: Allowed) -> Self {
        let requests = Requests { allowed, head: Vec::new(), left: 0, is_proved: false };
        Self { stream, requests: Some(requests) }
    }
}

/// Finds the authentication requests in what the database sends.
struct Requests {
    allowed: Allowed,
    /// What has arrived of the head of a message.
    head: Vec<u8>,
    /// Bytes of the message after its head that are still to come.
    left: usize,
    is_proved: bool,
}

impl Requests {
    /// Reads on; `true` once the database has let us in.
    fn read(&mut self, mut bytes: &[u8]) -> io::Result<bool> {
        while let [first, rest @ ..] = bytes {
            let skipped = self.left.min(bytes.len());
            if skipped > 0 {
                self.left -= skipped;
                bytes = bytes.get(skipped..).unwrap_or_default();
                continue;
            }
            self.head.push(*first);
            bytes = rest;
            let is_request = self.head.first() == Some(&b'R');
            let wanted = if is_request { REQUEST_BYTES } else { PREFIX_BYTES };
            if self.head.len() < wanted {
                continue;
            }
            if is_request && self.is_over()? {
                return Ok(true);
            }
            // The length counts itself, but not the type before it.
            self.left = (number(&self.head, 1) + 1).saturating_sub(wanted);
            self.head.clear();
        }
        Ok(false)
    }

    /// Whether the request in the head is none: the database is satisfied.
    fn is_over(&mut self) -> io::Result<bool> {
        match number(&self.head, PREFIX_BYTES) {
            0 if self.is_proved => return Ok(true),
            0 => return self.allowed.check("none").map(|()| true),
            3 => self.allowed.check(CLEAR_TEXT)?,
            5 => self.allowed.check("md5")?,
            10 => self.allowed.check("scram-sha-256")?,
            // A later step of one of these, or what the client library does not know.
            _ => {}
        }
        self.is_proved = true;
        Ok(false)
    }
}

/// The number of four bytes at `at`.
fn number(bytes: &[u8], at: usize) -> usize {
    let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes) as usize)
}

impl<S> TlsStream for Guarded<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if let Some(requests) = &mut self.requests
            && requests.read(buffer.filled().get(before..).unwrap_or_default())?
        {
            self.requests = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        [&[kind], &length.to_be_bytes()[..], body].concat()
    }

    fn request(code: u32, rest: &[u8]) -> Vec<u8> {
        message(b'R', &[&code.to_be_bytes()[..], rest].concat())
    }

    /// What becomes of messages that arrive in pieces of so many bytes.
    fn outcome(require_auth: Option<&str>, is_private: bool, bytes: &[u8], size: usize) -> Option<bool> {
        let allowed = Allowed::new(require_auth, is_private);
        let mut requests = Requests { allowed, head: Vec::new(), left: 0, is_proved: false };
        bytes
            .chunks(size)
            .try_fold(false, |over, piece| Ok::<_, io::Error>(over || requests.read(piece)?))
            .ok()
    }

    #[test]
    fn a_password_in_clear_text_needs_a_private_way_or_a_word_however_the_request_arrives() {
        let notice = message(b'v', b"some words before");
        let clear = [notice.clone(), request(3, b""), request(0, b"")].concat();
        let salted = [notice.clone(), request(5, b"salt"), request(0, b"")].concat();
        let scram = [
            notice,
            request(10, b"SCRAM-SHA-256\0\0"),
            request(11, b"x"),
            request(12, b"y"),
            request(0, b""),
        ]
        .concat();
        for size in [1, 2, 7, 1000] {
            assert_eq!(outcome(None, false, &clear, size), None);
            assert_eq!(outcome(None, true, &clear, size), Some(true));
            assert_eq!(outcome(Some("md5, password"), false, &clear, size), Some(true));
            assert_eq!(outcome(Some("scram-sha-256"), true, &clear, size), None);
            assert_eq!(outcome(None, false, &salted, size), Some(true));
            assert_eq!(outcome(Some("scram-sha-256"), false, &salted, size), None);
            assert_eq!(outcome(Some("scram-sha-256"), false, &scram, size), Some(true));
            assert_eq!(outcome(None, false, &request(0, b""), size), Some(true));
            assert_eq!(outcome(Some("md5"), false, &request(0, b""), size), None);
        }
    }
}
