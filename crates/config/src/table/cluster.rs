//! The settings about other servers. The names that begin with `QUEEN_` are those of older servers.

use std::path::PathBuf;

use super::security::{self, boolean};
use super::values::{host_and_port, number, positive, positive_millis, set, show_millis};
use crate::setting::{Setting, setting};

pub(super) const PEERS: Setting = setting(
    ["peers", "peers", "BATON_PEERS"],
    &["QUEEN_UDP_PEERS"],
    "HOST:PORT,…",
    "Where the other servers on the same PostgreSQL listen for datagrams. This server may be among them. Names are \
     resolved again every 30 seconds.",
    |s, text| set(&mut s.cluster.peers, text, addresses),
    |s| s.cluster.peers.join(","),
);
pub(super) const GOSSIP_ENABLED: Setting = setting(
    ["gossip_enabled", "gossip-enabled", "BATON_GOSSIP_ENABLED"],
    &["QUEEN_SYNC_ENABLED"],
    "BOOL",
    "Whether servers gossip, if there are peers.",
    |s, text| set(&mut s.cluster.gossip_enabled, text, boolean),
    |s| s.cluster.gossip_enabled.to_string(),
);
pub(super) const GOSSIP_LISTEN: Setting = setting(
    ["gossip_listen", "gossip-listen", "BATON_GOSSIP_LISTEN"],
    &["QUEEN_UDP_NOTIFY_PORT"],
    "HOST:PORT",
    "Where to listen for datagrams (UDP) of other servers. A port alone listens on all interfaces.",
    |s, text| set(&mut s.cluster.options.listen, text, host_and_port_or_port),
    |s| s.cluster.options.listen.clone(),
);
pub(super) const GOSSIP_SECRET: Setting = setting(
    ["gossip_secret", "gossip-secret", "BATON_GOSSIP_SECRET"],
    &["QUEEN_SYNC_SECRET"],
    "SECRET",
    "A secret that datagrams are signed with, beyond the one that servers share through their database. `@FILE` reads \
     it from a file.",
    |s, text| set(&mut s.cluster.options.secret, text, security::secret),
    |_| String::new(),
);
pub(super) const GOSSIP_HEARTBEAT_MS: Setting = setting(
    ["gossip_heartbeat_ms", "gossip-heartbeat-ms", "BATON_GOSSIP_HEARTBEAT_MS"],
    &["QUEEN_SYNC_HEARTBEAT_MS"],
    "MS",
    "How often a server sends a heartbeat.",
    |s, text| set(&mut s.cluster.options.heartbeat, text, positive_millis),
    |s| show_millis(s.cluster.options.heartbeat),
);
pub(super) const GOSSIP_DEAD_AFTER_MS: Setting = setting(
    ["gossip_dead_after_ms", "gossip-dead-after-ms", "BATON_GOSSIP_DEAD_AFTER_MS"],
    &["QUEEN_SYNC_DEAD_THRESHOLD_MS"],
    "MS",
    "The silence after which another server is dead.",
    |s, text| set(&mut s.cluster.options.dead_after, text, positive_millis),
    |s| show_millis(s.cluster.options.dead_after),
);
pub(super) const ADVERTISE: Setting = setting(
    ["advertise", "advertise", "BATON_ADVERTISE"],
    &[],
    "URL",
    "Where other servers reach this one over HTTP, for instance http://10.0.0.1:6632. Empty is where it listens, or, if \
     it listens on all interfaces, where its datagrams come from.",
    |s, text| set(&mut s.cluster.options.advertise, text, url),
    |s| s.cluster.options.advertise.clone(),
);
pub(super) const COORDINATOR_CA: Setting = setting(
    ["coordinator_ca", "coordinator-ca", "BATON_COORDINATOR_CA"],
    &[],
    "FILE",
    "A PEM file with the trusted authorities for other servers with HTTPS, instead of those of the system.",
    |s, text| set(&mut s.cluster.options.ca, text, |text| Ok(PathBuf::from(text))),
    |s| s.cluster.options.ca.display().to_string(),
);
pub(super) const COORDINATOR_ENABLED: Setting = setting(
    ["coordinator_enabled", "coordinator-enabled", "BATON_COORDINATOR_ENABLED"],
    &["QUEEN_COORDINATOR_ENABLED"],
    "BOOL",
    "Whether requests are forwarded to the server that serves them best.",
    |s, text| set(&mut s.cluster.options.routes, text, boolean),
    |s| s.cluster.options.routes.to_string(),
);
pub(super) const COORDINATOR_FORWARD_THRESHOLD: Setting = setting(
    ["coordinator_forward_threshold", "coordinator-forward-threshold", "BATON_COORDINATOR_FORWARD_THRESHOLD"],
    &["QUEEN_COORDINATOR_FORWARD_THRESHOLD"],
    "SHARE",
    "How much less loaded another server must be for a pop to go there, from 0 to 1.",
    |s, text| set(&mut s.cluster.options.policy.thresholds.forward, text, share),
    |s| format!("{:?}", s.cluster.options.policy.thresholds.forward),
);
pub(super) const COORDINATOR_TIMEOUT_MS: Setting = setting(
    ["coordinator_timeout_ms", "coordinator-timeout-ms", "BATON_COORDINATOR_TIMEOUT_MS"],
    &["QUEEN_COORDINATOR_TIMEOUT_MS"],
    "MS",
    "The time limit of a forwarded request, beyond the wait that a pop asks for.",
    |s, text| set(&mut s.cluster.options.timeout, text, positive_millis),
    |s| show_millis(s.cluster.options.timeout),
);
pub(super) const COORDINATOR_CONNECT_TIMEOUT_MS: Setting = setting(
    [
        "coordinator_connect_timeout_ms",
        "coordinator-connect-timeout-ms",
        "BATON_COORDINATOR_CONNECT_TIMEOUT_MS",
    ],
    &["QUEEN_COORDINATOR_CONNECT_TIMEOUT_MS"],
    "MS",
    "How long connecting to another server may take.",
    |s, text| set(&mut s.cluster.options.connect_timeout, text, positive_millis),
    |s| show_millis(s.cluster.options.connect_timeout),
);
pub(super) const COORDINATOR_CIRCUIT_FAILURES: Setting = setting(
    ["coordinator_circuit_failures", "coordinator-circuit-failures", "BATON_COORDINATOR_CIRCUIT_FAILURES"],
    &["QUEEN_COORDINATOR_CIRCUIT_FAILURES"],
    "COUNT",
    "Failures in a row after which the circuit breaker of a server opens.",
    |s, text| set(&mut s.cluster.options.policy.breaker_options.failures, text, positive),
    |s| s.cluster.options.policy.breaker_options.failures.to_string(),
);
pub(super) const COORDINATOR_CIRCUIT_RETRY_MS: Setting = setting(
    ["coordinator_circuit_retry_ms", "coordinator-circuit-retry-ms", "BATON_COORDINATOR_CIRCUIT_RETRY_MS"],
    &["QUEEN_COORDINATOR_CIRCUIT_RETRY_MS"],
    "MS",
    "How long the breaker stays open at first; that doubles with each further failure, up to five minutes.",
    |s, text| set(&mut s.cluster.options.policy.breaker_options.retry, text, positive_millis),
    |s| show_millis(s.cluster.options.policy.breaker_options.retry),
);
pub(super) const AFFINITY_TTL_MS: Setting = setting(
    ["affinity_ttl_ms", "affinity-ttl-ms", "BATON_AFFINITY_TTL_MS"],
    &["QUEEN_AFFINITY_TTL_MS"],
    "MS",
    "How long the affinity of a group without pops is remembered.",
    |s, text| set(&mut s.cluster.options.policy.thresholds.ttl, text, positive_millis),
    |s| show_millis(s.cluster.options.policy.thresholds.ttl),
);
pub(super) const AFFINITY_MIGRATE_THRESHOLD: Setting = setting(
    ["affinity_migrate_threshold", "affinity-migrate-threshold", "BATON_AFFINITY_MIGRATE_THRESHOLD"],
    &["QUEEN_AFFINITY_MIGRATE_THRESHOLD"],
    "SHARE",
    "The load of a server, from 0 to 1, above which groups may leave it.",
    |s, text| set(&mut s.cluster.options.policy.thresholds.migrate, text, share),
    |s| format!("{:?}", s.cluster.options.policy.thresholds.migrate),
);
pub(super) const AFFINITY_BREAK_THRESHOLD: Setting = setting(
    ["affinity_break_threshold", "affinity-break-threshold", "BATON_AFFINITY_BREAK_THRESHOLD"],
    &["QUEEN_AFFINITY_BREAK_THRESHOLD"],
    "SHARE",
    "The load above which they leave it.",
    |s, text| set(&mut s.cluster.options.policy.thresholds.break_at, text, share),
    |s| format!("{:?}", s.cluster.options.policy.thresholds.break_at),
);
pub(super) const AFFINITY_MIGRATE_MIN_IMPROVEMENT: Setting = setting(
    [
        "affinity_migrate_min_improvement",
        "affinity-migrate-min-improvement",
        "BATON_AFFINITY_MIGRATE_MIN_IMPROVEMENT",
    ],
    &["QUEEN_AFFINITY_MIGRATE_MIN_IMPROVEMENT"],
    "SHARE",
    "How much less loaded another server must be for a group to migrate there.",
    |s, text| set(&mut s.cluster.options.policy.thresholds.min_improvement, text, share),
    |s| format!("{:?}", s.cluster.options.policy.thresholds.min_improvement),
);
pub(super) const QUEUE_AFFINITY_THRESHOLD: Setting = setting(
    ["queue_affinity_threshold", "queue-affinity-threshold", "BATON_QUEUE_AFFINITY_THRESHOLD"],
    &["QUEEN_QUEUE_AFFINITY_THRESHOLD"],
    "COUNT",
    "Waiting groups of a queue beyond which all its groups go to one server.",
    |s, text| set(&mut s.cluster.options.policy.queue_affinity_threshold, text, number),
    |s| s.cluster.options.policy.queue_affinity_threshold.to_string(),
);

fn addresses(text: &str) -> Result<Vec<String>, String> {
    let address = |peer| match peer {
        url if str::contains(url, "://") => Err(format!(
            "give HOST:PORT without {}://: the port where that server listens for datagrams (gossip_listen), \
             for instance 10.0.0.2:6634",
            url.split("://").next().unwrap_or_default()
        )),
        peer => host_and_port(peer),
    };
    text.split(',').map(str::trim).filter(|peer| !peer.is_empty()).map(address).collect()
}

fn host_and_port_or_port(text: &str) -> Result<String, String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(format!("0.0.0.0:{port}")),
        Err(_) => host_and_port(text),
    }
}

fn url(text: &str) -> Result<String, String> {
    let known = text.is_empty() || text.starts_with("http://") || text.starts_with("https://");
    if known { Ok(text.into()) } else { Err("give http://HOST:PORT or https://HOST:PORT".into()) }
}

fn share(text: &str) -> Result<f64, String> {
    let given = text.parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share));
    given.ok_or_else(|| "give a number from 0 to 1".into())
}
