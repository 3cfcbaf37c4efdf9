//! The broker: every operation on queues, run on a store.
//!
//! It finds out what a request means (which message a transaction id names), runs the decision, and reads the
//! payloads that were granted. The rules are in the modules beside it; HTTP is not known here.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use baton_env::{Clock, SystemClock};
use baton_store::{
    DeadLetter, DeadLetterKey, NewMessage, Queue, QueueSpec, Segment, Start, Stop, Store, Tx, run,
};
use baton_types::{LeaseId, MessageId, Offset, PartitionId, QueueOptions, Timestamp, limits};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Error;
use crate::ack::{self, AckItem, Acked, LeaseClaim, Resolved};
use crate::group::{self, GroupOverview, GroupPartition, Position};
use crate::inspect::{
    self, DeadLetterFilter, DeadLetterPage, MessageDetail, MessageFilter, MessageSummary, PartitionSummary,
    QueueSummary, Replayed, Views,
};
use crate::parking::{Granted, ImmediatePop, Parking};
use crate::pop::{self, Claim, PopRequest, Popped, Range};
use crate::push::{self, PushBatch, Pushed, check_name};
use crate::resolve::{self, Deliveries};
use crate::retention;
use crate::transaction::{self, Ready, Step, Transaction, TransactionResult};
use crate::waiting::{BackOff, WaitStatistics, Watched};

/// Better no queue than one that says it is encrypted and is not.
const NO_ENCRYPTION: &str = "encryptionEnabled is not supported yet: messages would be stored as plain text";
/// Rows read in one decision while a listing is put together.
const PAGE: usize = 1000;
/// Partitions whose newest messages a listing looks at.
const LISTED_PARTITIONS_MAX: usize = 1000;

/// How the broker waits and cleans up.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The first pause of a waiting pop between two looks.
    pub pop_wait_initial_interval: Duration,
    /// Empty looks before the pause grows.
    pub pop_wait_backoff_threshold: u32,
    /// By how much it grows.
    pub pop_wait_backoff_multiplier: f64,
    /// The longest pause.
    pub pop_wait_max_interval: Duration,
    /// Between two sweeps for messages to give up.
    pub retention_interval: Duration,
    /// Pops that may wait at once.
    pub waiters_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pop_wait_initial_interval: Duration::from_millis(100),
            pop_wait_backoff_threshold: 3,
            pop_wait_backoff_multiplier: 2.0,
            pop_wait_max_interval: Duration::from_millis(1000),
            retention_interval: Duration::from_secs(2),
            waiters_max: 100_000,
        }
    }
}

