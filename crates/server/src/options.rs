//! How the server behaves. Start at [`Options`].

use std::time::Duration;

use baton_config::{Certificate, ClusterOptions, Settings, ShownSetting, SubscriptionMode};
use baton_queue::Subscription;

/// How the server behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen, `HOST:PORT`; port 0 picks a free one.
    pub listen: String,
    /// The name of this node.
    pub node_id: String,
    /// Connections beyond which new ones are refused.
    pub connections_max: usize,
    /// The same for connections of one address; 0 is no limit.
    pub connections_per_address: usize,
    /// How long a call may take beyond what its caller asked to wait.
    pub call_timeout: Duration,
    /// Messages of a pop that does not say how many.
    pub default_batch_size: u32,
    /// How long a pop waits that does not say how long.
    pub default_timeout: Duration,
    /// Where a new group begins that does not say where.
    pub default_subscription: Subscription,
    /// How long stopping may take.
    pub shutdown_deadline: Duration,
    /// What the token of a caller must be; without this calls need no token.
    pub auth: Option<baton_auth::Options>,
    /// Sites whose pages may call, as their browsers name them: `https://console.example.com`, or `*` for every site.
    pub cors_origins: Vec<String>,
    /// Names that the server goes by; without any, every name beyond loopback will do.
    pub allowed_hosts: Vec<String>,
    /// What to serve HTTPS with; without this it is HTTP.
    pub certificate: Option<Certificate>,
    /// Whether the web console is served.
    pub console: bool,
    /// Every setting with its value and its default, secrets hidden.
    pub settings: Vec<ShownSetting>,
    /// How jobs are run.
    pub jobs: baton_jobs::Options,
    /// How shards are looked after.
    pub shards: baton_shards::Options,
    /// The address of the ZeroMQ socket for shard workers; without this there is none.
    pub shards_listen: Option<baton_zmq::Options>,
    /// How to take part in a cluster; without this the server is alone.
    pub cluster: Option<ClusterOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Self::from(&Settings::default())
    }
}

impl From<&Settings> for Options {
    fn from(settings: &Settings) -> Self {
        Self {
            listen: settings.listen.clone(),
            node_id: settings.node_id.clone(),
            connections_max: settings.connections_max,
            connections_per_address: settings.connections_per_address,
            call_timeout: settings.call_timeout,
            default_batch_size: settings.default_batch_size,
            default_timeout: settings.default_timeout,
            default_subscription: match settings.default_subscription_mode {
                SubscriptionMode::All => Subscription::All,
                SubscriptionMode::New => Subscription::New,
            },
            shutdown_deadline: settings.shutdown_deadline,
            auth: settings.security.auth(),
            cors_origins: settings.security.cors_origins.clone(),
            allowed_hosts: settings.security.allowed_hosts.clone(),
            certificate: settings.security.certificate(),
            cluster: settings.cluster_options(),
            shards: settings.shards.options(!settings.is_embedded()),
            shards_listen: settings.shards.listening(),
            console: settings.console,
            settings: settings.shown(),
            jobs: settings.jobs(),
        }
    }
}
