//! Problems that users report of other job systems, one test for each; [`TESTS`] maps them.
//!
//! These tests use a test clock; tests that need processes (signals, a server that dies) are in the process suites.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use baton_jobs::{
    BulkAction, Cancelled, Dependency, Desired, Error, Filter, Heartbeat, JobError, LogAppended, LogQuery,
    NewJob, NewLogLine, NewLogLines, OnConflict, Outcome, QueueSettings, Rate, Report, Reported, State,
    Unique, UniqueScope, WaitReason, When, limits,
};
use baton_store::IdempotencyKey;
use common::Bench;

/// The test of each problem, by its number in the list.
const TESTS: [(u32, &str, &str); 25] = [
    (1, "crates/jobs/tests/pains.rs", "a_killed_worker_does_not_leave_its_jobs_running"),
    (2, "crates/jobs/tests/pains.rs", "a_long_job_whose_worker_is_alive_is_not_run_again"),
    (3, "crates/jobs/tests/pains.rs", "recovery_does_not_overwrite_a_job_that_just_finished"),
    (4, "crates/jobs/tests/pains.rs", "a_worker_that_starts_again_under_its_name_hides_nothing"),
    (5, "crates/jobs/tests/pains.rs", "a_node_that_led_once_changes_nothing"),
    (5, "tests/jobs/test_fires.py", "test_servers_that_share_a_database_fire_once"),
    (6, "tests/jobs/test_fires.py", "test_no_fire_is_lost_or_repeated_over_kills"),
    (7, "crates/jobs/tests/pains.rs", "a_node_that_takes_over_knows_every_schedule_and_its_zone"),
    (8, "crates/schedules/tests/calendar.rs", "dst_in_new_york"),
    (9, "crates/jobs/tests/pains.rs", "a_node_that_takes_over_knows_every_schedule_and_its_zone"),
    (10, "crates/jobs/tests/schedules.rs", "two_weeks_of_downtime_make_one_job_a_hundred_or_none"),
    (
        11,
        "crates/jobs/tests/faults.rs",
        "a_fire_that_fails_leaves_nothing_behind_and_happens_with_the_next_try",
    ),
    (12, "crates/jobs/tests/schedules.rs", "overlap_skip_makes_no_job_while_one_is_under_way"),
    (13, "crates/jobs/tests/pains.rs", "a_worker_that_is_heard_and_takes_no_work_is_seen"),
    (14, "crates/jobs/tests/faults.rs", "a_slow_and_lying_store_loses_no_job_and_accepts_none_twice"),
    (15, "tests/crash/test_jobs.py", "test_no_job_is_lost_and_none_accepted_twice_when_the_server_is_killed"),
    (16, "crates/jobs/tests/pains.rs", "a_job_that_kills_its_workers_is_stopped_after_three"),
    (17, "crates/jobs/tests/pains.rs", "a_cancelled_job_is_stopped_and_one_that_does_not_stop_is_taken_away"),
    (17, "crates/jobs/tests/pains.rs", "a_job_that_runs_too_long_is_taken_away_and_tried_again"),
    (18, "crates/jobs/tests/pains.rs", "a_draining_worker_keeps_its_leases_for_as_long_as_it_is_heard"),
    (19, "crates/jobs/tests/pains.rs", "a_search_finds_by_label_and_looks_at_a_bounded_number"),
    (20, "crates/jobs/tests/pains.rs", "a_unique_key_does_not_outlive_its_job"),
    (21, "crates/jobs/tests/pains.rs", "a_flood_of_one_tenant_does_not_hold_up_the_others"),
    (22, "crates/jobs/tests/pains.rs", "a_flood_of_log_lines_is_bounded_and_says_what_is_missing"),
    (23, "crates/jobs/tests/faults.rs", "a_call_that_is_never_answered_does_not_hang_the_duties"),
];

#[test]
fn every_pain_has_a_test() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (number, file, name) in TESTS {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        assert!(text.contains(&format!(" {name}(")), "{number}: {name} is not in {file}");
    }
    assert!((1..=23).all(|number| TESTS.iter().any(|(of, ..)| *of == number)));
}

fn job(queue: &str) -> NewJob {
    NewJob::new(queue, "t", "{}")
}

#[tokio::test]
async fn a_killed_worker_does_not_leave_its_jobs_running() {
    let bench = Bench::new();
    let (dead, alive) = (bench.worker(&["q"]).await, bench.worker(&["q"]).await);
    let id = bench.enqueue(job("q")).await.job_id;
    assert_eq!(bench.lease(dead, 1).await.len(), 1);
    bench.pass(31).await;
    let again = bench.lease(alive, 1).await;
    assert_eq!((again[0].id, again[0].execution.fence), (id, 3));
    let detail = bench.jobs.detail(id).await.unwrap();
    assert_eq!(detail.history[0].outcome, Some(Outcome::Lost));
    assert_eq!(detail.job.attempts, 1, "a loss is no attempt");
}

