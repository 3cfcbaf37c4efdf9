//! Pipeline: push, pop and ack. Measures end-to-end messages a second, and the latency from just before a push to the
//! message's receipt. A single connection alternates between the three, and pipelines the pop with its push; of
//! several connections, half push and half consume.

use anyhow::Result;

use super::report::ReportRow;
use super::traffic::AlternatingClient;
use super::{Args, Measurement, Shape, flow, progress};

/// Measures every combination of connections, batch and partitions.
pub async fn run(args: &Args) -> Result<Vec<ReportRow>> {
    let mut rows = Vec::new();
    for connections in args.connections_or(&[1, 8, 32], &[8]) {
        for partitions in args.partitions_or(&[100], &[100]) {
            for batch in args.batch_or(&[1, 10, 100], &[1, 100]) {
                let shape = Shape {
                    scenario: "pipeline",
                    connections,
                    producers: (connections / 2).max(1),
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
    let bar = progress(format!("pipeline: batch {} × {}", shape.batch, shape.connections), args.messages);
    let (sent, latency) = if shape.connections == 1 {
        alternate(args, &mut run).await?
    } else {
        let producers = run.producers().await?;
        let group = run.group(shape.connections - shape.producers, "").await?;
        let seen = group.seen.clone();
        run.start();
        let (load, until) = (run.load.clone(), args.until());
        let (sent, latency) = flow::push_and_consume(&load, until, producers, vec![group], &bar).await?;
        run.stop(sent);
        run.verify(&seen, "", sent).await?;
        (sent, latency)
    };
    bar.finish_and_clear();
    run.row.latency_us = latency.latency();
    debug_assert_eq!(run.row.messages, sent);
    run.verified()
}

/// One batch after the other on a single connection.
async fn alternate(args: &Args, run: &mut Measurement) -> Result<(u64, super::histogram::Histogram)> {
    let mut soloist = AlternatingClient::open(&run.load).await?;
    let seen = run.group(0, "").await?.seen;
    let until = args.until();
    run.start();
    while run.watch.elapsed() < until.duration && soloist.sent() < until.messages {
        soloist.run_round(run.load.batch, &seen).await?;
    }
    run.stop(soloist.sent());
    run.verify(&seen, "", soloist.sent()).await?;
    Ok((soloist.sent(), soloist.latency()))
}
