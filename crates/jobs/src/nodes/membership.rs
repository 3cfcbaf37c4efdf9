//! Membership: every node sends heartbeats, claims its share of the offered slices, and drains before it stops.
//!
//! One task reads nodes and owners in one decision, again and again. Always: a node's heartbeat and its claims are
//! written in the same commit; a draining node claims nothing; a node that cannot reach the store changes nothing,
//! and becomes dead to the others after their time. Start at [`run_until_stopped`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_store::{Tx, TxError, run};
use baton_types::{PartitionId, Timestamp};
use serde_json::{Value, json};

use crate::model::channel_names::COORDINATOR;
use crate::model::error::Error;
use crate::model::keys;
use crate::model::ownership::{Claimed, HandoffCase, OwnershipReason, OwnershipTable, SLICES};
use crate::model::queue_head::Head;
use crate::nodes::channels::{self, Outbox};
use crate::nodes::handoff::{Drain, DrainObservation, DrainStep};
use crate::nodes::node_record::{self, Node, NodeState};
use crate::nodes::ownership_record;
use crate::runtime::context::Shared;
use crate::storage::event_log::Log;

/// Queue heads read in one decision.
const HEADS_AT_ONCE: usize = 200;
/// How long a draining node waits for a store that is away.
const AWAY_MAX: Duration = Duration::from_secs(1);
/// How often a draining node checks whether its offers were claimed.
const DRAIN_LOOK_MAX: Duration = Duration::from_millis(200);

/// The state of the cluster at one moment.
struct ClusterSnapshot {
    table: OwnershipTable,
    node: Node,
    claimed: Vec<Claimed>,
    /// The last heartbeats of the other nodes that may own jobs.
    peers: Vec<Timestamp>,
    now: Timestamp,
}

/// Takes part in the cluster until the server stops.
pub async fn run_until_stopped(shared: Arc<Shared>) {
    let (times, participation) = (shared.options.times, &shared.participation);
    let (mut heard, mut drain) = (None::<Stopwatch>, None::<Draining>);
    let mut known = Arc::<[u64]>::from([0; SLICES]);
    let mut failing = None::<Stopwatch>;
    while !shared.stop.is_cancelled() {
        let is_due = heard.as_ref().is_none_or(|heard| heard.elapsed() >= times.heartbeat);
        if is_due && let Ok(loads) = loads(&shared).await {
            known = loads.by_slice.into();
        }
        let (before, drains) = (Stopwatch::start(), participation.is_leaving());
        let snapshot = match refresh(&shared, drains, is_due.then(|| Arc::clone(&known))).await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                tracing::debug!(%error, "this node cannot read the state of the cluster");
                // Without a store nothing can be handed over: the others notice this node's silence.
                let store = &shared.store;
                let since = failing.get_or_insert(before).elapsed();
                let is_away = store.outage().is_some() && since >= AWAY_MAX;
                if drains && (store.failure().is_some() || is_away || since >= times.ack) {
                    participation.drained.send_replace(true);
                }
                pause(&shared, times.refresh_interval()).await;
                continue;
            }
        };
        failing = None;
        if is_due {
            heard = Some(before);
        }
        note_claims(&shared, &snapshot.claimed);
        let wants = drains || snapshot.node.is_to_drain;
        if participation.idle.send_replace(wants) != wants {
            // A leader resigns.
            shared.alarm.notify_one();
        }
        participation.table.send_replace(Some(Arc::new(snapshot.table.clone())));
        channels::publish_if_watched(&shared).await;
        let mut soon = times.refresh_interval();
        match (wants, drain.as_mut()) {
            (false, None) => {}
            (false, Some(_)) => {
                drain = None;
                participation.drained.send_replace(false);
                stay(&shared).await;
            }
            (true, _) => {
                let drain = match &mut drain {
                    Some(drain) => drain,
                    None => drain.insert(Draining::start(&shared, &snapshot).await),
                };
                if drain.take_step(&shared, &snapshot).await {
                    participation.drained.send_replace(true);
                } else {
                    soon = (times.ack / 10).clamp(Duration::from_millis(5), DRAIN_LOOK_MAX);
                }
            }
        }
        pause(&shared, soon).await;
    }
    let node = Arc::clone(&shared.options.node);
    if !participation.is_abandoned()
        && let Err(error) = run(&*shared.store, move |tx| depart(tx, &node)).await
    {
        tracing::debug!(%error, "this node could not record that it left");
    }
    participation.drained.send_replace(true);
}

async fn pause(shared: &Shared, duration: Duration) {
    tokio::select! {
        () = shared.stop.cancelled() => {}
        () = shared.participation.notifier.notified() => {}
        () = baton_env::sleep(duration) => {}
    }
}

/// A drain under way.
struct Draining {
    drain: Drain,
    since: Stopwatch,
    began: Timestamp,
    /// Whether there were jobs to hand over when the drain began, as far as is known.
    has_jobs: bool,
    is_done: bool,
}

