//! What all connections share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_auth::Auth;
use baton_cluster::Cluster;
use baton_env::Stopwatch;
use baton_http::{Reply, Sites, Traffic};
use baton_jobs::Jobs;
use baton_queue::Broker;
use baton_shards::Shards;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Draining, served_by, served_by_line};
use crate::elections::Elections;
use crate::lag::Naps;
use crate::options::Options;
use crate::process::Usage;

/// The description of all routes. It is made from their table, so the routes that show it are given it.
#[derive(Clone, Copy)]
pub(crate) struct Reference {
    /// As an OpenAPI document.
    pub document: fn() -> &'static str,
    /// As a page for people.
    pub page: &'static str,
}

/// What all connections share.
pub struct App {
    /// The queues.
    pub broker: Broker,
    /// The jobs.
    pub jobs: Jobs,
    /// Who may call; without it every call is allowed.
    pub auth: Option<Arc<Auth>>,
    /// How the server was told to behave.
    pub options: Options,
    /// Which web pages may call.
    pub(crate) sites: Sites,
    /// What connections do now.
    pub traffic: Traffic,
    /// The other servers, if there may be any.
    pub cluster: Option<Cluster>,
    /// Whether this server is drained from routing.
    pub(crate) draining: Arc<Draining>,
    /// The elections.
    pub(crate) elections: Arc<Elections>,
    /// The shards.
    pub(crate) shards: Shards,
    /// The description of the routes.
    pub(crate) reference: Reference,
    started: Stopwatch,
    leaving: AtomicBool,
    stopping: CancellationToken,
}

impl App {
    pub(crate) fn new(
        broker: Broker,
        options: Options,
        auth: Option<Arc<Auth>>,
        cluster: Option<Cluster>,
        sites: Sites,
        reference: Reference,
    ) -> Self {
        let jobs = Jobs::start(Arc::clone(broker.store()), options.jobs.clone());
        let (naps, stopping) = (Arc::new(Naps::default()), CancellationToken::new());
        tokio::spawn(Arc::clone(&naps).keep(stopping.clone()));
        broker.set_gauges(Arc::new(move || {
            let mut gauges = Usage::now().gauges();
            gauges.extend(naps.gauges());
            gauges
        }));
        Self {
            draining: Arc::new(Draining::new(&broker, &options.node_id, cluster.clone())),
            elections: Arc::new(Elections::new(Arc::clone(broker.store()))),
            shards: Shards::start(Arc::clone(broker.store()), options.shards),
            broker,
            jobs,
            auth,
            cluster,
            sites,
            options,
            traffic: Traffic::default(),
            reference,
            started: Stopwatch::start(),
            leaving: AtomicBool::new(false),
            stopping,
        }
    }

    /// How long the server has been there.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether the server is about to stop: it still serves, and wants nobody new.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Whether the server has begun to stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// Returns when the server has begun to stop.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        self.stopping.clone().cancelled_owned()
    }

    /// An answer, with the server that gave it if there are others.
    pub(crate) fn marked(&self, reply: Reply) -> Reply {
        match &self.cluster {
            Some(cluster) => served_by(cluster, reply),
            None => reply,
        }
    }

    /// The header that says which server answers, for an answer that is written by hand.
    pub(crate) fn served_by(&self) -> Option<String> {
        self.cluster.as_ref().and_then(served_by_line)
    }

    pub(crate) fn stop(&self) {
        self.stopping.cancel();
        self.shards.stop();
    }
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("options", &self.options).finish_non_exhaustive()
    }
}
