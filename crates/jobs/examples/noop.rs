//! How many jobs that do nothing get through, end to end, on an embedded store: enqueued, leased and reported in
//! batches by several producers and workers at once, without HTTP.
//!
//! `cargo run --release -p baton-jobs --example noop -- [DIRECTORY] [JOBS] [BATCH]` prints a table: a burn-down of what
//! was enqueued before, a steady state with producers and workers together, the same with a limit per key, and what a
//! million jobs for tomorrow cost today.

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

    /// Leases and completes `count` jobs with several workers; tells how long after `since` each was leased.
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

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| "./noop-data".into());
    let count = arguments.next().map_or(300_000, |text| text.parse().unwrap());
    let batch = arguments.next().map_or(500, |text| text.parse().unwrap());
    let store = Arc::new(EmbeddedStore::open(baton_store_embedded::Options::new(directory)).unwrap());
    let jobs =
        Jobs::start(Arc::clone(&store) as Arc<dyn Store>, Options { sole: true, ..Options::default() });
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
