//! Push: where messages come in, and how a repeated one is recognised.
//!
//! Always: all messages of a call are stored or none; a transaction id is stored once per partition within the
//! queue's window, also when retention removes its message, but not when an operator deletes it; messages of one call to one partition keep their order; nothing is stored in an encrypted queue
//! that is not encrypted. Not here: bytes on disk
//! (`baton-store`), who is woken (`waiting`).

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use baton_store::{
    GroupStart, MessageBlock, NewMessage, Partition, Queue, QueueSpec, RememberedId, StoredMessage, Tx,
    TxError, collect_misses,
};
use baton_types::{IdHash, MessageId, Offset, PartitionId, QueueOptions, Timestamp, limits};
use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::Error;
use crate::rules::cursor;
use crate::rules::maintenance::{self, Detour, Place, PushMode};
use crate::rules::push_count::PushCount;
use crate::rules::seal::{Sealer, is_sealed};
use crate::rules::{dedup_release, quota};

/// Partitions that a push counts by itself before it calls a queue full.
const COUNTED_PARTITIONS_MAX: usize = 100;

/// Messages to push, encoded and sorted by partition while they are added.
#[derive(Clone, Debug, Default)]
pub struct PushBatch {
    parts: Vec<Part>,
    /// For each message its part and its place there.
    places: Vec<(usize, usize)>,
    /// Only kept once there are several parts.
    index: FxHashMap<(Arc<str>, Arc<str>), usize>,
    /// When they wait in the spool instead.
    pub(crate) detour: Detour,
}

/// The messages for one partition.
#[derive(Clone, Debug)]
struct Part {
    queue: Arc<str>,
    partition: Arc<str>,
    block: MessageBlock,
}

/// What became of one pushed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Whether a message with its transaction id was there already; the rest then tells of that one.
    pub duplicate: bool,
    /// Whether it waits in the spool; the rest then tells of its place there.
    pub buffered: bool,
    /// The partition.
    pub partition: PartitionId,
    /// Its place there.
    pub offset: Offset,
    /// Its id.
    pub id: MessageId,
}

impl PushBatch {
    /// Adds a message, or says what is wrong with it.
    pub fn add(&mut self, queue: &str, partition: &str, message: &NewMessage<'_>) -> Result<(), Error> {
        check_name("queue", queue)?;
        check_name("partition", partition)?;
        if message.transaction_id.is_some_and(|id| id.len() > limits::TRANSACTION_ID_BYTES_MAX) {
            let max = limits::TRANSACTION_ID_BYTES_MAX;
            return Err(Error::Invalid(format!("a transactionId has at most {max} bytes")));
        }
        if self.places.len() >= limits::BATCH_ITEMS_MAX {
            return Err(Error::Invalid(format!("a push has at most {} items", limits::BATCH_ITEMS_MAX)));
        }
        let part = self.part(queue, partition);
        self.places.push((part, self.parts[part].block.len()));
        self.parts[part].block.push(message);
        Ok(())
    }

    /// Adds a message that was stored before.
    pub(crate) fn add_stored(
        &mut self,
        queue: &str,
        partition: &str,
        message: &StoredMessage,
    ) -> Result<(), Error> {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let (id, producer) = (message.transaction_id.as_ref().map(text), message.producer.as_ref().map(text));
        let message = NewMessage {
            transaction_id: id.as_deref(),
            trace_id: message.trace_id,
            producer: producer.as_deref(),
            payload: &message.payload,
        };
        self.add(queue, partition, &message)
    }

    /// Bytes of all messages.
    pub(crate) fn bytes_len(&self) -> usize {
        self.parts.iter().map(|part| part.block.bytes().len()).sum()
    }

    /// The names that its partitions have in a spool, and how many messages are for each.
    pub(crate) fn spool_counts(&self) -> Vec<(String, u64)> {
        let count = |part: &Part| part.block.len() as u64;
        self.parts
            .iter()
            .map(|part| (maintenance::spool_name(&part.queue, &part.partition), count(part)))
            .collect()
    }

