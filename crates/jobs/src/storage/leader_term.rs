//! The leader's term: the proof that a maintenance commit comes from the present leader.
//!
//! Always: each maintenance decision calls [`Term::guard`] in its own commit. So a node that was paused past the end of
//! its lease changes nothing, whatever it believes. Not here: how a node becomes leader (`maintenance::leadership`).

use baton_store::{Tx, TxError, lease};
use baton_types::Timestamp;

use crate::model::keys;

/// The right to run the maintenance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Its number; rises with every acquisition.
    pub number: u64,
    /// The lease's token: rises with every acquisition and every renewal.
    pub token: u64,
    /// When it began.
    pub since: Timestamp,
}

impl Term {
    /// Whether this term is still valid; called in the decision that it guards.
    pub fn guard(&self, tx: &mut dyn Tx) -> Result<bool, TxError> {
        lease::is_held_under(tx, keys::LEADER, self.token)
    }
}
