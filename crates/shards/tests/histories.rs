//! Random histories of one service: checks the invariants after each step, and the final state after all
//! confirmations.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_shards::{Allocation, Heartbeat, Ranges, Refusal, Request, Rules, Service, Snapshot, Status};
use baton_types::Timestamp;
use proptest::prelude::*;

const TIMEOUT: Duration = Duration::from_secs(15);

fn rules(allocation: Allocation) -> Rules {
    Rules {
        allocation,
        timeout: TIMEOUT,
        forget_after: Duration::from_secs(60),
        rebalance_interval: Duration::ZERO,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Register { worker: u8, leased: bool, count: u32 },
    Beat { worker: u8 },
    Acknowledge { worker: u8 },
    Leave { worker: u8 },
    Drain { worker: u8, draining: bool },
    Silence { worker: u8 },
    Count { worker: u8, count: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let worker = 0u8..6;
    prop_oneof![
        3 => (worker.clone(), any::<bool>(), 0u32..40)
            .prop_map(|(worker, leased, count)| Step::Register { worker, leased, count }),
        2 => worker.clone().prop_map(|worker| Step::Beat { worker }),
        4 => worker.clone().prop_map(|worker| Step::Acknowledge { worker }),
        1 => worker.clone().prop_map(|worker| Step::Leave { worker }),
        1 => (worker.clone(), any::<bool>()).prop_map(|(worker, draining)| Step::Drain { worker, draining }),
        1 => worker.clone().prop_map(|worker| Step::Silence { worker }),
        1 => (worker, 0u32..40).prop_map(|(worker, count)| Step::Count { worker, count }),
    ]
}

/// A service with a clock, and the last heartbeat of each worker.
struct Model {
    service: Service,
    rules: Rules,
    now: Timestamp,
    /// Whether a worker has a session.
    leased: BTreeMap<u8, bool>,
    heard: BTreeMap<u32, Timestamp>,
}

fn id(worker: u8) -> Arc<str> {
    format!("w{worker}").into()
}

impl Model {
    fn new(allocation: Allocation) -> Self {
        let now = Timestamp::from_micros(1_000_000);
        let (leased, heard) = Default::default();
        Self { service: Service::default(), rules: rules(allocation), now, leased, heard }
    }

    fn beat(&self, worker: u8) -> Heartbeat {
        let session = self.leased.get(&worker).filter(|leased| **leased).map(|_| Arc::from("s"));
        Heartbeat { session, ..Heartbeat::from_worker(id(worker)) }
    }

    fn submit(&mut self, request: &Request) -> Result<u32, Refusal> {
        self.now = self.now.after(Duration::from_millis(10));
        let number = match self.service.unchanging_heartbeat(request) {
            Some(number) => {
                let before = self.service.clone();
                let mut applied = before.clone();
                applied.apply(request, &self.rules, self.now).unwrap();
                let seen = applied.worker(number).unwrap().last_heard_at;
                assert!(
                    seen >= before.worker(number).unwrap().last_heard_at && !applied.needs_rebalance,
                    "a routine changes nothing"
                );
                Ok(number)
            }
            None => self.service.apply(request, &self.rules, self.now),
        };
        if let Ok(number) = number {
            self.heard.insert(number, self.now);
        }
        self.settle();
        number
    }

    fn settle(&mut self) {
        let before = self.service.clone();
        self.service.rebalance(&self.rules, self.now);
        assert!(self.service.generation >= before.generation);
        for (at, shard) in self.service.shards().iter().enumerate() {
            let old = before.shards().get(at).copied().unwrap_or_default();
            assert!(shard.token >= old.token, "a token falls");
            if shard.owner != old.owner && shard.owner != 0 {
                assert!(shard.token > old.token, "a grant without a new token");
                let leased = before.worker(old.owner).is_some_and(|worker| worker.session.is_some());
                assert!(!leased, "a shard is taken from a worker that has not given it up");
            }
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Register { worker, leased, count } => {
                self.leased.insert(worker, leased);
                let beat = Heartbeat { is_registration: true, shard_count: Some(count), ..self.beat(worker) };
                self.submit(&Request::Heartbeat(beat)).unwrap();
            }
            Step::Beat { worker } => {
                let known = self.service.number(&id(worker)).is_some();
                let answer = self.submit(&Request::Heartbeat(self.beat(worker)));
                assert!(answer.is_ok() || known, "{answer:?}");
            }
            Step::Acknowledge { worker } => self.acknowledge(worker),
            Step::Leave { worker } => {
                let session = self.beat(worker).session;
                let _ = self.submit(&Request::Leave { worker: id(worker), session, caller: None });
            }
            Step::Drain { worker, draining } => {
                let _ = self.submit(&Request::Drain { worker: id(worker), draining });
            }
            Step::Silence { worker } => {
                let Some(number) = self.service.number(&id(worker)) else { return };
                self.now = self.now.after(TIMEOUT * 2);
                let now = self.now;
                self.service
                    .expire_silent_workers(&self.rules, now, |n| if n == number { None } else { Some(now) });
                self.settle();
            }
            Step::Count { worker, count } => {
                if self.service.number(&id(worker)).is_some() {
                    let _ = self.submit(&Request::Heartbeat(Heartbeat {
                        shard_count: Some(count),
                        ..self.beat(worker)
                    }));
                }
            }
        }
    }

    /// The worker confirms that it has stopped everything that was revoked.
    fn acknowledge(&mut self, worker: u8) {
        let Some(number) = self.service.number(&id(worker)) else { return };
        let snapshot = Snapshot::compute(Arc::new(self.service.clone()), 1);
        let found = snapshot.service.worker(number).unwrap();
        let held: Ranges = snapshot.view(number).shards();
        let beat = Heartbeat {
            session: found.session.clone(),
            generation: Some(found.generation),
            held: Some(held),
            ..Heartbeat::from_worker(id(worker))
        };
        self.submit(&Request::Heartbeat(beat)).unwrap();
    }

    fn check_always(&self) {
        for shard in self.service.shards() {
            assert!(
                shard.owner == 0 || self.service.worker(shard.owner).is_some(),
                "an owner that is not there"
            );
        }
        for (number, worker) in self.service.workers() {
            let revoking =
                self.service.shards().iter().filter(|shard| shard.owner == number && shard.revoking).count();
            assert_eq!(revoking, worker.revoking as usize);
            assert!(
                worker.status != Status::Inactive || self.service.shards().iter().all(|s| s.owner != number)
            );
        }
    }

    /// All workers confirm, and the leases of old sessions expire.
    fn settle_all(&mut self) {
        self.now = self.now.after(TIMEOUT * 2);
        let now = self.now;
        let fenced: Vec<u32> =
            self.service.workers().filter(|(_, w)| w.status == Status::Fenced).map(|(n, _)| n).collect();
        self.service
            .expire_silent_workers(&self.rules, now, |n| if fenced.contains(&n) { None } else { Some(now) });
        self.settle();
        for _ in 0..3 {
            (0..6).for_each(|worker| self.acknowledge_if_active(worker));
        }
    }

    fn acknowledge_if_active(&mut self, worker: u8) {
        let number = self.service.number(&id(worker));
        if number.is_some_and(|n| self.service.worker(n).unwrap().status == Status::Active) {
            self.acknowledge(worker);
        }
    }

    fn check_settled(&self) {
        let service = &self.service;
        let mut able: Vec<_> = service
            .workers()
            .filter(|(_, worker)| worker.status == Status::Active && !worker.draining)
            .collect();
        able.sort_by(|a, b| a.1.id.cmp(&b.1.id));
        assert_eq!(service.shards().len(), service.count as usize, "shards beyond the count are gone");
        let owners: Vec<u32> = service.shards().iter().map(|shard| shard.owner).collect();
        if able.is_empty() {
            assert!(owners.iter().all(|owner| *owner == 0));
            return;
        }
        let share = |number: u32| owners.iter().filter(|owner| **owner == number).count();
        let shares: Vec<usize> = able.iter().map(|(number, _)| share(*number)).collect();
        assert_eq!(shares.iter().sum::<usize>(), owners.len(), "each shard has one owner that is there");
        assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
        if self.rules.allocation == Allocation::Contiguous {
            let (base, extra) = (owners.len() / able.len(), owners.len() % able.len());
            let mut expected = Vec::new();
            for (at, (number, _)) in able.iter().enumerate() {
                expected.resize(expected.len() + base + usize::from(at < extra), *number);
            }
            assert_eq!(owners, expected, "floor and remainder, in the order of ids");
        }
    }
}

fn allocation() -> impl Strategy<Value = Allocation> {
    prop_oneof![Just(Allocation::Contiguous), Just(Allocation::Sticky)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_history_keeps_the_rules_and_settles(
        allocation in allocation(), steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut model = Model::new(allocation);
        for step in &steps {
            model.apply(step);
            model.check_always();
        }
        model.settle_all();
        model.check_always();
        model.check_settled();
    }

    #[test]
    fn sticky_moves_no_more_than_the_minimum_and_one(
        count in 1u32..200, before in 1u8..10, joins in any::<bool>(), gone in 0u8..10,
    ) {
        let mut model = Model::new(Allocation::Sticky);
        for worker in 0..before {
            model.apply(&Step::Register { worker, leased: true, count });
            (0..before).for_each(|worker| model.acknowledge_if_active(worker));
        }
        let owners = |model: &Model| model.service.shards().iter().map(|shard| shard.owner).collect::<Vec<_>>();
        let held = owners(&model);
        let minimum = if joins {
            model.apply(&Step::Register { worker: 20, leased: true, count });
            count / (u32::from(before) + 1)
        } else {
            prop_assume!(before > 1);
            let number = model.service.number(&id(gone % before)).unwrap();
            model.apply(&Step::Leave { worker: gone % before });
            held.iter().filter(|owner| **owner == number).count() as u32
        };
        for _ in 0..3 {
            (0..before).for_each(|worker| model.acknowledge_if_active(worker));
        }
        let moved = held.iter().zip(owners(&model)).filter(|(a, b)| **a != *b).count() as u32;
        prop_assert!(moved <= minimum + 1, "{moved} moved, {minimum} had to");
    }
}

#[test]
fn a_rolling_restart_moves_shards_once_when_asked_to_wait() {
    let mut model = Model::new(Allocation::Sticky);
    model.rules.rebalance_interval = Duration::from_secs(30);
    for worker in 0..4 {
        model.apply(&Step::Register { worker, leased: false, count: 40 });
    }
    model.now = model.now.after(Duration::from_secs(31));
    model.settle();
    let moves = |model: &Model| model.service.moves;
    let before = moves(&model);
    for worker in 0..4 {
        model.apply(&Step::Leave { worker });
        model.apply(&Step::Register { worker, leased: false, count: 40 });
        assert!(
            model.service.shards().iter().all(|shard| shard.owner != 0),
            "no worker waits for a free shard"
        );
    }
    let during = moves(&model) - before;
    model.now = model.now.after(Duration::from_secs(31));
    model.settle();
    let mut hasty = Model::new(Allocation::Sticky);
    for worker in 0..4 {
        hasty.apply(&Step::Register { worker, leased: false, count: 40 });
    }
    let start = moves(&hasty);
    for worker in 0..4 {
        hasty.apply(&Step::Leave { worker });
        hasty.apply(&Step::Register { worker, leased: false, count: 40 });
    }
    let patient = moves(&model) - before;
    assert!(
        patient < moves(&hasty) - start,
        "{patient} ({during} of them at once), {}",
        moves(&hasty) - start
    );
    model.check_settled();
}

#[test]
fn the_last_count_wins_and_a_count_that_no_worker_says_any_more_ends() {
    let mut model = Model::new(Allocation::Contiguous);
    let (a, b) = (0, 1);
    model.apply(&Step::Register { worker: a, leased: false, count: 10 });
    model.apply(&Step::Register { worker: b, leased: false, count: 1_000 });
    assert_eq!(model.service.count, 1_000);
    model.apply(&Step::Count { worker: a, count: 10 });
    assert_eq!(model.service.count, 1_000, "a beat that repeats its count is no news");
    model.apply(&Step::Register { worker: a, leased: false, count: 10 });
    assert_eq!(model.service.count, 10, "a registration is, whatever it said before");
    model.apply(&Step::Count { worker: b, count: 1_000 });
    assert_eq!(model.service.count, 10);
    model.apply(&Step::Register { worker: b, leased: false, count: 1_000 });
    model.apply(&Step::Leave { worker: b });
    model.apply(&Step::Count { worker: a, count: 10 });
    assert_eq!(model.service.count, 10, "the worker that said 1000 has left");
    model.apply(&Step::Register { worker: b, leased: false, count: 1_000 });
    model.apply(&Step::Silence { worker: b });
    model.apply(&Step::Count { worker: a, count: 10 });
    assert_eq!(model.service.count, 10, "the worker that said 1000 is silent");
}

#[test]
fn a_drained_worker_has_shards_again_with_a_new_session() {
    // In all ways in which the former session may end: still alive, declared dead, without a session, or silent.
    for (session, takes_over, silent) in
        [(true, false, false), (true, true, false), (false, false, false), (true, false, true)]
    {
        let mut model = Model::new(Allocation::Contiguous);
        model.apply(&Step::Register { worker: 0, leased: session, count: 4 });
        model.apply(&Step::Drain { worker: 0, draining: true });
        model.acknowledge(0);
        assert!(model.service.shards().iter().all(|shard| shard.owner == 0));
        if silent {
            model.apply(&Step::Silence { worker: 0 });
        }
        let again = Heartbeat {
            is_registration: true,
            session: Some("new".into()),
            take_over: takes_over,
            ..Heartbeat::from_worker(id(0))
        };
        let number = model.submit(&Request::Heartbeat(again)).unwrap();
        assert!(!model.service.worker(number).unwrap().draining);
        assert!(model.service.shards().iter().all(|shard| shard.owner == number));
    }
}

#[test]
fn a_live_worker_belongs_to_the_identity_that_registered_it() {
    let mut model = Model::new(Allocation::Contiguous);
    let beat = |session: &str, caller: Option<&str>, registers, takes_over| Heartbeat {
        is_registration: registers,
        take_over: takes_over,
        shard_count: Some(4),
        session: Some(session.into()),
        caller: caller.map(Arc::from),
        ..Heartbeat::from_worker(id(0))
    };
    let leave = |caller: &str| Request::Leave {
        worker: id(0),
        session: Some("one".into()),
        caller: Some(caller.into()),
    };
    let not_owner = Err(Refusal::NotOwner(id(0)));
    model.submit(&Request::Heartbeat(beat("one", Some("ann"), true, false))).unwrap();
    for caller in [Some("bob"), None] {
        for (session, registers, takes_over) in
            [("one", false, false), ("one", true, false), ("two", true, false), ("two", true, true)]
        {
            let foreign = Request::Heartbeat(beat(session, caller, registers, takes_over));
            assert_eq!(model.submit(&foreign), not_owner, "{foreign:?}");
        }
    }
    assert_eq!(model.submit(&leave("bob")), not_owner);
    model.submit(&Request::Heartbeat(beat("one", Some("ann"), false, false))).unwrap();
    // An old session that may still use its shards is alive, too.
    model.submit(&Request::Heartbeat(beat("two", Some("ann"), true, false))).unwrap();
    assert_eq!(model.submit(&leave("bob")), not_owner);
    model.submit(&leave("ann")).unwrap();
    // Once it is gone, another identity may use the id.
    model.apply(&Step::Silence { worker: 0 });
    model.submit(&Request::Heartbeat(beat("three", Some("bob"), false, false))).unwrap();
    assert_eq!(model.submit(&Request::Heartbeat(beat("two", Some("ann"), true, true))), not_owner);
}

#[test]
fn a_worker_without_an_identity_is_open_to_all_until_one_registers_it() {
    let mut model = Model::new(Allocation::Contiguous);
    model.apply(&Step::Register { worker: 0, leased: false, count: 4 });
    let by = |registers| Heartbeat {
        is_registration: registers,
        caller: Some("ann".into()),
        ..Heartbeat::from_worker(id(0))
    };
    model.submit(&Request::Heartbeat(by(false))).unwrap();
    model.apply(&Step::Beat { worker: 0 });
    model.submit(&Request::Heartbeat(Heartbeat { shard_count: Some(4), ..by(true) })).unwrap();
    assert_eq!(
        model.submit(&Request::Heartbeat(Heartbeat::from_worker(id(0)))),
        Err(Refusal::NotOwner(id(0)))
    );
}
