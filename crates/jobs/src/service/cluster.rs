//! The cluster as it is shown.

use std::sync::Arc;

use baton_store::run;
use baton_types::Timestamp;

use crate::maintenance::leadership;
use crate::model::error::Error;
use crate::model::ids::Place;
use crate::model::ownership::SLICES;
use crate::nodes::node_record::{self, Node, NodeState};
use crate::nodes::{membership, ownership_record};
use crate::rules::queues::QueueView;
use crate::service::Jobs;
use crate::storage::event_log::Log;

/// Who owns a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The node.
    pub node: Arc<str>,
    /// Under which epoch.
    pub epoch: u64,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Its id, of one start.
    pub id: Arc<str>,
    /// What it said of itself.
    pub node: Node,
    /// Its slices of the jobs.
    pub slices: usize,
    /// Of those, how many are on offer to others.
    pub offered: usize,
    /// Jobs in them that have not ended.
    pub jobs: u64,
    /// Whether it leads.
    pub is_leader: bool,
    /// Whether this is the node that tells.
    pub is_own: bool,
}

/// All of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// The number of the leader's term, and its id, if somebody leads.
    pub leader: Option<(u64, Arc<str>)>,
    /// When the lease of the leader ends unless it is renewed.
    pub until: Option<Timestamp>,
    /// The name of the leader's lease, as the design that jobs follow has it.
    pub lock: String,
    /// The nodes, by id.
    pub nodes: Vec<NodeView>,
    /// Slices whose owner has left, or is dead, and that nobody has claimed yet.
    pub orphans: usize,
    /// The store's time.
    pub now: Timestamp,
}

impl Jobs {
    /// The nodes, who leads, and who owns how much.
    pub async fn cluster(&self) -> Result<ClusterView, Error> {
        let shared = &self.shared;
        let (nodes, table, leader, term, now) = run(&*shared.store, |tx| {
            Ok((
                node_record::all(tx)?,
                ownership_record::load(tx)?,
                leadership::look(tx)?,
                leadership::term(tx)?,
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
        let view = |node_record::Known { id, mut node, .. }: node_record::Known| {
            if !node.is_alive(now, dead_after) {
                node.state = NodeState::Dead;
            }
            let own: Vec<usize> = table.iter().flat_map(|table| table.of(&id)).collect();
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

    /// Whether this node knows of somebody who watches a channel.
    pub fn is_watched(&self) -> bool {
        self.shared.watched.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// How many slices of the jobs this node owns, as far as it knows.
    pub fn slices(&self) -> usize {
        let options = &self.shared.options;
        match self.shared.standing.table() {
            _ if options.sole => SLICES,
            Some(table) => table.of(&options.node).count(),
            None => 0,
        }
    }

    /// Who owns a job, as far as this node knows.
    pub fn owner(&self, place: Place) -> Option<Owner> {
        let options = &self.shared.options;
        if options.sole {
            return Some(Owner { node: Arc::clone(&options.node), epoch: 1 });
        }
        let table = self.shared.standing.table()?;
        let slice = table.slices.get(place.index()).filter(|slice| !slice.owner.is_empty())?;
        Some(Owner { node: Arc::clone(&slice.owner), epoch: slice.epoch })
    }

    /// Asks a node, by its id or by a name that only one has, to drain or to take part again; tells its id.
    pub async fn ask_to_drain(&self, wanted: &str, drain: bool) -> Result<Arc<str>, Error> {
        let (wanted, dead_after) = (wanted.to_owned(), self.shared.options.times.dead_after);
        let options = &self.shared.options;
        if options.sole && (*wanted == *options.node || *wanted == *options.name) {
            let message = "this server is the only one on its store: there is nobody to hand jobs over to";
            return if drain {
                Err(Error::conflict("sole_node", message))
            } else {
                Ok(Arc::clone(&options.node))
            };
        }
        run(&*self.shared.store, move |tx| {
            let (now, nodes) = (tx.now(), node_record::all(tx)?);
            let log = Log::open(tx)?;
            let mut named = nodes.into_iter().filter(|known| {
                let is_named = known.node.name == wanted && known.node.is_alive(now, dead_after);
                *known.id == *wanted || is_named
            });
            let (Some(node_record::Known { id, mut node, record }), None) = (named.next(), named.next())
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
            node.is_to_drain = drain;
            node_record::put(tx, &id, &node, Some(&record))?;
            let state = if drain { "asked_to_drain" } else { "asked_to_stay" };
            log.write(tx, vec![("node", serde_json::json!({"node": &*id, "state": state}))])?;
            Ok(Ok(id))
        })
        .await?
    }

    /// Stops all work of this node without a word to the others, as a crash would. For tests.
    #[doc(hidden)]
    pub fn abandon(&self) {
        self.shared.standing.abandon();
        self.shared.stop.cancel();
    }

    /// Hands over what this node owns, before it stops. Returns at once on a store that has one user.
    pub async fn drain(&self) {
        if !self.shared.options.sole && self.shared.options.duties {
            self.shared.standing.leave().await;
        }
    }
}
