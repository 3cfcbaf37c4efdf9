//! Fan-out: every message goes to one, five and ten groups. The rate is that of deliveries, over all groups.

use anyhow::Result;

use super::report::ReportRow;
use super::{Args, Measurement, Shape, flow, progress};

/// Measures every number of groups.
pub async fn run(args: &Args) -> Result<Vec<ReportRow>> {
    let mut rows = Vec::new();
    for connections in args.connections_or(&[20], &[10]) {
        for partitions in args.partitions_or(&[100], &[100]) {
            for batch in args.batch_or(&[100], &[100]) {
                for groups in Args::or(&args.groups, &[1, 5, 10], &[1, 5], args.quick) {
                    let producers = (connections / 2).max(1);
                    let scatter = args.scatter;
                    let shape =
                        Shape { scenario: "fan-out", connections, producers, batch, partitions, scatter };
                    rows.push(measure(args, shape, groups).await?);
                }
            }
        }
    }
    Ok(rows)
}

async fn measure(args: &Args, shape: Shape, groups: usize) -> Result<ReportRow> {
    let mut run = Measurement::prepare(args, shape)?;
    let bar = progress(format!("fan-out: {groups} groups"), args.messages);
    let producers = run.producers().await?;
    let members = ((shape.connections - shape.producers) / groups).max(1);
    let mut consuming = Vec::new();
    for number in 0..groups {
        consuming.push(run.group(members, &format!("group-{number}")).await?);
    }
    let seen: Vec<_> = consuming.iter().map(|group| group.seen.clone()).collect();
    run.start();
    let (load, until) = (run.load.clone(), args.until());
    let (sent, latency) = flow::push_and_consume(&load, until, producers, consuming, &bar).await?;
    run.stop(sent * groups as u64);
    bar.finish_and_clear();
    for (number, seen) in seen.iter().enumerate() {
        run.verify(seen, &format!("group-{number}"), sent).await?;
    }
    run.row.groups = Some(groups);
    run.row.latency_us = latency.latency();
    run.verified()
}