    /// Adds everything of `other` after what is there.
    pub fn extend(&mut self, other: Self) {
        for (part, index) in other.places {
            let from = &other.parts[part];
            let to = self.part(&from.queue, &from.partition);
            self.places.push((to, self.parts[to].block.len()));
            self.parts[to].block.copy_message(&from.block, index);
        }
    }

    /// The same messages, with the payloads for queues that are `wanted` sealed.
    pub fn sealed(&self, sealer: &Sealer, wanted: impl Fn(&str) -> bool) -> Result<Self, Error> {
        let mut parts = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let mut block = MessageBlock::default();
            if wanted(&part.queue) {
                for message in part.block.messages() {
                    block.push(&sealer.sealed(&part.queue, &part.partition, &message, &mut Vec::new())?);
                }
            } else {
                block = part.block.clone();
            }
            parts.push(Part { queue: part.queue.clone(), partition: part.partition.clone(), block });
        }
        Ok(Self {
            parts,
            places: self.places.clone(),
            index: self.index.clone(),
            detour: self.detour.clone(),
        })
    }

    /// Whether some of it is for a queue that is `wanted`.
    pub fn is_for(&self, wanted: impl Fn(&str) -> bool) -> bool {
        self.parts.iter().any(|part| wanted(&part.queue))
    }

    /// How many messages it holds.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// How many messages it holds for each queue.
    pub(crate) fn count(&self) -> PushCount {
        let mut count = PushCount::default();
        for part in &self.parts {
            count.add(&part.queue, part.block.len() as u64);
        }
        count
    }

    /// The same, with the partitions that came into being with it.
    pub(crate) fn counted(&self, pushed: &[Pushed]) -> PushCount {
        let mut count = self.count();
        for ((part, _), pushed) in self.places.iter().zip(pushed) {
            // A partition comes into being with its first message.
            if pushed.offset == Offset(0) && !pushed.duplicate && !pushed.buffered {
                count.add_created(&self.parts[*part].queue);
            }
        }
        count
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn part(&mut self, queue: &str, partition: &str) -> usize {
        let same_queue = self.parts.last().filter(|last| *last.queue == *queue);
        if same_queue.is_some_and(|last| *last.partition == *partition) {
            return self.parts.len() - 1;
        }
        let queue: Arc<str> = same_queue.map_or_else(|| queue.into(), |last| last.queue.clone());
        let partition: Arc<str> = partition.into();
        let part = self.parts.len();
        if let [first] = &self.parts[..] {
            self.index.insert((first.queue.clone(), first.partition.clone()), 0);
        }
        if part > 0 {
            match self.index.entry((queue.clone(), partition.clone())) {
                Entry::Occupied(known) => return *known.get(),
                Entry::Vacant(free) => _ = free.insert(part),
            }
        }
        self.parts.push(Part { queue, partition, block: MessageBlock::default() });
        part
    }
}

/// Says no to names that cannot be keys.
pub fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if name.len() > limits::NAME_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "a {what} name has at most {} bytes, this one has {}",
            limits::NAME_BYTES_MAX,
            name.len()
        )));
    }
    if what == "queue" && maintenance::is_hidden(name) {
        return Err(Error::Invalid(format!("the queue name {name:?} is the server's own; choose another")));
    }
    if name.contains('\0') {
        return Err(Error::Invalid(format!("a {what} name cannot contain a NUL character")));
    }
    Ok(())
}

/// What is decided about a part before anything is written.
struct Plan {
    queue: Option<Arc<Queue>>,
    partition: Option<PartitionId>,
    /// Where its messages wait, if they have to.
    detour: Option<Place>,
    /// For each message that is not stored: the one it repeats.
    repeats: FxHashMap<usize, Repeat>,
}

#[derive(Clone, Copy)]
enum Repeat {
    /// A stored message.
    Stored(Offset, MessageId),
    /// Another message of the same part.
    Earlier(usize),
}

/// A push that has been checked and can no longer fail.
pub struct Prepared(Vec<Plan>);

impl Prepared {
    /// The number of the first message of the batch that repeats one that is stored.
    pub fn first_repeat_of_stored(&self, batch: &PushBatch) -> Option<usize> {
        let is_stored = |repeat: &Repeat| matches!(repeat, Repeat::Stored(..));
        if !self.0.iter().any(|plan| plan.repeats.values().any(is_stored)) {
            return None;
        }
        batch.places.iter().position(|(part, index)| self.0[*part].repeats.get(index).is_some_and(is_stored))
    }
}

