//! Pop: which messages a consumer gets, and under which lease.
//!
//! Always: at most one live lease per partition and group; messages of a partition come in order; a message
//! that is finished, deleted, too old or not yet due is not delivered; no partition with work starves, for the
//! one served longest ago comes first. Not here: waiting (`waiting`), reading payloads (`broker`), what an ack
//! does (`ack`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use baton_store::{
    Cursor, Durability, Group, GroupSpec, GroupStart, Lease, OffsetRanges, Partition, Queue, StoredMessage,
    collect_misses,
};
use baton_store::{Error, Tx, TxError};
use baton_types::{GroupId, LeaseId, Offset, PartitionId, QUEUE_MODE, QueueId, Timestamp};

use crate::rules::cursor::{beginning, current_cursor, passed_over, settle, skip_to};
use crate::rules::maintenance::is_hidden;
use crate::rules::push::ensure_queue;
use crate::rules::quota;

/// A window that never closes because pushes keep coming is closed after this many of its lengths.
const WINDOWS_MAX: u32 = 10;
/// Partitions looked at in one go.
const CANDIDATES: usize = 32;
/// Queues looked at in one go.
const QUEUES: usize = 16;

/// Where to pop from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Any partition of a queue.
    Queue(String),
    /// One partition.
    Partition {
        /// The queue.
        queue: String,
        /// The partition.
        partition: String,
    },
    /// Any partition of any queue with these labels.
    Labels {
        /// The namespace, if it matters.
        namespace: Option<String>,
        /// The task, if it matters.
        task: Option<String>,
    },
}

impl Target {
    /// The queue, when one is named.
    pub fn queue(&self) -> Option<&str> {
        match self {
            Self::Queue(queue) | Self::Partition { queue, .. } => Some(queue),
            Self::Labels { .. } => None,
        }
    }
}

/// Where a group begins that the queue does not know yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subscription {
    /// At the oldest message.
    #[default]
    All,
    /// With what is pushed from now on.
    New,
    /// With what was pushed at this moment or later.
    From(Timestamp),
}

/// A pop.
#[derive(Clone, Debug)]
pub struct PopRequest {
    /// Where to pop from.
    pub target: Target,
    /// For which group.
    pub group: String,
    /// How many messages at most, over all partitions.
    pub batch: u32,
    /// How many partitions at most.
    pub partitions: u32,
    /// Whether the messages are finished before they are delivered.
    pub auto_ack: bool,
    /// How long to wait for a message; `None` answers at once.
    pub wait: Option<Duration>,
    /// How long to hold the messages, instead of the queue's `leaseTime`.
    pub lease: Option<Duration>,
    /// Where the group begins if it is new.
    pub subscription: Subscription,
    /// The lease to take, if the caller has chosen one: it can then give back messages whose answer never came.
    pub attempt: Option<LeaseId>,
    /// Whether the group, if it is new, is only ever to be given the newest message of a partition.
    pub conflation: bool,
}

/// What a pop found. All claims share one lease.
#[derive(Clone, Debug)]
pub struct Popped {
    /// The lease; `None` after an automatic ack.
    pub lease: Option<LeaseId>,
    /// The messages, partition by partition.
    pub claims: Vec<Claim>,
    /// Whether the group is only given the newest message of each.
    pub conflation: bool,
}

/// Messages of one partition, in order.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The queue.
    pub queue: Arc<str>,
    /// The partition.
    pub partition: PartitionId,
    /// Its name.
    pub partition_name: Arc<str>,
    /// How many times the group has been given these, this time included.
    pub attempt: u32,
    /// The messages.
    pub messages: Vec<StoredMessage>,
}

/// A queue that a pop read for a group. Its events concern the pops of that group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedQueue {
    pub queue: QueueId,
    /// The group's number there.
    pub group: GroupId,
    /// The queue's name.
    pub name: Arc<str>,
}

/// What a decision to pop came to, before any payload is read.
#[derive(Debug, Default)]
pub struct Decided {
    /// When it was made.
    pub at: Timestamp,
    pub claims: Vec<Range>,
    /// The queues that were looked at.
    pub looked_at: Vec<WatchedQueue>,
    /// The partition, when one was named and exists.
    pub partition: Option<PartitionId>,
    /// Whether the group is only given the newest message of each partition.
    pub conflation: bool,
    /// When something becomes available without any further event, counted from the decision.
    pub due_in: Option<Duration>,
}

/// The messages of a partition that a pop has claimed.
#[derive(Clone, Debug)]
pub struct Range {
    pub queue: Arc<str>,
    pub partition: PartitionId,
    pub partition_name: Arc<str>,
    pub attempt: u32,
    pub from: Offset,
    pub to: Offset,
    /// Not to be delivered.
    pub except: Option<Box<OffsetRanges>>,
}

