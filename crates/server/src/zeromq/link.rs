//! One connection of a peer: its greeting, its messages in, answers out.
//!
//! Always: a peer can send at most [`MESSAGE_BYTES_MAX`] in one message and [`MESSAGES_PER_SECOND`]; one that does not
//! finish its greeting in time is cut off. A peer that does not read is heard all the same: answers to it wait up to a
//! bound, further ones are dropped (`crowd` cuts it off when it does not speak either). Being cut off ends the
//! connection and nothing else. Start at [`Link::converse`].

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use baton_env::Stopwatch;
use bytes::Bytes;
use omq_proto::proto::{Connection, Event};
use omq_proto::{CurvePublicKey, Message, PeerPublicKey};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;

/// Bytes of one message: a beat that lists some hundred thousand shards.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Messages of one peer in a second, beyond a burst; then it is cut off, and may come again.
const MESSAGES_PER_SECOND: u32 = 1_000;
/// Messages in a burst.
const BURST: u32 = 10_000;
/// How long a peer may take to greet.
const GREETING_MAX: Duration = Duration::from_secs(5);
/// Messages that wait for one peer.
const WAITING_MAX: usize = 64;
/// Bytes read at once.
const READ: usize = 8 << 10;
/// Pieces written at once.
const PIECES: usize = 16;