/// The queues of one store. Cheap to clone.
#[derive(Clone)]
pub struct Broker {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn Store>,
    parking: Arc<Parking>,
    deliveries: Deliveries,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Broker {
    /// Starts the tasks that keep time for waiting pops and give up old messages. Needs a tokio runtime.
    pub fn start(store: Arc<dyn Store>, options: Options) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let back_off = BackOff {
            initial: options.pop_wait_initial_interval,
            threshold: options.pop_wait_backoff_threshold,
            multiplier: options.pop_wait_backoff_multiplier,
            max: options.pop_wait_max_interval,
        };
        let parking = Parking::new(store.clone(), clock, back_off, options.waiters_max);
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        tasks.spawn(parking.clone().run(stop.clone()));
        tasks.spawn(keep_sweeping(store.clone(), options.retention_interval, stop.clone()));
        tasks.close();
        Self { shared: Arc::new(Shared { store, parking, deliveries: Deliveries::default(), stop, tasks }) }
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// Numbers about waiting pops.
    pub fn wait_statistics(&self) -> WaitStatistics {
        self.shared.parking.statistics()
    }

    /// Answers every parked pop with nothing and takes no new ones.
    pub async fn shutdown(&self) {
        self.shared.stop.cancel();
        self.shared.parking.close();
        self.shared.tasks.wait().await;
    }

    async fn run<R, F>(&self, decide: F) -> Result<R, Error>
    where
        R: Send + 'static,
        F: FnMut(&mut dyn Tx) -> Result<R, Stop> + Send + 'static,
    {
        Ok(run(&*self.shared.store, decide).await?)
    }

    /// Creates or changes a queue. An absent label or option keeps its value; `replace` starts from the
    /// defaults instead.
    pub async fn configure(
        &self,
        queue: &str,
        namespace: Option<&str>,
        task: Option<&str>,
        options: &Map<String, Value>,
        replace: bool,
    ) -> Result<Arc<Queue>, Error> {
        check_name("queue", queue)?;
        for label in namespace.iter().chain(&task) {
            check_name("namespace or task", label)?;
        }
        let (name, options): (Arc<str>, _) = (queue.into(), options.clone());
        let (namespace, task) = (namespace.map(Arc::<str>::from), task.map(Arc::<str>::from));
        self.run(move |tx| {
            let old = tx.queue(&name)?.filter(|_| !replace);
            let base = old.as_ref().map_or_else(QueueOptions::default, |old| old.spec.options.clone());
            let options = match base.merged(&options) {
                Ok(options) => options,
                Err(error) => return Ok(Err(Error::Invalid(error.to_string()))),
            };
            if options.encryption_enabled {
                return Ok(Err(Error::Invalid(NO_ENCRYPTION.into())));
            }
            let label = |given: &Option<Arc<str>>, old: Option<&Arc<str>>| {
                given.clone().or_else(|| old.cloned()).unwrap_or_else(|| "".into())
            };
            tx.put_queue(QueueSpec {
                name: name.clone(),
                namespace: label(&namespace, old.as_ref().map(|old| &old.spec.namespace)),
                task: label(&task, old.as_ref().map(|old| &old.spec.task)),
                options,
            })
            .map(Ok)
        })
        .await?
    }

    /// Stores messages. All or none; answered when they are on disk.
    pub async fn push(&self, batch: PushBatch) -> Result<Vec<Pushed>, Error> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        self.run(move |tx| push::push(tx, &batch)).await?
    }

    /// Messages for a consumer; `None` when there are none, or none came in time. Dropping the future ends the
    /// wait at once, and what it was granted goes to the next.
    pub async fn pop(&self, request: PopRequest) -> Result<Option<Popped>, Error> {
        check_pop(&request)?;
        let request = Arc::new(request);
        let granted = ImmediatePop::run(&self.shared.store, request.clone()).await?;
        if !granted.decided.claims.is_empty() {
            return self.deliver(granted, &request).await;
        }
        let Some(wait) = request.wait else { return Ok(None) };
        let watched =
            Watched { queues: granted.decided.looked_at.clone(), partition: granted.decided.partition };
        drop(granted);
        let wait = wait.min(limits::POP_WAIT_MAX);
        match Box::pin(self.shared.parking.wait((*request).clone(), watched, wait)).await? {
            Some(granted) => self.deliver(granted, &request).await,
            None => Ok(None),
        }
    }

    /// Reads what was granted.
    async fn deliver(&self, mut granted: Granted, request: &PopRequest) -> Result<Option<Popped>, Error> {
        let (lease, mut claims, mut bytes) = (granted.lease, Vec::new(), 0);
        for range in &granted.decided.claims {
            let (messages, complete) = self.read(range, limits::POP_BYTES_MAX.saturating_sub(bytes)).await?;
            bytes += messages.iter().map(|message| message.payload.len()).sum::<usize>();
            if !complete && !request.auto_ack {
                let keep = messages.last().map_or(range.from, |message| message.offset.plus(1));
                let partition = range.partition;
                self.run(move |tx| pop::give_back(tx, lease, Some((partition, keep)))).await?;
            }
            if messages.is_empty() {
                continue;
            }
            if !request.auto_ack {
                self.shared.deliveries.add(lease, range.partition, &messages);
            }
            claims.push(Claim {
                queue: range.queue.clone(),
                partition: range.partition,
                partition_name: range.partition_name.clone(),
                attempt: range.attempt,
                messages,
            });
        }
        granted.accept();
        let lease = (!request.auto_ack).then_some(lease);
        Ok((!claims.is_empty()).then_some(Popped { lease, claims }))
    }

