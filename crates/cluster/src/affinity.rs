//! Affinities: which server serves the pops of a key, and when that changes.
//!
//! Consumers of a group that poll one server share one wait list there and find its cache warm. So a key stays with
//! its server until that server is overloaded, and keys move in a way that does not make the cluster oscillate: a key
//! leaves a busy server with a probability; each key is decided only as often as loads can have changed; moves count
//! before heartbeats show them; no key moves more than twice in five minutes. Only to a server that has returned do
//! keys move from calm servers too, until the loads are about equal, since it has lost its keys. Always: the same
//! inputs give the same answer (randomness is an input). Deliberately absent: agreement with other servers; each
//! keeps its own table, and the server that gets a forwarded request serves it. Start at [`decide`], then
//! [`Affinities::route`].

use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::limits::{AFFINITIES_MAX, RETURN_WINDOW};
use crate::wire::name_hash;

/// How long a key stays at least, and the time between two decisions about it: by then its load shows in heartbeats.
pub const DECISION_INTERVAL: Duration = Duration::from_secs(5);
/// Moves of one key in [`MOVES_WINDOW`].
pub const MOVES_MAX: u32 = 2;
/// See [`MOVES_MAX`].
pub const MOVES_WINDOW: Duration = Duration::from_secs(300);
/// Servers whose loads differ by less than this count as equally loaded. Among them the key's hash decides, so that
/// servers that all see the same least loaded one do not all send everything there.
const EQUAL_LOAD_MARGIN: f64 = 0.05;

/// When keys stay and when they move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// How much better a peer must be to be preferred to this server.
    pub forward: f64,
    /// Above this load a key may leave a server.
    pub migrate: f64,
    /// Above this load a key must leave a server.
    pub break_at: f64,
    /// How much better another server must be for a key to migrate.
    pub min_improvement: f64,
    /// How long an unused key is remembered.
    pub ttl: Duration,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            forward: 0.10,
            migrate: 0.70,
            break_at: 0.90,
            min_improvement: 0.15,
            ttl: Duration::from_secs(300),
        }
    }
}

/// What to do with an affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AffinityDecision {
    /// It stays.
    Keep,
    /// It moves; a random number decided so.
    Migrate,
    /// It moves.
    Break,
}

/// Decides about an affinity to a server with load `assigned`, when another has load `alternative`. `dice` is a
/// random number from 0 to 1.
pub fn decide(thresholds: &Thresholds, assigned: f64, alternative: f64, dice: f64) -> AffinityDecision {
    let improvement = assigned - alternative;
    if assigned >= thresholds.break_at {
        AffinityDecision::Break
    } else if assigned >= thresholds.migrate && improvement > thresholds.min_improvement && dice < improvement
    {
        AffinityDecision::Migrate
    } else {
        AffinityDecision::Keep
    }
}

/// A server that can serve, and its load.
pub type Candidate<'a> = (&'a Arc<str>, f64);

/// The server that a key without affinity should go to: the least loaded one, or this one if it is not much worse.
pub fn choose<'a>(
    thresholds: &Thresholds,
    candidates: &[Candidate<'a>],
    local: &str,
    key: &str,
) -> Option<Candidate<'a>> {
    let lowest = candidates.iter().map(|(_, load)| *load).min_by(f64::total_cmp)?;
    let here = candidates.iter().find(|(id, load)| ***id == *local && load - lowest <= thresholds.forward);
    if let Some(here) = here {
        return Some(*here);
    }
    let spread = EQUAL_LOAD_MARGIN.min(thresholds.forward / 2.0);
    let weight = |id: &str| xxhash_rust::xxh3::xxh3_64_with_seed(key.as_bytes(), name_hash(id));
    let lightest = candidates.iter().filter(|(_, load)| load - lowest <= spread);
    lightest.max_by_key(|(id, _)| weight(id)).copied()
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AffinityEvent {
    /// It stayed where it was.
    Hit,
    /// It got a server.
    Assigned,
    /// It moved from a busy server.
    Migrated,
    /// It moved from an overloaded server.
    Broken,
    /// Its server cannot be asked now, so another one serves this request.
    Detour,
}

