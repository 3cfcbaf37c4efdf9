//! Runs maintenance on a store: keeps the modes at hand, and drains the spool when it is time.
//!
//! Always: a mode is stored before it has effect and before its switch is answered. A server that did not make the
//! switch itself hears of it within [`LOOK_AGAIN`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_store::{Partition, Store, Tx, TxError, run};
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use super::{Broker, PAGE};
use crate::Error;
use crate::rules::maintenance::{self, Detour, Drained, Hint, Maintenance, PushMode, Run, SPOOL};
use crate::rules::seal::Sealer;
use crate::wait::hint::News;
use crate::wait::service::Parking;

/// After this the stored modes are looked at again, and what could not be drained is tried again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Messages of one run.
const RUN_MESSAGES_MAX: usize = 10_000;
/// Bytes of one run, or a single segment.
const RUN_BYTES: usize = 4 << 20;

/// The modes and the spool of one store.
pub struct Keeper {
    store: Arc<dyn Store>,
    parking: Arc<Parking>,
    sealer: Arc<Sealer>,
    hint: Arc<Hint>,
    known: AtomicBool,
    /// Held while a mode is read or written and taken over, so that a newer one is never undone by an older.
    turn: Mutex<()>,
    switched: Notify,
}

impl Keeper {
    pub fn new(store: Arc<dyn Store>, parking: Arc<Parking>, sealer: Arc<Sealer>) -> Arc<Self> {
        Arc::new(Self {
            store,
            parking,
            sealer,
            hint: Arc::default(),
            known: AtomicBool::new(false),
            turn: Mutex::new(()),
            switched: Notify::new(),
        })
    }

