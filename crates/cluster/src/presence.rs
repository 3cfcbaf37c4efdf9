//! Presence: which groups wait on which server, for which queues.
//!
//! A push is forwarded to where a consumer waits; a notice of a push goes only to servers with waiters. Always:
//! announcements of other servers expire unless they are repeated; the memory for each server is bounded. A consumer
//! usually returns at once, so a group that has stopped waiting counts for another moment. Start at [`LocalWaiters`]
//! for this server and [`RemoteWaiters`] for the others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use baton_types::{GroupId, QueueId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::limits::{PRESENCE_EXPIRY, PRESENCE_LINGER, PRESENCE_MAX};
use crate::wire::WaitingGroup;

/// The groups that wait on this server.
#[derive(Debug, Default)]
pub struct LocalWaiters {
    /// With the time at which the wait ended, if it has.
    waiting: FxHashMap<(QueueId, GroupId), (u64, Option<Duration>)>,
    /// The groups that wait for a queue, by the hash of its name.
    names: FxHashMap<u64, FxHashSet<GroupId>>,
}

impl LocalWaiters {
    /// A group starts or stops waiting. Returns whether to announce that now.
    pub fn update(&mut self, now: Duration, waiting: WaitingGroup) -> bool {
        let key = (waiting.queue, waiting.group);
        if let Some((_, ended)) = self.waiting.get_mut(&key) {
            *ended = (!waiting.on).then_some(now);
            return false;
        }
        let is_new = waiting.on && self.waiting.len() < PRESENCE_MAX;
        if is_new {
            self.waiting.insert(key, (waiting.name, None));
            self.names.entry(waiting.name).or_default().insert(waiting.group);
        }
        is_new
    }

    /// Removes the groups that have stopped waiting for good.
    pub fn expire(&mut self, now: Duration) -> Vec<WaitingGroup> {
        let mut gone = Vec::new();
        self.waiting.retain(|(queue, group), (name, ended)| {
            let stays = ended.is_none_or(|at| now < at + PRESENCE_LINGER);
            if !stays {
                gone.push(WaitingGroup { queue: *queue, group: *group, name: *name, on: false });
            }
            stays
        });
        for waiting in &gone {
            if let Some(groups) = self.names.get_mut(&waiting.name) {
                groups.remove(&waiting.group);
                if groups.is_empty() {
                    self.names.remove(&waiting.name);
                }
            }
        }
        gone
    }

    /// All waiting groups, to announce them again.
    pub fn all(&self) -> Vec<WaitingGroup> {
        let waiting = |((queue, group), (name, _)): (&(QueueId, GroupId), &(u64, _))| WaitingGroup {
            queue: *queue,
            group: *group,
            name: *name,
            on: true,
        };
        self.waiting.iter().map(waiting).collect()
    }

    /// Whether a group waits for the queue whose name has this hash.
    pub fn has_waiters(&self, name: u64) -> bool {
        self.names.contains_key(&name)
    }

    /// The groups that wait for the queue.
    fn groups(&self, name: u64) -> impl Iterator<Item = GroupId> {
        self.names.get(&name).into_iter().flatten().copied()
    }
}

/// The hash of a queue's name, and when the wait of a group was last announced.
type ServerWaiters = FxHashMap<(QueueId, GroupId), (u64, Duration)>;

/// The groups that wait on other servers.
#[derive(Debug, Default)]
pub struct RemoteWaiters {
    servers: FxHashMap<Arc<str>, ServerWaiters>,
    /// Where groups wait for a queue, by the hash of its name.
    by_name: FxHashMap<u64, FxHashSet<(Arc<str>, QueueId, GroupId)>>,
    names: FxHashMap<QueueId, u64>,
}

impl RemoteWaiters {
    /// Applies an announcement of a server.
    pub fn apply_presence(&mut self, now: Duration, server: &Arc<str>, announced: &[WaitingGroup]) {
        for waiting in announced {
            let key = (waiting.queue, waiting.group);
            let places = self.servers.entry(Arc::clone(server)).or_default();
            if !waiting.on {
                if places.remove(&key).is_some() {
                    self.remove_from_index(server, waiting.name, key);
                }
            } else if places.len() < PRESENCE_MAX || places.contains_key(&key) {
                places.insert(key, (waiting.name, now));
                self.by_name.entry(waiting.name).or_default().insert((
                    Arc::clone(server),
                    waiting.queue,
                    waiting.group,
                ));
                self.names.insert(waiting.queue, waiting.name);
            }
        }
    }

    fn remove_from_index(&mut self, server: &Arc<str>, name: u64, (queue, group): (QueueId, GroupId)) {
        if let Some(places) = self.by_name.get_mut(&name) {
            places.remove(&(Arc::clone(server), queue, group));
            if places.is_empty() {
                self.by_name.remove(&name);
                self.names.remove(&queue);
            }
        }
    }

    /// Removes announcements that were not repeated.
    pub fn expire(&mut self, now: Duration) {
        let mut old = Vec::new();
        for (server, places) in &mut self.servers {
            places.retain(|key, (name, heard)| {
                let stays = now < *heard + PRESENCE_EXPIRY;
                if !stays {
                    old.push((Arc::clone(server), *name, *key));
                }
                stays
            });
        }
        for (server, name, key) in old {
            self.remove_from_index(&server, name, key);
        }
    }

