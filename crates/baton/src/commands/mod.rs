//! One file for each command: its arguments and its implementation.

pub mod cluster;
pub mod completions;
pub mod data;
pub mod dead_letters;
pub mod elect;
pub mod elections;
pub mod job;
pub mod migrate;
pub mod nodes;
pub mod pop;
mod process_group;
pub mod purge;
pub mod push;
pub mod queues;
pub mod schedule;
pub mod serve;
pub mod shards;
pub mod start;
mod table;
pub mod tail;
mod target;
pub mod token;
pub mod worker;
pub mod workers;

use std::time::Duration;

use anyhow::Context;
use baton_client::Error;

/// The pause before a call to an unavailable server is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Repeats a call until the server answers, for commands that follow something until they are stopped.
async fn retry_until_answered<T, F: Future<Output = Result<T, Error>>>(
    call: impl Fn() -> F,
) -> Result<T, Error> {
    loop {
        match call().await {
            Err(error) if error.is_temporary() => {
                eprintln!("{error}; trying again");
                baton_env::sleep(RETRY_INTERVAL).await;
            }
            outcome => return outcome,
        }
    }
}

/// Parses a number of seconds, given for `what`.
fn seconds(what: &str, given: f64) -> anyhow::Result<Duration> {
    Duration::try_from_secs_f64(given).with_context(|| format!("{what} is a number of seconds, not {given}"))
}
