//! `baton serve`: runs the server in the foreground until it gets a signal.
//!
//! Always: the server prints its first line when it accepts requests, so a script may wait for it. The first SIGTERM
//! or SIGINT lets running requests finish, the second ends the process at once. SIGHUP reloads the certificate;
//! without one it ends the process. A store that fails stops the process with a message and a non-zero exit code, so
//! that a supervisor can restart it. The flags come from the table of settings. Start at [`run`].

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use baton_config::{Setting, Settings, TABLE};
use baton_queue::{Broker, Spool};
use baton_server::{Options, Server};
use baton_store::Store;
use baton_store_embedded::EmbeddedStore;
use baton_store_postgres::PostgresStore;
use baton_tls::Identity;
use clap::{Arg, ArgMatches, Command, FromArgMatches};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::log;

/// How often to check whether the store still works.
const STORE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The exit code after a second signal, as a shell reports an interrupted process.
const STOPPED_AT_ONCE: i32 = 130;

/// Runs the server.
#[derive(Clone, Debug, Default)]
pub struct Args {
    /// A TOML file with settings.
    pub config: Option<PathBuf>,
    /// Settings given as flags.
    pub flags: Vec<(String, String)>,
}

impl clap::Args for Args {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("A TOML file with settings; the environment and flags win over it");
        let defaults = Settings::default();
        TABLE.iter().fold(command.arg(config), |command, setting| {
            let default = setting.show(&defaults);
            let arg = Arg::new(setting.name)
                .long(setting.flag)
                .value_name(setting.value)
                // A key may begin with any character.
                .allow_hyphen_values(matches!(setting.value, "SECRET" | "KEYS"))
                .help(format!("{} [env: {}] [default: {default}]", setting.help, setting.env));
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |setting: &Setting| {
            let value = matches.get_one::<String>(setting.name)?;
            Some((setting.name.to_owned(), value.clone()))
        };
        Ok(Self {
            config: matches.get_one::<PathBuf>("config").cloned(),
            flags: TABLE.iter().filter_map(given).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args {
    /// The effective settings: file, then environment, then flags.
    pub fn settings(&self) -> Result<Settings, baton_config::Error> {
        // A name or value that is not UTF-8 is none of ours.
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Settings::load(self.config.as_deref(), environment, self.flags.clone())
    }
}

/// Serves until a signal comes or the store fails.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let settings = args.settings()?;
    // Files of the server are readable by its own user only.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    start_log(&settings.log)?;
    if !settings.ignored.is_empty() {
        tracing::warn!(
            variables = settings.ignored.join(" "),
            "ignored variables that Kubernetes injects for a Service named baton; set enableServiceLinks: false in the pod"
        );
    }
    for (variable, foreign) in &settings.foreign {
        let instead = foreign.instead;
        tracing::warn!(variable, instead, "ignored a variable of Queen's server, which Baton does not read");
    }
    let mut signals = Signals::new()?;
    let store = open(&settings).await?;
    let spool = open_spool(&settings)?;
    let options = baton_queue::Options { spool: spool.clone(), ..settings.broker() };
    let broker = Broker::start(Arc::clone(&store), options);
    warn_of_missing_key(&broker).await?;
    let server = Server::bind(Options::from(&settings), broker).await?;
    let (address, identity) = (server.local_addr(), server.identity());
    let shards = server.shards_addr().map(str::to_owned);
    let scheme = if identity.is_some() { "https" } else { "http" };

    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(server.run(shutdown.clone()));
    announce(&format!("baton is listening on {scheme}://{address}"))?;
    if let Some(address) = shards {
        announce(&format!("baton is listening for workers of shards on {address}"))?;
    }

    let failure = tokio::select! {
        name = signals.next(identity.as_ref()) => {
            tracing::info!(signal = name, "stopping; once more to stop at once");
            None
        }
        reason = failure(&*store) => Some(reason),
    };
    shutdown.cancel();
    tokio::select! {
        joined = serving => joined.context("the server task broke off")?,
        name = signals.next(None) => {
            tracing::warn!(signal = name, "stopped at once; what was not answered may not have happened");
            std::process::exit(STOPPED_AT_ONCE);
        }
    }
    if let Some(reason) = failure {
        bail!("the store has failed: {reason}");
    }
    store.close().await.context("closing the store")?;
    if let Some(spool) = spool {
        spool.store.close().await.context("closing the spool")?;
    }
    tracing::info!("stopped");
    Ok(())
}

async fn open(settings: &Settings) -> anyhow::Result<Arc<dyn Store>> {
    if !settings.is_embedded() {
        let store = PostgresStore::open(postgres_options(settings)).await?;
        if store.has_other_servers() && !settings.has_peers() {
            tracing::warn!(
                "another server uses this database and schema, and no peers are set: each waits for the other at the \
                 same partitions, and consumers hear late of what is pushed elsewhere; set peers on all of them"
            );
        }
        return Ok(Arc::new(store));
    }
    let options = baton_store_embedded::Options {
        min_free_disk: settings.min_free_disk,
        ..baton_store_embedded::Options::new(&settings.data)
    };
    Ok(Arc::new(EmbeddedStore::open(options)?))
}

/// The spool for pushes while PostgreSQL is away. One process owns a spool at a time.
fn open_spool(settings: &Settings) -> anyhow::Result<Option<Spool>> {
    if settings.is_embedded() || settings.spool_max == 0 {
        return Ok(None);
    }
    let directory = settings.data.join("spool");
    let options = baton_store_embedded::Options {
        min_free_disk: settings.min_free_disk,
        ..baton_store_embedded::Options::new(&directory)
    };
    match EmbeddedStore::open(options) {
        Ok(store) => Ok(Some(Spool { store: Arc::new(store), bytes_max: settings.spool_max })),
        Err(baton_store::Error::Unusable(reason)) => {
            tracing::warn!(
                reason,
                "without a spool, pushes are refused while PostgreSQL is away; give --data"
            );
            Ok(None)
        }
        Err(error) => Err(error).context("opening the spool"),
    }
}

/// The PostgreSQL options of the settings.
pub fn postgres_options(settings: &Settings) -> baton_store_postgres::Options {
    baton_store_postgres::Options {
        schema: settings.store_schema.clone(),
        ..baton_store_postgres::Options::new(settings.store.expose())
    }
}

/// Prints a line that a supervisor may wait for.
fn announce(line: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).context("writing to stdout")
}

fn start_log(filter: &str) -> anyhow::Result<()> {
    log::start(log::filter(filter)?);
    Ok(())
}

/// Returns when the store has failed, with the reason.
async fn failure(store: &dyn Store) -> String {
    loop {
        if let Some(reason) = store.failure() {
            return reason;
        }
        baton_env::sleep(STORE_CHECK_INTERVAL).await;
    }
}

/// Signals that stop the server, and the one that reloads files.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("listening for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// The next signal that stops the server. Handles reloads itself.
    async fn next(&mut self, identity: Option<&Identity>) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hang_up.recv() => match identity {
                    Some(identity) => reload(identity),
                    None => return "SIGHUP",
                },
            }
        }
    }
}

fn reload(identity: &Identity) {
    match identity.reload() {
        Ok(()) => tracing::info!("read the certificate again"),
        Err(error) => tracing::error!(%error, "the certificate was not read again; the one in use stays"),
    }
}

/// Warns when there are encrypted queues and the key is missing.
async fn warn_of_missing_key(broker: &Broker) -> anyhow::Result<()> {
    let queues = broker.queues_without_key().await?;
    if !queues.is_empty() {
        tracing::error!(
            ?queues,
            "THERE ARE ENCRYPTED QUEUES AND NO KEY: nothing can be pushed to or popped from them; give encryption_keys"
        );
    }
    Ok(())
}
