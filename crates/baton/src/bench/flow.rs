//! Concurrent producers and consumers, shared by the scenarios.
//!
//! A producer pauses while [`WINDOW_BATCHES`] of its batches are unfinished. So the measured latency is that of the
//! server, not of a backlog that grows during the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use indicatif::ProgressBar;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use super::check::DeliveryCheck;
use super::histogram::Histogram;
use super::traffic::{Consumer, Load, Producer};

/// Batches that one producer may have unfinished.
const WINDOW_BATCHES: usize = 4;
/// After this long without progress, missing messages count as lost.
const STALL_MAX: Duration = Duration::from_secs(30);

/// When producers stop: after a time or a number of messages, whichever comes first.
#[derive(Clone, Copy, Debug)]
pub struct StopAfter {
    /// The time.
    pub duration: Duration,
    /// The number, over all producers.
    pub messages: u64,
}

/// Pushes with all producers and returns them for further pushes.
pub async fn push_all(
    producers: Vec<Producer>,
    load: &Arc<Load>,
    until: StopAfter,
    bar: &ProgressBar,
) -> Result<Vec<Producer>> {
    let quota = Quota::new(load, until, None);
    let mut running = JoinSet::new();
    for producer in producers {
        running.spawn(produce(quota.clone(), producer, bar.clone()));
    }
    let mut producers = Vec::new();
    while let Some(ended) = running.join_next().await {
        producers.push(ended??);
    }
    Ok(producers)
}

/// How many messages are left to push, and how many may be in flight.
struct Quota {
    load: Arc<Load>,
    ends_at: Duration,
    left: AtomicU64,
    /// Deliveries that may be unfinished; `None` without consumers.
    window: Option<Semaphore>,
    /// Deliveries that each message causes.
    groups: usize,
}

impl Quota {
    fn new(load: &Arc<Load>, until: StopAfter, groups: Option<usize>) -> Arc<Self> {
        let groups_or_one = groups.unwrap_or(1);
        let permits = load.producers * load.batch * WINDOW_BATCHES * groups_or_one;
        Arc::new(Self {
            load: load.clone(),
            ends_at: load.clock.elapsed().saturating_add(until.duration),
            left: AtomicU64::new(until.messages),
            window: groups.map(|_| Semaphore::new(permits)),
            groups: groups_or_one,
        })
    }

    /// How many messages the next push may have; 0 at the end.
    async fn next(&self) -> Result<usize> {
        if self.load.clock.elapsed() >= self.ends_at {
            return Ok(0);
        }
        let batch = self.load.batch as u64;
        let take = |left: u64| Some(left.saturating_sub(batch));
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0);
        let count = left.min(batch) as usize;
        if let Some(window) = &self.window {
            window.acquire_many(u32::try_from(count * self.groups)?).await?.forget();
        }
        Ok(count)
    }
}

async fn produce(quota: Arc<Quota>, mut producer: Producer, bar: ProgressBar) -> Result<Producer> {
    loop {
        match quota.next().await? {
            0 => return Ok(producer),
            count => producer.push(count).await?,
        }
        bar.inc(quota.load.batch as u64);
    }
}

/// The state by which consumers stop.
struct Finish {
    finished: AtomicU64,
    /// The total number of deliveries; valid once `known` is set.
    expected: AtomicU64,
    known: AtomicBool,
    over: Notify,
}

impl Finish {
    fn is_over(&self) -> bool {
        self.known.load(Ordering::SeqCst)
            && self.finished.load(Ordering::SeqCst) >= self.expected.load(Ordering::SeqCst)
    }

    fn expect(&self, deliveries: u64) {
        self.expected.store(deliveries, Ordering::SeqCst);
        self.known.store(true, Ordering::SeqCst);
        if self.is_over() {
            self.over.notify_waiters();
        }
    }

    fn add(&self, deliveries: usize) {
        self.finished.fetch_add(deliveries as u64, Ordering::SeqCst);
        if self.is_over() {
            self.over.notify_waiters();
        }
    }
}