impl AffinityEvent {
    /// All events.
    pub const ALL: [Self; 5] = [Self::Hit, Self::Assigned, Self::Migrated, Self::Broken, Self::Detour];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Assigned => "assigned",
            Self::Migrated => "migrated",
            Self::Broken => "broken",
            Self::Detour => "detour",
        }
    }
}

#[derive(Debug)]
struct Affinity {
    server: Arc<str>,
    used: Duration,
    /// When it was last assigned or decided about.
    decided_at: Duration,
    /// Moves since [`Affinity::counted`].
    moves: u32,
    counted: Duration,
    requests: u64,
}

impl Affinity {
    fn may_move(&self, now: Duration) -> bool {
        now >= self.decided_at + DECISION_INTERVAL
            && (self.moves < MOVES_MAX || now >= self.counted + MOVES_WINDOW)
    }

    fn move_to(&mut self, now: Duration, server: &Arc<str>) {
        if now >= self.counted + MOVES_WINDOW {
            self.moves = 0;
        }
        if self.moves == 0 {
            self.counted = now;
        }
        self.moves += 1;
        self.server = Arc::clone(server);
    }
}

/// How much of the moved load is still missing in a server's load after another heartbeat; loads are smoothed at the
/// same rate.
const DRIFT_DECAY: f64 = 0.7;
/// After this many heartbeats most moved load shows. A server that is still busy then has work besides its keys, so
/// its keys weigh less than assumed and more of them may leave: their assumed weight is halved.
const SETTLING_HEARTBEATS: u32 = 4;
/// The limit of halvings.
const HALVINGS_MAX: u32 = 6;
/// The largest weight that a newly assigned key is assumed to have.
const ASSIGNED_WEIGHT_MAX: f64 = 0.01;

/// The affinities of one server.
#[derive(Debug, Default)]
pub struct Affinities {
    keys: FxHashMap<Box<str>, Affinity>,
    servers: FxHashMap<Arc<str>, ServerKeys>,
    /// Servers that have returned, and when.
    returned: FxHashMap<Arc<str>, Duration>,
}

/// The keys of one server.
#[derive(Debug, Default)]
struct ServerKeys {
    keys: usize,
    /// By how much its load will change once heartbeats show all moves.
    drift: f64,
    /// Heartbeats in which it stayed busy although keys had left it; `None` while no key had to leave.
    strain: Option<u32>,
}

impl Affinities {
    /// The server of a key in the simple case: there is one and it is not busy.
    pub fn find_on_calm_server(
        &mut self,
        now: Duration,
        key: &str,
        is_calm: impl FnOnce(&str, &dyn Fn(f64) -> f64) -> bool,
    ) -> Option<Arc<str>> {
        self.returned.retain(|_, since| now < *since + RETURN_WINDOW);
        let affinity = self.keys.get_mut(key)?;
        if !self.returned.is_empty() && !self.returned.contains_key(&affinity.server) {
            return None;
        }
        let drift = self.servers.get(&affinity.server).map_or(0.0, |served| served.drift);
        if !is_calm(&affinity.server, &|reported| reported + drift) {
            return None;
        }
        affinity.used = now;
        affinity.requests += 1;
        Some(Arc::clone(&affinity.server))
    }

