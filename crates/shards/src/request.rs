//! Requests of workers and operators about a service, over any transport.

use std::sync::Arc;

use crate::Ranges;

/// A heartbeat, with everything that a worker reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The worker's id.
    pub worker: Arc<str>,
    /// Whether this is a registration. A heartbeat of an unknown worker registers it too.
    pub is_registration: bool,
    /// The session of the worker. With a session its shards are leased; without one it gets and loses shards at
    /// once.
    pub session: Option<Arc<str>>,
    /// How many shards the worker expects its service to have.
    pub shard_count: Option<u32>,
    /// Its share, relative to others.
    pub weight: Option<u32>,
    /// Shards it can have at most.
    pub capacity: Option<u32>,
    /// Whether it wants no shards.
    pub draining: Option<bool>,
    /// The last assignment that it applied.
    pub generation: Option<u64>,
    /// The shards in use, including those it is still stopping.
    pub held: Option<Ranges>,
    /// The worker states that its former session has ended, so that its shards need not wait for a lease.
    pub take_over: bool,
    /// The identity that the transport authenticated: a CURVE key or the subject of a token.
    pub caller: Option<Arc<str>>,
}

impl Heartbeat {
    /// A heartbeat of `worker` that reports nothing else.
    pub fn from_worker(worker: impl Into<Arc<str>>) -> Self {
        Self {
            worker: worker.into(),
            is_registration: false,
            session: None,
            shard_count: None,
            weight: None,
            capacity: None,
            draining: None,
            generation: None,
            held: None,
            take_over: false,
            caller: None,
        }
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A worker is alive.
    Heartbeat(Heartbeat),
    /// A worker stopped using its shards and leaves.
    Leave {
        /// The worker's id.
        worker: Arc<str>,
        /// Its session.
        session: Option<Arc<str>>,
        /// The identity that the transport authenticated.
        caller: Option<Arc<str>>,
    },
    /// An operator drains a worker, or ends its drain.
    Drain {
        /// The worker's id.
        worker: Arc<str>,
        /// Whether to drain.
        draining: bool,
    },
    /// Delete the service of this name with all its records.
    Delete(Arc<str>),
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The message cannot be parsed.
    #[error("{0}")]
    Invalid(String),
    /// A newer session of the worker has registered.
    #[error(
        "worker {0:?} has registered with another session since: stop using its shards, and register under another id"
    )]
    Fenced(Arc<str>),
    /// The worker is alive, and another identity has registered it.
    #[error(
        "worker {0:?} is alive and was registered by another identity: use an id of your own, or wait until it is gone"
    )]
    NotOwner(Arc<str>),
    /// There is no such worker.
    #[error("there is no worker {0:?}: register it first")]
    UnknownWorker(Arc<str>),
    /// There is no such service.
    #[error("there is no service {0:?}: the first worker that registers makes it")]
    UnknownService(Arc<str>),
    /// The service has live workers.
    #[error("service {0:?} has workers that are alive: stop them first, or wait until they are gone")]
    InUse(Arc<str>),
    /// The request exceeds a limit.
    #[error("{0}")]
    TooMuch(String),
    /// A limit is reached; a retry does not help.
    #[error("{0}")]
    Full(String),
    /// Too much is in progress; a retry helps.
    #[error("{0}")]
    Busy(String),
    /// The store failed, or is busy.
    #[error("nothing was changed, or it is not known what was: {0}")]
    Store(String),
}

impl Refusal {
    /// The code of this refusal on the wire.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "INVALID_MESSAGE",
            Self::Fenced(_) => "FENCED_SESSION",
            Self::NotOwner(_) => "NOT_OWNER",
            Self::InUse(_) => "IN_USE",
            Self::UnknownWorker(_) => "UNKNOWN_WORKER",
            Self::UnknownService(_) => "UNKNOWN_SERVICE",
            Self::TooMuch(_) | Self::Full(_) => "LIMIT",
            Self::Busy(_) | Self::Store(_) => "UNAVAILABLE",
        }
    }
}
