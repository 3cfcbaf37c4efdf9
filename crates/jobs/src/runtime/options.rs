//! How a server runs jobs.

use std::sync::Arc;
use std::time::Duration;

use crate::model::node_times::Times;
use crate::model::policy::Policy;

/// How a server runs jobs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of this node, which it keeps over starts.
    pub name: Arc<str>,
    /// The name of this start of it.
    pub node: Arc<str>,
    /// Whether no other node uses the store.
    pub sole: bool,
    /// What holds unless a job says otherwise.
    pub policy: Policy,
    /// How often a worker that waits looks by itself.
    pub look_every: Duration,
    /// Whether this node may run the duties and own jobs.
    pub duties: bool,
    /// How long a duty may take before the others have their turn and it is tried again.
    pub duty_limit: Duration,
    /// How long nodes wait for each other.
    pub times: Times,
    /// What the names of channels begin with.
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
            times: Times::default(),
            channels: "orchestrix".into(),
        }
    }
}
