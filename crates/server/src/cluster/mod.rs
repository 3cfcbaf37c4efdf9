//! This server in its cluster: how it joins, what it tells and hears, and how requests are led to where they are
//! served best.
//!
//! Always: servers that share a store are one cluster and no others are, because what proves that a server belongs to
//! it is kept in the store; a request that another server passed on is served here and never passed on again; a
//! server that is alone does nothing of this. The decisions are in `baton-cluster`. Start at [`join`], then [`ClusterRouter`].

mod attempt;
mod cluster_router;
mod draining;
mod forward_info;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use baton_cluster::forward::SERVED_BY;
use baton_cluster::limits::{PEERS_MAX, SERVER_ID_BYTES_MAX, URL_BYTES_MAX};
use baton_cluster::{
    Cluster, DatagramSeal, Gauge, Gossip, GossipMessage, Listener, LoadSample, Notice, WaitingGroup,
};
use baton_config::ClusterOptions;
use baton_http::Reply;
use baton_queue::{Broker, News};
use baton_store::{Event, Store};
use baton_tls::TlsClient;
use bytes::Bytes;
use http::HeaderValue;

pub use cluster_router::{ClusterRouter, Routing, ServedByHeaders};
pub use draining::Draining;
pub use forward_info::ForwardInfo;

use crate::process::Usage;

/// The record in the store that makes its servers one cluster. Its value is a secret that they share; its version
/// rises with every start of a server.
const RECORD: &str = "cluster/identity";
const SECRET_BYTES: usize = 32;

/// Joins the cluster of the servers that share the broker's store.
pub async fn join(
    options: &ClusterOptions,
    node_id: &str,
    scheme: &str,
    address: SocketAddr,
    broker: &Broker,
) -> Result<(Cluster, Gossip), String> {
    if node_id.len() > SERVER_ID_BYTES_MAX || !node_id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "node_id {node_id:?} cannot name a server of a cluster: give at most {SERVER_ID_BYTES_MAX} letters, \
             digits and signs without spaces"
        ));
    }
    if options.peers.len() > PEERS_MAX {
        return Err(format!("{} peers are too many, {PEERS_MAX} are allowed", options.peers.len()));
    }
    let url = advertised(&options.advertise, scheme, address);
    if url.len() > URL_BYTES_MAX {
        return Err(format!("advertise has {} bytes, {URL_BYTES_MAX} are allowed", url.len()));
    }
    let (secret, incarnation) = identity(&**broker.store()).await.map_err(|e| e.to_string())?;
    let trust = if options.ca.as_os_str().is_empty() {
        TlsClient::with_system_roots()
    } else {
        TlsClient::with_roots_from(&options.ca)
    };
    let trust = trust.inspect_err(|error| tracing::warn!(%error, "no server with TLS can be forwarded to"));
    let wanted = baton_cluster::Options {
        id: node_id.into(),
        incarnation,
        seal: DatagramSeal::new(&secret, options.secret.expose()),
        listen: options.listen.clone(),
        peers: options.peers.clone(),
        url,
        heartbeat: options.heartbeat,
        dead_after: options.dead_after,
        routes: options.routes,
        policy: options.policy,
        timeout: options.timeout,
        connect_timeout: options.connect_timeout,
        trust: trust.ok(),
    };
    let bound = Gossip::bind(wanted, listener(broker), gauge(broker)).await;
    let (cluster, gossip) = bound.map_err(|e| e.to_string())?;
    let told = cluster.clone();
    broker.relay(Arc::new(move |news| tell(&told, news)));
    match gossip.local_addr() {
        Ok(address) => tracing::info!(%address, peers = ?options.peers, "listening for other servers"),
        Err(error) => tracing::debug!(%error, "the address for datagrams is not known"),
    }
    Ok((cluster, gossip))
}

/// An answer, with the server that gave it if requests may go to others, also while no other is there.
pub fn served_by(cluster: &Cluster, reply: Reply) -> Reply {
    match HeaderValue::from_str(&cluster.options().id) {
        Ok(id) if cluster.options().routes && !reply.has_header(&SERVED_BY) => {
            reply.with_header(SERVED_BY, id)
        }
        _ => reply,
    }
}

