//! Groups of a queue as a whole.

use std::sync::Arc;

use baton_store::{Durability, Group, GroupSpec, Start, Stop};
use baton_types::{GroupId, PartitionId, QueueId};

use super::PostgresTx;
use crate::memory::{Entry, Later, Line};
use crate::slot::Slot;

pub fn put(tx: &mut PostgresTx<'_>, queue: QueueId, spec: &GroupSpec<'_>) -> Arc<Group> {
    let id = GroupId(tx.fresh_id());
    let (name, start, subscribed_at) = (spec.name.into(), spec.start, spec.subscribed_at);
    let group = Arc::new(Group { id, queue, name, start, subscribed_at, conflation: spec.conflation });
    tx.write(Durability::Now);
    if !tx.memory.structure.has_queue(queue) {
        return group;
    }
    tx.need_whole(queue);
    tx.memory.close_open();
    let replaced = tx.memory.structure.put_group(group.clone());
    tx.memory.changed.groups.insert(id);
    tx.memory.changed.groups.extend(replaced.as_ref().map(|replaced| replaced.id));
    let later = Some(Later { places: Vec::new(), all: true });
    tx.memory.lines.insert(id, Line { covered: i64::MAX, later, ..Line::default() });
    tx.memory.undo(move |memory| {
        memory.structure.remove_group(id);
        if let Some(replaced) = replaced {
            memory.structure.put_group(replaced);
        }
    });
    begin(tx, &group);
    group
}

pub fn set_start(tx: &mut PostgresTx<'_>, id: GroupId, start: Start) {
    tx.write(Durability::Now);
    let Some(old) = tx.memory.structure.group_by_id(id) else { return };
    tx.need_whole(old.queue);
    tx.memory.close_open();
    let group = Arc::new(Group { start, ..(*old).clone() });
    tx.memory.structure.put_group(group.clone());
    tx.memory.changed.groups.insert(id);
    tx.memory.undo(move |memory| drop(memory.structure.put_group(old)));
    begin(tx, &group);
}

pub fn remove(tx: &mut PostgresTx<'_>, id: GroupId) {
    tx.write(Durability::Now);
    let Some(group) = tx.memory.structure.remove_group(id) else { return };
    tx.memory.changed.groups.insert(id);
    tx.memory.undo(move |memory| drop(memory.structure.put_group(group)));
}

pub fn backlog(tx: &mut PostgresTx<'_>, group: GroupId) -> Result<u64, Stop> {
    let Some(row) = tx.memory.structure.group_by_id(group) else { return Ok(0) };
    let unfinished =
        |entry: &Entry| entry.slots.get(&group).map_or(0, |slot| slot.unfinished(row.start, &entry.row));
    if tx.memory.all_of.contains(&row.queue) {
        return Ok(tx.memory.entries_of(row.queue).map(unfinished).sum());
    }
    let Some(stored) = tx.memory.backlogs.get(&group).copied() else {
        tx.memory.wanted.backlogs.insert(group);
        return Err(Stop::Load);
    };
    let (mut more, mut less) = (0, 0);
    for entry in tx.memory.changed_of(row.queue) {
        more += unfinished(entry);
        less += entry.original_unfinished.get(&group).copied().unwrap_or(0);
    }
    Ok((stored + more).saturating_sub(less))
}

/// Gives every partition of a queue a slot for a group that begins, or begins elsewhere.
fn begin(tx: &mut PostgresTx<'_>, group: &Group) {
    let of_queue: Vec<PartitionId> = tx.memory.entries_of(group.queue).map(|entry| entry.row.id).collect();
    for id in of_queue {
        let Some(entry) = tx.memory.entry(id) else { continue };
        let old = entry.slots.get(&group.id);
        if old.is_some_and(|slot| slot.written) {
            continue;
        }
        let (row, existed) = (entry.row.clone(), old.is_some());
        let mut slot = Slot { line: old.and_then(|slot| slot.line), ..Slot::default() };
        slot.line = tx.memory.place(&slot, group.start, &row, false);
        if existed || slot.line.is_some() {
            tx.memory.put_slot(id, group.id, slot);
        }
    }
}
