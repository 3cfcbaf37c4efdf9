//! Numbers about other servers, and about requests that were led to them.

use baton_cluster::affinity::AffinityEvent;
use baton_cluster::breaker::BreakerState;
use baton_cluster::numbers::{RequestKind, RoutingOutcome};
use baton_cluster::wire::RejectReason;
use baton_cluster::{Cluster, ClusterView};

use super::exposition::Exposition;

pub(super) fn servers(page: &mut Exposition, cluster: Option<&Cluster>) {
    let Some(cluster) = cluster else {
        page.one("queen_shared_state_enabled", 0);
        page.labelled("queen_servers", &[("state", "alive")], 1);
        page.labelled("queen_servers", &[("state", "dead")], 0);
        return;
    };
    let view = cluster.view();
    let alive = view.servers.iter().filter(|seen| seen.alive).count();
    page.one("queen_shared_state_enabled", 1);
    page.labelled("queen_servers", &[("state", "alive")], alive);
    page.labelled("queen_servers", &[("state", "dead")], view.servers.len() - alive);
    seen(page, &view);
    page.one("baton_cluster_peers_configured", view.peers.len());
    page.one("baton_cluster_peers_heard", view.peers_heard());
    page.one("baton_cluster_duplicate_node_id", u8::from(view.duplicate_id));
    let is_draining = view.servers.iter().any(|server| server.own && server.draining);
    page.one("baton_cluster_draining", u8::from(is_draining));
    counted(page, cluster);
}

fn seen(page: &mut Exposition, view: &ClusterView) {
    for server in &view.servers {
        page.labelled("baton_cluster_load_score", &[("server", &server.id)], server.load.score());
    }
    for server in &view.servers {
        page.labelled("baton_cluster_affinities", &[("server", &server.id)], server.affinities);
    }
    let others = || view.servers.iter().filter(|server| !server.own);
    for server in others() {
        let state = match server.breaker.0 {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        };
        page.labelled("baton_cluster_circuit_state", &[("server", &server.id)], state);
    }
    for server in others() {
        page.labelled(
            "baton_cluster_silent_seconds",
            &[("server", &server.id)],
            server.silent_for.as_secs_f64(),
        );
    }
}

fn counted(page: &mut Exposition, cluster: &Cluster) {
    let numbers = cluster.numbers();
    for kind in RequestKind::ALL {
        for outcome in RoutingOutcome::ALL {
            let labels = [("kind", kind.name()), ("outcome", outcome.name())];
            page.labelled("baton_cluster_requests_total", &labels, numbers.decisions(kind, outcome).get());
        }
    }
    for step in AffinityEvent::ALL {
        page.labelled("baton_cluster_affinity_total", &[("step", step.name())], numbers.steps(step).get());
    }
    page.labelled("baton_cluster_affinity_total", &[("step", "expired")], numbers.expired.get());
    page.labelled("baton_cluster_affinity_total", &[("step", "lost")], numbers.lost.get());
    page.one("baton_cluster_forward_failures_total", numbers.failures.get());
    page.one("baton_cluster_circuits_opened_total", numbers.opened.get());
    for (direction, datagrams) in
        [("sent", &numbers.sent), ("received", &numbers.received), ("dropped", &numbers.dropped)]
    {
        page.labelled("baton_cluster_datagrams_total", &[("direction", direction)], datagrams.get());
    }
    for reason in RejectReason::ALL {
        let labels = [("reason", reason.name())];
        page.labelled("baton_cluster_datagrams_rejected_total", &labels, numbers.rejected(reason).get());
    }
}
