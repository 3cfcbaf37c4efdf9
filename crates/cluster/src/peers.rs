//! Peers: the addresses of the configured peers, which of them are heard, and why the others are not.
//!
//! A peer is a configured name; a datagram comes from an address. The two are matched by address, else by host:
//! behind address translation or a relay, the source port is not the configured one. Always: the memory for sources
//! is bounded; a server that is heard at a new address is forgotten at the old one. Deliberately absent: certainty
//! where several peers share a host and no port matches: then the number of heard peers is right, and the names are a
//! guess. Start at [`Peers::views`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::limits::SOURCES_MAX;
use crate::wire::RejectReason;

/// The peers' addresses, and the datagrams that came from them.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// Addresses by configured name.
    resolved: BTreeMap<String, Vec<SocketAddr>>,
    /// Addresses that are this server's own.
    own: BTreeSet<SocketAddr>,
    /// The address of each server, if it is among the resolved ones.
    of_server: BTreeMap<Arc<str>, SocketAddr>,
    sources: BTreeMap<SocketAddr, Source>,
}

/// The last datagrams of an address.
#[derive(Clone, Debug, Default)]
struct Source {
    /// The server there, and when its last datagram was accepted.
    heard: Option<(Duration, Arc<str>)>,
    /// When a datagram was last refused, and why.
    refused: Option<(Duration, RejectReason)>,
}

impl Source {
    fn last(&self) -> Option<Duration> {
        let (heard, refused) = (self.heard.as_ref().map(|(at, _)| *at), self.refused.map(|(at, _)| at));
        heard.max(refused)
    }
}

/// A configured peer as this server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerView {
    /// Its configured name.
    pub name: String,
    /// Whether its name could be resolved.
    pub resolved: bool,
    /// The server there.
    pub server: Option<Arc<str>>,
    /// Whether that server is alive.
    pub heard: bool,
    /// How long ago its last datagram was accepted.
    pub silent_for: Option<Duration>,
    /// Why its datagrams are refused, if they are.
    pub refused: Option<RejectReason>,
}

impl PeerView {
    /// Why it is not heard; `None` if it is.
    pub fn reason(&self) -> Option<String> {
        let refusal = |reason| match reason {
            RejectReason::Forged => "datagrams refused: another gossip_secret".to_owned(),
            RejectReason::Foreign => "datagrams refused: it uses another database or schema".to_owned(),
            RejectReason::Version => "datagrams refused: another version of the protocol".to_owned(),
            RejectReason::Namesake => "datagrams refused: it has the node_id of this server".to_owned(),
            RejectReason::Unproven => {
                "heard, but it answers no challenge: datagrams to it are lost".to_owned()
            }
            other => format!("datagrams refused: {}", other.name()),
        };
        match (self.heard, self.resolved, self.refused, self.silent_for) {
            (true, ..) => None,
            (_, false, ..) => Some("its name cannot be resolved".into()),
            (.., Some(reason), _) => Some(refusal(reason)),
            (.., Some(silent)) => Some(format!("last heard {} s ago", silent.as_secs())),
            _ => Some("never heard: it does not run, or its datagrams (UDP) are lost".into()),
        }
    }
}

impl Peers {
    /// Sets the addresses of a name.
    pub fn resolved(&mut self, name: &str, addresses: Vec<SocketAddr>) {
        self.resolved.insert(name.to_owned(), addresses);
    }

    /// Marks an address as this server's own.
    pub fn is_own(&mut self, address: SocketAddr) {
        self.own.insert(address);
        self.sources.remove(&address);
    }

    /// A server that has just joined sent a datagram from this address.
    pub fn joined(&mut self, server: &Arc<str>, from: SocketAddr) {
        if self.all().contains(&from) {
            self.of_server.insert(Arc::clone(server), from);
        } else {
            self.of_server.remove(server);
        }
    }

    /// A datagram of a server was accepted.
    pub fn heard(&mut self, now: Duration, server: &Arc<str>, from: SocketAddr) {
        if let Some(source) = self.sources.get_mut(&from)
            && let Some((at, known)) = &mut source.heard
            && known == server
        {
            *at = now;
            return;
        }
        self.sources.retain(|_, source| source.heard.as_ref().is_none_or(|(_, known)| known != server));
        self.source(from).heard = Some((now, Arc::clone(server)));
    }

