//! The rules of records, counters and locks, written once for both backends.
//!
//! Each rule is a function over a [`baton_store::Tx`], so a call of its own and a transaction of messages run the same
//! code. Always: a version and a fencing token only rise; a write whose condition does not hold changes nothing. Not
//! here: HTTP (`baton-server`), transactions and timers (`baton-queue`), rows on disk (`baton-store`).
//!
//! Start at [`kv::run`], then [`lock::run`].

pub mod counter;
pub mod kv;
pub mod lock;
