//! A job's path through its states, on a store with a test clock.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use baton_jobs::{NewJob, Outcome, Report, Reported, State, When};
use common::Bench;

#[tokio::test]
async fn a_job_is_enqueued_leased_and_completed() {
    let bench = Bench::new();
    let worker = bench.worker(&["mail"]).await;
    let job = bench.enqueue(NewJob::new("mail", "send", r#"{"to":"a"}"#)).await;
    assert_eq!(job.state, State::Dispatched);
    let leased = bench.lease(worker, 10).await;
    assert_eq!(leased.len(), 1);
    assert_eq!((leased[0].id, &leased[0].args[..]), (job.job_id, &br#"{"to":"a"}"#[..]));
    assert_eq!(bench.lease(worker, 10).await, []);
    let mut report = Report::new(job.job_id, leased[0].execution.fence, Outcome::Succeeded);
    report.result = "[1]".into();
    assert_eq!(bench.jobs.report(vec![report]).await.unwrap(), [Reported::Accepted(State::Completed)]);
    let detail = bench.jobs.detail(job.job_id).await.unwrap();
    assert_eq!(detail.result.as_deref(), Some(&b"[1]"[..]));
    assert_eq!(detail.history.len(), 1);
}

#[tokio::test]
async fn a_thousand_jobs_are_a_few_records() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let jobs = (0..1000).map(|number| NewJob::new("q", "t", number.to_string())).collect();
    let ids: Vec<_> = bench.jobs.enqueue(jobs, None).await.unwrap().iter().map(|job| job.job_id).collect();
    let mut seen = Vec::new();
    while seen.len() < 1000 {
        let leased = bench.lease(worker, 300).await;
        let reports = leased.iter().map(|one| Report::new(one.id, one.execution.fence, Outcome::Succeeded));
        let answers = bench.jobs.report(reports.collect()).await.unwrap();
        assert!(answers.iter().all(|answer| *answer == Reported::Accepted(State::Completed)));
        seen.extend(leased.iter().map(|one| one.id));
    }
    assert_eq!(seen, ids, "the oldest comes first");
    let queue = bench.jobs.queue("q").await.unwrap();
    assert_eq!((queue.counts["completed"], queue.counts["dispatched"]), (1000, 0));
}

#[tokio::test]
async fn a_delayed_job_runs_when_its_time_comes() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let job = bench
        .enqueue(NewJob { when: When::After(Duration::from_secs(60)), ..NewJob::new("q", "t", "{}") })
        .await;
    assert_eq!(job.state, State::Scheduled);
    bench.advance(59);
    bench.settle().await;
    assert!(bench.lease(worker, 1).await.is_empty());
    bench.advance(2);
    bench.settle().await;
    assert_eq!(bench.lease(worker, 1).await.len(), 1);
}

#[tokio::test]
async fn a_forgotten_queue_takes_no_records() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    for _ in 0..3 {
        let jobs = (0..128).map(|_| NewJob::new("q", "t", "{}")).collect();
        bench.jobs.enqueue(jobs, None).await.unwrap();
        let leased = bench.lease(worker, 1000).await;
        let reports = leased.iter().map(|one| Report::new(one.id, one.execution.fence, Outcome::Succeeded));
        bench.jobs.report(reports.collect()).await.unwrap();
    }
    bench.advance(24 * 3600 + 1);
    bench.settle().await;
    let left = bench.store_keys("jobs/chunk/").await;
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(bench.store_keys("jobs/due/").await, Vec::<String>::new());
    assert_eq!(bench.jobs.queue("q").await.unwrap().counts["completed"], 0);
    // And it goes on from there.
    let job = bench.enqueue(NewJob::new("q", "t", "7")).await;
    // A worker that was silent for a day is forgotten.
    let worker = bench.worker(&["q"]).await;
    let leased = bench.lease(worker, 1).await;
    assert_eq!((leased[0].id, &leased[0].args[..]), (job.job_id, &b"7"[..]));
}

#[tokio::test]
async fn one_old_job_does_not_keep_what_came_after_it() {
    let bench = Bench::new();
    let year = Duration::from_secs(365 * 24 * 3600);
    let old =
        bench.enqueue(NewJob { when: When::After(year), ..NewJob::new("q", "t", "\"old\"") }).await.job_id;
    for _ in 0..5 {
        // A worker that was silent for a day is forgotten, too.
        let worker = bench.worker(&["q"]).await;
        bench.jobs.enqueue((0..1000).map(|_| NewJob::new("q", "t", "{}")).collect(), None).await.unwrap();
        let leased = bench.lease(worker, 1000).await;
        let reports = leased.iter().map(|one| Report::new(one.id, one.execution.fence, Outcome::Succeeded));
        bench.jobs.report(reports.collect()).await.unwrap();
        bench.advance(25 * 3600);
        bench.settle().await;
    }
    let kept = bench.kept().await;
    assert!(kept < 1_500, "{kept} messages are kept for one job");
    assert_eq!(bench.jobs.audit().await.unwrap(), Vec::<String>::new());
    bench.clock.advance(year);
    bench.settle().await;
    let leased = bench.lease(bench.worker(&["q"]).await, 1).await;
    assert_eq!((leased[0].id, &leased[0].args[..]), (old, &b"\"old\""[..]));
}
