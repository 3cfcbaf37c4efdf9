//! Schedules on a store with a test clock.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use baton_jobs::schedule::{FireOutcome, Schedule, ScheduleSpec};
use baton_jobs::{Cancelled, Error, Leased, Outcome, WorkerId};
use baton_store::IdempotencyKey;
use baton_types::Timestamp;
use common::{Bench, START};
use proptest::prelude::*;

fn spec(rest: &str) -> ScheduleSpec {
    ScheduleSpec::parse(&format!(r#"{{"job": {{"jobType": "t", "queue": "q", "args": [1]}}, {rest}}}"#))
        .unwrap()
}

fn every(seconds: u64, rest: &str) -> ScheduleSpec {
    spec(&format!(r#""kind": "interval", "everyMs": {}{rest}"#, seconds * 1000))
}

/// A server with a worker, and a schedule `s`.
struct Fleet {
    bench: Bench,
    worker: WorkerId,
}

impl Fleet {
    async fn new(spec: ScheduleSpec) -> Self {
        let bench = Bench::new();
        let worker = bench.worker(&["q"]).await;
        let fleet = Self { bench, worker };
        fleet.put(spec).await;
        fleet
    }

    async fn put(&self, spec: ScheduleSpec) -> Schedule {
        self.bench.jobs.put_schedule("s".into(), spec, None).await.unwrap().0
    }

    async fn schedule(&self) -> Schedule {
        self.bench.jobs.schedule("s".into()).await.unwrap()
    }

    /// Advances the clock, second by second or at once, and leases the new jobs.
    async fn wait(&self, seconds: u64) -> Vec<Leased> {
        self.bench.advance(seconds);
        self.bench.settle().await;
        self.bench.lease(self.worker, 1000).await
    }

    async fn report(&self, jobs: &[Leased], outcome: Outcome) {
        for job in jobs {
            self.bench.report(job, outcome).await;
        }
    }
}

/// The nominal times of jobs, in seconds after the start.
fn fires(jobs: &[Leased]) -> Vec<i64> {
    let second = |job: &Leased| (job.spec.scheduled_for.unwrap().micros() - at(0).micros()) / 1_000_000;
    jobs.iter().map(second).collect()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_micros(START.millis() * 1000 + second * 1_000_000)
}

#[tokio::test]
async fn a_schedule_makes_one_job_for_each_nominal_time() {
    let fleet = Fleet::new(every(10, "")).await;
    assert_eq!(fires(&fleet.wait(9).await), [0i64; 0]);
    let jobs = fleet.wait(1).await;
    assert_eq!(fires(&jobs), [10]);
    assert_eq!((jobs[0].spec.schedule_id.as_deref(), &jobs[0].args[..]), (Some("s"), &b"[1]"[..]));
    assert_eq!(fires(&fleet.wait(0).await), [0i64; 0]);
    assert_eq!(fires(&fleet.wait(25).await), [20, 30]);
    let schedule = fleet.schedule().await;
    assert_eq!((schedule.jobs, schedule.next), (3, Some(at(40))));
    let shown = schedule.show("s", at(36));
    assert_eq!(shown["nextFires"].as_array().unwrap().len(), 5);
    assert_eq!(shown["nextFires"][0], at(40).to_iso_millis());
    assert_eq!(shown["lastFire"]["at"], at(30).to_iso_millis());
}

#[tokio::test]
async fn two_weeks_of_downtime_make_one_job_a_hundred_or_none() {
    let start = START.before(Duration::from_secs(14 * 86_400)).to_iso_micros();
    for (policy, jobs) in [("once", 1), ("all", 100), ("skip", 0)] {
        let past = format!(r#", "startAt": "{start}", "misfire": "{policy}""#);
        let fleet = Fleet::new(every(5, &past)).await;
        let made = fleet.wait(0).await;
        assert_eq!(made.len(), jobs, "{policy}");
        let nominal: BTreeSet<_> = fires(&made).into_iter().collect();
        assert_eq!(nominal.len(), jobs, "{policy}");
        assert!(nominal.iter().all(|second| (-500..=0).contains(second)), "{policy}: {nominal:?}");
        assert_eq!(fleet.schedule().await.misfires, 1);
        // From here on it fires normally.
        assert_eq!(fleet.wait(5).await.len(), 1, "{policy}");
    }
}

#[tokio::test]
async fn a_schedule_that_fires_once_does_so_and_ends() {
    let once = |at: Timestamp| spec(&format!(r#""kind": "once", "at": "{}""#, at.to_iso_micros()));
    let fleet = Fleet::new(once(at(30))).await;
    let jobs = fleet.wait(30).await;
    assert_eq!(fires(&jobs), [30]);
    fleet.report(&jobs, Outcome::Succeeded).await;
    assert_eq!(fires(&fleet.wait(1000).await), [0i64; 0]);
    assert_eq!(fleet.schedule().await.next, None);
    assert_eq!(fleet.bench.store_keys("jobs/fire/").await, Vec::<String>::new());
    let late = Fleet::new(once(at(-3600))).await;
    assert_eq!(fires(&late.wait(0).await), [-3600]);
}

#[tokio::test]
async fn overlap_skip_makes_no_job_while_one_is_under_way() {
    let fleet = Fleet::new(every(10, r#", "overlap": "skip""#)).await;
    let first = fleet.wait(10).await;
    assert_eq!(fires(&first), [10]);
    assert_eq!(fires(&fleet.wait(10).await), [0i64; 0]);
    assert_eq!(fleet.schedule().await.last_fire.unwrap().outcome, FireOutcome::Overlapped);
    fleet.report(&first, Outcome::Succeeded).await;
    assert_eq!(fires(&fleet.wait(10).await), [30]);
    assert_eq!(fleet.schedule().await.overlapped, 1);
}

#[tokio::test]
async fn overlap_queue_one_lets_one_fire_wait() {
    let fleet = Fleet::new(every(10, r#", "overlap": "queue_one""#)).await;
    let first = fleet.wait(10).await;
    for _ in 0..3 {
        assert_eq!(fires(&fleet.wait(10).await), [0i64; 0]);
        fleet.bench.beat(fleet.worker, &first).await;
    }
    assert_eq!(fleet.schedule().await.waiting, Some(at(20)));
    fleet.report(&first, Outcome::Succeeded).await;
    let second = fleet.wait(2).await;
    assert_eq!(fires(&second), [20]);
    fleet.report(&second, Outcome::Succeeded).await;
    assert_eq!(fires(&fleet.wait(8).await), [50]);
}

#[tokio::test]
async fn overlap_replace_asks_the_last_job_to_stop() {
    let fleet = Fleet::new(every(10, r#", "overlap": "replace""#)).await;
    let first = fleet.wait(10).await;
    let second = fleet.wait(10).await;
    assert_eq!(fires(&second), [20]);
    assert_eq!(fleet.bench.state(first[0].id).await, "cancelling");
    assert_eq!(fleet.bench.beat(fleet.worker, &first).await.cancel, [first[0].id]);
}

#[tokio::test]
async fn a_paused_schedule_does_nothing_and_goes_on_from_now() {
    let fleet = Fleet::new(every(10, "")).await;
    fleet.bench.jobs.enable_schedule("s".into(), false).await.unwrap();
    assert_eq!(fires(&fleet.wait(35).await), [0i64; 0]);
    assert_eq!(fleet.schedule().await.show("s", at(35))["nextFires"].as_array().unwrap().len(), 0);
    fleet.bench.jobs.enable_schedule("s".into(), true).await.unwrap();
    assert_eq!(fires(&fleet.wait(0).await), [0i64; 0]);
    assert_eq!(fires(&fleet.wait(5).await), [40]);
}

#[tokio::test]
async fn putting_the_same_schedule_again_loses_and_repeats_nothing() {
    let fleet = Fleet::new(every(10, "")).await;
    fleet.bench.advance(10);
    assert_eq!(fleet.put(every(10, "")).await.revision, 2);
    let jobs = fleet.wait(0).await;
    assert_eq!(fires(&jobs), [10]);
    fleet.report(&jobs, Outcome::Succeeded).await;
    fleet.put(every(10, "")).await;
    assert_eq!(fires(&fleet.wait(0).await), [0i64; 0]);
    fleet.put(every(7, "")).await;
    let jobs = fleet.wait(4).await;
    assert_eq!(fires(&jobs), [14]);
    fleet.report(&jobs, Outcome::Succeeded).await;
    let stale = fleet.bench.jobs.put_schedule("s".into(), every(9, ""), Some(1)).await;
    assert!(matches!(stale, Err(Error::Conflict { code: "revision", .. })), "{stale:?}");
    fleet.bench.jobs.remove_schedule("s".into(), None).await.unwrap();
    assert_eq!(fires(&fleet.wait(100).await), [0i64; 0]);
    assert_eq!(fleet.bench.store_keys("jobs/fire/").await, Vec::<String>::new());
}

fn once(key: &str) -> IdempotencyKey {
    IdempotencyKey::new(key, "schedules", b"")
}

#[tokio::test]
async fn a_trigger_fires_besides_and_only_once_for_a_key() {
    let fleet = Fleet::new(every(3600, r#", "overlap": "skip""#)).await;
    let trigger = |key: &str| fleet.bench.jobs.trigger_schedule("s".into(), Some(once(key)));
    let job = trigger("a").await.unwrap().unwrap();
    assert_eq!(trigger("a").await.unwrap().unwrap().job_id, job.job_id);
    let other = trigger("b").await;
    assert!(matches!(other, Err(Error::Conflict { code: "overlap", .. })), "{other:?}");
    let jobs = fleet.wait(0).await;
    assert_eq!(jobs.len(), 1);
    fleet.report(&jobs, Outcome::Succeeded).await;
    trigger("b").await.unwrap();
    assert_eq!(fleet.schedule().await.next, Some(at(3600)));
}

#[tokio::test]
async fn a_back_fill_fires_for_the_past_or_only_tells_it() {
    let fleet = Fleet::new(every(10, "")).await;
    fleet.bench.jobs.enable_schedule("s".into(), false).await.unwrap();
    fleet.wait(100).await;
    let stretch = (at(20), at(60));
    let jobs = &fleet.bench.jobs;
    let (times, cut) = jobs.schedule_fires_between("s".into(), stretch, 3).await.unwrap();
    assert_eq!((times.as_slice(), cut), ([at(20), at(30), at(40)].as_slice(), true));
    assert_eq!(fires(&fleet.wait(0).await), [0i64; 0]);
    let made = jobs.backfill_schedule("s".into(), times.clone(), Some(once("k"))).await.unwrap();
    let again = jobs.backfill_schedule("s".into(), times, Some(once("k"))).await.unwrap();
    assert_eq!(made, again);
    assert_eq!(fires(&fleet.wait(0).await), [20, 30, 40]);
    assert!(jobs.schedule_fires_between("s".into(), (at(60), at(20)), 3).await.is_err());
    assert!(jobs.schedule_fires_between("s".into(), (at(0), at(2000)), 3).await.is_err());
}

#[tokio::test]
async fn jitter_delays_the_job_and_not_the_fire() {
    let fleet = Fleet::new(every(600, r#", "jitterMs": 300000"#)).await;
    assert_eq!(fires(&fleet.wait(600).await), [0i64; 0]);
    assert_eq!(fleet.schedule().await.jobs, 1);
    assert_eq!(fires(&fleet.wait(300).await), [600]);
}

#[tokio::test]
async fn a_replaced_job_that_has_ended_is_left_alone() {
    let fleet = Fleet::new(every(10, r#", "overlap": "replace""#)).await;
    let first = fleet.wait(10).await;
    fleet.report(&first, Outcome::Succeeded).await;
    assert_eq!(fires(&fleet.wait(10).await), [20]);
    assert_eq!(fleet.bench.jobs.cancel(first[0].id, false, None).await.unwrap(), Cancelled::TooLate);
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Finish,
    Pause,
    Resume,
    PutAgain,
    Trigger,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..200).prop_map(Step::Wait),
        3 => Just(Step::Finish),
        1 => Just(Step::Pause),
        1 => Just(Step::Resume),
        1 => Just(Step::PutAgain),
        1 => Just(Step::Trigger),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn no_nominal_time_is_fired_for_twice_whatever_happens(
        steps in prop::collection::vec(step(), 10..40),
        overlap in prop::sample::select(vec!["allow", "skip", "queue_one", "replace"]),
        misfire in prop::sample::select(vec!["once", "all", "skip"]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let wanted = || every(10, &format!(r#", "overlap": "{overlap}", "misfire": "{misfire}""#));
            let fleet = Fleet::new(wanted()).await;
            let (mut seen, mut running, mut known) = (Vec::new(), Vec::new(), HashSet::new());
            for step in steps {
                match step {
                    Step::Wait(seconds) => {
                        let jobs = fleet.wait(seconds).await;
                        // A lost job is leased again, and a triggered one has no nominal time.
                        let fired = jobs.iter().filter(|job| known.insert(job.id));
                        seen.extend(fired.map(|job| job.spec.scheduled_for.unwrap()));
                        running.extend(jobs);
                    }
                    Step::Finish => {
                        fleet.report(&running, Outcome::Succeeded).await;
                        running.clear();
                    }
                    Step::Pause => drop(fleet.bench.jobs.enable_schedule("s".into(), false).await.unwrap()),
                    Step::Resume => drop(fleet.bench.jobs.enable_schedule("s".into(), true).await.unwrap()),
                    Step::PutAgain => drop(fleet.put(ScheduleSpec { enabled: true, ..wanted() }).await),
                    Step::Trigger => {
                        if let Ok(Some(job)) = fleet.bench.jobs.trigger_schedule("s".into(), None).await {
                            known.insert(job.job_id);
                        }
                    }
                }
                let schedule = fleet.schedule().await;
                let entries = fleet.bench.store_keys("jobs/fire/").await;
                prop_assert_eq!(entries.len(), usize::from(schedule.spec.enabled));
            }
            let distinct: BTreeSet<_> = seen.iter().collect();
            prop_assert_eq!(distinct.len(), seen.len(), "{:?}", seen);
            prop_assert!(overlap == "queue_one" || seen.is_sorted());
            Ok(())
        })?;
    }
}