    /// The messages of a range, and whether these are all of it. At least one is read, however large.
    async fn read(
        &self,
        range: &Range,
        bytes_max: usize,
    ) -> Result<(Vec<baton_store::MessageView>, bool), Error> {
        let segments = self.shared.store.read(range.partition, range.from, range.to, bytes_max).await?;
        let (mut messages, mut bytes) = (Vec::new(), 0);
        for message in segments.iter().flat_map(Segment::messages) {
            let message = message.map_err(baton_store::Error::from)?;
            let is_wanted = range.from <= message.offset
                && message.offset < range.to
                && !range.except.as_ref().is_some_and(|except| except.contains(message.offset));
            if !is_wanted {
                continue;
            }
            if bytes > 0 && bytes + message.payload.len() > bytes_max {
                return Ok((messages, false));
            }
            bytes += message.payload.len();
            messages.push(message);
        }
        let complete = segments.last().is_some_and(|segment| segment.end() >= range.to);
        Ok((messages, complete))
    }

    /// Finishes messages, or says that they failed. One result per item, in order.
    pub async fn ack(&self, items: Vec<AckItem>) -> Result<Vec<Acked>, Error> {
        let acks = self.resolve(items).await?;
        let leases: Vec<_> = acks.iter().map(|ack| (ack.item.lease, ack.item.partition)).collect();
        let results = self
            .run(move |tx| {
                let prepared = ack::prepare(tx, &acks)?;
                Ok(ack::write(tx, prepared))
            })
            .await?;
        self.forget_released(&leases, &results);
        Ok(results)
    }