/// Decides a pop.
pub fn pop(tx: &mut dyn Tx, request: &PopRequest, lease: LeaseId) -> Result<Decided, TxError> {
    let mut decided = Decided { at: tx.now(), ..Decided::default() };
    let mut left = Budget { messages: request.batch.into(), partitions: request.partitions as usize };
    match &request.target {
        Target::Queue(name) => {
            if let Some(queue) = tx.queue(name)? {
                pop_any(tx, request, lease, &queue, &mut left, &mut decided)?;
            }
        }
        Target::Partition { queue, partition } => {
            if let Some(queue) = tx.queue(queue)? {
                pop_one(tx, request, lease, &queue, partition, &mut left, &mut decided)?;
            }
        }
        Target::Labels { namespace, task } => {
            // So many at once that few rounds are needed, and so few that what is not wanted is seldom looked at.
            for queues in labelled(tx, namespace.as_deref(), task.as_deref())?.chunks(QUEUES) {
                collect_misses(queues, |queue| pop_any(tx, request, lease, queue, &mut left, &mut decided))?;
            }
        }
    }
    Ok(decided)
}

/// What a pop may still take.
struct Budget {
    messages: u64,
    partitions: usize,
}

impl Budget {
    fn is_spent(&self) -> bool {
        self.messages == 0 || self.partitions == 0
    }
}

/// Creates the queue that a pop names, if its group is to be known there from its first pop on.
pub fn create_queue(tx: &mut dyn Tx, request: &PopRequest) -> Result<(), TxError> {
    match request.target.queue().filter(|_| request.group != QUEUE_MODE || request.wait.is_some()) {
        Some(name) if tx.queue(name)?.is_none() => {
            quota::for_queues(tx, 1)?;
            ensure_queue(tx, name).map(drop)
        }
        _ => Ok(()),
    }
}

/// Queues with these labels, those of the highest priority first, equals in turn.
fn labelled(
    tx: &mut dyn Tx,
    namespace: Option<&str>,
    task: Option<&str>,
) -> Result<Vec<Arc<Queue>>, TxError> {
    let matches = |queue: &Arc<Queue>| {
        !is_hidden(&queue.spec.name)
            && namespace.is_none_or(|label| *queue.spec.namespace == *label)
            && task.is_none_or(|label| *queue.spec.task == *label)
    };
    let mut queues: Vec<_> = tx.queues()?.into_iter().filter(matches).collect();
    if !queues.is_empty() {
        let turn = tx.now().micros().unsigned_abs() % queues.len() as u64;
        queues.rotate_left(usize::try_from(turn).unwrap_or(0));
    }
    queues.sort_by_key(|queue| std::cmp::Reverse(queue.spec.options.priority));
    Ok(queues)
}

/// The group, recorded on its first contact with the queue.
fn subscribe(tx: &mut dyn Tx, queue: &Queue, request: &PopRequest) -> Result<Arc<Group>, TxError> {
    if let Some(group) = tx.group(queue.id, &request.group)? {
        return Ok(group);
    }
    quota::for_groups(tx, queue, 1)?;
    let now = tx.now();
    let start = match request.subscription {
        _ if request.group == QUEUE_MODE => GroupStart::Oldest,
        Subscription::All => GroupStart::Oldest,
        Subscription::New => GroupStart::At(now),
        Subscription::From(at) => GroupStart::At(at),
    };
    let (name, conflation) = (&*request.group, request.conflation);
    tx.admit_update()?;
    Ok(tx.put_group(queue.id, &GroupSpec { name, start, subscribed_at: now, conflation }))
}

fn pop_any(
    tx: &mut dyn Tx,
    request: &PopRequest,
    lease: LeaseId,
    queue: &Queue,
    left: &mut Budget,
    decided: &mut Decided,
) -> Result<(), TxError> {
    if left.is_spent() {
        return Ok(());
    }
    let group = subscribe(tx, queue, request)?;
    decided.conflation = group.conflation;
    let mut seen = HashSet::new();
    while !left.is_spent() {
        let candidates = tx.ready_partitions(group.id, left.partitions.min(CANDIDATES))?;
        let mut fresh = false;
        collect_misses(candidates, |id| {
            if left.is_spent() || !seen.insert(id) {
                return Ok(());
            }
            fresh = true;
            match tx.partition_by_id(id)? {
                Some(partition) => claim(tx, request, lease, queue, &group, &partition, left, decided),
                None => Ok(()),
            }
        })?;
        if !fresh {
            break;
        }
    }
    let due = tx.next_ready_at(group.id)?;
    note_due(tx, due, decided);
    decided.looked_at.push(WatchedQueue { queue: queue.id, group: group.id, name: queue.spec.name.clone() });
    Ok(())
}

