//! Dead nodes and balance: the leader finds dead nodes, offers their slices, and evens out the load.
//!
//! Always: each decision is guarded by the term; the owner of an offered slice goes on until another node claims it;
//! no job is changed, so losing a node runs no job again.

use std::sync::Arc;
use std::time::Duration;

use baton_store::{BoxFuture, Tx, TxError, run};
use serde_json::json;

use crate::maintenance::leader_loop::Duty;
use crate::maintenance::owner_tally;
use crate::model::error::Error;
use crate::model::node_times::ClusterTimes;
use crate::model::ownership::OwnershipTable;
use crate::nodes::balance::{self, NodeLoad};
use crate::nodes::channels::{self, Outbox};
use crate::nodes::node_record::{self, NodeState};
use crate::nodes::{membership, ownership_record};
use crate::runtime::context::Shared;
use crate::storage::event_log::Log;
use crate::storage::leader_term::Term;

/// An offer to one node is withdrawn after this many times the wait of an offer.
const OFFER_WAITS: u32 = 3;

/// Finds dead nodes and offers their slices.
pub struct DeadNodeReassigner;

impl Duty for DeadNodeReassigner {
    fn name(&self) -> &'static str {
        "orphans"
    }

    fn run<'a>(&'a self, shared: &'a Arc<Shared>, term: &'a Term) -> BoxFuture<'a, Result<Duration, Error>> {
        Box::pin(async move {
            let (term, times) = (term.clone(), shared.options.times);
            let prefix = Arc::clone(&shared.options.channels);
            let found = run(&*shared.store, move |tx| {
                if !term.guard(tx)? {
                    return Ok(None);
                }
                reassign_from_dead(tx, &times, &prefix).map(Some)
            });
            let (lost, pause) = found.await?.ok_or_else(Error::not_leader)?;
            if lost > 0 {
                shared.meter.orphaned(lost as u64);
                tracing::warn!(
                    slices = lost,
                    reason = "NodeCrash",
                    "jobs of dead nodes are offered to the others"
                );
            }
            Ok(pause)
        })
    }
}

/// Offers the slices of dead nodes. Returns how many, and when the next node may become dead.
pub(super) fn reassign_from_dead(
    tx: &mut dyn Tx,
    times: &ClusterTimes,
    prefix: &str,
) -> Result<(usize, Duration), TxError> {
    let (now, nodes) = (tx.now(), node_record::all(tx)?);
    let table = ownership_record::load(tx)?;
    let log = Log::open(tx)?;
    let is_dying =
        |node: &node_record::Node| node.state != NodeState::Dead && !node.is_alive(now, times.dead_after);
    let mut events = Vec::new();
    for node_record::StoredNode { id, node, .. } in nodes.iter().filter(|known| is_dying(&known.node)) {
        let silent_ms = u64::try_from(now.since(node.seen_at).as_millis()).unwrap_or(u64::MAX);
        events.push(("node", json!({"node": &**id, "state": "dead", "silentMs": silent_ms})));
    }
    let mut lost = 0;
    let mut after = table.clone();
    if let Some(table) = &mut after {
        let alive = |id: &str| {
            nodes.iter().any(|known| *known.id == *id && known.node.is_alive(now, times.dead_after))
        };
        lost = table.offer_slices_of_dead(alive, now, times.ack * OFFER_WAITS);
        if lost > 0 {
            events.push(("handoff", json!({"reason": "NodeCrash", "offered": lost})));
        }
    }
    let addressed = offer_messages(table.as_ref(), after.as_ref()).address(tx, prefix)?;
    for node_record::StoredNode { id, node, record } in nodes.iter().filter(|known| is_dying(&known.node)) {
        node_record::put(
            tx,
            id,
            &node_record::Node { state: NodeState::Dead, ..node.clone() },
            Some(record),
        )?;
    }
    if let Some(after) = after.filter(|after| Some(after) != table.as_ref()) {
        ownership_record::store(tx, &after)?;
    }
    log.write(tx, events)?;
    addressed.write(tx);
    let alive = nodes.iter().map(|known| &known.node).filter(|node| node.is_alive(now, times.dead_after));
    let next = alive.map(|node| times.dead_after.saturating_sub(now.since(node.seen_at))).min();
    let least = Duration::from_millis(10);
    Ok((lost, next.unwrap_or(times.orphans_every).clamp(least, times.orphans_every)))
}

