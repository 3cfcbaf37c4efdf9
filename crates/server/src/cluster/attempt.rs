//! A pop that was passed on, until its answer has arrived.
//!
//! The server that passes a pop on chooses its lease. If the answer does not arrive, whatever the reason, it gives
//! back what the other server may have taken, through the store that they share; and again when the other server can
//! take nothing more, since that may not have noticed that nobody waits. So no message is held up for the time of a
//! lease that nobody has. Start at [`Attempt::new`].

use std::time::Duration;

use baton_cluster::limits::LOST_ATTEMPTS_MAX;
use baton_queue::Broker;
use baton_types::LeaseId;
use tokio::sync::Semaphore;

/// What a server may take to answer beyond the wait of a pop.
const GRACE: Duration = Duration::from_secs(2);

/// Attempts that will be given back once more. At the limit the lease's own time has to do.
static LATER: Semaphore = Semaphore::const_new(LOST_ATTEMPTS_MAX);

/// A pop that was passed on.
pub struct Attempt {
    lease: LeaseId,
    wait: Duration,
    broker: Option<Broker>,
}

impl std::fmt::Debug for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attempt").field("lease", &self.lease).finish_non_exhaustive()
    }
}

impl Attempt {
    /// A pop that waits for `wait` at most.
    pub fn new(broker: &Broker, wait: Duration) -> Self {
        Self { lease: baton_env::fresh_lease(), wait, broker: Some(broker.clone()) }
    }

    /// The lease that it takes.
    pub fn lease(&self) -> LeaseId {
        self.lease
    }

    /// Its answer has arrived: what it took belongs to its caller.
    pub fn arrived(mut self) {
        self.broker = None;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let Some(broker) = self.broker.take() else { return };
        broker.give_back(self.lease);
        let (lease, wait) = (self.lease, self.wait + GRACE);
        if let (Ok(place), Ok(runtime)) = (LATER.try_acquire(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move {
                baton_env::sleep(wait).await;
                broker.give_back(lease);
                drop(place);
            });
        }
    }
}
