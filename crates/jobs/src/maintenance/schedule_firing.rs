//! The duty of the leader that fires schedules.

use std::sync::Arc;
use std::time::Duration;

use baton_store::BoxFuture;
use tokio::task::JoinSet;

use crate::maintenance::leader_loop::Duty;
use crate::maintenance::timeouts;
use crate::model::error::{Error, NOT_LEADER};
use crate::rules::schedules::firing::{self, DUE_MAX};
use crate::runtime::context::Shared;
use crate::storage::leader_term::Term;

/// The longest pause between two checks: another server may have added a schedule.
const TICK: Duration = Duration::from_secs(1);
/// Schedules that are fired concurrently: the store groups their commits.
const ABREAST: usize = 32;

/// Fires the schedules that are due.
pub struct ScheduleFiring;

impl Duty for ScheduleFiring {
    fn name(&self) -> &'static str {
        Shared::SCHEDULES
    }

    fn run<'a>(&'a self, shared: &'a Arc<Shared>, term: &'a Term) -> BoxFuture<'a, Result<Duration, Error>> {
        Box::pin(async move {
            let watchers_checked =
                shared.decide_guarded(term.clone(), |tx| Ok((firing::find_due(tx)?, tx.now()))).await?;
            let (found, now) = watchers_checked;
            let is_cut = found.schedules.len() == DUE_MAX;
            let mut firing = JoinSet::new();
            for id in found.schedules {
                if firing.len() == ABREAST
                    && let Some(fired) = firing.join_next().await
                {
                    settled(fired)?;
                }
                firing.spawn(fire_one(Arc::clone(shared), term.clone(), id));
            }
            while let Some(fired) = firing.join_next().await {
                settled(fired)?;
            }
            Ok(if is_cut { Duration::ZERO } else { timeouts::pause(now, found.next, TICK) })
        })
    }
}

fn settled(fired: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), Error> {
    fired.unwrap_or_else(|error| Err(baton_store::Error::Closed(error.to_string()).into()))
}

/// Fires one schedule. Postpones one that cannot fire, so that it delays no other.
async fn fire_one(shared: Arc<Shared>, term: Term, id: String) -> Result<(), Error> {
    let schedule = id.clone();
    let fired = shared.decide_guarded(term.clone(), move |tx| firing::fire(tx, &schedule)).await;
    let why = match fired {
        Ok(fires) => {
            if !fires.is_empty() {
                tracing::debug!(schedule = id, jobs = fires.len(), "a schedule fired");
            }
            return Ok(());
        }
        Err(Error::Store(error)) => return Err(error.into()),
        Err(Error::Conflict { code: NOT_LEADER, message }) => {
            return Err(Error::Conflict { code: NOT_LEADER, message });
        }
        Err(error) => error.to_string(),
    };
    tracing::warn!(schedule = id, why, "a schedule cannot fire and will be retried");
    shared.decide_guarded(term, move |tx| firing::postpone(tx, &id, &why)).await
}