async fn no_lease_ends_in_a_gap(bench: Bench) {
    let (alive, dead) = (bench.worker(&["q"]).await, bench.worker(&["q"]).await);
    let short = || {
        let mut job = job("q");
        job.spec.timeout_ms = 20_000;
        job
    };
    bench.jobs.enqueue(vec![job("q"), job("q"), short(), job("q")], None).await.unwrap();
    let kept = bench.lease(alive, 3).await;
    let lost = bench.lease(dead, 1).await;
    bench.jobs.cancel(kept[1].id, false, None).await.unwrap();
    bench.pass(5).await;
    // More often than a job may be lost. After a restart only the store's state is left.
    let mut jobs = bench.jobs.clone();
    for seconds in [31, 3600, 60, 60] {
        bench.advance(seconds);
        assert!(jobs.sweep().await.unwrap());
        bench.advance(9);
        let heard = bench.beat(alive, &kept).await;
        assert_eq!(
            (heard.lost.as_slice(), heard.cancel.as_slice()),
            ([].as_slice(), [kept[1].id].as_slice())
        );
        jobs = bench.another_server();
    }
    let states = [State::Completed, State::Cancelled, State::Completed];
    for (leased, state) in kept.iter().zip(states) {
        let outcome = if state == State::Cancelled { Outcome::Cancelled } else { Outcome::Succeeded };
        assert_eq!(bench.report(leased, outcome).await, Reported::Accepted(state));
    }
    // The silence of the dead worker counts from the last gap on.
    assert_eq!(bench.state(lost[0].id).await, "running");
    bench.pass(31).await;
    assert_eq!(bench.state(lost[0].id).await, "dispatched");
    let detail = bench.jobs.detail(lost[0].id).await.unwrap();
    assert_eq!(detail.history.len(), 1, "one loss is charged, and that is the worker's own");
}

#[tokio::test]
async fn running_jobs_survive_a_gap_longer_than_their_leases() {
    no_lease_ends_in_a_gap(Bench::new()).await;
}

#[tokio::test]
async fn running_jobs_survive_a_gap_longer_than_their_leases_on_postgres() {
    let options = baton_jobs::Options { sole: true, duties: false, ..baton_jobs::Options::default() };
    no_lease_ends_in_a_gap(Bench::on_postgres(options).await).await;
}

#[tokio::test]
async fn a_dead_worker_is_found_out_although_leaders_follow_each_other() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let id = bench.enqueue(job("q")).await.job_id;
    bench.lease(worker, 1).await;
    for _ in 0..7 {
        bench.pass(5).await;
        // Each server has only the store's state.
        assert!(bench.another_server().sweep().await.unwrap());
    }
    assert_eq!(bench.state(id).await, "dispatched");
}

#[tokio::test]
async fn a_long_job_whose_worker_is_alive_is_not_run_again() {
    let bench = Bench::new();
    let (worker, other) = (bench.worker(&["q"]).await, bench.worker(&["q"]).await);
    let mut long = job("q");
    long.spec.timeout_ms = 0;
    bench.enqueue(long).await;
    let leased = bench.lease(worker, 1).await;
    for _ in 0..500 {
        bench.advance(10);
        bench.settle().await;
        assert!(bench.beat(worker, &leased).await.lost.is_empty());
        assert!(bench.lease(other, 1).await.is_empty());
    }
    assert_eq!(bench.report(&leased[0], Outcome::Succeeded).await, Reported::Accepted(State::Completed));
}

#[tokio::test]
async fn recovery_does_not_overwrite_a_job_that_just_finished() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let id = bench.enqueue(job("q")).await.job_id;
    let leased = bench.lease(worker, 1).await;
    bench.advance(31);
    assert_eq!(bench.report(&leased[0], Outcome::Succeeded).await, Reported::Accepted(State::Completed));
    bench.settle().await;
    assert_eq!(bench.state(id).await, "completed");
}

#[tokio::test]
async fn an_execution_that_comes_too_late_is_told_so_and_the_second_one_stands() {
    let bench = Bench::new();
    let (first, second) = (bench.worker(&["q"]).await, bench.worker(&["q"]).await);
    let id = bench.enqueue(job("q")).await.job_id;
    let old = bench.lease(first, 1).await;
    bench.pass(31).await;
    let new = bench.lease(second, 1).await;
    assert_eq!(bench.report(&old[0], Outcome::Succeeded).await, Reported::StaleFence { current: 3 });
    assert_eq!(bench.beat(first, &old).await.lost, [id]);
    let mut report = Report::new(id, new[0].execution.fence, Outcome::Succeeded);
    report.result = "\"second\"".into();
    assert_eq!(bench.jobs.report(vec![report]).await.unwrap(), [Reported::Accepted(State::Completed)]);
    assert_eq!(bench.jobs.detail(id).await.unwrap().result.as_deref(), Some(&b"\"second\""[..]));
}

