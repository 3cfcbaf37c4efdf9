//! An idle consumer waits, one message is pushed: how long until the consumer holds it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::histogram::Histogram;
use crate::message::{Stamp, now, payload};
use crate::system::{Link, System};

pub struct Options {
    pub samples: u32,
    pub pause: Duration,
    pub payload_bytes: usize,
}

pub async fn run<S: System>(system: S, options: &Options) -> Result<Value> {
    system.prepare().await?;
    let (mut producer, mut consumer) = (system.open(0).await?, system.open(1).await?);
    let (finished, mut finishes) = mpsc::channel(1);
    let samples = options.samples;
    let consuming = tokio::spawn(async move {
        let mut latency = Histogram::default();
        for expected in 0..samples {
            let taken = consumer.take(1).await?;
            let received = now();
            ensure!(
                taken.len() == 1 && taken[0].0.sequence == expected,
                "a message was lost, doubled or out of order"
            );
            latency.record(received - taken[0].0.at);
            consumer.finish(taken.into_iter().map(|(_, receipt)| receipt).collect()).await?;
            finished.send(()).await?;
        }
        Ok(latency)
    });
    for sequence in 0..samples {
        tokio::time::sleep(options.pause).await;
        producer
            .push(vec![payload(Stamp { producer: 0, sequence, at: now() }, options.payload_bytes)])
            .await?;
        tokio::time::timeout(Duration::from_secs(10), finishes.recv())
            .await?
            .context("the consumer ended early")?;
    }
    let latency = consuming.await??;
    ensure!(system.unfinished().await? == 0, "messages would be delivered again");
    Ok(json!({
        "scenario": "wake-up",
        "samples": samples,
        "payload_bytes": options.payload_bytes,
        "latency_us": latency.summary(),
        "verified": true,
    }))
}
