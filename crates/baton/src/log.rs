//! The log: on stderr, so that scripts can read stdout; coloured only on a terminal.

use std::io::IsTerminal;

use anyhow::{Context, bail};
use tracing_subscriber::EnvFilter;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// The prefixes of the modules that log.
const TARGETS: [&str; 9] =
    ["baton", "fjall", "hyper", "hyper_util", "lsm_tree", "object_store", "omq_proto", "reqwest", "rustls"];

/// Parses a level, or levels of modules such as `info,baton_jobs=debug`.
pub fn filter(text: &str) -> anyhow::Result<EnvFilter> {
    for directive in text.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        match directive.split_once('=') {
            None if LEVELS.contains(&directive.to_lowercase().as_str()) => {}
            None => bail!("log cannot be {directive:?}: give {}", LEVELS.join(", ")),
            Some((target, _)) if TARGETS.iter().any(|known| target.starts_with(known)) => {}
            Some((target, _)) => {
                bail!(
                    "log cannot be {directive:?}: nothing here is called {target:?}; give, for instance, baton_jobs=debug"
                )
            }
        }
    }
    EnvFilter::try_new(text).with_context(|| format!("log cannot be {text:?}: give {}", LEVELS.join(", ")))
}

/// Starts the log. Keeps one that exists already, as in a test.
pub fn start(filter: EnvFilter) {
    let stderr = std::io::stderr;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(stderr().is_terminal());
    drop(log.with_writer(stderr).try_init());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_levels_alone_or_of_modules() {
        for good in ["info", "WARN", "info,baton_jobs=debug", "off", "baton_server::routes=trace,warn"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["json", "infos", "warn,text", "orders=debug", "baton=loud"] {
            let error = filter(bad).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("log cannot be"), "{bad}: {error}");
        }
    }
}
