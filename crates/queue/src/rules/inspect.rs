//! Looking at queues, partitions, messages and dead letters without changing them.

use std::sync::Arc;

use baton_store::{
    DeadLetter, DeadLetterKey, Group, Partition, Queue, StoredMessage, Tx, TxError, collect_misses,
};
use baton_types::{MessageId, Offset, PartitionId, QUEUE_MODE, Timestamp};

use crate::rules::cursor::{current_cursor, passed_over};
use crate::rules::group::LeaseView;

/// Where a message stands for the group that counts: queue mode. Without queue mode it is finished when every group has
/// finished it, and waits before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageStatus {
    /// It waits.
    Pending,
    /// Someone holds it.
    Processing,
    /// It is finished.
    Completed,
    /// Some group gave up on it.
    DeadLetter,
}

/// Which messages to list.
#[derive(Clone, Debug, Default)]
pub struct MessageFilter {
    /// Of this queue.
    pub queue: Option<String>,
    /// Of this partition.
    pub partition: Option<String>,
    /// Of queues with this namespace.
    pub namespace: Option<String>,
    /// Of queues with this task.
    pub task: Option<String>,
    /// In this state.
    pub status: Option<MessageStatus>,
    /// Stored at or after this moment.
    pub from: Option<Timestamp>,
    /// Stored before this moment.
    pub to: Option<Timestamp>,
    /// How many at most.
    pub limit: usize,
    /// How many to leave out first.
    pub offset: usize,
}

/// A message with what the groups did with it. Named groups are those other than queue mode.
#[derive(Clone, Debug)]
pub struct MessageSummary {
    /// The message.
    pub message: StoredMessage,
    /// Its queue.
    pub queue: Arc<Queue>,
    /// Its partition's name.
    pub partition_name: Arc<str>,
    /// Where it stands.
    pub status: MessageStatus,
    /// Who holds it, by group.
    pub leases: Vec<LeaseView>,
    /// Whether the queue is read in queue mode.
    pub has_queue_mode: bool,
    /// How many named groups read the queue.
    pub named_groups: u64,
    /// How many of them have finished it.
    pub named_groups_done: u64,
}

/// All that is known of a message.
#[derive(Clone, Debug)]
pub struct MessageDetail {
    /// The message.
    pub summary: MessageSummary,
    /// Each group: its name, and whether it has finished the message.
    pub groups: Vec<(Arc<str>, bool)>,
    /// The newest dead letter of it.
    pub dead_letter: Option<DeadLetter>,
}

/// Which dead letters to list.
#[derive(Clone, Debug, Default)]
pub struct DeadLetterFilter {
    /// Of this queue.
    pub queue: Option<String>,
    /// Of this partition.
    pub partition: Option<String>,
    /// Of this group.
    pub group: Option<String>,
    /// Given up at or after this moment.
    pub from: Option<Timestamp>,
    /// Given up at or before this moment.
    pub to: Option<Timestamp>,
    /// How many at most.
    pub limit: usize,
    /// How many to leave out first.
    pub offset: usize,
}

/// Some dead letters.
#[derive(Clone, Debug, Default)]
pub struct DeadLetterPage {
    /// How many there are in all.
    pub total: u64,
    /// The newest first.
    pub letters: Vec<ListedLetter>,
}

/// A dead letter of a page.
#[derive(Clone, Debug)]
pub struct ListedLetter {
    /// The letter.
    pub letter: DeadLetter,
    /// The name of its queue.
    pub queue: Arc<str>,
    /// The name of its partition.
    pub partition: Arc<str>,
    /// Whether the payload is left out, because the answer is full.
    pub omitted: bool,
}

/// A dead letter that was pushed again.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The queue's name.
    pub queue: Arc<str>,
    /// The partition.
    pub partition: PartitionId,
    /// Its name.
    pub partition_name: Arc<str>,
    /// The group that had given up.
    pub group: Arc<str>,
    /// The id of the message that had failed.
    pub original: MessageId,
    /// Its transaction id.
    pub original_transaction_id: String,
    /// The transaction id of the new message.
    pub transaction_id: String,
    /// The id of the new message.
    pub message: MessageId,
    /// Its place.
    pub offset: Offset,
    /// Whether it had been pushed again before, so that nothing was done.
    pub duplicate: bool,
}