#[tokio::test]
async fn a_worker_that_starts_again_under_its_name_hides_nothing() {
    let bench = Bench::new();
    let before = bench.worker(&["q"]).await;
    let id = bench.enqueue(job("q")).await.job_id;
    bench.lease(before, 1).await;
    let after = bench.worker(&["q"]).await;
    assert_ne!(before, after);
    for _ in 0..4 {
        bench.advance(10);
        bench.beat(after, &[]).await;
        bench.settle().await;
    }
    assert_eq!(bench.lease(after, 1).await[0].id, id, "the name is alive, the execution is not");
}

#[tokio::test]
async fn a_worker_that_is_heard_and_takes_no_work_is_seen() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    for _ in 0..12 {
        bench.advance(10);
        bench.beat(worker, &[]).await;
    }
    let seen = bench.jobs.worker(worker).await.unwrap();
    assert!(seen.seen_at.since(seen.leased_at) > Duration::from_secs(100));
}

#[tokio::test]
async fn a_job_that_kills_its_workers_is_stopped_after_three() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let id = bench.enqueue(job("q")).await.job_id;
    for loss in 1..=3 {
        assert_eq!(bench.lease(worker, 1).await.len(), 1, "{loss}");
        bench.pass(31).await;
    }
    assert!(bench.lease(worker, 1).await.is_empty());
    let letters = bench.jobs.dead_letters(None, 10).await.unwrap();
    assert_eq!(letters.jobs[0].id, id);
    assert_eq!(bench.jobs.detail(id).await.unwrap().job.error.unwrap().kind, "poison");
    assert_eq!(bench.jobs.replay(vec![id], None).await.unwrap(), 1);
    assert_eq!(bench.lease(worker, 1).await.len(), 1);
    assert!(bench.jobs.dead_letters(None, 10).await.unwrap().jobs.is_empty());
}

#[tokio::test]
async fn a_cancelled_job_is_stopped_and_one_that_does_not_stop_is_taken_away() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let (good, bad) = (bench.enqueue(job("q")).await.job_id, bench.enqueue(job("q")).await.job_id);
    let leased = bench.lease(worker, 2).await;
    for id in [good, bad] {
        assert_eq!(bench.jobs.cancel(id, false, None).await.unwrap(), Cancelled::Asked);
    }
    assert_eq!(bench.beat(worker, &leased).await.cancel, [good, bad]);
    assert_eq!(bench.report(&leased[0], Outcome::Cancelled).await, Reported::Accepted(State::Cancelled));
    bench.pass(31).await;
    assert_eq!(bench.state(bad).await, "cancelled");
    assert!(matches!(bench.report(&leased[1], Outcome::Succeeded).await, Reported::StaleFence { .. }));
    assert_eq!(bench.jobs.cancel(bad, true, None).await.unwrap(), Cancelled::TooLate);
}

#[tokio::test]
async fn the_reason_of_a_cancellation_is_kept_however_the_job_ends() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let jobs = bench.jobs.enqueue((0..4).map(|_| job("q")).collect(), None).await.unwrap();
    bench.settle().await;
    // Reasons for a waiting job, a job whose worker stops, one then cancelled by force, one whose worker does not
    // stop.
    let leased = bench.lease(worker, 3).await;
    for one in &jobs {
        bench.jobs.cancel(one.job_id, false, Some("not needed".into())).await.unwrap();
    }
    bench.report(&leased[0], Outcome::Cancelled).await;
    bench.jobs.cancel(leased[1].id, true, None).await.unwrap();
    bench.pass(31).await;
    for one in &jobs {
        let detail = bench.jobs.detail(one.job_id).await.unwrap();
        assert_eq!(detail.job.state, State::Cancelled);
        let error = detail.job.error.as_ref().unwrap();
        assert_eq!((error.kind.as_str(), error.message.starts_with("not needed")), ("cancelled", true));
    }
}

