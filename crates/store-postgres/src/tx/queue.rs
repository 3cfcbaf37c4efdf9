//! Queues as a whole.

use std::sync::Arc;

use baton_store::{Durability, Queue, QueueSpec, Stop, Tx};
use baton_types::{PartitionId, QueueId};

use super::PostgresTx;
use crate::memory;

pub fn put(tx: &mut PostgresTx<'_>, spec: QueueSpec) -> Result<Arc<Queue>, Stop> {
    let old = tx.memory.structure.queue(&spec.name);
    let queue = Arc::new(match &old {
        Some(old) => Queue { spec, ..(**old).clone() },
        None => Queue { id: QueueId(tx.fresh_id()), created_at: tx.now(), spec },
    });
    tx.write(Durability::Now);
    let id = queue.id;
    tx.memory.structure.put_queue(queue.clone());
    tx.memory.changed.queues.insert(id);
    if old.is_none() {
        tx.memory.all_of.insert(id);
    }
    tx.memory.undo(move |memory| match old {
        Some(old) => drop(memory.structure.put_queue(old)),
        None => drop(memory.structure.remove_queue(id)),
    });
    Ok(queue)
}

pub fn remove(tx: &mut PostgresTx<'_>, id: QueueId) {
    tx.write(Durability::Now);
    let of_queue: Vec<PartitionId> = tx.memory.entries_of(id).map(|entry| entry.row.id).collect();
    for partition in of_queue {
        tx.memory.put_entry(partition, None);
    }
    let (queue, groups) = tx.memory.structure.remove_queue(id);
    let Some(queue) = queue else { return };
    tx.memory.changed.queues.insert(id);
    tx.memory.changed.groups.extend(groups.iter().map(|group| group.id));
    tx.memory.undo(move |memory| {
        memory.structure.put_queue(queue);
        for group in groups {
            memory.structure.put_group(group);
        }
    });
}

pub fn kept(tx: &mut PostgresTx<'_>, queue: QueueId) -> Result<u64, Stop> {
    if !tx.memory.structure.has_queue(queue) {
        return Ok(0);
    }
    if tx.memory.all_of.contains(&queue) {
        return Ok(tx.memory.entries_of(queue).map(|entry| memory::kept(&entry.row)).sum());
    }
    let Some(stored) = tx.memory.kept.get(&queue).copied() else {
        tx.memory.wanted.kept.insert(queue);
        return Err(Stop::Load);
    };
    let now: u64 = tx.memory.changed_of(queue).map(|entry| memory::kept(&entry.row)).sum();
    let stored_before = tx.memory.changed_of(queue).filter(|entry| !entry.fresh);
    let before: u64 = stored_before.map(|entry| memory::kept(&entry.original)).sum();
    Ok((stored + now).saturating_sub(before))
}
