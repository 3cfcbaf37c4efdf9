//! The leader's loop: runs the maintenance that no request asks for.
//!
//! One task holds the leader's lease. While it does, it runs each [`Duty`] when the duty is due. A new duty is one
//! more entry in [`own_duties`]. Always: every commit of a duty is guarded by the term. The duties start together or
//! not at all. They stop together: a margin before the lease ends by this node's own clock, or as soon as a renewal
//! fails or its outcome is unknown. A duty that fails later is retried and keeps no other from running. Not here:
//! what the duties decide (`timeouts` and its neighbours).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_store::{BoxFuture, run};
use baton_types::PartitionId;

use crate::maintenance::compaction::compact;
use crate::maintenance::schedule_firing::ScheduleFiring;
use crate::maintenance::{leadership, log_retention, timeouts};
use crate::model::error::{Error, NOT_LEADER};
use crate::rules::availability::Availability;
use crate::rules::queues;
use crate::runtime::context::Shared;
use crate::storage::leader_term::Term;

/// The longest pause between two checks of the clock: another node may have added something.
const TICK: Duration = Duration::from_secs(1);
/// The pause after a duty failed.
const FAILED: Duration = Duration::from_millis(500);
/// How often history is trimmed.
const TRIM_EVERY: Duration = Duration::from_secs(60);

/// Chunks of one queue that are compacted before the other duties run.
const COMPACTED_MAX: usize = 100;

/// One kind of maintenance that the leader runs.
pub trait Duty: Send + Sync {
    /// Its name, for the log.
    fn name(&self) -> &'static str;

    /// Runs what is due. Returns how long nothing else will be due.
    fn run<'a>(&'a self, shared: &'a Arc<Shared>, term: &'a Term) -> BoxFuture<'a, Result<Duration, Error>>;
}

/// The duties of every leader, with or without other nodes.
pub fn own_duties() -> Vec<Box<dyn Duty>> {
    vec![Box::new(Timeouts), Box::new(ScheduleFiring), Box::new(Retention)]
}

/// Tries to become leader, and leads, until the server stops.
pub async fn run_until_stopped(shared: Arc<Shared>, duties: Vec<Box<dyn Duty>>) {
    while !shared.stop.is_cancelled() {
        // Measured from before the attempt, so that this node stops trusting its lease before the others take it.
        let before = Stopwatch::start();
        let term = if shared.participation.is_idle() { None } else { acquire_term(&shared).await };
        if let Some(term) = term {
            shared.meter.became_leader();
            tracing::info!(term = term.number, "this node runs the duties of jobs");
            lead(&shared, &duties, term, before).await;
            shared.meter.was_leader();
        }
        if !shared.stop.is_cancelled() {
            pause(&shared, jittered(shared.options.times.election_interval())).await;
        }
    }
}

/// Spreads nodes that wait for the same lease.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.75 + 0.5 * (baton_env::random_u64() >> 11) as f64 / (1u64 << 53) as f64)
}

/// Runs the duties until nothing is due. Returns whether this node could lead.
pub async fn run_due_duties(shared: &Arc<Shared>) -> Result<bool, Error> {
    let Some(term) = acquire_term(shared).await else { return Ok(false) };
    while ScheduleFiring.run(shared, &term).await?.is_zero() {}
    while Timeouts.run(shared, &term).await?.is_zero() {}
    Retention.run(shared, &term).await?;
    Ok(true)
}

async fn acquire_term(shared: &Arc<Shared>) -> Option<Term> {
    let (node, sole) = (Arc::clone(&shared.options.node), shared.options.sole);
    let (life, known) = (shared.options.times.term, shared.availability());
    let taken = run(&*shared.store, move |tx| leadership::acquire(tx, &node, sole, life, known));
    match with_time_limit(shared.options.duty_limit, taken).await? {
        Ok(term) => term,
        Err(error) => {
            tracing::debug!(%error, "this node cannot acquire the leader's lease");
            None
        }
    }
}

/// How a leadership ended.
enum LeadershipEnd {
    /// Another node may hold the lease by now, or this node's clock is not to be trusted.
    Lost,
    /// This node resigns while it still holds the lease.
    Resigned,
}

/// Runs the duties until the lease is lost, the node leaves or the server stops.
async fn lead(shared: &Arc<Shared>, duties: &[Box<dyn Duty>], mut term: Term, renewed: Stopwatch) {
    let ended = while_trusted(shared, duties, &mut term, renewed).await;
    match ended {
        LeadershipEnd::Lost => {
            tracing::warn!(term = term.number, "this node does not run the duties of jobs any more")
        }
        LeadershipEnd::Resigned if shared.participation.is_abandoned() => {}
        LeadershipEnd::Resigned => {
            let known = shared.availability_in(&term);
            if let Err(error) = run(&*shared.store, move |tx| leadership::resign(tx, &term, known)).await {
                tracing::debug!(%error, "the leader's lease was not released");
            }
        }
    }
}

