//! `/api/v1/nodes…` and `/api/v1/events`: the servers that share the jobs of a store, and what happens among them.
//!
//! Always: what is shown is what the store says, not what gossip does; the id of an event is its place, so a reader that
//! comes back with `Last-Event-ID` misses none. Start at [`list`].

use std::sync::Arc;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_http::Reply;
use baton_jobs::{ClusterView, NodeView};
use baton_types::Timestamp;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::parsed;
use crate::app::App;
use crate::call::{Answer, Call};

/// Bundles of events that wait for a slow reader; then it holds up only itself.
const EVENTS_MAX: usize = 16;
/// How often a stream without news says that it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn shown(view: &NodeView, now: Timestamp) -> Value {
    json!({
        "nodeId": &*view.id,
        "name": view.node.name,
        "state": view.node.state,
        "isLeader": view.is_leader,
        "isOwn": view.is_own,
        "ownedJobs": view.jobs,
        "load": view.node.jobs,
        "slices": view.slices,
        "offered": view.offered,
        "startedAt": view.node.started_at.to_iso_millis(),
        "silentMs": millis(now.since(view.node.seen_at)),
        "version": view.node.version,
    })
}

/// Leader and nodes, as parts of an answer.
pub(in crate::routes) fn parts(view: &ClusterView) -> Value {
    let leader = view.leader.as_ref().map(|(term, node)| {
        let lease = view.until.map_or(0, |until| millis(until.since(view.now)));
        json!({"nodeId": &**node, "term": term, "leaseMs": lease, "lock": view.lock})
    });
    let nodes: Vec<_> = view.nodes.iter().map(|node| shown(node, view.now)).collect();
    json!({"leader": leader, "nodes": nodes, "orphanedSlices": view.orphans})
}

/// All nodes.
pub(in crate::routes) fn list(call: Call) -> Answer {
    Box::pin(async move { Reply::ok(&parts(&call.jobs().cluster().await?)) })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    mode: Option<Mode>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::routes) enum Mode {
    On,
    Off,
}

/// Asks a node to hand over the jobs that it owns.
pub(in crate::routes) fn drain(mut call: Call) -> Answer {
    Box::pin(async move {
        let node = call.parameter(0).to_string();
        let wish: Drain = parsed(&mut call, "{\"mode\": \"on\" or \"off\"}")?;
        let drain = wish.mode != Some(Mode::Off);
        let id = call.jobs().ask_to_drain(&node, drain).await?;
        Reply::ok(&json!({"nodeId": &*id, "desiredState": if drain { "draining" } else { "active" }}))
    })
}

/// What happened among the nodes, as a page or live.
pub(in crate::routes) fn events(call: Call) -> Answer {
    Box::pin(async move {
        let query = call.query()?;
        let after = query.number("after", 0, u64::MAX)?;
        if !call.wants_events() {
            let events = call.jobs().events(after.map_or(0, |after| after.saturating_add(1))).await?;
            let row = |event: &baton_jobs::ClusterEvent| {
                let mut row = event.data.clone();
                row["id"] = event.offset.into();
                row
            };
            return Reply::ok(&json!({"events": events.iter().map(row).collect::<Vec<_>>()}));
        }
        let last = call.last_event_id().and_then(|id| id.parse().ok()).or(after);
        let next = match last {
            Some(last) => last.saturating_add(1),
            None => call.jobs().events_end().await?,
        };
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        tokio::spawn(follow(Arc::clone(call.app()), next, sender));
        Ok(Reply::events(events))
    })
}

/// Sends what is new until the reader leaves or the server stops.
async fn follow(app: Arc<App>, mut next: u64, sender: mpsc::Sender<Bytes>) {
    let mut quiet = Stopwatch::start();
    loop {
        let mut out = Vec::new();
        match app.jobs.events(next).await {
            Ok(events) => {
                for event in events {
                    let text =
                        format!("id: {}\nevent: {}\ndata: {}\n\n", event.offset, event.kind, event.data);
                    out.extend_from_slice(text.as_bytes());
                    next = event.offset + 1;
                }
            }
            // The reader comes back with its last id and misses nothing.
            Err(error) => return tracing::debug!(%error, "a stream of events was ended"),
        }
        if out.is_empty() && quiet.elapsed() >= KEEP_ALIVE {
            out.extend_from_slice(b": still here\n\n");
        }
        if !out.is_empty() {
            quiet = Stopwatch::start();
            if sender.send(out.into()).await.is_err() {
                return;
            }
            continue;
        }
        tokio::select! {
            () = baton_env::sleep(app.jobs.look_every().min(Duration::from_secs(1))) => {}
            () = sender.closed() => return,
            () = app.stopped() => return,
        }
    }
}
