//! The catalog: all queues and groups. Every decision reads them and few change them, so each server keeps
//! all of them in memory.
//!
//! The catalog has a version in the database. Each batch validates the version and reads the catalog anew
//! when it has changed; a batch that changes the catalog validates it once more while writing.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_store::{Group, Queue};
use baton_types::{GroupId, QueueId, Timestamp};
use rustc_hash::FxHashMap;

/// All queues and groups.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    queues: FxHashMap<QueueId, Arc<Queue>>,
    queue_ids: FxHashMap<Arc<str>, QueueId>,
    groups: FxHashMap<GroupId, Arc<Group>>,
    group_ids: FxHashMap<QueueId, BTreeMap<Arc<str>, GroupId>>,
    /// The latest time that was ever in it, cached because each batch reads it.
    latest: Option<Timestamp>,
}

impl Catalog {
    pub fn queue(&self, name: &str) -> Option<Arc<Queue>> {
        self.queue_ids.get(name).and_then(|id| self.queue_by_id(*id))
    }

    pub fn queue_by_id(&self, id: QueueId) -> Option<Arc<Queue>> {
        self.queues.get(&id).cloned()
    }

    pub fn has_queue(&self, id: QueueId) -> bool {
        self.queues.contains_key(&id)
    }

    pub fn queue_count(&self) -> u64 {
        self.queues.len() as u64
    }

    pub fn group_count(&self, queue: QueueId) -> u64 {
        self.group_ids.get(&queue).map_or(0, |groups| groups.len() as u64)
    }

    /// All queues, in the order of their creation.
    pub fn queues(&self) -> Vec<Arc<Queue>> {
        let mut queues: Vec<_> = self.queues.values().cloned().collect();
        queues.sort_by_key(|queue| (queue.created_at, queue.id));
        queues
    }

    /// Adds or changes a queue. Returns the previous one.
    pub fn put_queue(&mut self, queue: Arc<Queue>) -> Option<Arc<Queue>> {
        self.queue_ids.insert(queue.spec.name.clone(), queue.id);
        self.latest = self.latest.max(Some(queue.created_at));
        self.queues.insert(queue.id, queue)
    }

    /// Removes a queue with its groups.
    pub fn remove_queue(&mut self, id: QueueId) -> (Option<Arc<Queue>>, Vec<Arc<Group>>) {
        let Some(queue) = self.queues.remove(&id) else { return (None, Vec::new()) };
        if self.queue_ids.get(&queue.spec.name) == Some(&id) {
            self.queue_ids.remove(&queue.spec.name);
        }
        let groups = self.group_ids.remove(&id).unwrap_or_default();
        let groups = groups.into_values().filter_map(|group| self.groups.remove(&group)).collect();
        (Some(queue), groups)
    }

    pub fn group(&self, queue: QueueId, name: &str) -> Option<Arc<Group>> {
        self.group_ids.get(&queue)?.get(name).and_then(|id| self.group_by_id(*id))
    }

    pub fn group_by_id(&self, id: GroupId) -> Option<Arc<Group>> {
        self.groups.get(&id).cloned()
    }

    /// The groups of a queue, by name.
    pub fn groups(&self, queue: QueueId) -> Vec<Arc<Group>> {
        let ids = self.group_ids.get(&queue).into_iter().flat_map(BTreeMap::values);
        ids.filter_map(|id| self.group_by_id(*id)).collect()
    }

    /// How many groups the queue of this group has.
    pub fn sibling_group_count(&self, id: GroupId) -> usize {
        let of_queue = self.groups.get(&id).and_then(|group| self.group_ids.get(&group.queue));
        of_queue.map_or(1, |groups| groups.len().max(1))
    }

    /// Adds or changes a group. Returns the group with the same name and another number that it replaced.
    pub fn put_group(&mut self, group: Arc<Group>) -> Option<Arc<Group>> {
        self.latest = self.latest.max(Some(group.subscribed_at));
        let of_queue = self.group_ids.entry(group.queue).or_default();
        let replaced = of_queue.insert(group.name.clone(), group.id).filter(|id| *id != group.id);
        self.groups.insert(group.id, group);
        replaced.and_then(|id| self.groups.remove(&id))
    }

    pub fn remove_group(&mut self, id: GroupId) -> Option<Arc<Group>> {
        let group = self.groups.remove(&id)?;
        if let Some(of_queue) = self.group_ids.get_mut(&group.queue)
            && of_queue.get(&group.name) == Some(&id)
        {
            of_queue.remove(&group.name);
        }
        Some(group)
    }

    /// The latest time that was ever in it.
    pub fn latest_time(&self) -> Timestamp {
        self.latest.unwrap_or(Timestamp::MIN)
    }
}