    /// Drains when it is time, until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let drained = tokio::select! {
                () = stop.cancelled() => return,
                drained = self.drain() => drained,
            };
            if let Err(error) = drained {
                tracing::warn!(%error, "the spool could not be drained; will try again");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.switched.notified() => {}
                () = baton_env::sleep(LOOK_AGAIN) => {}
            }
        }
    }

    /// The detour of messages that are pushed on their own.
    pub fn always(&self) -> Detour {
        Detour::Always(self.hint.clone())
    }

    /// The detour of messages that are pushed together with something else.
    pub fn behind(&self) -> Detour {
        Detour::Behind(self.hint.clone())
    }

    /// Whether pops find nothing.
    pub async fn pops_are_stopped(&self) -> Result<bool, Error> {
        if !self.known.load(Ordering::Acquire) {
            self.take_over(maintenance::stored).await?;
        }
        Ok(self.parking.is_stopped())
    }

    async fn spool_pushes(&self, on: bool) -> Result<(), Error> {
        let turn = self.turn.lock().await;
        // From before the switch on every push reads the stored mode, so none misses it.
        self.hint.set(true);
        let modes = run(&*self.store, move |tx| maintenance::spool_pushes(tx, on)).await?;
        self.follow(modes);
        drop(turn);
        self.parking.tell(News::Switched);
        self.look();
        Ok(())
    }

    /// Looks at the stored modes now.
    pub fn look(&self) {
        self.switched.notify_one();
    }

    /// Runs a decision about the modes, and goes by what it says.
    async fn take_over<F>(&self, decide: F) -> Result<Maintenance, Error>
    where
        F: FnMut(&mut dyn Tx) -> Result<Maintenance, TxError> + Send + 'static,
    {
        let _turn = self.turn.lock().await;
        let modes = run(&*self.store, decide).await?;
        self.follow(modes);
        Ok(modes)
    }

    fn follow(&self, modes: Maintenance) {
        self.hint.set(modes.push != PushMode::Direct);
        self.parking.stop(modes.pops_stopped);
        self.known.store(true, Ordering::Release);
    }

    /// Empties the spool if it is time.
    async fn drain(&self) -> Result<(), Error> {
        let mut modes = self.take_over(maintenance::stored).await?;
        while modes.push == PushMode::Draining {
            let moved = self.drain_once().await?;
            modes = self.take_over(maintenance::end_draining).await?;
            if moved == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Goes through the spool once; how many messages were moved.
    async fn drain_once(&self) -> Result<u64, Error> {
        let (mut moved, mut after) = (0, None);
        loop {
            let page = run(&*self.store, move |tx| match tx.queue(SPOOL)? {
                Some(spool) => tx.partitions(spool.id, after, PAGE),
                None => Ok(Vec::new()),
            })
            .await?;
            let Some(last) = page.last() else { return Ok(moved) };
            after = Some(last.id);
            for partition in page.into_iter().filter(|partition| partition.start < partition.tail) {
                // What is wrong with one partition does not hold up the others.
                match self.drain_partition(&partition).await {
                    Ok(count) => moved += count,
                    Err(error) => tracing::warn!(
                        %error,
                        partition = &*partition.name,
                        "messages stay in the spool; will try again"
                    ),
                }
            }
        }
    }

    /// Moves what is spooled for one partition.
    async fn drain_partition(&self, partition: &Partition) -> Result<u64, Error> {
        let (mut from, mut most) = (partition.start, RUN_MESSAGES_MAX);
        while from < partition.tail {
            let segments = self.store.read(partition.id, from, partition.tail, RUN_BYTES).await?;
            let spooled = Run::read(partition.id, &partition.name, from, &segments, most)?;
            if spooled.is_empty() {
                break;
            }
            let (to, len) = (spooled.to, spooled.messages().len());
            match self.drain_run(Arc::new(spooled)).await? {
                Drained::Done => from = to,
                Drained::Stale => break,
                Drained::Refused(error) => most = maintenance::room(&error, len).ok_or(error)?,
            }
        }
        Ok(from.since(partition.start))
    }

    /// Moves a run, sealed if its queue has come to want that since it was spooled.
    async fn drain_run(&self, spooled: Arc<Run>) -> Result<Drained, Error> {
        let plain = spooled.clone();
        match run(&*self.store, move |tx| maintenance::drain(tx, &plain)).await? {
            Drained::Refused(Error::Unsealed(_)) => {
                let sealed = spooled.sealed(&self.sealer)?;
                Ok(run(&*self.store, move |tx| maintenance::drain(tx, &sealed)).await?)
            }
            other => Ok(other),
        }
    }
}

impl Broker {
    /// Both maintenance modes, and how many messages wait in the spool.
    pub async fn maintenance(&self) -> Result<(Maintenance, u64), Error> {
        self.run(|tx| Ok((maintenance::stored(tx)?, maintenance::spooled(tx)?))).await
    }

    /// Lets pushes wait in the spool, or go where they are meant to again, behind what is spooled.
    pub async fn spool_pushes(&self, on: bool) -> Result<(), Error> {
        self.shared.keeper.spool_pushes(on).await
    }

    /// Lets every pop find nothing, also those that wait, or have them find messages again.
    pub async fn stop_pops(&self, on: bool) -> Result<(), Error> {
        self.shared.keeper.take_over(move |tx| maintenance::stop_pops(tx, on)).await?;
        self.shared.parking.tell(News::Switched);
        Ok(())
    }

    /// Gives up what is spooled for a queue, or for one of its partitions.
    pub(super) async fn give_up_spooled(&self, queue: &str, partition: Option<&str>) -> Result<(), Error> {
        let mut after = None;
        loop {
            let (queue, partition) = (queue.to_string(), partition.map(String::from));
            let last = self
                .run(move |tx| maintenance::give_up(tx, &queue, partition.as_deref(), after, PAGE))
                .await?;
            match last {
                Some(last) => after = Some(last),
                None => return Ok(()),
            }
        }
    }

    /// Lets the waiting pops of a queue look again now.
    pub async fn notify(&self, queue: &str) -> Result<(), Error> {
        let queue = queue.to_string();
        if let Some(queue) = self.run(move |tx| tx.queue(&queue)).await? {
            self.shared.parking.wake(queue.id);
        }
        Ok(())
    }
}
