//! The log: on stderr, so that scripts can read stdout; coloured only on a terminal.

use std::io::IsTerminal;

use anyhow::{Context, bail};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// The crates that log.
const TARGETS: [&str; 28] = [
    "baton",
    "baton_auth",
    "baton_client",
    "baton_cluster",
    "baton_config",
    "baton_console",
    "baton_election",
    "baton_env",
    "baton_http",
    "baton_jobs",
    "baton_queue",
    "baton_records",
    "baton_schedules",
    "baton_server",
    "baton_shards",
    "baton_store",
    "baton_store_embedded",
    "baton_store_postgres",
    "baton_tls",
    "baton_types",
    "baton_zmq",
    "fjall",
    "hyper",
    "hyper_util",
    "lsm_tree",
    "object_store",
    "omq_proto",
    "rustls",
];

/// Parses a level, or levels of modules such as `info,baton_jobs=debug`.
pub fn filter(text: &str) -> anyhow::Result<Targets> {
    if text.trim().is_empty() {
        return Ok(Targets::new().with_default(LevelFilter::ERROR));
    }
    for directive in text.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        match directive.split_once('=') {
            None if LEVELS.contains(&directive.to_lowercase().as_str()) => {}
            None => bail!("log cannot be {directive:?}: give {}", LEVELS.join(", ")),
            // A module may follow the crate.
            Some((target, _)) if TARGETS.contains(&target.split(':').next().unwrap_or_default()) => {}
            Some((target, _)) => {
                bail!(
                    "log cannot be {directive:?}: nothing here is called {target:?}; give, for instance, baton_jobs=debug"
                )
            }
        }
    }
    text.parse::<Targets>().with_context(|| format!("log cannot be {text:?}: give {}", LEVELS.join(", ")))
}

/// Starts the log. Keeps one that exists already, as in a test.
pub fn start(filter: Targets) {
    let stderr = std::io::stderr;
    let lines = tracing_subscriber::fmt::layer().with_ansi(stderr().is_terminal()).with_writer(stderr);
    drop(tracing_subscriber::registry().with(lines).with(filter).try_init());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_levels_alone_or_of_modules() {
        for good in ["info", "WARN", "info,baton_jobs=debug", "off", "baton_server::routes=trace,warn"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in [
            "json",
            "infos",
            "warn,text",
            "orders=debug",
            "baton_job=debug",
            "baton-jobs=debug",
            "baton=loud",
        ] {
            let error = filter(bad).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("log cannot be"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_filter_may_name_each_crate_of_the_program() {
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap().replace('-', "_");
            let name = if name == "baton" { name } else { format!("baton_{name}") };
            assert!(name == "baton_testing_postgres" || filter(&format!("{name}=debug")).is_ok(), "{name}");
        }
    }
}
