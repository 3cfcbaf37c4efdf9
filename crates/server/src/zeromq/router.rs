//! The ZeroMQ socket: takes connections in, each of which then speaks for itself (`link`), and cuts off those that say
//! nothing (`crowd`). The protocol and its cryptography are a library's; this and `link` are the files that know which.
//!
//! Always: no peer holds up another, and nothing that a peer sends ends the socket. Start at [`Router::bind`].

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

use super::crowd::Crowd;
use super::link::{Link, MESSAGE_BYTES_MAX};

/// Peers that greet at the same time; more are cut off at once.
const GREETINGS_MAX: usize = 4_096;
/// How often it is looked who is connected.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Who is at the other end.
pub type Peer = Arc<Link>;

/// A bound socket.
#[derive(Debug)]
pub struct Router {
    listener: TcpListener,
    mechanism: MechanismSetup,
    /// Who is connected, by numbers that rise as they come. Held for moments, never across an await.
    connected: Mutex<BTreeMap<u64, (Peer, AbortHandle)>>,
}

impl Router {
    /// Listens with `listener`. With a secret key only peers that know the public one, and whose own is among `clients`
    /// if there are any, can connect.
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

    /// Where it is bound.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Gives every message to `take` with its sender, and cuts off whom `crowd` tells to. All connections end with it.
    pub async fn run(&self, mut crowd: Crowd, take: impl Fn(&Peer, &[u8]) + Clone + Send + 'static) {
        let (clock, greetings) = (Stopwatch::start(), Arc::new(Semaphore::new(GREETINGS_MAX)));
        let (mut conversations, mut number) = (JoinSet::new(), 0_u64);
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        // Too many greet at once: whoever is real comes again by itself.
                        let Ok(greeting) = Arc::clone(&greetings).try_acquire_owned() else { continue };
                        number += 1;
                        self.begin(&mut conversations, number, stream, greeting, take.clone());
                    }
                    Err(error) => {
                        // Out of file descriptors, most likely: they come back when connections end.
                        tracing::warn!(%error, "cannot accept a worker of shards");
                        baton_env::sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(ended) = conversations.join_next() => {
                    if let Ok(number) = ended {
                        self.connected().remove(&number);
                    }
                }
                _ = looks.tick() => self.look(&mut crowd, clock.elapsed()),
            }
        }
    }

    fn begin(
        &self,
        conversations: &mut JoinSet<u64>,
        number: u64,
        stream: TcpStream,
        greeting: OwnedSemaphorePermit,
        take: impl Fn(&Peer, &[u8]) + Send + 'static,
    ) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let config = ConnectionConfig::new(Role::Server, SocketType::Router)
            .max_message_size(MESSAGE_BYTES_MAX)
            .mechanism(self.mechanism.clone());
        let (link, waiting) = Link::new();
        let link = Arc::new(link);
        let conversation =
            Arc::clone(&link).converse(stream, Connection::new(config), waiting, greeting, take);
        let task = conversations.spawn(async move {
            if let Err(end) = conversation.await {
                tracing::debug!(%end, "a connection for workers of shards ended");
            }
            number
        });
        self.connected().insert(number, (link, task));
    }

    /// Looks who is connected and who has spoken, and cuts off whom `crowd` tells to.
    fn look(&self, crowd: &mut Crowd, now: Duration) {
        let mut connected = self.connected();
        let heard = connected.iter().filter(|(_, (link, _))| link.has_spoken()).map(|(number, _)| *number);
        crowd.hear(now, heard);
        let cut = crowd.look(now, connected.keys().copied());
        if !cut.is_empty() {
            tracing::warn!(
                connections = connected.len(),
                cut = cut.len(),
                "connections for workers of shards are cut off: they say nothing, or are too many"
            );
        }
        for (_, task) in cut.into_iter().filter_map(|number| connected.remove(&number)) {
            task.abort();
        }
    }

    fn connected(&self) -> MutexGuard<'_, BTreeMap<u64, (Peer, AbortHandle)>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
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
