//! The server: binds its address, starts its parts, and stops them without dropping an answer.
//!
//! Always: after the signal to stop, nothing new is accepted, parked pops are answered, requests under way finish, and
//! all of it ends by a deadline; listening beyond loopback without authentication is warned of. Start at
//! [`Server::run`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use baton_auth::Auth;
use baton_cluster::Gossip;
use baton_http::{Listener, Sites, listen, resolve};
use baton_queue::Broker;
use baton_shards::Shards;
use baton_tls::Identity;
use baton_zmq::ShardSocket;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::{App, Reference};
use crate::options::Options;
use crate::{cluster, openapi};

/// What stopping may take beyond its deadline, for the last tasks to see that it has passed.
const GRACE: Duration = Duration::from_secs(1);

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address names nothing.
    #[error("cannot listen on {address:?}: {source}; give HOST:PORT, for instance 127.0.0.1:6632")]
    Address {
        /// What was given.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The address cannot be used.
    #[error("cannot listen on {address}: {source}; is another server running there?")]
    Listen {
        /// What was tried.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The settings about tokens do not fit together.
    #[error("{0}")]
    Auth(String),
    /// The certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] baton_tls::Error),
    /// The ZeroMQ socket cannot be had.
    #[error("cannot listen for workers of shards on {address}: {problem}")]
    Shards {
        /// What was tried.
        address: String,
        /// Why not.
        problem: String,
    },
    /// The server cannot take part in the cluster.
    #[error("{0}")]
    Cluster(String),
}

/// A server that is bound to its address.
pub struct Server {
    listener: Listener,
    address: SocketAddr,
    app: Arc<App>,
    shard_socket: Option<ShardSocket>,
    gossip: Option<Gossip>,
}

impl Server {
    /// Takes the address. Connections are accepted by the operating system from now on and answered by
    /// [`run`](Self::run).
    pub async fn bind(options: Options, broker: Broker) -> Result<Self, BindError> {
        let auth = options.auth.clone().map(Auth::new).transpose().map_err(BindError::Auth)?.map(Arc::new);
        let identity = options.certificate.as_ref().map(|files| Identity::load(&files.chain, &files.key));
        let identity = identity.transpose()?;
        let address = resolve(&options.listen)
            .await
            .map_err(|source| BindError::Address { address: options.listen.clone(), source })?;
        let has_tls = identity.is_some();
        let listener =
            Listener::bind(address, identity).map_err(|source| BindError::Listen { address, source })?;
        let address = listener.local_addr().map_err(|source| BindError::Listen { address, source })?;
        if !address.ip().is_loopback() {
            warn_of_strangers(address, auth.is_some(), has_tls);
        }
        let (cluster, gossip) = match &options.cluster {
            Some(wanted) => {
                let scheme = if has_tls { "https" } else { "http" };
                let joined = cluster::join(wanted, &options.node_id, scheme, address, &broker).await;
                joined.map(|(cluster, gossip)| (Some(cluster), Some(gossip))).map_err(BindError::Cluster)?
            }
            None => (None, None),
        };
        let only_loopback = address.ip().is_loopback() && auth.is_none();
        let sites = Sites::new(options.cors_origins.clone(), options.allowed_hosts.clone(), only_loopback);
        let reference = Reference { document: openapi::text, page: openapi::PAGE };
        let app = Arc::new(App::new(broker, options, auth, cluster, sites, reference));
        app.draining.look().await;
        let shard_socket = match &app.options.shards_listen {
            Some(options) => Some(bind_shard_socket(options, app.shards.clone()).await?),
            None => None,
        };
        Ok(Self { listener, address, app, shard_socket, gossip })
    }

    /// The address where workers of shards find a ZeroMQ socket, such as `tcp://127.0.0.1:5555`, if there is one.
    pub fn shards_addr(&self) -> Option<&str> {
        self.shard_socket.as_ref().map(ShardSocket::address)
    }

    /// The address it is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// What it serves HTTPS with, if it does; for reading the files again.
    pub fn identity(&self) -> Option<Identity> {
        self.listener.identity().cloned()
    }

    /// Serves until `shutdown`, then finishes what is under way.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { listener, app, shard_socket, gossip, .. } = self;
        let tracker = TaskTracker::new();
        // The signal to stop is first one to hand over jobs, while everything is still served.
        let signal = shutdown;
        let shutdown = CancellationToken::new();
        tracker.spawn(leave(Arc::clone(&app), signal, shutdown.clone()));
        if let Some(socket) = shard_socket {
            tracker.spawn(socket.run(shutdown.clone()));
        }
        if let Some(gossip) = gossip {
            tracker.spawn(gossip.run(shutdown.clone()));
            tracker.spawn(Arc::clone(&app.draining).run(shutdown.clone()));
        }
        if let Some(auth) = &app.auth {
            tracker.spawn(Arc::clone(auth).run(shutdown.clone()));
        }
        listener.run(&app, &tracker, &shutdown).await;
        app.stop();
        drop(listener);
        tracker.close();
        // Each connection keeps to the deadline itself.
        let finish = async {
            app.jobs.shutdown().await;
            app.broker.shutdown().await;
            tracker.wait().await;
        };
        if tokio::time::timeout(app.options.shutdown_deadline + GRACE, finish).await.is_err() {
            let connections = app.traffic.connections.load(Ordering::Relaxed);
            tracing::warn!(connections, "stopping took too long");
        }
    }
}

/// Waits for the signal, hands over the jobs that this node owns, and then has the server stop.
async fn leave(app: Arc<App>, signal: CancellationToken, shutdown: CancellationToken) {
    signal.cancelled().await;
    app.leave();
    let most = app.options.jobs.times.ceiling + GRACE;
    if tokio::time::timeout(most, app.jobs.drain()).await.is_err() {
        tracing::warn!("handing over jobs took too long; others find out by the silence of this server");
    }
    shutdown.cancel();
}

/// Binds the ZeroMQ socket for workers of shards.
async fn bind_shard_socket(options: &baton_zmq::Options, shards: Shards) -> Result<ShardSocket, BindError> {
    let address = format!("{}:{}", options.host, options.port);
    let failed = |problem| BindError::Shards { address: format!("tcp://{address}"), problem };
    let listener = match resolve(&address).await.and_then(listen) {
        Ok(listener) => listener,
        Err(error) => return Err(failed(error.to_string())),
    };
    ShardSocket::new(listener, options, shards).map_err(failed)
}

fn warn_of_strangers(address: SocketAddr, tokens: bool, tls: bool) {
    if !tokens {
        tracing::warn!(
            %address,
            "LISTENING BEYOND THIS MACHINE WITHOUT AUTHENTICATION: anyone who reaches this address can read, \
             change and delete everything; switch on jwt_enabled, or put it behind a firewall or a proxy that \
             authenticates"
        );
    } else if !tls {
        tracing::warn!(
            %address,
            "listening beyond this machine without TLS: anyone on the network path can read messages and tokens; give \
             tls_cert and tls_key, or put it behind a proxy that has them"
        );
    }
}
