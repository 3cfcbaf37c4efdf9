//! The router: chooses the server for each request.
//!
//! Pops follow affinities and loads; pushes, acks and transactions go to where the queue's consumers wait. Always: a
//! dead server, or one whose breaker is open, is never chosen; without live peers everything is local. Deliberately
//! absent: sockets and clocks. Start at [`Router::route_pop`] and [`Router::route_push`].

use std::sync::Arc;
use std::time::Duration;

use baton_types::PartitionId;
use rustc_hash::FxHashMap;

use crate::affinity::{Affinities, AffinityEvent, Candidate, Thresholds, choose};
use crate::breaker::{BreakerOptions, CircuitBreaker};
use crate::limits::PARTITIONS_MAX;
use crate::load::{Load, SmoothedLoad};
use crate::membership::{MemberChange, Membership};
use crate::presence::{LocalWaiters, RemoteWaiters};
use crate::wire::name_hash;

/// The routing policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// When affinities stay and when they move.
    pub thresholds: Thresholds,
    /// With more waiting groups than this, all groups of a queue go to one server.
    pub queue_affinity_threshold: usize,
    /// When a peer's breaker opens.
    pub breaker_options: BreakerOptions,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            thresholds: Thresholds::default(),
            queue_affinity_threshold: 10,
            breaker_options: BreakerOptions { failures: 3, retry: Duration::from_secs(5) },
        }
    }
}

/// What a pop reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PopTarget<'a> {
    /// Any partition of a queue.
    Queue(&'a str),
    /// One partition of a queue.
    Partition(&'a str, &'a str),
    /// Any queue of a namespace and a task.
    Labels(&'a str, &'a str),
}

/// The state of the cluster as one server knows it.
#[derive(Debug)]
pub struct Router {
    /// The other servers.
    pub membership: Membership,
    /// The groups that wait there.
    pub others: RemoteWaiters,
    /// The groups that wait here.
    pub own: LocalWaiters,
    /// The server of each key.
    pub affinities: Affinities,
    /// This server's load.
    pub load: SmoothedLoad,
    policy: Policy,
    /// Whether this server is drained.
    draining: bool,
    breakers: FxHashMap<Arc<str>, CircuitBreaker>,
    /// The hash of the queue's name, by partition.
    partitions: FxHashMap<PartitionId, u64>,
}

impl Router {
    /// A router that knows no other server yet.
    pub fn new(membership: Membership, policy: Policy) -> Self {
        Self {
            membership,
            policy,
            others: RemoteWaiters::default(),
            own: LocalWaiters::default(),
            affinities: Affinities::default(),
            load: SmoothedLoad::default(),
            draining: false,
            breakers: FxHashMap::default(),
            partitions: FxHashMap::default(),
        }
    }

    /// Applies a server's heartbeat.
    pub fn on_heartbeat(
        &mut self,
        now: Duration,
        id: &Arc<str>,
        url: &str,
        load: Load,
        draining: bool,
    ) -> MemberChange {
        self.affinities.on_load_reported(id, load.score() >= self.policy.thresholds.migrate);
        let change = self.membership.on_heartbeat(now, id, url, load);
        if self.membership.set_draining(id, draining) {
            if draining {
                self.affinities.forget_server(id);
            } else {
                self.affinities.on_server_returned(now, id);
            }
        }
        change
    }

    /// Drains this server, so that it forwards requests where possible; or ends the drain.
    pub fn drain(&mut self, draining: bool) {
        self.draining = draining;
        if draining {
            self.affinities.forget_server(self.membership.own());
        }
    }

    /// Whether this server is drained.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Adds a measurement of this server's load. Returns the smoothed load to send.
    pub fn add_load_sample(&mut self, measured: Load) -> Load {
        let load = self.load.add_sample(measured);
        self.affinities
            .on_load_reported(self.membership.own(), load.score() >= self.policy.thresholds.migrate);
        load
    }

    /// The affinity key of a pop.
    pub fn affinity_key(&self, target: PopTarget<'_>, group: &str) -> String {
        let queue = match target {
            PopTarget::Labels(namespace, task) => return format!("{namespace}:{task}:{group}"),
            PopTarget::Queue(queue) | PopTarget::Partition(queue, _) => queue,
        };
        let enough = self.policy.queue_affinity_threshold + 1;
        if self.others.count_groups(&self.own, name_hash(queue), enough) >= enough {
            return queue.into();
        }
        match target {
            PopTarget::Partition(_, partition) => format!("{queue}:{partition}:{group}"),
            _ => format!("{queue}:{group}"),
        }
    }

