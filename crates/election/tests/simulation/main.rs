//! Thousands of elections in virtual time, with everything going wrong that can, and a checker that watches.
//!
//! Three to nine workers run the real machine against a store that is slow, fails, loses replies after a write, lets
//! requests arrive long after their sender gave up, and lists what was true a while ago. Workers crash, come back
//! under the same or another id, freeze for longer than a mandate, and have clocks that drift and walls that jump.
//! Storms of faults alternate with calm. What must hold is in `check`; two broken variants show that it can fail.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod check;
mod world;

use std::time::Duration;

use baton_election::Settings;
use check::Broken;
use world::{Plan, World};

/// The settings of a run: everything in proportion to its heartbeat.
fn settings(random: &mut world::Random) -> Settings {
    let heartbeat = Duration::from_millis(*random.pick(&[1000, 5000, 30_000]));
    let call = heartbeat / u32::try_from(random.between(4, 8)).unwrap();
    Settings {
        heartbeat_interval: heartbeat,
        worker_timeout: heartbeat * u32::try_from(random.between(3, 4)).unwrap(),
        min_epoch_duration: heartbeat * 2,
        max_epoch_duration: heartbeat * 10,
        cold_start_observation_window: heartbeat / 2,
        cold_start_preparation_delay: heartbeat / 6,
        skip_cold_start: random.chance(20),
        poll_interval: Some(heartbeat / u32::try_from(random.between(1, 4)).unwrap()),
        call_timeout: call,
        clock_drift: 0.02,
        claim_stagger: heartbeat / 10,
        prefer_first: random.chance(30),
        allow_short_epochs: true,
        ..Settings::default()
    }
}

fn plan(seed: u64) -> Plan {
    let mut random = world::Random::new(seed);
    let settings = settings(&mut random);
    settings.check().unwrap();
    Plan {
        seed,
        workers: random.between(3, 9),
        drift: 0.02,
        settings,
        storms: 3,
        conditional: true,
        deletes: random.chance(10),
        faults: true,
        sharing: *random.pick(&[0, 50, 100]),
        fences: true,
    }
}

/// Runs all plans and returns what the checker found in the first that it faulted.
fn run(plans: impl Iterator<Item = Plan>) -> Result<Totals, Broken> {
    let mut totals = Totals::default();
    for plan in plans {
        let mut world = World::new(plan);
        world.run()?;
        totals.runs += 1;
        totals.promotions += world.check.promotions();
        totals.lost_replies += world.lost_replies;
        totals.late_writes += world.late_writes;
        totals.long_pauses += world.long_pauses;
        totals.hours += world.elapsed().as_secs() / 3600;
        totals.stale_lists += world.stale_lists;
        totals.deletions += world.deletions;
        totals.fenced += world.fenced;
        totals.late_requests += world.late_requests;
        totals.slowest = totals.slowest.max(world.check.slowest);
    }
    Ok(totals)
}

#[derive(Debug, Default)]
struct Totals {
    runs: u64,
    promotions: u64,
    lost_replies: u64,
    late_requests: u64,
    late_writes: u64,
    deletions: u64,
    fenced: u64,
    long_pauses: u64,
    stale_lists: u64,
    hours: u64,
    /// The longest wait for a coordinator in a calm, in hundredths of the bound.
    slowest: u64,
}

#[test]
fn never_two_coordinators_and_never_none_for_long() {
    let runs = std::env::var("BATON_SIMULATION_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(2000);
    let first = std::env::var("BATON_SIMULATION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let totals = run((first..first + runs).map(plan)).unwrap_or_else(|broken| panic!("{broken:?}"));
    println!("{totals:?}");
    // The faults really happened, and elections did too.
    assert!(totals.promotions > runs * 3, "{totals:?}");
    assert!(
        totals.lost_replies > runs && totals.late_requests > runs && totals.late_writes > runs / 20,
        "{totals:?}"
    );
    assert!(totals.deletions > runs / 20 && totals.fenced > runs / 4, "{totals:?}");
    assert!(totals.long_pauses > runs / 2 && totals.stale_lists > runs / 2, "{totals:?}");
}

#[test]
fn without_faults_the_coordinator_never_changes_and_is_the_first() {
    for seed in 1..200 {
        let mut plan = Plan { faults: false, deletes: false, ..plan(seed) };
        plan.settings.prefer_first = false;
        plan.settings.skip_cold_start = false;
        let mut world = World::new(plan);
        world.run().unwrap_or_else(|broken| panic!("{broken:?}"));
        assert_eq!(world.check.promotions(), 1, "seed {seed}");
        assert_eq!(world.check.last_coordinator(), Some("w0"), "seed {seed}");
    }
}

#[test]
fn with_the_compare_and_set_removed_the_checker_finds_it() {
    let found = run((1..300).map(|seed| Plan { conditional: false, ..plan(seed) }));
    println!("{:?}", found.expect_err("a store that ignores conditions must be caught"));
}

#[test]
fn without_the_fencing_of_processes_the_checker_finds_it() {
    let careless = |seed| Plan { fences: false, sharing: 100, ..plan(seed) };
    let broken = run((1..2000).map(careless)).expect_err("a term taken from a live process must be caught");
    assert!(broken.what.contains("two coordinators"), "{broken:?}");
}

#[test]
fn with_clocks_worse_than_promised_the_checker_finds_it() {
    let optimist = |seed| {
        let plan = plan(seed);
        Plan { drift: 0.15, settings: Settings { clock_drift: 0.0, ..plan.settings.clone() }, ..plan }
    };
    let broken = run((1..2000).map(optimist)).expect_err("leases that are too long must be caught");
    assert!(broken.what.contains("two coordinators"), "{broken:?}");
}
