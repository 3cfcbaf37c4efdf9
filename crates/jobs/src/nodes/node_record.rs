//! Nodes: the servers that share a store, as records that each keeps fresh.
//!
//! A node's id is of one start: a server that comes back is another node, so nothing of the old one is its own. Always: a
//! node is dead when the store's time says that it was not heard for so long, whatever any clock of a server says.

use std::sync::Arc;
use std::time::Duration;

use baton_store::{Error, Record, Tx, TxError, expiry};
use baton_types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::keys;

/// Nodes that are known at a time, dead ones included.
pub const NODES_MAX: usize = 1_024;
/// How long a dead node is remembered, at least.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// How a node stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It takes its part.
    #[default]
    Active,
    /// It takes no more and hands over what it has.
    Draining,
    /// It was not heard for too long.
    Dead,
}

/// A node as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its name, which it keeps over starts.
    pub name: String,
    /// How it stands, by its own word, or by the leader's when it is dead.
    pub state: NodeState,
    /// Whether somebody asked it to drain.
    #[serde(default)]
    pub is_to_drain: bool,
    /// When it came.
    pub started_at: Timestamp,
    /// When it was last heard.
    pub seen_at: Timestamp,
    /// Jobs that it owned then.
    pub jobs: u64,
    /// What it is a version of.
    #[serde(default)]
    pub version: String,
}

impl Node {
    /// Whether it was heard lately.
    pub fn is_alive(&self, now: Timestamp, dead_after: Duration) -> bool {
        self.state != NodeState::Dead && now.since(self.seen_at) < dead_after
    }

    /// Whether it may own jobs.
    pub fn is_active(&self, now: Timestamp, dead_after: Duration) -> bool {
        self.is_alive(now, dead_after) && self.state == NodeState::Active && !self.is_to_drain
    }
}

/// A node and the record that tells of it.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its id.
    pub id: Arc<str>,
    /// What is known.
    pub node: Node,
    /// The record.
    pub record: Record,
}

/// All nodes, by id.
pub fn all(tx: &mut dyn Tx) -> Result<Vec<Known>, TxError> {
    let rows = tx.records(keys::NODES, None, NODES_MAX)?;
    let read = |(key, record): (String, Record)| {
        let id = Arc::from(key.strip_prefix(keys::NODES).unwrap_or_default());
        let node = serde_json::from_slice(&record.value)
            .map_err(|error| Error::Corrupt(format!("a node cannot be read: {error}")))?;
        Ok(Known { id, node, record })
    };
    rows.into_iter().map(read).collect()
}

/// Writes a node in place of the record that told of it.
pub fn put(tx: &mut dyn Tx, id: &str, node: &Node, old: Option<&Record>) -> Result<(), TxError> {
    let value = serde_json::to_vec(node)
        .map_err(|error| Error::Corrupt(format!("a node cannot be written: {error}")))?;
    // Hours instead of moments, so that a heartbeat moves it in the order of expiry once an hour.
    let hour = i64::try_from(REMEMBERED.as_micros()).unwrap_or(i64::MAX);
    let until = Timestamp::from_micros((node.seen_at.micros() / hour + 2) * hour);
    expiry::put(tx, &keys::node(id), old, value.into(), Some(until)).map(drop)
}

/// Forgets a node.
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
