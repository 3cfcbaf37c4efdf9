//! Cursors: a group's position, lease and ready time in a partition.

use std::collections::BTreeSet;

use baton_store::{Cursor, Durability, Event, TxError};
use baton_types::{GroupId, LeaseId, PartitionId, Timestamp};

use super::{PostgresTx, SPARE_ROWS};
use crate::state::batch::{PartitionEntry, ReadyIndex};
use crate::state::group_slot::GroupSlot;
use crate::state::hybrid_clock::to_number;

pub fn get(
    tx: &mut PostgresTx<'_>,
    group: GroupId,
    partition: PartitionId,
) -> Result<Option<Cursor>, TxError> {
    if tx.batch.catalog.group_by_id(group).is_none() || tx.read_partition(partition)?.is_none() {
        return Ok(None);
    }
    let Some(entry) = tx.batch.entry(partition) else { return Ok(None) };
    match entry.slots.get(&group) {
        Some(slot) => Ok(slot.is_written.then(|| slot.cursor.clone())),
        None if entry.has_all_slots => Ok(None),
        None => {
            tx.batch.missing.partitions.insert(partition);
            Err(TxError::RowsMissing)
        }
    }
}

pub fn put(
    tx: &mut PostgresTx<'_>,
    group: GroupId,
    partition: PartitionId,
    cursor: Cursor,
    durability: Durability,
) {
    tx.mark_write(durability);
    let Some(start) = tx.batch.catalog.group_by_id(group).map(|group| group.start) else { return };
    let known = |entry: &PartitionEntry| {
        entry.is_guarded && (entry.has_all_slots || entry.slots.contains_key(&group))
    };
    if !tx.batch.entry(partition).is_some_and(known) {
        tx.require_partition(partition);
    }
    let Some(entry) = tx.batch.entry(partition) else { return };
    let (row, old) = (entry.row.clone(), entry.slots.get(&group).cloned().unwrap_or_default());
    let mut slot = GroupSlot { cursor, is_written: true, is_placed: false, ready_at: old.ready_at };
    slot.ready_at = tx.batch.ready_at_after_change(&slot, start, &row, true);
    let (now, free) = (tx.batch.now, slot.cursor.available_at);
    if slot.ready_at.is_some() && free <= now && (old.ready_at.is_none() || old.cursor.available_at > now) {
        tx.batch.record_event(Event::Freed { queue: row.queue, group, partition });
    }
    tx.batch.put_slot(partition, group, slot);
}

pub fn candidates(
    tx: &mut PostgresTx<'_>,
    group: GroupId,
    limit: usize,
) -> Result<Vec<PartitionId>, TxError> {
    if tx.batch.catalog.group_by_id(group).is_none() || limit == 0 {
        return Ok(Vec::new());
    }
    let (until, now) = (to_number(tx.batch.clock.last()), tx.batch.now);
    let index = tx.batch.ready_indexes.entry(group).or_default();
    let ReadyIndex { complete_up_to: covered, requested: asked, is_cached: is_carried, .. } = *index;
    let keys = index.entries.range(..=(until.min(covered), PartitionId(u64::MAX)));
    let keys: Vec<PartitionId> = keys.map(|(_, partition)| *partition).collect();
    let available = |id: &PartitionId| {
        let slot = tx.batch.entry(*id).and_then(|entry| entry.slots.get(&group));
        slot.is_some_and(|slot| slot.cursor.available_at <= now)
    };
    let found: Vec<PartitionId> = keys.into_iter().filter(available).take(limit).collect();
    if found.len() < limit && covered < until {
        let ready = tx.batch.missing.ready.entry(group).or_insert(asked);
        *ready += limit;
        tx.batch.missing.upcoming.entry(group).or_insert(SPARE_ROWS);
        return Err(TxError::RowsMissing);
    }
    tx.batch.read_partitions.extend(&found);
    tx.batch.reads_ready_index |= is_carried && found.len() < limit;
    Ok(found)
}

pub fn next_available(tx: &mut PostgresTx<'_>, group: GroupId) -> Result<Option<Timestamp>, TxError> {
    if tx.batch.catalog.group_by_id(group).is_none() {
        return Ok(None);
    }
    let until = to_number(tx.batch.now);
    // Cached entries are used without validation here. If they are out of date, a waiting pop rechecks a
    // moment too late or for nothing. That is cheaper than a conflict among all that wait.
    let here = |id: &PartitionId| tx.batch.partitions.contains_key(id);
    let index = tx.batch.ready_indexes.get(&group);
    let Some(later) = index.and_then(|index| index.upcoming.as_ref()) else {
        tx.batch.missing.upcoming.entry(group).or_insert(SPARE_ROWS);
        return Err(TxError::RowsMissing);
    };
    tx.batch.reads_ready_index |= index.is_some_and(|index| index.is_cached);
    let stored = later.entries.iter().find(|(key, id)| *key > until && !here(id));
    if stored.is_none() && !later.is_complete {
        let asked = later.entries.len() * 2;
        tx.batch.missing.upcoming.insert(group, asked);
        return Err(TxError::RowsMissing);
    }
    let now = tx.batch.now;
    let waits = |id: &PartitionId| {
        let slot = tx.batch.entry(*id).and_then(|entry| entry.slots.get(&group))?;
        Some(slot.cursor.available_at).filter(|at| *at > now)
    };
    let keys = index.into_iter().flat_map(|index| index.entries.range((until, PartitionId(u64::MAX))..));
    let here = keys.filter_map(|(_, id)| waits(id)).next();
    Ok(stored.map(|(key, _)| Timestamp::from_micros(*key)).into_iter().chain(here).min())
}

pub fn leased(tx: &mut PostgresTx<'_>, lease: LeaseId) -> Result<Vec<(GroupId, PartitionId)>, TxError> {
    let Some(stored) = tx.batch.leases.get(&lease).cloned() else {
        tx.batch.missing.leases.insert(lease);
        return Err(TxError::RowsMissing);
    };
    let mut all = true;
    for partition in &stored {
        all &= tx.batch.prepare_to_change(*partition);
    }
    if !all {
        return Err(TxError::RowsMissing);
    }
    let mut held = Vec::new();
    let changed = tx.batch.writes.partitions.iter().copied();
    for id in stored.into_iter().chain(changed).collect::<BTreeSet<_>>() {
        let Some(entry) = tx.batch.entry(id) else { continue };
        for (group, slot) in &entry.slots {
            let holds = slot.cursor.lease.as_ref().is_some_and(|held| held.id == lease);
            if holds && tx.batch.catalog.group_by_id(*group).is_some() {
                held.push((*group, id));
            }
        }
    }
    held.sort_unstable();
    Ok(held)
}
