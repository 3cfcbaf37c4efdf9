//! Locks and semaphores: permits with an owner, an expiry and a fencing token.
//!
//! A permit is a lease (`baton_store::lease`) under the lock's name and a slot; a lock is a semaphore of one permit.
//! Its record can be checked in a key-value call or in a transaction, so that work is done only while the permit is
//! held. Always: one live holder per slot; a token only rises. Not here: waiting, which callers do by asking again.
//! Start at [`run`].

use std::time::Duration;

use baton_store::lease::{self, Acquisition, Holder};
use baton_store::{Tx, TxError};
use baton_types::limits::LOCK_PERMITS_MAX;

use crate::kv::{LOCKS, Place};

/// One thing to do with a lock.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The lock's name, without `#`.
    pub name: String,
    /// What to do.
    pub action: Action,
}

/// What to do with a lock.
#[derive(Clone, Debug)]
pub enum Action {
    /// Takes a permit.
    Acquire {
        /// Who wants it.
        owner: String,
        /// For how long.
        life: Duration,
        /// How many permits there are.
        permits: u32,
    },
    /// Holds it for longer.
    Renew {
        /// The token it is held under.
        token: u64,
        /// Which one; found by the token when absent.
        slot: Option<u32>,
        /// Who holds it.
        owner: Option<String>,
        /// For how long from now.
        life: Duration,
    },
    /// Gives it back.
    Release {
        /// The token it is held under.
        token: u64,
        /// Which one; found by the token when absent.
        slot: Option<u32>,
    },
    /// Tells who holds permits.
    Get,
}

/// A permit that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    /// Which one, counted from 0.
    pub slot: u32,
    /// Who holds it.
    pub holder: Holder,
}

/// What an operation came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The permit is the caller's.
    Acquired {
        /// The permit.
        permit: Permit,
        /// Whether the same owner held it already.
        already: bool,
    },
    /// All permits are held by others.
    Held(Vec<Permit>),
    /// The permit runs for longer, under a new token.
    Renewed(Permit),
    /// The permit is free.
    Released,
    /// The permit is not held under that token; these are held.
    Lost(Vec<Permit>),
    /// Who holds permits.
    Holders(Vec<Permit>),
}

/// Where a permit can be checked in key-value calls.
pub fn place(name: &str, slot: u32) -> Place {
    Place { namespace: LOCKS.into(), key: format!("{name}#{slot}") }
}

/// Does each operation; every one must be on another lock.
pub fn run(tx: &mut dyn Tx, operations: &[Operation]) -> Result<Vec<Outcome>, TxError> {
    let mut held = Vec::with_capacity(operations.len());
    for operation in operations {
        held.push(permits(tx, &operation.name)?);
    }
    if operations.iter().any(|operation| matches!(operation.action, Action::Acquire { .. })) {
        tx.admit_bytes(0)?;
    }
    operations.iter().zip(held).map(|(operation, held)| act(tx, operation, held)).collect()
}

/// A page of held permits.
#[derive(Debug)]
pub struct PermitPage {
    /// Each permit with the name of its lock.
    pub permits: Vec<(String, Permit)>,
    /// The key after which the next page begins, if there are more.
    pub next: Option<String>,
}

/// Up to `limit` held permits of all locks, by name, after the key `after`.
pub fn list(tx: &mut dyn Tx, after: Option<&str>, limit: usize) -> Result<PermitPage, TxError> {
    let all = Place { namespace: LOCKS.into(), key: String::new() }.record();
    let after = after.map(|after| format!("{all}{after}"));
    let found = tx.records(&all, after.as_deref(), limit)?;
    let next = found
        .last()
        .filter(|_| found.len() == limit)
        .and_then(|(key, _)| key.strip_prefix(&all))
        .map(Into::into);
    let mut permits = Vec::with_capacity(found.len());
    for (key, record) in found {
        let Some((name, slot)) = key.strip_prefix(&all).and_then(|key| key.rsplit_once('#')) else {
            continue;
        };
        let Ok(slot) = slot.parse() else { continue };
        permits.push((name.to_owned(), Permit { slot, holder: Holder::from_record(&record)? }));
    }
    Ok(PermitPage { permits, next })
}

/// The permits of a lock that are held, by slot.
fn permits(tx: &mut dyn Tx, name: &str) -> Result<Vec<Permit>, TxError> {
    let prefix = Place { namespace: LOCKS.into(), key: format!("{name}#") }.record();
    let mut permits = Vec::new();
    for (key, record) in tx.records(&prefix, None, LOCK_PERMITS_MAX as usize)? {
        let Some(slot) = key.strip_prefix(&prefix).and_then(|slot| slot.parse().ok()) else { continue };
        permits.push(Permit { slot, holder: Holder::from_record(&record)? });
    }
    permits.sort_unstable_by_key(|permit| permit.slot);
    Ok(permits)
}

fn act(tx: &mut dyn Tx, operation: &Operation, held: Vec<Permit>) -> Result<Outcome, TxError> {
    let name = &operation.name;
    let key = |slot| place(name, slot).record();
    // Without a slot the permit is the one with the token, or the one of the owner.
    let slot = |given: &Option<u32>, token: u64, owner: Option<&str>| {
        let is_meant = |permit: &&Permit| {
            permit.holder.token == token || owner.is_some_and(|owner| permit.holder.owner == owner)
        };
        given.or_else(|| held.iter().find(is_meant).map(|permit| permit.slot))
    };
    Ok(match &operation.action {
        Action::Get => Outcome::Holders(held),
        Action::Acquire { owner, life, permits } => match free(&held, owner, *permits) {
            None => Outcome::Held(held),
            Some(slot) => match lease::acquire(tx, &key(slot), owner, *life)? {
                Acquisition::Granted(holder) => {
                    Outcome::Acquired { permit: Permit { slot, holder }, already: false }
                }
                Acquisition::AlreadyHeld(holder) => {
                    Outcome::Acquired { permit: Permit { slot, holder }, already: true }
                }
                Acquisition::HeldByOther(_) => Outcome::Held(held),
            },
        },
        Action::Renew { token, slot: given, owner, life } => {
            let Some(slot) = slot(given, *token, owner.as_deref()) else { return Ok(Outcome::Lost(held)) };
            match lease::renew(tx, &key(slot), *token, owner.as_deref(), *life)? {
                Some(holder) => Outcome::Renewed(Permit { slot, holder }),
                None => Outcome::Lost(held),
            }
        }
        Action::Release { token, slot: given } => match slot(given, *token, None) {
            Some(slot) if lease::release(tx, &key(slot), *token)? => Outcome::Released,
            _ => Outcome::Lost(held),
        },
    })
}

/// The slot for an owner: the one it has, else the lowest that is free.
fn free(held: &[Permit], owner: &str, permits: u32) -> Option<u32> {
    let within = held.iter().filter(|permit| permit.slot < permits);
    let own = within.clone().find(|permit| permit.holder.owner == owner);
    own.map(|permit| permit.slot).or_else(|| {
        let taken: Vec<_> = within.map(|permit| permit.slot).collect();
        (0..permits).find(|slot| taken.binary_search(slot).is_err())
    })
}
