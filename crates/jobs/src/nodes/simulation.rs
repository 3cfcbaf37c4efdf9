//! A simulation of nodes that lead, own, publish, pause, drain, die and come back in any order, on a real store with
//! a test clock.
//!
//! After each step it checks that terms and epochs only rise, that a lease changes hands only after it ended or was
//! released, that the journal entries of a slice are published once and in order, and that no nominal time is fired
//! twice. At the end it checks that every slice has a living owner. Each broken variant must be caught, so the checks
//! can fail.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_env::ManualClock;
use baton_store::{Store, Tx, TxError, run};
use baton_store_embedded::EmbeddedStore;
use baton_types::Timestamp;

use crate::maintenance::leadership;
use crate::model::node_times::ClusterTimes;
use crate::model::ownership::{OwnershipReason, OwnershipTable, SLICES};
use crate::nodes::node_record::{self, Node, NodeState};
use crate::nodes::{dead_nodes, ownership_record};
use crate::rules::schedules::simulated;
use crate::storage::Writes;
use crate::storage::leader_term::Term;

/// A deliberate mistake that the checks must catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// An owner publishes without checking its epoch.
    NoFence,
    /// A leader renews without checking its token.
    NoToken,
    /// A fire enqueues its job in one commit and advances its schedule in the next.
    TwoCommits,
}

struct Member {
    id: Arc<str>,
    term: Option<Term>,
    /// The ownership table as this node last read it.
    seen: Option<OwnershipTable>,
    /// The second half of a fire that was split in two commits.
    fired: Option<Writes>,
    /// Steps for which the node is paused. It wakes with the state that it had before.
    paused: u64,
    is_alive: bool,
}

struct World {
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    members: Vec<Member>,
    broken: Broken,
    seed: u64,
    starts: u32,
    /// Published entries, by slice.
    published: Vec<Vec<u64>>,
    fires: BTreeMap<Timestamp, u32>,
    epochs: Vec<u64>,
    lease: Option<(String, u64, Timestamp)>,
    term: u64,
    is_given: bool,
    _directory: tempfile::TempDir,
}

const TIMES: ClusterTimes = ClusterTimes {
    term: Duration::from_secs(30),
    renew: Duration::from_secs(10),
    margin: Duration::from_secs(5),
    heartbeat: Duration::from_secs(10),
    dead_after: Duration::from_secs(30),
    ack: Duration::from_secs(5),
    tries: 3,
    tail: Duration::from_secs(30),
    ceiling: Duration::from_secs(60),
    orphans_every: Duration::from_secs(30),
    cooldown: Duration::from_secs(30),
};