impl Draining {
    async fn start(shared: &Shared, snapshot: &ClusterSnapshot) -> Self {
        let since = Stopwatch::start();
        let own: Vec<usize> = snapshot.table.slices_of(&shared.options.node).collect();
        let has_jobs = match loads(shared).await {
            Ok(loads) => {
                let open = |slice: &usize| loads.by_slice.get(*slice).is_some_and(|jobs| *jobs > 0);
                !loads.uncounted.is_empty() || own.iter().any(open)
            }
            Err(_) => true,
        };
        tracing::info!(slices = own.len(), has_jobs, "draining: this node hands over the jobs that it owns");
        let drain = Drain::new(shared.options.times, own.len());
        Self { drain, since, began: snapshot.now, has_jobs, is_done: false }
    }

    /// Takes the next step. Returns whether the drain is over.
    async fn take_step(&mut self, shared: &Shared, snapshot: &ClusterSnapshot) -> bool {
        while !self.is_done {
            let seen = DrainObservation {
                elapsed: self.since.elapsed(),
                left: snapshot.table.slices_of(&shared.options.node).count(),
                has_jobs: self.has_jobs,
                has_peers: !snapshot.peers.is_empty(),
                has_heard: snapshot.peers.iter().any(|seen_at| *seen_at >= self.began),
            };
            let (node, prefix) = (Arc::clone(&shared.options.node), Arc::clone(&shared.options.channels));
            let done = match self.drain.step(seen) {
                DrainStep::Offer => run(&*shared.store, move |tx| offer(tx, &node, None, &prefix)).await,
                DrainStep::Leave(case) => {
                    self.log_leave(case, seen.left);
                    run(&*shared.store, move |tx| offer(tx, &node, Some(case), &prefix)).await
                }
                DrainStep::Wait => return false,
                DrainStep::Done => {
                    self.is_done = true;
                    self.log_result(shared);
                    Ok(())
                }
            };
            if let Err(error) = done {
                tracing::debug!(%error, "an offer could not be written");
                return false;
            }
        }
        true
    }

    /// The last server leaves its jobs to the next one that starts, which is no problem.
    fn log_leave(&self, case: HandoffCase, slices: usize) {
        match case {
            _ if !self.has_jobs => {}
            HandoffCase::D => {
                tracing::info!(slices, "the last server leaves; its jobs wait for the next one")
            }
            _ => tracing::warn!(case = case.word(), slices, "jobs are left without an owner"),
        }
    }

    fn log_result(&self, shared: &Shared) {
        let [a, b, c, d] = self.drain.ended;
        for case in HandoffCase::ALL {
            shared.meter.handed_over(case, self.drain.ended[case as usize]);
        }
        let millis = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(a, b, c, d, millis, "drained: slices of jobs handed over, by case");
    }
}

/// Reads nodes and owners and claims slices. Sends a heartbeat if the loads of all slices are given.
async fn refresh(
    shared: &Shared,
    drains: bool,
    loads: Option<Arc<[u64]>>,
) -> Result<ClusterSnapshot, baton_store::Error> {
    let (options, version) = (shared.options.clone(), env!("CARGO_PKG_VERSION"));
    run(&*shared.store, move |tx| {
        let (now, times, id) = (tx.now(), options.times, &options.node);
        let nodes = node_record::all(tx)?;
        let mut table = ownership_record::load(tx)?;
        let log = Log::open(tx)?;
        let mut events = Vec::new();
        let own = nodes.iter().find(|known| known.id == *id);
        let before = own.map(|own| &own.node);
        let mut node = before.cloned().unwrap_or_else(|| {
            events.push(("node", json!({"node": &**id, "state": "joined"})));
            Node { name: options.name.to_string(), started_at: now, ..Node::default() }
        });
        if node.state == NodeState::Dead {
            events.push(("node", json!({"node": &**id, "state": "back"})));
        }
        let is_idle = drains || node.is_to_drain;
        node.state = if is_idle { NodeState::Draining } else { NodeState::Active };
        if is_idle && before.is_some_and(|before| before.state == NodeState::Active) {
            events.push(("node", json!({"node": &**id, "state": "draining"})));
        }
        let others = nodes.iter().filter(|known| known.id != *id).map(|known| &known.node);
        let peers: Vec<_> =
            others.filter(|node| node.is_active(now, times.dead_after)).map(|node| node.seen_at).collect();
        let mut claimed = Vec::new();
        if !is_idle {
            let table = table.get_or_insert_with(|| OwnershipTable::new(now));
            claimed = table.claim(id, peers.len() + 1, now, times.ack);
        }
        let owned = |loads: &Arc<[u64]>| {
            let own = table.iter().flat_map(|table| table.slices_of(id));
            own.filter_map(|slice| loads.get(slice)).sum::<u64>()
        };
        let jobs = loads.as_ref().map(owned);
        events.extend(claim_events(id, &claimed));
        let mut outbox = Outbox::default();
        claimed.iter().for_each(|one| channels::add_claim(&mut outbox, id, one));
        if let Some(jobs) = jobs {
            let beat = json!({"nodeId": &**id, "jobCount": jobs, "timestamp": now.to_iso_millis()});
            outbox.add(COORDINATOR, &*options.name, beat);
        }
        let addressed = outbox.address(tx, &options.channels)?;
        let is_news = before.is_none_or(|before| before.state != node.state);
        if let Some(jobs) = jobs {
            node.jobs = jobs;
        }
        if jobs.is_some() || is_news || !claimed.is_empty() {
            (node.seen_at, node.version) = (now, version.into());
            node_record::put(tx, id, &node, own.map(|own| &own.record))?;
        }
        if let Some(table) = table.as_ref().filter(|_| !claimed.is_empty()) {
            ownership_record::store(tx, table)?;
        }
        log.write(tx, events)?;
        addressed.write(tx);
        let table = table.unwrap_or_else(|| OwnershipTable::new(now));
        Ok(ClusterSnapshot { table, node, claimed, peers, now })
    })
    .await
}

