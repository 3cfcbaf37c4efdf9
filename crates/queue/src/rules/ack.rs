//! Ack: what a consumer says of its messages, and what follows.
//!
//! Always: a message never mentioned is never finished; the cursor moves over the finished prefix only and
//! never back; an ack that shows a lease changes nothing unless that lease is live; only an ack that shows the live lease
//! ends it early. Each message has its own retry budget. A call charges each message that it says has failed one
//! retry, and no other message; one whose budget is spent becomes a dead letter.
//! Not here: finding a message by its transaction id (`resolve`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use baton_store::{
    Cursor, DeadLetter, DeadLetterKey, Durability, Group, Partition, Queue, StoredMessage, Tx, TxError,
    collect_misses,
};
use baton_types::wire::AckStatus;
use baton_types::{LeaseId, Offset, PartitionId, Timestamp, limits};

use crate::rules::cursor::{current_cursor, settle};

/// No such message. Queen's clients look for the first word.
pub const NOT_FOUND: &str = "unresolvable: Message not found";
/// The lease shown is not the live one.
pub const BAD_LEASE: &str = "Invalid or expired lease";
/// The message was finished before and cannot fail any more.
pub const FINISHED: &str = "Message is finished already";
/// The group has never read the queue.
pub const NO_GROUP: &str = "Consumer group not found";

/// The lease that an ack shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseClaim {
    /// None: the ack is not fenced.
    None,
    /// This one.
    Held(LeaseId),
    /// A text that is no lease id, and so no live one.
    Unknown,
}

/// One ack.
#[derive(Clone, Debug)]
pub struct AckItem {
    /// The partition; `None` when the text was no partition id.
    pub partition: Option<PartitionId>,
    /// The message's transaction id.
    pub transaction_id: String,
    /// The group.
    pub group: String,
    /// The lease shown.
    pub lease: LeaseClaim,
    /// What became of the message.
    pub status: AckStatus,
    /// Why it failed.
    pub error: Option<String>,
}

/// What became of one ack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acked {
    /// Why it had no effect; `None` is success.
    pub error: Option<&'static str>,
    /// The message's queue.
    pub queue: Option<Arc<str>>,
    /// The message's partition.
    pub partition_name: Option<Arc<str>>,
    /// Whether the call ended the lease.
    pub lease_released: bool,
    /// Whether the message became a dead letter.
    pub dead_lettered: bool,
    /// Whether the message was finished before.
    pub noop: bool,
    /// Older messages that were finished along with it, for a group that wants the newest only.
    pub conflated: u64,
}

/// An ack whose message has been found, or not.
#[derive(Clone, Debug)]
pub struct Resolved {
    pub item: AckItem,
    pub offset: Option<Offset>,
    /// Later messages of the same delivery with the same transaction id.
    pub namesakes: Vec<Offset>,
    /// Whether the server itself gives up on the message: the dead letter is kept even where the queue keeps none, and
    /// the lease stays, as its holder has not spoken.
    pub by_server: bool,
}

/// What is said about one message.
struct Verdict<'a> {
    status: AckStatus,
    error: Option<&'a str>,
    /// Whether the holder of the live lease says so.
    by_holder: bool,
}

impl Verdict<'_> {
    fn is_nack(&self) -> bool {
        self.status != AckStatus::Completed
    }
}

/// Whether an ack of a finished message succeeds without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatedAck {
    /// Yes, so that a call can be repeated.
    Succeeds,
    /// No, so that what happens in the same commit happens once.
    Fails,
}

/// Acks of one call that were decided and can no longer fail.
pub struct Prepared {
    pub results: Vec<Acked>,
    changes: Vec<Change>,
}

/// What the acks of one partition and group change.
struct Change {
    group: Arc<Group>,
    partition: PartitionId,
    cursor: Cursor,
    letters: Vec<DeadLetter>,
}

/// Decides all acks of a call against the tables without writing.
pub fn prepare(tx: &mut dyn Tx, acks: &[Resolved], repeated: RepeatedAck) -> Result<Prepared, TxError> {
    let mut results: Vec<Acked> = vec![Acked::default(); acks.len()];
    let mut places: BTreeMap<(PartitionId, &str), Vec<usize>> = BTreeMap::new();
    for (index, ack) in acks.iter().enumerate() {
        match (ack.item.partition, ack.offset) {
            (Some(partition), Some(_)) => places.entry((partition, &ack.item.group)).or_default().push(index),
            _ => results[index].error = Some(NOT_FOUND),
        }
    }
    let mut changes = Vec::new();
    collect_misses(places, |((partition, group), indexes)| {
        changes.extend(prepare_place(tx, acks, repeated, partition, group, &indexes, &mut results)?);
        Ok(())
    })?;
    if !changes.is_empty() {
        tx.admit_update()?;
    }
    Ok(Prepared { results, changes })
}

