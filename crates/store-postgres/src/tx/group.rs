//! Consumer groups.

use std::sync::Arc;

use baton_store::{Durability, Group, GroupSpec, GroupStart, TxError};
use baton_types::{GroupId, PartitionId, QueueId};

use super::PostgresTx;
use crate::state::batch::{PartitionEntry, ReadyIndex, UpcomingEntries};
use crate::state::group_slot::GroupSlot;

pub fn put(tx: &mut PostgresTx<'_>, queue: QueueId, spec: &GroupSpec<'_>) -> Arc<Group> {
    let id = GroupId(tx.fresh_id());
    let (name, start, subscribed_at) = (spec.name.into(), spec.start, spec.subscribed_at);
    let group = Arc::new(Group { id, queue, name, start, subscribed_at, conflation: spec.conflation });
    tx.mark_write(Durability::Now);
    if !tx.batch.catalog.has_queue(queue) {
        return group;
    }
    tx.require_whole_queue(queue);
    tx.batch.close_open_segments();
    let replaced = tx.batch.catalog.put_group(group.clone());
    tx.batch.writes.groups.insert(id);
    tx.batch.writes.groups.extend(replaced.as_ref().map(|replaced| replaced.id));
    let later = Some(UpcomingEntries { entries: Vec::new(), is_complete: true });
    tx.batch
        .ready_indexes
        .insert(id, ReadyIndex { complete_up_to: i64::MAX, upcoming: later, ..ReadyIndex::default() });
    tx.batch.push_undo(move |batch| {
        batch.catalog.remove_group(id);
        if let Some(replaced) = replaced {
            batch.catalog.put_group(replaced);
        }
    });
    add_initial_slots(tx, &group);
    group
}

pub fn set_start(tx: &mut PostgresTx<'_>, id: GroupId, start: GroupStart) {
    tx.mark_write(Durability::Now);
    let Some(old) = tx.batch.catalog.group_by_id(id) else { return };
    tx.require_whole_queue(old.queue);
    tx.batch.close_open_segments();
    let group = Arc::new(Group { start, ..(*old).clone() });
    tx.batch.catalog.put_group(group.clone());
    tx.batch.writes.groups.insert(id);
    tx.batch.push_undo(move |batch| drop(batch.catalog.put_group(old)));
    add_initial_slots(tx, &group);
}

pub fn remove(tx: &mut PostgresTx<'_>, id: GroupId) {
    tx.mark_write(Durability::Now);
    let Some(group) = tx.batch.catalog.remove_group(id) else { return };
    tx.batch.writes.groups.insert(id);
    tx.batch.push_undo(move |batch| drop(batch.catalog.put_group(group)));
}

pub fn backlog(tx: &mut PostgresTx<'_>, group: GroupId) -> Result<u64, TxError> {
    let Some(row) = tx.batch.catalog.group_by_id(group) else { return Ok(0) };
    let unfinished = |entry: &PartitionEntry| {
        entry.slots.get(&group).map_or(0, |slot| slot.unfinished_count(row.start, &entry.row))
    };
    if tx.batch.whole_queues.contains(&row.queue) {
        return Ok(tx.batch.partitions_of(row.queue).map(unfinished).sum());
    }
    let Some(stored) = tx.batch.backlogs.get(&group).copied() else {
        tx.batch.missing.backlogs.insert(group);
        return Err(TxError::RowsMissing);
    };
    let (mut more, mut less) = (0, 0);
    for entry in tx.batch.changed_partitions_of(row.queue) {
        more += unfinished(entry);
        less += entry.original_unfinished.get(&group).copied().unwrap_or(0);
    }
    Ok((stored + more).saturating_sub(less))
}

/// Adds or updates a slot in every partition of a queue, for a group that is new or has a new start.
fn add_initial_slots(tx: &mut PostgresTx<'_>, group: &Group) {
    let of_queue: Vec<PartitionId> = tx.batch.partitions_of(group.queue).map(|entry| entry.row.id).collect();
    for id in of_queue {
        let Some(entry) = tx.batch.entry(id) else { continue };
        let old = entry.slots.get(&group.id);
        if old.is_some_and(|slot| slot.is_written) {
            continue;
        }
        let (row, existed) = (entry.row.clone(), old.is_some());
        let mut slot = GroupSlot { ready_at: old.and_then(|slot| slot.ready_at), ..GroupSlot::default() };
        slot.ready_at = tx.batch.ready_at_after_change(&slot, group.start, &row, false);
        if existed || slot.ready_at.is_some() {
            tx.batch.put_slot(id, group.id, slot);
        }
    }
}