/// The same header as a line, for a stream of events.
pub fn served_by_line(cluster: &Cluster) -> Option<String> {
    let id = HeaderValue::from_str(&cluster.options().id).ok().filter(|_| cluster.options().routes)?;
    Some(format!("{SERVED_BY}: {}\r\n", id.to_str().ok()?))
}

/// Where other servers reach this one. One that listens everywhere leaves out the host, since it cannot know it.
fn advertised(advertise: &str, scheme: &str, address: SocketAddr) -> String {
    match advertise {
        "" if address.ip().is_unspecified() => format!("{scheme}://:{}", address.port()),
        "" => format!("{scheme}://{address}"),
        url => url.trim_end_matches('/').into(),
    }
}

/// The secret that the servers of a store share, and the number of this start.
async fn identity(store: &dyn Store) -> Result<(Bytes, u64), baton_store::Error> {
    let mut fresh = [0; SECRET_BYTES];
    baton_env::random_bytes(&mut fresh);
    baton_store::run(store, move |tx| {
        // A server starts also on a full disk.
        tx.use_reserve();
        let known = tx.record(RECORD)?.map(|record| record.value);
        let secret = known.unwrap_or_else(|| Bytes::copy_from_slice(&fresh));
        let incarnation = tx.put_record(RECORD, secret.clone(), None)?;
        Ok((secret, incarnation))
    })
    .await
}

/// Tells other servers what happened here.
fn tell(cluster: &Cluster, news: News<'_>) {
    cluster.publish(match news {
        News::Happened(Event::Appended { queue, partition }) => Notice::Available(queue, partition),
        News::Happened(Event::Freed { queue, group, partition }) => Notice::Freed(queue, group, partition),
        News::Waits { queue, group, name, on } => {
            Notice::Waits(WaitingGroup { queue, group, name: baton_cluster::name_hash(name), on })
        }
        News::Configured(queue) => Notice::Other(GossipMessage::Configured(queue)),
        News::Deleted { queue, name } => {
            Notice::Other(GossipMessage::Deleted(queue, baton_cluster::name_hash(name)))
        }
        News::Switched => Notice::Other(GossipMessage::Switched),
    });
}

/// Tells the broker what happened on other servers.
fn listener(broker: &Broker) -> Listener {
    let broker = broker.clone();
    Arc::new(move |message| match message {
        GossipMessage::Available(entries) => entries.iter().for_each(|(queue, partition)| {
            broker.hear(News::Happened(Event::Appended { queue: *queue, partition: *partition }));
        }),
        GossipMessage::Freed(entries) => entries.iter().for_each(|(queue, group, partition)| {
            let event = Event::Freed { queue: *queue, group: *group, partition: *partition };
            broker.hear(News::Happened(event));
        }),
        GossipMessage::Configured(queue) | GossipMessage::Deleted(queue, _) => {
            broker.hear(News::Configured(*queue))
        }
        GossipMessage::Switched => broker.hear(News::Switched),
        GossipMessage::Heartbeat { .. }
        | GossipMessage::Presence(_)
        | GossipMessage::Leaving
        | GossipMessage::Challenge { .. }
        | GossipMessage::Proof { .. } => {}
    })
}

fn gauge(broker: &Broker) -> Gauge {
    let broker = broker.clone();
    Arc::new(move || {
        let usage = Usage::now();
        LoadSample {
            waiting: broker.wait_statistics().waiters,
            cpu: Duration::from_micros(usage.user_micros + usage.system_micros),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_where_it_is_as_far_as_it_knows() {
        let at = |address: &str| advertised("", "http", address.parse().unwrap());
        assert_eq!(at("127.0.0.1:1"), "http://127.0.0.1:1");
        assert_eq!(at("[::1]:1"), "http://[::1]:1");
        assert_eq!(at("0.0.0.0:6632"), "http://:6632");
        assert_eq!(advertised("https://b/", "http", "[::]:1".parse().unwrap()), "https://b");
    }
}