#[tokio::test]
async fn a_job_that_runs_too_long_is_taken_away_and_tried_again() {
    let bench = Bench::new();
    bench.settle().await;
    let worker = bench.worker(&["q"]).await;
    let mut slow = job("q");
    slow.spec.timeout_ms = 5_000;
    slow.spec.retry.max_retries = 1;
    let id = bench.enqueue(slow).await.job_id;
    for (state, reason) in [("scheduled", Some(WaitReason::Retry)), ("timed_out", None)] {
        let leased = bench.lease(worker, 1).await;
        bench.pass(6).await;
        let job = bench.jobs.get(id).await.unwrap();
        assert_eq!((job.state.word(), job.wait_reason), (state, reason));
        assert_eq!(bench.beat(worker, &leased).await.lost, [id]);
        bench.pass(20).await;
    }
    assert_eq!(bench.jobs.dead_letters(None, 10).await.unwrap().jobs.len(), 1);
}

#[tokio::test]
async fn a_draining_worker_gets_nothing_new_and_gives_back_for_free() {
    let bench = Bench::new();
    let (worker, other) = (bench.worker(&["q"]).await, bench.worker(&["q"]).await);
    let id = bench.enqueue(job("q")).await.job_id;
    bench.enqueue(job("q")).await;
    let leased = bench.lease(worker, 1).await;
    bench.jobs.set_desired(worker, Desired::Draining, Duration::from_secs(30)).await.unwrap();
    assert!(bench.lease(worker, 1).await.is_empty());
    assert_eq!(bench.beat(worker, &leased).await.desired, Desired::Draining);
    assert_eq!(bench.report(&leased[0], Outcome::Released).await, Reported::Accepted(State::Dispatched));
    let again = bench.lease(other, 1).await;
    assert_eq!((again[0].id, again[0].attempt), (id, 1));
}

#[tokio::test]
async fn a_draining_worker_keeps_its_leases_for_as_long_as_it_is_heard() {
    let bench = Bench::new();
    let (worker, other) = (bench.worker(&["q"]).await, bench.worker(&["q"]).await);
    bench.enqueue(job("q")).await;
    let leased = bench.lease(worker, 1).await;
    bench.jobs.set_desired(worker, Desired::Draining, Duration::from_secs(60)).await.unwrap();
    for _ in 0..6 {
        bench.advance(10);
        bench.settle().await;
        let heard = bench.beat(worker, &leased).await;
        assert!(heard.lost.is_empty() && heard.desired == Desired::Draining);
        assert!(bench.lease(other, 1).await.is_empty());
    }
    assert_eq!(bench.report(&leased[0], Outcome::Succeeded).await, Reported::Accepted(State::Completed));
}

#[tokio::test]
async fn a_node_that_takes_over_knows_every_schedule_and_its_zone() {
    let bench = Bench::new();
    bench.settle().await;
    let spec = |zone: &str| {
        let text = format!(
            r#"{{"kind": "cron", "cron": "0 3 * * *", "timeZone": "{zone}", "job": {{"jobType": "t", "queue": "q"}}}}"#
        );
        baton_jobs::schedule::ScheduleSpec::parse(&text).unwrap()
    };
    let zones = ["UTC", "Asia/Tokyo", "America/New_York"];
    for zone in zones {
        bench.jobs.put_schedule(zone.replace('/', "-"), spec(zone), None).await.unwrap();
    }
    // The leader is gone; the next one has only the store's state.
    bench.advance(31);
    let options = baton_jobs::Options { sole: false, duties: false, ..baton_jobs::Options::default() };
    let other = baton_jobs::Jobs::start(bench.store.clone(), options);
    for _ in 0..24 * 6 {
        assert!(other.sweep().await.unwrap());
        bench.advance(600);
    }
    let worker = bench.worker(&["q"]).await;
    let hours: std::collections::BTreeMap<_, _> = bench
        .lease(worker, 100)
        .await
        .iter()
        .map(|one| {
            let at = one.spec.scheduled_for.unwrap().to_iso_millis();
            (one.spec.schedule_id.clone().unwrap(), at[11..16].to_owned())
        })
        .collect();
    let expected = [("America-New_York", "08:00"), ("Asia-Tokyo", "18:00"), ("UTC", "03:00")];
    assert!(hours.iter().map(|(id, at)| (id.as_str(), at.as_str())).eq(expected), "{hours:?}");
}

#[tokio::test]
async fn a_flood_of_one_tenant_does_not_hold_up_the_others() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let of = |tenant: &str| {
        let mut job = job("q");
        job.spec.concurrency_key = Some(tenant.into());
        job.spec.concurrency_limit = Some(2);
        job
    };
    for _ in 0..5 {
        bench.jobs.enqueue((0..1_000).map(|_| of("loud")).collect(), None).await.unwrap();
    }
    let quiet = bench.jobs.enqueue((0..10).map(|_| of("quiet")).collect(), None).await.unwrap();
    let quiet: Vec<_> = quiet.iter().map(|one| one.job_id).collect();
    // As many rounds as the quiet tenant would need alone.
    let mut done = 0;
    for _ in 0..5 {
        for leased in bench.lease(worker, 10).await {
            bench.report(&leased, Outcome::Succeeded).await;
            done += usize::from(quiet.contains(&leased.id));
        }
    }
    assert_eq!(done, 10);
}