    fn forget_released<'a>(
        &self,
        leases: &[(LeaseClaim, Option<PartitionId>)],
        results: impl IntoIterator<Item = &'a Acked>,
    ) {
        for ((lease, partition), result) in leases.iter().zip(results) {
            if let (LeaseClaim::Held(lease), Some(partition), true) =
                (lease, partition, result.lease_released)
            {
                self.shared.deliveries.remove(*lease, *partition);
            }
        }
    }

    /// Finds the message that each ack means.
    async fn resolve(&self, items: Vec<AckItem>) -> Result<Vec<Resolved>, Error> {
        let mut acks = Vec::with_capacity(items.len());
        for item in items {
            let delivered = match (item.lease, item.partition) {
                (LeaseClaim::Held(lease), Some(partition)) => {
                    self.shared.deliveries.find(lease, partition, &item.transaction_id)
                }
                _ => None,
            };
            let offset = match (delivered, item.partition) {
                (Some(offset), _) => Some(offset),
                (None, Some(partition)) => {
                    let found = resolve::find_stored(&self.shared.store, partition, &item.transaction_id);
                    Box::pin(found).await?.map(|message| message.offset)
                }
                (None, None) => None,
            };
            acks.push(Resolved { item, offset });
        }
        Ok(acks)
    }

    /// Does several acks and pushes together or not at all.
    pub async fn transaction(&self, transaction: Transaction) -> Result<TransactionResult, Error> {
        let (mut items, mut pushes, mut shape) = (Vec::new(), PushBatch::default(), Vec::new());
        for step in transaction.steps {
            match step {
                Step::Ack(item) => {
                    items.push(item);
                    shape.push(None);
                }
                Step::Push(batch) => {
                    shape.push(Some(batch.len()));
                    pushes.extend(batch);
                }
            }
        }
        let acks = self.resolve(items).await?;
        let leases: Vec<_> = acks.iter().map(|ack| (ack.item.lease, ack.item.partition)).collect();
        let ready = Ready { acks, pushes, shape, required_leases: transaction.required_leases };
        let result = self.run(move |tx| transaction::transact(tx, &ready)).await?;
        let acked = result.results.iter().filter_map(|step| match step {
            transaction::StepResult::Ack(acked) => Some(acked),
            transaction::StepResult::Push(_) => None,
        });
        self.forget_released(&leases, acked);
        Ok(result)
    }

    /// Lets a lease run longer; how many (partition, group) leases were extended, and when the first ends.
    pub async fn extend(&self, lease: LeaseId, by: Duration) -> Result<(u64, Option<Timestamp>), Error> {
        self.run(move |tx| pop::extend(tx, lease, by.min(limits::LEASE_MAX))).await
    }

    // Dead letters.

    /// A page of dead letters.
    pub async fn dead_letters(&self, filter: DeadLetterFilter) -> Result<DeadLetterPage, Error> {
        let queues = self.matching_queues(filter.queue.clone(), None, None).await?;
        let mut found = Vec::new();
        for queue in queues {
            let mut after: Option<DeadLetter> = None;
            loop {
                let (id, last) = (queue.id, after.clone());
                let page = self
                    .run(move |tx| {
                        let letters = tx.dead_letters(id, last.as_ref(), PAGE)?;
                        let mut named = Vec::with_capacity(letters.len());
                        for letter in letters {
                            let partition = tx.partition_by_id(letter.key.partition)?;
                            named.push((letter, partition.map_or_else(|| "".into(), |p| p.name)));
                        }
                        Ok(named)
                    })
                    .await?;
                let Some((last, _)) = page.last() else { break };
                after = Some(last.clone());
                let wanted = page.into_iter().filter(|(letter, partition)| filter.wants(letter, partition));
                found.extend(wanted.map(|(letter, partition)| (letter, queue.spec.name.clone(), partition)));
            }
        }
        found.sort_by_key(|(letter, ..)| std::cmp::Reverse(letter.failed_at));
        let total = found.len() as u64;
        let letters = found.into_iter().skip(filter.offset).take(filter.limit).collect();
        Ok(DeadLetterPage { total, letters })
    }

    /// Pushes a dead letter again and removes it; `None` when there is none of that message.
    pub async fn replay(
        &self,
        partition: PartitionId,
        transaction_id: &str,
    ) -> Result<Option<Replayed>, Error> {
        let transaction_id = transaction_id.to_string();
        self.run(move |tx| replay(tx, partition, &transaction_id)).await?
    }

    // Messages.

    /// Messages, the newest first.
    pub async fn messages(&self, filter: MessageFilter) -> Result<Vec<MessageSummary>, Error> {
        let (queue, namespace, task) = (filter.queue.clone(), filter.namespace.clone(), filter.task.clone());
        let queues = self.matching_queues(queue, namespace, task).await?;
        let wanted = filter.limit.saturating_add(filter.offset).min(limits::BATCH_ITEMS_MAX) as u64;
        let mut found = Vec::new();
        for queue in queues {
            let letters = self.dead_letters(DeadLetterFilter::all_of(&queue)).await?.letters;
            let dead = letters.into_iter().map(|(l, ..)| (l.key.partition, l.key.offset)).collect();
            for partition in self.newest_partitions(&queue, &filter).await? {
                // Deleted messages are left out below, so as many more are read.
                let reach = wanted + partition.deleted.len();
                let from = partition.start.max(Offset(partition.tail.0.saturating_sub(reach)));
                found.extend(self.summaries(&queue, &partition, from, &dead, &filter).await?);
            }
        }
        found.sort_by_key(|summary| {
            let message = &summary.message;
            std::cmp::Reverse((message.created_at, message.partition, message.offset))
        });
        Ok(found.into_iter().skip(filter.offset).take(filter.limit).collect())
    }

    /// The partitions of a queue that were written to last, within the filter's time.
    async fn newest_partitions(
        &self,
        queue: &Arc<Queue>,
        filter: &MessageFilter,
    ) -> Result<Vec<baton_store::Partition>, Error> {
        let (mut found, mut after) = (Vec::new(), None);
        let (id, from) = (queue.id, filter.from.unwrap_or(Timestamp::MIN));
        loop {
            let page = self.run(move |tx| tx.partitions(id, after, PAGE)).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            found.extend(page.into_iter().filter(|partition| {
                partition.start < partition.tail
                    && partition.last_at >= from
                    && filter.partition.as_deref().is_none_or(|name| *partition.name == *name)
            }));
        }
        found.sort_by_key(|partition| std::cmp::Reverse(partition.last_at));
        found.truncate(LISTED_PARTITIONS_MAX);
        Ok(found)
    }

    async fn summaries(
        &self,
        queue: &Arc<Queue>,
        partition: &baton_store::Partition,
        from: Offset,
        dead: &HashSet<(PartitionId, Offset)>,
        filter: &MessageFilter,
    ) -> Result<Vec<MessageSummary>, Error> {
        let (of_queue, row) = (queue.clone(), partition.clone());
        let views = self.run(move |tx| Views::of(tx, &of_queue, &row)).await?;
        let (mut at, mut found) = (from, Vec::new());
        while at < partition.tail {
            let segments =
                self.shared.store.read(partition.id, at, partition.tail, limits::POP_BYTES_MAX).await?;
            let Some(last) = segments.last() else { break };
            at = last.end();
            for message in segments.iter().flat_map(Segment::messages) {
                let message = message.map_err(baton_store::Error::from)?;
                if message.offset < from || partition.deleted.contains(message.offset) {
                    continue;
                }
                let is_dead = dead.contains(&(partition.id, message.offset));
                let summary = views.summarise(queue, &partition.name, message, is_dead);
                found.extend(Some(summary).filter(|summary| filter.wants(summary)));
            }
        }
        Ok(found)
    }

    /// One message with all that is known of it.
    pub async fn message(
        &self,
        partition: PartitionId,
        transaction_id: &str,
    ) -> Result<Option<MessageDetail>, Error> {
        let Some(message) = resolve::find_stored(&self.shared.store, partition, transaction_id).await? else {
            return Ok(None);
        };
        self.run(move |tx| {
            let Some(row) = tx.partition_by_id(partition)? else { return Ok(None) };
            let Some(queue) = tx.queue_by_id(row.queue)? else { return Ok(None) };
            if message.offset < row.start || row.deleted.contains(message.offset) {
                return Ok(None);
            }
            let views = Views::of(tx, &queue, &row)?;
            let dead_letter = letters_of(tx, &queue, partition, message.offset)?.into_iter().next();
            let groups = views.groups(message.offset);
            let summary = views.summarise(&queue, &row.name, message.clone(), dead_letter.is_some());
            Ok(Some(MessageDetail { summary, groups, dead_letter }))
        })
        .await
    }

    /// Deletes a message for every group, with its dead letters; whether there was one.
    pub async fn delete_message(&self, partition: PartitionId, transaction_id: &str) -> Result<bool, Error> {
        let found = resolve::find_stored(&self.shared.store, partition, transaction_id).await?;
        let (offset, transaction_id) = (found.map(|message| message.offset), transaction_id.to_string());
        self.run(move |tx| {
            let Some(row) = tx.partition_by_id(partition)? else { return Ok(false) };
            let Some(queue) = tx.queue_by_id(row.queue)? else { return Ok(false) };
            let kept = offset.filter(|offset| *offset >= row.start && !row.deleted.contains(*offset));
            let letters = match kept {
                Some(offset) => letters_of(tx, &queue, partition, offset)?,
                None => find_letter(tx, &queue, partition, &transaction_id)?.into_iter().collect(),
            };
            if let Some(offset) = kept {
                tx.delete_message(partition, offset);
            }
            letters.iter().for_each(|letter| tx.remove_dead_letter(&letter.key));
            Ok(kept.is_some() || !letters.is_empty())
        })
        .await
    }

    // Groups.

    /// Every group of every queue.
    pub async fn groups(&self) -> Result<Vec<GroupOverview>, Error> {
        let mut found = Vec::new();
        for queue in self.matching_queues(None, None, None).await? {
            let id = queue.id;
            let groups = self
                .run(move |tx| {
                    let mut groups = Vec::new();
                    for group in tx.groups(id)? {
                        let backlog = tx.backlog(group.id)?;
                        groups.push((group, backlog));
                    }
                    Ok(groups)
                })
                .await?;
            for (group, backlog) in groups {
                let partitions = self.describe(&queue, &group).await?;
                found.push(group::summarise(&queue, &group, backlog, &partitions));
            }
        }
        Ok(found)
    }

    /// How far groups are, partition by partition: the named one, or all.
    pub async fn group_partitions(&self, name: Option<&str>) -> Result<Vec<GroupPartition>, Error> {
        let mut found = Vec::new();
        for queue in self.matching_queues(None, None, None).await? {
            let id = queue.id;
            for group in self.run(move |tx| tx.groups(id)).await? {
                if name.is_none_or(|name| *group.name == *name) {
                    found.extend(self.describe(&queue, &group).await?);
                }
            }
        }
        Ok(found)
    }

    async fn describe(
        &self,
        queue: &Arc<Queue>,
        group: &Arc<baton_store::Group>,
    ) -> Result<Vec<GroupPartition>, Error> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let (queue, group) = (queue.clone(), group.clone());
            let (page, last) = self
                .run(move |tx| {
                    let partitions = tx.partitions(queue.id, after, PAGE)?;
                    let mut page = Vec::new();
                    for partition in &partitions {
                        page.extend(group::describe(tx, &queue, &group, partition)?);
                    }
                    Ok((page, partitions.last().map(|partition| partition.id)))
                })
                .await?;
            found.extend(page);
            match last {
                Some(last) => after = Some(last),
                None => return Ok(found),
            }
        }
    }

    /// Deletes a group, from one queue or from all; how many partitions it had read. With
    /// `keep_subscription` it begins again where it first did, otherwise as a new group.
    pub async fn delete_group(
        &self,
        name: &str,
        queue: Option<&str>,
        keep_subscription: bool,
    ) -> Result<u64, Error> {
        let mut gone = 0;
        for queue in self.matching_queues(queue.map(String::from), None, None).await? {
            let (id, group) = (queue.id, name.to_string());
            let Some(group) = self.run(move |tx| tx.group(id, &group)).await? else { continue };
            gone += self.describe(&queue, &group).await?.iter().filter(|p| p.last_pop_at.is_some()).count()
                as u64;
            self.run(move |tx| {
                group::delete(tx, &group, keep_subscription);
                Ok(())
            })
            .await?;
        }
        Ok(gone)
    }

    /// Changes where a group begins in partitions it has not read; how many subscriptions were changed.
    pub async fn resubscribe(&self, name: &str, at: Timestamp) -> Result<u64, Error> {
        let name = name.to_string();
        self.run(move |tx| {
            let mut changed = 0;
            for queue in tx.queues()? {
                if let Some(group) = tx.group(queue.id, &name)? {
                    tx.set_start(group.id, Start::At(at));
                    changed += 1;
                }
            }
            Ok(changed)
        })
        .await
    }

    /// Moves a group in every partition; `None` when there is no such queue, else how many there are.
    pub async fn seek(&self, name: &str, queue: &str, to: Position) -> Result<Option<u64>, Error> {
        check_name("group", name)?;
        let (name, queue) = (name.to_string(), queue.to_string());
        self.run(move |tx| match tx.queue(&queue)? {
            Some(queue) => group::seek(tx, &queue, &name, to).map(Some),
            None => Ok(None),
        })
        .await
    }

    /// Moves a group in one partition; `None` when there is no such partition, else when the message before
    /// its new place was stored.
    pub async fn seek_partition(
        &self,
        name: &str,
        queue: &str,
        partition: &str,
        to: Position,
    ) -> Result<Option<Option<Timestamp>>, Error> {
        check_name("group", name)?;
        let (name, queue, partition) = (name.to_string(), queue.to_string(), partition.to_string());
        self.run(move |tx| {
            let Some(queue) = tx.queue(&queue)? else { return Ok(None) };
            let Some(partition) = tx.partition(queue.id, &partition)? else { return Ok(None) };
            group::seek_partition(tx, &queue, &name, &partition, to).map(Some)
        })
        .await
    }

    // Queues.

    async fn matching_queues(
        &self,
        name: Option<String>,
        namespace: Option<String>,
        task: Option<String>,
    ) -> Result<Vec<Arc<Queue>>, Error> {
        let matches = |wanted: &Option<String>, have: &str| wanted.as_deref().is_none_or(|w| w == have);
        let queues = self.run(|tx| tx.queues()).await?;
        let wanted = queues.into_iter().filter(|queue| {
            matches(&name, &queue.spec.name)
                && matches(&namespace, &queue.spec.namespace)
                && matches(&task, &queue.spec.task)
        });
        Ok(wanted.collect())
    }

    /// All queues, the newest first.
    pub async fn queues(&self) -> Result<Vec<QueueSummary>, Error> {
        let mut found = Vec::new();
        for queue in self.matching_queues(None, None, None).await? {
            found.push(self.summarise(&queue).await?.0);
        }
        found.reverse();
        Ok(found)
    }

    /// One queue with its partitions.
    pub async fn queue(&self, name: &str) -> Result<Option<(QueueSummary, Vec<PartitionSummary>)>, Error> {
        match self.matching_queues(Some(name.into()), None, None).await?.first() {
            Some(queue) => self.summarise(queue).await.map(Some),
            None => Ok(None),
        }
    }

    async fn summarise(&self, queue: &Arc<Queue>) -> Result<(QueueSummary, Vec<PartitionSummary>), Error> {
        let (mut partitions, mut after) = (Vec::new(), None);
        let of_queue = queue.clone();
        let group = self.run(move |tx| inspect::counting_group(tx, &of_queue)).await?;
        loop {
            let (queue, group) = (queue.clone(), group.clone());
            let page = self
                .run(move |tx| {
                    let mut page = Vec::new();
                    for partition in tx.partitions(queue.id, after, PAGE)? {
                        page.push(inspect::summarise(tx, group.as_deref(), &partition)?);
                    }
                    Ok(page)
                })
                .await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            partitions.extend(page);
        }
        for (letter, ..) in self.dead_letters(DeadLetterFilter::all_of(queue)).await?.letters {
            let found = partitions.binary_search_by_key(&letter.key.partition, |p: &PartitionSummary| p.id);
            let Ok(at) = found else { continue };
            let counts = &mut partitions[at].counts;
            counts.dead_letter += 1;
            if group.as_ref().is_some_and(|group| group.name == letter.key.group) {
                // What the group gave up on is behind it, but not done.
                counts.completed = counts.completed.saturating_sub(1);
            }
        }
        let mut counts = inspect::Counts::default();
        partitions.iter().for_each(|partition| counts += partition.counts);
        let summary = QueueSummary { queue: queue.clone(), partitions: partitions.len() as u64, counts };
        Ok((summary, partitions))
    }

    /// Deletes a queue with everything in it; whether there was one.
    pub async fn delete_queue(&self, name: &str) -> Result<bool, Error> {
        let name = name.to_string();
        self.run(move |tx| {
            let Some(queue) = tx.queue(&name)? else { return Ok(false) };
            while let Some(letter) = tx.dead_letters(queue.id, None, 1)?.first() {
                tx.remove_dead_letter(&letter.key);
            }
            tx.remove_queue(queue.id);
            Ok(true)
        })
        .await
    }

    /// Deletes all messages of a queue or of one of its partitions; `None` when there is no such queue, else how
    /// many partitions were emptied.
    pub async fn clear_queue(&self, name: &str, partition: Option<&str>) -> Result<Option<u64>, Error> {
        let Some(queue) = self.matching_queues(Some(name.into()), None, None).await?.pop() else {
            return Ok(None);
        };
        let (mut cleared, mut after) = (0, None);
        loop {
            let (id, only) = (queue.id, partition.map(String::from));
            let (count, last) = self
                .run(move |tx| {
                    let page = tx.partitions(id, after, PAGE)?;
                    let mut count = 0;
                    for partition in &page {
                        if only.as_deref().is_none_or(|only| *partition.name == *only) {
                            tx.trim(partition.id, partition.tail)?;
                            count += 1;
                        }
                    }
                    Ok((count, page.last().map(|partition| partition.id)))
                })
                .await?;
            cleared += count;
            match last {
                Some(last) => after = Some(last),
                None => return Ok(Some(cleared)),
            }
        }
    }
}

