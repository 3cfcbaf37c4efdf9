//! The log: on stderr, so that stdout is left to what scripts read; coloured only on a terminal.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts the log. One that is there already, as in a test, stays.
pub fn start(filter: EnvFilter) {
    let stderr = std::io::stderr;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(stderr().is_terminal());
    drop(log.with_writer(stderr).try_init());
}
