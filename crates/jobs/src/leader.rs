//! Who runs the duties: one node at a time, under a lease whose token guards everything that it does.
//!
//! Always: a decision of a duty asks [`Term::guard`] in its own commit, so a node that was paused past the end of its
//! lease changes nothing, whatever it believes. A node that owns its store alone takes the lease from its own past.

use baton_store::lease::{self, Acquired, Holder};
use baton_store::{Stop, Tx};
use baton_types::Timestamp;

use crate::key;
use crate::limits::TERM;

/// The right to run the duties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// The lease's token: rises with every acquisition and every renewal.
    pub token: u64,
    /// When it began.
    pub since: Timestamp,
}

impl Term {
    /// Whether this is the term that counts; asked in the decision that acts on it.
    pub fn guard(&self, tx: &mut dyn Tx) -> Result<bool, Stop> {
        lease::fence(tx, key::LEADER, self.token)
    }
}

/// Takes the lease for a node, or renews it; `None` when another node has it. `sole` says that there can be no other.
pub fn take(tx: &mut dyn Tx, node: &str, sole: bool) -> Result<Option<Term>, Stop> {
    let term = |holder: Holder| Term { token: holder.token, since: holder.since };
    Ok(match lease::acquire(tx, key::LEADER, node, TERM)? {
        Acquired::Taken(holder) | Acquired::Already(holder) => Some(term(holder)),
        Acquired::Held(holder) if sole => {
            lease::release(tx, key::LEADER, holder.token)?;
            match lease::acquire(tx, key::LEADER, node, TERM)? {
                Acquired::Taken(holder) | Acquired::Already(holder) => Some(term(holder)),
                Acquired::Held(_) => None,
            }
        }
        Acquired::Held(_) => None,
    })
}

/// Gives the lease back, so that another node need not wait for its end.
pub fn resign(tx: &mut dyn Tx, term: &Term) -> Result<(), Stop> {
    lease::release(tx, key::LEADER, term.token).map(drop)
}

/// Who leads, and under which token.
pub fn look(tx: &mut dyn Tx) -> Result<Option<Holder>, Stop> {
    lease::holder(tx, key::LEADER)
}
