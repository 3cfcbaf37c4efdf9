//! The handle of the cluster: what one server knows and decides, for its request handlers.
//!
//! Always: the router's lock is never held across other calls, so these methods are safe anywhere; without live
//! peers, a routing question costs one read of a flag. Start at [`Cluster::route_pop`].

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use baton_env::{Clock, SystemClock};
use baton_tls::TlsClient;
use baton_types::{GroupId, PartitionId, QueueId};
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, mpsc};

use crate::affinity::AffinityEvent;
use crate::membership::Membership;
use crate::numbers::ClusterCounters;
use crate::peers::{Peers, complete_url};
use crate::pool::ConnectionPool;
use crate::remote_server::RemoteServer;
use crate::router::{Policy, PopTarget, Router};
use crate::wire::{DatagramSeal, GossipMessage, WaitingGroup, name_hash};

/// The options of a server in a cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of this server.
    pub id: Arc<str>,
    /// Rises with every start of any server of the cluster.
    pub incarnation: u64,
    /// Signs and checks datagrams of this cluster.
    pub seal: DatagramSeal,
    /// Where to listen for datagrams, `HOST:PORT`.
    pub listen: String,
    /// The addresses of the peers; this server's own may be among them.
    pub peers: Vec<String>,
    /// The address for forwarded requests; without a host, peers use the source address of datagrams.
    pub url: String,
    /// How often this server sends a heartbeat.
    pub heartbeat: Duration,
    /// A server that was silent for this long is dead.
    pub dead_after: Duration,
    /// Whether requests are routed; if not, servers only exchange gossip.
    pub routes: bool,
    /// The routing policy.
    pub policy: Policy,
    /// The timeout of a forwarded request, beyond the wait that it asks for.
    pub timeout: Duration,
    /// How long connecting to another server may take.
    pub connect_timeout: Duration,
    /// The trusted authorities for peers with TLS.
    pub trust: Option<TlsClient>,
}

/// A hint for other servers.
#[derive(Clone, Debug)]
pub enum Notice {
    /// A partition has a new message.
    Available(QueueId, PartitionId),
    /// A partition is free again for a group.
    Freed(QueueId, GroupId, PartitionId),
    /// A group starts to wait here, or stops.
    Waits(WaitingGroup),
    /// Any other message.
    Other(GossipMessage),
}

/// One server's view of the cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cluster {
    shared: Arc<ClusterState>,
}

#[derive(Debug)]
struct ClusterState {
    options: Options,
    clock: SystemClock,
    router: Mutex<Router>,
    peers: Mutex<FxHashMap<Arc<str>, Arc<RemoteServer>>>,
    addresses: Mutex<Peers>,
    /// Notified when another server switched a maintenance mode, which all servers read from the store.
    switched: Notify,
    /// Whether another server is alive.
    has_live_peers: AtomicBool,
    /// Requests that this server is serving.
    in_flight: AtomicUsize,
    numbers: ClusterCounters,
    outbox: mpsc::Sender<Notice>,
    /// This server's host as its peers see it.
    host: OnceLock<IpAddr>,
}

impl Cluster {
    pub(crate) fn new(options: Options, outbox: mpsc::Sender<Notice>) -> Self {
        let membership = Membership::new(Arc::clone(&options.id), options.incarnation, options.dead_after);
        let router = Mutex::new(Router::new(membership, options.policy));
        Self {
            shared: Arc::new(ClusterState {
                options,
                clock: SystemClock::default(),
                router,
                peers: Mutex::default(),
                addresses: Mutex::default(),
                switched: Notify::new(),
                has_live_peers: AtomicBool::new(false),
                in_flight: AtomicUsize::new(0),
                numbers: ClusterCounters::default(),
                outbox,
                host: OnceLock::new(),
            }),
        }
    }

