//! Workers of shards over ZeroMQ: JSON messages on a ROUTER socket, as existing workers speak it from DEALER sockets.
//!
//! Every message is answered to the peer that sent it; when a worker's shards change, the peer it last spoke from hears
//! of it at once. Always: a worker is who its message says it is, never what its socket is called; what cannot be
//! understood is answered with an error, and nothing that a peer sends ends the socket. Start at [`Front`].

mod crowd;
mod link;
mod router;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_shards::wire::{self, ShardMessage};
use baton_shards::{Outcome, Refusal, Request, Shards, Snapshot, Status};
use rustc_hash::FxHashMap;
use tokio_util::sync::CancellationToken;

use crate::server::{self, BindError};
use crate::settings::Secret;
use crowd::Crowd;
use router::{Peer, Router};
pub use router::{check_public_key, check_secret_key};

/// Where and how to listen.
#[derive(Clone, Debug)]
pub struct Options {
    /// The host.
    pub host: String,
    /// The port; 0 picks a free one.
    pub port: u16,
    /// The key that the socket proves itself with; without it nothing is encrypted.
    pub curve_secret_key: Secret,
    /// The public keys of those who may connect; anybody's when there are none.
    pub curve_clients: Vec<String>,
    /// Connections at a time.
    pub connections_max: usize,
    /// How long a worker may be silent.
    pub timeout: Duration,
}

/// Where a worker last spoke from, and what it was told there.
#[derive(Debug)]
struct Place {
    peer: Peer,
    session: Option<Arc<str>>,
    told: u64,
}

/// The places of the workers of each service.
type Places = FxHashMap<Arc<str>, FxHashMap<Arc<str>, Place>>;

/// A socket that is bound.
#[derive(Clone, Debug)]
pub struct Front {
    router: Arc<Router>,
    connections_max: usize,
    timeout: Duration,
    address: Arc<str>,
    shards: Shards,
    places: Arc<Mutex<Places>>,
}

impl Front {
    /// Takes the address.
    pub async fn bind(options: &Options, shards: Shards) -> Result<Self, BindError> {
        let place = format!("{}:{}", options.host, options.port);
        let failed = |problem| BindError::Shards { address: format!("tcp://{place}"), problem };
        let key = Some(options.curve_secret_key.expose()).filter(|key| !key.is_empty());
        if key.is_none() && !options.curve_clients.is_empty() {
            return Err(failed(
                "shards_curve_clients says who may connect, but without shards_curve_secret_key nobody is asked; give \
                 both"
                    .into(),
            ));
        }
        let listener = server::resolve(&place).await.and_then(server::listen);
        let listener = listener.map_err(|error| failed(error.to_string()))?;
        let router = Router::new(listener, key, &options.curve_clients).map_err(failed)?;
        let address = router.address().map_err(|error| failed(error.to_string()))?;
        if !address.ip().is_loopback() && key.is_none() {
            warn_of_strangers(address);
        }
        if let Some(public) = key.and_then(|key| router::public_of(key).ok()) {
            tracing::info!(public_key = public, "workers of shards need this key to connect");
        }
        let (connections_max, timeout) = (options.connections_max, options.timeout);
        let (router, address) = (Arc::new(router), format!("tcp://{address}").into());
        Ok(Self { router, connections_max, timeout, address, shards, places: Arc::default() })
    }

    /// The address it is bound to.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Answers until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let crowd = Crowd::new(self.connections_max, self.timeout);
        let (router, front, stop) = (Arc::clone(&self.router), self, shutdown.clone());
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = router.run(crowd, move |peer, message| front.take(peer, message, &stop)) => {}
        }
    }

    fn take(&self, peer: &Peer, message: &[u8], shutdown: &CancellationToken) {
        let ShardMessage { service, request, sequence } = match ShardMessage::parse(message, peer.caller()) {
            Ok(message) => message,
            Err(refusal) => {
                tracing::debug!(%refusal, "a message of a worker was not understood");
                peer.send(wire::error(&refusal, None));
                return;
            }
        };
        let (front, peer) = (self.clone(), Arc::clone(peer));
        let (name, stop) = (Arc::clone(&service), shutdown.clone());
        let beats = matches!(request, Request::Heartbeat(_));
        let reply = move |outcome: Result<Outcome, Refusal>| match outcome {
            Ok(answer) => {
                peer.send(wire::assignment(&answer, sequence));
                if beats {
                    front.note(&name, &answer, peer, stop);
                }
            }
            Err(refusal) => {
                peer.send(wire::error(&refusal, sequence));
            }
        };
        self.shards.submit(&service, request, Box::new(reply));
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers where a worker speaks from, and that it has been told the present.
    fn note(&self, service: &Arc<str>, answer: &Outcome, peer: Peer, stop: CancellationToken) {
        let Some(worker) = answer.worker() else { return };
        let mut places = self.places();
        if !places.contains_key(service) {
            places.insert(Arc::clone(service), FxHashMap::default());
            tokio::spawn(self.clone().tell(Arc::clone(service), stop));
        }
        let Some(workers) = places.get_mut(service) else { return };
        match workers.get_mut(&worker.id) {
            Some(place) => {
                place.peer = peer;
                place.told = worker.generation;
                if place.session != worker.session {
                    place.session.clone_from(&worker.session);
                }
            }
            None => {
                let (session, told) = (worker.session.clone(), worker.generation);
                workers.insert(Arc::clone(&worker.id), Place { peer, session, told });
            }
        }
    }

    /// Tells the workers of a service what changes.
    async fn tell(self, service: Arc<str>, stop: CancellationToken) {
        if let Ok(mut news) = self.shards.subscribe(&service).await {
            loop {
                let snapshot = news.borrow_and_update().clone();
                if let Some(snapshot) = snapshot {
                    self.tell_all(&service, &snapshot);
                }
                tokio::select! {
                    // The service was deleted.
                    changed = news.changed() => if changed.is_err() { break },
                    () = stop.cancelled() => return,
                }
            }
        }
        // The next beat of a worker subscribes again.
        self.places().remove(&service);
    }

    fn tell_all(&self, service: &Arc<str>, snapshot: &Arc<Snapshot>) {
        let mut places = self.places();
        let Some(workers) = places.get_mut(service) else { return };
        workers.retain(|id, place| {
            let Some(number) = snapshot.service.number(id) else { return false };
            let answer = Outcome { snapshot: Arc::clone(snapshot), number };
            let Some(worker) = answer.worker() else { return false };
            if worker.session != place.session {
                place.peer.send(wire::error(&Refusal::Fenced(Arc::clone(id)), None));
                return false;
            }
            let news = worker.status == Status::Active && worker.generation > place.told;
            if news && place.peer.send(wire::assignment(&answer, None)) {
                place.told = worker.generation;
            }
            true
        });
    }
}

fn warn_of_strangers(address: SocketAddr) {
    tracing::warn!(
        %address,
        "LISTENING FOR WORKERS OF SHARDS BEYOND THIS MACHINE WITHOUT AUTHENTICATION: whoever reaches this address can take \
         part; give shards_curve_secret_key and shards_curve_clients, or put it behind a firewall"
    );
}
