//! The shard socket: passes messages of workers to [`Shards`] and sends them their assignments.
//!
//! Each message is answered to the peer that sent it. When the shards of a worker change, the peer from which it last
//! sent a heartbeat receives the new assignment at once. Always: a worker is who its message says it is, never what its
//! socket is called; a message that cannot be parsed is answered with an error. Not here: connections (`router`).
//! Start at [`ShardSocket`].

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_shards::wire::{self, ShardMessage};
use baton_shards::{Outcome, Refusal, Request, Shards, Snapshot, Status};
use baton_types::Secret;
use rustc_hash::FxHashMap;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::idle::IdleReaper;
use crate::router::{self, Peer, RouterSocket};

/// Where and how to listen.
#[derive(Clone, Debug)]
pub struct Options {
    /// The host.
    pub host: String,
    /// The port; 0 picks a free one.
    pub port: u16,
    /// The CURVE secret key of the socket; without it nothing is encrypted.
    pub curve_secret_key: Secret,
    /// The public keys that may connect; any key may when the list is empty.
    pub curve_clients: Vec<String>,
    /// Connections at a time.
    pub connections_max: usize,
    /// How long a worker may be silent.
    pub timeout: Duration,
}

/// The peer of a worker, and the last assignment that was sent there.
#[derive(Debug)]
struct WorkerPeer {
    peer: Peer,
    session: Option<Arc<str>>,
    sent_generation: u64,
}

/// The peers of the workers of each service.
type WorkerPeers = FxHashMap<Arc<str>, FxHashMap<Arc<str>, WorkerPeer>>;

/// A bound socket.
#[derive(Clone, Debug)]
pub struct ShardSocket {
    router: Arc<RouterSocket>,
    connections_max: usize,
    timeout: Duration,
    address: Arc<str>,
    shards: Shards,
    workers: Arc<Mutex<WorkerPeers>>,
}

impl ShardSocket {
    /// A socket on `listener`, or what is wrong with the options. [`run`](Self::run) serves it.
    pub fn new(listener: TcpListener, options: &Options, shards: Shards) -> Result<Self, String> {
        let key = Some(options.curve_secret_key.expose()).filter(|key| !key.is_empty());
        if key.is_none() && !options.curve_clients.is_empty() {
            return Err("shards_curve_clients lists who may connect, but without shards_curve_secret_key no client is \
                        authenticated; give both"
                .into());
        }
        let router = RouterSocket::new(listener, key, &options.curve_clients)?;
        let address = router.address().map_err(|error| error.to_string())?;
        if !address.ip().is_loopback() && key.is_none() {
            warn_unauthenticated(address);
        }
        if let Some(public) = key.and_then(|key| router::derive_public_key(key).ok()) {
            tracing::info!(public_key = public, "workers of shards need this key to connect");
        }
        Ok(Self {
            router: Arc::new(router),
            connections_max: options.connections_max,
            timeout: options.timeout,
            address: format!("tcp://{address}").into(),
            shards,
            workers: Arc::default(),
        })
    }

    /// The address it is bound to, such as `tcp://127.0.0.1:5555`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Serves until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let reaper = IdleReaper::new(self.connections_max, self.timeout);
        let (router, socket, stop) = (Arc::clone(&self.router), self, shutdown.clone());
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = router.run(reaper, move |peer, message| socket.on_message(peer, message, &stop)) => {}
        }
    }

    /// Submits the request in a message; the reply goes to `peer`.
    fn on_message(&self, peer: &Peer, message: &[u8], shutdown: &CancellationToken) {
        let ShardMessage { service, request, sequence } = match ShardMessage::parse(message, peer.identity())
        {
            Ok(message) => message,
            Err(refusal) => {
                tracing::debug!(%refusal, "a message of a shard worker cannot be parsed");
                peer.send(wire::error(&refusal, None));
                return;
            }
        };
        let (socket, peer) = (self.clone(), Arc::clone(peer));
        let (name, stop) = (Arc::clone(&service), shutdown.clone());
        let is_heartbeat = matches!(request, Request::Heartbeat(_));
        let reply = move |outcome: Result<Outcome, Refusal>| match outcome {
            Ok(assignment) => {
                peer.send(wire::assignment(&assignment, sequence));
                if is_heartbeat {
                    socket.remember_peer(&name, &assignment, peer, stop);
                }
            }
            Err(refusal) => {
                peer.send(wire::error(&refusal, sequence));
            }
        };
        self.shards.submit(&service, request, Box::new(reply));
    }

    fn workers(&self) -> MutexGuard<'_, WorkerPeers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers the peer of a worker, which has just received `assignment`.
    fn remember_peer(&self, service: &Arc<str>, assignment: &Outcome, peer: Peer, stop: CancellationToken) {
        let Some(worker) = assignment.worker() else { return };
        let mut services = self.workers();
        if !services.contains_key(service) {
            services.insert(Arc::clone(service), FxHashMap::default());
            tokio::spawn(self.clone().watch_service(Arc::clone(service), stop));
        }
        let Some(workers) = services.get_mut(service) else { return };
        match workers.get_mut(&worker.id) {
            Some(known) => {
                known.peer = peer;
                known.sent_generation = worker.generation;
                if known.session != worker.session {
                    known.session.clone_from(&worker.session);
                }
            }
            None => {
                let (session, sent_generation) = (worker.session.clone(), worker.generation);
                workers.insert(Arc::clone(&worker.id), WorkerPeer { peer, session, sent_generation });
            }
        }
    }

    /// Sends the workers of a service each change of their assignments.
    async fn watch_service(self, service: Arc<str>, stop: CancellationToken) {
        if let Ok(mut snapshots) = self.shards.subscribe(&service).await {
            loop {
                let snapshot = snapshots.borrow_and_update().clone();
                if let Some(snapshot) = snapshot {
                    self.send_changes(&service, &snapshot);
                }
                tokio::select! {
                    // An error means that the service was deleted.
                    changed = snapshots.changed() => if changed.is_err() { break },
                    () = stop.cancelled() => return,
                }
            }
        }
        // The next heartbeat of a worker subscribes again.
        self.workers().remove(&service);
    }

    fn send_changes(&self, service: &Arc<str>, snapshot: &Arc<Snapshot>) {
        let mut services = self.workers();
        let Some(workers) = services.get_mut(service) else { return };
        workers.retain(|id, known| {
            let Some(number) = snapshot.service.number(id) else { return false };
            let assignment = Outcome { snapshot: Arc::clone(snapshot), number };
            let Some(worker) = assignment.worker() else { return false };
            if worker.session != known.session {
                known.peer.send(wire::error(&Refusal::Fenced(Arc::clone(id)), None));
                return false;
            }
            let is_changed = worker.status == Status::Active && worker.generation > known.sent_generation;
            if is_changed && known.peer.send(wire::assignment(&assignment, None)) {
                known.sent_generation = worker.generation;
            }
            true
        });
    }
}

fn warn_unauthenticated(address: SocketAddr) {
    tracing::warn!(
        %address,
        "LISTENING FOR WORKERS OF SHARDS BEYOND THIS MACHINE WITHOUT AUTHENTICATION: anyone who reaches this address can \
         take part; give shards_curve_secret_key and shards_curve_clients, or put it behind a firewall"
    );
}