    /// The options of this server.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    pub(crate) fn set_host(&self, host: IpAddr) {
        // Only shown to people; the first one will do.
        let _ = self.shared.host.set(host);
    }

    /// The address for forwarded requests, with this server's host if that is known.
    pub fn url(&self) -> String {
        match self.shared.host.get() {
            Some(host) => complete_url(&self.options().url, *host),
            None => self.options().url.clone(),
        }
    }

    /// The counters.
    pub fn numbers(&self) -> &ClusterCounters {
        &self.shared.numbers
    }

    pub(crate) fn now(&self) -> Duration {
        self.shared.clock.elapsed()
    }

    pub(crate) fn router(&self) -> MutexGuard<'_, Router> {
        self.shared.router.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn addresses(&self) -> MutexGuard<'_, Peers> {
        self.shared.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when another server switched a maintenance mode, which all servers read from the store.
    pub async fn wait_for_switch(&self) {
        self.shared.switched.notified().await;
    }

    pub(crate) fn notify_switched(&self) {
        self.shared.switched.notify_one();
    }

    /// Whether another server uses this server's name.
    pub fn has_duplicate_id(&self) -> bool {
        self.router().membership.has_namesake(self.now())
    }

    /// Drains this server, so that it forwards its requests where possible and gets none; or ends the drain.
    pub fn drain(&self, draining: bool) {
        self.router().drain(draining);
    }

    pub(crate) fn set_has_live_peers(&self, has_live_peers: bool) {
        self.shared.has_live_peers.store(has_live_peers, Ordering::Release);
    }

    /// Whether another server is alive.
    pub fn has_live_peers(&self) -> bool {
        self.shared.has_live_peers.load(Ordering::Acquire)
    }

    /// Whether requests are routed and another server is alive.
    pub fn is_routing(&self) -> bool {
        self.shared.options.routes && self.has_live_peers()
    }

    /// Counts a request as in flight until the guard is dropped.
    pub fn begin_request(&self) -> InFlightGuard {
        self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(self.clone())
    }

    pub(crate) fn requests_in_flight(&self) -> usize {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// The key of a pop, and the server to forward it to; `None` is this one.
    pub fn route_pop(&self, target: PopTarget<'_>, group: &str) -> (String, Option<Arc<str>>) {
        let now = self.now();
        let mut router = self.router();
        let key = router.affinity_key(target, group);
        let from = router.affinities.server_of(&key);
        let (server, step) = router.route_pop(now, &key, random_fraction);
        drop(router);
        if matches!(step, AffinityEvent::Migrated | AffinityEvent::Broken) {
            let to = server.as_deref().unwrap_or(&self.options().id);
            tracing::info!(
                key,
                from = from.as_deref(),
                to,
                reason = step.name(),
                "a key moves to another server"
            );
        }
        self.numbers().steps(step).add(1);
        (key, server)
    }

    /// The next server to try for a pop; `None` is this one.
    pub fn next_pop(&self, key: &str, tried: &[Arc<str>]) -> Option<Arc<str>> {
        self.router().next_pop(self.now(), key, tried)
    }

    /// The server to forward a push to; `None` is this one.
    pub fn route_push(&self, queue: &str) -> Option<Arc<str>> {
        self.router().route_push(self.now(), name_hash(queue))
    }

    /// The server to forward an ack of a partition's message to; `None` is this one.
    pub fn route_ack(&self, partition: PartitionId) -> Option<(u64, Arc<str>)> {
        let (now, router) = (self.now(), self.router());
        // A drained server also forwards acks whose queue it does not know.
        let name = router.queue_of(partition).or_else(|| router.is_draining().then(|| name_hash("")))?;
        Some((name, router.route_push(now, name)?))
    }

    /// The next server to try where consumers of a queue wait; `None` is this one.
    pub fn next_push(&self, name: u64, tried: &[Arc<str>]) -> Option<Arc<str>> {
        self.router().next_push(self.now(), name, tried)
    }

    /// Remembers the queues of partitions, by the hashes of their names, for later acks.
    pub fn remember_partitions(&self, partitions: impl IntoIterator<Item = (PartitionId, u64)>) {
        let mut router = self.router();
        partitions.into_iter().for_each(|(partition, name)| router.remember_partition(partition, name));
    }

    /// Sends a notice to other servers, if they need it.
    pub fn publish(&self, notice: Notice) {
        if let Notice::Waits(waiting) = &notice
            && !self.router().own.update(self.now(), *waiting)
        {
            return;
        }
        if self.has_live_peers() && self.shared.outbox.try_send(notice).is_err() {
            self.numbers().dropped.add(1);
        }
    }

    /// The server, if it may be asked.
    pub(crate) fn peer(&self, server: &Arc<str>) -> Option<Arc<RemoteServer>> {
        let url = self.router().admit(self.now(), server)?;
        let mut peers = self.peers();
        if let Some(peer) = peers.get(server).filter(|peer| peer.url == url) {
            return Some(Arc::clone(peer));
        }
        let options = self.options();
        let pool = ConnectionPool::new(&url, options.trust.as_ref(), options.connect_timeout)?;
        let peer = Arc::new(RemoteServer::new(&url, pool)?);
        peers.insert(Arc::clone(server), Arc::clone(&peer));
        Some(peer)
    }

    pub(crate) fn peers(&self) -> MutexGuard<'_, FxHashMap<Arc<str>, Arc<RemoteServer>>> {
        self.shared.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server is dead: abandons the requests to it.
    pub(crate) fn on_server_dead(&self, server: &Arc<str>) {
        if let Some(peer) = self.on_server_left(server) {
            peer.removed.cancel();
        }
    }

    /// A server has left: it gets no more requests, and finishes those that it has.
    pub(crate) fn on_server_left(&self, server: &Arc<str>) -> Option<Arc<RemoteServer>> {
        let keys = self.router().remove_server(server);
        self.numbers().lost.add(keys as u64);
        self.peers().remove(server)
    }

    /// Records the outcome of a forwarded request: answered, unanswered, or abandoned by its caller.
    pub(crate) fn record_outcome(&self, server: &str, answered: Option<bool>) {
        let now = self.now();
        let mut router = self.router();
        let Some(breaker) = router.breaker(server) else { return };
        let opened = match answered {
            Some(true) => {
                breaker.record_success();
                false
            }
            Some(false) => breaker.record_failure(now),
            None => {
                breaker.record_cancelled();
                false
            }
        };
        drop(router);
        if answered == Some(false) {
            self.numbers().failures.add(1);
        }
        if opened {
            self.numbers().opened.add(1);
            tracing::warn!(server, "a server does not answer and is not asked for a while");
        }
    }
}

fn random_fraction() -> f64 {
    // The upper 53 bits, which a float holds exactly.
    (baton_env::random_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Counts a request as in flight until it is dropped.
#[derive(Debug)]
pub struct InFlightGuard(Cluster);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
