//! Wake-up: a pop waits on an idle queue and one message is pushed. Measures the time from just before the push until
//! the consumer has the message.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::mpsc;

use super::report::ReportRow;
use super::{Args, Measurement, Shape, progress};

/// How long the queue is idle before each message.
const PAUSE: Duration = Duration::from_millis(20);
/// A message that takes longer is lost.
const ARRIVAL_MAX: Duration = Duration::from_secs(10);

/// Measures one producer and one consumer.
pub async fn run(args: &Args) -> Result<Vec<ReportRow>> {
    let samples = args.samples.unwrap_or(if args.quick { 50 } else { 500 });
    let shape =
        Shape { scenario: "wake-up", connections: 2, producers: 1, batch: 1, partitions: 1, scatter: false };
    let mut run = Measurement::prepare(args, shape)?;
    let bar = progress("wake-up".into(), Some(samples.into()));
    let mut producer = run.producers().await?.pop().context("no producer")?;
    let mut group = run.group(1, "").await?;
    let mut consumer = group.consumers.pop().context("no consumer")?;
    let (finished, mut finishes) = mpsc::channel(1);
    let seen = group.seen.clone();
    run.start();
    let consuming = tokio::spawn(async move {
        for _ in 0..samples {
            while consumer.consume(&seen).await? == 0 {}
            finished.send(()).await?;
        }
        anyhow::Ok(consumer.latency())
    });
    for _ in 0..samples {
        baton_env::sleep(PAUSE).await;
        producer.push(1).await?;
        let arrived = tokio::time::timeout(ARRIVAL_MAX, finishes.recv()).await;
        if arrived.context("a message never came")?.is_none() {
            break;
        }
        bar.inc(1);
    }
    let latency = consuming.await??;
    run.stop(samples.into());
    run.row.messages_per_second = None;
    bar.finish_and_clear();
    run.verify(&group.seen, "", samples.into()).await?;
    run.row.latency_us = latency.latency();
    Ok(vec![run.verified()?])
}
