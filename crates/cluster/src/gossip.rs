//! Gossip: sends and receives datagrams, around decisions that do no I/O.
//!
//! One task owns the socket. It sends notices, batched as far as possible, handles received datagrams, and keeps
//! time. Always: a datagram that cannot be sent counts as lost, which every server tolerates; peer names are resolved
//! repeatedly, since peers may move; a peer that turns out to be this server is left out; a datagram from an address
//! that is not a peer's is refused, and so is a server that has not answered a challenge, since a recording could be
//! replayed to a server that has just started. Start at [`Gossip::bind`], then [`Gossip::run`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, Notice, Options};
use crate::limits::{
    DATAGRAM_BYTES_MAX, OUTBOX_MAX, PRESENCE_REFRESH, RESOLVE_AGAIN, RESOLVE_INTERVAL, TICK,
};
use crate::load::Load;
use crate::membership::MemberChange;
use crate::peers::{Peers, complete_url};
use crate::wire::{AVAILABLE_MAX, FREED_MAX, GossipMessage, PRESENCE_PAGE, RejectReason, WaitingGroup};

/// How often unused affinities are deleted.
const AFFINITY_SWEEP: Duration = Duration::from_secs(5);
/// Notices that are sent together.
const NOTICES_PER_SEND_MAX: usize = 1024;
/// How often the same warning is logged.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Handles messages of other servers. It is called on the socket's task and must return at once.
pub type Listener = Arc<dyn Fn(&GossipMessage) + Send + Sync>;

/// What a server measures about itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadSample {
    /// Pops that wait for messages.
    pub waiting: usize,
    /// Processor time of the process since its start.
    pub cpu: Duration,
}

/// Takes a sample.
pub type Gauge = Arc<dyn Fn() -> LoadSample + Send + Sync>;

/// Why gossip cannot start.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for datagrams on {listen}: {source}; give gossip_listen another HOST:PORT")]
pub struct BindError {
    listen: String,
    source: io::Error,
}

/// The socket and its task.
pub struct Gossip {
    cluster: Cluster,
    socket: UdpSocket,
    outbox: mpsc::Receiver<Notice>,
    listener: Listener,
    gauge: Gauge,
    schedule: GossipSchedule,
}

/// When each periodic action is due, and the last measurements.
#[derive(Debug, Default)]
struct GossipSchedule {
    next_heartbeat: Duration,
    next_presence: Duration,
    next_sweep: Duration,
    /// When each kind of warning was last logged.
    last_warned: BTreeMap<&'static str, Duration>,
    in_flight_samples: (usize, usize),
    cpu: Option<(Duration, Duration)>,
}

impl Gossip {
    /// Binds the address.
    pub async fn bind(
        options: Options,
        listener: Listener,
        gauge: Gauge,
    ) -> Result<(Cluster, Self), BindError> {
        let failed = |source| BindError { listen: options.listen.clone(), source };
        let socket = UdpSocket::bind(&options.listen).await.map_err(failed)?;
        let (told, outbox) = mpsc::channel(OUTBOX_MAX);
        let cluster = Cluster::new(options, told);
        let gossip = Self {
            cluster: cluster.clone(),
            socket,
            outbox,
            listener,
            gauge,
            schedule: GossipSchedule::default(),
        };
        Ok((cluster, gossip))
    }

