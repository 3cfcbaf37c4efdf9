//! Settings: one table says what can be set, under which names, what happens by default and why one would change it.
//!
//! Files, environment and flags all go through [`Settings::set`], so a value means the same wherever it stands, and
//! the reference page and the command line's help are printed from the same table. Always: a later source wins
//! (file, then environment, then flags); a name that is not known or a value that does not fit is an error that
//! names it, never a silent default. Not here: options of queues, which travel over HTTP. Start at [`TABLE`].

mod cluster;
mod foreign;
mod nodes;
mod security;
mod shards;
mod table;
mod values;

use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_queue::Subscription;
use baton_types::Secret;

pub use cluster::Cluster;
pub use foreign::{FOREIGN, Foreign};
pub use nodes::Nodes;
pub use security::{Security, is_secret};
pub use shards::{ShardSettings, ShardsListen};
pub use table::TABLE;

use crate::server;

/// The store that is a directory.
pub const EMBEDDED: &str = "embedded";

/// What the environment names of settings begin with.
pub const PREFIX: &str = "BATON_";

/// Environment names with our prefix that are no settings of the server.
const NOT_SETTINGS: &[&str] = &["BATON_CONFIG", "BATON_URL", "BATON_TOKEN", "BATON_CA", "BATON_UPDATE_DOCS"];
/// Names that tests and benchmarks use begin with one of these.
const NOT_SETTINGS_PREFIXES: &[&str] = &["BATON_TEST_", "BATON_BENCH_", "BATON_CLIENT_"];

/// How one server behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where HTTP listens.
    pub listen: String,
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
    /// How long it may become.
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
    /// How long a worker may be silent before its jobs are given to others.
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

/// One thing that can be set.
pub struct Setting {
    /// Its name in a file.
    pub name: &'static str,
    /// Its name on the command line, without the dashes: the same with `-` for `_`.
    pub flag: &'static str,
    /// Its name in the environment.
    pub env: &'static str,
    /// Other names in the environment, which documents of older servers use.
    pub aliases: &'static [&'static str],
    /// What its value is, for the help: `HOST:PORT`, `MS`.
    pub value: &'static str,
    /// What it is for.
    pub help: &'static str,
    set: fn(&mut Settings, &str) -> Result<(), String>,
    show: fn(&Settings) -> String,
}

impl Setting {
    /// Its value in `settings`, as it would be written.
    pub fn show(&self, settings: &Settings) -> String {
        (self.show)(settings)
    }
}

impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setting").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A setting that cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No setting has this name.
    #[error("{place}: there is no setting {name:?}; see docs/settings.md or `baton serve --help`")]
    Unknown {
        /// Where it was given.
        place: String,
        /// What was given.
        name: String,
    },
    /// The value does not fit.
    #[error("{place}: {name} cannot be {value:?}: {problem}")]
    Malformed {
        /// Where it was given.
        place: String,
        /// The name used there.
        name: String,
        /// The value given.
        value: String,
        /// What would fit.
        problem: String,
    },
    /// Settings that do not fit together.
    #[error("{0}")]
    Together(String),
    /// The file cannot be read.
    #[error("cannot read the settings in {}: {problem}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
}

impl Settings {
    /// The settings of a file, then of the environment, then of flags (setting names and values).
    pub fn load<E, F>(file: Option<&Path>, environment: E, flags: F) -> Result<Self, Error>
    where
        E: IntoIterator<Item = (String, String)>,
        F: IntoIterator<Item = (String, String)>,
    {
        let mut settings = Self::default();
        if let Some(path) = file {
            let text = std::fs::read_to_string(path)
                .map_err(|e| Error::File { path: path.into(), problem: e.to_string() })?;
            settings.read_file(path, &text)?;
        }
        settings.read_environment(environment)?;
        for (name, value) in flags {
            settings.set("flag", &name, &value)?;
        }
        settings.check_cluster().map_err(Error::Together)?;
        settings.check_nodes().map_err(Error::Together)?;
        settings.name_itself();
        Ok(settings)
    }

