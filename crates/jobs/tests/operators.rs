//! Operator actions: queues, dead letters and retention.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use baton_jobs::{
    BulkAction, Error, Filter, JobId, LogQuery, NewJob, NewLogLine, NewLogLines, OnConflict, Options,
    Outcome, Policy, QueueSettings, State, Unique, UniqueScope,
};
use common::Bench;

fn job(queue: &str) -> NewJob {
    let mut job = NewJob::new(queue, "t", "{}");
    job.spec.retry.max_retries = 0;
    job
}

#[tokio::test]
async fn queues_with_weights_share_a_worker_by_them() {
    let bench = Bench::new();
    let worker = bench.worker(&["heavy", "light"]).await;
    for queue in ["light", "heavy"] {
        for _ in 0..4 {
            bench.jobs.enqueue((0..500).map(|_| job(queue)).collect(), None).await.unwrap();
        }
    }
    let first = bench.lease(worker, 8).await;
    assert!(!first.is_empty());
    let settings = QueueSettings { weight: Some(4), ..QueueSettings::default() };
    assert_eq!(bench.jobs.set_queue("heavy", settings).await.unwrap().settings.weight, Some(4));
    let mut heavy = 0u32;
    for _ in 0..100 {
        let leased = bench.lease(worker, 8).await;
        assert_eq!(leased.len(), 8);
        let partition = |id: JobId| id.position().unwrap().partition;
        let of_light = partition(first[0].id);
        heavy += u32::try_from(leased.iter().filter(|one| partition(one.id) != of_light).count()).unwrap();
    }
    // Four of five on average; a hundred draws leave these bounds once in millions of runs.
    assert!((460..=800).contains(&heavy), "{heavy} of 800");
    // If one queue is empty, the other gets everything.
    let mut left = 4_000 - first.len() - 800;
    while left > 0 {
        let leased = bench.lease(worker, 1_000).await;
        assert!(!leased.is_empty(), "{left} were not given out");
        left -= leased.len();
    }
}

#[tokio::test]
async fn a_weight_that_makes_no_sense_is_refused() {
    let bench = Bench::new();
    for weight in [0, 1_001] {
        let settings = QueueSettings { weight: Some(weight), ..QueueSettings::default() };
        assert!(matches!(bench.jobs.set_queue("q", settings).await, Err(Error::Invalid(_))));
    }
}

async fn fail(bench: &Bench, queue: &str, count: usize) -> Vec<JobId> {
    let worker = bench.worker(&[queue]).await;
    bench.jobs.enqueue((0..count).map(|_| job(queue)).collect(), None).await.unwrap();
    let leased = bench.lease(worker, count).await;
    for one in &leased {
        bench.report(one, Outcome::Failed).await;
    }
    leased.iter().map(|one| one.id).collect()
}

#[tokio::test]
async fn a_queue_without_dead_letters_keeps_failed_jobs_and_lists_none() {
    let bench = Bench::new();
    let settings = QueueSettings { dlq: false, ..QueueSettings::default() };
    bench.jobs.set_queue("q", settings).await.unwrap();
    let failed = fail(&bench, "q", 1).await;
    fail(&bench, "other", 1).await;
    assert_eq!(bench.state(failed[0]).await, "failed");
    assert_eq!(bench.jobs.dead_letters(None, 10).await.unwrap().jobs.len(), 1);
    assert_eq!(bench.jobs.replay(failed, None).await.unwrap(), 0);
}

#[tokio::test]
async fn a_replay_can_be_spread_over_time() {
    let bench = Bench::new();
    let dead = fail(&bench, "q", 10).await;
    assert!(matches!(bench.jobs.replay(dead.clone(), Some(0.0)).await, Err(Error::Invalid(_))));
    assert!(matches!(bench.jobs.replay(dead.clone(), Some(f64::NAN)).await, Err(Error::Invalid(_))));
    assert_eq!(bench.jobs.replay(dead, Some(2.0)).await.unwrap(), 10);
    assert!(bench.jobs.dead_letters(None, 10).await.unwrap().jobs.is_empty());
    let worker = bench.worker(&["q"]).await;
    let mut had = Vec::new();
    for _ in 0..6 {
        bench.settle().await;
        had.push(bench.lease(worker, 100).await.len());
        bench.advance(1);
    }
    assert!(had[0] == 1 && had.iter().all(|count| *count <= 2) && had.iter().sum::<usize>() == 10, "{had:?}");
}

fn lines(count: usize) -> Vec<NewLogLine> {
    vec![NewLogLine { level: Default::default(), message: "x".into(), at: None }; count]
}

/// A job that writes a log and ends.
async fn talk(bench: &Bench, count: usize) -> JobId {
    let worker = bench.worker(&["q"]).await;
    let id = bench.enqueue(job("q")).await.job_id;
    let leased = bench.lease(worker, 1).await;
    let execution = leased[0].execution;
    for number in 0..count {
        let first = number as u64 + 1;
        bench.jobs.log(NewLogLines { execution, first, lines: lines(1) }).await.unwrap();
    }
    bench.report(&leased[0], Outcome::Succeeded).await;
    // Last lines, accepted after the end.
    bench.jobs.log(NewLogLines { execution, first: count as u64 + 1, lines: lines(1) }).await.unwrap();
    id
}

async fn log_of(bench: &Bench, id: JobId) -> Option<(usize, State)> {
    let (mut query, mut lines) = (LogQuery { limit: 1_000, ..LogQuery::default() }, 0);
    loop {
        match bench.jobs.logs(id, query.clone()).await {
            Ok(page) => {
                lines += page.lines.len();
                if !page.more {
                    return Some((lines, page.state));
                }
                query.after = page.last;
            }
            Err(Error::NotFound(_)) => return None,
            Err(other) => panic!("{other}"),
        }
    }
}

