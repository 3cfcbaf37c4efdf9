//! How servers find each other and share the work. Start at [`Cluster`].

use std::path::PathBuf;
use std::time::Duration;

use baton_cluster::Policy;
use baton_types::Secret;

/// How a server takes part in a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterOptions {
    /// Where to listen for datagrams.
    pub listen: String,
    /// Where the other servers listen.
    pub peers: Vec<String>,
    /// A secret beyond the one in the store.
    pub secret: Secret,
    /// Where other servers reach this one over HTTP; empty is where it listens.
    pub advertise: String,
    /// The authorities of servers that speak TLS; empty are those of the system.
    pub ca: PathBuf,
    /// How often this server says that it is there.
    pub heartbeat: Duration,
    /// The silence after which another server is dead.
    pub dead_after: Duration,
    /// Whether requests are routed.
    pub routes: bool,
    /// How they are routed.
    pub policy: Policy,
    /// How long a forwarded request may take, beyond the wait that it asks for.
    pub timeout: Duration,
    /// How long connecting to another server may take.
    pub connect_timeout: Duration,
}

/// How servers find each other and share the work.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Where the other servers listen for datagrams.
    pub peers: Vec<String>,
    /// Whether servers gossip.
    pub gossip_enabled: bool,
    /// Whether this server was given a name of its own.
    pub named: bool,
    /// What the server is told about taking part.
    pub options: ClusterOptions,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            peers: Vec::new(),
            gossip_enabled: true,
            named: false,
            options: ClusterOptions {
                listen: "127.0.0.1:6634".into(),
                peers: Vec::new(),
                secret: Secret::default(),
                advertise: String::new(),
                ca: PathBuf::new(),
                heartbeat: Duration::from_millis(1000),
                dead_after: Duration::from_millis(5000),
                routes: false,
                policy: Policy::default(),
                timeout: Duration::from_millis(5000),
                connect_timeout: Duration::from_millis(1000),
            },
        }
    }
}

/// The name of this machine, for a server that was given none of its own.
pub(crate) fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}