impl World {
    fn new(seed: u64, broken: Broken) -> Self {
        let memory = std::path::Path::new("/dev/shm");
        let directory =
            if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_794_767_647_638_487)));
        let options = baton_store_embedded::Options {
            clock: clock.clone(),
            min_free_disk: 0,
            ..baton_store_embedded::Options::new(directory.path())
        };
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(options).unwrap());
        let mut world = Self {
            store,
            clock,
            members: Vec::new(),
            broken,
            seed,
            starts: 0,
            published: vec![Vec::new(); SLICES],
            fires: BTreeMap::new(),
            epochs: vec![0; SLICES],
            lease: None,
            term: 0,
            is_given: false,
            _directory: directory,
        };
        (0..3).for_each(|_| world.join());
        world
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }

    fn join(&mut self) {
        self.starts += 1;
        let id = format!("node-{}", self.starts).into();
        self.members.push(Member { id, term: None, seen: None, fired: None, paused: 0, is_alive: true });
    }

    async fn decide<R: Send + 'static>(
        &self,
        rule: impl FnMut(&mut dyn Tx) -> Result<R, TxError> + Send + 'static,
    ) -> R {
        run(&*self.store, rule).await.unwrap()
    }

    /// Takes one random step. Returns what is wrong afterwards.
    async fn step(&mut self) -> Option<String> {
        let (at, what) = (usize::try_from(self.random(self.members.len() as u64)).unwrap(), self.random(100));
        self.is_given = false;
        if !self.members[at].is_alive {
            if what < 20 {
                self.members.remove(at);
                self.join();
            }
            return None;
        }
        if self.members[at].paused > 0 {
            self.members[at].paused -= 1;
            return None;
        }
        match what {
            0..25 => self.look(at, false).await,
            25..37 => self.lead(at).await,
            37..50 => self.fire(at).await,
            50..75 => {
                if let Some(wrong) = self.publish(at).await {
                    return Some(wrong);
                }
            }
            75..79 => self.orphans(at).await,
            79..80 => self.look(at, true).await,
            80..81 => self.members[at].is_alive = false,
            81..82 => self.resign(at).await,
            82..86 => self.members[at].paused = 5 + self.random(40),
            _ => {
                let seconds = 1 + self.random(6);
                self.clock.advance(Duration::from_secs(seconds));
            }
        }
        self.check().await
    }

    /// Sends a node's heartbeat and claims, or drains.
    async fn look(&mut self, at: usize, drains: bool) {
        let id = Arc::clone(&self.members[at].id);
        let seen = self
            .decide(move |tx| {
                let (now, nodes) = (tx.now(), node_record::all(tx)?);
                let mut table = ownership_record::load(tx)?.unwrap_or_else(|| OwnershipTable::new(now));
                let own = nodes.iter().find(|known| known.id == id);
                let state = if drains { NodeState::Draining } else { NodeState::Active };
                let others = nodes.iter().filter(|known| known.id != id);
                let active = others.filter(|known| known.node.is_active(now, TIMES.dead_after)).count();
                if drains {
                    table.offer(&id, OwnershipReason::Shutdown, now);
                } else {
                    table.withdraw(&id);
                    table.claim(&id, active + 1, now, TIMES.ack);
                }
                node_record::put(
                    tx,
                    &id,
                    &Node { state, seen_at: now, ..Node::default() },
                    own.map(|own| &own.record),
                )?;
                ownership_record::store(tx, &table)?;
                Ok(table)
            })
            .await;
        self.members[at].seen = Some(seen);
    }

    async fn lead(&mut self, at: usize) {
        let (id, steals) = (Arc::clone(&self.members[at].id), self.broken == Broken::NoToken);
        let believes = self.members[at].term.is_some();
        self.members[at].term =
            self.decide(move |tx| leadership::acquire(tx, &id, steals && believes, TIMES.term, None)).await;
    }

    async fn resign(&mut self, at: usize) {
        let Some(term) = self.members[at].term.take() else { return };
        self.is_given = true;
        self.decide(move |tx| leadership::resign(tx, &term, None)).await;
    }

    async fn orphans(&mut self, at: usize) {
        let Some(term) = self.members[at].term.clone() else { return };
        self.decide(move |tx| {
            if term.guard(tx)? {
                dead_nodes::reassign_from_dead(tx, &TIMES, "channels")?;
            }
            Ok(())
        })
        .await;
    }

    /// Fires the schedule by the real rule, in one commit as it should, or in two.
    async fn fire(&mut self, at: usize) {
        let Some(term) = self.members[at].term.clone() else { return };
        let fired = match (self.broken, self.members[at].fired.take()) {
            (Broken::TwoCommits, Some(rest)) => {
                return self.decide(move |tx| simulated::fire_rest(tx, &term, &rest)).await;
            }
            (Broken::TwoCommits, None) => {
                let (fired, rest) = self.decide(move |tx| simulated::fire_half(tx, &term)).await;
                self.members[at].fired = Some(rest);
                fired
            }
            _ => self.decide(move |tx| simulated::fire(tx, &term)).await,
        };
        for nominal in fired {
            *self.fires.entry(nominal).or_default() += 1;
        }
    }

    /// Publishes the next event of a slice that the node owned when it last read the table.
    async fn publish(&mut self, at: usize) -> Option<String> {
        // Few slices, so that old and new owners collide.
        let slice = usize::try_from(self.random(6) * 10).unwrap();
        let id = Arc::clone(&self.members[at].id);
        let known = self.members[at].seen.as_ref()?.slices[slice].clone();
        if known.owner != id {
            return None;
        }
        let (read, epoch, checks) = (known.read + 1, known.epoch, self.broken != Broken::NoFence);
        let done = self
            .decide(move |tx| {
                let Some(mut table) = ownership_record::load(tx)? else { return Ok(None) };
                if checks && !table.advance(&id, slice, epoch, read) {
                    return Ok(None);
                }
                table.slices[slice].read = read;
                ownership_record::store(tx, &table)?;
                Ok(Some(read))
            })
            .await;
        if let Some(read) = done {
            self.members[at].seen.as_mut()?.slices[slice].read = read;
            let last = self.published[slice].last().copied().unwrap_or(0);
            self.published[slice].push(read);
            if read != last + 1 {
                return Some(format!("slice {slice} published {read} after {last}"));
            }
        }
        None
    }

    async fn check(&mut self) -> Option<String> {
        let (table, holder, term, now) = self
            .decide(|tx| {
                Ok((
                    ownership_record::load(tx)?,
                    leadership::holder(tx)?,
                    leadership::last_term(tx)?,
                    tx.now(),
                ))
            })
            .await;
        if let Some(table) = table {
            for (slice, (before, is)) in self.epochs.iter_mut().zip(&table.slices).enumerate() {
                if is.epoch < *before {
                    return Some(format!("the epoch of slice {slice} fell from {before} to {}", is.epoch));
                }
                *before = is.epoch;
            }
        }
        if term < self.term {
            return Some(format!("the term fell from {} to {term}", self.term));
        }
        self.term = term;
        let lease = holder.map(|holder| (holder.owner, holder.token, holder.until));
        if let (Some(before), Some(is)) = (&self.lease, &lease) {
            let is_over = before.2 <= now || self.is_given;
            if before.0 != is.0 && !is_over {
                return Some(format!("{} took the lease from {}, who had it still", is.0, before.0));
            }
            if is.1 < before.1 {
                return Some("the token of the lease fell".into());
            }
        }
        self.lease = lease;
        let twice = self.fires.iter().find(|(_, times)| **times > 1);
        twice.map(|(nominal, _)| format!("nominal time {nominal} was fired for twice"))
    }

    /// At rest every slice has a living owner, and a node leads.
    async fn settle(&mut self) -> Option<String> {
        for _ in 0..12 {
            self.clock.advance(Duration::from_secs(11));
            for at in 0..self.members.len() {
                self.members[at].paused = 0;
                if self.members[at].is_alive {
                    self.look(at, false).await;
                    self.lead(at).await;
                    self.orphans(at).await;
                }
            }
            if let Some(wrong) = self.check().await {
                return Some(wrong);
            }
        }
        let alive: Vec<_> =
            self.members.iter().filter(|one| one.is_alive).map(|one| Arc::clone(&one.id)).collect();
        if alive.is_empty() {
            return None;
        }
        let table = self.decide(ownership_record::load).await?;
        let orphan = table.slices.iter().position(|slice| !alive.contains(&slice.owner));
        if let Some(slice) = orphan {
            return Some(format!("slice {slice} has no living owner: {:?}", table.slices[slice]));
        }
        self.lease.is_none().then(|| "no node leads".into())
    }
}

