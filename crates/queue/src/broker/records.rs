//! Records, locks and timers: running their rules, and the alarm that fires timers.

use std::sync::Arc;
use std::time::Duration;

use baton_records::{kv, lock};
use baton_store::{Store, expiry, run};

use super::{Broker, Shared};
use crate::Error;
use crate::rules::timer::{self, Fired, Timer, Way};

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

    /// Up to `limit` held permits of all locks.
    pub async fn list_locks(&self, after: Option<String>, limit: usize) -> Result<lock::PermitPage, Error> {
        self.run(move |tx| lock::list(tx, after.as_deref(), limit)).await
    }

    /// Up to `limit` namespaces that hold records.
    pub async fn namespaces(&self, limit: usize) -> Result<Vec<String>, Error> {
        self.run(move |tx| kv::namespaces(tx, limit)).await
    }

    /// Sets and removes timers in one decision, each operation on another one.
    pub async fn timers(&self, operations: Vec<timer::Operation>) -> Result<Vec<timer::Outcome>, Error> {
        let sealer = Arc::clone(&self.shared.sealer);
        let outcomes = self.run(move |tx| match timer::prepare(tx, &operations, &sealer)? {
            Ok(prepared) => timer::write(tx, &operations, prepared).map(Ok),
            Err((_, error)) => Ok(Err(error)),
        });
        let outcomes = outcomes.await??;
        self.shared.alarm.notify_one();
        Ok(outcomes)
    }

    /// One timer that has not fired.
    pub async fn timer(&self, queue: &str, key: &str) -> Result<Option<Timer>, Error> {
        let (queue, key) = (queue.to_owned(), key.to_owned());
        let Some(timer) = self.run(move |tx| timer::find(tx, &queue, &key)).await? else { return Ok(None) };
        let payload = {
            let mut opener = self.shared.sealer.opener();
            let owner = timer::owner(&timer.queue, &timer.partition, &timer.transaction_id);
            opener.open(owner, &timer.payload).map_err(Error::KeyMissing)?
        };
        Ok(Some(Timer { payload, ..timer }))
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
        self.run(move |tx| timer::list(tx, &queue, &prefix, after.as_deref(), limit)).await
    }

    /// Fires the timers that are due now, up to some number. The broker does so by itself.
    pub async fn fire_timers(&self) -> Result<Fired, Error> {
        fire(&self.shared).await
    }
}

async fn fire(shared: &Shared) -> Result<Fired, Error> {
    let way = Way { sealer: shared.sealer.clone(), detour: shared.keeper.behind() };
    let fired = run(&*shared.store, move |tx| timer::fire(tx, &way)).await?;
    shared.meters.pushed(&fired.count, 0);
    shared.meters.fired(fired.fired as u64);
    Ok(fired)
}

/// Fires timers when they are due: looks, and sleeps until the next one or until one is set.
pub(super) async fn keep_firing(shared: Arc<Shared>) {
    loop {
        let pause = match fire(&shared).await {
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
