//! How servers that share the jobs of one store wait for each other. Start at [`Nodes`].

use baton_jobs::ClusterTimes;

/// How long servers wait for each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// The times.
    pub times: ClusterTimes,
    /// What the names of channels begin with.
    pub channels: String,
}

impl Default for Nodes {
    fn default() -> Self {
        Self { times: ClusterTimes::default(), channels: "orchestrix".into() }
    }
}