/// Checks a push against the tables without writing.
pub fn prepare(tx: &mut dyn Tx, batch: &PushBatch) -> Result<Result<Prepared, Error>, TxError> {
    tx.admit_bytes(batch.bytes_len())?;
    let mode = maintenance::heeded(tx, &batch.detour)?;
    let mut plans = Vec::with_capacity(batch.parts.len());
    let mut unsealed = None;
    collect_misses(&batch.parts, |part| {
        let queue = tx.queue(&part.queue)?;
        let detour = maintenance::detour(tx, mode, &part.queue, &part.partition)?;
        if let Some(queue) = &queue
            && queue.spec.options.encryption_enabled
            && !part.block.messages().all(|message| is_sealed(message.payload))
        {
            unsealed.get_or_insert_with(|| queue.spec.name.to_string());
        }
        plans.push(Plan { queue, partition: None, detour, repeats: repeats_within(&part.block) });
        Ok(())
    })?;
    if let Some(queue) = unsealed {
        return Ok(Err(Error::Unsealed(queue)));
    }
    find_partitions(tx, batch, &mut plans)?;
    collect_misses(batch.parts.iter().zip(&mut plans), |(part, plan)| match (&plan.queue, plan.partition) {
        (Some(queue), Some(partition)) => {
            find_stored(tx, &queue.spec.options, partition, &part.block, &mut plan.repeats)
        }
        _ => Ok(()),
    })?;
    if let Some(full) = find_full(tx, batch, &plans)? {
        return Ok(Err(full));
    }
    match find_room(tx, batch, &plans) {
        // Others that are decided together with it go on.
        Err(TxError::Failed(full @ baton_store::Error::LimitReached(_))) => {
            let (problem, first_beyond) = (full.to_string(), first_without_room(tx, batch, &plans)?);
            Ok(Err(Error::NoRoom { problem, first_beyond }))
        }
        room => room.map(|()| Ok(Prepared(plans))),
    }
}

/// Looks up the partitions that exist, neighbours of one queue together.
fn find_partitions(tx: &mut dyn Tx, batch: &PushBatch, plans: &mut [Plan]) -> Result<(), TxError> {
    let id = |plan: &Plan| plan.queue.as_ref().map(|queue| queue.id);
    let mut parts = batch.parts.iter();
    collect_misses(plans.chunk_by_mut(|one, other| id(one) == id(other)), |run| {
        let names: Vec<_> = parts.by_ref().take(run.len()).map(|part| &*part.partition).collect();
        let Some(queue) = run.first().and_then(id) else { return Ok(()) };
        for (plan, partition) in run.iter_mut().zip(tx.partition_ids(queue, &names)?) {
            plan.partition = partition;
        }
        Ok(())
    })
}

/// Messages whose id stands earlier in the same block.
fn repeats_within(block: &MessageBlock) -> FxHashMap<usize, Repeat> {
    let mut repeats = FxHashMap::default();
    if block.len() < 2 {
        return repeats;
    }
    let mut first: FxHashMap<IdHash, usize> = FxHashMap::default();
    for (index, id) in block.hashes().enumerate() {
        let Some(id) = id else { continue };
        let earlier = *first.entry(id).or_insert(index);
        if earlier != index && block.transaction_id(earlier) == block.transaction_id(index) {
            repeats.insert(index, Repeat::Earlier(earlier));
        }
    }
    repeats
}

/// Messages whose id is stored already and still remembered.
fn find_stored(
    tx: &mut dyn Tx,
    options: &QueueOptions,
    partition: PartitionId,
    block: &MessageBlock,
    repeats: &mut FxHashMap<usize, Repeat>,
) -> Result<(), TxError> {
    if options.dedup_window_seconds == 0 {
        return Ok(());
    }
    let remembered = tx.find_all_remembered(partition, block)?;
    if remembered.is_empty() {
        return Ok(());
    }
    let Some(row) = tx.partition_by_id(partition)? else { return Ok(()) };
    let oldest = tx.now().before(window(options));
    collect_misses(remembered, |(index, known)| {
        let Some(id) = block.transaction_id(index) else { return Ok(()) };
        if let Some(original) = find_original(tx, &row, id, known, oldest)? {
            repeats.insert(index, Repeat::Stored(known.offset, original));
        }
        Ok(())
    })
}

