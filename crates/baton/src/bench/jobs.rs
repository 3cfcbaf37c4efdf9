//! Empty jobs end to end: enqueued, leased and reported in batches over HTTP.
//!
//! Measures a burn-down of a backlog, a steady state with producers and workers together, the same with a limit per
//! key, how soon an idle worker gets a job, and the cost of a million jobs scheduled for tomorrow. Always: a figure
//! is printed only when every job of its run was completed, and none was accepted twice.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use baton_env::Stopwatch;
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::flow::StopAfter;
use super::histogram::Histogram;
use super::report::ReportRow;
use super::server::Server;
use super::wire::Connection;
use super::{Args, progress};
use crate::token::Token;

/// Unfinished batches of each producer, so that the latency is the server's and not that of a backlog.
const UNFINISHED: usize = 4;
/// How long an idle server is observed.
const IDLE: Duration = Duration::from_secs(3);
/// How long a worker's lease call waits: short, since all wait at the end of a run.
const WAIT: Duration = Duration::from_millis(40);
/// The pause before each job of the pick-up scenario.
const PAUSE: Duration = Duration::from_millis(20);

/// The variant of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Keyed,
    Tomorrow,
}

/// The state that producers and workers of one run share.
struct Load {
    host: String,
    token: Option<Token>,
    queue: String,
    batch: usize,
    kind: Kind,
    clock: Stopwatch,
    room: Semaphore,
    sent: AtomicU64,
    done: AtomicU64,
}

#[derive(Deserialize)]
struct Leases<'a> {
    #[serde(borrow)]
    leases: Vec<Leased<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Leased<'a> {
    job_id: &'a str,
    fence: u64,
    args: Stamp,
}

#[derive(Deserialize)]
struct Stamp {
    at: u64,
}

