//! What all connections share.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use baton_queue::Broker;
use tokio_util::sync::CancellationToken;

use crate::body::{BYTES_IN_FLIGHT_MAX, Budget};
use crate::elections::Elections;
use crate::server::Options;

/// What all connections share.
pub struct App {
    /// The queues.
    pub broker: Broker,
    /// How the server was told to behave.
    pub options: Options,
    /// Bytes of bodies under way.
    pub budget: Arc<Budget>,
    /// The elections.
    pub(crate) elections: Arc<Elections>,
    /// Open connections.
    pub connections: AtomicUsize,
    stopping: CancellationToken,
}

impl App {
    pub(crate) fn new(broker: Broker, options: Options) -> Self {
        Self {
            elections: Arc::new(Elections::new(Arc::clone(broker.store()))),
            broker,
            options,
            budget: Arc::new(Budget::new(BYTES_IN_FLIGHT_MAX)),
            connections: AtomicUsize::new(0),
            stopping: CancellationToken::new(),
        }
    }

    /// Whether the server has begun to stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// Returns when the server has begun to stop.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        self.stopping.clone().cancelled_owned()
    }

    pub(crate) fn stop(&self) {
        self.stopping.cancel();
    }
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("options", &self.options).finish_non_exhaustive()
    }
}
