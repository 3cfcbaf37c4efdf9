//! Nodes: the servers that share a store, each with a record that its heartbeats renew.
//!
//! A node id names one start of a server. A server that restarts is another node and owns nothing of its former self.
//! Always: a node is dead when it was silent for long enough in store time, whatever the clock of a server says.

use std::sync::Arc;
use std::time::Duration;

use baton_store::{Error, Record, Tx, TxError, expiry};
use baton_types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::keys;

/// Nodes recorded at a time, dead ones included.
pub const NODES_MAX: usize = 1_024;
/// How long the record of a dead node stays, at least.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The state of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It takes part.
    #[default]
    Active,
    /// It claims nothing and hands over its slices.
    Draining,
    /// Its heartbeats stopped.
    Dead,
}

/// The record of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its name, the same after a restart.
    pub name: String,
    /// Its state, as it reports it, or as the leader does when it is dead.
    pub state: NodeState,
    /// Whether a client asked it to drain.
    #[serde(default)]
    pub is_to_drain: bool,
    /// When it joined.
    pub started_at: Timestamp,
    /// Its last heartbeat.
    pub seen_at: Timestamp,
    /// Jobs that it owned then.
    pub jobs: u64,
    /// The version of the server.
    #[serde(default)]
    pub version: String,
}

impl Node {
    /// Whether its heartbeats are recent.
    pub fn is_alive(&self, now: Timestamp, dead_after: Duration) -> bool {
        self.state != NodeState::Dead && now.since(self.seen_at) < dead_after
    }

    /// Whether it may own jobs.
    pub fn is_active(&self, now: Timestamp, dead_after: Duration) -> bool {
        self.is_alive(now, dead_after) && self.state == NodeState::Active && !self.is_to_drain
    }
}

/// A node with its stored record.
#[derive(Clone, Debug)]
pub struct StoredNode {
    /// Its id.
    pub id: Arc<str>,
    pub node: Node,
    pub record: Record,
}

/// All nodes, by id.
pub fn all(tx: &mut dyn Tx) -> Result<Vec<StoredNode>, TxError> {
    let rows = tx.records(keys::NODES, None, NODES_MAX)?;
    let read = |(key, record): (String, Record)| {
        let id = Arc::from(key.strip_prefix(keys::NODES).unwrap_or_default());
        let node = serde_json::from_slice(&record.value)
            .map_err(|error| Error::Corrupt(format!("a node cannot be read: {error}")))?;
        Ok(StoredNode { id, node, record })
    };
    rows.into_iter().map(read).collect()
}

/// Writes a node; `old` is its present record.
pub fn put(tx: &mut dyn Tx, id: &str, node: &Node, old: Option<&Record>) -> Result<(), TxError> {
    let value = serde_json::to_vec(node)
        .map_err(|error| Error::Corrupt(format!("a node cannot be written: {error}")))?;
    // Rounded to hours, so that heartbeats move the record in the expiry index only once an hour.
    let hour = i64::try_from(REMEMBERED.as_micros()).unwrap_or(i64::MAX);
    let until = Timestamp::from_micros((node.seen_at.micros() / hour + 2) * hour);
    expiry::put(tx, &keys::node(id), old, value.into(), Some(until)).map(drop)
}

/// Deletes the record of a node.
pub fn remove(tx: &mut dyn Tx, id: &str) -> Result<(), TxError> {
    let key = keys::node(id);
    if let Some(old) = tx.record(&key)? {
        expiry::remove(tx, &key, &old);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_makes_a_node_dead_and_draining_makes_it_idle() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let limit = Duration::from_secs(30);
        let node = Node { seen_at: at(100), ..Node::default() };
        assert!(node.is_active(at(129), limit) && !node.is_alive(at(130), limit));
        let draining = Node { state: NodeState::Draining, ..node.clone() };
        assert!(draining.is_alive(at(129), limit) && !draining.is_active(at(129), limit));
        assert!(!Node { is_to_drain: true, ..node.clone() }.is_active(at(101), limit));
        assert!(!Node { state: NodeState::Dead, ..node }.is_alive(at(101), limit));
    }
}
