//! Restart: kills the server with a stored backlog, restarts it, and measures the time until it listens, then until
//! the first delivery. Some of the backlog was consumed before; exactly the rest must come.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use baton_env::Stopwatch;

use super::flow::{self, StopAfter};
use super::histogram::Histogram;
use super::report::ReportRow;
use super::traffic::Load;
use super::{Args, Measurement, Shape, progress};

/// The time limit for storing the backlog.
const FILL_MAX: Duration = Duration::from_secs(7_200);
/// Messages that are consumed before the crash, and again after it.
const SAMPLE: u64 = 10_000;

/// Measures one restart. `seconds` is the time until the server listens, the latency that of the first pop.
pub async fn run(args: &Args) -> Result<Vec<ReportRow>> {
    let messages = args.messages_or(10_000_000, 200_000);
    let batch = args.batch.first().copied().unwrap_or(1_000);
    ensure!(
        messages >= 4 * batch as u64,
        "a restart is measured with a backlog of at least four batches: give more --messages, or a smaller --batch"
    );
    let shape = Shape {
        scenario: "restart",
        connections: 8,
        producers: 8,
        batch,
        partitions: args.partitions.first().copied().unwrap_or(10_000),
        scatter: args.scatter,
    };
    let mut run = Measurement::prepare(args, shape)?;
    ensure!(run.server.is_own(), "a restart needs a server of its own: leave --url out");
    let bar = progress("restart: fill".into(), Some(messages));
    let load = run.load.clone();
    let until = StopAfter { messages, duration: FILL_MAX };
    let producers = flow::push_all(run.producers().await?, &load, until, &bar).await?;
    let sent: u64 = producers.iter().map(|one| one.sent()).sum();
    drop(producers);
    bar.finish_and_clear();
    let mut group = run.group(1, "").await?;
    let mut finished = 0;
    while finished < SAMPLE.min(sent / 4) {
        finished += group.consumers[0].consume(&group.seen).await? as u64;
    }
    group.consumers.clear();
    run.row.disk_bytes_per_message = run.server.disk_bytes().map(|bytes| bytes as f64 / sent as f64);

    let (listens, first) = crash(&mut run, &mut group, finished, sent).await?;
    let mut latency = Histogram::default();
    latency.record(first);
    run.stop(sent);
    run.row.seconds = listens.as_secs_f64();
    run.row.messages_per_second = None;
    run.row.server_cpu_us_per_message = None;
    run.row.latency_us = latency.latency();
    Ok(vec![run.verified()?])
}

/// Kills and restarts the server. Returns how long until it listened and until it delivered.
async fn crash(
    run: &mut Measurement,
    group: &mut flow::Group,
    mut finished: u64,
    sent: u64,
) -> Result<(Duration, Duration)> {
    let crashed = std::mem::replace(&mut run.server, super::Server::at("http://nowhere", None)?);
    let watch = Stopwatch::start();
    run.server = crashed.restart()?;
    let listens = watch.elapsed();
    let host = run.server.host().to_owned();
    let load =
        Arc::new(Load { host, queue: run.load.queue.clone(), token: run.load.token.clone(), ..*run.load });
    let mut consumer = super::Consumer::open(load, "").await?;
    finished += consumer.consume(&group.seen).await? as u64;
    let first = watch.elapsed().saturating_sub(listens);
    let enough = (finished + SAMPLE).min(sent);
    while finished < enough {
        finished += consumer.consume(&group.seen).await? as u64;
    }
    ensure!(group.seen.count() == finished, "messages were lost or came again after the restart");
    Ok((listens, first))
}