/// The cluster events of claims: one for each reason and former owner.
fn claim_events(node: &str, claimed: &[Claimed]) -> Vec<(&'static str, Value)> {
    let mut told = BTreeMap::<(u8, &str), Vec<usize>>::new();
    for one in claimed {
        told.entry((one.reason as u8, &one.from)).or_default().push(one.slice);
    }
    let event = |((_, from), slices): ((u8, &str), Vec<usize>)| {
        let reason = claimed.iter().find(|one| one.slice == slices[0]).map(|one| one.reason);
        ("handoff", json!({"node": node, "from": from, "reason": reason, "slices": slices}))
    };
    told.into_iter().map(event).collect()
}

fn note_claims(shared: &Shared, claimed: &[Claimed]) {
    for reason in OwnershipReason::ALL {
        let slices = claimed.iter().filter(|one| one.reason == reason).count();
        if slices > 0 {
            shared.meter.claimed(reason, slices as u64);
            tracing::info!(?reason, slices, of = SLICES, "this node claimed slices of the jobs");
        }
    }
}

/// Offers the node's slices; with a case, also marks them as left behind.
fn offer(tx: &mut dyn Tx, node: &str, left: Option<HandoffCase>, prefix: &str) -> Result<(), TxError> {
    let now = tx.now();
    let Some(mut table) = ownership_record::load(tx)? else { return Ok(()) };
    if left.is_none() || table.slices.iter().any(|slice| *slice.owner == *node && slice.offer.is_none()) {
        table.offer(node, OwnershipReason::Shutdown, now);
    }
    if left.is_some() {
        table.leave(node);
    }
    let mut outbox = Outbox::default();
    channels::add_offers(&mut outbox, &table, node, table.slices_of(node));
    let addressed = outbox.address(tx, prefix)?;
    ownership_record::store(tx, &table)?;
    addressed.write(tx);
    Ok(())
}

/// Withdraws the offers of the slices that the node still owns.
async fn stay(shared: &Shared) {
    let node = Arc::clone(&shared.options.node);
    let stayed = run(&*shared.store, move |tx| {
        let Some(mut table) = ownership_record::load(tx)? else { return Ok(()) };
        match table.withdraw(&node) {
            0 => Ok(()),
            _ => ownership_record::store(tx, &table),
        }
    });
    if let Err(error) = stayed.await {
        tracing::debug!(%error, "offers were not taken back");
    }
}

/// Records that the node has left.
fn depart(tx: &mut dyn Tx, id: &str) -> Result<(), TxError> {
    let log = Log::open(tx)?;
    node_record::remove(tx, id)?;
    log.write(tx, vec![("node", json!({"node": id, "state": "left"}))])
}

/// Open jobs.
pub struct Loads {
    /// By slice.
    pub by_slice: Vec<u64>,
    /// Queues with jobs that the tally has not counted yet.
    pub uncounted: Vec<PartitionId>,
}

/// The load of all slices.
pub async fn loads(shared: &Shared) -> Result<Loads, Error> {
    let mut loads = Loads { by_slice: vec![0; SLICES], uncounted: Vec::new() };
    for queues in shared.all_queues().await?.chunks(HEADS_AT_ONCE) {
        let keys: Vec<String> = queues.iter().copied().map(keys::head).collect();
        let heads = run(&*shared.store, move |tx| {
            let (mut heads, mut missing) = (Vec::with_capacity(keys.len()), false);
            for key in &keys {
                match tx.record(key) {
                    Ok(record) => heads.push(record),
                    Err(TxError::RowsMissing) => missing = true,
                    Err(other) => return Err(other),
                }
            }
            if missing { Err(TxError::RowsMissing) } else { Ok(heads) }
        })
        .await?;
        for (partition, record) in queues.iter().zip(heads) {
            let Some(record) = record else { continue };
            let head = Head::decode(&record.value)?;
            loads.by_slice.iter_mut().zip(head.loads()).for_each(|(load, open)| *load += open);
            loads.uncounted.extend(head.is_uncounted().then_some(*partition));
        }
    }
    Ok(loads)
}
