//! The cluster as one server sees it, for the API.

use std::sync::Arc;
use std::time::Duration;

use crate::breaker::BreakerState;
use crate::cluster::Cluster;
use crate::load::Load;
use crate::peers::PeerView;

/// Affinities that are shown by name.
const AFFINITIES_SHOWN: usize = 100;
/// A difference between the highest and the lowest load up to which a cluster is balanced.
const BALANCED_UP_TO: f64 = 0.2;

/// A server as this server sees it.
#[derive(Clone, Debug)]
pub struct ServerView {
    /// Its name.
    pub id: Arc<str>,
    /// Its address for forwarded requests.
    pub url: Arc<str>,
    /// Whether it is this one.
    pub own: bool,
    /// Whether it is alive.
    pub alive: bool,
    /// Whether it is drained.
    pub draining: bool,
    /// Whether it may be asked.
    pub healthy: bool,
    /// The incarnation of its last datagram.
    pub incarnation: u64,
    /// Its load.
    pub load: Load,
    /// How long it has been silent.
    pub silent_for: Duration,
    /// The state of its breaker, its failures in a row, and how long it stays open.
    pub breaker: (BreakerState, u32, Duration),
    /// Requests that were forwarded to it since it joined, and those that it did not answer.
    pub forwarded: (u64, u64),
    /// Groups that wait there, once for each queue.
    pub waiting_groups: usize,
    /// Keys that it serves, as far as this server knows.
    pub affinities: usize,
}

/// The cluster as one server sees it.
#[derive(Clone, Debug)]
pub struct ClusterView {
    /// All servers, this one first, then by name.
    pub servers: Vec<ServerView>,
    /// Keys with a server.
    pub affinities: usize,
    /// The most used keys, each with its server and its requests.
    pub busiest: Vec<(String, Arc<str>, u64)>,
    /// How many restarts of other servers were seen.
    pub restarts: u64,
    /// The configured peers without this server.
    pub peers: Vec<PeerView>,
    /// Whether another server uses this server's name.
    pub duplicate_id: bool,
}

impl ClusterView {
    /// The configured peers that are heard.
    pub fn peers_heard(&self) -> usize {
        self.peers.iter().filter(|peer| peer.heard).count()
    }

    /// The difference between the highest and the lowest load of the servers that may be asked.
    pub fn imbalance(&self) -> f64 {
        let scores = self.servers.iter().filter(|seen| seen.healthy).map(|seen| seen.load.score());
        let (low, high) = scores.fold((f64::MAX, f64::MIN), |(low, high), s| (low.min(s), high.max(s)));
        (high - low).max(0.0)
    }

    /// Whether the servers are about equally loaded.
    pub fn is_balanced(&self) -> bool {
        self.imbalance() <= BALANCED_UP_TO
    }
}

impl Cluster {
    /// The present view.
    pub fn view(&self) -> ClusterView {
        let now = self.now();
        let peers: Vec<_> =
            self.peers().iter().map(|(id, peer)| (Arc::clone(id), Arc::clone(peer))).collect();
        let mut router = self.router();
        let own = ServerView {
            id: Arc::clone(&self.options().id),
            url: self.url().into(),
            own: true,
            alive: true,
            draining: router.is_draining(),
            healthy: !router.is_draining(),
            incarnation: self.options().incarnation,
            load: router.load.current(),
            silent_for: Duration::ZERO,
            breaker: (BreakerState::Closed, 0, Duration::ZERO),
            forwarded: (0, 0),
            waiting_groups: router.own.all().len(),
            affinities: router.affinities.count(&self.options().id),
        };
        let ids: Vec<_> = router.membership.all().map(|(id, _)| Arc::clone(id)).collect();
        let mut servers = vec![own];
        for id in ids {
            let breaker = router.breaker(&id).map_or((BreakerState::Closed, 0, Duration::ZERO), |breaker| {
                (breaker.state(now), breaker.failures(), breaker.open_for(now))
            });
            let Some(member) = router.membership.get(&id) else { continue };
            let counted = peers.iter().find(|(other, _)| *other == id);
            servers.push(ServerView {
                url: Arc::clone(&member.url),
                own: false,
                alive: member.alive,
                draining: member.draining,
                healthy: router.is_healthy(now, &id),
                incarnation: member.incarnation,
                load: member.load,
                silent_for: now.saturating_sub(member.heard),
                breaker,
                forwarded: counted.map_or((0, 0), |(_, peer)| (peer.forwarded.get(), peer.failed.get())),
                waiting_groups: router.others.count(&id),
                affinities: router.affinities.count(&id),
                id,
            });
        }
        let is_alive = |id: &str| router.membership.get(id).is_some_and(|member| member.alive);
        let (options, addresses) = (self.options(), self.addresses());
        let peers_seen = addresses.views(&options.peers, now, options.dead_after, is_alive);
        drop(addresses);
        ClusterView {
            peers: peers_seen,
            duplicate_id: router.membership.has_namesake(now),
            servers,
            affinities: router.affinities.total(),
            busiest: router.affinities.busiest(AFFINITIES_SHOWN),
            restarts: router.membership.restarts(),
        }
    }
}