    /// The server to forward a pop to; `None` is this one.
    pub fn route_pop(
        &mut self,
        now: Duration,
        key: &str,
        dice: impl FnOnce() -> f64,
    ) -> (Option<Arc<str>>, AffinityEvent) {
        let Self { membership, breakers, load, policy, affinities, draining, .. } = self;
        let (own, here) = (membership.own(), load.current().score());
        let migrate = policy.thresholds.migrate;
        let is_calm = |id: &str, expected: &dyn Fn(f64) -> f64| match membership.get(id) {
            None => *id == **own && !*draining && expected(here) < migrate,
            Some(member) => {
                member.alive
                    && !member.draining
                    && expected(member.load.score()) < migrate
                    && breakers.get(id).is_none_or(|breaker| breaker.would_admit(now))
            }
        };
        if let Some(server) = affinities.find_on_calm_server(now, key, is_calm) {
            return ((server != *own).then_some(server), AffinityEvent::Hit);
        }
        let here = LocalState { load: here, draining: *draining };
        let candidates = candidates(now, membership, breakers, affinities, here);
        let (server, step) = affinities.route(now, key, &policy.thresholds, &candidates, own, dice);
        ((server != *own).then_some(server), step)
    }

    /// The server to forward a push to the queue whose name has this hash; `None` is this one.
    pub fn route_push(&self, now: Duration, name: u64) -> Option<Arc<str>> {
        if self.own.has_waiters(name) && !self.draining {
            return None;
        }
        self.next_push(now, name, &[])
    }

    /// The next server to try for a push after those in `tried`; `None` is this one.
    pub fn next_push(&self, now: Duration, name: u64, tried: &[Arc<str>]) -> Option<Arc<str>> {
        let waiting = self.least_loaded(now, &self.others.servers(name), tried);
        if waiting.is_some() || !self.draining {
            return waiting;
        }
        self.least_loaded(now, self.membership.alive().map(|(id, _)| id), tried)
    }

    fn least_loaded<'a>(
        &self,
        now: Duration,
        servers: impl IntoIterator<Item = &'a Arc<str>>,
        tried: &[Arc<str>],
    ) -> Option<Arc<str>> {
        let fit = |id: &&Arc<str>| !tried.contains(id) && self.is_healthy(now, id);
        let load = |id: &Arc<str>| self.membership.get(id).map_or(1.0, |member| member.load.score());
        servers.into_iter().filter(fit).min_by(|a, b| load(a).total_cmp(&load(b))).cloned()
    }

    /// The next server to try for a pop after those in `tried`; `None` is this one.
    pub fn next_pop(&self, now: Duration, key: &str, tried: &[Arc<str>]) -> Option<Arc<str>> {
        let own = self.membership.own();
        let here = LocalState { load: self.load.current().score(), draining: self.draining };
        let mut candidates = candidates(now, &self.membership, &self.breakers, &self.affinities, here);
        candidates.retain(|(id, _)| !tried.contains(id));
        let (server, _) = choose(&self.policy.thresholds, &candidates, own, key)?;
        (server != own).then(|| Arc::clone(server))
    }

    /// Whether a server may be asked.
    pub fn is_healthy(&self, now: Duration, id: &str) -> bool {
        self.membership.get(id).is_some_and(|member| member.alive && !member.draining)
            && self.breakers.get(id).is_none_or(|breaker| breaker.would_admit(now))
    }

    /// The address of a server, if its breaker admits this request.
    pub fn admit(&mut self, now: Duration, id: &Arc<str>) -> Option<Arc<str>> {
        let url =
            self.membership.get(id).filter(|member| member.alive).map(|member| Arc::clone(&member.url))?;
        let breaker_options = self.policy.breaker_options;
        let breaker =
            self.breakers.entry(Arc::clone(id)).or_insert_with(|| CircuitBreaker::new(breaker_options));
        breaker.admit(now).then_some(url)
    }

    /// The breaker of a server that was asked before.
    pub fn breaker(&mut self, id: &str) -> Option<&mut CircuitBreaker> {
        self.breakers.get_mut(id)
    }

    /// The load of a server, as it reported it, or of this one.
    pub fn load_of(&self, id: &str) -> Load {
        self.membership.get(id).map_or_else(|| self.load.current(), |member| member.load)
    }

    /// Removes everything about a dead server. Returns how many keys it had.
    pub fn remove_server(&mut self, id: &Arc<str>) -> usize {
        self.others.remove_server(id);
        self.affinities.forget_server(id)
    }

    /// A server has returned, or another one has its name: resets its breaker, and keys may move to it.
    pub fn on_server_joined(&mut self, now: Duration, id: &Arc<str>) {
        self.breakers.remove(id);
        self.affinities.on_server_returned(now, id);
    }

    /// Remembers the queue of a partition, for later acks.
    pub fn remember_partition(&mut self, partition: PartitionId, name: u64) {
        if self.partitions.len() >= PARTITIONS_MAX {
            self.partitions.clear();
        }
        self.partitions.insert(partition, name);
    }

    /// The hash of the name of a partition's queue, if it is known.
    pub fn queue_of(&self, partition: PartitionId) -> Option<u64> {
        self.partitions.get(&partition).copied()
    }
}

