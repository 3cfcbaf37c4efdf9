//! The rules of queues, records, locks and timers, written once, and the broker that runs them on a store.
//!
//! Each rule is a function from the tables to what changes in them, so it is the same on every backend and is
//! tested without a socket or a clock. Always: a message answered as queued is delivered, in the order of its
//! partition, until it is finished or a dead letter; a stale lease changes nothing. Not here: HTTP
//! (`baton-server`), bytes on disk (`baton-store`).
//!
//! Start at [`Broker`], then `pop` and `ack`.

mod ack;
mod broker;
pub mod counter;
mod error;
mod group;
mod inspect;
pub mod kv;
pub mod lock;
mod maintenance;
mod meter;
mod news;
mod outage;
mod parking;
mod pop;
mod push;
mod resolve;
mod retention;
mod room;
mod seal;
mod series;
mod stream;
pub mod timer;
mod trace;
mod transaction;
mod unreadable;
mod waiting;
mod withdrawn;

pub use ack::{AckItem, Acked, LeaseClaim};
pub use broker::{
    Broker, Causes, Cleared, FetchEntry, Fetched, Given, LetterError, LetterErrors, LetterFilter,
    LetterPlace, LetterProgress, LetterSample, Marks, Numbers, Options, Spool, TracedMessage,
};
pub use error::Error;
pub use group::{GroupOverview, GroupPartition, LeaseView, Position};
pub use inspect::{
    Counts, DeadLetterFilter, DeadLetterPage, ListedLetter, MessageDetail, MessageFilter, MessageStatus,
    MessageSummary, PartitionSummary, QueueSummary, Replayed,
};
pub use maintenance::{Maintenance, PushMode, is_hidden};
pub use meter::{Kind, Meters, Tally};
pub use news::{News, Relay};
pub use parking::Herald;
pub use pop::{Claim, PopRequest, Popped, Subscription, Target};
pub use push::{PushBatch, Pushed};
pub use seal::{KeyError, Keyring};
pub use series::{Gauges, Minute};
pub use stream::{
    Cycle, CycleAck, CycleAcked, Cycled, KEY_BYTES_MAX, NewQuery, Registered, StateChange, StateRow,
    VALUE_BYTES_MAX, Wanted,
};
pub use trace::{DATA_BYTES_MAX, NAMES_MAX, NameCount, NewTrace, PER_MESSAGE_MAX, Trace};
pub use transaction::{
    LEASE, Place, Refusal, Repeatable, Ridden, Rider, Step, StepResult, Transaction, TransactionResult,
    WriteAnswer,
};
pub use waiting::WaitStatistics;
