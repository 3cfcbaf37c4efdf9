//! From transaction id to offset: which message an ack means.
//!
//! An ack names a message by its partition and transaction id. Most acks are for messages delivered a moment
//! ago, so each delivery is remembered by lease; the rest is found from the id itself, from the remembered ids,
//! or by reading what the group may hold ([`find_held`]). Always: what acks read is bounded, and read once per call.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_store::{Error as StoreError, Store, StoredMessage, run};
use baton_types::{IdHash, LeaseId, MessageId, Offset, PartitionId, limits, transaction_hash};
use rustc_hash::FxHashMap;

use crate::Error;
use crate::rules::ack::{AckItem, LeaseClaim, Resolved};
use crate::rules::cursor::current_cursor;

/// Delivered messages that are remembered; beyond that the oldest deliveries are forgotten and looked up anew.
const DELIVERED_MAX: usize = 1_000_000;
/// Leases that are gone may keep so many places in the order, and as many as there are leases that live.
const ORDER_SLACK: usize = 64;
/// Bytes read at a time while looking through a partition.
const SCAN_BYTES: usize = 4 << 20;
/// Messages looked through before giving up.
const SCAN_MAX: u64 = 1_000_000;
/// Messages before and behind a group's place that acks without a known lease are looked for among.
const HELD_MAX: u64 = limits::POP_BATCH_MAX as u64;
/// Bytes of them that are read.
const HELD_BYTES_MAX: usize = 2 * limits::POP_BYTES_MAX;

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
    messages: Vec<(u64, Offset)>,
}

impl Deliveries {
    /// Remembers what was delivered of one partition.
    pub fn add(&self, lease: LeaseId, partition: PartitionId, messages: &[StoredMessage]) {
        let mut delivered: Vec<_> = messages.iter().map(|message| (hash(message), message.offset)).collect();
        delivered.sort_unstable();
        let mut inner = self.lock();
        let Inner { by_lease, order, messages: count } = &mut *inner;
        *count += delivered.len();
        let parts = by_lease.entry(lease).or_insert_with(|| {
            order.push_back(lease);
            Vec::new()
        });
        parts.push(Delivered { partition, messages: delivered });
        while inner.messages > DELIVERED_MAX {
            let Some(oldest) = inner.order.pop_front() else { break };
            inner.forget(oldest);
        }
    }

    /// The message that an ack means, with its namesakes, if it is known here.
    pub fn find(&self, item: AckItem) -> Resolved {
        let mut resolved = Resolved { item, offset: None, namesakes: Vec::new(), by_server: false };
        let item = &resolved.item;
        let (LeaseClaim::Held(lease), Some(partition)) = (item.lease, item.partition) else {
            return resolved;
        };
        let hash = transaction_hash(item.transaction_id.as_bytes());
        let inner = self.lock();
        let mut parts = inner.by_lease.get(&lease).into_iter().flatten();
        if let Some(part) = parts.find(|part| part.partition == partition) {
            let at = part.messages.partition_point(|(other, _)| *other < hash);
            let mut offsets = part.messages[at..].iter().take_while(|(other, _)| *other == hash);
            resolved.offset = offsets.next().map(|(_, offset)| *offset);
            resolved.namesakes.extend(offsets.map(|(_, offset)| *offset));
        }
        resolved
    }