/// The message that has this id and counts since `oldest`, as far as it is known. A deleted one does not count; one that
/// retention has removed does.
fn find_original(
    tx: &mut dyn Tx,
    row: &Partition,
    id: &[u8],
    RememberedId { offset, created_at }: RememberedId,
    oldest: Timestamp,
) -> Result<Option<MessageId>, TxError> {
    if offset >= row.start {
        let same = |message: &StoredMessage| {
            message.created_at >= oldest && message.transaction_id.as_deref() == Some(id)
        };
        let message = if row.deleted.contains(offset) { None } else { tx.message(row.id, offset)? };
        return Ok(message.filter(same).map(|message| message.id()));
    }
    let Some(created_at) = created_at.filter(|at| *at >= oldest) else { return Ok(None) };
    let is_withdrawn = dedup_release::is_withdrawn(tx, row.id, IdHash::new(id), offset)?;
    Ok((!is_withdrawn).then(|| MessageId::new(created_at, row.id, offset)))
}

/// Says no when there would be more queues or partitions than there may be.
fn find_room(tx: &mut dyn Tx, batch: &PushBatch, plans: &[Plan]) -> Result<(), TxError> {
    let mut fresh: FxHashMap<&str, (u64, Option<&Queue>)> = FxHashMap::default();
    for (part, plan) in batch.parts.iter().zip(plans) {
        if plan.partition.is_none() && plan.detour.is_none() {
            fresh.entry(&part.queue).or_insert((0, plan.queue.as_deref())).0 += 1;
        }
    }
    quota::for_queues(tx, fresh.values().filter(|(_, queue)| queue.is_none()).count() as u64)?;
    collect_misses(fresh, |(name, (partitions, queue))| quota::for_partitions(tx, queue, name, partitions))
}

/// The first message for which there would be too many queues or partitions, by its number.
fn first_without_room(tx: &mut dyn Tx, batch: &PushBatch, plans: &[Plan]) -> Result<usize, TxError> {
    let room_for_queues = tx.limits().queues.saturating_sub(tx.queue_count()?);
    let (mut fresh, mut queues) = (FxHashMap::default(), 0);
    for (number, (part, plan)) in batch.parts.iter().zip(plans).enumerate() {
        if plan.partition.is_some() || plan.detour.is_some() {
            continue;
        }
        let (partitions, room) = match fresh.entry(&*part.queue) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                queues += u64::from(plan.queue.is_none());
                new.insert((0, room_for_partitions(tx, plan.queue.as_deref(), batch.parts.len() as u64)?))
            }
        };
        *partitions += 1;
        if queues > room_for_queues || *partitions > *room {
            return Ok(batch.places.iter().position(|(of, _)| *of == number).unwrap_or_default());
        }
    }
    Ok(0)
}

/// How many partitions more a queue, which may be a new one, can have; `wanted` if that is fewer.
fn room_for_partitions(tx: &mut dyn Tx, queue: Option<&Queue>, wanted: u64) -> Result<u64, TxError> {
    let Some(queue) = queue else { return Ok(tx.limits().partitions) };
    let (mut fits, mut beyond) = (0, wanted + 1);
    while fits + 1 < beyond {
        let half = fits.midpoint(beyond);
        if tx.has_partition_room(queue.id, half)? {
            fits = half;
        } else {
            beyond = half;
        }
    }
    Ok(fits)
}

