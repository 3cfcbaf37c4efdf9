//! The rules of queues: what a call decides over a transaction of the store.
//!
//! A rule reads and writes a [`baton_store::Tx`] and nothing else: no clock, no socket, no task. So both stores run the same
//! rules, and a test calls them directly. Not here: running a rule on a store (`broker`), waiting (`wait`).
//! Start at [`pop`] and [`ack`].

pub mod ack;
pub mod cursor;
pub mod dedup_release;
pub mod group;
pub mod group_lag;
pub mod inspect;
pub mod maintenance;
pub mod outage;
pub mod pop;
pub mod push;
pub mod push_count;
pub mod quota;
pub mod retention;
pub mod seal;
pub mod stream;
pub mod timer;
pub mod trace;
pub mod transaction;
pub mod undecryptable;