#[tokio::test]
async fn a_search_finds_by_label_and_looks_at_a_bounded_number() {
    let bench = Bench::new();
    let mut tagged = job("q");
    tagged.spec.tags = vec!["rare".into()];
    tagged.spec.correlation_id = Some("order-7".into());
    let id = bench.enqueue(tagged).await.job_id;
    for _ in 0..20 {
        bench.jobs.enqueue((0..1000).map(|_| job("q")).collect(), None).await.unwrap();
    }
    for filter in [
        Filter { tag: Some("rare".into()), ..Filter::default() },
        Filter { correlation_id: Some("order-7".into()), ..Filter::default() },
    ] {
        let page = bench.jobs.search(filter, None, 10).await.unwrap();
        assert_eq!(page.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [id]);
    }
    // A rare state among many jobs: pages are short and have a cursor.
    bench.jobs.cancel(id, false, None).await.unwrap();
    let filter = Filter { states: vec![State::Cancelled], ..Filter::default() };
    let (mut found, mut cursor, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = bench.jobs.search(filter.clone(), cursor, 10).await.unwrap();
        found.extend(page.jobs.iter().map(|job| job.id));
        (cursor, pages) = (page.next, pages + 1);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(found, [id]);
    assert!(pages > 1);
    let all = Filter { queue: Some("q".into()), ..Filter::default() };
    let dry = bench.jobs.bulk(BulkAction::Cancel, all.clone(), None, true).await.unwrap();
    assert_eq!((dry.matched, dry.changed), (20_000, 0));
    let done = bench.jobs.bulk(BulkAction::Cancel, all, None, false).await.unwrap();
    assert_eq!((done.matched, done.changed), (20_000, 20_000));
    assert_eq!(bench.jobs.queue("q").await.unwrap().counts["cancelled"], 20_001);
}

#[tokio::test]
async fn a_list_is_newest_first_over_all_queues_and_its_pages_do_not_move() {
    let bench = Bench::new();
    let mut accepted = Vec::new();
    for number in 0..300u64 {
        let queue = format!("q{}", [0, 1, 2, 1, 0, 0, 3][number as usize % 7]);
        accepted.push(bench.enqueue(job(&queue)).await.job_id);
        bench.clock.advance(Duration::from_micros(1));
    }
    // A batch has one acceptance time.
    let batch = bench.jobs.enqueue(["q3", "q0", "q2", "q0"].map(job).into(), None).await.unwrap();
    accepted.extend(batch.iter().map(|one| one.job_id));
    accepted.reverse();
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = bench.jobs.search(Filter::default(), cursor, 7).await.unwrap();
        found.extend(page.jobs.iter().map(|job| job.id));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
        // Jobs accepted meanwhile, also in a new queue, do not belong to this listing.
        bench.advance(1);
        bench.enqueue(job("q2")).await;
        bench.enqueue(job("q4")).await;
    }
    assert_eq!(found.len(), accepted.len());
    assert_eq!(found[4..], accepted[4..]);
    let mut last = [found[..4].to_vec(), accepted[..4].to_vec()];
    last.iter_mut().for_each(|jobs| jobs.sort_by_key(ToString::to_string));
    assert_eq!(last[0], last[1]);
}

#[tokio::test]
async fn workers_that_leave_or_fall_silent_are_not_listed() {
    let bench = Bench::new();
    let (left, silent) = (bench.worker(&["q"]).await, bench.worker(&["q"]).await);
    bench.jobs.deregister(left).await.unwrap();
    assert!(matches!(bench.jobs.deregister(left).await, Err(Error::NotFound(_))));
    let listed =
        async || bench.jobs.workers().await.unwrap().into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(listed().await, [silent]);
    bench.advance(59 * 60);
    assert_eq!(listed().await, [silent]);
    bench.advance(61);
    assert_eq!(listed().await, []);
}

