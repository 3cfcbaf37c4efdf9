//! A second way out of a connection: an answer leaves on the thread that finds out that it may, and nobody is woken first.
//!
//! Always: a request is answered once. Its outlet is open while its handler works, and whoever tells the answer through it
//! has told all of it, or leaves the rest to the connection; the connection closes the outlet before it answers itself.
//! Not here: TLS, whose state belongs to the connection's task. Start at [`Outlet::tell`].

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

use super::answer::{Manner, Outgoing};
use crate::reply::Reply;

/// The half of a TCP stream that is written to, by its connection and through outlets.
#[derive(Debug)]
pub struct Line {
    half: OwnedWriteHalf,
    turn: Mutex<Turn>,
}

/// Whose turn it is to be answered.
#[derive(Debug, Default)]
struct Turn {
    /// Which request, counted from the connection's first.
    request: u64,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody but the connection may answer.
    #[default]
    Closed,
    Open,
    /// It was answered, but for this rest.
    Told(Outgoing),
}

impl Line {
    pub fn new(half: OwnedWriteHalf) -> Self {
        Self { half, turn: Mutex::default() }
    }

    /// Opens an outlet for the next request.
    pub fn open(self: &Arc<Self>, manner: Manner) -> Outlet {
        let mut turn = self.turn();
        turn.request += 1;
        turn.state = State::Open;
        Outlet { line: Arc::clone(self), request: turn.request, manner }
    }

    /// Closes the outlet: from now on only the connection answers. If somebody has done so already, gives what is
    /// left to send.
    pub fn close(&self) -> Option<Outgoing> {
        match std::mem::take(&mut self.turn().state) {
            State::Told(rest) => Some(rest),
            State::Open | State::Closed => None,
        }
    }

    /// Writes some of two runs of bytes, one after the other.
    pub fn poll_write(&self, cx: &mut Context<'_>, first: &[u8], second: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream().poll_write_ready(cx))?;
            match self.try_write(first, second) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn try_write(&self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        match (first, second) {
            (only, []) | ([], only) => self.stream().try_write(only),
            _ => self.stream().try_write_vectored(&[IoSlice::new(first), IoSlice::new(second)]),
        }
    }

    /// Says that nothing more will be said.
    pub fn shutdown(&self) -> io::Result<()> {
        SockRef::from(self.stream()).shutdown(Shutdown::Write)
    }

    fn stream(&self) -> &TcpStream {
        self.half.as_ref()
    }

    /// Whether the peer has said its last, also behind bytes that are not read yet. The answer may come late.
    pub fn is_ended(&self) -> bool {
        let mut ready = std::pin::pin!(self.stream().ready(Interest::READABLE));
        let state = ready.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        matches!(state, Poll::Ready(Ok(state)) if state.is_read_closed())
    }

    /// Whether the peer has left.
    fn has_gone(&self) -> bool {
        if self.is_ended() {
            return true;
        }
        match SockRef::from(self.stream()).peek(&mut [MaybeUninit::uninit()]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way out for the answer to one request.
#[derive(Debug)]
pub struct Outlet {
    line: Arc<Line>,
    request: u64,
    manner: Manner,
}

impl Outlet {
    /// Makes ready the answer that `write` gives; nothing where the peer has gone.
    pub fn prepare(&self, write: impl FnOnce() -> Reply) -> Option<Outgoing> {
        (!self.line.has_gone()).then(|| Outgoing::new(write(), &self.manner))
    }

    /// Tells an answer, after a call of `note`, unless the connection has closed the outlet; says whether it did. What the
    /// peer does not take at once is left to the connection.
    pub fn tell(&self, mut answer: Outgoing, note: &mut dyn FnMut()) -> bool {
        let mut turn = self.line.turn();
        let is_open = turn.request == self.request && matches!(turn.state, State::Open);
        if is_open {
            note();
            let count = self.line.try_write(&answer.first, &answer.second).unwrap_or(0);
            answer.advance(count);
            turn.state = State::Told(answer);
        }
        is_open
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::super::head::Version;
    use super::*;

    const USUAL: Manner =
        Manner { version: Version::Http11, keep_alive: true, head_only: false, sharing: None };

    /// A line and the peer at its other end.
    async fn connected() -> (Arc<Line>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_read, write) = listener.accept().await.unwrap().0.into_split();
        write.writable().await.unwrap();
        (Arc::new(Line::new(write)), peer)
    }

    fn ready(outlet: &Outlet, body: Vec<u8>) -> Outgoing {
        outlet.prepare(|| Reply::json(StatusCode::OK, body)).unwrap()
    }

    #[tokio::test]
    async fn a_request_is_answered_once() {
        let (line, mut peer) = connected().await;
        let outlet = line.open(USUAL);
        assert!(outlet.tell(ready(&outlet, b"1".to_vec()), &mut || {}));
        assert!(!outlet.tell(ready(&outlet, b"2".to_vec()), &mut || {}));
        let rest = line.close().unwrap();
        assert!(rest.first.is_empty() && rest.second.is_empty());
        assert!(line.close().is_none());
        drop((line, outlet));
        let mut answers = String::new();
        peer.read_to_string(&mut answers).await.unwrap();
        assert!(answers.ends_with("\r\n\r\n1") && answers.matches("HTTP/1.1").count() == 1, "{answers}");
    }

    #[tokio::test]
    async fn a_closed_outlet_tells_nothing_also_not_in_the_next_turn() {
        let (line, _peer) = connected().await;
        let first = line.open(USUAL);
        assert!(line.close().is_none());
        assert!(!first.tell(ready(&first, b"1".to_vec()), &mut || {}));
        let second = line.open(USUAL);
        assert!(!first.tell(ready(&first, b"1".to_vec()), &mut || {}));
        assert!(second.tell(ready(&second, b"2".to_vec()), &mut || {}));
    }

    #[tokio::test]
    async fn what_the_peer_does_not_take_at_once_is_left_to_the_connection() {
        const BYTES: usize = 32 << 20;
        let (line, mut peer) = connected().await;
        let outlet = line.open(USUAL);
        let answer = ready(&outlet, vec![b'x'; BYTES]);
        let whole = answer.first.len() + answer.second.len();
        assert!(outlet.tell(answer, &mut || {}));
        let rest = line.close().unwrap();
        assert!(rest.first.is_empty() && !rest.second.is_empty());
        drop((line, outlet));
        let mut taken = Vec::new();
        peer.read_to_end(&mut taken).await.unwrap();
        assert_eq!(taken.len() + rest.second.len(), whole);
    }

    #[tokio::test]
    async fn nothing_is_prepared_for_a_peer_that_has_gone() {
        let (line, peer) = connected().await;
        let outlet = line.open(USUAL);
        drop(peer);
        while !line.has_gone() {
            tokio::task::yield_now().await;
        }
        assert!(outlet.prepare(Reply::nothing).is_none());
    }
}