    /// Servers of a cluster need names of their own, so one that was given none is called after its machine.
    fn name_itself(&mut self) {
        if self.cluster_options().is_none() || self.cluster.named {
            return;
        }
        let port = self.listen.rsplit_once(':').map_or("", |(_, port)| port);
        if let Some(host) = cluster::host_name() {
            self.node_id = format!("{host}:{port}");
        }
    }

    /// Changes the setting called `name`; `place` tells the reader of an error where it was given.
    pub fn set(&mut self, place: &str, name: &str, value: &str) -> Result<(), Error> {
        let Some(setting) = TABLE.iter().find(|setting| setting.name == name) else {
            return Err(Error::Unknown { place: place.into(), name: name.into() });
        };
        self.apply(setting, place, name, value)
    }

    fn apply(&mut self, setting: &Setting, place: &str, name: &str, value: &str) -> Result<(), Error> {
        (setting.set)(self, value.trim()).map_err(|problem| Error::Malformed {
            place: place.into(),
            name: name.into(),
            value: security::shown(setting.name, value),
            problem,
        })
    }

    fn read_file(&mut self, path: &Path, text: &str) -> Result<(), Error> {
        let table: toml::Table = text
            .parse()
            // Only the message: the text around it may hold a secret.
            .map_err(|e: toml::de::Error| Error::File { path: path.into(), problem: place_of(text, &e) })?;
        self.read_table(&path.display().to_string(), "", &table)
    }

    /// A table inside the file lengthens the names of what it holds: `[pop_wait] max_interval_ms` is
    /// `pop_wait_max_interval_ms`.
    fn read_table(&mut self, place: &str, prefix: &str, table: &toml::Table) -> Result<(), Error> {
        for (key, value) in table {
            let name = format!("{prefix}{key}");
            match value {
                toml::Value::Table(inner) => self.read_table(place, &format!("{name}_"), inner)?,
                toml::Value::String(text) => self.set(place, &name, text)?,
                toml::Value::Integer(number) => self.set(place, &name, &number.to_string())?,
                toml::Value::Float(number) => self.set(place, &name, &number.to_string())?,
                toml::Value::Boolean(flag) => self.set(place, &name, &flag.to_string())?,
                toml::Value::Datetime(moment) => self.set(place, &name, &moment.to_string())?,
                toml::Value::Array(list) => self.set(place, &name, &joined(list))?,
            }
        }
        Ok(())
    }

    /// Aliases first, so that our own names win.
    fn read_environment(
        &mut self,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), Error> {
        let mut own = Vec::new();
        for (name, value) in environment {
            if name.starts_with(PREFIX) {
                own.push((name, value));
            } else if let Some(setting) =
                TABLE.iter().find(|setting| setting.aliases.contains(&name.as_str()))
            {
                self.apply(setting, "environment", &name, &value)?;
            } else if let Some(foreign) = foreign::find(&name) {
                self.foreign.push((name, foreign));
            }
        }
        for (name, value) in own {
            let ours = NOT_SETTINGS.contains(&name.as_str())
                || NOT_SETTINGS_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            match TABLE.iter().find(|setting| setting.env == name) {
                Some(setting) => self.apply(setting, "environment", &name, &value)?,
                None if ours => {}
                None if is_service_link(&name, &value) => self.ignored.push(name),
                None => return Err(Error::Unknown { place: "environment".into(), name }),
            }
        }
        Ok(())
    }

    /// Whether everything is kept in the data directory.
    pub fn is_embedded(&self) -> bool {
        self.store.expose() == EMBEDDED
    }

