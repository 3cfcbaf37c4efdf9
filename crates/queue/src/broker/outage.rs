//! Runs the spool of a server whose store may go away: takes pushes in, and sends them on when the store is back.
//!
//! Always: while messages for a partition wait here, later ones for it wait behind them; once the store is back these
//! hold on for a moment instead of making the line longer, so it comes to an end under any load. Bounded: no more than a given
//! number of bytes is taken in until everything has arrived; beyond that a push is refused as it would be without a
//! spool.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_store::{Partition, Store, run};
use baton_types::{Offset, PartitionId};
use rustc_hash::FxHashMap;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Broker, PAGE};
use crate::Error;
use crate::rules::maintenance::{self, Detour, Drained, Run};
use crate::rules::outage;
use crate::rules::push::{PushBatch, Pushed};
use crate::rules::seal::Sealer;

/// After this it is looked again whether the store is back.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long a push holds on for those before it to arrive, once the store is back.
const HOLD_ON: Duration = Duration::from_secs(1);
/// Messages of one run.
const RUN_MESSAGES_MAX: usize = 10_000;
/// Bytes of one run, or a single segment.
const RUN_BYTES: usize = 4 << 20;

/// Where pushes wait while the store is away.
#[derive(Clone)]
pub struct Spool {
    /// A store of this server's own.
    pub store: Arc<dyn Store>,
    /// Bytes of messages that may wait in it.
    pub bytes_max: u64,
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spool").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

/// See the module.
pub struct Outage {
    spool: Spool,
    store: Arc<dyn Store>,
    sealer: Arc<Sealer>,
    detour: Detour,
    name: tokio::sync::OnceCell<String>,
    /// Messages that wait, in all: a look at it is all that an outage costs a push when there is none.
    count: AtomicU64,
    waiting: Mutex<Waiting>,
    came: Notify,
    /// Rung when everything that waited for some partition has arrived.
    arrived: Notify,
}

/// Messages that wait. Counted before they are written and until they have arrived, so that nothing overtakes them.
#[derive(Default)]
struct Waiting {
    /// For each partition that they are meant for.
    partitions: FxHashMap<String, u64>,
    count: u64,
    /// Bytes that were taken in since the spool was last empty.
    bytes: u64,
}

impl Waiting {
    fn add(&mut self, counts: &[(String, u64)], bytes: u64) {
        for (name, count) in counts {
            *self.partitions.entry(name.clone()).or_default() += count;
            self.count += count;
        }
        self.bytes += bytes;
    }

    fn take_out(&mut self, name: &str, count: u64) {
        let Some(left) = self.partitions.get_mut(name) else { return };
        let count = count.min(*left);
        *left -= count;
        if *left == 0 {
            self.partitions.remove(name);
        }
        self.count -= count;
        if self.count == 0 {
            self.bytes = 0;
        }
    }
}

impl Outage {
    pub fn new(spool: Spool, store: Arc<dyn Store>, sealer: Arc<Sealer>, detour: Detour) -> Arc<Self> {
        Arc::new(Self {
            spool,
            store,
            sealer,
            detour,
            name: tokio::sync::OnceCell::new(),
            // Until it is known what is left from before, everything waits.
            count: AtomicU64::new(1),
            waiting: Mutex::default(),
            came: Notify::new(),
            arrived: Notify::new(),
        })
    }

    /// Changes what is known to wait.
    fn note<R>(&self, change: impl FnOnce(&mut Waiting) -> R) -> R {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut waiting);
        self.count.store(waiting.count, Ordering::Release);
        result
    }