    /// Whether it is known what was delivered of a partition.
    fn knows(&self, lease: LeaseId, partition: PartitionId) -> bool {
        self.lock().by_lease.get(&lease).is_some_and(|parts| parts.iter().any(|p| p.partition == partition))
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
        // Leases that are gone leave their place in the order behind, which is cleared once it is mostly those.
        let Inner { by_lease, order, .. } = &mut *inner;
        if order.len() > ORDER_SLACK + 2 * by_lease.len() {
            order.retain(|lease| by_lease.contains_key(lease));
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

fn hash(message: &StoredMessage) -> u64 {
    match &message.transaction_id {
        Some(id) => transaction_hash(id),
        None => message.id().as_transaction_hash(),
    }
}

/// Finds a kept message, reading through the partition if need be.
pub async fn find_stored(
    store: &Arc<dyn Store>,
    partition: PartitionId,
    transaction_id: &str,
) -> Result<Option<StoredMessage>, Error> {
    if let Some(found) = find_indexed(store, partition, transaction_id).await? {
        return Ok(Some(found));
    }
    let Some(row) = run(&**store, move |tx| tx.partition_by_id(partition)).await? else { return Ok(None) };
    let from = row.start.max(Offset(row.tail.0.saturating_sub(SCAN_MAX)));
    let mut found = None;
    scan(store, partition, (from, row.tail), usize::MAX, |message| {
        if message.has_transaction_id(transaction_id) {
            found = Some(message);
        }
    })
    .await?;
    Ok(found)
}

/// Finds a message by its own id, or by a transaction id that is still remembered.
pub async fn find_indexed(
    store: &Arc<dyn Store>,
    partition: PartitionId,
    transaction_id: &str,
) -> Result<Option<StoredMessage>, Error> {
    if let Some((named, offset)) = transaction_id.parse::<MessageId>().ok().and_then(MessageId::position)
        && named == partition
    {
        let found = read_one(store, partition, offset).await?;
        if let Some(message) = found.filter(|message| message.has_transaction_id(transaction_id)) {
            return Ok(Some(message));
        }
    }
    let text = transaction_id.to_string();
    let found = run(&**store, move |tx| {
        let Some(row) = tx.partition_by_id(partition)? else { return Ok(None) };
        let Some(known) = tx.find_remembered(partition, IdHash::new(text.as_bytes()))? else {
            return Ok(None);
        };
        let offset = known.offset;
        let message = tx.message(partition, offset)?;
        Ok(message.filter(|message| offset >= row.start && message.has_transaction_id(&text)))
    });
    Ok(found.await?)
}

/// Finds the messages of acks whose ids are not remembered: among those that the live lease holds, then among
/// those around the group's place.
pub async fn find_held(
    store: &Arc<dyn Store>,
    deliveries: &Deliveries,
    acks: &mut [Resolved],
) -> Result<(), Error> {
    let mut places: BTreeMap<(PartitionId, String), Vec<usize>> = BTreeMap::new();
    for (index, ack) in acks.iter().enumerate().filter(|(_, ack)| ack.offset.is_none()) {
        let Some(partition) = ack.item.partition else { continue };
        places.entry((partition, ack.item.group.clone())).or_default().push(index);
    }
    for ((partition, group), mut wanted) in places {
        let Some(held) = held(store, partition, group).await? else { continue };
        if let Some(lease) = held.lease.filter(|lease| !deliveries.knows(*lease, partition)) {
            let mut messages = Vec::new();
            scan(store, partition, held.range, HELD_BYTES_MAX, |message| messages.push(message)).await?;
            deliveries.add(lease, partition, &messages);
            for index in &wanted {
                acks[*index] = deliveries.find(acks[*index].item.clone());
            }
            wanted.retain(|index| acks[*index].offset.is_none());
        }
        let mut by_hash: FxHashMap<u64, Vec<usize>> = FxHashMap::default();
        for index in wanted {
            let hash = transaction_hash(acks[index].item.transaction_id.as_bytes());
            by_hash.entry(hash).or_default().push(index);
        }
        if by_hash.is_empty() {
            continue;
        }
        scan(store, partition, held.around, HELD_BYTES_MAX, |message| {
            for index in by_hash.get(&hash(&message)).into_iter().flatten() {
                if message.has_transaction_id(&acks[*index].item.transaction_id) {
                    acks[*index].offset = Some(message.offset);
                }
            }
        })
        .await?;
    }
    Ok(())
}

/// What a group may hold of a partition.
struct HeldRange {
    /// The live lease.
    lease: Option<LeaseId>,
    /// What it holds.
    range: (Offset, Offset),
    /// What was or will be held about now.
    around: (Offset, Offset),
}

async fn held(
    store: &Arc<dyn Store>,
    partition: PartitionId,
    group: String,
) -> Result<Option<HeldRange>, Error> {
    let held = run(&**store, move |tx| {
        let Some(row) = tx.partition_by_id(partition)? else { return Ok(None) };
        let Some(queue) = tx.queue_by_id(row.queue)? else { return Ok(None) };
        let Some(group) = tx.group(queue.id, &group)? else { return Ok(None) };
        let cursor = current_cursor(tx, &group, &row)?;
        let live = cursor.lease.as_ref().filter(|lease| lease.until > tx.now());
        let end = live.map_or(cursor.next, |lease| lease.end);
        let from = Offset(cursor.next.0.saturating_sub(HELD_MAX)).max(row.start);
        let around = (from, end.max(cursor.next.plus(HELD_MAX)).min(row.tail));
        let lease = live.map(|lease| lease.id);
        Ok(Some(HeldRange { lease, range: (cursor.next, end.min(row.tail)), around }))
    });
    Ok(held.await?)
}

/// The message at a place, if it is kept.
pub async fn read_one(
    store: &Arc<dyn Store>,
    partition: PartitionId,
    offset: Offset,
) -> Result<Option<StoredMessage>, Error> {
    let segments = store.read(partition, offset, offset.plus(1), 0).await?;
    match segments.first() {
        Some(segment) => Ok(segment.message(offset).map_err(baton_store::Error::from)?),
        None => Ok(None),
    }
}

/// Reads a range, or about `bytes_max` of it, message by message.
async fn scan(
    store: &Arc<dyn Store>,
    partition: PartitionId,
    (start, end): (Offset, Offset),
    bytes_max: usize,
    mut each: impl FnMut(StoredMessage),
) -> Result<(), Error> {
    let (mut from, mut bytes) = (start, 0);
    while from < end && bytes < bytes_max {
        let segments = store.read(partition, from, end, SCAN_BYTES).await?;
        let Some(last) = segments.last() else { break };
        from = last.end();
        for message in segments.iter().flat_map(|segment| segment.messages()) {
            let message = message.map_err(StoreError::from)?;
            bytes += message.payload.len();
            if message.offset >= start && message.offset < end {
                each(message);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lease_that_stays_does_not_keep_those_that_go() {
        let (deliveries, partition) = (Deliveries::default(), PartitionId(1));
        let message = StoredMessage {
            partition,
            offset: Offset(0),
            created_at: baton_types::Timestamp::MIN,
            transaction_id: Some("a".into()),
            trace_id: None,
            producer: None,
            payload: "1".into(),
        };
        let stays = baton_env::fresh_lease();
        deliveries.add(stays, partition, std::slice::from_ref(&message));
        for _ in 0..10_000 {
            let goes = baton_env::fresh_lease();
            deliveries.add(goes, partition, std::slice::from_ref(&message));
            deliveries.remove(goes, partition);
        }
        assert!(deliveries.lock().order.len() <= ORDER_SLACK + 2);
        assert!(deliveries.lock().by_lease.contains_key(&stays));
    }
}