/// The state of this server in a decision.
struct LocalState {
    load: f64,
    draining: bool,
}

/// This server and those that may be asked, with their loads. A drained server is a candidate only for itself, and
/// only without another candidate.
fn candidates<'a>(
    now: Duration,
    membership: &'a Membership,
    breakers: &FxHashMap<Arc<str>, CircuitBreaker>,
    affinities: &Affinities,
    here: LocalState,
) -> Vec<Candidate<'a>> {
    let fit = |id: &Arc<str>| breakers.get(id).is_none_or(|breaker| breaker.would_admit(now));
    let others = membership.alive().filter(|(id, member)| !member.draining && fit(id));
    let mut told: Vec<_> = others.map(|(id, member)| (id, member.load.score())).collect();
    if !here.draining || told.is_empty() {
        told.insert(0, (membership.own(), here.load));
    }
    told.into_iter().map(|(id, told)| (id, affinities.expected_load(id, told))).collect()
}

#[cfg(test)]
mod tests {
    use baton_types::{GroupId, QueueId};

    use super::*;
    use crate::wire::{Envelope, WaitingGroup};

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn load(score: f64) -> Load {
        Load { outstanding: score * 100.0, waiting: score * 200.0, cpu: score * 100.0 }
    }

    /// Server `a` with load 0.5, which knows `b` and `c`.
    fn router() -> Router {
        let mut router = Router::new(Membership::new("a".into(), 1, at(5)), Policy::default());
        router.load.add_sample(load(0.5));
        beat(&mut router, 0, "b", 0.1);
        beat(&mut router, 0, "c", 0.3);
        router
    }

    fn beat(router: &mut Router, now: u64, id: &str, score: f64) {
        let envelope = Envelope { sender: id.into(), incarnation: 2, sequence: now + 1 };
        router.membership.on_datagram(at(now), &envelope).unwrap();
        router.membership.on_heartbeat(at(now), id, &format!("http://{id}:1"), load(score));
    }

    fn pop(router: &mut Router, now: u64, key: &str) -> Option<String> {
        router.route_pop(at(now), key, || 0.0).0.map(|id| id.to_string())
    }

    fn waits(queue: u64, group: u64) -> WaitingGroup {
        let name = name_hash(&format!("q{queue}"));
        WaitingGroup { queue: QueueId(queue), group: GroupId(group), name, on: true }
    }

    #[test]
    fn keys_say_what_is_kept_together() {
        let mut router = router();
        assert_eq!(router.affinity_key(PopTarget::Queue("q1"), "g"), "q1:g");
        assert_eq!(router.affinity_key(PopTarget::Partition("q1", "p"), "g"), "q1:p:g");
        assert_eq!(router.affinity_key(PopTarget::Labels("n", ""), "g"), "n::g");
        let groups: Vec<_> = (0..10).map(|group| waits(1, group)).collect();
        router.others.apply_presence(at(0), &"b".into(), &groups);
        assert_eq!(router.affinity_key(PopTarget::Queue("q1"), "g"), "q1:g");
        router.own.update(at(0), waits(1, 10));
        assert_eq!(router.affinity_key(PopTarget::Queue("q1"), "g"), "q1");
        assert_eq!(router.affinity_key(PopTarget::Partition("q1", "p"), "g"), "q1");
    }

    #[test]
    fn a_pop_goes_to_the_least_loaded_server_and_stays_there() {
        let mut router = router();
        assert_eq!(pop(&mut router, 0, "k").as_deref(), Some("b"));
        beat(&mut router, 1, "b", 0.6);
        assert_eq!(router.route_pop(at(1), "k", || 0.0), (Some("b".into()), AffinityEvent::Hit));
        assert_eq!(pop(&mut router, 1, "new").as_deref(), Some("c"));
    }

    #[test]
    fn alone_everything_is_local() {
        let mut router = router();
        for id in router.membership.expire(at(10)) {
            router.remove_server(&id);
        }
        assert_eq!((pop(&mut router, 10, "k"), router.route_push(at(10), 1)), (None, None));
    }