impl MessageFilter {
    fn wants(&self, summary: &MessageSummary) -> bool {
        self.status.is_none_or(|status| status == summary.status)
            && self.from.is_none_or(|from| summary.message.created_at >= from)
            && self.to.is_none_or(|to| summary.message.created_at < to)
    }
}

impl DeadLetterFilter {
    fn all_of(queue: &Queue) -> Self {
        Self { queue: Some(queue.spec.name.to_string()), limit: usize::MAX, ..Self::default() }
    }

    fn wants(&self, letter: &DeadLetter, partition: &str) -> bool {
        self.partition.as_deref().is_none_or(|name| name == partition)
            && self.group.as_deref().is_none_or(|name| *letter.key.group == *name)
            && self.from.is_none_or(|from| letter.failed_at >= from)
            && self.to.is_none_or(|to| letter.failed_at <= to)
    }
}

fn check_pop(request: &PopRequest) -> Result<(), Error> {
    check_name("group", &request.group)?;
    match &request.target {
        pop::Target::Queue(queue) => check_name("queue", queue),
        pop::Target::Partition { queue, partition } => {
            check_name("queue", queue).and_then(|()| check_name("partition", partition))
        }
        pop::Target::Labels { namespace, task } => {
            namespace.iter().chain(task).try_for_each(|label| check_name("namespace or task", label))
        }
    }
}