/// Writes what was decided.
pub fn write(tx: &mut dyn Tx, prepared: Prepared) -> Vec<Acked> {
    for change in prepared.changes {
        for letter in change.letters {
            tx.put_dead_letter(letter);
        }
        tx.put_cursor(change.group.id, change.partition, change.cursor, Durability::Now);
    }
    prepared.results
}

fn prepare_place(
    tx: &mut dyn Tx,
    acks: &[Resolved],
    repeated: RepeatedAck,
    partition: PartitionId,
    group: &str,
    indexes: &[usize],
    results: &mut [Acked],
) -> Result<Option<Change>, TxError> {
    let mut refuse = |error| indexes.iter().for_each(|index| results[*index].error = Some(error));
    let Some(partition) = tx.partition_by_id(partition)? else {
        refuse(NOT_FOUND);
        return Ok(None);
    };
    let Some(queue) = tx.queue_by_id(partition.queue)? else {
        refuse(NOT_FOUND);
        return Ok(None);
    };
    let Some(group) = tx.group(queue.id, group)? else {
        for index in indexes {
            let is_fenced = acks[*index].item.lease != LeaseClaim::None;
            results[*index].error = Some(if is_fenced { BAD_LEASE } else { NO_GROUP });
        }
        return Ok(None);
    };
    let cursor = current_cursor(tx, &group, &partition)?;
    let live = cursor.lease.as_ref().filter(|lease| lease.until > tx.now()).cloned();
    let is_finished = |offset: Offset| {
        offset < cursor.next || cursor.finished.as_ref().is_some_and(|finished| finished.contains(offset))
    };
    let mut verdicts: BTreeMap<Offset, Verdict<'_>> = BTreeMap::new();
    // For each ack its message.
    let mut chosen = Vec::with_capacity(indexes.len());
    for index in indexes {
        let (ack, result) = (&acks[*index], &mut results[*index]);
        result.queue = Some(queue.spec.name.clone());
        result.partition_name = Some(partition.name.clone());
        // Of messages with the same id an ack means the first that nothing was said about.
        let mut candidates = ack.offset.iter().chain(&ack.namesakes).copied();
        let is_open = |offset: &Offset| !is_finished(*offset) && !verdicts.contains_key(offset);
        let first = if ack.namesakes.is_empty() { None } else { candidates.find(is_open) };
        let Some(offset) = first.or(ack.offset).filter(|offset| *offset < partition.tail) else {
            result.error = Some(NOT_FOUND);
            continue;
        };
        let is_finished = is_finished(offset);
        let held = match ack.item.lease {
            LeaseClaim::None => true,
            LeaseClaim::Held(id) => live.as_ref().is_some_and(|lease| lease.id == id && offset < lease.end),
            LeaseClaim::Unknown => false,
        };
        match ack.item.status {
            AckStatus::Completed if is_finished && repeated == RepeatedAck::Succeeds => result.noop = true,
            _ if !held => result.error = Some(BAD_LEASE),
            _ if is_finished => result.error = Some(FINISHED),
            status => {
                chosen.push((*index, offset));
                let by_holder = ack.item.lease != LeaseClaim::None && !ack.by_server;
                let verdict = verdicts.entry(offset).or_insert(Verdict { status, error: None, by_holder });
                verdict.by_holder |= by_holder;
                if rank(status) >= rank(verdict.status) {
                    verdict.status = status;
                    verdict.error = ack.item.error.as_deref().or(verdict.error);
                }
            }
        }
    }
    if verdicts.is_empty() {
        // Messages of a batch may be deleted under its lease. When none is left, an ack of the holder ends it.
        let Some(lease) = live.filter(|lease| lease.end <= cursor.next) else { return Ok(None) };
        let held = LeaseClaim::Held(lease.id);
        if !indexes.iter().any(|index| acks[*index].item.lease == held && results[*index].noop) {
            return Ok(None);
        }
        indexes.iter().for_each(|index| results[*index].lease_released = results[*index].error.is_none());
        let cursor = Cursor { lease: None, available_at: tx.now(), attempts: 0, ..cursor };
        return Ok(Some(Change { group, partition: partition.id, cursor, letters: Vec::new() }));
    }
    let next = cursor.next;
    let decision = decide(&queue, group.conflation, cursor, live.is_some(), &verdicts, tx.now());
    let mut letters = Vec::new();
    let by_server: BTreeSet<_> =
        chosen.iter().filter(|(index, _)| acks[*index].by_server).map(|(_, offset)| *offset).collect();
    let keeps = |offset: &Offset| queue.spec.options.keeps_dead_letters() || by_server.contains(offset);
    collect_misses(decision.dead.iter().filter(|(offset, ..)| keeps(offset)), |(offset, error, retries)| {
        if let Some(message) = tx.message(partition.id, *offset)? {
            letters.push(letter(&queue, &partition, &group, &message, error.as_deref(), *retries, tx.now()));
        }
        Ok(())
    })?;
    let lettered: BTreeSet<_> = letters.iter().map(|letter: &DeadLetter| letter.key.offset).collect();
    for index in indexes {
        let result = &mut results[*index];
        if result.error.is_some() {
            continue;
        }
        result.lease_released = decision.released;
    }
    for (index, offset) in chosen {
        let is_newest = group.conflation && decision.cursor.next > offset;
        results[index].conflated = if is_newest { offset.since(next) } else { 0 };
        results[index].dead_lettered = lettered.contains(&offset);
    }
    Ok(Some(Change { group, partition: partition.id, cursor: decision.cursor, letters }))
}