    #[test]
    fn a_dead_server_loses_its_keys_and_a_broken_one_is_gone_around() {
        let mut router = router();
        assert_eq!(pop(&mut router, 0, "k").as_deref(), Some("b"));
        for _ in 0..3 {
            assert!(router.admit(at(0), &"b".into()).is_some());
            router.breaker("b").unwrap().record_failure(at(0));
        }
        assert!(router.admit(at(0), &"b".into()).is_none());
        assert_eq!(router.route_pop(at(1), "k", || 0.0), (Some("c".into()), AffinityEvent::Detour));
        assert_eq!(router.route_pop(at(5), "k", || 0.0), (Some("b".into()), AffinityEvent::Hit), "half open");
        assert_eq!(router.remove_server(&"b".into()), 1);
    }

    #[test]
    fn keys_flow_back_slowly_to_a_server_that_has_come_back() {
        let mut router = router();
        let keys: Vec<_> = (0..20).map(|key| format!("k{key}")).collect();
        router.remove_server(&"b".into());
        router.membership.leave("b");
        // All keys move to `c`, which stays calm.
        beat(&mut router, 1, "c", 0.1);
        assert!(keys.iter().all(|key| pop(&mut router, 1, key).as_deref() == Some("c")));
        (0..20).for_each(|_| router.affinities.on_load_reported("c", false));
        beat(&mut router, 10, "c", 0.5);
        beat(&mut router, 10, "b", 0.1);
        let at_b = |router: &mut Router, now| {
            keys.iter().filter(|key| pop(router, now, key).as_deref() == Some("b")).count()
        };
        assert_eq!(at_b(&mut router, 10), 0, "nothing leaves a calm server by itself");
        router.on_server_joined(at(10), &"b".into());
        let moved = at_b(&mut router, 10);
        assert!((3..12).contains(&moved), "until the loads are about equal: {moved}");
        // Heartbeats show the moves: no more keys move, and none return.
        (0..20).for_each(|_| router.affinities.on_load_reported("b", false));
        (0..20).for_each(|_| router.affinities.on_load_reported("c", false));
        beat(&mut router, 20, "c", 0.35);
        beat(&mut router, 20, "b", 0.3);
        assert_eq!(at_b(&mut router, 20), moved);
        beat(&mut router, 200, "c", 0.6);
        beat(&mut router, 200, "b", 0.1);
        assert_eq!(at_b(&mut router, 200), moved, "it came back long ago");
    }

    #[test]
    fn a_drained_server_is_asked_for_nothing_and_gives_away_what_comes() {
        let mut router = router();
        let name = name_hash("q1");
        router.others.apply_presence(at(0), &"b".into(), &[waits(1, 1)]);
        router.others.apply_presence(at(0), &"c".into(), &[waits(1, 2)]);
        assert_eq!(pop(&mut router, 0, "k").as_deref(), Some("b"));
        router.on_heartbeat(at(1), &"b".into(), "http://b:1", load(0.1), true);
        assert_eq!(pop(&mut router, 1, "k").as_deref(), Some("c"));
        assert_eq!(router.route_push(at(1), name).as_deref(), Some("c"));
        assert!(!router.is_healthy(at(1), "b"));
        router.drain(true);
        router.own.update(at(1), waits(1, 3));
        assert_eq!(router.route_push(at(1), name).as_deref(), Some("c"), "although a pop waits here");
        assert_eq!(
            router.route_push(at(1), name_hash("another")).as_deref(),
            Some("c"),
            "although no pop waits there"
        );
        router.on_heartbeat(at(2), &"c".into(), "http://c:1", load(0.1), true);
        assert_eq!(
            (pop(&mut router, 2, "new"), router.route_push(at(2), name)),
            (None, None),
            "all are drained"
        );
        router.on_heartbeat(at(3), &"b".into(), "http://b:1", load(0.1), false);
        assert_eq!(pop(&mut router, 3, "newer").as_deref(), Some("b"));
    }

    #[test]
    fn a_push_goes_to_where_its_consumers_wait() {
        let mut router = router();
        let name = name_hash("q1");
        assert_eq!(router.route_push(at(0), name), None, "no pop waits");
        router.others.apply_presence(at(0), &"b".into(), &[waits(1, 1)]);
        router.others.apply_presence(at(0), &"c".into(), &[waits(1, 2)]);
        assert_eq!(router.route_push(at(0), name).as_deref(), Some("b"), "the less loaded of two");
        assert_eq!(router.next_push(at(0), name, &["b".into()]).as_deref(), Some("c"));
        assert_eq!(router.next_push(at(0), name, &["b".into(), "c".into()]), None);
        router.own.update(at(0), waits(1, 3));
        assert_eq!(router.route_push(at(0), name), None, "a pop waits here");
    }

    #[test]
    fn after_a_failure_the_next_best_is_asked_which_may_be_this_one() {
        let router = router();
        assert_eq!(router.next_pop(at(0), "k", &["b".into()]).as_deref(), Some("c"));
        assert_eq!(router.next_pop(at(0), "k", &["b".into(), "c".into()]), None);
    }
}