impl Load {
    fn new(args: &Args, server: &Server, kind: Kind, batch: usize, room: usize) -> Arc<Self> {
        Arc::new(Self {
            host: server.host().to_owned(),
            token: args.token.clone(),
            queue: format!("bench-{:016x}", baton_env::random_u64()),
            batch,
            kind,
            clock: Stopwatch::start(),
            room: Semaphore::new(room.min(Semaphore::MAX_PERMITS)),
            sent: AtomicU64::new(0),
            done: AtomicU64::new(0),
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    async fn connect(&self) -> Result<Connection> {
        Connection::open(&self.host, self.token.as_ref()).await
    }

    fn body(&self, body: &mut Vec<u8>, first: u64, count: usize) -> Result<()> {
        body.clear();
        body.extend_from_slice(b"{\"jobs\":[");
        let at = self.now();
        for number in first..first + count as u64 {
            let queue = &self.queue;
            write!(body, "{{\"jobType\":\"noop\",\"queue\":\"{queue}\",\"args\":{{\"at\":{at}}}")?;
            match self.kind {
                Kind::Plain => {}
                Kind::Keyed => {
                    write!(
                        body,
                        ",\"concurrencyKey\":\"tenant-{}\",\"concurrencyLimit\":1000",
                        number % 100
                    )?;
                }
                Kind::Tomorrow => body.extend_from_slice(b",\"delayMs\":86400000"),
            }
            body.extend_from_slice(b"},");
        }
        body.pop();
        body.extend_from_slice(b"]}");
        Ok(())
    }

    /// Enqueues batches until the time or the number is reached.
    async fn produce(self: Arc<Self>, until: StopAfter) -> Result<()> {
        let (mut connection, mut body) = (self.connect().await?, Vec::new());
        while self.clock.elapsed() < until.duration {
            let first = self.sent.fetch_add(self.batch as u64, Ordering::SeqCst);
            if first >= until.messages {
                self.sent.fetch_sub(self.batch as u64, Ordering::SeqCst);
                break;
            }
            self.room.acquire_many(u32::try_from(self.batch)?).await?.forget();
            self.body(&mut body, first, self.batch)?;
            let (status, answer) = connection.post("/api/v1/jobs:batch", &body).await?;
            ensure!(status == 201, "enqueue answered {status}: {}", String::from_utf8_lossy(answer));
        }
        Ok(())
    }

    /// Leases and completes jobs while `goes_on` is open, and then until all are done.
    async fn work(self: Arc<Self>, goes_on: Arc<Semaphore>) -> Result<Histogram> {
        let (mut connection, mut latency) = (self.connect().await?, Histogram::default());
        let told = format!("{{\"name\":\"bench\",\"queues\":[\"{}\"]}}", self.queue);
        let (status, answer) = connection.post("/api/v1/workers", told.as_bytes()).await?;
        ensure!(status == 201, "a worker was answered {status}");
        let worker: serde_json::Value = serde_json::from_slice(answer)?;
        let path = format!("/api/v1/workers/{}/lease", worker["workerId"].as_str().context("no worker id")?);
        let wish = format!("{{\"max\":{},\"waitMs\":{}}}", self.batch, WAIT.as_millis());
        let mut body = Vec::new();
        while !goes_on.is_closed() || self.done.load(Ordering::SeqCst) < self.sent.load(Ordering::SeqCst) {
            let (status, answer) = connection.post(&path, wish.as_bytes()).await?;
            ensure!(status == 200, "a lease answered {status}: {}", String::from_utf8_lossy(answer));
            let leases: Leases<'_> = serde_json::from_slice(answer)?;
            let (count, now) = (leases.leases.len(), self.now());
            if count == 0 {
                continue;
            }
            body.clear();
            body.extend_from_slice(b"{\"items\":[");
            for leased in &leases.leases {
                latency.record(Duration::from_nanos(now.saturating_sub(leased.args.at)));
                write!(
                    body,
                    "{{\"jobId\":\"{}\",\"fence\":{},\"outcome\":\"succeeded\"}},",
                    leased.job_id, leased.fence
                )?;
            }
            body.pop();
            body.extend_from_slice(b"]}");
            let (status, answer) = connection.post("/api/v1/executions:report", &body).await?;
            let accepted = answer.windows(9).filter(|nine| *nine == b"\"ok\":true").count();
            ensure!(status == 200 && accepted == count, "{accepted} of {count} were accepted, with {status}");
            self.done.fetch_add(count as u64, Ordering::SeqCst);
            self.room.add_permits(count);
        }
        Ok(latency)
    }

    /// Checks that the server's counts agree with the workers'.
    async fn verify(&self) -> Result<u64> {
        let sent = self.sent.load(Ordering::SeqCst);
        let mut connection = self.connect().await?;
        let (status, answer) = connection.get(&format!("/api/v1/job-queues/{}", self.queue)).await?;
        ensure!(status == 200, "the queue was answered with {status}");
        let queue: serde_json::Value = serde_json::from_slice(answer)?;
        let state = if self.kind == Kind::Tomorrow { "scheduled" } else { "completed" };
        ensure!(queue["counts"][state] == sent, "{sent} were sent, the queue has {}", queue["counts"]);
        Ok(sent)
    }
}

/// A running measurement.
struct Run<'a> {
    server: &'a Server,
    row: ReportRow,
    watch: Stopwatch,
    before: Option<super::server::Usage>,
}

impl<'a> Run<'a> {
    fn start(server: &'a Server, scenario: &'static str, connections: usize, batch: usize) -> Self {
        let row =
            ReportRow { system: "baton", scenario, connections, batch: Some(batch), ..ReportRow::default() };
        Self { server, row, watch: Stopwatch::start(), before: server.usage() }
    }

    fn stop(mut self, jobs: u64, latency: Option<&Histogram>) -> ReportRow {
        let seconds = self.watch.elapsed().as_secs_f64();
        self.row.messages = jobs;
        self.row.seconds = seconds;
        self.row.messages_per_second = Some(jobs as f64 / seconds);
        self.row.latency_us = latency.and_then(Histogram::latency);
        if let Some((before, after)) = self.before.zip(self.server.usage()) {
            let each = |amount: f64| Some(amount / jobs.max(1) as f64);
            self.row.server_cpu_us_per_message = each((after.cpu - before.cpu) * 1e6);
            self.row.written_bytes_per_message = each((after.written_bytes - before.written_bytes) as f64);
            self.row.server_memory_bytes = Some(after.memory_bytes);
        }
        self.row.verified = true;
        self.row
    }
}

async fn joined(tasks: &mut JoinSet<Result<Histogram>>) -> Result<Histogram> {
    let mut all = Histogram::default();
    while let Some(ended) = tasks.join_next().await {
        all.merge(&ended??);
    }
    Ok(all)
}

async fn produce(load: &Arc<Load>, producers: usize, until: StopAfter) -> Result<()> {
    let mut tasks = JoinSet::new();
    (0..producers).for_each(|_| drop(tasks.spawn(Arc::clone(load).produce(until))));
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

fn work(load: &Arc<Load>, workers: usize) -> (JoinSet<Result<Histogram>>, Arc<Semaphore>) {
    let (mut tasks, goes_on) = (JoinSet::new(), Arc::new(Semaphore::new(0)));
    (0..workers).for_each(|_| drop(tasks.spawn(Arc::clone(load).work(Arc::clone(&goes_on)))));
    (tasks, goes_on)
}

/// Producers and workers together.
async fn steady(
    args: &Args,
    server: &Server,
    scenario: &'static str,
    kind: Kind,
    (connections, batch): (usize, usize),
) -> Result<ReportRow> {
    let producers = (connections / 3).max(1);
    let load = Load::new(args, server, kind, batch, UNFINISHED * producers * batch);
    let run = Run::start(server, scenario, connections, batch);
    let (mut workers, goes_on) = work(&load, (connections - producers).max(1));
    let until = Args { messages: None, ..args.clone() }.until();
    produce(&load, producers, until).await?;
    goes_on.close();
    let latency = joined(&mut workers).await?;
    let row = run.stop(load.sent.load(Ordering::SeqCst), Some(&latency));
    load.verify().await?;
    Ok(row)
}

/// Completes a backlog.
async fn burn_down(args: &Args, server: &Server, connections: usize, batch: usize) -> Result<Vec<ReportRow>> {
    let load = Load::new(args, server, Kind::Plain, batch, usize::MAX);
    let all = StopAfter { duration: Duration::MAX, messages: args.messages_or(300_000, 50_000) };
    let run = Run::start(server, "jobs-enqueue", connections, batch);
    produce(&load, connections, all).await?;
    let enqueued = run.stop(load.sent.load(Ordering::SeqCst), None);
    let run = Run::start(server, "jobs-burn-down", connections, batch);
    let (mut workers, goes_on) = work(&load, connections);
    goes_on.close();
    joined(&mut workers).await?;
    let done = run.stop(load.verify().await?, None);
    Ok(vec![enqueued, done])
}

/// Enqueues one job at a time for an idle worker.
async fn pick_up(args: &Args, server: &Server) -> Result<ReportRow> {
    let samples = u64::from(args.samples.unwrap_or(if args.quick { 50 } else { 300 }));
    let load = Load::new(args, server, Kind::Plain, 1, 0);
    let run = Run::start(server, "jobs-pickup", 2, 1);
    let (mut workers, goes_on) = work(&load, 1);
    let (mut connection, mut body) = (load.connect().await?, Vec::new());
    for number in 0..samples {
        baton_env::sleep(PAUSE).await;
        load.sent.fetch_add(1, Ordering::SeqCst);
        load.body(&mut body, number, 1)?;
        let (status, _) = connection.post("/api/v1/jobs:batch", &body).await?;
        ensure!(status == 201, "enqueue answered {status}");
        while load.done.load(Ordering::SeqCst) <= number {
            baton_env::sleep(Duration::from_millis(1)).await;
        }
    }
    goes_on.close();
    let latency = joined(&mut workers).await?;
    let mut row = run.stop(load.verify().await?, Some(&latency));
    row.messages_per_second = None;
    Ok(row)
}

/// Measures every combination of connections and batch, on one server.
pub async fn run(args: &Args) -> Result<Vec<ReportRow>> {
    let mut rows = Vec::new();
    for connections in args.connections_or(&[12], &[12]) {
        for batch in args.batch_or(&[500], &[500]) {
            let bar = progress(format!("jobs: batch {batch} × {connections}"), None);
            let mut server = args.server()?;
            rows.extend(burn_down(args, &server, connections, batch).await?);
            let shape = (connections, batch);
            rows.push(steady(args, &server, "jobs-steady", Kind::Plain, shape).await?);
            rows.push(steady(args, &server, "jobs-keys", Kind::Keyed, shape).await?);
            rows.push(pick_up(args, &server).await?);
            server.ensure_alive()?;
            bar.finish_and_clear();
        }
    }
    Ok(rows)
}

/// Measures the steady state alone.
pub async fn steady_alone(args: &Args) -> Result<Vec<ReportRow>> {
    let mut rows = Vec::new();
    for connections in args.connections_or(&[12], &[12]) {
        for batch in args.batch_or(&[500], &[500]) {
            let mut server = args.server()?;
            rows.push(steady(args, &server, "jobs-steady", Kind::Plain, (connections, batch)).await?);
            server.ensure_alive()?;
        }
    }
    Ok(rows)
}

/// Measures a steady state before and beside many jobs scheduled for tomorrow, and the server while it is idle.
pub async fn tomorrow(args: &Args) -> Result<Vec<ReportRow>> {
    let mut server = args.server()?;
    let (connections, batch) = (args.connections_or(&[12], &[12])[0], args.batch_or(&[500], &[500])[0]);
    let waiting = args.messages_or(1_000_000, 100_000);
    let bar = progress("jobs for tomorrow".into(), None);
    let before = steady(args, &server, "jobs-before", Kind::Plain, (connections, batch)).await?;
    let load = Load::new(args, &server, Kind::Tomorrow, batch, usize::MAX);
    let run = Run::start(&server, "jobs-tomorrow", connections, batch);
    produce(&load, connections, StopAfter { duration: Duration::MAX, messages: waiting }).await?;
    let mut stored = run.stop(load.verify().await?, None);
    if let Some(before) = server.usage() {
        baton_env::sleep(IDLE).await;
        let after = server.usage().context("the server is gone")?;
        stored.server_cpu_idle = Some((after.cpu - before.cpu) / IDLE.as_secs_f64());
    }
    let beside = steady(args, &server, "jobs-beside", Kind::Plain, (connections, batch)).await?;
    load.verify().await?;
    server.ensure_alive()?;
    bar.finish_and_clear();
    Ok(vec![before, stored, beside])
}