/// Channel messages about new offers.
fn offer_messages(before: Option<&OwnershipTable>, after: Option<&OwnershipTable>) -> Outbox {
    let mut outbox = Outbox::default();
    if let (Some(before), Some(after)) = (before, after) {
        for (number, (was, is)) in before.slices.iter().zip(&after.slices).enumerate() {
            if was.offer != is.offer {
                channels::add_offers(&mut outbox, after, &is.owner, std::iter::once(number));
            }
        }
    }
    outbox
}

/// Moves slices away from a node that has too many jobs.
pub struct Rebalancer;

impl Duty for Rebalancer {
    fn name(&self) -> &'static str {
        "balance"
    }

    fn run<'a>(&'a self, shared: &'a Arc<Shared>, term: &'a Term) -> BoxFuture<'a, Result<Duration, Error>> {
        Box::pin(async move {
            let times = shared.options.times;
            let mut loads = membership::loads(shared).await?;
            if !loads.uncounted.is_empty() {
                for partition in loads.uncounted {
                    while shared
                        .decide_guarded(term.clone(), move |tx| owner_tally::count_next(tx, partition))
                        .await?
                    {}
                }
                loads = membership::loads(shared).await?;
            }
            let (term, loads) = (term.clone(), loads.by_slice);
            let prefix = Arc::clone(&shared.options.channels);
            let moved = run(&*shared.store, move |tx| {
                if !term.guard(tx)? {
                    return Ok(None);
                }
                even_out(tx, &times, &loads, &prefix).map(Some)
            });
            let (slices, jobs) = moved.await?.ok_or_else(Error::not_leader)?;
            if slices > 0 {
                shared.meter.rebalanced(slices as u64);
                tracing::info!(slices, jobs, "jobs are moved to a node that has fewer");
            }
            Ok(times.heartbeat.min(times.cooldown))
        })
    }
}

/// Offers the slices that should move, unless a move is under way. Returns how many slices and jobs.
fn even_out(
    tx: &mut dyn Tx,
    times: &ClusterTimes,
    loads: &[u64],
    prefix: &str,
) -> Result<(usize, u64), TxError> {
    let (now, nodes) = (tx.now(), node_record::all(tx)?);
    let Some(mut table) = ownership_record::load(tx)? else { return Ok((0, 0)) };
    let log = Log::open(tx)?;
    let is_moving = table.slices.iter().any(|slice| slice.offer.is_some());
    if is_moving || now.since(table.balanced_at) < times.cooldown {
        return Ok((0, 0));
    }
    let active = nodes.iter().filter(|known| known.node.is_active(now, times.dead_after));
    let holdings: Vec<_> = active
        .map(|node_record::StoredNode { id, .. }| {
            let slices =
                table.slices_of(id).map(|slice| (slice, loads.get(slice).copied().unwrap_or(0))).collect();
            NodeLoad { node: Arc::clone(id), slices }
        })
        .collect();
    let moves = balance::plan(&holdings);
    let Some(first) = moves.first() else { return Ok((0, 0)) };
    let jobs = moves.iter().map(|one| one.jobs).sum();
    let event = json!({
        "reason": "Rebalance", "from": &*first.from, "to": &*first.to, "offered": moves.len(), "jobs": jobs,
    });
    let before = table.clone();
    moves.iter().for_each(|one| table.offer_to(one.slice, &one.to, now));
    let addressed = offer_messages(Some(&before), Some(&table)).address(tx, prefix)?;
    table.balanced_at = now;
    ownership_record::store(tx, &table)?;
    log.write(tx, vec![("handoff", event)])?;
    addressed.write(tx);
    Ok((moves.len(), jobs))
}
