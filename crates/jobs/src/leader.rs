//! Who runs the duties: one node at a time, under a lease whose token guards everything that it does.
//!
//! Always: a decision of a duty asks [`Term::guard`] in its own commit, so a node that was paused past the end of its
//! lease changes nothing, whatever it believes. A node that owns its store alone takes the lease from its own past.

use std::time::Duration;

use baton_store::lease::{self, Acquisition, Holder};
use baton_store::{Tx, TxError};
use baton_types::Timestamp;
use serde_json::json;

use crate::availability::Availability;
use crate::cluster::event::Log;
use crate::key;

/// The right to run the duties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Its number: rises with every acquisition.
    pub number: u64,
    /// The lease's token: rises with every acquisition and every renewal.
    pub token: u64,
    /// When it began.
    pub since: Timestamp,
}

impl Term {
    /// Whether this is the term that counts; asked in the decision that acts on it.
    pub fn guard(&self, tx: &mut dyn Tx) -> Result<bool, TxError> {
        lease::is_held_under(tx, key::LEADER, self.token)
    }
}

/// Takes the lease for a node, or renews it; `None` when another node has it. `sole` says that there can be no other.
/// A renewal writes down what the leader knows of its availability in its term.
pub fn take(
    tx: &mut dyn Tx,
    node: &str,
    sole: bool,
    life: Duration,
    known: Option<(u64, Availability)>,
) -> Result<Option<Term>, TxError> {
    // Without a leader no job is deleted.
    tx.use_reserve();
    let (last, log) = (term(tx)?, Log::open(tx)?);
    if sole && let Some(holder) = look(tx)?.filter(|holder| holder.owner != node) {
        lease::release(tx, key::LEADER, holder.token)?;
    }
    Ok(match lease::acquire(tx, key::LEADER, node, life)? {
        Acquisition::Granted(holder) => {
            let number = last + 1;
            tx.put_record(key::TERM, number.to_string().into(), None)?;
            log.write(tx, vec![("leader", json!({"node": node, "term": number}))])?;
            Some(Term { number, token: holder.token, since: holder.since })
        }
        Acquisition::AlreadyHeld(holder) => {
            if let Some((_, availability)) = known.filter(|(number, _)| *number == last) {
                availability.keep(tx)?;
            }
            Some(Term { number: last, token: holder.token, since: holder.since })
        }
        Acquisition::HeldByOther(_) => None,
    })
}

/// The number of the last term.
pub fn term(tx: &mut dyn Tx) -> Result<u64, TxError> {
    let record = tx.record(key::TERM)?;
    Ok(record.and_then(|record| std::str::from_utf8(&record.value).ok()?.parse().ok()).unwrap_or(0))
}

/// Gives the lease back, so that another node need not wait for its end.
pub fn resign(tx: &mut dyn Tx, term: &Term, known: Option<Availability>) -> Result<(), TxError> {
    if let Some(availability) = known
        && term.guard(tx)?
    {
        availability.keep(tx)?;
    }
    lease::release(tx, key::LEADER, term.token).map(drop)
}

/// Who leads, and under which token.
pub fn look(tx: &mut dyn Tx) -> Result<Option<Holder>, TxError> {
    lease::holder(tx, key::LEADER)
}
