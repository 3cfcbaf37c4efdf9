//! Views of jobs: adds specifications, errors and history to what the rules read.

use baton_types::Offset;
use bytes::Bytes;

use crate::model::error::Error;
use crate::model::history_entry::Entry;
use crate::model::ids::{ExecutionId, JobId, WorkerId};
use crate::model::slot::Slot;
use crate::model::state::{Outcome, State};
use crate::model::{keys, payload};
use crate::rules::job_view::{Attempt, JobDetail, JobView, PartialView, expect_partial_view};
use crate::service::Jobs;

/// Executions that a view shows.
const ATTEMPTS_MAX: usize = 100;

impl Jobs {
    /// A job.
    pub async fn get(&self, id: JobId) -> Result<JobView, Error> {
        let seen = self.shared.decide(move |tx| expect_partial_view(tx, id)).await?;
        self.complete_views(vec![seen]).await?.pop().ok_or_else(|| Error::no_job(id))
    }

    /// A job with its history, progress and result.
    pub async fn detail(&self, id: JobId) -> Result<JobDetail, Error> {
        let (seen, progress) = self
            .shared
            .decide(move |tx| {
                let seen = expect_partial_view(tx, id)?;
                Ok((seen, tx.record(&keys::progress(id))?))
            })
            .await?;
        let slot = seen.slot.clone();
        let job = self.complete_views(vec![seen]).await?.pop().ok_or_else(|| Error::no_job(id))?;
        let (mut history, result) = self.history(&job).await?;
        let is_told = history.last().is_some_and(|last| last.number == slot.executions);
        if slot.executions > 0 && !is_told {
            history.push(last_attempt(&job, &slot));
        }
        let progress = progress.and_then(|value| serde_json::from_slice(&value).ok());
        Ok(JobDetail { job, history, progress, result })
    }

    /// The views of jobs. Leaves out jobs that were deleted meanwhile.
    pub(crate) async fn complete_views(&self, seen: Vec<PartialView>) -> Result<Vec<JobView>, Error> {
        let payloads = self.payloads(seen.iter().map(PartialView::spec_at)).await?;
        let kept = seen.into_iter().zip(payloads).filter_map(|(seen, payload)| Some((seen, payload?)));
        let filled = kept.map(|(seen, payload)| {
            let (spec, args) = payload::decode(&payload)?;
            Ok(seen.with(spec, args))
        });
        let mut jobs = filled.collect::<Result<Vec<JobView>, Error>>()?;
        self.fill_errors(&mut jobs).await?;
        Ok(jobs)
    }

    /// Reads why jobs failed, from the last entry of each history.
    async fn fill_errors(&self, jobs: &mut [JobView]) -> Result<(), Error> {
        let is_failed = |job: &&mut JobView| job.state.is_terminal() && job.state != State::Completed;
        let (mut failed, mut positions) = (Vec::new(), Vec::new());
        for job in jobs.iter_mut().filter(is_failed) {
            if let Some(at) = job.history {
                positions.push((job.history_in, at.0));
                failed.push(job);
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        let entries = self.payloads(positions.into_iter()).await?;
        for (job, entry) in failed.into_iter().zip(entries) {
            job.error =
                entry.map(|entry| Entry::decode(&entry)).transpose()?.and_then(|(entry, _)| entry.error);
        }
        Ok(())
    }

    async fn history(&self, job: &JobView) -> Result<(Vec<Attempt>, Option<Bytes>), Error> {
        let (mut attempts, mut result, mut next) = (Vec::new(), None, job.history);
        while let Some(at) = next.filter(|_| attempts.len() < ATTEMPTS_MAX) {
            let segments = self.shared.store.read(job.history_in, at, at.plus(1), 0).await?;
            let message = segments.first().map(|segment| segment.message(at)).transpose();
            let Some(message) = message.map_err(baton_store::Error::from)?.flatten() else { break };
            let (entry, bytes) = Entry::decode(&message.payload)?;
            if attempts.is_empty() && job.has_result {
                result = Some(bytes);
            }
            next = entry.before.map(Offset);
            attempts.push(attempt(job.id, entry));
        }
        attempts.reverse();
        Ok((attempts, result))
    }
}

fn attempt(job: JobId, entry: Entry) -> Attempt {
    Attempt {
        execution: ExecutionId { job, fence: entry.fence },
        number: if entry.fence == 0 { 0 } else { entry.number },
        worker: WorkerId(entry.worker),
        started_at: entry.started_at,
        ended_at: Some(entry.ended_at),
        outcome: Some(entry.outcome),
        error: entry.error,
    }
}

/// The execution that only the slot records: one that is running, or a plain success.
fn last_attempt(job: &JobView, slot: &Slot) -> Attempt {
    let done = slot.state == State::Completed;
    Attempt {
        execution: ExecutionId { job: job.id, fence: slot.fence },
        number: slot.executions,
        worker: WorkerId(slot.worker),
        started_at: slot.started_at,
        ended_at: done.then_some(slot.ended_at),
        outcome: done.then_some(Outcome::Succeeded),
        error: None,
    }
}