    /// The address it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Gossips until `stop`, then announces that this server leaves.
    pub async fn run(mut self, stop: CancellationToken) {
        let names = self.cluster.options().peers.clone();
        let own = self.socket.local_addr().ok();
        let resolving = tokio::spawn(resolve_peers(self.cluster.clone(), names, own));
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX + 1];
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                received = self.socket.recv_from(&mut buffer) => match received {
                    Ok((length, from)) => self.receive(buffer.get(..length).unwrap_or_default(), from).await,
                    // An earlier datagram had no receiver, which says nothing about the next.
                    Err(error) => tracing::trace!(%error, "a datagram could not be received"),
                },
                notice = self.outbox.recv() => match notice {
                    Some(first) => self.send_notices(first).await,
                    None => break,
                },
                _ = ticks.tick() => self.tick().await,
            }
        }
        self.broadcast(GossipMessage::Leaving).await;
        resolving.abort();
    }

    fn addresses(&self) -> MutexGuard<'_, Peers> {
        self.cluster.addresses()
    }

    async fn broadcast(&mut self, message: GossipMessage) {
        let to = self.addresses().all();
        self.send(message, &to).await;
    }

    async fn send(&mut self, message: GossipMessage, to: &BTreeSet<SocketAddr>) {
        if to.is_empty() {
            return;
        }
        let envelope = self.cluster.router().membership.next_envelope();
        let Some(bytes) = self.cluster.options().seal.seal(&envelope, &message) else {
            tracing::error!(?message, "a notice does not fit into a datagram and is not sent");
            return;
        };
        let mut failed = None;
        for address in to {
            match self.socket.send_to(&bytes, address).await {
                Ok(_) => {
                    self.cluster.numbers().sent.add(1);
                    self.cluster.numbers().sent_bytes.add(bytes.len() as u64);
                }
                Err(error) => failed = Some((error, *address)),
            }
        }
        if let Some((error, address)) = failed
            && self.may_warn("unsent")
        {
            tracing::warn!(%error, %address, "a datagram cannot be sent; does gossip_listen reach the peers?");
        }
    }

    /// Whether a warning of this kind may be logged now.
    fn may_warn(&mut self, kind: &'static str) -> bool {
        self.schedule.may_complain(self.cluster.now(), kind)
    }

    /// Sends waiting notices in as few datagrams as possible, each to the servers that need it.
    async fn send_notices(&mut self, first: Notice) {
        let mut notices = vec![first];
        while notices.len() < NOTICES_PER_SEND_MAX {
            match self.outbox.try_recv() {
                Ok(notice) => notices.push(notice),
                Err(_) => break,
            }
        }
        let (mut available, mut freed, mut waits, mut others) =
            (BTreeMap::new(), BTreeMap::new(), Vec::new(), Vec::new());
        {
            let router = self.cluster.router();
            for notice in notices {
                match notice {
                    Notice::Available(queue, partition) => {
                        let concerned = || router.others.servers_to_notify(queue, None);
                        available.entry((queue, partition)).or_insert_with(concerned);
                    }
                    Notice::Freed(queue, group, partition) => {
                        let concerned = || router.others.servers_to_notify(queue, Some(group));
                        freed.entry((queue, group, partition)).or_insert_with(concerned);
                    }
                    Notice::Waits(waiting) => waits.push(waiting),
                    Notice::Other(message) => others.push(message),
                }
            }
        }
        for message in others {
            self.broadcast(message).await;
        }
        self.send_presence(&waits).await;
        for (servers, told) in group_by_recipients(available) {
            let to = self.addresses().addresses_of(&servers);
            for page in told.chunks(AVAILABLE_MAX) {
                self.send(GossipMessage::Available(page.to_vec()), &to).await;
            }
        }
        for (servers, told) in group_by_recipients(freed) {
            let to = self.addresses().addresses_of(&servers);
            for page in told.chunks(FREED_MAX) {
                self.send(GossipMessage::Freed(page.to_vec()), &to).await;
            }
        }
    }

    async fn send_presence(&mut self, waits: &[WaitingGroup]) {
        for page in waits.chunks(PRESENCE_PAGE) {
            self.broadcast(GossipMessage::Presence(page.to_vec())).await;
        }
    }

    async fn receive(&mut self, bytes: &[u8], from: SocketAddr) {
        let numbers = self.cluster.numbers();
        numbers.received_bytes.add(bytes.len() as u64);
        let now = self.cluster.now();
        if !self.addresses().is_peer(from.ip()) {
            numbers.rejected(RejectReason::Source).add(1);
            return self.warn_rejected(RejectReason::Source, from);
        }
        let (envelope, message) = match self.cluster.options().seal.open(bytes) {
            Ok(opened) => opened,
            Err(reason) => return self.reject(now, reason, from),
        };
        let counts = self.cluster.router().membership.on_datagram(now, &envelope);
        match counts {
            Ok(false) => self.addresses().is_own(from),
            Ok(true) => {
                numbers.received.add(1);
                if let Some(message) = message {
                    self.handle_message(now, &envelope.sender, message, from).await;
                }
            }
            Err(RejectReason::Namesake) => {
                self.reject(now, RejectReason::Namesake, from);
                self.handle_duplicate_id(now, envelope.incarnation, message, from).await;
            }
            Err(reason) => self.reject(now, reason, from),
        }
    }

    /// Records a refused datagram from a peer's host.
    fn reject(&mut self, now: Duration, reason: RejectReason, from: SocketAddr) {
        self.cluster.numbers().rejected(reason).add(1);
        // These happen with healthy servers, too.
        if !matches!(reason, RejectReason::Malformed | RejectReason::Replayed) {
            self.addresses().refused(now, reason, from);
        }
        self.warn_rejected(reason, from);
    }

    /// Another server uses this server's name, unless the datagram is from an earlier start of this server. Both
    /// challenge each other to find out.
    async fn handle_duplicate_id(
        &mut self,
        now: Duration,
        incarnation: u64,
        message: Option<GossipMessage>,
        from: SocketAddr,
    ) {
        let to = self.addresses().back_to(from);
        match message {
            Some(GossipMessage::Challenge { nonce, .. }) => {
                self.send(GossipMessage::Proof { nonce }, &to).await
            }
            Some(GossipMessage::Proof { nonce }) => {
                if self.cluster.router().membership.prove_namesake(incarnation, nonce) {
                    let id = &*self.cluster.options().id;
                    tracing::warn!(%from, id, "another server has the node_id of this one; give each its own");
                }
            }
            _ => {
                let nonce = baton_env::random_u64();
                let is_due = self.cluster.router().membership.challenge_namesake(now, nonce);
                if is_due {
                    let to_whom = Arc::clone(&self.cluster.options().id);
                    self.send(GossipMessage::Challenge { to: to_whom, nonce }, &to).await;
                }
            }
        }
    }

    /// Logs refusals that an operator can fix, at a limited rate.
    fn warn_rejected(&mut self, reason: RejectReason, from: SocketAddr) {
        let advice = match reason {
            RejectReason::Forged => "its sender has another gossip_secret",
            RejectReason::Foreign => "its sender uses another database or schema",
            RejectReason::Version => "a server of another version is there",
            RejectReason::Source => {
                "its sender is not among the peers; the same peers belong to every server"
            }
            RejectReason::Malformed
            | RejectReason::Replayed
            | RejectReason::Unproven
            | RejectReason::Namesake => return,
        };
        if self.may_warn(reason.name()) {
            tracing::warn!(%from, "a datagram is not believed: {advice}");
        }
    }

    async fn handle_message(
        &mut self,
        now: Duration,
        sender: &Arc<str>,
        message: GossipMessage,
        from: SocketAddr,
    ) {
        match &message {
            GossipMessage::Challenge { to, nonce } if *to == self.cluster.options().id => {
                return self.answer_challenge(*nonce, from).await;
            }
            GossipMessage::Challenge { .. } => return,
            GossipMessage::Proof { nonce } => {
                self.cluster.router().membership.prove(sender, *nonce);
                return;
            }
            _ if !self.cluster.router().membership.is_proven(sender) => {
                self.reject(now, RejectReason::Unproven, from);
                return self.challenge(now, sender, from).await;
            }
            _ => {}
        }
        self.addresses().heard(now, sender, from);
        match &message {
            GossipMessage::Heartbeat { url, load, draining } => {
                self.cluster.numbers().heartbeats.add(1);
                let url = complete_url(url, from.ip());
                let change = self.cluster.router().on_heartbeat(now, sender, &url, *load, *draining);
                if change != MemberChange::None {
                    self.on_server_joined(sender, &url, from).await;
                }
            }
            GossipMessage::Presence(waits) => self.cluster.router().others.apply_presence(now, sender, waits),
            GossipMessage::Leaving => {
                if self.cluster.router().membership.leave(sender) {
                    tracing::info!(server = &**sender, "a server has left");
                    self.cluster.on_server_left(sender);
                    self.update_has_live_peers();
                }
            }
            GossipMessage::Deleted(queue, _) => {
                self.cluster.router().others.remove_queue(*queue);
                (self.listener)(&message);
            }
            _ => {
                if message == GossipMessage::Switched {
                    self.cluster.notify_switched();
                }
                (self.listener)(&message);
            }
        }
    }

    /// Challenges a server that was just heard to prove that it is running.
    async fn challenge(&mut self, now: Duration, sender: &Arc<str>, from: SocketAddr) {
        let nonce = baton_env::random_u64();
        if self.cluster.router().membership.challenge(now, sender, nonce) {
            let to = self.addresses().back_to(from);
            self.send(GossipMessage::Challenge { to: Arc::clone(sender), nonce }, &to).await;
        }
    }

    /// Answers a challenge, and repeats what the other server ignored before.
    async fn answer_challenge(&mut self, nonce: u64, from: SocketAddr) {
        let to = self.addresses().back_to(from);
        self.send(GossipMessage::Proof { nonce }, &to).await;
        let heartbeat = self.heartbeat();
        self.send(heartbeat, &to).await;
        let waits = self.cluster.router().own.all();
        for page in waits.chunks(PRESENCE_PAGE) {
            self.send(GossipMessage::Presence(page.to_vec()), &to).await;
        }
    }

    /// A server has joined or returned: sends it the groups that wait here, and closes its breaker.
    async fn on_server_joined(&mut self, sender: &Arc<str>, url: &str, from: SocketAddr) {
        tracing::info!(server = &**sender, url, "a server is there");
        self.cluster.on_server_dead(sender);
        self.cluster.router().on_server_joined(self.cluster.now(), sender);
        self.cluster.set_has_live_peers(true);
        self.addresses().joined(sender, from);
        self.send_heartbeat().await;
        let waits = self.cluster.router().own.all();
        self.send_presence(&waits).await;
    }

    /// Updates whether any peer is alive.
    fn update_has_live_peers(&self) {
        let accompanied = self.cluster.router().membership.alive().next().is_some();
        self.cluster.set_has_live_peers(accompanied);
    }

    async fn tick(&mut self) {
        let now = self.cluster.now();
        let in_flight = self.cluster.requests_in_flight();
        self.schedule.in_flight_samples =
            (self.schedule.in_flight_samples.0 + in_flight, self.schedule.in_flight_samples.1 + 1);
        let (dead, gone) = {
            let mut router = self.cluster.router();
            (router.membership.expire(now), router.own.expire(now))
        };
        for server in &dead {
            tracing::warn!(server = &**server, "a server has been silent for too long");
            self.cluster.on_server_dead(server);
            self.update_has_live_peers();
        }
        self.send_presence(&gone).await;
        if now >= self.schedule.next_heartbeat {
            self.schedule.next_heartbeat = now + self.cluster.options().heartbeat;
            self.measure_load(now);
            self.send_heartbeat().await;
        }
        if now >= self.schedule.next_presence {
            self.schedule.next_presence = now + PRESENCE_REFRESH;
            let waits = {
                let mut router = self.cluster.router();
                router.others.expire(now);
                router.own.all()
            };
            self.send_presence(&waits).await;
        }
        if now >= self.schedule.next_sweep {
            self.schedule.next_sweep = now + AFFINITY_SWEEP;
            let ttl = self.cluster.options().policy.thresholds.ttl;
            let expired = self.cluster.router().affinities.expire(now, ttl);
            self.cluster.numbers().expired.add(expired as u64);
        }
    }

    /// Measures this server's load.
    fn measure_load(&mut self, now: Duration) {
        let measured = (self.gauge)();
        let (sum, count) = std::mem::take(&mut self.schedule.in_flight_samples);
        let in_flight = sum as f64 / count.max(1) as f64;
        let waiting = measured.waiting as f64;
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let cpu = match self.schedule.cpu.replace((now, measured.cpu)) {
            Some((before, used)) if now > before => {
                let used = measured.cpu.saturating_sub(used).as_secs_f64();
                100.0 * used / (now - before).as_secs_f64() / processors
            }
            _ => 0.0,
        };
        // Waiting pops are also in flight; they count once.
        let load = Load { outstanding: (in_flight - waiting).max(0.0), waiting, cpu };
        self.cluster.router().add_load_sample(load);
    }

    fn heartbeat(&self) -> GossipMessage {
        let router = self.cluster.router();
        let (load, draining) = (router.load.current(), router.is_draining());
        GossipMessage::Heartbeat { url: self.cluster.options().url.clone(), load, draining }
    }

    async fn send_heartbeat(&mut self) {
        let heartbeat = self.heartbeat();
        self.broadcast(heartbeat).await;
    }
}

