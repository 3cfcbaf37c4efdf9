//! Dead letters: listing them, and pushing one again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use baton_store::{DeadLetter, DeadLetterKey, NewMessage, Queue, Tx, TxError, collect_misses};
use baton_types::{MessageId, Offset, PartitionId, QueueId, Timestamp, limits};

use super::queues::FEW;
use super::{Broker, PAGE};
use crate::rules::push::{self, PushBatch, Pushed};
use crate::rules::seal::{Opener, Owner, Sealer, is_sealed};
use crate::{DeadLetterFilter, DeadLetterPage, Error, ListedLetter, Replayed};

/// Letters of a queue that are looked at for their causes: the newest.
const LOOKED_AT: usize = 500;
/// Bytes of payloads that may be read along with them: a dashboard asks every few seconds.
const LOOKED_AT_BYTES: usize = 16 << 20;
/// Letters whose payloads are read in one decision.
pub(super) const READ_AT_ONCE: usize = 16;

/// What the newest dead letters have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Causes {
    /// The partitions that they come from.
    pub partitions: u64,
    /// The errors that they died of, each with its number, most frequent first.
    pub errors: Vec<(String, u64)>,
}

impl Broker {
    /// What the newest dead letters of some queues have in common: fewer of them where their payloads are large.
    pub async fn causes(&self, queues: Vec<QueueId>) -> Result<Causes, Error> {
        let (mut partitions, mut errors) = (BTreeSet::new(), BTreeMap::<String, u64>::new());
        let mut bytes = LOOKED_AT_BYTES;
        for queue in queues {
            let (mut last, mut left, mut at_once): (Option<DeadLetter>, _, _) = (None, LOOKED_AT, 1);
            while left > 0 && bytes > 0 {
                let (after, count) = (last.take(), at_once.min(left));
                let mut letters = self.run(move |tx| tx.dead_letters(queue, after.as_ref(), count)).await?;
                let largest = letters.iter().map(|letter| letter.payload.len()).max().unwrap_or(0);
                bytes = bytes.saturating_sub(letters.iter().map(|letter| letter.payload.len()).sum());
                left = if letters.len() < count { 0 } else { left - count };
                at_once = (2 * at_once).min(bytes / largest.max(1)).clamp(1, READ_AT_ONCE);
                for letter in &mut letters {
                    partitions.insert(letter.key.partition);
                    *errors.entry(letter.error.take().unwrap_or_default()).or_insert(0) += 1;
                }
                last = letters.pop();
            }
        }
        let mut errors: Vec<_> = errors.into_iter().collect();
        errors.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Ok(Causes { partitions: partitions.len() as u64, errors })
    }

    /// A page of dead letters. Only those of the page are read; of payloads beyond the limit of an answer, none is.
    pub async fn dead_letters(&self, filter: DeadLetterFilter) -> Result<DeadLetterPage, Error> {
        let queues = self.matching_queues(filter.queue.clone(), None, None).await?;
        let first = |tx: &mut dyn Tx, queue: &Arc<Queue>| tx.dead_letter_keys(queue.id, None, FEW + 1);
        let first = self.look_at_queues(&queues, first).await?;
        let mut found = Vec::new();
        for (queue, mut keys) in queues.iter().zip(first) {
            if keys.len() > FEW {
                keys = self.dead_letter_keys(queue.id).await?;
            }
            let only = match filter.partition.clone() {
                Some(name) if !keys.is_empty() => {
                    let id = queue.id;
                    Some(self.run(move |tx| tx.partition_id(id, &name)).await?)
                }
                _ => None,
            };
            let is_wanted = |(key, failed_at): &(DeadLetterKey, Timestamp)| {
                only.is_none_or(|only| only == Some(key.partition)) && filter.wants(key, *failed_at)
            };
            let wanted = keys.into_iter().filter(is_wanted);
            found.extend(wanted.map(|(key, failed_at)| (failed_at, key, queue.spec.name.clone())));
        }
        found.sort_by(|(at, key, _), (other_at, other, _)| (other_at, other).cmp(&(at, key)));
        let (total, mut letters, mut bytes) = (found.len() as u64, Vec::new(), 0);
        let mut opener = self.shared.sealer.opener();
        let page: Vec<_> = found.into_iter().skip(filter.offset).take(filter.limit).collect();
        for some in page.chunks(READ_AT_ONCE) {
            let keys: Vec<_> = some.iter().map(|(_, key, _)| key.clone()).collect();
            let read = self.run(move |tx| read_letters(tx, &keys)).await?;
            for ((.., queue), read) in some.iter().zip(read) {
                let Some((mut letter, partition)) = read else { continue };
                // One that cannot be read is listed without its payload; its error says why it is a dead letter.
                letter.payload = opener.open_letter(queue, &partition, &letter).unwrap_or_default();
                bytes += letter.payload.len();
                let omitted = bytes > limits::POP_BYTES_MAX && !letters.is_empty();
                if omitted {
                    bytes -= std::mem::take(&mut letter.payload).len();
                }
                letters.push(ListedLetter { letter, queue: queue.clone(), partition, omitted });
            }
        }
        Ok(DeadLetterPage { total, letters })
    }