    /// The server of a key from now on, of `candidates`, which include this server, `local`.
    pub fn route(
        &mut self,
        now: Duration,
        key: &str,
        thresholds: &Thresholds,
        candidates: &[Candidate<'_>],
        local: &Arc<str>,
        dice: impl FnOnce() -> f64,
    ) -> (Arc<str>, AffinityEvent) {
        let Some(affinity) = self.keys.get_mut(key) else {
            let (server, load) = choose(thresholds, candidates, local, key).unwrap_or((local, 0.0));
            self.assign(now, key, server, load);
            return (Arc::clone(server), AffinityEvent::Assigned);
        };
        affinity.used = now;
        affinity.requests += 1;
        let Some((_, load)) = candidates.iter().find(|(id, _)| **id == affinity.server) else {
            let server = choose(thresholds, candidates, local, key).map_or(local, |(id, _)| id);
            return (Arc::clone(server), AffinityEvent::Detour);
        };
        let is_busy = *load >= thresholds.migrate;
        if (!is_busy && self.returned.is_empty()) || !affinity.may_move(now) {
            return (Arc::clone(&affinity.server), AffinityEvent::Hit);
        }
        // A key leaves a calm server only for one that has returned, and only as a key without affinity would choose.
        let may_take = |(id, other): &&Candidate<'_>| {
            **id != affinity.server
                && (is_busy || (self.returned.contains_key(*id) && load - other > thresholds.forward))
        };
        let others: Vec<_> = candidates.iter().filter(may_take).copied().collect();
        let better = choose(thresholds, &others, local, key).filter(|(_, other)| other < load);
        let Some((server, other)) = better else { return (Arc::clone(&affinity.server), AffinityEvent::Hit) };
        affinity.decided_at = now;
        let verdict = match is_busy {
            true => decide(thresholds, *load, other, dice()),
            false if dice() < load - other => AffinityDecision::Migrate,
            false => AffinityDecision::Keep,
        };
        let step = match verdict {
            AffinityDecision::Keep => return (Arc::clone(&affinity.server), AffinityEvent::Hit),
            AffinityDecision::Migrate => AffinityEvent::Migrated,
            AffinityDecision::Break => AffinityEvent::Broken,
        };
        let from = Arc::clone(&affinity.server);
        affinity.move_to(now, server);
        // The keys known here stand for those known elsewhere, so each counts more than its weight: other servers
        // move theirs at the same time.
        let weight = self.weight(&from, *load);
        self.adjust(&from, -1, -weight);
        self.servers.entry(from).or_default().strain.get_or_insert(0);
        self.adjust(server, 1, weight);
        (Arc::clone(server), step)
    }

    fn assign(&mut self, now: Duration, key: &str, server: &Arc<str>, load: f64) {
        if self.keys.len() < AFFINITIES_MAX {
            let weight = self.weight(server, load).min(ASSIGNED_WEIGHT_MAX);
            self.adjust(server, 1, weight);
            let server = Arc::clone(server);
            let affinity =
                Affinity { server, used: now, decided_at: now, moves: 0, counted: now, requests: 1 };
            self.keys.insert(key.into(), affinity);
        }
    }

    /// The assumed weight of a key on a server with this load.
    fn weight(&self, server: &str, load: f64) -> f64 {
        let strain = self.servers.get(server).and_then(|served| served.strain).unwrap_or(0);
        load / (self.count(server).max(1) << (strain / SETTLING_HEARTBEATS)) as f64
    }

    fn adjust(&mut self, server: &Arc<str>, keys: isize, weight: f64) {
        let served = self.servers.entry(Arc::clone(server)).or_default();
        served.keys = served.keys.saturating_add_signed(keys);
        served.drift += weight;
    }

    /// The load of a server that reported `reported`, corrected by recent moves.
    pub fn expected_load(&self, server: &str, reported: f64) -> f64 {
        (reported + self.servers.get(server).map_or(0.0, |served| served.drift)).max(0.0)
    }

    /// A server has reported its load again, which now contains more of the moves. If it stays `busy` after keys have
    /// left, more of them leave the next time.
    pub fn on_load_reported(&mut self, server: &str, busy: bool) {
        let Some(served) = self.servers.get_mut(server) else { return };
        served.drift *= DRIFT_DECAY;
        served.strain = match served.strain {
            Some(beats) if busy => Some((beats + 1).min(SETTLING_HEARTBEATS * HALVINGS_MAX)),
            Some(beats) if beats > 0 => Some(beats.saturating_sub(SETTLING_HEARTBEATS)),
            _ => None,
        };
    }

