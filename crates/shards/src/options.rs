//! Options of the shard manager of a server.

use std::time::Duration;

use crate::service::Rules;

/// The options of [`Shards`](crate::Shards).
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The rules of decisions.
    pub rules: Rules,
    /// How often silent workers are expired.
    pub check_interval: Duration,
    /// The most shards that a service may have.
    pub shards_max: u32,
    /// Whether other servers use the same store. If not, heartbeats need not be stored.
    pub shared: bool,
}
