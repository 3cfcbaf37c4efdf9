//! Leadership: one node at a time runs the maintenance, under a lease whose token guards each of its commits.
//!
//! Always: each maintenance decision calls [`Term::guard`] in its own commit. So a node that was paused past the end
//! of its lease changes nothing. A node that is alone on its store takes the lease from its own earlier start.

use std::time::Duration;

use baton_store::lease::{self, Acquisition, Holder};
use baton_store::{Tx, TxError};
use serde_json::json;

use crate::model::keys;
use crate::rules::availability::Availability;
use crate::storage::event_log::Log;
use crate::storage::leader_term::Term;

/// Acquires or renews the lease for a node; `None` when another node has it. `sole` says that no other node exists. A
/// renewal stores the availability that the leader knows in its term.
pub fn acquire(
    tx: &mut dyn Tx,
    node: &str,
    sole: bool,
    life: Duration,
    known: Option<(u64, Availability)>,
) -> Result<Option<Term>, TxError> {
    // Without a leader no job would be deleted, so this commit may use the disk reserve.
    tx.use_reserve();
    let (last, log) = (last_term(tx)?, Log::open(tx)?);
    if sole && let Some(holder) = holder(tx)?.filter(|holder| holder.owner != node) {
        lease::release(tx, keys::LEADER, holder.token)?;
    }
    Ok(match lease::acquire(tx, keys::LEADER, node, life)? {
        Acquisition::Granted(holder) => {
            let number = last + 1;
            tx.put_record(keys::TERM, number.to_string().into(), None)?;
            log.write(tx, vec![("leader", json!({"node": node, "term": number}))])?;
            Some(Term { number, token: holder.token, since: holder.since })
        }
        Acquisition::AlreadyHeld(holder) => {
            if let Some((_, availability)) = known.filter(|(number, _)| *number == last) {
                availability.save(tx)?;
            }
            Some(Term { number: last, token: holder.token, since: holder.since })
        }
        Acquisition::HeldByOther(_) => None,
    })
}

/// The number of the last term.
pub fn last_term(tx: &mut dyn Tx) -> Result<u64, TxError> {
    let record = tx.record(keys::TERM)?;
    Ok(record.and_then(|record| std::str::from_utf8(&record.value).ok()?.parse().ok()).unwrap_or(0))
}

/// Releases the lease, so that another node need not wait for its end.
pub fn resign(tx: &mut dyn Tx, term: &Term, known: Option<Availability>) -> Result<(), TxError> {
    if let Some(availability) = known
        && term.guard(tx)?
    {
        availability.save(tx)?;
    }
    lease::release(tx, keys::LEADER, term.token).map(drop)
}

/// The node that leads, with its token.
pub fn holder(tx: &mut dyn Tx) -> Result<Option<Holder>, TxError> {
    lease::holder(tx, keys::LEADER)
}
