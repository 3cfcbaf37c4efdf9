//! What a worker, or somebody who looks after workers, can ask of a service, whichever way it came.

use std::sync::Arc;

use crate::Ranges;

/// A sign of life, and everything that a worker says of itself with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The worker's id.
    pub worker: Arc<str>,
    /// Whether it begins with this, or goes on. What goes on but is not known begins, too.
    pub registers: bool,
    /// Which life of the worker this is. A worker that has one keeps the rules of leases and releases; one without
    /// gets its shards at once, and loses them at once.
    pub session: Option<Arc<str>>,
    /// How many shards it thinks its service has.
    pub count: Option<u32>,
    /// Its share, relative to others.
    pub weight: Option<u32>,
    /// Shards it can have at most.
    pub capacity: Option<u32>,
    /// Whether it wants to be rid of its shards.
    pub draining: Option<bool>,
    /// The last assignment it has acted upon.
    pub generation: Option<u64>,
    /// The shards it uses, those that it is still stopping to use included.
    pub held: Option<Ranges>,
    /// The worker swears that its former life is over, so that its shards need not wait for a lease.
    pub takes_over: bool,
    /// The identity that the transport has authenticated, if it does: a CURVE key or the subject of a token.
    pub caller: Option<Arc<str>>,
}

impl Beat {
    /// A beat of `worker` that says nothing else.
    pub fn of(worker: impl Into<Arc<str>>) -> Self {
        Self {
            worker: worker.into(),
            registers: false,
            session: None,
            count: None,
            weight: None,
            capacity: None,
            draining: None,
            generation: None,
            held: None,
            takes_over: false,
            caller: None,
        }
    }
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A worker is there.
    Beat(Beat),
    /// A worker does not use its shards any more, and leaves.
    Leave {
        /// The worker's id.
        worker: Arc<str>,
        /// Which life of it.
        session: Option<Arc<str>>,
        /// The identity that the transport has authenticated.
        caller: Option<Arc<str>>,
    },
    /// Somebody wants a worker to have no shards, or to have some again.
    Drain {
        /// The worker's id.
        worker: Arc<str>,
        /// Which of the two.
        draining: bool,
    },
    /// The service of this name is to be deleted, with all that is stored of it.
    Delete(Arc<str>),
}

/// Why something was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The message is not one.
    #[error("{0}")]
    Invalid(String),
    /// Another life of the worker has registered since.
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
    /// The service has workers that are alive.
    #[error("service {0:?} has workers that are alive: stop them first, or wait until they are gone")]
    InUse(Arc<str>),
    /// More was asked for than there may be.
    #[error("{0}")]
    TooMuch(String),
    /// There are as many of something as there may be; trying again does not help.
    #[error("{0}")]
    Full(String),
    /// Too much is under way at this moment.
    #[error("{0}")]
    Busy(String),
    /// The store failed, or is busy.
    #[error("nothing was changed, or it is not known what was: {0}")]
    Store(String),
}

impl Refusal {
    /// The word for it on the wire.
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
