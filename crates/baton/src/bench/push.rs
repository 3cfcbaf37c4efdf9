//! Push only: batches of several sizes over few and many partitions. The latency is that of a push.
//!
//! Every partition exists before the clock starts, so that a million of them are measured as in a long-running
//! server, with the memory that they cost. After the clock has stopped, the messages are consumed to check that all
//! of them are there.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::flow::{self, StopAfter};
use super::histogram::Histogram;
use super::report::ReportRow;
use super::traffic::Load;
use super::{Args, Measurement, Shape, progress};

/// Messages of one push while partitions are created, and of one pop while the result is checked.
const BULK: usize = 1_000;
/// The time limit for creating partitions.
const FILL_MAX: Duration = Duration::from_secs(3_600);

/// Measures every combination of batch, partitions and connections.
pub async fn run(args: &Args) -> Result<Vec<ReportRow>> {
    let mut rows = Vec::new();
    for connections in args.connections_or(&[8], &[8]) {
        for partitions in args.partitions_or(&[1, 100, 10_000, 1_000_000], &[1, 10_000]) {
            for batch in args.batch_or(&[1, 10, 100, 1_000], &[1, 100]) {
                let shape = Shape {
                    scenario: "push",
                    connections,
                    producers: connections,
                    batch,
                    partitions,
                    scatter: !args.together,
                };
                rows.push(measure(args, shape).await?);
            }
        }
    }
    Ok(rows)
}

async fn measure(args: &Args, shape: Shape) -> Result<ReportRow> {
    let mut run = Measurement::prepare(args, shape)?;
    let (host, queue) = (run.load.host.clone(), run.load.queue.clone());
    let bulk = Arc::new(Load { batch: BULK, host, queue, token: run.load.token.clone(), ..*run.load });
    let empty = run.server.usage();
    let bar = progress(format!("push: {} partitions", shape.partitions), Some(shape.partitions as u64));
    let first = StopAfter { messages: shape.partitions as u64, duration: FILL_MAX };
    let mut producers = run.producers().await?;
    producers = flow::push_all(producers, &bulk, first, &bar).await?;
    bar.finish_and_clear();
    let created: u64 = producers.iter().map(|one| one.sent()).sum();
    let grown = empty.zip(run.server.usage()).map(|(a, b)| b.memory_bytes.saturating_sub(a.memory_bytes));

    producers.iter_mut().for_each(|one| one.latency = Histogram::default());
    let bar = progress(format!("push: batch {}", shape.batch), args.messages);
    run.start();
    let load = run.load.clone();
    producers = flow::push_all(producers, &load, args.until(), &bar).await?;
    let sent: u64 = producers.iter().map(|one| one.sent()).sum();
    run.stop(sent - created);
    bar.finish_and_clear();
    let mut latency = Histogram::default();
    producers.iter().for_each(|one| latency.merge(&one.latency));
    run.row.latency_us = latency.latency();
    run.row.server_memory_bytes_each = grown.map(|bytes| bytes as f64 / shape.partitions as f64);
    run.row.disk_bytes_per_message = run.server.disk_bytes().map(|bytes| bytes as f64 / sent as f64);

    let bar = progress("push: check".into(), Some(sent));
    let group = run.group_with(&bulk, shape.connections, "").await?;
    let seen = group.seen.clone();
    flow::consume_all(vec![group], sent, &bar).await?;
    bar.finish_and_clear();
    run.verify(&seen, "", sent).await?;
    run.verified()
}
