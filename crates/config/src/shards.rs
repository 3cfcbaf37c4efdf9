//! How shards are spread, and where their workers find a socket.
//!
//! Always: without `shards_listen`, or one of the older names for its parts, no ZeroMQ socket is opened; a part that is
//! not given is loopback and port 5555. Start at [`ShardSettings`].

use std::time::Duration;

use baton_shards::{Allocation, Rules};
use baton_types::Secret;

/// Where workers find a ZeroMQ socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardsListen {
    pub(crate) host: Option<String>,
    pub(crate) port: Option<u16>,
}

impl ShardsListen {
    /// Exactly there.
    pub fn at(host: impl Into<String>, port: u16) -> Self {
        Self { host: Some(host.into()), port: Some(port) }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.host.is_none() && self.port.is_none()
    }

    pub(crate) fn host(&self) -> &str {
        self.host.as_deref().unwrap_or("127.0.0.1")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.unwrap_or(5555)
    }
}

/// Everything about shards that can be set.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardSettings {
    /// Where workers find a ZeroMQ socket; nowhere unless told.
    pub listen: ShardsListen,
    /// How long a worker may be silent.
    pub timeout: Duration,
    /// How often the silent are looked for.
    pub check_interval: Duration,
    /// How long they are remembered.
    pub forget_after: Duration,
    /// How shards are spread.
    pub allocation: Allocation,
    /// From one revocation to the next.
    pub rebalance_interval: Duration,
    /// Shards of a service.
    pub max: u32,
    /// Connections over ZeroMQ.
    pub connections_max: usize,
    /// The key that the socket proves itself with.
    pub curve_secret_key: Secret,
    /// The keys of the workers that may connect.
    pub curve_clients: Vec<String>,
}

impl Default for ShardSettings {
    fn default() -> Self {
        Self {
            listen: ShardsListen::default(),
            timeout: Duration::from_secs(15),
            check_interval: Duration::from_secs(5),
            forget_after: Duration::from_secs(60),
            allocation: Allocation::Contiguous,
            rebalance_interval: Duration::ZERO,
            max: 1_000_000,
            connections_max: 20_000,
            curve_secret_key: Secret::default(),
            curve_clients: Vec::new(),
        }
    }
}

impl ShardSettings {
    /// How shards are looked after, on a store that is `shared` with other servers or not.
    pub fn options(&self, shared: bool) -> baton_shards::Options {
        baton_shards::Options {
            rules: Rules {
                allocation: self.allocation,
                timeout: self.timeout,
                forget_after: self.forget_after,
                rebalance_interval: self.rebalance_interval,
            },
            check_interval: self.check_interval,
            shards_max: self.max,
            shared,
        }
    }

    /// Where to listen, if anywhere.
    pub fn listening(&self) -> Option<baton_zmq::Options> {
        (!self.listen.is_off()).then(|| baton_zmq::Options {
            host: self.listen.host().to_owned(),
            port: self.listen.port(),
            curve_secret_key: self.curve_secret_key.clone(),
            curve_clients: self.curve_clients.clone(),
            connections_max: self.connections_max,
            timeout: self.timeout,
        })
    }
}