/// A connection, as those see it who answer on it.
#[derive(Debug)]
pub struct Link {
    outbox: mpsc::Sender<Bytes>,
    spoke: AtomicBool,
    /// The peer's CURVE key, once it has proved to have it.
    key: OnceLock<Arc<str>>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// It broke, or the peer closed it.
    #[error("{0}")]
    Broken(#[from] io::Error),
    /// The peer does not speak the protocol, or not with the right keys.
    #[error("{0}")]
    Protocol(#[from] omq_proto::Error),
    /// The peer did not finish its greeting in time.
    #[error("a peer took too long to greet")]
    Slow,
    /// The peer sends too much.
    #[error("a peer sends more than {MESSAGES_PER_SECOND} messages a second")]
    Flood,
}

impl Link {
    /// A connection to be, and what is sent on it.
    pub fn new() -> (Self, mpsc::Receiver<Bytes>) {
        let (outbox, waiting) = mpsc::channel(WAITING_MAX);
        (Self { outbox, spoke: AtomicBool::new(false), key: OnceLock::new() }, waiting)
    }

    /// Sends, unless the peer is gone or does not read; whether it will be sent.
    pub fn send(&self, message: Bytes) -> bool {
        self.outbox.try_send(message).is_ok()
    }

    /// The identity that the peer has authenticated with, if it has.
    pub fn caller(&self) -> Option<Arc<str>> {
        self.key.get().cloned()
    }

    /// Whether something came since the last time this was asked.
    pub fn has_spoken(&self) -> bool {
        self.spoke.swap(false, Ordering::Relaxed)
    }

    /// Greets, and then gives every message to `take`, of which the last part is the only one that says anything, until
    /// the connection ends. `greeting` is given back when the greeting is over.
    pub async fn converse(
        self: Arc<Self>,
        stream: TcpStream,
        codec: Connection,
        mut waiting: mpsc::Receiver<Bytes>,
        greeting: OwnedSemaphorePermit,
        take: impl Fn(&Arc<Self>, &[u8]),
    ) -> Result<(), End> {
        let mut wire = Wire { stream, codec };
        let greeted = async {
            while !wire.codec.is_ready() || wire.codec.has_pending_transmit() {
                wire.exchange().await?;
            }
            Ok::<_, End>(())
        };
        timeout(GREETING_MAX, greeted).await.map_err(|_| End::Slow)??;
        drop(greeting);
        if let Some(key) = wire.peer_key() {
            self.key.get_or_init(|| format!("curve:{key}").into());
        }
        let mut pace = Pace::new();
        loop {
            while let Some(message) = wire.next_message() {
                self.spoke.store(true, Ordering::Relaxed);
                if !pace.admits() {
                    return Err(End::Flood);
                }
                take(&self, &message.iter().last().unwrap_or_default());
            }
            wire.write()?;
            // While the peer does not read, answers stay in the outbox, which drops what does not fit.
            let reads = !wire.codec.has_pending_transmit();
            tokio::select! {
                biased;
                Some(message) = waiting.recv(), if reads => {
                    wire.codec.send_message(&Message::single(message))?;
                    while let Ok(message) = waiting.try_recv() {
                        wire.codec.send_message(&Message::single(message))?;
                    }
                }
                exchanged = wire.exchange() => exchanged?,
            }
        }
    }
}

/// The protocol on its socket.
struct Wire {
    stream: TcpStream,
    codec: Connection,
}

impl Wire {
    /// The key that the peer proved to have in its greeting.
    fn peer_key(&mut self) -> Option<String> {
        let events = std::iter::from_fn(|| self.codec.poll_event());
        let mut greeted = events.filter_map(|event| match event {
            Event::HandshakeSucceeded { peer_properties, .. } => Some(peer_properties),
            _ => None,
        });
        match greeted.next()?.authentication.public_key {
            Some(PeerPublicKey::Curve(key)) => Some(CurvePublicKey::from_bytes(key).to_z85()),
            _ => None,
        }
    }

    /// The next message that has arrived whole, if there is one.
    fn next_message(&mut self) -> Option<Message> {
        // What a peer says about the connection itself needs no answer beyond the codec's own.
        while self.codec.poll_event().is_some() {}
        self.codec.poll_message()
    }

    /// Writes what the peer takes and reads what it has sent, as soon as either is possible. Cancel-safe.
    async fn exchange(&mut self) -> Result<(), End> {
        self.write()?;
        // The codec's own replies (PONG) that the peer does not read are bounded, too: then nothing is read either.
        let reads = !self.codec.input_blocked_on_output();
        if reads && !self.codec.accepts_input() {
            return Ok(self.codec.resume_input()?);
        }
        let interest = match (reads, self.codec.has_pending_transmit()) {
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (true, false) => Interest::READABLE,
            (false, _) => Interest::WRITABLE,
        };
        let ready = self.stream.ready(interest).await?;
        if reads && ready.is_readable() { self.read() } else { Ok(()) }
    }

    /// Takes in what has arrived.
    fn read(&mut self) -> Result<(), End> {
        match read_some(&self.stream) {
            Ok(bytes) if bytes.is_empty() => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(bytes) => Ok(self.codec.handle_input(bytes)?),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes as much as the socket takes at once.
    fn write(&mut self) -> Result<(), End> {
        while self.codec.has_pending_transmit() {
            let written = self.stream.try_write_vectored(&self.codec.transmit_chunks_capped(PIECES));
            match written {
                Ok(written) => self.codec.advance_transmit(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// What has arrived, into memory of its own size: most connections are idle, and none holds a buffer then.
fn read_some(stream: &TcpStream) -> io::Result<Bytes> {
    let mut buffer = [0; READ];
    let read = stream.try_read(&mut buffer)?;
    Ok(Bytes::copy_from_slice(&buffer[..read]))
}

/// How many messages a peer may still send at once.
struct Pace {
    clock: Stopwatch,
    /// When all that was sent until now would have been sent at the allowed rate.
    due: Duration,
}

impl Pace {
    fn new() -> Self {
        Self { clock: Stopwatch::start(), due: Duration::ZERO }
    }

    fn admits(&mut self) -> bool {
        self.admits_at(self.clock.elapsed())
    }

    fn admits_at(&mut self, now: Duration) -> bool {
        let each = Duration::from_secs(1) / MESSAGES_PER_SECOND;
        self.due = self.due.max(now) + each;
        self.due <= now + each * BURST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut pace = Pace::new();
        let at = Duration::from_secs(7);
        assert_eq!((0..BURST * 2).filter(|_| pace.admits_at(at)).count(), BURST as usize);
        let mut pace = Pace::new();
        (0..BURST).for_each(|_| assert!(pace.admits_at(at)));
        let later = at + Duration::from_secs(1);
        (0..MESSAGES_PER_SECOND).for_each(|_| assert!(pace.admits_at(later)));
        assert!(!pace.admits_at(later));
    }
}
