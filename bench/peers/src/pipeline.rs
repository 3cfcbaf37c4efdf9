//! Push, deliver, acknowledge: how many messages a second go all the way through, and how long one is under
//! way from just before its push to its receipt.
//!
//! Half of the connections push and half consume; a single connection does both in turn. Producers stop while
//! [`WINDOW_BATCHES`] batches each are not finished, so that latency is that of the system and not of a backlog
//! that grows for as long as the run lasts. The same rule holds for every system.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use crate::check::{self, Seen};
use crate::cpu;
use crate::histogram::Histogram;
use crate::message::{Stamp, now, payload};
use crate::system::{Link, System};

/// Batches that one producer may have unfinished.
pub const WINDOW_BATCHES: usize = 4;
/// How long a run may take to finish what was pushed; beyond that, messages are taken for lost.
const DRAIN_MAX: Duration = Duration::from_secs(30);

pub struct Options {
    pub connections: usize,
    pub batch: usize,
    pub duration: Duration,
    pub payload_bytes: usize,
    pub server_pid: Option<u32>,
}

/// What producers and consumers share.
struct Run {
    batch: usize,
    payload_bytes: usize,
    ends_at: u64,
    window: Semaphore,
    pushed: AtomicU64,
    finished: AtomicU64,
    all_pushed: AtomicBool,
    done: Notify,
}

impl Run {
    fn batch_of(&self, producer: usize, first: u32) -> Vec<Vec<u8>> {
        let at = now();
        let stamp = |sequence| Stamp { producer: producer as u32, sequence, at };
        (first..first + self.batch as u32)
            .map(|sequence| payload(stamp(sequence), self.payload_bytes))
            .collect()
    }

    fn is_done(&self) -> bool {
        self.all_pushed.load(Ordering::SeqCst)
            && self.finished.load(Ordering::SeqCst) == self.pushed.load(Ordering::SeqCst)
    }
}

async fn produce<L: Link>(run: Arc<Run>, mut link: L, producer: usize) -> Result<u32> {
    let mut sent = 0;
    while now() < run.ends_at {
        run.window.acquire_many(run.batch as u32).await?.forget();
        link.push(run.batch_of(producer, sent)).await?;
        sent += run.batch as u32;
        run.pushed.fetch_add(run.batch as u64, Ordering::SeqCst);
    }
    Ok(sent)
}

/// Takes and finishes one batch.
async fn consume_once<L: Link>(
    run: &Run,
    link: &mut L,
    seen: &mut Seen,
    latency: &mut Histogram,
) -> Result<usize> {
    let taken = link.take(run.batch).await?;
    finish(link, taken, seen, latency).await
}

/// Notes and finishes what was taken.
async fn finish<L: Link>(
    link: &mut L,
    taken: Vec<(Stamp, L::Receipt)>,
    seen: &mut Seen,
    latency: &mut Histogram,
) -> Result<usize> {
    let received = now();
    let mut receipts = Vec::with_capacity(taken.len());
    for (stamp, receipt) in taken {
        latency.record(received - stamp.at);
        seen.note(stamp);
        receipts.push(receipt);
    }
    let count = receipts.len();
    link.finish(receipts).await?;
    Ok(count)
}

async fn consume<L: Link>(run: Arc<Run>, mut link: L) -> Result<(Seen, Histogram)> {
    let (mut seen, mut latency) = (Seen::default(), Histogram::default());
    loop {
        let done = run.done.notified();
        tokio::pin!(done);
        done.as_mut().enable();
        if run.is_done() {
            run.done.notify_waiters();
            return Ok((seen, latency));
        }
        tokio::select! {
            count = consume_once(&run, &mut link, &mut seen, &mut latency) => {
                let count = count?;
                run.finished.fetch_add(count as u64, Ordering::SeqCst);
                run.window.add_permits(count);
            }
            () = done => {}
        }
    }
}