/// Messages by where they stand for the group that counts: queue mode, or the one furthest behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kept.
    pub total: u64,
    /// Waiting.
    pub pending: u64,
    /// Held.
    pub processing: u64,
    /// Finished.
    pub completed: u64,
    /// Held or waiting with a failed try behind them.
    pub failed: u64,
    /// Dead letters.
    pub dead_letter: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.total += other.total;
        self.pending += other.pending;
        self.processing += other.processing;
        self.completed += other.completed;
        self.failed += other.failed;
        self.dead_letter += other.dead_letter;
    }
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let mut sum = Self::default();
        all.for_each(|counts| sum += counts);
        sum
    }
}

/// A partition in numbers.
#[derive(Clone, Debug)]
pub struct PartitionSummary {
    /// The partition.
    pub id: PartitionId,
    /// Its name.
    pub name: Arc<str>,
    /// When it was created.
    pub created_at: Timestamp,
    /// Its messages.
    pub counts: Counts,
    /// When the oldest kept message was stored.
    pub oldest_message_at: Option<Timestamp>,
    /// When the newest was.
    pub newest_message_at: Option<Timestamp>,
}

/// A queue in numbers.
#[derive(Clone, Debug)]
pub struct QueueSummary {
    /// The queue.
    pub queue: Arc<Queue>,
    /// How many partitions it has.
    pub partitions: u64,
    /// Its messages.
    pub counts: Counts,
}

/// The group whose progress counts for a queue's numbers.
pub fn counting_group(tx: &mut dyn Tx, queue: &Queue) -> Result<Option<Arc<Group>>, TxError> {
    let (mut chosen, mut most) = (None, 0);
    let groups = tx.groups(queue.id)?;
    if let Some(group) = groups.iter().find(|group| *group.name == *QUEUE_MODE) {
        return Ok(Some(group.clone()));
    }
    collect_misses(groups, |group| {
        let backlog = tx.backlog(group.id)?;
        if chosen.is_none() || backlog > most {
            (chosen, most) = (Some(group), backlog);
        }
        Ok(())
    })?;
    Ok(chosen)
}

/// A partition in numbers, without its dead letters.
pub fn summarise(
    tx: &mut dyn Tx,
    group: Option<&Group>,
    partition: &Partition,
) -> Result<PartitionSummary, TxError> {
    let deleted = partition.deleted.len();
    let total = partition.tail.since(partition.start) - deleted;
    let mut counts = Counts { total, pending: total, ..Counts::default() };
    if let Some(group) = group {
        let cursor = current_cursor(tx, group, partition)?;
        let passed = passed_over(&cursor, partition);
        let unfinished_from =
            |from: Offset| partition.tail.since(from).saturating_sub(passed.len_from(from)).min(total);
        let unfinished = unfinished_from(cursor.next);
        if let Some(lease) = cursor.lease.filter(|lease| lease.until > tx.now()) {
            counts.processing = unfinished.saturating_sub(unfinished_from(lease.end));
        }
        counts.pending = unfinished - counts.processing;
        counts.completed = total - unfinished;
        counts.failed = cursor.retries.as_ref().map_or(0, |retries| retries.len() as u64);
    }
    let has_messages = partition.tail > partition.start;
    Ok(PartitionSummary {
        id: partition.id,
        name: partition.name.clone(),
        created_at: partition.created_at,
        counts,
        oldest_message_at: has_messages.then_some(partition.first_at),
        newest_message_at: has_messages.then_some(partition.last_at),
    })
}

impl QueueSummary {
    /// From all of its partitions.
    pub(crate) fn of(queue: &Arc<Queue>, partitions: &[PartitionSummary]) -> Self {
        let counts = partitions.iter().map(|partition| partition.counts).sum();
        Self { queue: queue.clone(), partitions: partitions.len() as u64, counts }
    }
}