fn pop_one(
    tx: &mut dyn Tx,
    request: &PopRequest,
    lease: LeaseId,
    queue: &Queue,
    name: &str,
    left: &mut Budget,
    decided: &mut Decided,
) -> Result<(), TxError> {
    let group = subscribe(tx, queue, request)?;
    decided.conflation = group.conflation;
    decided.looked_at.push(WatchedQueue { queue: queue.id, group: group.id, name: queue.spec.name.clone() });
    let Some(partition) = tx.partition(queue.id, name)? else { return Ok(()) };
    decided.partition = Some(partition.id);
    let cursor = tx.cursor(group.id, partition.id)?;
    let next = match &cursor {
        Some(cursor) => cursor.next,
        None => beginning(tx, &group, &partition)?,
    };
    if next >= partition.tail && cursor.as_ref().is_none_or(|cursor| cursor.lease.is_none()) {
        // There is nothing for the group, and a cursor written now would stand before a beginning that is still to come.
        return Ok(());
    }
    let available_at = cursor.map_or(Timestamp::MIN, |cursor| cursor.available_at);
    if available_at <= tx.now() {
        claim(tx, request, lease, queue, &group, &partition, left, decided)?;
    } else {
        note_due(tx, Some(available_at), decided);
    }
    Ok(())
}

fn note_due(tx: &dyn Tx, due: Option<Timestamp>, decided: &mut Decided) {
    if let Some(due) = due {
        let due_in = due.since(tx.now());
        decided.due_in = Some(decided.due_in.map_or(due_in, |other| other.min(due_in)));
    }
}

/// Claims what is due of a free partition, or notes on its cursor when something will be.
#[expect(clippy::too_many_arguments, reason = "the pop, the place, and what is left")]
fn claim(
    tx: &mut dyn Tx,
    request: &PopRequest,
    lease: LeaseId,
    queue: &Queue,
    group: &Group,
    partition: &Partition,
    left: &mut Budget,
    decided: &mut Decided,
) -> Result<(), TxError> {
    let now = tx.now();
    let mut cursor = current_cursor(tx, group, partition)?;
    cursor.lease = None;
    cursor.available_at = now;
    pass_over(tx, queue, partition, &mut cursor)?;
    let visible = visible_end(tx, queue, partition, cursor.next)?;
    let finished = cursor.finished.as_deref().cloned().unwrap_or_default();
    let mut from = cursor.next;
    let (to, count) = match visible {
        // Of a group that wants the newest only, what is before it is passed over when that is finished.
        Visible::Until(end) if group.conflation => match finished.last_missing(from, end) {
            Some(newest) => {
                from = newest;
                (newest.plus(1), 1)
            }
            None => (from, 0),
        },
        Visible::Until(end) => finished.advance(from, end, left.messages),
        Visible::NotBefore(at) => {
            cursor.available_at = at;
            note_due(tx, Some(at), decided);
            (cursor.next, 0)
        }
    };
    tx.admit_update()?;
    if count == 0 {
        tx.put_cursor(group.id, partition.id, cursor, Durability::Soon);
        return Ok(());
    }
    left.messages -= count;
    left.partitions -= 1;
    let attempt = cursor.attempts.saturating_add(1);
    decided.claims.push(Range {
        queue: queue.spec.name.clone(),
        partition: partition.id,
        partition_name: partition.name.clone(),
        attempt,
        from,
        to,
        except: cursor.finished.clone(),
    });
    let until = now.after(request.lease.unwrap_or_else(|| queue.spec.options.lease()));
    cursor.last_pop_at = now;
    cursor.attempts = attempt;
    cursor.available_at = until;
    cursor.lease = Some(Box::new(Lease { id: lease, token: tx.fresh_token(), until, end: to }));
    tx.put_cursor(group.id, partition.id, cursor, Durability::Soon);
    Ok(())
}

/// Moves the cursor over everything that is not to be delivered any more.
fn pass_over(
    tx: &mut dyn Tx,
    queue: &Queue,
    partition: &Partition,
    cursor: &mut Cursor,
) -> Result<(), TxError> {
    if let Some(life) = queue.spec.options.deliverable_for() {
        let oldest = tx.offset_at(partition.id, tx.now().before(life))?;
        if cursor.next < oldest {
            skip_to(cursor, oldest);
        }
    }
    if !partition.deleted.is_empty() {
        cursor.finished = Some(Box::new(passed_over(cursor, partition)));
    }
    settle(cursor);
    Ok(())
}

enum Visible {
    /// Messages before this offset can be delivered.
    Until(Offset),
    /// None can, before this moment.
    NotBefore(Timestamp),
}

