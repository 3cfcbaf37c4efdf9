//! The duties of the leader: what has to happen though nobody asks for it.
//!
//! One task holds the lease, and while it does runs each [`Duty`] when it says that it has something to do. A new duty
//! is one more entry in [`all`]. Always: every commit of a duty is guarded by the term; a duty that fails is tried
//! again and keeps no other from running, and neither does one that gets no answer. Not here: what the
//! duties decide (`due` and its like).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_store::{BoxFuture, run};
use baton_types::PartitionId;

use crate::compact::compact;
use crate::due;
use crate::error::Error;
use crate::jobs::Shared;
use crate::leader::{self, Term};
use crate::limits::TERM_RENEW;
use crate::queue;
use crate::schedule::duty::Schedules;
use crate::wear;

/// How often a node that does not lead tries to.
const TRY_EVERY: Duration = Duration::from_secs(2);
/// The longest pause between two looks at the clock: another node may have added something.
const TICK: Duration = Duration::from_secs(1);
/// The pause after a duty has failed.
const FAILED: Duration = Duration::from_millis(500);
/// How often history is trimmed.
const TRIM_EVERY: Duration = Duration::from_secs(60);

/// Chunks of one queue that are moved before the other duties have their turn.
const COMPACTED_MAX: usize = 100;

/// What a guarded decision is refused with.
pub const NOT_LEADER: &str = "not_leader";

/// Something the leader does.
pub trait Duty: Send + Sync {
    /// Its name, for the log.
    fn name(&self) -> &'static str;

    /// Does what there is to do; tells how long nothing else will be.
    fn run<'a>(&'a self, shared: &'a Arc<Shared>, term: &'a Term) -> BoxFuture<'a, Result<Duration, Error>>;
}

/// Every duty.
fn all() -> Vec<Box<dyn Duty>> {
    vec![Box::new(Clock), Box::new(Schedules), Box::new(Trim)]
}

/// Leads whenever it can, until the server stops.
pub async fn keep(shared: Arc<Shared>) {
    let duties = all();
    while !shared.stop.is_cancelled() {
        match take(&shared).await {
            Some(term) => {
                shared.meter.became_leader();
                tracing::info!(token = term.token, "this node runs the duties of jobs");
                lead(&shared, &duties, term).await;
            }
            None => pause(&shared, TRY_EVERY).await,
        }
    }
}

/// Runs the duties that the time calls for until nothing is due; tells whether this node could lead.
pub async fn once(shared: &Arc<Shared>) -> Result<bool, Error> {
    let Some(term) = take(shared).await else { return Ok(false) };
    while Schedules.run(shared, &term).await?.is_zero() {}
    while Clock.run(shared, &term).await?.is_zero() {}
    Trim.run(shared, &term).await?;
    Ok(true)
}

async fn take(shared: &Arc<Shared>) -> Option<Term> {
    let (node, sole) = (Arc::clone(&shared.options.node), shared.options.sole);
    let taken = run(&*shared.store, move |tx| leader::take(tx, &node, sole));
    match within(shared.options.duty_limit, taken).await? {
        Ok(term) => term,
        Err(error) => {
            tracing::debug!(%error, "the lease for the duties of jobs cannot be had");
            None
        }
    }
}

/// Runs the duties until the lease is lost or the server stops.
async fn lead(shared: &Arc<Shared>, duties: &[Box<dyn Duty>], mut term: Term) {
    let mut renewed = Stopwatch::start();
    let mut pauses: Vec<(Stopwatch, Duration)> =
        duties.iter().map(|_| (Stopwatch::start(), Duration::ZERO)).collect();
    loop {
        for (duty, (since, pause)) in duties.iter().zip(&mut pauses) {
            if since.elapsed() < *pause && !shared.is_rung(duty.name()) {
                continue;
            }
            *pause = match within(shared.options.duty_limit, duty.run(shared, &term)).await {
                Some(Ok(pause)) => pause,
                Some(Err(Error::Conflict { code: NOT_LEADER, .. })) => return,
                Some(Err(error)) => {
                    tracing::warn!(%error, duty = duty.name(), "a duty failed; it will be tried again");
                    FAILED
                }
                None => {
                    tracing::warn!(
                        duty = duty.name(),
                        "a duty got no answer in time; it will be tried again"
                    );
                    FAILED
                }
            };
            *since = Stopwatch::start();
        }
        if renewed.elapsed() >= TERM_RENEW {
            // Measured from before the attempt, so that this node stops believing before the others do.
            let before = Stopwatch::start();
            match take(shared).await {
                Some(next) => (term, renewed) = (next, before),
                None => return tracing::warn!("this node does not run the duties of jobs any more"),
            }
        }
        if shared.stop.is_cancelled() {
            let last = term.clone();
            if let Err(error) = run(&*shared.store, move |tx| leader::resign(tx, &last)).await {
                tracing::debug!(%error, "the lease for the duties of jobs was not given back");
            }
            return;
        }
        let next = pauses.iter().map(|(since, pause)| pause.saturating_sub(since.elapsed())).min();
        let next = next.unwrap_or(TICK).min(TERM_RENEW.saturating_sub(renewed.elapsed()));
        pause(shared, next).await;
    }
}

/// What comes of it within a time. What it has begun may still happen later, which its guard allows for.
async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        done = work => Some(done),
        () = baton_env::sleep(limit) => None,
    }
}

async fn pause(shared: &Shared, duration: Duration) {
    tokio::select! {
        () = shared.stop.cancelled() => {}
        () = shared.alarm.notified() => {}
        () = baton_env::sleep(duration) => {}
    }
}

/// Jobs whose time has come, executions that are overdue, jobs that are to be forgotten.
struct Clock;

impl Duty for Clock {
    fn name(&self) -> &'static str {
        Shared::CLOCK
    }

    fn run<'a>(&'a self, shared: &'a Arc<Shared>, term: &'a Term) -> BoxFuture<'a, Result<Duration, Error>> {
        Box::pin(async move {
            let term = term.clone();
            // Whatever becomes due from here on rings, until it is known when to look again.
            shared.next_due.store(i64::MAX, Ordering::SeqCst);
            let (swept, now) = shared
                .decide_guarded(term, |book| {
                    let swept = due::sweep(book)?;
                    Ok((swept, book.now()))
                })
                .await?;
            let pause = due::pause(now, swept.next, TICK);
            shared.next_due.store(now.after(pause).micros(), Ordering::SeqCst);
            Ok(pause)
        })
    }
}

/// History that nobody can see any more, logs that have had their time, and space that a few old jobs hold.
struct Trim;

impl Duty for Trim {
    fn name(&self) -> &'static str {
        "trim"
    }

    fn run<'a>(&'a self, shared: &'a Arc<Shared>, term: &'a Term) -> BoxFuture<'a, Result<Duration, Error>> {
        Box::pin(async move {
            for partition in shared.all_queues().await? {
                trim(shared, partition).await?;
                for _ in 0..COMPACTED_MAX {
                    let moved =
                        shared.decide_guarded(term.clone(), move |book| compact(book, partition)).await?;
                    if moved == 0 {
                        break;
                    }
                }
            }
            while shared.decide_guarded(term.clone(), wear::sweep).await? {}
            Ok(TRIM_EVERY)
        })
    }
}

async fn trim(shared: &Shared, partition: PartitionId) -> Result<(), Error> {
    let kept = shared.options.policy.failed_for.max(shared.options.policy.completed_for);
    run(&*shared.store, move |tx| {
        let before = tx.now().before(kept);
        queue::trim_history(tx, partition, before)
    })
    .await?;
    Ok(())
}