    /// Removes a server.
    pub fn remove_server(&mut self, server: &Arc<str>) {
        for (key, (name, _)) in self.servers.remove(server).unwrap_or_default() {
            self.remove_from_index(server, name, key);
        }
    }

    /// Removes a queue.
    pub fn remove_queue(&mut self, queue: QueueId) {
        let Some(name) = self.names.get(&queue).copied() else { return };
        for places in self.servers.values_mut() {
            places.retain(|(other, _), _| *other != queue);
        }
        self.by_name.remove(&name);
        self.names.remove(&queue);
    }

    /// The servers on which groups wait for the queue whose name has this hash, by name.
    pub fn servers(&self, name: u64) -> BTreeSet<Arc<str>> {
        self.by_name.get(&name).into_iter().flatten().map(|(server, ..)| Arc::clone(server)).collect()
    }

    /// The servers to notify of an event in a queue: for a group, or for any.
    pub fn servers_to_notify(&self, queue: QueueId, group: Option<GroupId>) -> BTreeSet<Arc<str>> {
        let places = self.names.get(&queue).and_then(|name| self.by_name.get(name)).into_iter().flatten();
        let wanted = |(_, other, of): &&(Arc<str>, QueueId, GroupId)| {
            *other == queue && group.is_none_or(|group| group == *of)
        };
        places.filter(wanted).map(|(server, ..)| Arc::clone(server)).collect()
    }

    /// How many groups wait for a queue, here and elsewhere; counts up to `enough`.
    pub fn count_groups(&self, own: &LocalWaiters, name: u64, enough: usize) -> usize {
        let elsewhere = self.by_name.get(&name).into_iter().flatten().map(|(_, _, group)| *group);
        let mut groups = FxHashSet::default();
        for group in elsewhere.chain(own.groups(name)) {
            groups.insert(group);
            if groups.len() >= enough {
                break;
            }
        }
        groups.len()
    }

    /// How many groups wait on a server.
    pub fn count(&self, server: &str) -> usize {
        self.servers.get(server).map_or(0, ServerWaiters::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn waiting(queue: u64, group: u64, on: bool) -> WaitingGroup {
        WaitingGroup { queue: QueueId(queue), group: GroupId(group), name: queue + 100, on }
    }

    #[test]
    fn a_consumer_that_comes_back_at_once_was_never_away() {
        let mut own = LocalWaiters::default();
        assert!(own.update(at(0), waiting(1, 1, true)));
        assert!(!own.update(at(10), waiting(1, 1, false)));
        assert!(!own.update(at(20), waiting(1, 1, true)));
        assert!(own.expire(at(5000)).is_empty() && own.has_waiters(101));
        own.update(at(5000), waiting(1, 1, false));
        assert!(own.expire(at(5999)).is_empty());
        assert_eq!(own.expire(at(6000)), [waiting(1, 1, false)]);
        assert!(!own.has_waiters(101) && own.all().is_empty());
    }

    #[test]
    fn who_waits_elsewhere_is_known_until_it_is_not_told_again() {
        let (mut others, b): (_, Arc<str>) = (RemoteWaiters::default(), "b".into());
        others.apply_presence(at(0), &b, &[waiting(1, 1, true), waiting(1, 2, true), waiting(2, 1, true)]);
        assert_eq!(others.servers(101).into_iter().collect::<Vec<_>>(), [Arc::clone(&b)]);
        assert_eq!(others.servers_to_notify(QueueId(1), Some(GroupId(2))).len(), 1);
        assert_eq!(others.servers_to_notify(QueueId(1), Some(GroupId(3))).len(), 0);
        assert_eq!(others.count_groups(&LocalWaiters::default(), 101, 10), 2);
        others.apply_presence(at(6000), &b, &[waiting(1, 1, true), waiting(2, 1, false)]);
        assert!(others.servers(102).is_empty());
        others.expire(at(7000));
        assert_eq!(others.count_groups(&LocalWaiters::default(), 101, 10), 1);
        others.expire(at(14_000));
        assert!(others.servers(101).is_empty() && others.by_name.is_empty() && others.names.is_empty());
    }

    #[test]
    fn a_server_and_a_queue_are_forgotten_as_a_whole() {
        let (mut others, b): (_, Arc<str>) = (RemoteWaiters::default(), "b".into());
        others.apply_presence(at(0), &b, &[waiting(1, 1, true), waiting(2, 1, true)]);
        others.remove_queue(QueueId(1));
        assert!(others.servers(101).is_empty() && others.servers(102).len() == 1);
        others.remove_server(&b);
        assert!(others.servers(102).is_empty() && others.count("b") == 0);
    }

    #[test]
    fn of_one_server_only_so_much_is_kept() {
        let (mut others, b): (_, Arc<str>) = (RemoteWaiters::default(), "b".into());
        for group in 0..2 * PRESENCE_MAX as u64 {
            others.apply_presence(at(0), &b, &[waiting(1, group, true)]);
        }
        assert_eq!(others.count("b"), PRESENCE_MAX);
    }
}
