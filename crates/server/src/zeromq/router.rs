//! The ZeroMQ socket: messages of peers in, messages to peers out. The one file that knows which library it is.
//!
//! Always: a peer can send at most [`MESSAGE_BYTES_MAX`] in one message and [`MESSAGES_PER_SECOND`]; one that does not
//! finish its greeting, does not answer pings, or says nothing, is cut off (`crowd`); a peer that does not read holds up
//! nobody, its messages are dropped. Start at [`Router::bind`].

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use baton_env::Stopwatch;
use bytes::Bytes;
use omq_tokio::{
    CurveKeypair, CurvePublicKey, CurveSecretKey, CurveServerOptions, IdentitySocket, Message, Options,
    Socket, SocketType,
};
use rustc_hash::FxHashSet;

use super::crowd::Crowd;

/// Bytes of one message: a beat that lists some hundred thousand shards.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Messages of one peer in a second, beyond a burst; then it is cut off, and may come again.
pub const MESSAGES_PER_SECOND: u32 = 1_000;
/// Messages in a burst.
const BURST: u32 = 10_000;
/// How long a peer may take to greet.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Peers that greet at the same time.
const HANDSHAKES_MAX: usize = 4_096;
/// How often a silent peer is asked whether it is there.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// How long it may take to say so.
const PING_MAX: Duration = Duration::from_secs(30);
/// Messages that wait for one peer.
const WAITING_MAX: u32 = 64;
/// How often it is looked who is connected.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Who is at the other end.
pub type Peer = Bytes;

/// A bound socket.
#[derive(Debug)]
pub struct Router {
    socket: IdentitySocket,
    /// Connections that something came from since the last look. Held for moments, never across an await.
    heard: Mutex<FxHashSet<u64>>,
}

impl Router {
    /// Binds `endpoint`, and tells where that is. With a secret key only peers that know the public one, and whose own
    /// is among `clients` if there are any, can connect.
    pub async fn bind(
        endpoint: &str,
        secret: Option<&str>,
        clients: &[String],
    ) -> Result<(Self, String), String> {
        let mut options = Options::new()
            .max_message_size(MESSAGE_BYTES_MAX)
            .recv_rate_limit(MESSAGES_PER_SECOND, BURST)
            .handshake_timeout(HANDSHAKE_MAX)
            .max_pending_handshakes(HANDSHAKES_MAX)
            .heartbeat_interval(PING_INTERVAL)
            .heartbeat_timeout(PING_MAX)
            .send_hwm(WAITING_MAX)
            .recv_hwm(WAITING_MAX);
        if let Some(secret) = secret {
            let secret = secret_key(secret)?;
            let keys = clients.iter().map(|key| public_key(key)).collect::<Result<Vec<_>, _>>()?;
            let mut curve = CurveServerOptions::new();
            if !keys.is_empty() {
                curve = curve
                    .authenticator(move |peer| keys.iter().any(|key| *key.as_bytes() == peer.public_key));
            }
            let pair = CurveKeypair { public: secret.derive_public(), secret };
            options = options.curve_server_with_options(pair, curve);
        }
        let wrong = |error: omq_tokio::Error| error.to_string();
        let socket = Socket::try_new(SocketType::Router, options).map_err(wrong)?;
        let bound = socket.bind(endpoint).await.map_err(wrong)?;
        let socket = socket.identity_routing().map_err(wrong)?;
        Ok((Self { socket, heard: Mutex::default() }, bound.to_string()))
    }

    /// The next message: its sender and its last part, which is the only one that says anything.
    pub async fn receive(&self) -> Result<(Peer, Bytes), String> {
        let (peer, message) = self.socket.recv_from().await.map_err(|error| error.to_string())?;
        let connection = peer.peer_info().connection_id;
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).insert(connection);
        let part = message.iter().last().unwrap_or_default();
        Ok((peer.to_bytes(), part))
    }

    /// Sends, unless the peer is gone or does not read; whether it was sent.
    pub fn send(&self, peer: &Peer, message: Bytes) -> bool {
        self.socket.try_send_to(peer, Message::single(message)).is_ok()
    }
}

impl Router {
    /// Cuts off whom `crowd` tells to, for as long as the socket is there.
    pub async fn watch(&self, mut crowd: Crowd) {
        let (clock, mut seen) = (Stopwatch::start(), None);
        loop {
            baton_env::sleep(LOOK_INTERVAL).await;
            let heard = std::mem::take(&mut *self.heard.lock().unwrap_or_else(PoisonError::into_inner));
            let (now, generation) = (clock.elapsed(), self.socket.connections_generation());
            crowd.hear(now, &heard);
            if seen.replace(generation) == Some(generation) && !crowd.is_due(now) {
                continue;
            }
            let Ok(connections) = self.socket.connections().await else { return };
            let mut connected: Vec<u64> = connections.iter().map(|one| one.connection_id).collect();
            connected.sort_unstable();
            let cut = crowd.look(now, &connected);
            if !cut.is_empty() {
                tracing::warn!(
                    connections = connected.len(),
                    cut = cut.len(),
                    "connections for workers of shards are cut off: they say nothing, or are too many"
                );
            }
            for connection in cut {
                // Perhaps it has gone by itself.
                let _ = self.socket.disconnect_peer(connection).await;
            }
        }
    }
}

/// The public key that belongs to a secret one, both in Z85.
pub fn public_of(secret: &str) -> Result<String, String> {
    Ok(secret_key(secret)?.derive_public().to_z85())
}

fn secret_key(text: &str) -> Result<CurveSecretKey, String> {
    CurveSecretKey::from_z85(text)
        .map_err(|_| "give 40 characters of Z85, as zmq.curve_keypair() makes them".into())
}

fn public_key(text: &str) -> Result<CurvePublicKey, String> {
    CurvePublicKey::from_z85(text)
        .map_err(|_| format!("{text:?} is no public key: give 40 characters of Z85"))
}

/// Whether a text is a secret key.
pub fn check_secret_key(text: &str) -> Result<(), String> {
    secret_key(text).map(|_| ())
}

/// Whether a text is a public key.
pub fn check_public_key(text: &str) -> Result<(), String> {
    public_key(text).map(|_| ())
}
