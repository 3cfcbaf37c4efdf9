//! The cluster as the API shows it.

use std::sync::Arc;

use baton_store::run;
use baton_types::Timestamp;

use crate::maintenance::leadership;
use crate::model::error::Error;
use crate::model::ids::JobPosition;
use crate::model::ownership::SLICES;
use crate::nodes::node_record::{self, Node, NodeState};
use crate::nodes::{membership, ownership_record};
use crate::rules::queues::QueueView;
use crate::service::Jobs;
use crate::storage::event_log::Log;

/// The owner of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The node.
    pub node: Arc<str>,
    /// Its epoch.
    pub epoch: u64,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Its id, of one start.
    pub id: Arc<str>,
    /// Its record.
    pub node: Node,
    /// The number of its slices.
    pub slices: usize,
    /// How many of them are on offer.
    pub offered: usize,
    /// Open jobs in them.
    pub jobs: u64,
    /// Whether it leads.
    pub is_leader: bool,
    /// Whether this is the node that answers.
    pub is_own: bool,
}

/// The cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// The number of the leader's term and the leader's id, if a node leads.
    pub leader: Option<(u64, Arc<str>)>,
    /// When the lease of the leader ends unless it is renewed.
    pub until: Option<Timestamp>,
    /// The name of the leader's lease in the API.
    pub lock: String,
    /// The nodes, by id.
    pub nodes: Vec<NodeView>,
    /// Slices whose owner left or is dead, and that no node has claimed yet.
    pub orphans: usize,
    /// The store's time.
    pub now: Timestamp,
}

impl Jobs {
    /// The nodes, the leader, and the share of each node.
    pub async fn cluster(&self) -> Result<ClusterView, Error> {
        let shared = &self.shared;
        let (nodes, table, leader, term, now) = run(&*shared.store, |tx| {
            Ok((
                node_record::all(tx)?,
                ownership_record::load(tx)?,
                leadership::holder(tx)?,
                leadership::last_term(tx)?,
                tx.now(),
            ))
        })
        .await?;
        let lock = format!("{}:coordinator:leader", shared.options.channels);
        let holder = leader.as_ref().map(|holder| holder.owner.as_str());
        let until = leader.as_ref().map(|holder| holder.until);
        let leader = holder.map(|owner| (term, Arc::from(owner)));
        if shared.options.sole {
            let open = self.queues().await?.iter().map(QueueView::open).sum();
            let node = Node {
                name: shared.options.name.to_string(),
                jobs: open,
                started_at: now.before(shared.began.elapsed()),
                seen_at: now,
                version: env!("CARGO_PKG_VERSION").into(),
                ..Node::default()
            };
            let (id, own) = (Arc::clone(&shared.options.node), true);
            let view =
                NodeView { id, node, slices: SLICES, offered: 0, jobs: open, is_leader: true, is_own: own };
            return Ok(ClusterView { leader, until, lock, nodes: vec![view], orphans: 0, now });
        }
        let loads = membership::loads(shared).await?.by_slice;
        let dead_after = shared.options.times.dead_after;
        let view = |node_record::StoredNode { id, mut node, .. }: node_record::StoredNode| {
            if !node.is_alive(now, dead_after) {
                node.state = NodeState::Dead;
            }
            let own: Vec<usize> = table.iter().flat_map(|table| table.slices_of(&id)).collect();
            let is_offered =
                |slice: &&usize| table.as_ref().is_some_and(|table| table.slices[**slice].offer.is_some());
            NodeView {
                slices: own.len(),
                offered: own.iter().filter(is_offered).count(),
                jobs: own.iter().map(|slice| loads[*slice]).sum(),
                is_leader: holder == Some(&*id),
                is_own: id == shared.options.node,
                id,
                node,
            }
        };
        let nodes: Vec<_> = nodes.into_iter().map(view).collect();
        let is_owned =
            |owner: &str| nodes.iter().any(|view| *view.id == *owner && view.node.state != NodeState::Dead);
        let orphans = table.iter().flat_map(|table| &table.slices).filter(|slice| !is_owned(&slice.owner));
        let orphans = orphans.count();
        Ok(ClusterView { leader, until, lock, nodes, orphans, now })
    }

