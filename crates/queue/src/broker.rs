use crate::*;
use baton_store::{Queue, Store};
use baton_types::{GroupId, LeaseId, PartitionId, QueueOptions, Timestamp};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

/// How the broker waits. The names are those of the settings.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub pop_wait_initial_interval: Duration,
    pub pop_wait_backoff_threshold: u32,
    pub pop_wait_backoff_multiplier: f64,
    pub pop_wait_max_interval: Duration,
    pub retention_interval: Duration,
    pub waiters_max: usize,
}

/// Numbers about waiting pops.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitStatistics {
    pub waiters: usize,
    pub groups_tracked: usize,
    pub groups_in_flight: usize,
    pub groups_backed_off: usize,
}

/// The queues of one store. Cheap to clone.
#[derive(Clone)]
pub struct Broker {}

impl Broker {
    pub fn start(store: Arc<dyn Store>, options: Options) -> Self {
        todo!()
    }
    /// Creates or changes a queue. `replace` starts from the defaults instead of what is set. `namespace`/`task`
    /// `None` keep what is set.
    pub async fn configure(
        &self,
        queue: &str,
        namespace: Option<&str>,
        task: Option<&str>,
        options: &Map<String, Value>,
        replace: bool,
    ) -> Result<Arc<Queue>, Error> {
        todo!()
    }
    pub async fn push(&self, batch: PushBatch) -> Result<Vec<Pushed>, Error> {
        todo!()
    }
    /// `None` when nothing came in time. Dropping the future ends the wait at once.
    pub async fn pop(&self, request: PopRequest) -> Result<Option<Popped>, Error> {
        todo!()
    }
    pub async fn ack(&self, items: Vec<AckItem>) -> Result<Vec<Acked>, Error> {
        todo!()
    }
    pub async fn transaction(&self, transaction: Transaction) -> Result<TransactionResult, Error> {
        todo!()
    }
    /// How many (partition, group) leases were extended and when the first of them now runs out.
    pub async fn extend(&self, lease: LeaseId, by: Duration) -> Result<(u64, Option<Timestamp>), Error> {
        todo!()
    }
    /// Pushes a dead letter again and removes it. `None`: no such dead letter.
    pub async fn replay(
        &self,
        partition: PartitionId,
        transaction_id: &str,
    ) -> Result<Option<Replayed>, Error> {
        todo!()
    }
    pub async fn messages(&self, filter: MessageFilter) -> Result<Vec<MessageSummary>, Error> {
        todo!()
    }
    pub async fn message(
        &self,
        partition: PartitionId,
        transaction_id: &str,
    ) -> Result<Option<MessageDetail>, Error> {
        todo!()
    }
    pub async fn delete_message(&self, partition: PartitionId, transaction_id: &str) -> Result<bool, Error> {
        todo!()
    }
    pub async fn dead_letters(&self, filter: DeadLetterFilter) -> Result<DeadLetterPage, Error> {
        todo!()
    }
    pub async fn groups(&self) -> Result<Vec<GroupOverview>, Error> {
        todo!()
    }
    /// Every partition where the named group (or any group) has a cursor or messages, of one queue or all.
    pub async fn group_partitions(&self, group: Option<&str>) -> Result<Vec<GroupPartition>, Error> {
        todo!()
    }
    /// Returns how many partitions had a cursor. `queue` `None` means every queue. `keep_subscription`: the group
    /// starts again from where it first subscribed instead of as a new group.
    pub async fn delete_group(
        &self,
        group: &str,
        queue: Option<&str>,
        keep_subscription: bool,
    ) -> Result<u64, Error> {
        todo!()
    }
    /// Changes where the group begins in partitions it has not read; how many subscriptions were changed.
    pub async fn resubscribe(&self, group: &str, at: Timestamp) -> Result<u64, Error> {
        todo!()
    }
    /// `None`: unknown queue. Else how many partitions were moved.
    pub async fn seek(&self, group: &str, queue: &str, to: Position) -> Result<Option<u64>, Error> {
        todo!()
    }
    /// `None`: unknown partition. Else the time of the message the cursor moved behind.
    pub async fn seek_partition(
        &self,
        group: &str,
        queue: &str,
        partition: &str,
        to: Position,
    ) -> Result<Option<Option<Timestamp>>, Error> {
        todo!()
    }
    /// Newest first.
    pub async fn queues(&self) -> Result<Vec<QueueSummary>, Error> {
        todo!()
    }
    pub async fn queue(&self, name: &str) -> Result<Option<(QueueSummary, Vec<PartitionSummary>)>, Error> {
        todo!()
    }
    /// Whether it existed.
    pub async fn delete_queue(&self, name: &str) -> Result<bool, Error> {
        todo!()
    }
    /// Deletes all messages of a queue or of one partition; how many partitions.
    pub async fn clear_queue(&self, name: &str, partition: Option<&str>) -> Result<Option<u64>, Error> {
        todo!()
    }
    pub fn wait_statistics(&self) -> WaitStatistics {
        todo!()
    }
    pub fn store(&self) -> &Arc<dyn Store> {
        todo!()
    }
    /// Answers every parked pop with nothing and takes no new ones.
    pub async fn shutdown(&self) {
        todo!()
    }
}