const DAY: u64 = 24 * 3600;

#[tokio::test]
async fn a_log_outlives_its_job_until_its_own_time_is_over() {
    let bench = Bench::new();
    let (long, silent) = (talk(&bench, 150).await, talk(&bench, 0).await);
    bench.advance(DAY + 60);
    bench.settle().await;
    assert!(matches!(bench.jobs.get(long).await, Err(Error::NotFound(_))), "the job is forgotten");
    assert_eq!(log_of(&bench, long).await, Some((151, State::Completed)));
    assert_eq!(log_of(&bench, silent).await, Some((1, State::Completed)));
    bench.advance(6 * DAY);
    bench.settle().await;
    assert_eq!((log_of(&bench, long).await, log_of(&bench, silent).await), (None, None));
    for prefix in ["jobs/log", "jobs/worn/", "jobs/progress/"] {
        assert_eq!(bench.store_keys(prefix).await, Vec::<String>::new(), "{prefix}");
    }
    assert_eq!(bench.jobs.audit().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_log_can_have_less_time_than_its_job() {
    let policy = Policy { logs_for: Duration::from_secs(3600), ..Policy::default() };
    let bench = Bench::with(Options { sole: true, duties: false, policy, ..Options::default() });
    let id = talk(&bench, 1).await;
    bench.advance(1800);
    bench.jobs.retry(id, true, None).await.unwrap();
    bench.advance(1900);
    bench.settle().await;
    assert_eq!(log_of(&bench, id).await, Some((2, State::Dispatched)), "it has not ended any more");
    let worker = bench.worker(&["q"]).await;
    let leased = bench.lease(worker, 1).await;
    bench.report(&leased[0], Outcome::Succeeded).await;
    bench.advance(3601);
    bench.settle().await;
    assert_eq!(log_of(&bench, id).await, Some((0, State::Completed)));
    assert_eq!(bench.state(id).await, "completed");
}

#[tokio::test]
async fn many_concurrency_keys_are_few_records_and_none_when_idle() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let keyed = |number: usize| {
        let mut job = job("q");
        job.spec.concurrency_key = Some(format!("tenant-{number}"));
        job
    };
    for first in [0, 1_000, 2_000] {
        bench.jobs.enqueue((first..first + 1_000).map(keyed).collect(), None).await.unwrap();
        bench.jobs.enqueue((first..first + 1_000).map(keyed).collect(), None).await.unwrap();
    }
    let pages = bench.store_keys("jobs/permits/").await.len();
    assert!((10..=1_000).contains(&pages), "{pages} pages for 3000 keys");
    assert_eq!(bench.jobs.audit().await.unwrap(), Vec::<String>::new());
    for _ in 0..2 {
        let mut leased = Vec::new();
        for _ in 0..3 {
            leased.extend(bench.lease(worker, 1_000).await);
        }
        assert_eq!(leased.len(), 3_000, "one of each key");
        for some in leased.chunks(1_000) {
            let report = |one: &baton_jobs::Leased| {
                baton_jobs::Report::new(one.id, one.execution.fence, Outcome::Succeeded)
            };
            bench.jobs.report(some.iter().map(report).collect()).await.unwrap();
        }
    }
    assert_eq!(bench.store_keys("jobs/permits/").await, Vec::<String>::new());
    assert_eq!(bench.jobs.audit().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_job_that_cannot_be_tried_again_stays_as_it_is_among_others() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let unique = |key: &str| {
        let unique = Unique {
            key: key.into(),
            scope: UniqueScope::Active,
            window: Duration::ZERO,
            on_conflict: OnConflict::Reject,
        };
        NewJob { unique: Some(unique), ..job("q") }
    };
    let taken = bench.enqueue(unique("taken")).await.job_id;
    let free = bench.enqueue(unique("free")).await.job_id;
    for leased in bench.lease(worker, 2).await {
        bench.report(&leased, Outcome::Failed).await;
    }
    bench.enqueue(unique("taken")).await;
    let failed = Filter { states: vec![State::Failed], ..Filter::default() };
    let done = bench.jobs.bulk(BulkAction::Retry, failed, None, false).await.unwrap();
    assert_eq!((done.matched, done.changed), (2, 1));
    assert_eq!(bench.state(taken).await, "failed");
    assert_eq!(bench.state(free).await, "dispatched");
    assert_eq!(bench.jobs.audit().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_job_that_is_tried_again_shares_its_limit_again() {
    let bench = Bench::new();
    let worker = bench.worker(&["q"]).await;
    let keyed = || {
        let mut job = job("q");
        job.spec.concurrency_key = Some("tenant".into());
        job
    };
    let first = bench.enqueue(keyed()).await.job_id;
    let leased = bench.lease(worker, 1).await;
    bench.report(&leased[0], Outcome::Failed).await;
    let second = bench.enqueue(keyed()).await.job_id;
    bench.jobs.retry(first, true, None).await.unwrap();
    assert_eq!(
        (bench.state(second).await, bench.state(first).await),
        ("dispatched".into(), "pending".into())
    );
    let leased = bench.lease(worker, 2).await;
    assert_eq!(leased.iter().map(|one| one.id).collect::<Vec<_>>(), [second]);
    bench.report(&leased[0], Outcome::Succeeded).await;
    assert_eq!(bench.state(first).await, "dispatched");
    assert_eq!(bench.jobs.audit().await.unwrap(), Vec::<String>::new());
}