async fn while_trusted(
    shared: &Arc<Shared>,
    duties: &[Box<dyn Duty>],
    term: &mut Term,
    mut renewed: Stopwatch,
) -> LeadershipEnd {
    let times = shared.options.times;
    let mut pauses: Vec<(Stopwatch, Duration)> =
        duties.iter().map(|_| (Stopwatch::start(), Duration::ZERO)).collect();
    let mut is_first = true;
    loop {
        for (duty, (since, pause)) in duties.iter().zip(&mut pauses) {
            if since.elapsed() < *pause && !shared.is_requested(duty.name()) {
                continue;
            }
            let left = times.lease_trust().saturating_sub(renewed.elapsed());
            let limit = shared.options.duty_limit.min(left);
            *pause = match with_time_limit(limit, duty.run(shared, term)).await {
                None if limit == left => return LeadershipEnd::Lost,
                Some(Ok(pause)) => pause,
                Some(Err(Error::Conflict { code: NOT_LEADER, .. })) => return LeadershipEnd::Lost,
                Some(Err(error)) if is_first => {
                    tracing::warn!(%error, duty = duty.name(), "a duty cannot start; this node resigns as leader");
                    return LeadershipEnd::Resigned;
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, duty = duty.name(), "a duty failed and will be retried");
                    FAILED
                }
                None => {
                    tracing::warn!(duty = duty.name(), "a duty timed out and will be retried");
                    FAILED
                }
            };
            *since = Stopwatch::start();
        }
        is_first = false;
        if shared.stop.is_cancelled() || shared.participation.is_idle() {
            return LeadershipEnd::Resigned;
        }
        if renewed.elapsed() >= times.renew {
            let (before, left) = (Stopwatch::start(), times.lease_trust().saturating_sub(renewed.elapsed()));
            match tokio::time::timeout(left, acquire_term(shared)).await {
                Ok(Some(next)) if next.number == term.number => (*term, renewed) = (next, before),
                _ => return LeadershipEnd::Lost,
            }
        }
        let next = pauses.iter().map(|(since, pause)| pause.saturating_sub(since.elapsed())).min();
        let next = next.unwrap_or(TICK).min(times.renew.saturating_sub(renewed.elapsed()));
        pause(shared, next).await;
    }
}

/// Runs work with a time limit. What the work has begun may still happen later; its guard allows for that.
async fn with_time_limit<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
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

/// Fires timers: dispatches scheduled jobs, ends overdue executions, deletes old jobs.
struct Timeouts;

impl Duty for Timeouts {
    fn name(&self) -> &'static str {
        Shared::CLOCK
    }

    fn run<'a>(&'a self, shared: &'a Arc<Shared>, term: &'a Term) -> BoxFuture<'a, Result<Duration, Error>> {
        Box::pin(async move {
            let (number, known) = (term.number, shared.availability_in(term));
            // A commit that adds an earlier due time notifies, until the next check is known.
            shared.next_due.store(i64::MAX, Ordering::SeqCst);
            let (swept, availability) = shared
                .decide_guarded(term.clone(), move |tx| {
                    let availability = Availability::extend(known, tx)?;
                    Ok((timeouts::sweep(tx, availability.since)?, availability))
                })
                .await?;
            shared.note_availability(number, availability);
            let now = availability.until;
            // Often enough that two checks show no gap where there is none.
            let longest = TICK.min(Availability::tolerated(&shared.options.policy) / 4);
            let pause = timeouts::pause(now, swept.next, longest);
            shared.next_due.store(now.after(pause).micros(), Ordering::SeqCst);
            Ok(pause)
        })
    }
}

/// Trims history that no request can show, logs past their retention, and space that a few old jobs hold.
struct Retention;

impl Duty for Retention {
    fn name(&self) -> &'static str {
        "trim"
    }

    fn run<'a>(&'a self, shared: &'a Arc<Shared>, term: &'a Term) -> BoxFuture<'a, Result<Duration, Error>> {
        Box::pin(async move {
            for partition in shared.all_queues().await? {
                trim(shared, partition).await?;
                for _ in 0..COMPACTED_MAX {
                    let moved = shared.decide_guarded(term.clone(), move |tx| compact(tx, partition)).await?;
                    if moved == 0 {
                        break;
                    }
                }
            }
            while shared.decide_guarded(term.clone(), log_retention::remove_expired).await? {}
            Ok(TRIM_EVERY)
        })
    }
}

async fn trim(shared: &Shared, partition: PartitionId) -> Result<(), Error> {
    let kept = shared.options.policy.failed_for.max(shared.options.policy.completed_for);
    run(&*shared.store, move |tx| {
        let before = tx.now().before(kept);
        queues::trim_history(tx, partition, before)
    })
    .await?;
    Ok(())
}
