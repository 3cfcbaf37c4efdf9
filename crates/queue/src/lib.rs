//! The rules of queues, written once, and the broker that runs them on a store.
//!
//! Start at [`Broker`].

mod ack;
mod broker;
mod error;
mod group;
mod inspect;
mod pop;
mod push;
mod transaction;

pub use ack::{AckItem, Acked, LeaseClaim};
pub use broker::{Broker, Options, WaitStatistics};
pub use error::Error;
pub use group::{GroupOverview, GroupPartition, Position};
pub use inspect::{
    Counts, DeadLetterFilter, DeadLetterPage, MessageDetail, MessageFilter, MessageStatus, MessageSummary, PartitionSummary,
    QueueSummary, Replayed,
};
pub use pop::{Claim, PopRequest, Popped, Subscription, Target};
pub use push::{PushBatch, Pushed};
pub use transaction::{Step, StepResult, Transaction, TransactionResult};
