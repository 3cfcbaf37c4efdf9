//! What can go wrong, sorted by what the caller can do about it.

use crate::model::ids::JobId;

/// The code of a refusal because this node does not lead the maintenance.
pub const NOT_LEADER: &str = "not_leader";

/// Why something was not done. Nothing of it was.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The request is wrong: fix what the text names.
    #[error("{0}")]
    Invalid(String),
    /// There is no such thing; it may have been forgotten.
    #[error("{0}")]
    NotFound(String),
    /// It is not in a state in which this can be done.
    #[error("{message}")]
    Conflict {
        /// The reason in a word.
        code: &'static str,
        /// The reason.
        message: String,
    },
    /// More than there may be.
    #[error("{0}")]
    TooLarge(String),
    /// A limit on what is kept at once was reached: try again later.
    #[error("{0}")]
    Full(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] baton_store::Error),
}

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    pub(crate) fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::Conflict { code, message: message.into() }
    }

    pub(crate) fn no_job(id: JobId) -> Self {
        Self::NotFound(format!("there is no job {id}; it may have been forgotten after its retention"))
    }

    /// The refusal of a decision that needs the leader's term.
    pub(crate) fn not_leader() -> Self {
        Self::conflict(NOT_LEADER, "this node does not lead any more")
    }
}