#[tokio::test]
async fn a_heartbeat_that_waits_hears_at_once_what_to_stop() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    for force in [false, true] {
        for server in [bench.jobs.clone(), bench.another_server()] {
            let id = bench.enqueue(job("q")).await.job_id;
            let held = bench.lease(worker, 1).await;
            let waiting = {
                let (jobs, beat) = (bench.jobs.clone(), Heartbeat { worker, running: Vec::new() });
                tokio::spawn(async move { jobs.heartbeat(beat, Duration::from_secs(3600)).await })
            };
            server.cancel(id, force, None).await.unwrap();
            // The policy waits ten seconds; a heartbeat that is not woken finds nothing new at the end.
            let heard = waiting.await.unwrap().unwrap();
            assert!(heard.is_news);
            assert_eq!((heard.cancel == [id], heard.lost == [id]), (!force, force));
            // Waiting heartbeats report it once, and so does each heartbeat that lists the job.
            let again = bench
                .jobs
                .heartbeat(Heartbeat { worker, running: Vec::new() }, Duration::ZERO)
                .await
                .unwrap();
            assert!(!again.is_news && again.cancel.is_empty() && again.lost.is_empty());
            let heard = bench.beat(worker, &held).await;
            assert_eq!((heard.cancel == [id], heard.lost == [id]), (!force, force));
            bench.report(&held[0], Outcome::Cancelled).await;
        }
    }
    bench.jobs.set_desired(worker, Desired::Draining, Duration::ZERO).await.unwrap();
    let beat = Heartbeat { worker, running: Vec::new() };
    let heard = bench.jobs.heartbeat(beat, Duration::from_secs(3600)).await.unwrap();
    assert!(heard.is_news && heard.desired == Desired::Draining);
}

#[tokio::test]
async fn lists_say_why_jobs_failed() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let mut once = job("q");
    once.spec.retry.max_retries = 0;
    let (failed, cancelled) = (bench.enqueue(once).await.job_id, bench.enqueue(job("q")).await.job_id);
    let leased = bench.lease(worker, 1).await;
    let mut report = Report::new(failed, leased[0].execution.fence, Outcome::Failed);
    report.error = Some(JobError { kind: "smtp".into(), message: "no route".into() });
    bench.jobs.report(vec![report]).await.unwrap();
    bench.jobs.cancel(cancelled, false, Some("not wanted".into())).await.unwrap();
    let listed = bench.jobs.search(Filter::default(), None, 10).await.unwrap().jobs;
    let errors: Vec<_> = listed.iter().map(|job| job.error.as_ref().unwrap().message.as_str()).collect();
    assert_eq!(errors, ["not wanted", "no route"]);
    let dead = bench.jobs.dead_letters(None, 10).await.unwrap().jobs;
    assert_eq!(dead[0].error.as_ref().unwrap().kind, "smtp");
}

fn unique(key: &str, on_conflict: OnConflict) -> NewJob {
    let unique = Unique { key: key.into(), scope: UniqueScope::Active, window: Duration::ZERO, on_conflict };
    NewJob { unique: Some(unique), ..job("q") }
}

#[tokio::test]
async fn a_unique_key_does_not_outlive_its_job() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let first = bench.enqueue(unique("k", OnConflict::Return)).await;
    let second = bench.enqueue(unique("k", OnConflict::Return)).await;
    assert_eq!((second.job_id, second.deduplicated), (first.job_id, true));
    let refused = bench.jobs.enqueue(vec![unique("k", OnConflict::Reject), job("q")], None).await;
    assert!(matches!(refused, Err(Error::Conflict { code: "unique_key_taken", .. })));
    assert_eq!(bench.jobs.queue("q").await.unwrap().counts["dispatched"], 1, "all or none");
    let replaced = bench.enqueue(unique("k", OnConflict::Replace)).await;
    assert_eq!(bench.state(first.job_id).await, "cancelled");
    let leased = bench.lease(worker, 1).await;
    assert_eq!(leased[0].id, replaced.job_id);
    bench.report(&leased[0], Outcome::Succeeded).await;
    assert!(!bench.enqueue(unique("k", OnConflict::Return)).await.deduplicated);
}

#[tokio::test]
async fn a_hundred_enqueues_of_one_unique_key_are_one_job() {
    let bench = Bench::new();
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let jobs = bench.jobs.clone();
            tokio::spawn(async move {
                jobs.enqueue(vec![unique("k", OnConflict::Return)], None).await.unwrap()[0]
            })
        })
        .collect();
    let mut ids = Vec::new();
    for task in tasks {
        ids.push(task.await.unwrap());
    }
    assert_eq!(ids.iter().filter(|one| !one.deduplicated).count(), 1);
    assert!(ids.iter().all(|one| one.job_id == ids[0].job_id));
}

#[tokio::test]
async fn a_unique_window_holds_whatever_becomes_of_the_job() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let windowed = || {
        let unique = Unique {
            key: "k".into(),
            scope: UniqueScope::Window,
            window: Duration::from_secs(60),
            on_conflict: OnConflict::Return,
        };
        NewJob { unique: Some(unique), ..job("q") }
    };
    bench.enqueue(windowed()).await;
    let leased = bench.lease(worker, 1).await;
    bench.report(&leased[0], Outcome::Succeeded).await;
    assert!(bench.enqueue(windowed()).await.deduplicated);
    bench.advance(61);
    assert!(!bench.enqueue(windowed()).await.deduplicated);
}