/// The queue that would hold more than it may, if there is one.
fn find_full(tx: &mut dyn Tx, batch: &PushBatch, plans: &[Plan]) -> Result<Option<Error>, TxError> {
    let mut growth: FxHashMap<&str, (u64, &Arc<Queue>)> = FxHashMap::default();
    for (part, plan) in batch.parts.iter().zip(plans) {
        let Some(queue) = plan.queue.as_ref().filter(|queue| queue.spec.options.max_size > 0) else {
            continue;
        };
        growth.entry(&part.queue).or_insert((0, queue)).0 += (part.block.len() - plan.repeats.len()) as u64;
    }
    let mut full: Option<Error> = None;
    collect_misses(growth.into_values(), |(fresh, queue)| {
        let (mut size, max) = (backlog(tx, queue)?, queue.spec.options.max_size);
        if fresh > 0 && size + fresh > max {
            size = count_backlog(tx, queue)?.unwrap_or(size);
        }
        if fresh > 0 && size + fresh > max {
            let name = &queue.spec.name;
            let first_beyond = nth_new(batch, plans, name, max.saturating_sub(size));
            full = Some(Error::QueueFull { queue: name.to_string(), size, max, first_beyond });
        }
        Ok(())
    })?;
    Ok(full)
}

/// The message that would be stored in `queue` after `stored` others of the batch, by its number.
fn nth_new(batch: &PushBatch, plans: &[Plan], queue: &str, stored: u64) -> usize {
    let is_new = |(part, index): &(usize, usize)| {
        *batch.parts[*part].queue == *queue && !plans[*part].repeats.contains_key(index)
    };
    let new = batch.places.iter().enumerate().filter(|(_, place)| is_new(place));
    let skipped = usize::try_from(stored).unwrap_or(usize::MAX);
    new.map(|(number, _)| number).nth(skipped).unwrap_or_default()
}

/// Messages that the group furthest behind has not finished; all that are kept when there is no group. Where a group
/// begins in the middle of a partition that it has not popped yet, the older messages may be counted too.
fn backlog(tx: &mut dyn Tx, queue: &Queue) -> Result<u64, TxError> {
    let mut most = None;
    collect_misses(tx.groups(queue.id)?, |group| {
        most = most.max(Some(tx.backlog(group.id)?));
        Ok(())
    })?;
    most.map_or_else(|| tx.message_count(queue.id), Ok)
}

/// The same, counted partition by partition and without the older messages; `None` where it is what the store counts, or
/// where there are too many partitions: every refused push to a full queue would look at all of them.
fn count_backlog(tx: &mut dyn Tx, queue: &Queue) -> Result<Option<u64>, TxError> {
    let groups = tx.groups(queue.id)?;
    if groups.iter().all(|group| group.start == GroupStart::Oldest) {
        return Ok(None);
    }
    let partitions = tx.partitions(queue.id, None, COUNTED_PARTITIONS_MAX + 1)?;
    if partitions.len() > COUNTED_PARTITIONS_MAX {
        return Ok(None);
    }
    let mut most = 0;
    collect_misses(groups, |group| {
        let mut backlog = 0;
        collect_misses(&partitions, |partition| {
            backlog += cursor::unfinished(tx, &group, partition)?;
            Ok(())
        })?;
        most = most.max(backlog);
        Ok(())
    })?;
    Ok(Some(most))
}

fn window(options: &QueueOptions) -> Duration {
    Duration::from_secs(options.dedup_window_seconds.into())
}

/// What became of the messages of a batch, part by part: a batch often has as many parts as messages.
struct Results {
    pushed: Vec<Pushed>,
    /// Where each part begins.
    parts: Vec<usize>,
}

impl Results {
    fn for_batch(batch: &PushBatch) -> Self {
        Self { pushed: Vec::with_capacity(batch.len()), parts: Vec::with_capacity(batch.parts.len()) }
    }

    fn begin_part(&mut self) {
        self.parts.push(self.pushed.len());
    }

    fn in_order_of(&self, batch: &PushBatch) -> Vec<Pushed> {
        batch.places.iter().map(|(part, index)| self.pushed[self.parts[*part] + index]).collect()
    }
}