    /// A server has returned without its keys: for a while keys may leave calm servers for it.
    pub fn on_server_returned(&mut self, now: Duration, server: &Arc<str>) {
        self.returned.insert(Arc::clone(server), now);
    }

    /// Deletes unused keys. Returns how many.
    pub fn expire(&mut self, now: Duration, ttl: Duration) -> usize {
        self.forget_if(|affinity| now >= affinity.used + ttl)
    }

    /// Deletes the keys of a dead server. Returns how many.
    pub fn forget_server(&mut self, server: &str) -> usize {
        self.forget_if(|affinity| *affinity.server == *server)
    }

    fn forget_if(&mut self, goes: impl Fn(&Affinity) -> bool) -> usize {
        let (before, servers) = (self.keys.len(), &mut self.servers);
        self.keys.retain(|_, affinity| {
            let goes = goes(affinity);
            if goes && let Some(served) = servers.get_mut(&affinity.server) {
                served.keys = served.keys.saturating_sub(1);
            }
            !goes
        });
        servers.retain(|_, served| served.keys > 0);
        before - self.keys.len()
    }

    /// The server of a key.
    pub fn server_of(&self, key: &str) -> Option<Arc<str>> {
        self.keys.get(key).map(|affinity| Arc::clone(&affinity.server))
    }

    /// The number of keys.
    pub fn total(&self) -> usize {
        self.keys.len()
    }

    /// The number of keys of a server.
    pub fn count(&self, server: &str) -> usize {
        self.servers.get(server).map_or(0, |served| served.keys)
    }

