//! What happens, as data that can be printed, streamed and counted.

use serde::Serialize;

use crate::record::Phase;

/// Something that happened to a participant, or that it has seen happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Event {
    /// This worker has written a heartbeat.
    #[serde(rename = "coord:worker-heartbeat")]
    WorkerHeartbeat {
        /// This worker.
        worker_id: String,
        /// When, in milliseconds.
        timestamp: u64,
    },
    /// There is another coordinator, perhaps this worker.
    #[serde(rename = "coord:coordinator-elected")]
    CoordinatorElected {
        /// The coordinator.
        worker_id: String,
        /// Until when its mandate runs, in milliseconds of its wall clock.
        epoch: u64,
        /// How many workers were seen alive.
        active_workers: usize,
        /// The number of the term: the fencing token.
        epoch_number: u64,
        /// Who coordinated before, as far as this worker knows.
        previous: Option<String>,
    },
    /// This worker begins to coordinate.
    #[serde(rename = "coord:coordinator-promoted")]
    CoordinatorPromoted {
        /// This worker.
        worker_id: String,
        /// When, in milliseconds.
        timestamp: u64,
        /// The number of the term: the fencing token.
        epoch_number: u64,
    },
    /// This worker coordinates no longer.
    #[serde(rename = "coord:coordinator-demoted")]
    CoordinatorDemoted {
        /// This worker.
        worker_id: String,
        /// Why.
        reason: Reason,
        /// The number of the term that is over.
        epoch_number: u64,
    },
    /// This worker has begun another mandate in the same term.
    #[serde(rename = "coord:coordinator-epoch-renewed")]
    CoordinatorEpochRenewed {
        /// This worker.
        worker_id: String,
        /// Until when the mandate runs, in milliseconds.
        new_epoch: u64,
        /// The number of the term: the fencing token.
        epoch_number: u64,
    },
    /// The cold start has reached another step.
    #[serde(rename = "coord:cold-start-phase-changed")]
    ColdStartPhaseChanged {
        /// The step that begins.
        phase: Phase,
        /// How long the step before it took, in milliseconds.
        duration: u64,
    },
    /// The coordinator changes so often that something must be wrong.
    #[serde(rename = "coord:coordinator-changes-often")]
    CoordinatorChangesOften {
        /// How many changes.
        changes: usize,
        /// Within how many milliseconds.
        window: u64,
    },
    /// The store fails, so this worker cannot take part.
    #[serde(rename = "coord:store-failing")]
    StoreFailing {
        /// What the store said.
        error: String,
        /// Calls that have failed one after the other.
        failures: u32,
    },
}

/// Why a worker coordinates no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// It could not renew its lease in time.
    LeaseExpired,
    /// Another term has begun.
    Superseded,
    /// The epoch record has been deleted.
    RecordDeleted,
    /// It was stopped.
    Stopped,
    /// It was asked to release the term.
    Requested,
    /// It hands over to a worker that precedes it in the order.
    HandedOver,
}

impl Reason {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LeaseExpired => "lease-expired",
            Self::Superseded => "superseded",
            Self::RecordDeleted => "record-deleted",
            Self::Stopped => "stopped",
            Self::Requested => "requested",
            Self::HandedOver => "handed-over",
        }
    }
}
