//! What all connections share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_queue::Broker;

use crate::auth::Auth;
use crate::body::{BYTES_IN_FLIGHT_MAX, Budget};
use crate::process::Usage;
use crate::server::Options;

/// What all connections share.
pub struct App {
    /// The queues.
    pub broker: Broker,
    /// Who may call; nobody is asked when there is none.
    pub auth: Option<Arc<Auth>>,
    /// How the server was told to behave.
    pub options: Options,
    /// Bytes of bodies under way.
    pub budget: Arc<Budget>,
    started: Stopwatch,
    /// Open connections.
    pub connections: AtomicUsize,
    stopping: AtomicBool,
}

impl App {
    pub(crate) fn new(broker: Broker, options: Options, auth: Option<Arc<Auth>>) -> Self {
        broker.set_gauges(Arc::new(|| Usage::now().gauges()));
        Self {
            broker,
            auth,
            options,
            budget: Arc::new(Budget::new(BYTES_IN_FLIGHT_MAX)),
            started: Stopwatch::start(),
            connections: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    /// How long the server has been there.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether the server has begun to stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("options", &self.options).finish_non_exhaustive()
    }
}
