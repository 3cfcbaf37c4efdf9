//! The listener: accepts connections up to a limit, and serves each until it ends or the server stops.
//!
//! Always: beyond a limit a connection is told so and closed; after the signal to stop nothing new is accepted, and
//! requests under way finish by a deadline. Start at [`Listener::run`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_tls::Identity;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::Connection;
use super::connection_slots::{ConnectionSlot, ConnectionSlots};
use super::service::Service;
use super::stream::Stream;

/// Connections that the operating system holds for us while we are busy.
const BACKLOG: u32 = 4096;

/// How long a peer may take to agree on TLS.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// The first address that `host:port` names.
pub async fn resolve(address: &str) -> io::Result<SocketAddr> {
    let mut found = tokio::net::lookup_host(address).await?;
    found.next().ok_or_else(|| io::Error::other("it names no address"))
}

/// Listens on an address; 0 as its port picks a free one.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections.
pub struct Listener {
    socket: TcpListener,
    identity: Option<Identity>,
}

impl Listener {
    /// Listens on an address, for HTTPS if there is an `identity`. Connections are accepted by the operating system from
    /// now on and answered by [`run`](Self::run).
    pub fn bind(address: SocketAddr, identity: Option<Identity>) -> io::Result<Self> {
        Ok(Self { socket: listen(address)?, identity })
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// What it serves HTTPS with, if it does.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Accepts connections until `shutdown`. Each is a task of `tracker`.
    pub async fn run<S: Service>(
        &self,
        service: &Arc<S>,
        tracker: &TaskTracker,
        shutdown: &CancellationToken,
    ) {
        let limits = service.limits();
        let mut slots = ConnectionSlots::new(limits.connections_max, limits.connections_per_address);
        loop {
            let accepted = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                accepted = self.socket.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let Some(slot) = slots.reserve(peer.ip(), &service.traffic().refusals) else { continue };
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "cannot set TCP_NODELAY");
                    }
                    // A token of its own: waiting on a shared one would take its lock with every poll.
                    let (service, stop) = (Arc::clone(service), shutdown.child_token());
                    match self.identity.clone() {
                        None => tracker.spawn(serve(Stream::plain(stream), peer.ip(), service, slot, stop)),
                        Some(identity) => {
                            tracker.spawn(greet(identity, stream, peer.ip(), service, slot, stop))
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
}

/// Agrees on TLS, then serves.
async fn greet<S: Service>(
    identity: Identity,
    stream: TcpStream,
    peer: IpAddr,
    service: Arc<S>,
    slot: ConnectionSlot,
    stop: CancellationToken,
) {
    // Boxed, so that it is not held for as long as the connection lives.
    let greeting = Box::pin(tokio::time::timeout(HANDSHAKE_MAX, identity.accept(stream)));
    let greeted = tokio::select! {
        () = stop.cancelled() => return,
        greeted = greeting => greeted,
    };
    match greeted {
        Ok(Ok(stream)) => serve(Stream::Tls(Box::new(stream)), peer, service, slot, stop).await,
        Ok(Err(error)) => tracing::debug!(%error, "a peer does not agree on TLS"),
        Err(_) => tracing::debug!("a peer took too long to agree on TLS"),
    }
}

/// Serves one connection to its end, or refuses it.
async fn serve<S: Service>(
    stream: Stream,
    peer: IpAddr,
    service: Arc<S>,
    slot: ConnectionSlot,
    stop: CancellationToken,
) {
    let stopping = AtomicBool::new(false);
    if let Some(limit) = slot.beyond {
        let refusal = Connection::new(stream, peer, service, &stopping).refuse(limit);
        tokio::select! {
            () = stop.cancelled() => {}
            // Boxed, so that served connections do not hold it.
            _ = Box::pin(refusal) => {}
        }
        return;
    }
    service.traffic().connections.fetch_add(1, Ordering::Relaxed);
    // Pinned where it is made: moved into place it would be held twice for as long as the connection lives.
    let mut connection = std::pin::pin!(Connection::new(stream, peer, Arc::clone(&service), &stopping).run());
    let outcome = tokio::select! {
        biased;
        outcome = connection.as_mut() => Ok(outcome),
        () = stop.cancelled() => {
            stopping.store(true, Ordering::Relaxed);
            tokio::time::timeout(service.limits().shutdown_deadline, connection.as_mut()).await
        }
    };
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection broke"),
        Err(_) => tracing::warn!("a request took too long to finish; its connection was cut"),
    }
    service.traffic().connections.fetch_sub(1, Ordering::Relaxed);
    drop(slot);
}
