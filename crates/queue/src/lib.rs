//! The rules of queues and timers, written once, and the broker that runs them on a store.
//!
//! Each rule is a function from the tables to what changes in them, so it is the same on every backend and is
//! tested without a socket or a clock. Always: a message answered as queued is delivered, in the order of its
//! partition, until it is finished or a dead letter; a stale lease changes nothing. Not here: the
//! rules of records and locks (`baton-records`), HTTP (`baton-server`), bytes on disk (`baton-store`).
//!
//! Start at [`Broker`], then `pop` and `ack`.

mod broker;
mod error;
mod rules;
mod wait;

pub use broker::history::{Gauges, Minute};
pub use broker::metrics::{Kind, Meters, Tally};
pub use broker::{
    Broker, Causes, Cleared, FetchEntry, Fetched, LetterError, LetterErrors, LetterFilter, LetterPlace,
    LetterProgress, LetterSample, Marks, Numbers, Options, Spool, TracedMessage,
};
pub use error::Error;
pub use rules::ack::{AckItem, Acked, LeaseClaim};
pub use rules::group::{GroupOverview, GroupPartition, LeaseView, Position};
pub use rules::inspect::{
    Counts, DeadLetterFilter, DeadLetterPage, ListedLetter, MessageDetail, MessageFilter, MessageStatus,
    MessageSummary, PartitionSummary, QueueSummary, Replayed,
};
pub use rules::maintenance::{Maintenance, PushMode, is_hidden};
pub use rules::pop::{Claim, PopRequest, Popped, Subscription, Target};
pub use rules::push::{PushBatch, Pushed};
pub use rules::seal::{KeyError, Keyring};
pub use rules::stream::{
    Cycle, CycleAck, CycleAcked, Cycled, KEY_BYTES_MAX, NewQuery, Registered, StateChange, StateRow,
    VALUE_BYTES_MAX, Wanted,
};
pub use rules::timer;
pub use rules::trace::{DATA_BYTES_MAX, NAMES_MAX, NameCount, NewTrace, PER_MESSAGE_MAX, Trace};
pub use rules::transaction::{
    LEASE, Place, Refusal, Repeatable, Ridden, Rider, Step, StepResult, Transaction, TransactionResult,
    WriteAnswer,
};
pub use wait::WaitStatistics;
pub use wait::hint::{News, Relay};
