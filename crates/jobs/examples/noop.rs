//! The end-to-end throughput of empty jobs: enqueued, leased and reported in batches by several producers and workers
//! at once, without HTTP.
//!
//! `cargo run --release -p baton-jobs --example noop -- [STORE] [JOBS] [BATCH]` prints a table: a burn-down of what was
//! enqueued before, a steady state with producers and workers together, the same with a limit per key, and what a million
//! jobs for tomorrow cost today. The store is a directory, or `postgres`, which starts one from the binaries of the
//! machine and compares with a table that has a row per job and is read with SKIP LOCKED, in the same batches.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may panic and prints")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_jobs::{Jobs, NewJob, NewWorker, Options, Outcome, Report, When};
use baton_store::Store;
use baton_store_embedded::EmbeddedStore;

const PRODUCERS: usize = 4;
const WORKERS: usize = 8;

#[derive(Clone)]
struct Bench {
    jobs: Jobs,
    batch: usize,
}

impl Bench {
    /// Enqueues `count` jobs from several producers.
    async fn produce(&self, queue: &'static str, count: usize, change: fn(usize, &mut NewJob)) {
        let left = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..PRODUCERS)
            .map(|_| {
                let (bench, left) = (self.clone(), Arc::clone(&left));
                tokio::spawn(async move {
                    loop {
                        let first = left.fetch_add(bench.batch, Ordering::Relaxed);
                        if first >= count {
                            return;
                        }
                        let job = |number| {
                            let mut job = NewJob::new(queue, "noop", "{}");
                            change(number, &mut job);
                            job
                        };
                        let jobs = (first..count.min(first + bench.batch)).map(job).collect();
                        bench.jobs.enqueue(jobs, None).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }

    /// Leases and completes `count` jobs with several workers. Returns how long after `since` each was leased.
    async fn consume(&self, queue: &'static str, count: usize) {
        let done = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..WORKERS)
            .map(|_| {
                let (bench, done) = (self.clone(), Arc::clone(&done));
                tokio::spawn(async move {
                    let told =
                        NewWorker { name: "w".into(), queues: vec![queue.into()], ..NewWorker::default() };
                    let worker = bench.jobs.register(told).await.unwrap().worker;
                    while done.load(Ordering::Relaxed) < count {
                        let leases =
                            bench.jobs.lease(worker, bench.batch, Duration::from_millis(20)).await.unwrap();
                        if leases.jobs.is_empty() {
                            continue;
                        }
                        let report = |leased: &baton_jobs::Leased| {
                            Report::new(leased.id, leased.execution.fence, Outcome::Succeeded)
                        };
                        let reports: Vec<_> = leases.jobs.iter().map(report).collect();
                        done.fetch_add(reports.len(), Ordering::Relaxed);
                        bench.jobs.report(reports).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }

    async fn both(&self, queue: &'static str, count: usize, change: fn(usize, &mut NewJob)) {
        tokio::join!(self.produce(queue, count, change), self.consume(queue, count));
    }
}

fn told(what: &str, count: usize, watch: Stopwatch) {
    #[expect(clippy::cast_precision_loss, reason = "a rate is not that precise")]
    let rate = count as f64 / watch.elapsed().as_secs_f64();
    println!("| {what} | {rate:.0} jobs/s |");
}

fn plain(_: usize, _: &mut NewJob) {}

fn limited(number: usize, job: &mut NewJob) {
    job.spec.concurrency_key = Some(format!("tenant-{}", number % 100));
    job.spec.concurrency_limit = Some(1_000);
}

fn tomorrow(_: usize, job: &mut NewJob) {
    job.when = When::After(Duration::from_secs(24 * 3600));
}

/// A queue in plain SQL: a row per job, leased with SKIP LOCKED, completed with an update.
mod rows {
    use super::*;

    const CREATE: &str = "CREATE TABLE plain_jobs (id bigserial PRIMARY KEY, state smallint NOT NULL DEFAULT 0,
        kind text NOT NULL, args text NOT NULL, attempts int NOT NULL DEFAULT 0, leased_until timestamptz, worker text,
        created_at timestamptz NOT NULL DEFAULT now(), ended_at timestamptz);
        CREATE INDEX plain_jobs_waiting ON plain_jobs (id) WHERE state = 0";
    const ADD: &str =
        "INSERT INTO plain_jobs (kind, args) SELECT 'noop', '{}' FROM generate_series(1, $1::bigint)";
    const TAKE: &str = "UPDATE plain_jobs SET state = 1, attempts = attempts + 1, worker = $2,
        leased_until = now() + interval '30 s' WHERE id IN (SELECT id FROM plain_jobs WHERE state = 0 ORDER BY id LIMIT $1
        FOR UPDATE SKIP LOCKED) RETURNING id, kind, args";
    const DONE: &str =
        "UPDATE plain_jobs SET state = 2, ended_at = now(), leased_until = NULL WHERE id = ANY($1)";

    async fn connect(url: &str) -> tokio_postgres::Client {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    pub async fn run(url: &str, count: usize, batch: usize) {
        connect(url).await.batch_execute(CREATE).await.unwrap();
        let (begun, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = Vec::new();
        for _ in 0..PRODUCERS {
            let (client, begun) = (connect(url).await, Arc::clone(&begun));
            tasks.push(tokio::spawn(async move {
                while begun.fetch_add(batch, Ordering::Relaxed) < count {
                    client.execute(ADD, &[&i64::try_from(batch).unwrap()]).await.unwrap();
                }
            }));
        }
        for _ in 0..WORKERS {
            let (client, done) = (connect(url).await, Arc::clone(&done));
            tasks.push(tokio::spawn(async move {
                while done.load(Ordering::Relaxed) < count {
                    let rows = client.query(TAKE, &[&i64::try_from(batch).unwrap(), &"w"]).await.unwrap();
                    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
                    if ids.is_empty() {
                        baton_env::sleep(Duration::from_millis(2)).await;
                        continue;
                    }
                    done.fetch_add(ids.len(), Ordering::Relaxed);
                    client.execute(DONE, &[&ids]).await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    }
}

async fn open(position: &str) -> Arc<dyn Store> {
    if position == "postgres" {
        let url =
            tokio::task::spawn_blocking(|| baton_testing_postgres::Postgres::shared().url()).await.unwrap();
        let options = baton_store_postgres::Options::new(url);
        return Arc::new(baton_store_postgres::PostgresStore::open(options).await.unwrap());
    }
    Arc::new(EmbeddedStore::open(baton_store_embedded::Options::new(position)).unwrap())
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let position = arguments.next().unwrap_or_else(|| "./noop-data".into());
    let count = arguments.next().map_or(300_000, |text| text.parse().unwrap());
    let batch = arguments.next().map_or(500, |text| text.parse().unwrap());
    let store = open(&position).await;
    if position == "postgres" {
        let url = baton_testing_postgres::Postgres::shared().url();
        let watch = Stopwatch::start();
        rows::run(&url, count, batch).await;
        told("a row per job, SKIP LOCKED", count, watch);
    }
    let jobs = Jobs::start(Arc::clone(&store), Options { sole: true, ..Options::default() });
    let bench = Bench { jobs: jobs.clone(), batch };

    let watch = Stopwatch::start();
    bench.produce("burn", count, plain).await;
    told("enqueue alone", count, watch);
    let watch = Stopwatch::start();
    bench.consume("burn", count).await;
    told("lease and report what waits", count, watch);
    let before = store.statistics();
    let watch = Stopwatch::start();
    bench.both("steady", count, plain).await;
    told("enqueue, lease and report together", count, watch);
    let after = store.statistics();
    println!("| commits for that | {} |", after.commits - before.commits);
    let pickup = jobs.numbers().pickup;
    let watch = Stopwatch::start();
    bench.both("limited", count, limited).await;
    told("the same, with a limit per key", count, watch);
    let watch = Stopwatch::start();
    bench.produce("tomorrow", 1_000_000, tomorrow).await;
    told("enqueue for tomorrow", 1_000_000, watch);
    let watch = Stopwatch::start();
    bench.both("steady", count, plain).await;
    told("together, beside a million for tomorrow", count, watch);
    println!("| pickup, buckets of microseconds | {:?} {:?} |", pickup.bounds, pickup.counts);
    jobs.shutdown().await;
    store.close().await.unwrap();
}
