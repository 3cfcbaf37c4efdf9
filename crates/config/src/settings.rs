//! What can be set, with its defaults, and what the parts of a server are told. Start at [`Settings`].

use std::path::PathBuf;
use std::time::Duration;

use baton_types::Secret;

use crate::cluster::{Cluster, ClusterOptions, host_name};
use crate::foreign::Foreign;
use crate::nodes::Nodes;
use crate::security::Security;
use crate::shards::ShardSettings;

/// The store that is a directory.
pub const EMBEDDED: &str = "embedded";

/// How one server behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where HTTP listens.
    pub listen: String,
    /// Whether the web console is served.
    pub console: bool,
    /// Where data is kept.
    pub data: PathBuf,
    /// Where else data is kept: the address of a PostgreSQL, which may contain a password.
    pub store: Secret,
    /// The schema there.
    pub store_schema: String,
    /// Bytes of messages that may wait on the local disk while the PostgreSQL is away.
    pub spool_max: u64,
    /// The name of this node.
    pub node_id: String,
    /// Free disk space, in bytes, below which pushes are refused.
    pub min_free_disk: u64,
    /// How soon a waiting pop first looks again.
    pub pop_wait_initial_interval: Duration,
    /// Empty looks after which the interval grows.
    pub pop_wait_backoff_threshold: u32,
    /// By how much it grows.
    pub pop_wait_backoff_multiplier: f64,
    /// Its longest value.
    pub pop_wait_max_interval: Duration,
    /// Pops that may wait at once.
    pub pop_waiters_max: usize,
    /// Whether a pop with a group, or one that waits, creates the queue that it names.
    pub pop_creates_queue: bool,
    /// Connections at once.
    pub connections_max: usize,
    /// Connections of one address at once; 0 is no limit.
    pub connections_per_address: usize,
    /// How long a call may take beyond what its caller asked to wait.
    pub call_timeout: Duration,
    /// Where a new group begins that does not say where.
    pub default_subscription_mode: SubscriptionMode,
    /// Messages of a pop that does not say how many.
    pub default_batch_size: u32,
    /// How long a pop waits that does not say how long.
    pub default_timeout: Duration,
    /// How often old messages are looked for.
    pub retention_interval: Duration,
    /// How long traces are kept.
    pub trace_retention: Duration,
    /// How long a worker may be silent before its jobs go to others.
    pub job_lease: Duration,
    /// How often a worker is asked to be heard.
    pub job_heartbeat: Duration,
    /// How long a worker has to end a cancelled job.
    pub job_cancel_grace: Duration,
    /// How long completed and cancelled jobs are kept.
    pub job_completed_retention: Duration,
    /// How long failed jobs, dead letters and history are kept.
    pub job_failed_retention: Duration,
    /// How long the log of a job is kept after its end.
    pub job_logs_retention: Duration,
    /// How long a job waits before it counts as one priority higher.
    pub job_ageing: Duration,
    /// How long stopping may take.
    pub shutdown_deadline: Duration,
    /// What is logged.
    pub log: String,
    /// Who may call, and what is encrypted.
    pub security: Security,
    /// How shards are spread, and where their workers find a socket.
    pub shards: ShardSettings,
    /// How servers share jobs.
    pub nodes: Nodes,
    /// The other servers.
    pub cluster: Cluster,
    /// Variables of the environment that look like settings and were ignored, because a platform sets them.
    pub ignored: Vec<String>,
    /// Variables of the environment that Queen's servers read and this one does not.
    pub foreign: Vec<(String, &'static Foreign)>,
}

/// Where a new group begins that does not say where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SubscriptionMode {
    /// At the oldest message.
    #[default]
    All,
    /// At what is pushed from now on.
    New,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:6632".into(),
            console: true,
            data: "./baton-data".into(),
            store: Secret::new(EMBEDDED),
            store_schema: "baton".into(),
            spool_max: 1 << 30,
            node_id: "baton-1".into(),
            min_free_disk: 256 << 20,
            pop_wait_initial_interval: Duration::from_millis(100),
            pop_wait_backoff_threshold: 3,
            pop_wait_backoff_multiplier: 2.0,
            pop_wait_max_interval: Duration::from_millis(1000),
            pop_waiters_max: 100_000,
            pop_creates_queue: false,
            connections_max: 20_000,
            connections_per_address: 10_000,
            call_timeout: Duration::from_millis(45_000),
            default_subscription_mode: SubscriptionMode::All,
            default_batch_size: 1,
            default_timeout: Duration::from_millis(30_000),
            retention_interval: Duration::from_millis(2000),
            trace_retention: Duration::from_secs(7 * 24 * 3600),
            job_lease: baton_jobs::limits::LEASE,
            job_heartbeat: baton_jobs::limits::HEARTBEAT,
            job_cancel_grace: baton_jobs::limits::CANCEL_GRACE,
            job_completed_retention: baton_jobs::limits::COMPLETED_FOR,
            job_failed_retention: baton_jobs::limits::FAILED_FOR,
            job_logs_retention: baton_jobs::limits::LOGS_FOR,
            job_ageing: baton_jobs::limits::AGEING,
            shutdown_deadline: Duration::from_millis(10_000),
            log: "info".into(),
            security: Security::default(),
            shards: ShardSettings::default(),
            nodes: Nodes::default(),
            cluster: Cluster::default(),
            ignored: Vec::new(),
            foreign: Vec::new(),
        }
    }
}