/// The single connection: a batch is pushed, then consumed, then the next. It is asked for together with its push, by those
/// that have not asked for it before.
async fn alternate<L: Link>(run: Arc<Run>, mut link: L) -> Result<(u32, Seen, Histogram)> {
    let (mut seen, mut latency, mut sent, mut finished) = (Seen::default(), Histogram::default(), 0, 0);
    while now() < run.ends_at {
        let taken = link.push_and_take(run.batch_of(0, sent), run.batch).await?;
        sent += run.batch as u32;
        finished += finish(&mut link, taken, &mut seen, &mut latency).await? as u32;
        while finished < sent {
            finished += consume_once(&run, &mut link, &mut seen, &mut latency).await? as u32;
        }
    }
    Ok((sent, seen, latency))
}

/// How many of the connections push.
pub fn producers(connections: usize) -> usize {
    (connections / 2).max(1)
}

pub async fn run<S: System>(system: S, options: &Options) -> Result<Value> {
    system.prepare().await?;
    let producers = producers(options.connections);
    let mut links = Vec::new();
    for number in 0..options.connections {
        links.push(system.open(number).await?);
    }
    let start = now();
    let cpu_before = cpu::used(options.server_pid);
    let run = Arc::new(Run {
        batch: options.batch,
        payload_bytes: options.payload_bytes,
        ends_at: start + options.duration.as_nanos() as u64,
        window: Semaphore::new(producers * options.batch * WINDOW_BATCHES),
        pushed: AtomicU64::new(0),
        finished: AtomicU64::new(0),
        all_pushed: AtomicBool::new(false),
        done: Notify::new(),
    });
    let whole = async {
        if options.connections == 1 {
            let link = links.pop().ok_or_else(|| anyhow::anyhow!("no connection"))?;
            let (sent, seen, latency) = alternate(run.clone(), link).await?;
            return Ok((vec![sent], vec![seen], latency));
        }
        both_sides(&run, links, producers).await
    };
    let (sent, seen, latency) = tokio::time::timeout(options.duration + DRAIN_MAX, whole).await??;
    let seconds = (now() - start) as f64 / 1e9;
    let cpu_after = cpu::used(options.server_pid);
    check::verify(&sent, &seen)?;
    let unfinished = system.unfinished().await?;
    ensure!(unfinished == 0, "{unfinished} messages would be delivered again");
    let messages: u64 = sent.iter().map(|n| u64::from(*n)).sum();
    Ok(json!({
        "scenario": "pipeline",
        "connections": options.connections,
        "batch": options.batch,
        "payload_bytes": options.payload_bytes,
        "messages": messages,
        "seconds": seconds,
        "messages_per_second": messages as f64 / seconds,
        "latency_us": latency.summary(),
        "server_cpu_us_per_message": cpu_before.zip(cpu_after).map(|(a, b)| (b - a) * 1e6 / messages as f64),
        "verified": true,
    }))
}

async fn both_sides<L: Link>(
    run: &Arc<Run>,
    mut links: Vec<L>,
    producers: usize,
) -> Result<(Vec<u32>, Vec<Seen>, Histogram)> {
    let mut consuming = JoinSet::new();
    for link in links.split_off(producers) {
        consuming.spawn(consume(run.clone(), link));
    }
    let mut producing = JoinSet::new();
    for (producer, link) in links.into_iter().enumerate() {
        let run = run.clone();
        producing.spawn(async move { (producer, produce(run, link, producer).await) });
    }
    let mut sent = vec![0; producers];
    while let Some(ended) = producing.join_next().await {
        let (producer, count) = ended?;
        sent[producer] = count?;
    }
    run.all_pushed.store(true, Ordering::SeqCst);
    if run.is_done() {
        run.done.notify_waiters();
    }
    let (mut seen, mut latency) = (Vec::new(), Histogram::default());
    while let Some(ended) = consuming.join_next().await {
        let (one, measured) = ended??;
        seen.push(one);
        latency.merge(&measured);
    }
    Ok((sent, seen, latency))
}
