//! Drain: pops and acks a backlog.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::flow::{self, StopAfter};
use super::report::ReportRow;
use super::traffic::Load;
use super::{Args, Measurement, Shape, progress};

/// The time limit for storing the backlog.
const FILL_MAX: Duration = Duration::from_secs(3_600);

/// Messages of one push while the backlog is stored.
const BULK: usize = 1_000;

/// Measures every combination of connections, partitions and batch.
pub async fn run(args: &Args) -> Result<Vec<ReportRow>> {
    let mut rows = Vec::new();
    for connections in args.connections_or(&[8], &[8]) {
        for partitions in args.partitions_or(&[100, 10_000], &[100]) {
            for batch in args.batch_or(&[10, 100, 1_000], &[100]) {
                let shape = Shape {
                    scenario: "drain",
                    connections,
                    producers: connections,
                    batch,
                    partitions,
                    scatter: args.scatter,
                };
                rows.push(measure(args, shape).await?);
            }
        }
    }
    Ok(rows)
}

async fn measure(args: &Args, shape: Shape) -> Result<ReportRow> {
    let mut run = Measurement::prepare(args, shape)?;
    let messages = args.messages_or(500_000, 50_000);
    let bar = progress("drain: fill".into(), Some(messages));
    let (host, queue) = (run.load.host.clone(), run.load.queue.clone());
    let bulk = Arc::new(Load { batch: BULK, host, queue, token: run.load.token.clone(), ..*run.load });
    let producers = run.producers().await?;
    let producers =
        flow::push_all(producers, &bulk, StopAfter { messages, duration: FILL_MAX }, &bar).await?;
    let sent: u64 = producers.iter().map(|one| one.sent()).sum();
    bar.finish_and_clear();

    let bar = progress(format!("drain: batch {}", shape.batch), Some(sent));
    let group = run.group(shape.connections, "").await?;
    let seen = group.seen.clone();
    run.start();
    flow::consume_all(vec![group], sent, &bar).await?;
    run.stop(sent);
    bar.finish_and_clear();
    run.verify(&seen, "", sent).await?;
    run.verified()
}