/// A queue in numbers; `None` when it has more than `few` partitions or dead letters.
pub fn summarise_few(
    tx: &mut dyn Tx,
    queue: &Arc<Queue>,
    few: usize,
) -> Result<Option<QueueSummary>, TxError> {
    let page = tx.partitions(queue.id, None, few + 1);
    let letters = tx.dead_letter_keys(queue.id, None, few + 1);
    let (page, letters) = (page?, letters?);
    if page.len().max(letters.len()) > few {
        return Ok(None);
    }
    let group = counting_group(tx, queue)?;
    let mut partitions = Vec::with_capacity(page.len());
    collect_misses(&page, |partition| {
        partitions.push(summarise(tx, group.as_deref(), partition)?);
        Ok(())
    })?;
    count_dead_letters(&mut partitions, group.as_deref(), &letters);
    Ok(Some(QueueSummary::of(queue, &partitions)))
}

/// Counts the dead letters of a queue with its partitions, which stand in the order of their numbers.
pub fn count_dead_letters(
    partitions: &mut [PartitionSummary],
    group: Option<&Group>,
    letters: &[(DeadLetterKey, Timestamp)],
) {
    for (key, _) in letters {
        let found = partitions.binary_search_by_key(&key.partition, |partition| partition.id);
        let Ok(at) = found else { continue };
        let counts = &mut partitions[at].counts;
        counts.dead_letter += 1;
        if group.is_some_and(|group| group.name == key.group) {
            // What the group gave up on is behind it, but not done.
            counts.completed = counts.completed.saturating_sub(1);
        }
    }
}

/// How each group of a queue sees the messages of a partition.
pub struct Views(Vec<View>);

struct View {
    name: Arc<str>,
    next: Offset,
    finished: Option<Box<baton_store::OffsetRanges>>,
    lease: Option<LeaseView>,
}

impl View {
    fn has_finished(&self, offset: Offset) -> bool {
        offset < self.next || self.finished.as_ref().is_some_and(|finished| finished.contains(offset))
    }

    fn lease_of(&self, offset: Offset) -> Option<&LeaseView> {
        self.lease.as_ref().filter(|lease| offset < lease.end && !self.has_finished(offset))
    }
}

impl Views {
    pub fn of(tx: &mut dyn Tx, queue: &Queue, partition: &Partition) -> Result<Self, TxError> {
        let mut views = Vec::new();
        collect_misses(tx.groups(queue.id)?, |group| {
            let cursor = current_cursor(tx, &group, partition)?;
            let lease = LeaseView::of(&group, &cursor, tx.now());
            views.push(View {
                name: group.name.clone(),
                next: cursor.next,
                finished: cursor.finished,
                lease,
            });
            Ok(())
        })?;
        Ok(Self(views))
    }

    /// A message as the groups see it.
    pub fn summarise(
        &self,
        queue: &Arc<Queue>,
        partition_name: &Arc<str>,
        message: StoredMessage,
        is_dead: bool,
    ) -> MessageSummary {
        let offset = message.offset;
        let queue_mode = self.0.iter().find(|view| *view.name == *QUEUE_MODE);
        let named = || self.0.iter().filter(|view| *view.name != *QUEUE_MODE);
        let by_every_group = !self.0.is_empty() && self.0.iter().all(|view| view.has_finished(offset));
        let status = match queue_mode {
            _ if is_dead => MessageStatus::DeadLetter,
            Some(view) if view.has_finished(offset) => MessageStatus::Completed,
            Some(view) if view.lease_of(offset).is_some() => MessageStatus::Processing,
            None if by_every_group => MessageStatus::Completed,
            _ => MessageStatus::Pending,
        };
        MessageSummary {
            message,
            queue: queue.clone(),
            partition_name: partition_name.clone(),
            status,
            leases: self.0.iter().filter_map(|view| view.lease_of(offset)).cloned().collect(),
            has_queue_mode: queue_mode.is_some(),
            named_groups: named().count() as u64,
            named_groups_done: named().filter(|view| view.has_finished(offset)).count() as u64,
        }
    }

    /// Each group: its name, and whether it has finished the message.
    pub fn groups(&self, offset: Offset) -> Vec<(Arc<str>, bool)> {
        let view = |view: &View| (view.name.clone(), view.has_finished(offset));
        self.0.iter().map(view).collect()
    }
}