    /// Messages that wait.
    pub fn len(&self) -> u64 {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    /// Whether messages for the same partitions wait, so that these have to as well. Tells so at once while the store
    /// is away, and otherwise only if they have not arrived after a moment.
    pub async fn is_ahead_of(&self, batch: &PushBatch) -> Result<bool, Error> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(false);
        }
        self.name().await?;
        let counts = batch.spool_counts();
        let mut patience = pin!(baton_env::sleep(HOLD_ON));
        loop {
            let mut arrived = pin!(self.arrived.notified());
            arrived.as_mut().enable();
            if !self.note(|waiting| counts.iter().any(|(name, _)| waiting.partitions.contains_key(name))) {
                return Ok(false);
            }
            if self.store.outage().is_some() {
                return Ok(true);
            }
            tokio::select! {
                () = arrived => {}
                () = &mut patience => return Ok(true),
            }
        }
    }

    /// Takes messages in, if there is room. They are on disk when this returns.
    pub async fn take_in(self: &Arc<Self>, batch: Arc<PushBatch>) -> Result<Option<Vec<Pushed>>, Error> {
        self.name().await?;
        let (counts, bytes) = (batch.spool_counts(), batch.bytes_len() as u64);
        let has_room = self.note(|waiting| {
            let has_room = waiting.bytes + bytes <= self.spool.bytes_max;
            if has_room {
                waiting.add(&counts, bytes);
            }
            has_room
        });
        if !has_room {
            return Ok(None);
        }
        // To its end also when the caller goes away, so that the count is right.
        let outage = self.clone();
        let writing = tokio::spawn(async move {
            let written = run(&*outage.spool.store, move |tx| outage::wait(tx, &batch)).await;
            if written.is_err() {
                outage.note(|waiting| {
                    waiting.bytes = waiting.bytes.saturating_sub(bytes);
                    counts.iter().for_each(|(name, count)| waiting.take_out(name, *count));
                });
            }
            outage.came.notify_one();
            written
        });
        let ended = writing.await.map_err(|e| baton_store::Error::Closed(e.to_string()))?;
        Ok(Some(ended?))
    }

    /// The spool's name; upon the first call also counts what is left in it from before.
    async fn name(&self) -> Result<&str, Error> {
        let begin = async {
            let fresh = format!("{:016x}{:016x}", baton_env::random_u64(), baton_env::random_u64());
            let name = run(&*self.spool.store, move |tx| outage::name(tx, &fresh)).await?;
            let (mut left, mut after) = (Vec::new(), None);
            while let Some(page) = self.page(after).await? {
                after = page.last().map(|row| row.id);
                let full = page.iter().filter(|row| row.start < row.tail);
                left.extend(full.map(|row| (row.name.to_string(), row.tail.since(row.start))));
            }
            // What it takes on disk is as good a measure, for what was written before.
            let bytes = if left.is_empty() { 0 } else { self.spool.store.statistics().disk_bytes };
            self.note(|waiting| waiting.add(&left, bytes));
            Ok::<_, Error>(name)
        };
        Ok(self.name.get_or_try_init(|| begin).await?)
    }

    async fn page(&self, after: Option<PartitionId>) -> Result<Option<Vec<Partition>>, Error> {
        Ok(run(&*self.spool.store, move |tx| outage::waiting(tx, after, PAGE)).await?)
    }

    /// Sends on what waits whenever the store is there, until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let sent = tokio::select! {
                () = stop.cancelled() => return,
                sent = self.send_on() => sent,
            };
            let idle = self.count.load(Ordering::Acquire) == 0;
            match sent {
                Ok(moved) if moved > 0 && !idle => continue,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "what waits in the local spool could not be sent on; will try again");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.came.notified(), if idle => {}
                () = baton_env::sleep(LOOK_AGAIN), if !idle => {}
            }
        }
    }

    /// Sends on what waits; how many messages.
    async fn send_on(&self) -> Result<u64, Error> {
        let name = self.name().await?;
        if self.store.outage().is_some() || self.count.load(Ordering::Acquire) == 0 {
            return Ok(0);
        }
        let (mut after, mut moved) = (None, 0);
        while let Some(page) = self.page(after).await? {
            after = page.last().map(|row| row.id);
            for partition in page.into_iter().filter(|row| row.start < row.tail) {
                // What is wrong with one partition does not hold up the others.
                match self.send_partition(name, &partition).await {
                    Ok(count) => moved += count,
                    Err(error) if self.store.outage().is_some() => return Err(error),
                    Err(error) => tracing::warn!(
                        %error,
                        partition = &*partition.name,
                        "messages stay in the local spool; will try again"
                    ),
                }
            }
        }
        if moved > 0 {
            tracing::info!(messages = moved, "messages of the local spool have arrived");
        }
        if self.count.load(Ordering::Acquire) == 0 {
            run(&*self.spool.store, outage::end).await?;
            let forget = || {
                let name = name.to_owned();
                run(&*self.store, move |tx| outage::forget(tx, &name))
            };
            while forget().await? {}
        }
        Ok(moved)
    }

    /// Sends on what waits for one partition; how many messages.
    async fn send_partition(&self, name: &str, partition: &Partition) -> Result<u64, Error> {
        let (id, spool) = (partition.id, name.to_owned());
        let arrived = run(&*self.store, move |tx| outage::arrived(tx, &spool, id)).await?;
        let mut from = partition.start;
        if arrived > from {
            from = self.give_up(partition, from, arrived).await?;
        }
        let mut most = RUN_MESSAGES_MAX;
        while from < partition.tail {
            let segments = self.spool.store.read(id, from, partition.tail, RUN_BYTES).await?;
            let run = Run::read(id, &partition.name, from, &segments, most)?;
            if run.is_empty() {
                break;
            }
            let (to, len) = (run.to, run.messages().len());
            match self.send_run(name, Arc::new(run)).await? {
                Drained::Done => from = self.give_up(partition, from, to).await?,
                Drained::Stale => break,
                Drained::Refused(error) => most = maintenance::room(&error, len).ok_or(error)?,
            }
        }
        Ok(from.since(partition.start))
    }

    /// Gives up in the spool what has arrived, and lets later messages go their own way once nothing is left.
    async fn give_up(&self, partition: &Partition, from: Offset, to: Offset) -> Result<Offset, Error> {
        let id = partition.id;
        run(&*self.spool.store, move |tx| outage::give_up(tx, id, to)).await?;
        self.note(|waiting| waiting.take_out(&partition.name, to.since(from)));
        self.arrived.notify_waiters();
        Ok(to)
    }

    async fn send_run(&self, name: &str, waiting: Arc<Run>) -> Result<Drained, Error> {
        let (spool, detour, plain) = (name.to_owned(), self.detour.clone(), waiting.clone());
        match run(&*self.store, move |tx| outage::arrive(tx, &spool, &plain, &detour)).await? {
            Drained::Refused(Error::Unsealed(_)) => {
                let (spool, detour) = (name.to_owned(), self.detour.clone());
                let sealed = waiting.sealed(&self.sealer)?;
                Ok(run(&*self.store, move |tx| outage::arrive(tx, &spool, &sealed, &detour)).await?)
            }
            other => Ok(other),
        }
    }
}

impl Broker {
    /// Messages that wait in this server's own spool until the store is back.
    pub fn waiting_locally(&self) -> u64 {
        self.shared.outage.as_ref().map_or(0, |outage| outage.len())
    }
}