/// How far messages can be delivered now.
fn visible_end(
    tx: &mut dyn Tx,
    queue: &Queue,
    partition: &Partition,
    next: Offset,
) -> Result<Visible, TxError> {
    let (now, options) = (tx.now(), &queue.spec.options);
    if next >= partition.tail || (options.window_buffer == 0 && options.delayed_processing == 0) {
        return Ok(Visible::Until(partition.tail));
    }
    let head = match tx.message(partition.id, next) {
        Ok(Some(head)) => head,
        // A damaged message is offered, so that its reader gets the error; other partitions go on.
        Ok(None) | Err(TxError::Failed(Error::Corrupt(_))) => return Ok(Visible::Until(partition.tail)),
        Err(stop) => return Err(stop),
    };
    if options.window_buffer > 0 {
        let window = Duration::from_secs(options.window_buffer.into());
        let closes = partition.last_at.after(window).min(head.created_at.after(window * WINDOWS_MAX));
        if closes > now {
            return Ok(Visible::NotBefore(closes));
        }
    }
    if options.delayed_processing > 0 {
        let delay = Duration::from_secs(options.delayed_processing.into());
        let due = head.created_at.after(delay);
        if due > now {
            return Ok(Visible::NotBefore(due));
        }
        let young = Timestamp::from_micros(now.before(delay).micros() + 1);
        return Ok(Visible::Until(tx.offset_at(partition.id, young)?));
    }
    Ok(Visible::Until(partition.tail))
}

/// Gives back, uncharged, everything that is held under a lease.
pub fn give_back(tx: &mut dyn Tx, lease: LeaseId) -> Result<(), TxError> {
    for Held { group, partition, mut cursor } in held(tx, lease)? {
        release(tx, &mut cursor);
        tx.put_cursor(group, partition, cursor, Durability::Soon);
    }
    Ok(())
}

/// Gives back, uncharged, what is held under a lease from these places on.
pub fn cut_short(tx: &mut dyn Tx, lease: LeaseId, ends: &[(PartitionId, Offset)]) -> Result<(), TxError> {
    for Held { group, partition, mut cursor } in held(tx, lease)? {
        let Some((_, end)) = ends.iter().find(|(cut, _)| *cut == partition) else { continue };
        match &mut cursor.lease {
            Some(held) if *end > cursor.next => held.end = *end,
            _ => release(tx, &mut cursor),
        }
        tx.put_cursor(group, partition, cursor, Durability::Soon);
    }
    Ok(())
}

/// Finishes what is held under a lease before these places and gives the rest back; where it was held until now.
pub fn finish_before(
    tx: &mut dyn Tx,
    lease: LeaseId,
    ends: &[(PartitionId, Offset)],
) -> Result<HashSet<PartitionId>, TxError> {
    let (now, mut finished) = (tx.now(), HashSet::new());
    for Held { group, partition, mut cursor } in held(tx, lease)? {
        let is_live = cursor.lease.as_ref().is_some_and(|held| held.until > now);
        let Some((_, end)) = ends.iter().find(|(read, _)| *read == partition).filter(|_| is_live) else {
            continue;
        };
        release(tx, &mut cursor);
        if *end > cursor.next {
            let (_, count) =
                cursor.finished.as_deref().cloned().unwrap_or_default().advance(cursor.next, *end, u64::MAX);
            cursor.consumed += count;
            cursor.attempts = 0;
            skip_to(&mut cursor, *end);
        }
        tx.put_cursor(group, partition, cursor, Durability::Now);
        finished.insert(partition);
    }
    Ok(finished)
}

/// A cursor that is held under a lease.
struct Held {
    group: GroupId,
    partition: PartitionId,
    cursor: Cursor,
}

/// The cursors that are held under a lease.
fn held(tx: &mut dyn Tx, lease: LeaseId) -> Result<Vec<Held>, TxError> {
    let mut found = Vec::new();
    collect_misses(tx.leased_partitions(lease)?, |(group, partition)| {
        found.extend(tx.cursor(group, partition)?.map(|cursor| Held { group, partition, cursor }));
        Ok(())
    })?;
    Ok(found)
}

fn release(tx: &dyn Tx, cursor: &mut Cursor) {
    cursor.lease = None;
    cursor.available_at = tx.now();
    cursor.attempts = cursor.attempts.saturating_sub(1);
}

/// Lets a lease run for `by` from now on if that is longer; how many were extended, and when the first ends.
pub fn extend(tx: &mut dyn Tx, lease: LeaseId, by: Duration) -> Result<(u64, Option<Timestamp>), TxError> {
    let (now, mut extended, mut first) = (tx.now(), 0, None);
    for Held { group, partition, mut cursor } in held(tx, lease)? {
        let Some(held) = cursor.lease.as_mut().filter(|held| held.until > now) else { continue };
        tx.admit_update()?;
        held.until = held.until.max(now.after(by));
        cursor.available_at = held.until;
        first = Some(first.map_or(held.until, |other: Timestamp| other.min(held.until)));
        extended += 1;
        tx.put_cursor(group, partition, cursor, Durability::Now);
    }
    Ok((extended, first))
}
