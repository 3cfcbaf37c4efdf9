//! Messages: listing, looking at and deleting them.

use std::collections::HashSet;
use std::sync::Arc;

use baton_store::{DeadLetterKey, Queue, Segment, Tx, TxError};
use baton_types::{IdHash, Offset, PartitionId, Timestamp, limits};
use bytes::Bytes;

use super::dead_letters::letters_of;
use super::{Broker, PAGE, resolve};
use crate::rules::dedup_release::Withdrawal;
use crate::rules::inspect::Views;
use crate::{Error, MessageDetail, MessageFilter, MessageSummary};

/// Partitions whose newest messages a listing looks at.
const LISTED_PARTITIONS_MAX: usize = 1000;

impl Broker {
    /// Messages, the newest first.
    pub async fn messages(&self, filter: MessageFilter) -> Result<Vec<MessageSummary>, Error> {
        let (queue, namespace, task) = (filter.queue.clone(), filter.namespace.clone(), filter.task.clone());
        let queues = self.matching_queues(queue, namespace, task).await?;
        let wanted = filter.limit.saturating_add(filter.offset).min(limits::BATCH_ITEMS_MAX) as u64;
        let mut found = Vec::new();
        for queue in queues {
            let letters = self.dead_letter_keys(queue.id).await?;
            let dead = letters.into_iter().map(|(key, _)| (key.partition, key.offset)).collect();
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
        let mut found: Vec<_> = found.into_iter().skip(filter.offset).take(filter.limit).collect();
        let mut opener = self.shared.sealer.opener();
        for summary in &mut found {
            // One that cannot be read is listed without its payload.
            let (queue, partition) = (&summary.queue.spec.name, &summary.partition_name);
            if opener.open_message(queue, partition, &mut summary.message).is_err() {
                summary.message.payload = Bytes::new();
            }
        }
        Ok(found)
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
        let found = resolve::find_stored(&self.shared.store, partition, transaction_id).await?;
        let Some(message) = found else { return Ok(None) };
        let detail = self.run(move |tx| {
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
        });
        let Some(mut detail) = detail.await? else { return Ok(None) };
        let MessageSummary { queue, partition_name, message, .. } = &mut detail.summary;
        let mut opener = self.shared.sealer.opener();
        opener.open_message(&queue.spec.name, partition_name, message).map_err(Error::KeyMissing)?;
        Ok(Some(detail))
    }

    /// Deletes a message for every group, with its dead letters; whether there was one.
    pub async fn delete_message(&self, partition: PartitionId, transaction_id: &str) -> Result<bool, Error> {
        let found = resolve::find_stored(&self.shared.store, partition, transaction_id).await?;
        let offset = found.as_ref().map(|message| message.offset);
        let own_id = found.and_then(|message| message.transaction_id);
        let own_id = own_id.unwrap_or_else(|| Bytes::copy_from_slice(transaction_id.as_bytes()));
        let id = own_id.clone();
        if self.run(move |tx| delete(tx, partition, &id, offset, None)).await? {
            return Ok(true);
        }
        let Some(letter) = self.find_letter(partition, transaction_id).await? else { return Ok(false) };
        self.run(move |tx| delete(tx, partition, &own_id, offset, Some(&letter))).await
    }
}

/// Deletes a message that is kept, with its dead letters, else the given letter of it; whether there was either.
fn delete(
    tx: &mut dyn Tx,
    partition: PartitionId,
    own_id: &Bytes,
    offset: Option<Offset>,
    letter: Option<&DeadLetterKey>,
) -> Result<bool, TxError> {
    let Some(row) = tx.partition_by_id(partition)? else { return Ok(false) };
    let Some(queue) = tx.queue_by_id(row.queue)? else { return Ok(false) };
    let kept = offset.filter(|offset| *offset >= row.start && !row.deleted.contains(*offset));
    let letters = match (kept, letter) {
        (Some(offset), _) => letters_of(tx, &queue, partition, offset)?,
        (None, Some(letter)) => tx.dead_letter(letter)?.into_iter().collect(),
        (None, None) => Vec::new(),
    };
    if kept.is_none() && letters.is_empty() {
        return Ok(false);
    }
    let withdrawal = match tx.find_remembered(partition, IdHash::new(own_id))? {
        Some(known) => Withdrawal::of_id(tx, &queue, partition, own_id, known.offset.plus(1))?,
        None => None,
    };
    if let Some(offset) = kept {
        tx.delete_message(partition, offset);
    }
    letters.iter().for_each(|letter| tx.remove_dead_letter(&letter.key));
    if let Some(withdrawal) = withdrawal {
        withdrawal.write(tx)?;
    }
    Ok(true)
}

impl MessageFilter {
    fn wants(&self, summary: &MessageSummary) -> bool {
        self.status.is_none_or(|status| status == summary.status)
            && self.from.is_none_or(|from| summary.message.created_at >= from)
            && self.to.is_none_or(|to| summary.message.created_at < to)
    }
}