#[tokio::test]
async fn a_key_limit_holds_over_many_jobs_and_lost_workers() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let limited = |_| {
        let mut job = job("q");
        job.spec.concurrency_key = Some("tenant".into());
        job.spec.concurrency_limit = Some(3);
        job
    };
    bench.jobs.enqueue((0..60).map(limited).collect(), None).await.unwrap();
    let free = bench.enqueue(job("q")).await.job_id;
    let mut done = 0;
    for round in 0.. {
        assert!(round < 200);
        let leased = bench.lease(worker, 100).await;
        let of_key: Vec<_> = leased.iter().filter(|one| one.id != free).collect();
        assert!(of_key.len() <= 3, "{}", of_key.len());
        // Jobs that wait for their key delay no other job.
        assert_eq!(leased.len() - of_key.len(), usize::from(round == 0));
        if let Some(one) = leased.iter().find(|one| one.id == free) {
            bench.report(one, Outcome::Succeeded).await;
        }
        if of_key.is_empty() {
            break;
        }
        if round % 5 == 4 {
            bench.pass(31).await;
            continue;
        }
        for one in of_key {
            bench.report(one, Outcome::Succeeded).await;
            done += 1;
        }
    }
    assert_eq!(done, 60);
    assert_eq!(bench.jobs.audit().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_rate_and_a_pause_hold_jobs_back_and_say_why() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let jobs = bench.jobs.enqueue((0..10).map(|_| job("q")).collect(), None).await.unwrap();
    let rate = Some(Rate { count: 4, per_ms: 1_000 });
    let settings = QueueSettings { rate_limit: rate, ..QueueSettings::default() };
    bench.jobs.set_queue("q", settings).await.unwrap();
    assert_eq!(bench.lease(worker, 100).await.len(), 4);
    let last = jobs[9].job_id;
    assert_eq!(bench.jobs.get(last).await.unwrap().wait_reason, Some(WaitReason::RateLimit));
    bench.advance(2);
    assert_eq!(bench.lease(worker, 100).await.len(), 4);
    bench.jobs.pause("q", true).await.unwrap();
    bench.advance(1);
    assert!(bench.lease(worker, 100).await.is_empty());
    assert_eq!(bench.jobs.get(last).await.unwrap().wait_reason, Some(WaitReason::Paused));
    bench.jobs.pause("q", false).await.unwrap();
    assert_eq!(bench.lease(worker, 100).await.len(), 2);
}

#[tokio::test]
async fn a_low_priority_gets_its_turn_under_steady_high_load() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let low = bench.enqueue(NewJob { priority: 0, ..job("q") }).await.job_id;
    for minute in 0.. {
        // Twice as many jobs arrive as finish, so those of high priority grow old, too.
        assert!(minute < 12, "it starves");
        bench
            .jobs
            .enqueue((0..10).map(|_| NewJob { priority: 3, ..job("q") }).collect(), None)
            .await
            .unwrap();
        let leased = bench.lease(worker, 5).await;
        if leased.iter().any(|one| one.id == low) {
            break;
        }
        for one in leased {
            bench.report(&one, Outcome::Succeeded).await;
        }
        bench.advance(60);
    }
}

#[tokio::test]
async fn jobs_wait_for_those_they_depend_on_and_end_with_them() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let after = |items: &[usize]| NewJob {
        depends_on: items.iter().map(|item| Dependency::Item(*item)).collect(),
        ..job("q")
    };
    // 0 and 1, then 2 after both, then 3 after 2.
    let ids: Vec<_> =
        bench.jobs.enqueue(vec![job("q"), job("q"), after(&[0, 1]), after(&[2])], None).await.unwrap();
    assert_eq!(bench.jobs.get(ids[2].job_id).await.unwrap().wait_reason, Some(WaitReason::Depends));
    let leased = bench.lease(worker, 10).await;
    assert_eq!(leased.len(), 2);
    bench.report(&leased[0], Outcome::Succeeded).await;
    assert!(bench.lease(worker, 10).await.is_empty());
    bench.report(&leased[1], Outcome::Succeeded).await;
    let third = bench.lease(worker, 10).await;
    assert_eq!(third[0].id, ids[2].job_id);
    let mut failed = Report::new(third[0].id, third[0].execution.fence, Outcome::Failed);
    failed.retryable = false;
    bench.jobs.report(vec![failed]).await.unwrap();
    bench.settle().await;
    assert_eq!(bench.state(ids[3].job_id).await, "cancelled");
    assert_eq!(bench.jobs.detail(ids[3].job_id).await.unwrap().job.error.unwrap().kind, "dependency_failed");
}