/// When a message is named twice the graver word counts.
fn rank(status: AckStatus) -> u8 {
    match status {
        AckStatus::Completed => 0,
        AckStatus::Retry => 1,
        AckStatus::Failed => 2,
        AckStatus::Dlq => 3,
    }
}

struct Decision {
    cursor: Cursor,
    released: bool,
    /// Offset, error text, retries spent.
    dead: Vec<(Offset, Option<String>, u32)>,
}

/// The rule: what the verdicts on one partition do to a group's cursor. `leased` says that its lease is live.
fn decide(
    queue: &Queue,
    conflation: bool,
    mut cursor: Cursor,
    leased: bool,
    verdicts: &BTreeMap<Offset, Verdict<'_>>,
    now: Timestamp,
) -> Decision {
    let options = &queue.spec.options;
    let of = |wanted: AckStatus| verdicts.iter().filter(move |(_, verdict)| verdict.status == wanted);
    let retries = cursor.retries.get_or_insert_default();
    let mut dead: Vec<(Offset, Option<String>, u32)> = of(AckStatus::Dlq)
        .map(|(offset, verdict)| (*offset, verdict.error.map(String::from), retries.count(*offset)))
        .collect();
    let mut charged = Vec::new();
    for (offset, verdict) in of(AckStatus::Failed) {
        let spent = retries.count(*offset);
        if spent < options.retry_limit {
            charged.push(*offset);
        } else {
            let error = verdict.error.unwrap_or("Retries exhausted").to_string();
            dead.push((*offset, Some(error), spent));
        }
    }
    let wait = !charged.is_empty();
    retries.spend(charged);
    let finished = cursor.finished.get_or_insert_default();
    let before = finished.len();
    // An ack of the newest message finishes all that it stands for.
    let first = |offset: Offset| if conflation { cursor.next.min(offset) } else { offset };
    let done =
        of(AckStatus::Completed).map(|(offset, _)| *offset).chain(dead.iter().map(|(offset, ..)| *offset));
    done.for_each(|offset| finished.insert_range(first(offset), offset.plus(1)));
    cursor.consumed += finished.len() - before;
    settle(&mut cursor);
    let whole = match (&cursor.lease, &cursor.finished) {
        (Some(lease), Some(finished)) => finished.first_missing(cursor.next) >= lease.end,
        (Some(lease), None) => cursor.next >= lease.end,
        (None, _) => false,
    };
    let nacked = verdicts.values().any(|verdict| verdict.is_nack() && (verdict.by_holder || !leased));
    let released = leased && (nacked || whole);
    if nacked || whole {
        cursor.lease = None;
        let delay = std::time::Duration::from_millis(options.retry_delay.into());
        cursor.available_at = if wait { now.after(delay) } else { now };
    }
    if whole {
        cursor.attempts = 0;
    }
    Decision { cursor, released, dead }
}

/// The dead letter of a message.
pub fn letter(
    queue: &Queue,
    partition: &Partition,
    group: &Group,
    message: &StoredMessage,
    error: Option<&str>,
    retries: u32,
    now: Timestamp,
) -> DeadLetter {
    let key = DeadLetterKey {
        queue: queue.id,
        partition: partition.id,
        offset: message.offset,
        group: group.name.clone(),
    };
    DeadLetter {
        key,
        transaction_id: message.transaction_text(),
        trace_id: message.trace_id,
        producer: message.producer.as_ref().map(|p| String::from_utf8_lossy(p).into_owned()),
        created_at: message.created_at,
        failed_at: now,
        retries,
        error: error.map(|text| truncate(text, limits::ERROR_TEXT_BYTES_MAX).to_string()),
        payload: message.payload.clone(),
    }
}

/// The longest beginning of `text` with at most `max` bytes.
fn truncate(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