    /// A datagram from a peer's host was refused.
    pub fn refused(&mut self, now: Duration, reason: RejectReason, from: SocketAddr) {
        self.source(from).refused = Some((now, reason));
    }

    fn source(&mut self, from: SocketAddr) -> &mut Source {
        if self.sources.len() >= SOURCES_MAX && !self.sources.contains_key(&from) {
            // Any process on a peer's host can send from many ports, and is not trusted.
            let oldest =
                self.sources.iter().min_by_key(|(_, source)| (source.heard.is_some(), source.last()));
            if let Some(address) = oldest.map(|(address, _)| *address) {
                self.sources.remove(&address);
            }
        }
        self.sources.entry(from).or_default()
    }

    /// All addresses of other servers.
    pub fn all(&self) -> BTreeSet<SocketAddr> {
        self.resolved.values().flatten().filter(|address| !self.own.contains(address)).copied().collect()
    }

    /// Whether a peer has this IP address. Ports are ignored because of address translation.
    pub fn is_peer(&self, from: IpAddr) -> bool {
        let from = from.to_canonical();
        self.resolved.values().flatten().any(|address| address.ip().to_canonical() == from)
    }

    /// Where to answer a datagram: its source, or all peers if the source is not a peer's address.
    pub fn back_to(&self, from: SocketAddr) -> BTreeSet<SocketAddr> {
        let all = self.all();
        if all.contains(&from) { [from].into() } else { all }
    }

    /// The addresses of some servers; all addresses when one of the servers is unknown.
    pub fn addresses_of(&self, servers: &BTreeSet<Arc<str>>) -> BTreeSet<SocketAddr> {
        let known: Option<_> = servers.iter().map(|server| self.of_server.get(server).copied()).collect();
        known.unwrap_or_else(|| self.all())
    }

    /// The configured peers without this server. `is_alive` says whether a server is alive; a refusal is shown for
    /// `memory`.
    pub fn views(
        &self,
        names: &[String],
        now: Duration,
        memory: Duration,
        is_alive: impl Fn(&str) -> bool,
    ) -> Vec<PeerView> {
        let is_other = |name: &&String| match self.resolved.get(*name) {
            Some(addresses) => addresses.iter().any(|address| !self.own.contains(address)),
            None => true,
        };
        let addresses = |name: &String| self.resolved.get(name).map_or(&[][..], Vec::as_slice);
        let names: Vec<_> = names.iter().filter(is_other).collect();
        let exact = |name: &String| addresses(name).iter().find(|address| self.sources.contains_key(address));
        let mut found: Vec<_> = names.iter().map(|name| exact(name).copied()).collect();
        let mut free: Vec<_> =
            self.sources.keys().filter(|address| !found.contains(&Some(**address))).collect();
        // Servers before refused addresses, in a stable order.
        free.sort_by_key(|address| {
            let source = &self.sources[*address];
            (source.heard.is_none(), source.heard.as_ref().map(|(_, server)| Arc::clone(server)))
        });
        for (name, found) in names.iter().zip(&mut found).filter(|(_, found)| found.is_none()) {
            let is_host = |source: &IpAddr| {
                addresses(name).iter().any(|a| a.ip().to_canonical() == source.to_canonical())
            };
            if let Some(place) = free.iter().position(|address| is_host(&address.ip())) {
                *found = Some(*free.remove(place));
            }
        }
        let shown = |(name, found): (&&String, Option<SocketAddr>)| {
            let source = found.and_then(|address| self.sources.get(&address)).cloned().unwrap_or_default();
            let (at, server) = source.heard.unzip();
            let refused = source.refused.filter(|(then, _)| Some(*then) > at && now < *then + memory);
            PeerView {
                name: (*name).clone(),
                resolved: self.resolved.contains_key(*name),
                heard: server.as_deref().is_some_and(&is_alive),
                server,
                silent_for: at.map(|at| now.saturating_sub(at)),
                refused: refused.map(|(_, reason)| reason),
            }
        };
        names.iter().zip(found).map(shown).collect()
    }
}