/// Writes a checked push and tells what became of each message.
pub fn write(tx: &mut dyn Tx, batch: &PushBatch, prepared: &Prepared) -> Result<Vec<Pushed>, TxError> {
    let mut results = Results::for_batch(batch);
    for (part, plan) in batch.parts.iter().zip(&prepared.0) {
        results.begin_part();
        if let Some(place) = plan.detour {
            spool(tx, place, part, &mut results)?;
            continue;
        }
        let queue = match &plan.queue {
            Some(queue) => queue.clone(),
            None => ensure_queue(tx, &part.queue)?,
        };
        let partition = match plan.partition {
            Some(partition) => partition,
            None => match tx.partition_id(queue.id, &part.partition)? {
                Some(partition) => partition,
                None => tx.create_partition(queue.id, &part.partition),
            },
        };
        append(tx, &queue, partition, &part.block, &plan.repeats, &mut results);
    }
    Ok(results.in_order_of(batch))
}

/// Lets all messages of a push wait.
pub fn spool_all(tx: &mut dyn Tx, batch: &PushBatch) -> Result<Vec<Pushed>, TxError> {
    tx.admit_bytes(batch.bytes_len())?;
    let mut places = Vec::with_capacity(batch.parts.len());
    for part in &batch.parts {
        let place = maintenance::detour(tx, PushMode::Spooled, &part.queue, &part.partition)?;
        places.push(place.unwrap_or(Place::New));
    }
    let mut results = Results::for_batch(batch);
    for (part, place) in batch.parts.iter().zip(places) {
        results.begin_part();
        spool(tx, place, part, &mut results)?;
    }
    Ok(results.in_order_of(batch))
}

/// Lets all messages of a part wait; whether some repeat others is seen when they are pushed.
fn spool(tx: &mut dyn Tx, place: Place, part: &Part, results: &mut Results) -> Result<(), TxError> {
    let partition = maintenance::ensure_place(tx, place, &part.queue, &part.partition)?;
    let appended = tx.append(partition, &part.block, Duration::ZERO);
    let pushed = |index: u64| {
        let offset = appended.first.plus(index);
        let id = MessageId::new(appended.created_at, partition, offset);
        Pushed { duplicate: false, buffered: true, partition, offset, id }
    };
    results.pushed.extend((0..part.block.len() as u64).map(pushed));
    Ok(())
}

fn append(
    tx: &mut dyn Tx,
    queue: &Queue,
    partition: PartitionId,
    block: &MessageBlock,
    repeats: &FxHashMap<usize, Repeat>,
    results: &mut Results,
) {
    let remember = window(&queue.spec.options);
    let appended = match repeats.len() {
        0 => Some(tx.append(partition, block, remember)),
        all if all == block.len() => None,
        _ => Some(tx.append(partition, &block.filtered(|index| !repeats.contains_key(&index)), remember)),
    };
    let (from, mut stored) = (results.pushed.len(), 0);
    for index in 0..block.len() {
        let pushed = match (repeats.get(&index), appended) {
            (Some(Repeat::Stored(offset, id)), _) => {
                Pushed { duplicate: true, buffered: false, partition, offset: *offset, id: *id }
            }
            (Some(Repeat::Earlier(earlier)), _) => {
                let original = results.pushed[from + *earlier];
                Pushed { duplicate: true, ..original }
            }
            (None, Some(appended)) => {
                let offset = appended.first.plus(stored);
                stored += 1;
                let id = MessageId::new(appended.created_at, partition, offset);
                Pushed { duplicate: false, buffered: false, partition, offset, id }
            }
            (None, None) => continue,
        };
        results.pushed.push(pushed);
    }
}

/// The queue of that name, created with defaults and with labels from its dotted name when missing.
pub fn ensure_queue(tx: &mut dyn Tx, name: &str) -> Result<Arc<Queue>, TxError> {
    if let Some(queue) = tx.queue(name)? {
        return Ok(queue);
    }
    let mut labels = name.split('.');
    let namespace = labels.next().unwrap_or_default().into();
    let task = labels.next().unwrap_or_default().into();
    tx.put_queue(QueueSpec { name: name.into(), namespace, task, options: QueueOptions::default() })
}

/// A whole push in one decision.
pub fn push(tx: &mut dyn Tx, batch: &PushBatch) -> Result<Result<Vec<Pushed>, Error>, TxError> {
    match prepare(tx, batch)? {
        Ok(prepared) => write(tx, batch, &prepared).map(Ok),
        Err(error) => Ok(Err(error)),
    }
}