impl GossipSchedule {
    /// Whether a warning of this kind may be logged now. Each kind has its own interval, so that a frequent one does
    /// not hide the others.
    fn may_complain(&mut self, now: Duration, kind: &'static str) -> bool {
        let may = self.last_warned.get(kind).is_none_or(|last| now >= *last + WARNING_INTERVAL);
        if may {
            self.last_warned.insert(kind, now);
        }
        may
    }
}

/// Groups items by their recipients. Items without recipients are dropped.
fn group_by_recipients<T: Ord>(
    told: BTreeMap<T, BTreeSet<Arc<str>>>,
) -> BTreeMap<BTreeSet<Arc<str>>, Vec<T>> {
    let mut together: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (what, servers) in told.into_iter().filter(|(_, servers)| !servers.is_empty()) {
        together.entry(servers).or_default().push(what);
    }
    together
}

/// Resolves the names of peers repeatedly. A name that fails to resolve keeps its addresses.
async fn resolve_peers(cluster: Cluster, names: Vec<String>, own: Option<SocketAddr>) {
    loop {
        let mut pause = RESOLVE_INTERVAL;
        for name in &names {
            match tokio::net::lookup_host(name.as_str()).await {
                Ok(found) => {
                    let found = found.filter(|address| Some(*address) != own).collect();
                    cluster.addresses().resolved(name, found);
                }
                Err(error) => {
                    pause = RESOLVE_AGAIN;
                    tracing::warn!(peer = name, %error, "a peer's name cannot be resolved");
                }
            }
        }
        let peer = cluster.addresses().all().into_iter().next();
        if let Some(host) = peer.and_then(|peer| local_ip_towards(peer).ok()) {
            cluster.set_host(host);
        }
        baton_env::sleep(pause).await;
    }
}

/// This server's address on the route to a peer. Sends nothing: connecting a UDP socket only chooses a route.
fn local_ip_towards(peer: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr =
        if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_not_hidden_by_those_of_another_kind() {
        let (mut pace, start) = (GossipSchedule::default(), Duration::ZERO);
        assert!(pace.may_complain(start, "forged") && !pace.may_complain(start, "forged"));
        assert!(pace.may_complain(start, "namesake"));
        assert!(pace.may_complain(start + WARNING_INTERVAL, "forged"));
    }

    #[test]
    fn what_concerns_the_same_servers_goes_together() {
        let servers = |ids: &[&str]| ids.iter().map(|id| Arc::from(*id)).collect::<BTreeSet<Arc<str>>>();
        let told = [(1, servers(&["b"])), (2, servers(&[])), (3, servers(&["b"])), (4, servers(&["b", "c"]))];
        let together = group_by_recipients(told.into());
        assert_eq!(together[&servers(&["b"])], [1, 3]);
        assert_eq!(together[&servers(&["b", "c"])], [4]);
        assert_eq!(together.len(), 2);
    }
}