impl Settings {
    /// Whether everything is kept in the data directory.
    pub fn is_embedded(&self) -> bool {
        self.store.expose() == EMBEDDED
    }

    /// Servers of a cluster need names of their own, so one that was given none is called after its machine.
    pub(crate) fn name_itself(&mut self) {
        if self.cluster_options().is_none() || self.cluster.named {
            return;
        }
        let port = self.listen.rsplit_once(':').map_or("", |(_, port)| port);
        if let Some(host) = host_name() {
            self.node_id = format!("{host}:{port}");
        }
    }

    /// How to take part in a cluster, if there are peers.
    pub fn cluster_options(&self) -> Option<ClusterOptions> {
        let Cluster { peers, gossip_enabled, options, .. } = &self.cluster;
        let wanted = *gossip_enabled && !peers.is_empty();
        wanted.then(|| ClusterOptions { peers: peers.clone(), ..options.clone() })
    }

    /// Whether this server tells others what happens.
    pub fn has_peers(&self) -> bool {
        self.cluster_options().is_some()
    }

    /// What does not fit together.
    pub(crate) fn check_cluster(&self) -> Result<(), String> {
        if self.cluster_options().is_some() && self.is_embedded() {
            return Err("peers need a store that servers can share; give store=postgres://…".into());
        }
        let thresholds = self.cluster.options.policy.thresholds;
        if thresholds.migrate > thresholds.break_at {
            return Err("affinity_migrate_threshold must not be above affinity_break_threshold".into());
        }
        Ok(())
    }

    /// What does not fit together.
    pub(crate) fn check_nodes(&self) -> Result<(), String> {
        self.nodes
            .times
            .check()
            .map_err(|wrong| format!("{wrong}; see the settings job_leader_…, job_node_… and job_handoff_…"))
    }

    /// How jobs are run.
    pub fn jobs(&self) -> baton_jobs::Options {
        let sole = self.is_embedded();
        baton_jobs::Options {
            // Of this start: a server that comes back is not the one that held a lease before.
            node: format!("{}-{:x}", self.node_id, baton_env::random_u64() >> 32).into(),
            name: self.node_id.as_str().into(),
            sole,
            policy: baton_jobs::Policy {
                lease: self.job_lease,
                heartbeat: self.job_heartbeat,
                cancel_grace: self.job_cancel_grace,
                completed_for: self.job_completed_retention,
                cancelled_for: self.job_completed_retention,
                failed_for: self.job_failed_retention,
                logs_for: self.job_logs_retention,
                ageing: self.job_ageing,
                ..baton_jobs::Policy::default()
            },
            // No other server can change what a worker waits for, where there is none.
            look_every: Duration::from_secs(if sole { 5 } else { 1 }),
            times: self.nodes.times,
            channels: self.nodes.channels.as_str().into(),
            ..baton_jobs::Options::default()
        }
    }

    /// What the broker is told.
    pub fn broker(&self) -> baton_queue::Options {
        baton_queue::Options {
            node: self.node_id.as_str().into(),
            pop_wait_initial_interval: self.pop_wait_initial_interval,
            pop_wait_backoff_threshold: self.pop_wait_backoff_threshold,
            pop_wait_backoff_multiplier: self.pop_wait_backoff_multiplier,
            pop_wait_max_interval: self.pop_wait_max_interval,
            retention_interval: self.retention_interval,
            waiters_max: self.pop_waiters_max,
            pop_creates_queue: self.pop_creates_queue,
            keys: self.security.encryption_keys.clone(),
            trace_retention: self.trace_retention,
            spool: None,
        }
    }
}