/// The dead letters of one message, of whichever group.
fn letters_of(
    tx: &mut dyn Tx,
    queue: &Queue,
    partition: PartitionId,
    offset: Offset,
) -> Result<Vec<DeadLetter>, Stop> {
    let mut letters = Vec::new();
    for group in tx.groups(queue.id)? {
        let key = DeadLetterKey { queue: queue.id, partition, offset, group: group.name.clone() };
        letters.extend(tx.dead_letter(&key)?);
    }
    letters.sort_by_key(|letter| std::cmp::Reverse(letter.failed_at));
    Ok(letters)
}

/// The newest dead letter with this transaction id.
fn find_letter(
    tx: &mut dyn Tx,
    queue: &Queue,
    partition: PartitionId,
    transaction_id: &str,
) -> Result<Option<DeadLetter>, Stop> {
    let mut after = None;
    loop {
        let page = tx.dead_letters(queue.id, after.as_ref(), PAGE)?;
        let Some(last) = page.last() else { return Ok(None) };
        after = Some(last.clone());
        let wanted = |letter: &DeadLetter| {
            letter.key.partition == partition && letter.transaction_id == transaction_id
        };
        if let Some(letter) = page.into_iter().find(wanted) {
            return Ok(Some(letter));
        }
    }
}

/// Appends a copy of a dead letter to its partition and removes the letter, in one decision.
fn replay(
    tx: &mut dyn Tx,
    partition: PartitionId,
    transaction_id: &str,
) -> Result<Result<Option<Replayed>, Error>, Stop> {
    let Some(row) = tx.partition_by_id(partition)? else { return Ok(Ok(None)) };
    let Some(queue) = tx.queue_by_id(row.queue)? else { return Ok(Ok(None)) };
    let Some(letter) = find_letter(tx, &queue, partition, transaction_id)? else { return Ok(Ok(None)) };
    let original = MessageId::new(letter.created_at, partition, letter.key.offset);
    let fresh_id = format!("dlq:{original}");
    let mut batch = PushBatch::default();
    let message = NewMessage {
        transaction_id: Some(&fresh_id),
        trace_id: letter.trace_id,
        producer: letter.producer.as_deref(),
        payload: &letter.payload,
    };
    if let Err(error) = batch.add(&queue.spec.name, &row.name, &message) {
        return Ok(Err(error));
    }
    let pushed = match push::push(tx, &batch)? {
        Ok(pushed) => pushed[0],
        Err(error) => return Ok(Err(error)),
    };
    if !pushed.duplicate {
        tx.remove_dead_letter(&letter.key);
    }
    Ok(Ok(Some(Replayed {
        queue: queue.spec.name.clone(),
        partition,
        partition_name: row.name,
        group: letter.key.group,
        original,
        original_transaction_id: letter.transaction_id,
        transaction_id: fresh_id,
        message: pushed.id,
        offset: pushed.offset,
        duplicate: pushed.duplicate,
    })))
}

async fn keep_sweeping(store: Arc<dyn Store>, every: Duration, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = baton_env::sleep(every) => {}
        }
        match retention::sweep(&*store).await {
            Ok(0) => {}
            Ok(messages) => tracing::debug!(messages, "gave up old messages"),
            Err(error) => tracing::warn!(%error, "could not give up old messages; will try again"),
        }
    }
}
