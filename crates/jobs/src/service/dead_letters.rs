//! Dead letters: jobs that failed for good, the newest first, and their replay.

use std::time::Duration;

use crate::model::error::Error;
use crate::model::ids::JobId;
use crate::model::keys;
use crate::model::limits::PAGE_MAX;
use crate::rules::cancellation;
use crate::rules::job_view::{JobView, partial_view};
use crate::service::Jobs;
use crate::storage::{Abort, JobsTx, each};

/// Limits of the replay rate: the slowest spreads a page over eleven days, the fastest is practically unlimited.
const REPLAYS_PER_SECOND_MIN: f64 = 0.001;
/// See [`REPLAYS_PER_SECOND_MIN`].
const REPLAYS_PER_SECOND_MAX: f64 = 100_000.0;

/// A page of dead letters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeadLetters {
    /// The jobs.
    pub jobs: Vec<JobView>,
    /// The cursor of the next page; `None` when there is no more.
    pub next: Option<String>,
}

impl Jobs {
    /// Dead letters, the newest first.
    pub async fn dead_letters(&self, cursor: Option<String>, limit: usize) -> Result<DeadLetters, Error> {
        let limit = limit.clamp(1, PAGE_MAX);
        let (seen, next) = self
            .shared
            .decide(move |tx| {
                let after = cursor.as_ref().map(|cursor| format!("{}{cursor}", keys::DEAD));
                let rows = tx.stored(keys::DEAD, after.as_deref(), limit)?;
                let next = rows.last().filter(|_| rows.len() == limit);
                let next = next.and_then(|(row, _)| row.strip_prefix(keys::DEAD)).map(str::to_owned);
                let jobs: Vec<JobId> = rows.iter().filter_map(|(row, _)| keys::read_dead(row)).collect();
                tx.prefetch_slots(jobs.iter().filter_map(|job| job.position()))?;
                let mut seen = Vec::with_capacity(jobs.len());
                for job in jobs {
                    if let Some(position) = tx.find(job)? {
                        seen.extend(partial_view(tx, position)?);
                    }
                }
                Ok((seen, next))
            })
            .await?;
        Ok(DeadLetters { jobs: self.complete_views(seen).await?, next })
    }

    /// Retries dead letters. Returns how many. With a rate, retries so many a second: the first at once, the others
    /// delayed.
    pub async fn replay(&self, jobs: Vec<JobId>, per_second: Option<f64>) -> Result<usize, Error> {
        if per_second.is_some_and(|rate| !(REPLAYS_PER_SECOND_MIN..=REPLAYS_PER_SECOND_MAX).contains(&rate)) {
            return Err(Error::invalid(format!(
                "ratePerSec is {REPLAYS_PER_SECOND_MIN} to {REPLAYS_PER_SECOND_MAX}"
            )));
        }
        self.shared
            .decide(move |tx| {
                tx.prefetch_slots(jobs.iter().filter_map(|job| job.position()))?;
                let (now, mut turn) = (tx.now(), 0u32);
                each(&jobs, |job| {
                    if is_dead(tx, *job)? {
                        let wait = per_second.map(|rate| Duration::from_secs_f64(f64::from(turn) / rate));
                        cancellation::retry(tx, *job, true, None, wait.map(|wait| now.after(wait)))?;
                        turn += 1;
                    }
                    Ok(())
                })?;
                Ok(turn as usize)
            })
            .await
    }

    /// Removes a job from the dead letters. Its retention then is that of any other job.
    pub async fn dismiss_dead_letter(&self, job: JobId) -> Result<(), Error> {
        self.shared
            .decide(move |tx| {
                if !is_dead(tx, job)? {
                    return Err(Error::NotFound(format!("{job} is no dead letter")).into());
                }
                let position = tx.expect(job)?;
                if let Some(at) = tx.slot_mut(position)?.dead_at.take() {
                    tx.remove(keys::dead(at, job));
                }
                Ok(())
            })
            .await
    }
}

fn is_dead(tx: &mut JobsTx<'_>, job: JobId) -> Result<bool, Abort> {
    let Some(position) = tx.find(job)? else { return Ok(false) };
    Ok(tx.slot(position)?.is_some_and(|slot| slot.dead_at.is_some()))
}