/// The URL of a server that may not know its own host.
pub(crate) fn complete_url(url: &str, from: IpAddr) -> String {
    match url.split_once("://:") {
        Some((scheme, port)) => match from {
            IpAddr::V4(host) => format!("{scheme}://{host}:{port}"),
            IpAddr::V6(host) => format!("{scheme}://[{host}]:{port}"),
        },
        None => url.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn names() -> Vec<String> {
        ["b", "c", "d"].map(String::from).into()
    }

    fn reasons(peers: &Peers, now: u64) -> Vec<Option<String>> {
        let seen = peers.views(&names(), at(now), MEMORY, |id| id == "b" || id == "c");
        seen.iter().map(PeerView::reason).collect()
    }

    #[test]
    fn a_server_that_does_not_know_its_host_is_where_it_was_heard() {
        let from: IpAddr = "10.1.2.3".parse().unwrap();
        assert_eq!(complete_url("http://:6632", from), "http://10.1.2.3:6632");
        assert_eq!(complete_url("https://:1", "::1".parse().unwrap()), "https://[::1]:1");
        assert_eq!(complete_url("http://a:6632", from), "http://a:6632");
    }

    #[test]
    fn what_does_not_come_from_a_peer_is_told_apart() {
        let mut peers = Peers::default();
        peers.resolved("b", vec![address("10.0.0.2:6634")]);
        assert!(peers.is_peer("10.0.0.2".parse().unwrap()));
        assert!(peers.is_peer("::ffff:10.0.0.2".parse().unwrap()));
        assert!(!peers.is_peer("10.0.0.3".parse().unwrap()));
    }

    #[test]
    fn each_peer_is_heard_or_has_a_reason() {
        let mut peers = Peers::default();
        assert_eq!(reasons(&peers, 0)[0].as_deref(), Some("its name cannot be resolved"));
        for (name, host) in [("b", "10.0.0.2:1"), ("c", "10.0.0.3:1"), ("d", "10.0.0.4:1")] {
            peers.resolved(name, vec![address(host)]);
        }
        assert!(reasons(&peers, 0)[0].as_ref().unwrap().starts_with("never heard"));
        peers.heard(at(1), &"b".into(), address("10.0.0.2:1"));
        peers.heard(at(1), &"d".into(), address("10.0.0.4:1"));
        peers.refused(at(1), RejectReason::Forged, address("10.0.0.3:9"));
        let told = reasons(&peers, 3);
        assert_eq!(told[0], None);
        assert_eq!(told[1].as_deref(), Some("datagrams refused: another gossip_secret"));
        assert_eq!(told[2].as_deref(), Some("last heard 2 s ago"));
        assert!(reasons(&peers, 9)[1].as_ref().unwrap().starts_with("never heard"), "it is refused no more");
    }

    #[test]
    fn peers_of_one_host_behind_other_ports_are_counted() {
        let mut peers = Peers::default();
        for (name, host) in [("b", "10.0.0.2:1"), ("c", "10.0.0.2:2"), ("d", "10.0.0.2:3")] {
            peers.resolved(name, vec![address(host)]);
        }
        peers.heard(at(1), &"c".into(), address("10.0.0.2:77"));
        peers.heard(at(1), &"b".into(), address("10.0.0.2:78"));
        peers.heard(at(2), &"c".into(), address("10.0.0.2:79"));
        let heard = |peers: &Peers| reasons(peers, 2).iter().filter(|reason| reason.is_none()).count();
        assert_eq!(heard(&peers), 2);
        peers.is_own(address("10.0.0.2:3"));
        assert_eq!(reasons(&peers, 2), [None, None], "this server is no peer of its own");
    }

    #[test]
    fn strangers_on_the_host_of_a_peer_do_not_fill_the_memory() {
        let mut peers = Peers::default();
        peers.resolved("b", vec![address("10.0.0.2:1")]);
        peers.heard(at(0), &"b".into(), address("10.0.0.2:1"));
        for port in 2..2000 {
            peers.refused(at(1), RejectReason::Forged, address(&format!("10.0.0.2:{port}")));
        }
        assert_eq!(peers.sources.len(), SOURCES_MAX);
        assert_eq!(peers.views(&["b".to_owned()], at(1), MEMORY, |_| true)[0].reason(), None);
    }
}