async fn consume(
    quota: Option<Arc<Quota>>,
    finish: Arc<Finish>,
    seen: Arc<DeliveryCheck>,
    mut consumer: Consumer,
    bar: Option<ProgressBar>,
) -> Result<Histogram> {
    loop {
        let over = finish.over.notified();
        tokio::pin!(over);
        over.as_mut().enable();
        if finish.is_over() {
            return Ok(consumer.latency());
        }
        let count = tokio::select! {
            count = consumer.consume(&seen) => count?,
            () = over => continue,
        };
        finish.add(count);
        if let Some(window) = quota.as_ref().and_then(|quota| quota.window.as_ref()) {
            window.add_permits(count);
        }
        if let Some(bar) = &bar {
            bar.inc(count as u64);
        }
    }
}

/// One consumer group and the messages it has received.
pub struct Group {
    /// Its members.
    pub consumers: Vec<Consumer>,
    /// The messages they received.
    pub seen: Arc<DeliveryCheck>,
}

/// Pushes and consumes until every group has finished everything. Returns how many messages were pushed.
pub async fn push_and_consume(
    load: &Arc<Load>,
    until: StopAfter,
    producers: Vec<Producer>,
    groups: Vec<Group>,
    bar: &ProgressBar,
) -> Result<(u64, Histogram)> {
    let quota = Quota::new(load, until, Some(groups.len()));
    let (finish, consuming) = start_groups(Some(&quota), groups, None);
    tokio::select! {
        result = both_sides(quota, producers, consuming, &finish, bar) => result,
        stalled = stall(&finish) => Err(stalled),
    }
}

async fn both_sides(
    quota: Arc<Quota>,
    producers: Vec<Producer>,
    mut consuming: JoinSet<Result<Histogram>>,
    finish: &Finish,
    bar: &ProgressBar,
) -> Result<(u64, Histogram)> {
    let mut producing = JoinSet::new();
    for producer in producers {
        producing.spawn(produce(quota.clone(), producer, bar.clone()));
    }
    let mut sent = 0;
    loop {
        tokio::select! {
            ended = producing.join_next() => match ended {
                Some(producer) => sent += producer??.sent(),
                None => break,
            },
            // A consumer that fails would leave the producers waiting for their window.
            Some(failed) = consuming.join_next() => { failed??; }
        }
    }
    finish.expect(sent * quota.groups as u64);
    Ok((sent, collect(consuming).await?))
}

/// Consumes until every group has finished `messages` messages.
pub async fn consume_all(groups: Vec<Group>, messages: u64, bar: &ProgressBar) -> Result<Histogram> {
    let deliveries = messages * groups.len() as u64;
    let (finish, consuming) = start_groups(None, groups, Some(bar));
    finish.expect(deliveries);
    tokio::select! {
        latency = collect(consuming) => latency,
        stalled = stall(&finish) => Err(stalled),
    }
}

fn start_groups(
    quota: Option<&Arc<Quota>>,
    groups: Vec<Group>,
    bar: Option<&ProgressBar>,
) -> (Arc<Finish>, JoinSet<Result<Histogram>>) {
    let finish = Arc::new(Finish {
        finished: AtomicU64::new(0),
        expected: AtomicU64::new(0),
        known: AtomicBool::new(false),
        over: Notify::new(),
    });
    let mut consuming = JoinSet::new();
    for Group { consumers, seen } in groups {
        for consumer in consumers {
            consuming.spawn(consume(quota.cloned(), finish.clone(), seen.clone(), consumer, bar.cloned()));
        }
    }
    (finish, consuming)
}

/// Waits for the consumers.
async fn collect(mut consuming: JoinSet<Result<Histogram>>) -> Result<Histogram> {
    let mut latency = Histogram::default();
    while let Some(ended) = consuming.join_next().await {
        latency.merge(&ended??);
    }
    Ok(latency)
}

/// Returns when nothing has finished for [`STALL_MAX`]. Without that, consumers would wait forever for a lost
/// message, and so would producers whose window it fills.
async fn stall(finish: &Finish) -> anyhow::Error {
    loop {
        let before = finish.finished.load(Ordering::SeqCst);
        baton_env::sleep(STALL_MAX).await;
        if finish.finished.load(Ordering::SeqCst) == before {
            return anyhow!("messages were lost: nothing came after the first {before}");
        }
    }
}
