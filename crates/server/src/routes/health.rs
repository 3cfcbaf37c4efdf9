//! `GET /health` and `/ready`: the truth about this server.

use std::sync::atomic::Ordering;

use baton_cluster::Cluster;
use baton_http::Reply;
use http::StatusCode;
use serde_json::{Value, json};

use super::cluster;
use crate::app::App;
use crate::call::{Answer, Call};
use crate::error::Error;

/// 200 when requests are served, 503 when the store has failed or is away, or the server is stopping.
pub(super) fn health(call: Call) -> Answer {
    Box::pin(async move { state(&call, false) })
}

/// As [`health`], but 503 also when the server is drained: a balancer sends it nothing.
pub(super) fn ready(call: Call) -> Answer {
    Box::pin(async move { state(&call, true) })
}

fn state(call: &Call, wants_requests: bool) -> Result<Reply, Error> {
    let app = call.app();
    let failure = app.broker.store().failure().or_else(|| app.broker.store().outage());
    let is_stopping = app.is_leaving() || app.is_stopping();
    let healthy = failure.is_none() && !is_stopping;
    let is_draining = app.draining.is_on();
    let status = match (&failure, is_stopping) {
        (Some(_), _) => "unhealthy",
        (None, true) => "stopping",
        (None, false) if is_draining => "draining",
        (None, false) => "healthy",
    };
    let is_fine = healthy && !(wants_requests && is_draining);
    let body = json!({
        "status": status,
        "database": if failure.is_none() { "connected" } else { "disconnected" },
        "error": failure,
        "warnings": warnings(app),
        "checks": [{"component": "Coordinator", "isHealthy": healthy}],
        "server": "baton",
        "version": env!("CARGO_PKG_VERSION"),
        "node": app.options.node_id,
        "worker_id": 0,
        "shared_state": if call.may_read() {
            cluster::shared(app)
        } else {
            json!({"enabled": app.cluster.is_some()})
        },
        "connections": app.traffic.connections.load(Ordering::Relaxed),
        "bodyBytesInFlight": app.traffic.budget.used(),
        "popWait": call.may_read().then(|| wait_counts(app)),
    });
    Reply::of(if is_fine { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &body)
}

/// What an operator should set right, although requests are served.
fn warnings(app: &App) -> Vec<&'static str> {
    let is_double = app.cluster.as_ref().is_some_and(Cluster::has_duplicate_id);
    is_double.then_some("another server has the node_id of this one; give each its own").into_iter().collect()
}

fn wait_counts(app: &App) -> Value {
    let waits = app.broker.wait_statistics();
    json!({
        "waiters": waits.waiters,
        "groupsTracked": waits.groups_tracked,
        "groupsInFlight": waits.groups_in_flight,
        "groupsBackedOff": waits.groups_backed_off,
    })
}
