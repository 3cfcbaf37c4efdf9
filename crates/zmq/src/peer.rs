//! One connection of a peer: handshake, incoming messages, outgoing messages.
//!
//! Always: a peer can send at most [`MESSAGE_BYTES_MAX`] in one message and [`MESSAGES_PER_SECOND`], and must finish its
//! handshake in time. Messages of a peer that does not read are still processed: its answers wait in an outbox, and the
//! connection drops those that do not fit (`idle` closes it when it stops sending, too). Closing ends one connection and
//! nothing else. Start at [`PeerConnection::run`].

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

/// Bytes of one message: a heartbeat that lists some hundred thousand shards.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Messages of one peer in a second, beyond a burst. A faster peer is disconnected and may reconnect.
const MESSAGES_PER_SECOND: u32 = 1_000;
/// Messages in a burst.
const BURST: u32 = 10_000;
/// How long a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Outgoing messages that wait for one peer.
const OUTBOX_MAX: usize = 64;
/// Bytes read at once.
const READ_BYTES: usize = 8 << 10;
/// Chunks written at once.
const WRITE_CHUNKS: usize = 16;

/// The sending half of a connection, and what is known about its peer.
#[derive(Debug)]
pub struct PeerConnection {
    outbox: mpsc::Sender<Bytes>,
    /// Whether a message arrived since the last [`take_activity`](Self::take_activity).
    active: AtomicBool,
    /// The peer's CURVE public key, once the handshake has proved it.
    key: OnceLock<Arc<str>>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Disconnect {
    /// The connection broke, or the peer closed it.
    #[error("{0}")]
    Broken(#[from] io::Error),
    /// The peer does not speak the protocol, or has the wrong keys.
    #[error("{0}")]
    Protocol(#[from] omq_proto::Error),
    /// The peer did not finish its handshake in time.
    #[error("the handshake of a peer took too long")]
    SlowHandshake,
    /// The peer sends too much.
    #[error("a peer sends more than {MESSAGES_PER_SECOND} messages a second")]
    Flood,
}

impl PeerConnection {
    /// A new connection, and the receiver of its outbox for [`run`](Self::run).
    pub fn new() -> (Self, mpsc::Receiver<Bytes>) {
        let (outbox, outgoing) = mpsc::channel(OUTBOX_MAX);
        (Self { outbox, active: AtomicBool::new(false), key: OnceLock::new() }, outgoing)
    }

    /// Queues a message; `false` when the peer is gone or its outbox is full.
    pub fn send(&self, message: Bytes) -> bool {
        self.outbox.try_send(message).is_ok()
    }

    /// The identity that the peer has authenticated with, if it has.
    pub fn identity(&self) -> Option<Arc<str>> {
        self.key.get().cloned()
    }

    /// Whether a message arrived since the last call.
    pub fn take_activity(&self) -> bool {
        self.active.swap(false, Ordering::Relaxed)
    }

    /// Performs the handshake, then passes each message to `on_message` until the connection ends. Only the last frame
    /// of a message has content. `handshake_permit` is released after the handshake.
    pub async fn run(
        self: Arc<Self>,
        stream: TcpStream,
        codec: Connection,
        mut outgoing: mpsc::Receiver<Bytes>,
        handshake_permit: OwnedSemaphorePermit,
        on_message: impl Fn(&Arc<Self>, &[u8]),
    ) -> Result<(), Disconnect> {
        let mut transport = Transport { stream, codec };
        let handshake = async {
            while !transport.codec.is_ready() || transport.codec.has_pending_transmit() {
                transport.exchange().await?;
            }
            Ok::<_, Disconnect>(())
        };
        timeout(HANDSHAKE_MAX, handshake).await.map_err(|_| Disconnect::SlowHandshake)??;
        drop(handshake_permit);
        if let Some(key) = transport.peer_key() {
            self.key.get_or_init(|| format!("curve:{key}").into());
        }
        let mut rate = RateLimit::new();
        loop {
            while let Some(message) = transport.next_message() {
                self.active.store(true, Ordering::Relaxed);
                if !rate.admits() {
                    return Err(Disconnect::Flood);
                }
                on_message(&self, &message.iter().last().unwrap_or_default());
            }
            transport.write()?;
            // While the peer does not read, answers stay in the outbox, which refuses what does not fit.
            let peer_reads = !transport.codec.has_pending_transmit();
            tokio::select! {
                biased;
                Some(message) = outgoing.recv(), if peer_reads => {
                    transport.codec.send_message(&Message::single(message))?;
                    while let Ok(message) = outgoing.try_recv() {
                        transport.codec.send_message(&Message::single(message))?;
                    }
                }
                exchanged = transport.exchange() => exchanged?,
            }
        }
    }
}

/// The codec on its socket.
struct Transport {
    stream: TcpStream,
    codec: Connection,
}

impl Transport {
    /// The CURVE public key that the handshake proved.
    fn peer_key(&mut self) -> Option<String> {
        let events = std::iter::from_fn(|| self.codec.poll_event());
        let mut handshakes = events.filter_map(|event| match event {
            Event::HandshakeSucceeded { peer_properties, .. } => Some(peer_properties),
            _ => None,
        });
        match handshakes.next()?.authentication.public_key {
            Some(PeerPublicKey::Curve(key)) => Some(CurvePublicKey::from_bytes(key).to_z85()),
            _ => None,
        }
    }

    /// The next complete message, if there is one.
    fn next_message(&mut self) -> Option<Message> {
        // The codec itself answers the events about the connection.
        while self.codec.poll_event().is_some() {}
        self.codec.poll_message()
    }

    /// Waits until the socket is ready, then writes and reads what it can. Cancel-safe.
    async fn exchange(&mut self) -> Result<(), Disconnect> {
        self.write()?;
        // The codec bounds its own replies (PONG), too: while the peer leaves them unread, nothing more is read.
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

    /// Passes received bytes to the codec.
    fn read(&mut self) -> Result<(), Disconnect> {
        match read_some(&self.stream) {
            Ok(bytes) if bytes.is_empty() => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(bytes) => Ok(self.codec.handle_input(bytes)?),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes as much as the socket takes without blocking.
    fn write(&mut self) -> Result<(), Disconnect> {
        while self.codec.has_pending_transmit() {
            let written = self.stream.try_write_vectored(&self.codec.transmit_chunks_capped(WRITE_CHUNKS));
            match written {
                Ok(written) => self.codec.advance_transmit(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Reads into memory of exactly the size that arrived, so that idle connections hold no buffer.
fn read_some(stream: &TcpStream) -> io::Result<Bytes> {
    let mut buffer = [0; READ_BYTES];
    let read = stream.try_read(&mut buffer)?;
    Ok(Bytes::copy_from_slice(&buffer[..read]))
}

/// Limits the messages of a peer with the generic cell rate algorithm.
struct RateLimit {
    clock: Stopwatch,
    /// The theoretical arrival time of the next message at the allowed rate.
    due: Duration,
}

impl RateLimit {
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
    fn a_burst_passes_and_then_only_the_rate() {
        let mut rate = RateLimit::new();
        let at = Duration::from_secs(7);
        assert_eq!((0..BURST * 2).filter(|_| rate.admits_at(at)).count(), BURST as usize);
        let mut rate = RateLimit::new();
        (0..BURST).for_each(|_| assert!(rate.admits_at(at)));
        let later = at + Duration::from_secs(1);
        (0..MESSAGES_PER_SECOND).for_each(|_| assert!(rate.admits_at(later)));
        assert!(!rate.admits_at(later));
    }
}
