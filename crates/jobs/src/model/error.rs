//! Errors, sorted by what the caller can do about them.

use crate::model::ids::JobId;

/// The code of a refusal because this node does not lead the maintenance.
pub const NOT_LEADER: &str = "not_leader";

/// Why an operation failed. It changed nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The request is wrong: fix what the text names.
    #[error("{0}")]
    Invalid(String),
    /// It does not exist; it may have been deleted.
    #[error("{0}")]
    NotFound(String),
    /// Its state does not allow the operation.
    #[error("{message}")]
    Conflict {
        /// A code for programs.
        code: &'static str,
        /// The reason.
        message: String,
    },
    /// More than the limit allows.
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
