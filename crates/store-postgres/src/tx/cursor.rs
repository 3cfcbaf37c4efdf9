//! A group in a partition: its place, its lease, and its turn in line.

use std::collections::BTreeSet;

use baton_store::{Cursor, Durability, Event, Stop};
use baton_types::{GroupId, LeaseId, PartitionId, Timestamp};

use super::{PostgresTx, SPARE_ROWS};
use crate::clock::number_of;
use crate::memory::{Entry, Line};
use crate::slot::Slot;

pub fn get(tx: &mut PostgresTx<'_>, group: GroupId, partition: PartitionId) -> Result<Option<Cursor>, Stop> {
    if tx.memory.structure.group_by_id(group).is_none() || tx.row(partition)?.is_none() {
        return Ok(None);
    }
    let Some(entry) = tx.memory.entry(partition) else { return Ok(None) };
    match entry.slots.get(&group) {
        Some(slot) => Ok(slot.written.then(|| slot.cursor.clone())),
        None if entry.complete => Ok(None),
        None => {
            tx.memory.wanted.partitions.insert(partition);
            Err(Stop::Load)
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
    tx.write(durability);
    let Some(start) = tx.memory.structure.group_by_id(group).map(|group| group.start) else { return };
    let known = |entry: &Entry| entry.held && (entry.complete || entry.slots.contains_key(&group));
    if !tx.memory.entry(partition).is_some_and(known) {
        tx.need(partition);
    }
    let Some(entry) = tx.memory.entry(partition) else { return };
    let (row, old) = (entry.row.clone(), entry.slots.get(&group).cloned().unwrap_or_default());
    let mut slot = Slot { cursor, written: true, placed: false, line: old.line };
    slot.line = tx.memory.place(&slot, start, &row, true);
    let (now, free) = (tx.memory.now, slot.cursor.available_at);
    if slot.line.is_some() && free <= now && (old.line.is_none() || old.cursor.available_at > now) {
        tx.memory.tell(Event::Freed { queue: row.queue, group, partition });
    }
    tx.memory.put_slot(partition, group, slot);
}

pub fn candidates(tx: &mut PostgresTx<'_>, group: GroupId, limit: usize) -> Result<Vec<PartitionId>, Stop> {
    if tx.memory.structure.group_by_id(group).is_none() || limit == 0 {
        return Ok(Vec::new());
    }
    let (until, now) = (number_of(tx.memory.clock.last()), tx.memory.now);
    let line = tx.memory.lines.entry(group).or_default();
    let Line { covered, asked, is_carried, .. } = *line;
    let places = line.places.range(..=(until.min(covered), PartitionId(u64::MAX)));
    let places: Vec<PartitionId> = places.map(|(_, partition)| *partition).collect();
    let available = |id: &PartitionId| {
        let slot = tx.memory.entry(*id).and_then(|entry| entry.slots.get(&group));
        slot.is_some_and(|slot| slot.cursor.available_at <= now)
    };
    let found: Vec<PartitionId> = places.into_iter().filter(available).take(limit).collect();
    if found.len() < limit && covered < until {
        let ready = tx.memory.wanted.ready.entry(group).or_insert(asked);
        *ready += limit;
        tx.memory.wanted.later.entry(group).or_insert(SPARE_ROWS);
        return Err(Stop::Load);
    }
    tx.memory.relied.extend(&found);
    tx.memory.relies_on_lines |= is_carried && found.len() < limit;
    Ok(found)
}

pub fn next_available(tx: &mut PostgresTx<'_>, group: GroupId) -> Result<Option<Timestamp>, Stop> {
    if tx.memory.structure.group_by_id(group).is_none() {
        return Ok(None);
    }
    let until = number_of(tx.memory.now);
    // What was carried over of those that are here is believed: if it is out of date, somebody looks again a moment
    // too late or in vain, and that is cheaper than comparing all who wait.
    let here = |id: &PartitionId| tx.memory.partitions.contains_key(id);
    let line = tx.memory.lines.get(&group);
    let Some(later) = line.and_then(|line| line.later.as_ref()) else {
        tx.memory.wanted.later.entry(group).or_insert(SPARE_ROWS);
        return Err(Stop::Load);
    };
    tx.memory.relies_on_lines |= line.is_some_and(|line| line.is_carried);
    let stored = later.places.iter().find(|(place, id)| *place > until && !here(id));
    if stored.is_none() && !later.all {
        let asked = later.places.len() * 2;
        tx.memory.wanted.later.insert(group, asked);
        return Err(Stop::Load);
    }
    let now = tx.memory.now;
    let waits = |id: &PartitionId| {
        let slot = tx.memory.entry(*id).and_then(|entry| entry.slots.get(&group))?;
        Some(slot.cursor.available_at).filter(|at| *at > now)
    };
    let places = line.into_iter().flat_map(|line| line.places.range((until, PartitionId(u64::MAX))..));
    let here = places.filter_map(|(_, id)| waits(id)).next();
    Ok(stored.map(|(place, _)| Timestamp::from_micros(*place)).into_iter().chain(here).min())
}

pub fn leased(tx: &mut PostgresTx<'_>, lease: LeaseId) -> Result<Vec<(GroupId, PartitionId)>, Stop> {
    let Some(stored) = tx.memory.leases.get(&lease).cloned() else {
        tx.memory.wanted.leases.insert(lease);
        return Err(Stop::Load);
    };
    let mut all = true;
    for partition in &stored {
        all &= tx.memory.has_all_of(*partition);
    }
    if !all {
        return Err(Stop::Load);
    }
    let mut held = Vec::new();
    let changed = tx.memory.changed.partitions.iter().copied();
    for id in stored.into_iter().chain(changed).collect::<BTreeSet<_>>() {
        let Some(entry) = tx.memory.entry(id) else { continue };
        for (group, slot) in &entry.slots {
            let holds = slot.cursor.lease.as_ref().is_some_and(|held| held.id == lease);
            if holds && tx.memory.structure.group_by_id(*group).is_some() {
                held.push((*group, id));
            }
        }
    }
    held.sort_unstable();
    Ok(held)
}
