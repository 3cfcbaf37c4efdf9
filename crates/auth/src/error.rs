//! Why a request may not go on.

use super::token::Refusal;

/// Why a request may not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no token, or it is not valid.
    #[error("{0}")]
    Unauthenticated(#[from] Refusal),
    /// The token is valid, but none of its roles allows this.
    #[error("Insufficient permissions")]
    Forbidden,
    /// The keys that tokens are checked with cannot be had.
    #[error("the keys that tokens are checked with cannot be read at the moment")]
    KeysUnavailable,
}
