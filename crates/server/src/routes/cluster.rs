//! `GET /api/v1/cluster` and `/cluster/balance`: the servers, as this one sees them.
//!
//! Always: a server that is alone sees itself. The names are in the style of the balance route, which is older.

use std::time::Duration;

use baton_cluster::{ClusterView, PeerView, ServerView};
use baton_http::Reply;
use serde::Deserialize;
use serde_json::{Value, json};

use super::jobs::{nodes, parsed};
use crate::app::App;
use crate::call::{Answer, Call};
use crate::error::Error;

/// How the work is spread.
pub(super) fn balance(call: Call) -> Answer {
    Box::pin(async move {
        let Some(cluster) = &call.app().cluster else {
            return Reply::ok(
                &json!({"balanced": true, "imbalance_score": 0.0, "servers": [alone(call.app())]}),
            );
        };
        let view = cluster.view();
        let servers: Vec<_> = view.servers.iter().map(summary).collect();
        Reply::ok(&json!({
            "balanced": view.is_balanced(),
            "imbalance_score": rounded(view.imbalance()),
            "servers": servers,
        }))
    })
}

/// Everything that this server knows of the cluster.
pub(super) fn cluster(call: Call) -> Answer {
    Box::pin(async move {
        let app = call.app();
        // What the store cannot tell just now is left open; the rest is known without it.
        let told = match app.jobs.cluster().await {
            Ok(view) => nodes::parts(&view),
            Err(_) => json!({"leader": null, "nodes": [], "orphanedSlices": 0}),
        };
        let Some(cluster) = &app.cluster else {
            return Reply::ok(&json!({
                "server_id": app.options.node_id, "gossip": false, "coordinator": false, "balanced": true,
                "imbalance_score": 0.0, "servers": [alone(app)], "affinities": {"count": 0, "busiest": []},
                "peers_configured": 0, "peers_heard": 0, "peers": [], "duplicate_node_id": null,
                "draining": app.draining.is_on(),
                "leader": told["leader"], "nodes": told["nodes"], "orphanedSlices": told["orphanedSlices"],
            }));
        };
        let view = cluster.view();
        let servers: Vec<_> = view.servers.iter().map(detail).collect();
        let busiest = view
            .busiest
            .iter()
            .map(|(key, server, requests)| json!({"key": key, "server_id": &**server, "requests": requests}));
        Reply::ok(&json!({
            "server_id": &*cluster.options().id,
            "gossip": true,
            "coordinator": cluster.options().routes,
            "balanced": view.is_balanced(),
            "imbalance_score": rounded(view.imbalance()),
            "peers_configured": view.peers.len(),
            "peers_heard": view.peers_heard(),
            "peers": view.peers.iter().map(peer).collect::<Vec<_>>(),
            "duplicate_node_id": view.duplicate_id.then(|| &*cluster.options().id),
            "draining": app.draining.is_on(),
            "servers": servers,
            "affinities": {"count": view.affinities, "busiest": busiest.collect::<Vec<_>>()},
            "leader": told["leader"],
            "nodes": told["nodes"],
            "orphanedSlices": told["orphanedSlices"],
        }))
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    mode: Option<nodes::Mode>,
}

/// Drains a server from routing, or ends that.
pub(super) fn drain(mut call: Call) -> Answer {
    Box::pin(async move {
        let server = call.parameter(0).to_string();
        let wish: Drain = parsed(&mut call, "{\"mode\": \"on\" or \"off\"}")?;
        let draining = wish.mode != Some(nodes::Mode::Off);
        if !call.app().draining.set(&server, draining).await? {
            let known = "GET /api/v1/cluster lists those that this server has heard";
            return Err(Error::not_found(format!("there is no server {server:?}: {known}")));
        }
        Reply::ok(&json!({"server_id": server, "draining": draining}))
    })
}

/// A server that has no peers.
fn alone(app: &App) -> Value {
    json!({"server_id": app.options.node_id, "url": "", "load_score": 0.0, "healthy": true})
}

fn peer(peer: &PeerView) -> Value {
    json!({
        "peer": peer.name,
        "server_id": peer.server.as_deref(),
        "heard": peer.heard,
        "silent_ms": peer.silent_for.map(millis),
        "reason": peer.reason(),
    })
}

fn summary(seen: &ServerView) -> Value {
    json!({
        "server_id": &*seen.id,
        "url": &*seen.url,
        "load_score": rounded(seen.load.score()),
        "healthy": seen.healthy,
    })
}

fn detail(seen: &ServerView) -> Value {
    let (state, failures, open_for) = seen.breaker;
    let mut detail = summary(seen);
    detail["own"] = seen.own.into();
    detail["alive"] = seen.alive.into();
    detail["draining"] = seen.draining.into();
    detail["incarnation"] = seen.incarnation.into();
    detail["silent_ms"] = millis(seen.silent_for);
    detail["load"] = json!({
        "outstanding": rounded(seen.load.outstanding),
        "poll_intentions": rounded(seen.load.waiting),
        "cpu": rounded(seen.load.cpu),
    });
    detail["circuit"] = json!({"state": state.name(), "failures": failures, "open_for_ms": millis(open_for)});
    detail["forwarded"] = seen.forwarded.0.into();
    detail["forward_failures"] = seen.forwarded.1.into();
    detail["waiting_groups"] = seen.waiting_groups.into();
    detail["affinities"] = seen.affinities.into();
    detail
}

fn millis(duration: Duration) -> Value {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).into()
}

fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// What this server shares with others, in the shape of `/api/v1/system/shared-state`.
pub(super) fn shared(app: &App) -> Value {
    let Some(cluster) = &app.cluster else {
        return json!({
            "enabled": false,
            "running": false,
            "server_id": app.options.node_id,
            "transport": {
                "messages_sent": 0, "messages_received": 0, "messages_dropped": 0,
                "bytes_sent": 0, "bytes_received": 0, "peer_count": 0,
            },
            "server_health": {
                "servers_tracked": 0, "servers_alive": 0, "servers_dead": 0,
                "heartbeats_received": 0, "restarts_detected": 0,
            },
        });
    };
    let (view, numbers): (ClusterView, _) = (cluster.view(), cluster.numbers());
    let others = || view.servers.iter().filter(|seen| !seen.own);
    let alive = others().filter(|seen| seen.alive).count();
    let rejected: u64 =
        baton_cluster::wire::RejectReason::ALL.iter().map(|r| numbers.rejected(*r).get()).sum();
    json!({
        "enabled": true,
        "running": !app.is_stopping(),
        "server_id": &*cluster.options().id,
        "transport": {
            "messages_sent": numbers.sent.get(),
            "messages_received": numbers.received.get(),
            "messages_dropped": numbers.dropped.get() + rejected,
            "bytes_sent": numbers.sent_bytes.get(),
            "bytes_received": numbers.received_bytes.get(),
            "peer_count": cluster.options().peers.len(),
        },
        "server_health": {
            "servers_tracked": others().count(),
            "servers_alive": alive,
            "servers_dead": others().count() - alive,
            "heartbeats_received": numbers.heartbeats.get(),
            "restarts_detected": view.restarts,
        },
    })
}