/// Runs one simulation. Returns the first violation.
async fn history(seed: u64, broken: Broken, steps: usize) -> Option<String> {
    let mut world = World::new(seed, broken);
    world.decide(simulated::begin).await;
    for _ in 0..steps {
        if let Some(wrong) = world.step().await {
            return Some(wrong);
        }
    }
    let published: usize = world.published.iter().map(Vec::len).sum();
    let is_busy = published > 0 && world.fires.len() > 10;
    assert!(broken != Broken::Nothing || is_busy || steps < 500, "something was done");
    let made = world.decide(simulated::made).await;
    if made.iter().collect::<std::collections::BTreeSet<_>>().len() != made.len() {
        return Some("the store has two jobs that a nominal time was fired for twice".into());
    }
    world.settle().await
}

#[tokio::test]
async fn no_slice_is_owned_twice_and_no_event_published_twice() {
    for seed in 0..6 {
        assert_eq!(history(seed, Broken::Nothing, 800).await, None, "seed {seed}");
    }
}

async fn caught(broken: Broken, by: &str) {
    for seed in 0..40 {
        if let Some(wrong) = history(seed, broken, 800).await {
            assert!(wrong.contains(by), "{wrong}");
            return;
        }
    }
    panic!("{broken:?} was not noticed");
}

#[tokio::test]
async fn a_missing_fence_check_is_caught() {
    caught(Broken::NoFence, "published").await;
}

#[tokio::test]
async fn a_renewal_without_a_token_is_caught() {
    caught(Broken::NoToken, "took the lease").await;
}

#[tokio::test]
async fn a_fire_in_two_commits_is_caught() {
    caught(Broken::TwoCommits, "fired for twice").await;
}
