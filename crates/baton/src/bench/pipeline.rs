//! Push, pop, ack: how many messages a second go all the way through, and how long one is under way from just
//! before its push to its receipt. A single connection does the three in turn, and asks for messages together with the
//! push that brings them; of several, half push and half consume.

use anyhow::Result;

use super::report::Row;
use super::traffic::Soloist;
use super::{Args, Measurement, Shape, flow, progress};

/// Measures every combination of connections, batch and partitions.
pub async fn run(args: &Args) -> Result<Vec<Row>> {
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
                rows.push(one(args, shape).await?);
            }
        }
    }
    Ok(rows)
}

async fn one(args: &Args, shape: Shape) -> Result<Row> {
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
    let mut soloist = Soloist::open(&run.load).await?;
    let seen = run.group(0, "").await?.seen;
    let until = args.until();
    run.start();
    while run.watch.elapsed() < until.duration && soloist.sent() < until.messages {
        soloist.turn(run.load.batch, &seen).await?;
    }
    run.stop(soloist.sent());
    run.verify(&seen, "", soloist.sent()).await?;
    Ok((soloist.sent(), soloist.latency()))
}