    /// The most used keys, each with its server and its requests.
    pub fn busiest(&self, count: usize) -> Vec<(String, Arc<str>, u64)> {
        let mut all: Vec<_> = self.keys.iter().collect();
        all.sort_by(|(a, x), (b, y)| y.requests.cmp(&x.requests).then_with(|| a.cmp(b)));
        let busiest = all.into_iter().take(count);
        busiest.map(|(key, a)| (key.to_string(), Arc::clone(&a.server), a.requests)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Thresholds = Thresholds {
        forward: 0.10,
        migrate: 0.70,
        break_at: 0.90,
        min_improvement: 0.15,
        ttl: Duration::from_secs(300),
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The chance, in percent, that an affinity moves.
    fn chance(assigned: f64, better_by: f64) -> u32 {
        let moves = |dice: &u32| {
            decide(&USUAL, assigned, assigned - better_by, f64::from(*dice) / 100.0) != AffinityDecision::Keep
        };
        (0..100).filter(moves).count() as u32
    }

    #[test]
    fn the_decision_table() {
        // Target load, alternative better by, chance to move in percent.
        let table = [
            (0.00, 0.00, 0),
            (0.50, 0.50, 0),
            (0.69, 0.69, 0),
            (0.70, 0.10, 0),
            (0.80, 0.149, 0),
            (0.89, 0.145, 0),
            (0.70, 0.16, 16),
            (0.80, 0.20, 20),
            (0.75, 0.30, 30),
            (0.80, 0.31, 31),
            (0.89, 0.50, 50),
            (0.90, 0.00, 100),
            (0.95, 0.01, 100),
            (1.00, 0.90, 100),
        ];
        for (load, better_by, expected) in table {
            let found = chance(load, better_by);
            // One more or less, since the difference of two shares is not exact.
            assert!(found.abs_diff(expected) <= 1, "load {load}, better by {better_by}: {found}");
        }
        assert_eq!(decide(&USUAL, 0.95, 0.95, 0.99), AffinityDecision::Break);
        assert_eq!(decide(&USUAL, 0.80, 0.50, 0.0), AffinityDecision::Migrate);
    }

    fn ids() -> [Arc<str>; 3] {
        ["a".into(), "b".into(), "c".into()]
    }

    /// The server chosen for a key on server `a`, when the three servers have these loads.
    fn chosen(loads: [f64; 3]) -> String {
        let ids = ids();
        let candidates: Vec<_> = ids.iter().zip(loads).collect();
        choose(&USUAL, &candidates, "a", "key").unwrap().0.to_string()
    }

    #[test]
    fn local_is_chosen_unless_another_is_better_by_more_than_a_tenth() {
        assert_eq!(chosen([0.0, 0.0, 0.0]), "a");
        assert_eq!(chosen([0.3, 0.2, 0.9]), "a");
        assert_eq!(chosen([0.31, 0.2, 0.9]), "b");
        assert_eq!(chosen([0.9, 0.5, 0.2]), "c");
        assert_eq!(chosen([0.5, 0.9, 0.9]), "a");
    }

    #[test]
    fn keys_are_spread_over_servers_that_are_equally_loaded() {
        let ids = ids();
        let candidates: Vec<_> = ids.iter().zip([0.9, 0.20, 0.23]).collect();
        let to_b = (0..1000).filter(|n| {
            let (id, _) = choose(&USUAL, &candidates, "a", &format!("queue-{n}:group")).unwrap();
            **id == *"b"
        });
        let to_b = to_b.count();
        assert!((400..600).contains(&to_b), "{to_b}");
    }

    struct Table {
        affinities: Affinities,
        ids: [Arc<str>; 3],
    }

    impl Table {
        fn new() -> Self {
            Self { affinities: Affinities::default(), ids: ids() }
        }

        fn route(&mut self, now: Duration, loads: [f64; 3], dice: f64) -> (String, AffinityEvent) {
            // A NaN load stands for a server that cannot be asked.
            let candidates: Vec<_> = self.ids.iter().zip(loads).filter(|(_, l)| !l.is_nan()).collect();
            let (server, step) = self.affinities.route(now, "k", &USUAL, &candidates, &self.ids[0], || dice);
            (server.to_string(), step)
        }
    }

    #[test]
    fn a_key_stays_until_its_server_is_overloaded() {
        let mut table = Table::new();
        assert_eq!(table.route(at(0), [0.4, 0.1, 0.2], 0.0), ("b".into(), AffinityEvent::Assigned));
        assert_eq!(table.route(at(10), [0.0, 0.69, 0.0], 0.0), ("b".into(), AffinityEvent::Hit));
        assert_eq!(table.route(at(20), [0.6, 0.8, 0.7], 0.0), ("a".into(), AffinityEvent::Migrated));
        assert_eq!(table.route(at(30), [0.95, 0.9, 0.3], 0.9), ("c".into(), AffinityEvent::Broken));
    }

    #[test]
    fn a_key_is_judged_once_in_a_while_and_moves_at_most_twice_in_five_minutes() {
        let mut table = Table::new();
        assert_eq!(table.route(at(0), [0.5, 0.1, 0.9], 0.0).0, "b");
        assert_eq!(table.route(at(4), [0.1, 0.99, 0.1], 0.0), ("b".into(), AffinityEvent::Hit));
        assert_eq!(table.route(at(5), [0.1, 0.99, 0.1], 0.0), ("a".into(), AffinityEvent::Broken));
        assert_eq!(table.route(at(11), [0.99, 0.1, 0.9], 0.0), ("b".into(), AffinityEvent::Broken));
        assert_eq!(table.route(at(100), [0.1, 0.99, 0.1], 0.0), ("b".into(), AffinityEvent::Hit));
        assert_eq!(table.route(at(305), [0.1, 0.99, 0.1], 0.0).1, AffinityEvent::Broken);
    }

    #[test]
    fn a_server_that_cannot_be_asked_is_gone_around_and_a_dead_one_forgotten() {
        let mut table = Table::new();
        assert_eq!(table.route(at(0), [0.5, 0.1, 0.2], 0.0).0, "b");
        assert_eq!(table.route(at(1), [0.5, f64::NAN, 0.2], 0.0), ("c".into(), AffinityEvent::Detour));
        assert_eq!(table.route(at(2), [0.5, 0.1, 0.2], 0.0), ("b".into(), AffinityEvent::Hit));
        assert_eq!(table.affinities.forget_server("b"), 1);
        assert_eq!(table.route(at(3), [0.5, f64::NAN, 0.2], 0.0), ("c".into(), AffinityEvent::Assigned));
    }

    #[test]
    fn what_has_moved_counts_before_it_shows() {
        let (mut table, ids) = (Affinities::default(), ids());
        let mut moved = 0;
        for round in 0..2 {
            let reported = [0.2, if round == 0 { 0.1 } else { 0.95 }, 0.2];
            for key in 0..100 {
                let candidates: Vec<_> = ids
                    .iter()
                    .zip(reported)
                    .map(|(id, reported)| (id, table.expected_load(id, reported)))
                    .collect();
                let local = if round == 0 { &ids[1] } else { &ids[0] };
                let routed =
                    table.route(at(round * 10), &format!("k{key}"), &USUAL, &candidates, local, || 0.99);
                moved += usize::from(routed.1 == AffinityEvent::Broken);
            }
            // Heartbeats show the assigned keys.
            (0..20).for_each(|_| ids.iter().for_each(|id| table.on_load_reported(id, false)));
        }
        assert!((1..10).contains(&moved), "only what is too much leaves: {moved} of 100");
        assert_eq!(table.count("b"), 100 - table.count("a") - table.count("c"));
    }

    /// How many of 40 keys leave a server in half a minute at this load, to which each key adds `each`.
    fn leaving(own_work: f64, each: f64) -> usize {
        let (mut table, ids) = (Affinities::default(), ids());
        let assigned: Vec<_> = ids.iter().zip([0.9, 0.0, 0.9]).collect();
        (0..40).for_each(|key| {
            table.route(at(0), &format!("k{key}"), &USUAL, &assigned, &ids[1], || 0.0);
        });
        for second in 0..30 {
            let reported = [0.1, own_work + each * table.count("b") as f64, 0.1];
            ids.iter()
                .zip(reported)
                .for_each(|(id, reported)| table.on_load_reported(id, reported >= USUAL.migrate));
            for key in 0..40 {
                let candidates: Vec<_> = ids
                    .iter()
                    .zip(reported)
                    .map(|(id, reported)| (id, table.expected_load(id, reported)))
                    .collect();
                table.route(at(second), &format!("k{key}"), &USUAL, &candidates, &ids[0], || 0.3);
            }
        }
        40 - table.count("b")
    }

    #[test]
    fn a_server_that_is_busy_with_other_work_is_left_by_all_within_half_a_minute_and_else_by_few() {
        assert_eq!(leaving(0.75, 0.0), 40);
        assert!((4..12).contains(&leaving(0.0, 0.02)), "{}", leaving(0.0, 0.02));
    }

    #[test]
    fn a_key_that_nobody_uses_is_forgotten() {
        let mut table = Table::new();
        table.route(at(0), [0.5, 0.1, 0.2], 0.0);
        table.route(at(200), [0.5, 0.1, 0.2], 0.0);
        assert_eq!(table.affinities.expire(at(499), USUAL.ttl), 0);
        assert_eq!(table.affinities.expire(at(500), USUAL.ttl), 1);
    }

    #[test]
    fn when_all_are_overloaded_a_key_stays_with_the_least_loaded() {
        let mut table = Table::new();
        assert_eq!(table.route(at(0), [0.99, 0.91, 0.95], 0.0).0, "a");
        assert_eq!(table.route(at(9), [0.92, 0.93, 0.95], 0.0), ("a".into(), AffinityEvent::Hit));
    }
}
