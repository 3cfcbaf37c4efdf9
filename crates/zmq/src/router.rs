//! The ROUTER socket: accepts connections, runs each in its own task (`peer`), and closes idle ones (`idle`).
//!
//! Always: no peer delays another, and nothing that a peer sends ends the socket. Not here: what messages mean
//! (`socket`). Start at [`RouterSocket::run`].

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_env::Stopwatch;
use omq_proto::proto::{Connection, ConnectionConfig, Role};
use omq_proto::{
    CurveKeypair, CurvePublicKey, CurveSecretKey, CurveServerOptions, MechanismSetup, SocketType,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinSet};

use crate::idle::IdleReaper;
use crate::peer::{MESSAGE_BYTES_MAX, PeerConnection};

/// Handshakes at the same time; further connections are closed at once.
const HANDSHAKES_MAX: usize = 4_096;
/// How often idle connections are looked for.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// A shared connection.
pub type Peer = Arc<PeerConnection>;

/// A bound socket.
#[derive(Debug)]
pub struct RouterSocket {
    listener: TcpListener,
    mechanism: MechanismSetup,
    /// Open connections by numbers that rise as they connect. Never locked across an await.
    connected: Mutex<BTreeMap<u64, (Peer, AbortHandle)>>,
}

impl RouterSocket {
    /// A socket on `listener`. With a secret key, only peers that know its public key can connect; with `clients`, their
    /// own public key must be among them, too.
    pub fn new(listener: TcpListener, secret: Option<&str>, clients: &[String]) -> Result<Self, String> {
        let mechanism = match secret {
            None => MechanismSetup::Null,
            Some(secret) => {
                let secret = secret_key(secret)?;
                let keys = clients.iter().map(|key| public_key(key)).collect::<Result<Vec<_>, _>>()?;
                let mut options = CurveServerOptions::new();
                if !keys.is_empty() {
                    options = options
                        .authenticator(move |peer| keys.iter().any(|key| *key.as_bytes() == peer.public_key));
                }
                let our_keypair = CurveKeypair { public: secret.derive_public(), secret };
                MechanismSetup::CurveServer { our_keypair, options }
            }
        };
        Ok(Self { listener, mechanism, connected: Mutex::default() })
    }

    /// The address it is bound to.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Passes each message and its sender to `on_message`, and closes what `reaper` chooses. All connections end with it.
    pub async fn run(
        &self,
        mut reaper: IdleReaper,
        on_message: impl Fn(&Peer, &[u8]) + Clone + Send + 'static,
    ) {
        let (clock, handshakes) = (Stopwatch::start(), Arc::new(Semaphore::new(HANDSHAKES_MAX)));
        let (mut tasks, mut number) = (JoinSet::new(), 0_u64);
        let mut reaps = tokio::time::interval(REAP_INTERVAL);
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        // Too many handshakes at once: a real peer reconnects by itself.
                        let Ok(permit) = Arc::clone(&handshakes).try_acquire_owned() else { continue };
                        number += 1;
                        self.start(&mut tasks, number, stream, permit, on_message.clone());
                    }
                    Err(error) => {
                        // Most likely out of file descriptors; they come back when connections end.
                        tracing::warn!(%error, "cannot accept the connection of a shard worker");
                        baton_env::sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(ended) = tasks.join_next() => {
                    if let Ok(number) = ended {
                        self.connected().remove(&number);
                    }
                }
                _ = reaps.tick() => self.close_idle(&mut reaper, clock.elapsed()),
            }
        }
    }

    /// Starts the task of one connection.
    fn start(
        &self,
        tasks: &mut JoinSet<u64>,
        number: u64,
        stream: TcpStream,
        permit: OwnedSemaphorePermit,
        on_message: impl Fn(&Peer, &[u8]) + Send + 'static,
    ) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let config = ConnectionConfig::new(Role::Server, SocketType::Router)
            .max_message_size(MESSAGE_BYTES_MAX)
            .mechanism(self.mechanism.clone());
        let (peer, outgoing) = PeerConnection::new();
        let peer = Arc::new(peer);
        let connection = Arc::clone(&peer).run(stream, Connection::new(config), outgoing, permit, on_message);
        let task = tasks.spawn(async move {
            if let Err(reason) = connection.await {
                tracing::debug!(%reason, "the connection of a shard worker ended");
            }
            number
        });
        self.connected().insert(number, (peer, task));
    }

    /// Records which connections are active and closes what `reaper` chooses.
    fn close_idle(&self, reaper: &mut IdleReaper, now: Duration) {
        let mut connected = self.connected();
        let active =
            connected.iter().filter(|(_, (peer, _))| peer.take_activity()).map(|(number, _)| *number);
        reaper.record_activity(now, active);
        let expired = reaper.expired(now, connected.keys().copied());
        if !expired.is_empty() {
            tracing::warn!(
                connections = connected.len(),
                closed = expired.len(),
                "connections of shard workers are closed: they are idle or too many"
            );
        }
        for (_, task) in expired.into_iter().filter_map(|number| connected.remove(&number)) {
            task.abort();
        }
    }

    fn connected(&self) -> MutexGuard<'_, BTreeMap<u64, (Peer, AbortHandle)>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The public key that belongs to a secret key, both in Z85.
pub fn derive_public_key(secret: &str) -> Result<String, String> {
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

/// Checks that a text is a secret key.
pub fn check_secret_key(text: &str) -> Result<(), String> {
    secret_key(text).map(|_| ())
}

/// Checks that a text is a public key.
pub fn check_public_key(text: &str) -> Result<(), String> {
    public_key(text).map(|_| ())
}
