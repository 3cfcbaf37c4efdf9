//! Compares the throughput of several nodes on one PostgreSQL with that of one, and shows the balance of the load.
//!
//! `cargo run --release -p baton-jobs --example nodes -- [JOBS] [BATCH]` starts a PostgreSQL from the binaries of the
//! machine, and runs the same load, producers and workers, against one node and against three. Prints a table.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may panic and prints")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_jobs::{ClusterTimes, Jobs, NewJob, NewWorker, Options, Outcome, Report};

const PRODUCERS: usize = 3;
const WORKERS: usize = 6;
const QUEUE: &str = "q";

async fn node(url: &str, schema: &str, number: usize) -> Jobs {
    let options =
        baton_store_postgres::Options { schema: schema.into(), ..baton_store_postgres::Options::new(url) };
    let store = baton_store_postgres::PostgresStore::open(options).await.unwrap();
    let times = ClusterTimes {
        heartbeat: Duration::from_secs(1),
        cooldown: Duration::from_secs(1),
        ..ClusterTimes::default()
    };
    let name = format!("node-{number}");
    let options =
        Options { name: name.as_str().into(), node: format!("{name}-1").into(), times, ..Options::default() };
    Jobs::start(Arc::new(store), options)
}

async fn produce(jobs: Jobs, left: Arc<AtomicUsize>, count: usize, batch: usize) {
    while left.fetch_add(batch, Ordering::Relaxed) < count {
        jobs.enqueue((0..batch).map(|_| NewJob::new(QUEUE, "noop", "{}")).collect(), None).await.unwrap();
    }
}

async fn work(jobs: Jobs, done: Arc<AtomicUsize>, count: usize, batch: usize) -> usize {
    let told = NewWorker { name: "w".into(), queues: vec![QUEUE.into()], ..NewWorker::default() };
    let (worker, mut own) = (jobs.register(told).await.unwrap().worker, 0);
    while done.load(Ordering::Relaxed) < count {
        let leases = jobs.lease(worker, batch, Duration::from_millis(100)).await.unwrap();
        let report = |one: &baton_jobs::Leased| Report::new(one.id, one.execution.fence, Outcome::Succeeded);
        let reports: Vec<_> = leases.jobs.iter().map(report).collect();
        if !reports.is_empty() {
            let accepted = jobs.report(reports).await.unwrap().len();
            own += accepted;
            done.fetch_add(accepted, Ordering::Relaxed);
        }
    }
    own
}

/// Jobs per second with so many nodes, and by how much the slices of the busiest exceed the mean.
async fn measure(url: &str, nodes: usize, count: usize, batch: usize) -> (f64, f64) {
    let schema = format!("nodes {}", baton_env::fresh_uuid());
    let mut crew = Vec::new();
    for number in 0..nodes {
        crew.push(node(url, &schema, number).await);
    }
    let fair = loop {
        let slices: Vec<usize> =
            crew[0].cluster().await.unwrap().nodes.iter().map(|one| one.slices).collect();
        let most = slices.iter().max().copied().unwrap_or(0);
        let mean = 64.0 / nodes as f64;
        if slices.len() == nodes && slices.iter().sum::<usize>() == 64 && (most as f64) < 1.5 * mean {
            break most as f64 / mean - 1.0;
        }
        baton_env::sleep(Duration::from_millis(100)).await;
    };
    let (left, done, watch) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Stopwatch::start());
    let member = |number: usize| crew[number % nodes].clone();
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|number| tokio::spawn(produce(member(number), Arc::clone(&left), count, batch)))
        .collect();
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| tokio::spawn(work(member(number), Arc::clone(&done), count, batch)))
        .collect();
    for task in producers {
        task.await.unwrap();
    }
    for task in workers {
        task.await.unwrap();
    }
    let rate = count as f64 / watch.elapsed().as_secs_f64();
    for node in crew {
        node.shutdown().await;
    }
    (rate, fair)
}

#[tokio::main]
async fn main() {
    let mut given = std::env::args().skip(1).map(|text| text.parse::<usize>().unwrap());
    let (count, batch) = (given.next().unwrap_or(100_000), given.next().unwrap_or(500));
    let url = tokio::task::spawn_blocking(|| baton_testing_postgres::Postgres::shared().url()).await.unwrap();
    println!("| nodes | jobs/s | slices of the busiest beyond the mean |\n|---:|---:|---:|");
    let mut rates = Vec::new();
    for nodes in [1, 3, 1, 3] {
        let (rate, fair) = measure(&url, nodes, count, batch).await;
        println!("| {nodes} | {rate:.0} | {:.0}% |", fair * 100.0);
        rates.push((nodes, rate));
    }
    let best =
        |nodes: usize| rates.iter().filter(|(of, _)| *of == nodes).map(|(_, rate)| *rate).fold(0.0, f64::max);
    println!("\nthree nodes reach {:.2} of one", best(3) / best(1));
}
