//! Several servers on one PostgreSQL: each decides through the store, so together they act as one.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_jobs::{JobId, Jobs, NewJob, NewWorker, Options, Outcome, Report, Reported, State};

const JOBS: usize = 600;

async fn server(schema: &str) -> Jobs {
    let options = Options { look_every: Duration::from_millis(100), ..Options::default() };
    Jobs::start(common::postgres(schema, None).await, options)
}

/// Completes jobs until none is left, and records the accepted reports.
async fn work(jobs: Jobs, accepted: Arc<Mutex<HashMap<JobId, u32>>>) {
    let told = NewWorker { name: "w".into(), queues: vec!["q".into()], ..NewWorker::default() };
    let worker = jobs.register(told).await.unwrap().worker;
    while accepted.lock().unwrap().len() < JOBS {
        let leases = jobs.lease(worker, 20, Duration::from_millis(200)).await.unwrap();
        let report =
            |leased: &baton_jobs::Leased| Report::new(leased.id, leased.execution.fence, Outcome::Succeeded);
        let reports: Vec<_> = leases.jobs.iter().map(report).collect();
        if reports.is_empty() {
            continue;
        }
        for (leased, answer) in leases.jobs.iter().zip(jobs.report(reports).await.unwrap()) {
            assert_eq!(answer, Reported::Accepted(State::Completed));
            *accepted.lock().unwrap().entry(leased.id).or_default() += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_two_servers_are_each_done_once() {
    let schema = format!("jobs {}", baton_env::fresh_uuid());
    let servers = [server(&schema).await, server(&schema).await];
    let accepted = Arc::new(Mutex::new(HashMap::new()));
    let workers: Vec<_> =
        (0..4).map(|number| tokio::spawn(work(servers[number % 2].clone(), Arc::clone(&accepted)))).collect();
    let producers: Vec<_> = (0..4)
        .map(|number| {
            let jobs = servers[number % 2].clone();
            tokio::spawn(async move {
                for _ in 0..JOBS / 4 / 50 {
                    let new = (0..50).map(|_| NewJob::new("q", "t", "{}")).collect();
                    jobs.enqueue(new, None).await.unwrap();
                }
            })
        })
        .collect();
    for task in producers.into_iter().chain(workers) {
        task.await.unwrap();
    }
    let accepted = accepted.lock().unwrap().clone();
    assert_eq!(accepted.len(), JOBS);
    assert!(accepted.values().all(|times| *times == 1));
    assert_eq!(servers[0].audit().await.unwrap(), Vec::<String>::new());
    assert_eq!(servers[1].queue("q").await.unwrap().counts["completed"], JOBS as u64);
    for server in servers {
        server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_leads_and_another_follows_when_it_leaves() {
    let schema = format!("jobs {}", baton_env::fresh_uuid());
    let (first, second) = (server(&schema).await, server(&schema).await);
    let leads = |jobs: &Jobs| jobs.numbers().terms > 0;
    for _ in 0..400 {
        if leads(&first) || leads(&second) {
            break;
        }
        baton_env::sleep(Duration::from_millis(50)).await;
    }
    let leader = first.leader().await.unwrap().unwrap();
    let (leaving, staying) = if leads(&first) { (first, second) } else { (second, first) };
    leaving.shutdown().await;
    for _ in 0..200 {
        let now = staying.leader().await.unwrap();
        if now.is_some_and(|now| now.owner != leader.owner && now.token > leader.token) {
            return;
        }
        baton_env::sleep(Duration::from_millis(50)).await;
    }
    panic!("no node leads");
}

/// Rows for many jobs are fetched together; otherwise a commit would need a round trip for each job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_jobs_with_many_keys_is_one_commit() {
    let schema = format!("jobs {}", baton_env::fresh_uuid());
    let jobs = server(&schema).await;
    let limited = |number: usize| {
        let mut job = NewJob::new("q", "t", "{}");
        job.spec.concurrency_key = Some(format!("tenant-{number}"));
        job
    };
    jobs.enqueue((0..300).map(limited).collect(), None).await.unwrap();
    let told = NewWorker { name: "w".into(), queues: vec!["q".into()], ..NewWorker::default() };
    let worker = jobs.register(told).await.unwrap().worker;
    let leased = jobs.lease(worker, 300, Duration::ZERO).await.unwrap().jobs;
    assert_eq!(leased.len(), 300);
    let outcome = |number: usize| if number.is_multiple_of(2) { Outcome::Succeeded } else { Outcome::Failed };
    let report = |(number, one): (usize, &baton_jobs::Leased)| {
        Report::new(one.id, one.execution.fence, outcome(number))
    };
    let answers = jobs.report(leased.iter().enumerate().map(report).collect()).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Reported::Accepted(_))));
    assert_eq!(jobs.audit().await.unwrap(), Vec::<String>::new());
    jobs.shutdown().await;
}