#[tokio::test]
async fn a_flood_of_log_lines_is_bounded_and_says_what_is_missing() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let id = bench.enqueue(job("q")).await.job_id;
    let execution = bench.lease(worker, 1).await[0].execution;
    let lines =
        |count: usize| vec![NewLogLine { level: Default::default(), message: "x".into(), at: None }; count];
    for call in 0..12u64 {
        let new = NewLogLines { execution, first: call * 1000 + 1, lines: lines(1000) };
        assert_eq!(bench.jobs.log(new).await.unwrap(), LogAppended::UpTo((call + 1) * 1000 + 1));
    }
    // The last lines are kept. A reader sees the gap at its place, also a reader that was inside the gap.
    for (read, gap) in [(0, 2_000), (700, 1_300)] {
        let (mut after, mut kept, mut gaps) = (read, Vec::new(), Vec::new());
        let dropped = loop {
            let query = LogQuery { after, limit: 1000, ..LogQuery::default() };
            let page = bench.jobs.logs(id, query).await.unwrap();
            gaps.extend(
                page.lines.iter().filter(|line| line.dropped > 0).map(|line| (line.seq, line.dropped)),
            );
            kept.extend(page.lines.iter().map(|line| line.seq));
            after = page.last;
            if !page.more && page.lines.is_empty() {
                break page.dropped;
            }
        };
        assert_eq!((kept.len() as u64, dropped), (limits::LINES_KEPT_MAX, 2_000));
        assert!(kept.into_iter().eq(2_001..=12_000));
        assert_eq!(gaps, [(2_001, gap)]);
    }
    let gap = bench.jobs.log(NewLogLines { execution, first: 13_000, lines: lines(1) }).await;
    assert!(matches!(gap, Err(Error::Conflict { code: "log_gap", .. })));
}

#[tokio::test]
async fn a_call_that_is_repeated_is_done_once() {
    let bench = Bench::new();
    let key = |body: &str| Some(IdempotencyKey::new("call-1", "jobs", body.as_bytes()));
    let first = bench.jobs.enqueue(vec![job("q"), job("q")], key("two")).await.unwrap();
    let again = bench.jobs.enqueue(vec![job("q"), job("q")], key("two")).await.unwrap();
    assert_eq!(
        first.iter().map(|one| one.job_id).collect::<Vec<_>>(),
        again.iter().map(|one| one.job_id).collect::<Vec<_>>()
    );
    let other = bench.jobs.enqueue(vec![job("q")], key("one")).await;
    assert!(matches!(other, Err(Error::Conflict { code: "idempotency_key_reused", .. })), "{other:?}");
    assert_eq!(bench.jobs.queue("q").await.unwrap().counts["dispatched"], 2);
}

#[tokio::test]
async fn jobs_for_tomorrow_are_not_looked_at_today() {
    let bench = Bench::new();
    let tomorrow = |_| NewJob { when: When::After(Duration::from_secs(24 * 3600)), ..job("q") };
    for _ in 0..20 {
        bench.jobs.enqueue((0..1000).map(tomorrow).collect(), None).await.unwrap();
    }
    // Twenty thousand jobs are a few hundred entries, and none of them is due.
    let entries = bench.store_keys("jobs/due/").await.len();
    assert!(entries < 400, "{entries}");
    let before = bench.store.statistics().commits;
    for _ in 0..10 {
        bench.advance(60);
        bench.settle().await;
    }
    let commits = bench.store.statistics().commits - before;
    assert!(commits <= 20, "{commits}");
    bench.advance(24 * 3600);
    bench.settle().await;
    assert_eq!(bench.jobs.queue("q").await.unwrap().counts["dispatched"], 20_000);
}

#[tokio::test]
async fn a_node_that_led_once_changes_nothing() {
    let bench = Bench::new();
    bench.settle().await;
    let old = bench.jobs.leader().await.unwrap().unwrap();
    bench.advance(31);
    let other = baton_jobs::Jobs::start(
        bench.store.clone(),
        baton_jobs::Options { sole: false, duties: false, ..baton_jobs::Options::default() },
    );
    assert!(other.sweep().await.unwrap(), "the lease had run out");
    let new = other.leader().await.unwrap().unwrap();
    assert!(new.token > old.token && new.owner != old.owner);
    let patient = baton_jobs::Jobs::start(
        bench.store.clone(),
        baton_jobs::Options { sole: false, duties: false, ..baton_jobs::Options::default() },
    );
    assert!(!patient.sweep().await.unwrap(), "there is one leader");
}
