//! How a server runs jobs.

use std::sync::Arc;
use std::time::Duration;

use crate::model::node_times::ClusterTimes;
use crate::model::policy::Policy;

/// How a server runs jobs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of this node, the same after a restart.
    pub name: Arc<str>,
    /// The id of this start of the node.
    pub node: Arc<str>,
    /// Whether no other server uses the store.
    pub sole: bool,
    /// Defaults for jobs.
    pub policy: Policy,
    /// How often a waiting worker rechecks.
    pub look_every: Duration,
    /// Whether this node may lead and own jobs.
    pub duties: bool,
    /// How long a duty may take before the others run and it is retried.
    pub duty_limit: Duration,
    /// How long nodes wait for each other.
    pub times: ClusterTimes,
    /// The prefix of channel names.
    pub channels: Arc<str>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "baton".into(),
            node: format!("baton-{:x}", baton_env::random_u64()).into(),
            sole: false,
            policy: Policy::default(),
            look_every: Duration::from_secs(1),
            duties: true,
            duty_limit: Duration::from_secs(30),
            times: ClusterTimes::default(),
            channels: "orchestrix".into(),
        }
    }
}
