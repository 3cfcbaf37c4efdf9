//! The Rust client of Baton: queues, jobs, schedules, workers and elections over HTTP.
//!
//! A program describes a queue operation in one chain of calls; the client handles retries, failover, leases and
//! connections. Always: a call that may have reached the server is retried only when it is idempotent (a push carries
//! a transaction id, an ack its lease); a 4xx is never retried; every wait, buffer and body is bounded. Not here:
//! queue rules (the server's), threads (bring a tokio runtime). Start at [`Client`].
//!
//! ```
//! use std::time::Duration;
//! use baton_client::{AckStatus, Client};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Order {
//!     number: u32,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let server = baton_server::testing().await?;
//! # let url = server.url();
//! let baton = Client::new(url)?;
//! let orders = baton.queue("orders").partition("customer-42");
//! orders.push(&Order { number: 1 }).send().await?;
//!
//! for message in orders.group("billing").pop().batch(10).wait(Duration::from_secs(5)).send().await? {
//!     let order: Order = message.data()?;
//!     println!("billing order {}", order.number);
//!     baton.ack(&message, AckStatus::Completed).await?;
//! }
//! # Ok(())
//! # }
//! ```

mod ack;
mod buffer;
mod client;
mod cluster;
mod connection;
mod consume;
mod dead_letter;
mod election;
mod endpoint;
mod error;
mod group;
mod id;
mod job;
mod labelled;
mod lease;
mod message;
mod path;
mod pool;
mod pop;
mod pop_source;
mod push;
mod queue;
mod retry;
mod schedule;
mod shards;
mod transaction;
pub mod worker;

pub use ack::Acknowledgement;
pub use baton_types::wire::{
    AckResult, AckStatus, DeadLetter, DeadLetterPage, Health, LeaseExtension, MessageCounts, PartitionDetail,
    PushResult, PushStatus, QueueDetail, QueueSummary, Replay, TransactionResponse, TransactionResult,
};
pub use baton_types::{QUEUE_MODE, QueueOptions, Timestamp, limits};
pub use buffer::Buffer;
pub use client::{Builder, Client};
pub use consume::{Consume, ConsumerStats};
pub use dead_letter::DeadLetters;
pub use election::Election;
pub use error::Error;
pub use job::{Enqueue, Enqueued, JobFilter, Jobs, LogPage};
pub use labelled::LabelledQueues;
pub use message::{Message, Receipt};
pub use pop::{Pop, Subscription};
pub use push::{Confirmation, Push};
pub use queue::Queue;
pub use schedule::Schedules;
pub use serde_json::value::RawValue;
pub use shards::{GainedShard, LostShard, ShardWorker, ShardWorkerBuilder, Shards};
pub use tokio_util::sync::CancellationToken;
pub use transaction::Transaction;
