//! From transaction id to offset: which message an ack means.
//!
//! An ack names a message by its partition and transaction id. Most acks are for messages delivered a moment
//! ago, so each delivery is remembered by lease; the rest is found from the id itself, from the remembered ids,
//! or by reading the partition.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_store::{MessageView, Store, home_of, run};
use baton_types::{IdHash, LeaseId, MessageId, Offset, PartitionId, transaction_hash};
use rustc_hash::FxHashMap;

use crate::Error;
use crate::ack::{AckItem, LeaseClaim};

/// Delivered messages that are remembered; beyond that the oldest deliveries are forgotten and looked up anew.
const DELIVERED_MAX: usize = 1_000_000;
/// Bytes read at a time while looking through a partition.
const SCAN_BYTES: usize = 4 << 20;
/// Messages looked through before giving up.
const SCAN_MAX: u64 = 1_000_000;

/// What was delivered under which lease.
#[derive(Default)]
pub struct Deliveries(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    by_lease: FxHashMap<LeaseId, Vec<Delivered>>,
    order: VecDeque<LeaseId>,
    messages: usize,
}

/// The messages of one partition in a delivery: hash of the transaction id and offset, sorted.
struct Delivered {
    partition: PartitionId,
    /// The home of its queue.
    home: u64,
    messages: Vec<(u64, Offset)>,
}

impl Deliveries {
    /// Remembers what was delivered of one partition.
    pub fn add(&self, lease: LeaseId, queue: &str, partition: PartitionId, messages: &[MessageView]) {
        let hash = |message: &MessageView| match &message.transaction_id {
            Some(id) => transaction_hash(id),
            None => message.id().as_transaction_hash(),
        };
        let mut delivered: Vec<_> = messages.iter().map(|message| (hash(message), message.offset)).collect();
        delivered.sort_unstable();
        let mut inner = self.lock();
        inner.messages += delivered.len();
        let parts = inner.by_lease.entry(lease).or_default();
        let is_new = parts.is_empty();
        parts.push(Delivered { partition, home: home_of(queue), messages: delivered });
        if is_new {
            inner.order.push_back(lease);
        }
        while inner.messages > DELIVERED_MAX {
            let Some(oldest) = inner.order.pop_front() else { break };
            inner.forget(oldest);
        }
    }

    /// Where the message was when it was delivered.
    pub fn find(&self, lease: LeaseId, partition: PartitionId, transaction_id: &str) -> Option<Offset> {
        let hash = transaction_hash(transaction_id.as_bytes());
        let inner = self.lock();
        let part = inner.by_lease.get(&lease)?.iter().find(|part| part.partition == partition)?;
        let at = part.messages.partition_point(|(other, _)| *other < hash);
        part.messages.get(at).filter(|(other, _)| *other == hash).map(|(_, offset)| *offset)
    }

    /// Where decisions about what was delivered are made best, if that is one place and known here.
    pub fn home(&self, items: &[AckItem]) -> Option<u64> {
        let inner = self.lock();
        let home_of = |item: &AckItem| {
            let (LeaseClaim::Held(lease), Some(partition)) = (item.lease, item.partition) else {
                return None;
            };
            let parts = inner.by_lease.get(&lease)?;
            parts.iter().find(|part| part.partition == partition).map(|part| part.home)
        };
        let home = items.first().and_then(home_of)?;
        items.iter().all(|item| home_of(item) == Some(home)).then_some(home)
    }

    /// Forgets one partition of a delivery.
    pub fn remove(&self, lease: LeaseId, partition: PartitionId) {
        let mut inner = self.lock();
        let Some(parts) = inner.by_lease.get_mut(&lease) else { return };
        let mut gone = 0;
        parts.retain(|part| {
            let keep = part.partition != partition;
            gone += if keep { 0 } else { part.messages.len() };
            keep
        });
        if parts.is_empty() {
            inner.by_lease.remove(&lease);
        }
        inner.messages -= gone;
        // Leases that are gone leave their place in the order behind; drop those that have come to the front.
        while inner.order.front().is_some_and(|lease| !inner.by_lease.contains_key(lease)) {
            inner.order.pop_front();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn forget(&mut self, lease: LeaseId) {
        let parts = self.by_lease.remove(&lease).unwrap_or_default();
        self.messages -= parts.iter().map(|part| part.messages.len()).sum::<usize>();
    }
}

/// Finds a message that was not delivered lately.
pub async fn find_stored(
    store: &Arc<dyn Store>,
    partition: PartitionId,
    transaction_id: &str,
) -> Result<Option<MessageView>, Error> {
    if let Some((named, offset)) = transaction_id.parse::<MessageId>().ok().and_then(MessageId::place)
        && named == partition
    {
        let found = read_one(store, partition, offset).await?;
        if let Some(message) = found.filter(|message| message.is_known_as(transaction_id)) {
            return Ok(Some(message));
        }
    }
    let text = transaction_id.to_string();
    let (found, row) = run(&**store, move |tx| {
        let Some(row) = tx.partition_by_id(partition)? else { return Ok((None, None)) };
        let Some(known) = tx.remembered(partition, IdHash::of(text.as_bytes()))? else {
            return Ok((None, Some(row)));
        };
        let offset = known.offset;
        let message = tx.message(partition, offset)?;
        Ok((message.filter(|message| offset >= row.start && message.is_known_as(&text)), Some(row)))
    })
    .await?;
    let Some(row) = row.filter(|_| found.is_none()) else { return Ok(found) };
    scan(
        store,
        partition,
        row.start.max(Offset(row.tail.0.saturating_sub(SCAN_MAX))),
        row.tail,
        transaction_id,
    )
    .await
}

/// The message at a place, if it is kept.
pub async fn read_one(
    store: &Arc<dyn Store>,
    partition: PartitionId,
    offset: Offset,
) -> Result<Option<MessageView>, Error> {
    let segments = store.read(partition, offset, offset.plus(1), 0).await?;
    match segments.first() {
        Some(segment) => Ok(segment.message(offset).map_err(baton_store::Error::from)?),
        None => Ok(None),
    }
}

/// Reads a range for a message; the last one of that id counts.
async fn scan(
    store: &Arc<dyn Store>,
    partition: PartitionId,
    mut from: Offset,
    to: Offset,
    transaction_id: &str,
) -> Result<Option<MessageView>, Error> {
    let start = from;
    let mut found = None;
    while from < to {
        let segments = store.read(partition, from, to, SCAN_BYTES).await?;
        let Some(last) = segments.last() else { break };
        from = last.end();
        for message in segments.iter().flat_map(|segment| segment.messages()) {
            let message = message.map_err(baton_store::Error::from)?;
            if message.offset >= start && message.is_known_as(transaction_id) {
                found = Some(message);
            }
        }
    }
    Ok(found)
}