    /// Whether a client watches a channel, as far as this node knows.
    pub fn is_watched(&self) -> bool {
        self.shared.watched.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// How many slices this node owns, as far as it knows.
    pub fn slices(&self) -> usize {
        let options = &self.shared.options;
        match self.shared.participation.table() {
            _ if options.sole => SLICES,
            Some(table) => table.slices_of(&options.node).count(),
            None => 0,
        }
    }

    /// The owner of a job, as far as this node knows.
    pub fn owner(&self, position: JobPosition) -> Option<Owner> {
        let options = &self.shared.options;
        if options.sole {
            return Some(Owner { node: Arc::clone(&options.node), epoch: 1 });
        }
        let table = self.shared.participation.table()?;
        let slice = table.slices.get(position.index()).filter(|slice| !slice.owner.is_empty())?;
        Some(Owner { node: Arc::clone(&slice.owner), epoch: slice.epoch })
    }

    /// Asks a node, by its id or by a unique name, to drain or to take part again. Returns its id.
    pub async fn ask_to_drain(&self, wanted: &str, drain: bool) -> Result<Arc<str>, Error> {
        let (wanted, dead_after) = (wanted.to_owned(), self.shared.options.times.dead_after);
        let options = &self.shared.options;
        if options.sole && (*wanted == *options.node || *wanted == *options.name) {
            let message = "this server is the only one on its store: no other server can take over its jobs";
            return if drain {
                Err(Error::conflict("sole_node", message))
            } else {
                Ok(Arc::clone(&options.node))
            };
        }
        run(&*self.shared.store, move |tx| {
            let (now, nodes) = (tx.now(), node_record::all(tx)?);
            let log = Log::open(tx)?;
            let is_active = |known: &&node_record::StoredNode| known.node.is_active(now, dead_after);
            let active: Vec<_> = nodes.iter().filter(is_active).map(|known| Arc::clone(&known.id)).collect();
            let mut named = nodes.into_iter().filter(|known| {
                let is_named = known.node.name == wanted && known.node.is_alive(now, dead_after);
                *known.id == *wanted || is_named
            });
            let (Some(node_record::StoredNode { id, mut node, record }), None) = (named.next(), named.next())
            else {
                let message =
                    format!("there is no single node {wanted:?}: see GET /api/v1/cluster for their ids");
                return Ok(Err(Error::NotFound(message)));
            };
            if !node.is_alive(now, dead_after) {
                return Ok(Err(Error::conflict(
                    "node_dead",
                    format!("node {id} is dead; nothing is left to drain"),
                )));
            }
            if drain && !active.iter().any(|other| *other != id) {
                let message =
                    format!("no other server could take the jobs of node {id}: start one, or stop this one");
                return Ok(Err(Error::conflict("sole_node", message)));
            }
            node.is_to_drain = drain;
            node_record::put(tx, &id, &node, Some(&record))?;
            let state = if drain { "asked_to_drain" } else { "asked_to_stay" };
            log.write(tx, vec![("node", serde_json::json!({"node": &*id, "state": state}))])?;
            Ok(Ok(id))
        })
        .await?
    }

    /// Stops this node without a handoff, as a crash would. For tests.
    #[doc(hidden)]
    pub fn abandon(&self) {
        self.shared.participation.abandon();
        self.shared.stop.cancel();
    }

    /// Hands over all slices of this node, before it stops. Returns at once on a store with one server.
    pub async fn drain(&self) {
        if !self.shared.options.sole && self.shared.options.duties {
            self.shared.participation.leave().await;
        }
    }
}