    /// The keys of all dead letters of a queue, partition by partition, each with the moment of its end.
    pub(super) async fn dead_letter_keys(
        &self,
        queue: QueueId,
    ) -> Result<Vec<(DeadLetterKey, Timestamp)>, Error> {
        let mut found: Vec<(DeadLetterKey, Timestamp)> = Vec::new();
        loop {
            let after = found.last().map(|(key, _)| key.clone());
            let page = self.run(move |tx| tx.dead_letter_keys(queue, after.as_ref(), PAGE)).await?;
            if page.is_empty() {
                return Ok(found);
            }
            found.extend(page);
        }
    }

    /// Pushes a dead letter again and removes it; `None` when there is none of that message.
    pub async fn replay(
        &self,
        partition: PartitionId,
        transaction_id: &str,
    ) -> Result<Option<Replayed>, Error> {
        let Some(key) = self.find_letter(partition, transaction_id).await? else { return Ok(None) };
        let sealer = Arc::clone(&self.shared.sealer);
        self.run(move |tx| replay(tx, &sealer, &key)).await?
    }

    /// The key of the newest dead letter with this transaction id. The letters of the partition are read some at a time,
    /// as their payloads may be large.
    pub(super) async fn find_letter(
        &self,
        partition: PartitionId,
        transaction_id: &str,
    ) -> Result<Option<DeadLetterKey>, Error> {
        let Some(row) = self.run(move |tx| tx.partition_by_id(partition)).await? else { return Ok(None) };
        let mut keys = self.dead_letter_keys(row.queue).await?;
        keys.retain(|(key, _)| key.partition == partition);
        keys.sort_by_key(|(_, failed_at)| std::cmp::Reverse(*failed_at));
        for some in keys.chunks(READ_AT_ONCE) {
            let (some, wanted) = (some.to_vec(), transaction_id.to_owned());
            let found = self.run(move |tx| {
                let mut found = None;
                collect_misses(&some, |(key, _)| {
                    let is_wanted =
                        tx.dead_letter(key)?.is_some_and(|letter| letter.transaction_id == wanted);
                    if is_wanted && found.is_none() {
                        found = Some(key.clone());
                    }
                    Ok(())
                })?;
                Ok(found)
            });
            if let Some(found) = found.await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

impl DeadLetterFilter {
    fn wants(&self, key: &DeadLetterKey, failed_at: Timestamp) -> bool {
        self.group.as_deref().is_none_or(|name| *key.group == *name)
            && self.from.is_none_or(|from| failed_at >= from)
            && self.to.is_none_or(|to| failed_at <= to)
    }
}

type ReadLetter = Option<(DeadLetter, Arc<str>)>;

/// Dead letters, as far as they are still there, each with the name of its partition.
fn read_letters(tx: &mut dyn Tx, keys: &[DeadLetterKey]) -> Result<Vec<ReadLetter>, TxError> {
    let mut found = Vec::with_capacity(keys.len());
    collect_misses(keys, |key| {
        let (letter, partition) = (tx.dead_letter(key), tx.partition_by_id(key.partition));
        let name = partition?.map_or_else(|| "".into(), |partition| partition.name);
        found.push(letter?.map(|letter| (letter, name)));
        Ok(())
    })?;
    Ok(found)
}

/// The dead letters of one message, of whichever group.
pub fn letters_of(
    tx: &mut dyn Tx,
    queue: &Queue,
    partition: PartitionId,
    offset: Offset,
) -> Result<Vec<DeadLetter>, TxError> {
    let mut letters = Vec::new();
    collect_misses(tx.groups(queue.id)?, |group| {
        let key = DeadLetterKey { queue: queue.id, partition, offset, group: group.name.clone() };
        letters.extend(tx.dead_letter(&key)?);
        Ok(())
    })?;
    letters.sort_by_key(|letter| std::cmp::Reverse(letter.failed_at));
    Ok(letters)
}

/// Appends a copy of a dead letter to its partition and removes the letter, in one decision.
fn replay(
    tx: &mut dyn Tx,
    sealer: &Sealer,
    key: &DeadLetterKey,
) -> Result<Result<Option<Replayed>, Error>, TxError> {
    let (letter, row) = (tx.dead_letter(key), tx.partition_by_id(key.partition));
    let (Some(mut letter), Some(row)) = (letter?, row?) else { return Ok(Ok(None)) };
    let Some(queue) = tx.queue_by_id(row.queue)? else { return Ok(Ok(None)) };
    if let Err(error) = reseal(sealer, &mut sealer.opener(), &queue, &row.name, &mut letter) {
        return Ok(Err(error));
    }
    let letters = [(letter, row.name)];
    let pushed = match push_again(tx, &queue, &letters)? {
        Ok(pushed) => pushed[0],
        Err(error) => return Ok(Err(error)),
    };
    let [(letter, partition_name)] = letters;
    Ok(Ok(Some(Replayed {
        queue: queue.spec.name.clone(),
        partition: row.id,
        partition_name,
        original: original(&letter),
        transaction_id: fresh_id(&letter),
        group: letter.key.group,
        original_transaction_id: letter.transaction_id,
        message: pushed.id,
        offset: pushed.offset,
        duplicate: pushed.duplicate,
    })))
}

/// The id of the message that a letter stands for.
fn original(letter: &DeadLetter) -> MessageId {
    MessageId::new(letter.created_at, letter.key.partition, letter.key.offset)
}

/// The transaction id under which a letter is pushed again, so that this happens once.
fn fresh_id(letter: &DeadLetter) -> String {
    format!("dlq:{}", original(letter))
}

/// Seals the payload of a dead letter for the message that it becomes when it is pushed again: that has another
/// transaction id. A letter from before the queue was encrypted is sealed now.
pub(super) fn reseal(
    sealer: &Sealer,
    opener: &mut Opener<'_>,
    queue: &Queue,
    partition: &str,
    letter: &mut DeadLetter,
) -> Result<(), Error> {
    if !queue.spec.options.encryption_enabled && !is_sealed(&letter.payload) {
        return Ok(());
    }
    let payload = opener.open_letter(&queue.spec.name, partition, letter).map_err(Error::KeyMissing)?;
    let id = fresh_id(letter);
    let owner = Owner::Message { queue: &queue.spec.name, partition, transaction_id: Some(id.as_bytes()) };
    letter.payload = sealer.seal(owner, &payload)?.into();
    Ok(())
}

/// Appends copies of dead letters of a queue to their partitions, whose names come with them, and removes the letters, in
/// one decision. [`reseal`] has made them ready. A letter whose message was pushed again before stays.
pub(super) fn push_again(
    tx: &mut dyn Tx,
    queue: &Queue,
    letters: &[(DeadLetter, Arc<str>)],
) -> Result<Result<Vec<Pushed>, Error>, TxError> {
    let mut batch = PushBatch::default();
    for (letter, partition) in letters {
        let fresh_id = fresh_id(letter);
        let message = NewMessage {
            transaction_id: Some(&fresh_id),
            trace_id: letter.trace_id,
            producer: letter.producer.as_deref(),
            payload: &letter.payload,
        };
        if let Err(error) = batch.add(&queue.spec.name, partition, &message) {
            return Ok(Err(error));
        }
    }
    let pushed = match push::push(tx, &batch)? {
        Ok(pushed) => pushed,
        Err(error) => return Ok(Err(error)),
    };
    for ((letter, _), pushed) in letters.iter().zip(&pushed) {
        if !pushed.duplicate {
            tx.remove_dead_letter(&letter.key);
        }
    }
    Ok(Ok(pushed))
}
