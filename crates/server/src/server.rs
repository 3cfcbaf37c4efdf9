//! The listener: accepts connections up to a limit, serves them, and stops without dropping an answer.
//!
//! Always: beyond the limit a connection is told so and closed; after the signal to stop,
//! nothing new is accepted, parked pops are answered, requests under way finish, and all of it ends by a
//! deadline; listening beyond loopback without authentication is warned of. Start at [`Server::run`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_auth::Auth;
use baton_cluster::Gossip;
use baton_queue::Broker;
use baton_shards::Shards;
use baton_tls::Identity;
use baton_zmq::ShardSocket;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::App;
use crate::cluster;
use crate::http1::{Connection, Stream};
use crate::options::Options;
use crate::places::{Place, Places};
use crate::sites::Sites;

/// Connections that the operating system holds for us while we are busy.
const BACKLOG: u32 = 4096;

/// What stopping may take beyond its deadline, for the last tasks to see that it has passed.
const GRACE: Duration = Duration::from_secs(1);

/// How long a peer may take to agree on TLS.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

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
    listener: TcpListener,
    address: SocketAddr,
    app: Arc<App>,
    identity: Option<Identity>,
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
        let listener = listen(address).map_err(|source| BindError::Listen { address, source })?;
        let address = listener.local_addr().map_err(|source| BindError::Listen { address, source })?;
        if !address.ip().is_loopback() {
            warn_of_strangers(address, auth.is_some(), identity.is_some());
        }
        let (cluster, gossip) = match &options.cluster {
            Some(wanted) => {
                let scheme = if identity.is_some() { "https" } else { "http" };
                let joined = cluster::join(wanted, &options.node_id, scheme, address, &broker).await;
                joined.map(|(cluster, gossip)| (Some(cluster), Some(gossip))).map_err(BindError::Cluster)?
            }
            None => (None, None),
        };
        let sites = Sites::new(&options, address.ip().is_loopback());
        let app = Arc::new(App::new(broker, options, auth, cluster, sites));
        app.draining.look().await;
        let shard_socket = match &app.options.shards_listen {
            Some(options) => Some(bind_shard_socket(options, app.shards.clone()).await?),
            None => None,
        };
        Ok(Self { listener, address, app, identity, shard_socket, gossip })
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
        self.identity.clone()
    }

    /// Serves until `shutdown`, then finishes what is under way.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { listener, app, identity, shard_socket, gossip, .. } = self;
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
        accept(&listener, &app, identity.as_ref(), &tracker, &shutdown).await;
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
            let connections = app.connections.load(Ordering::Relaxed);
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

/// The first address that `host:port` names.
async fn resolve(address: &str) -> io::Result<SocketAddr> {
    let mut found = tokio::net::lookup_host(address).await?;
    found.next().ok_or_else(|| io::Error::other("it names no address"))
}

/// Listens on an address; 0 as its port picks a free one.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
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

/// Accepts connections until `shutdown`.
async fn accept(
    listener: &TcpListener,
    app: &Arc<App>,
    identity: Option<&Identity>,
    tracker: &TaskTracker,
    shutdown: &CancellationToken,
) {
    let mut places = Places::new(app.options.connections_max, app.options.connections_per_address);
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(place) = places.take(peer.ip(), &app.refusals) else { continue };
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "cannot set TCP_NODELAY");
                }
                // A token of its own: waiting on a shared one would take its lock with every poll.
                let (app, stop) = (Arc::clone(app), shutdown.child_token());
                match identity {
                    None => tracker.spawn(serve(Stream::plain(stream), peer.ip(), app, place, stop)),
                    Some(identity) => {
                        tracker.spawn(greet(identity.clone(), stream, peer.ip(), app, place, stop))
                    }
                };
            }
            Err(error) => {
                // Out of file descriptors, most likely: they come back when connections end.
                tracing::warn!(%error, "cannot accept a connection");
                baton_env::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn warn_of_strangers(address: SocketAddr, tokens: bool, tls: bool) {
    if !tokens {
        tracing::warn!(
            %address,
            "LISTENING BEYOND THIS MACHINE WITHOUT AUTHENTICATION: whoever reaches this address can read, \
             change and delete everything; switch on jwt_enabled, or put it behind a firewall or a proxy that \
             authenticates"
        );
    } else if !tls {
        tracing::warn!(
            %address,
            "listening beyond this machine without TLS: whoever is on the way can read messages and tokens; give \
             tls_cert and tls_key, or put it behind a proxy that has them"
        );
    }
}

/// Agrees on TLS, then serves.
async fn greet(
    identity: Identity,
    stream: TcpStream,
    peer: IpAddr,
    app: Arc<App>,
    place: Place,
    stop: CancellationToken,
) {
    // Boxed, so that it is not held for as long as the connection lives.
    let greeting = Box::pin(tokio::time::timeout(HANDSHAKE_MAX, identity.accept(stream)));
    let greeted = tokio::select! {
        () = stop.cancelled() => return,
        greeted = greeting => greeted,
    };
    match greeted {
        Ok(Ok(stream)) => serve(Stream::Tls(Box::new(stream)), peer, app, place, stop).await,
        Ok(Err(error)) => tracing::debug!(%error, "a peer does not agree on TLS"),
        Err(_) => tracing::debug!("a peer took too long to agree on TLS"),
    }
}

/// Serves one connection to its end, or refuses it.
async fn serve(stream: Stream, peer: IpAddr, app: Arc<App>, place: Place, stop: CancellationToken) {
    let stopping = AtomicBool::new(false);
    if let Some(limit) = place.beyond {
        let refusal = Connection::new(stream, peer, app, &stopping).refuse(limit);
        tokio::select! {
            () = stop.cancelled() => {}
            // Boxed, so that those who are served do not hold it.
            _ = Box::pin(refusal) => {}
        }
        return;
    }
    app.connections.fetch_add(1, Ordering::Relaxed);
    // Pinned where it is made: moved into place it would be held twice for as long as the connection lives.
    let mut connection = std::pin::pin!(Connection::new(stream, peer, Arc::clone(&app), &stopping).run());
    let outcome = tokio::select! {
        biased;
        outcome = connection.as_mut() => Ok(outcome),
        () = stop.cancelled() => {
            stopping.store(true, Ordering::Relaxed);
            tokio::time::timeout(app.options.shutdown_deadline, connection.as_mut()).await
        }
    };
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection broke"),
        Err(_) => tracing::warn!("a request took too long to finish; its connection was cut"),
    }
    app.connections.fetch_sub(1, Ordering::Relaxed);
    drop(place);
}