    /// What the HTTP server is told.
    pub fn server(&self) -> server::Options {
        server::Options {
            listen: self.listen.clone(),
            node_id: self.node_id.clone(),
            connections_max: self.connections_max,
            connections_per_address: self.connections_per_address,
            call_timeout: self.call_timeout,
            default_batch_size: self.default_batch_size,
            default_timeout: self.default_timeout,
            default_subscription: match self.default_subscription_mode {
                SubscriptionMode::All => Subscription::All,
                SubscriptionMode::New => Subscription::New,
            },
            shutdown_deadline: self.shutdown_deadline,
            auth: self.security.auth(),
            cors_origins: self.security.cors_origins.clone(),
            allowed_hosts: self.security.allowed_hosts.clone(),
            certificate: self.security.certificate(),
            cluster: self.cluster_options(),
            shards: self.shards.options(!self.is_embedded()),
            shards_listen: self.shards.listening(),
            jobs: self.jobs(),
        }
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
            // Nobody else can change what a worker waits for, where there is nobody else.
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

/// Whether Kubernetes injects this variable into pods beside a Service whose name begins with `baton`, as
/// `BATON_SERVICE_HOST`, `BATON_PORT=tcp://10.0.0.1:6632` or `BATON_PORT_6632_TCP_ADDR`.
fn is_service_link(name: &str, value: &str) -> bool {
    const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
    let name = format!("_{}", name.strip_prefix(PREFIX).unwrap_or_default());
    let is_url =
        || PROTOCOLS.iter().any(|scheme| value.starts_with(&format!("{}://", scheme.to_lowercase())));
    if name.ends_with("_SERVICE_HOST") || name.ends_with("_SERVICE_PORT") || name.contains("_SERVICE_PORT_") {
        return true;
    }
    if name.ends_with("_PORT") && is_url() {
        return true;
    }
    let Some((_, number_and_rest)) = name.split_once("_PORT_") else { return false };
    let mut parts = number_and_rest.split('_');
    let is_number = parts.next().is_some_and(|number| number.parse::<u16>().is_ok());
    let is_protocol = parts.next().is_some_and(|protocol| PROTOCOLS.contains(&protocol));
    is_number && is_protocol && matches!(parts.next(), None | Some("PROTO" | "PORT" | "ADDR"))
}

/// What is wrong with a file, and in which line.
fn place_of(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    format!("line {}: {}", before.matches('\n').count() + 1, error.message())
}

/// A list of texts as it would stand in the environment.
fn joined(list: &[toml::Value]) -> String {
    list.iter().map(|value| value.as_str().unwrap_or("?")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn load(file: &str, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Settings, Error> {
        let mut settings = Settings::default();
        settings.read_file(Path::new("baton.toml"), file)?;
        settings.read_environment(pairs(environment))?;
        for (name, value) in flags {
            settings.set("flag", name, value)?;
        }
        Ok(settings)
    }

    fn refusal(file: &str, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> String {
        load(file, environment, flags).unwrap_err().to_string()
    }

    #[test]
    fn a_later_source_wins() {
        let file = "listen = '127.0.0.1:1'\nconnections_max = 5\n[pop_wait]\nmax_interval_ms = 700\n";
        let settings = load(
            file,
            &[("BATON_LISTEN", "127.0.0.1:2"), ("BATON_CONNECTIONS_MAX", "6")],
            &[("listen", "h:3")],
        );
        let settings = settings.unwrap();
        assert_eq!((settings.listen.as_str(), settings.connections_max), ("h:3", 6));
        assert_eq!(settings.pop_wait_max_interval, Duration::from_millis(700));
    }

    #[test]
    fn names_of_older_servers_are_understood_and_ours_win() {
        let alias = ("POP_WAIT_BASE_INTERVAL_MS", "40");
        assert_eq!(load("", &[alias], &[]).unwrap().pop_wait_initial_interval, Duration::from_millis(40));
        let both = [("BATON_POP_WAIT_INITIAL_INTERVAL_MS", "50"), alias, ("PORT", "x"), ("HOST", "y")];
        assert_eq!(load("", &both, &[]).unwrap().pop_wait_initial_interval, Duration::from_millis(50));
    }

    #[test]
    fn names_of_older_servers_that_mean_nothing_here_are_told_with_what_to_set() {
        let old =
            [("PG_HOST", "db"), ("PORT", "6632"), ("QUEEN_VEGAS_MIN_LIMIT", "3"), ("QUEEN_SERVER_URL", "x")];
        let told = load("", &old, &[]).unwrap().foreign;
        let told: Vec<_> = told.iter().map(|(name, foreign)| (name.as_str(), foreign.instead)).collect();
        assert_eq!(
            told.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["PG_HOST", "PORT", "QUEEN_VEGAS_MIN_LIMIT"]
        );
        assert!(told[0].1.contains("`store`") && told[1].1.contains("`listen`"), "{told:?}");
        assert!(
            load("", &[("QUEEN_UDP_PEERS", "")], &[]).unwrap().foreign.is_empty(),
            "an alias is a setting"
        );
    }

    #[test]
    fn an_address_that_is_a_url_is_refused_with_the_right_form() {
        let refused = refusal("", &[], &[("peers", "http://10.0.0.2:6632")]);
        assert!(refused.contains("without http://") && refused.contains("datagrams"), "{refused}");
        assert!(refusal("", &[], &[("listen", "http://127.0.0.1:6632")]).contains("without http://"));
        assert!(refusal("", &[], &[("gossip_listen", "udp://0.0.0.0:6634")]).contains("HOST:PORT"));
    }

    #[test]
    fn what_is_unknown_or_malformed_is_named() {
        assert!(refusal("lisen = 'x:1'", &[], &[]).contains("\"lisen\""));
        assert!(refusal("[pop_wait]\nspeed = 1", &[], &[]).contains("\"pop_wait_speed\""));
        assert!(refusal("x = [", &[], &[]).contains("baton.toml"));
        assert!(refusal("", &[("BATON_LISEN", "x:1")], &[]).contains("\"BATON_LISEN\""));
        assert!(refusal("", &[("POP_WAIT_MAX_INTERVAL_MS", "1s")], &[]).contains("POP_WAIT_MAX_INTERVAL_MS"));
        assert!(refusal("", &[], &[("prot", "1")]).contains("\"prot\""));
        let malformed = [
            ("listen", "6632"),
            ("listen", ":1"),
            ("listen", "h:99999"),
            ("data", ""),
            ("store", "mysql://h/d"),
            ("store_schema", "pg_mine"),
            ("spool_max", "much"),
            ("min_free_disk", "1 TB"),
            ("min_free_disk", "99999999999999GiB"),
            ("connections_max", "0"),
            ("connections_max", "-1"),
            ("pop_wait_backoff_multiplier", "0.5"),
            ("pop_wait_backoff_multiplier", "NaN"),
            ("default_batch_size", "10001"),
            ("default_subscription_mode", "old"),
            ("default_timeout_ms", "1.5"),
        ];
        for (name, value) in malformed {
            assert!(refusal("", &[], &[(name, value)]).contains(name), "{name} {value}");
        }
    }

    #[test]
    fn the_settings_of_the_coordinator_go_by_their_old_names_too() {
        let old = [
            ("QUEEN_COORDINATOR_ENABLED", "true"),
            ("QUEEN_UDP_PEERS", "queen-1:6634, queen-2:6634"),
            ("QUEEN_UDP_NOTIFY_PORT", "6633"),
            ("QUEEN_COORDINATOR_FORWARD_THRESHOLD", "0.2"),
            ("QUEEN_COORDINATOR_TIMEOUT_MS", "4000"),
            ("QUEEN_AFFINITY_TTL_MS", "1000"),
            ("QUEEN_AFFINITY_MIGRATE_THRESHOLD", "0.5"),
            ("QUEEN_AFFINITY_BREAK_THRESHOLD", "0.8"),
            ("QUEEN_AFFINITY_MIGRATE_MIN_IMPROVEMENT", "0.1"),
            ("QUEEN_QUEUE_AFFINITY_THRESHOLD", "3"),
        ];
        let settings = Settings { store: Secret::new("postgres://h/d"), ..load("", &old, &[]).unwrap() };
        let options = settings.server().cluster.unwrap();
        assert_eq!(options.peers, ["queen-1:6634", "queen-2:6634"]);
        assert_eq!((options.listen.as_str(), options.routes), ("0.0.0.0:6633", true));
        assert_eq!((options.timeout, options.policy.queue_affinity_threshold), (Duration::from_secs(4), 3));
        let thresholds = options.policy.thresholds;
        assert_eq!((thresholds.forward, thresholds.migrate, thresholds.break_at), (0.2, 0.5, 0.8));
        assert_eq!((thresholds.min_improvement, thresholds.ttl), (0.1, Duration::from_secs(1)));
        assert!(Settings::default().server().cluster.is_none(), "a server is alone unless told");
        let refused = Settings::load(None, pairs(&[("BATON_PEERS", "a:1")]), pairs(&[]));
        assert!(refused.unwrap_err().to_string().contains("postgres"));
        let named = Settings::load(None, pairs(&[]), pairs(&[("peers", "a:1"), ("store", "postgres://h/d")]));
        assert_ne!(named.unwrap().node_id, Settings::default().node_id);
        let own = [("peers", "a:1"), ("store", "postgres://h/d"), ("node_id", "baton-1")];
        assert_eq!(Settings::load(None, pairs(&[]), pairs(&own)).unwrap().node_id, "baton-1");
    }

    #[test]
    fn variables_that_kubernetes_injects_for_a_service_are_ignored() {
        let injected = [
            ("BATON_SERVICE_HOST", "10.0.0.7"),
            ("BATON_SERVICE_PORT", "6632"),
            ("BATON_SERVICE_PORT_HTTP", "6632"),
            ("BATON_PORT", "tcp://10.0.0.7:6632"),
            ("BATON_PORT_6632_TCP", "tcp://10.0.0.7:6632"),
            ("BATON_PORT_6632_TCP_PROTO", "tcp"),
            ("BATON_PORT_6632_TCP_PORT", "6632"),
            ("BATON_PORT_6634_UDP_ADDR", "10.0.0.7"),
            ("BATON_HEADLESS_PORT", "tcp://10.0.0.7:6632"),
            ("BATON_HEADLESS_PORT_6632_TCP_ADDR", "10.0.0.7"),
        ];
        let settings = load("", &injected, &[]).unwrap();
        assert_eq!(settings.ignored, injected.map(|(name, _)| name));
        assert_eq!(Settings { ignored: Vec::new(), ..settings }, Settings::default());
        for (name, value) in [
            ("BATON_PORT", "6632"),
            ("BATON_LISTEN_PORT", "6632"),
            ("BATON_PORT_X_TCP", "x"),
            ("BATON_PORT_1_TCP_X", "x"),
        ] {
            assert!(refusal("", &[(name, value)], &[]).contains(name), "{name}");
        }
    }

    #[test]
    fn the_address_of_the_store_is_never_printed_and_may_stand_in_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "postgres://u:hush@h/d\n").unwrap();
        let given = format!("@{}", file.path().display());
        let settings = load("", &[], &[("store", &given)]).unwrap();
        assert_eq!(settings.store.expose(), "postgres://u:hush@h/d");
        assert!(!format!("{settings:?}").contains("hush"));
        assert!(!refusal("", &[], &[("store", "mysql://u:hush@h/d")]).contains("hush"));
    }

    #[test]
    fn names_that_are_no_settings_are_left_alone() {
        assert_eq!(
            load("", &[("BATON_URL", "x"), ("BATON_TEST_SEED", "7")], &[]).unwrap(),
            Settings::default()
        );
    }

    #[test]
    fn every_default_can_be_written_back() {
        let defaults = Settings::default();
        let mut again = Settings { log: "other".into(), ..Settings::default() };
        for setting in TABLE {
            again.set("test", setting.name, &setting.show(&defaults)).unwrap();
            assert_eq!(setting.env, format!("{PREFIX}{}", setting.name.to_uppercase()));
            assert_eq!(setting.flag, setting.name.replace('_', "-"));
        }
        again.cluster.named = false;
        assert_eq!(again, defaults);
    }

    proptest! {
        #[test]
        fn no_text_makes_a_setting_panic(place in 0..TABLE.len(), text in any::<String>()) {
            let _ = Settings::default().set("test", TABLE[place].name, &text);
        }
    }
}
