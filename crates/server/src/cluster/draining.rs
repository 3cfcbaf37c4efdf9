//! Draining from routing: a server that is drained says so to balancers and to other servers, which then send it no
//! requests, and gives those that come to other servers.
//!
//! Who is drained stands in the store, so any server can be asked to drain any other, and it outlives a restart, as
//! when a machine is serviced. Always: what a server does follows what it last read there, and it looks again when
//! another server says that something was switched, or after some seconds. A drained server serves what no other can.
//! Start at [`Draining::set`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_cluster::{Cluster, GossipMessage, Notice};
use baton_queue::Broker;
use baton_store::Store;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

/// The records of drained servers, by name.
const PREFIX: &str = "cluster/draining/";
/// How soon a server finds out without being told.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Whether this server is drained.
pub struct Draining {
    store: Arc<dyn Store>,
    node_id: Arc<str>,
    cluster: Option<Cluster>,
    on: AtomicBool,
}

impl std::fmt::Debug for Draining {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Draining").field("on", &self.on).finish_non_exhaustive()
    }
}

impl Draining {
    pub(crate) fn new(broker: &Broker, node_id: &str, cluster: Option<Cluster>) -> Self {
        Self {
            store: Arc::clone(broker.store()),
            node_id: node_id.into(),
            cluster,
            on: AtomicBool::new(false),
        }
    }

    /// Whether this server is drained.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Drains a server or ends that; whether there is such a server.
    pub async fn set(&self, server: &str, on: bool) -> Result<bool, baton_store::Error> {
        let is_known = self.knows(server);
        let key = format!("{PREFIX}{server}");
        let done = baton_store::run(&*self.store, move |tx| {
            let was = tx.record(&key)?.is_some();
            match (on, was) {
                (true, false) if is_known => {
                    tx.put_record(&key, Bytes::new(), None)?;
                }
                (false, true) => tx.remove_record(&key),
                _ => {}
            }
            Ok(is_known || was)
        })
        .await?;
        if done {
            if *server == *self.node_id {
                self.apply(on);
            }
            if let Some(cluster) = &self.cluster {
                cluster.publish(Notice::Other(GossipMessage::Switched));
            }
        }
        Ok(done)
    }

    /// Whether this server is or has heard the one of that name.
    fn knows(&self, server: &str) -> bool {
        *server == *self.node_id
            || self.cluster.as_ref().is_some_and(|c| c.view().servers.iter().any(|seen| *seen.id == *server))
    }

    /// Looks up what the store says.
    pub async fn look(&self) {
        let key = format!("{PREFIX}{}", self.node_id);
        match baton_store::run(&*self.store, move |tx| Ok(tx.record(&key)?.is_some())).await {
            Ok(on) => self.apply(on),
            Err(error) => tracing::debug!(%error, "whether this server is drained is not known just now"),
        }
    }

    fn apply(&self, on: bool) {
        if self.on.swap(on, Ordering::Relaxed) == on {
            return;
        }
        if let Some(cluster) = &self.cluster {
            cluster.drain(on);
        }
        if on {
            tracing::info!("this server is drained: other servers send it no requests, /ready answers 503");
        } else {
            tracing::info!("this server takes requests again");
        }
    }

    /// Follows what other servers write, until `stop`. A server that is alone hears of everything itself.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let Some(cluster) = self.cluster.clone() else { return };
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = cluster.wait_for_switch() => {}
                () = baton_env::sleep(LOOK_INTERVAL) => {}
            }
            self.look().await;
        }
    }
}
