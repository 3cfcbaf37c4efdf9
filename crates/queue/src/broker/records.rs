//! Records, locks and timers: running their rules, and the alarm that fires timers.

use std::sync::Arc;
use std::time::Duration;

use baton_store::{Store, expiry, run};

use super::{Broker, Shared};
use crate::timer::{self, Fired, Timer, Way};
use crate::{Error, kv, lock};

/// The longest pause between two looks for timers: another server on the same store may have set one and died.
const ALARM_PAUSE_MAX: Duration = Duration::from_secs(10);
/// The pause after a look that failed.
const ALARM_RETRY: Duration = Duration::from_secs(1);
/// Expired records removed in one decision.
const EXPIRED_PAGE: usize = 500;

impl Broker {
    /// Does operations on records in one decision; the inner error is the required one that was lost, in which
    /// case nothing was done.
    pub async fn kv(
        &self,
        steps: Vec<kv::Step>,
    ) -> Result<Result<Vec<kv::Outcome>, kv::Precondition>, Error> {
        self.run(move |tx| kv::run(tx, &steps)).await
    }

    /// Does operations on locks, each on another one.
    pub async fn locks(&self, operations: Vec<lock::Operation>) -> Result<Vec<lock::Outcome>, Error> {
        self.run(move |tx| lock::run(tx, &operations)).await
    }

    /// Sets and removes timers in one decision, each operation on another one.
    pub async fn timers(&self, operations: Vec<timer::Operation>) -> Result<Vec<timer::Outcome>, Error> {
        let operations = self.sealed_timers(operations).await?;
        let outcomes = self
            .run(move |tx| {
                let prepared = timer::prepare(tx, &operations)?;
                timer::write(tx, &operations, prepared)
            })
            .await?;
        self.shared.alarm.notify_one();
        Ok(outcomes)
    }

    /// One timer that has not fired.
    pub async fn timer(&self, queue: &str, key: &str) -> Result<Option<Timer>, Error> {
        let (queue, key) = (queue.to_owned(), key.to_owned());
        let mut found = self.run(move |tx| timer::find(tx, &queue, &key)).await?;
        self.open_timers(&mut found)?;
        Ok(found)
    }

    /// Timers of a queue that have not fired, in the order of their keys, and whether there are more.
    pub async fn list_timers(
        &self,
        queue: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<Timer>, bool), Error> {
        let (queue, prefix, after) = (queue.to_owned(), prefix.to_owned(), after.map(str::to_owned));
        let (mut timers, more) =
            self.run(move |tx| timer::list(tx, &queue, &prefix, after.as_deref(), limit)).await?;
        self.open_timers(&mut timers)?;
        Ok((timers, more))
    }

    /// Shows the payloads of encrypted queues as they were given.
    fn open_timers<'a>(&self, timers: impl IntoIterator<Item = &'a mut Timer>) -> Result<(), Error> {
        let mut opener = self.shared.sealer.opener();
        for timer in timers {
            timer.payload = opener.open(&timer.payload).map_err(Error::KeyMissing)?;
        }
        Ok(())
    }

    /// The operations with the payloads for encrypted queues encrypted, for a timer waits on disk.
    pub(super) async fn sealed_timers(
        &self,
        mut operations: Vec<timer::Operation>,
    ) -> Result<Vec<timer::Operation>, Error> {
        let names: Vec<_> = operations.iter().map(|operation| operation.place().0.to_owned()).collect();
        if names.is_empty() {
            return Ok(operations);
        }
        let encrypted = self
            .run(move |tx| {
                names.iter().map(|queue| timer::is_encrypted(tx, queue)).collect::<Result<Vec<_>, _>>()
            })
            .await?;
        for (operation, is_encrypted) in operations.iter_mut().zip(encrypted) {
            if let (timer::Operation::Schedule { payload, .. }, true) = (operation, is_encrypted) {
                *payload = self.shared.sealer.seal(payload)?.into();
            }
        }
        Ok(operations)
    }

    /// Fires the timers that are due now, up to some number. The broker does so by itself.
    pub async fn fire_timers(&self) -> Result<Fired, Error> {
        let way = self.shared.way();
        self.run(move |tx| timer::fire(tx, &way)).await
    }
}

impl Shared {
    fn way(&self) -> Way {
        Way { sealer: self.sealer.clone(), detour: self.keeper.behind() }
    }
}

/// Fires timers when they are due: looks, and sleeps until the next one or until one is set.
pub(super) async fn keep_firing(shared: Arc<Shared>) {
    loop {
        let way = shared.way();
        let pause = match run(&*shared.store, move |tx| timer::fire(tx, &way)).await {
            Ok(fired) => {
                if fired.postponed > 0 {
                    tracing::warn!("a timer could not be pushed; will try again");
                }
                fired.next.map_or(ALARM_PAUSE_MAX, |next| next.min(ALARM_PAUSE_MAX))
            }
            Err(error) => {
                tracing::warn!(%error, "could not look for timers; will try again");
                ALARM_RETRY
            }
        };
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = shared.alarm.notified() => {}
            () = baton_env::sleep(pause) => {}
        }
    }
}

/// Removes records that have expired; how many.
pub(super) async fn sweep_expired(store: &dyn Store) -> Result<usize, baton_store::Error> {
    let mut gone = 0;
    loop {
        let page = run(store, |tx| expiry::sweep(tx, EXPIRED_PAGE)).await?;
        gone += page;
        if page < EXPIRED_PAGE {
            return Ok(gone);
        }
    }
}
