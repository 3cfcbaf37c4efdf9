//! A job as it is shown: where it stands, why it waits, and what became of each execution.

use std::sync::Arc;

use baton_types::{Offset, PartitionId, Timestamp};
use bytes::Bytes;

use crate::beat::ProgressAt;
use crate::book::{Book, Halt};
use crate::chunk::Slot;
use crate::error::Error;
use crate::history::{Entry, JobError};
use crate::id::{ExecutionId, JobId, Place, WorkerId};
use crate::jobs::Jobs;
use crate::key;
use crate::lease::held_back;
use crate::spec::Spec;
use crate::state::{Outcome, State, WaitReason};

/// Entries of a history that are shown.
const ATTEMPTS_MAX: usize = 100;

/// One execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// What it was reported under.
    pub execution: ExecutionId,
    /// Which one it was, from 1; 0 for what the server did itself.
    pub number: u32,
    /// Who ran it.
    pub worker: WorkerId,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// How; `None` while it is under way.
    pub outcome: Option<Outcome>,
    /// Why.
    pub error: Option<JobError>,
}

/// A job without its arguments and history.
#[derive(Clone, Debug, PartialEq)]
pub struct JobView {
    /// Its id.
    pub id: JobId,
    /// Its queue.
    pub queue: Arc<str>,
    /// What it is.
    pub spec: Spec,
    /// Its arguments.
    pub args: Bytes,
    /// Where it stands.
    pub state: State,
    /// Why it does not run.
    pub wait_reason: Option<WaitReason>,
    /// 0 to 3.
    pub priority: u8,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When its time comes.
    pub run_at: Option<Timestamp>,
    /// When it was last leased.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Attempts that count.
    pub attempts: u32,
    /// Executions in all.
    pub executions: u32,
    /// Executions whose worker fell silent.
    pub losses: u32,
    /// The fence that counts.
    pub fence: u64,
    /// Who has it, or had it last.
    pub worker: Option<WorkerId>,
    /// Since when it is a dead letter.
    pub dead_at: Option<Timestamp>,
    /// Why it failed or was cancelled, once it has ended so.
    pub error: Option<JobError>,
    history: Option<Offset>,
    history_in: PartitionId,
    has_result: bool,
}

/// A job with its history.
#[derive(Clone, Debug, PartialEq)]
pub struct JobDetail {
    /// The job.
    pub job: JobView,
    /// Its executions, the first one first.
    pub history: Vec<Attempt>,
    /// What its worker last said of its progress.
    pub progress: Option<ProgressAt>,
    /// What it came to, as JSON.
    pub result: Option<Bytes>,
}

/// What a slot and its queue tell of a job; its specification is read apart.
#[derive(Clone, Debug)]
pub struct Seen {
    pub place: Place,
    pub slot: Slot,
    pub queue: Arc<str>,
    pub history_in: PartitionId,
    pub wait_reason: Option<WaitReason>,
}

impl Seen {
    /// Where the specification is.
    pub fn spec_at(&self) -> (PartitionId, u64) {
        (self.place.partition, self.slot.spec.unwrap_or(self.place.offset).0)
    }

    /// The job, with what was read.
    pub fn with(self, spec: Spec, args: Bytes) -> JobView {
        let slot = self.slot;
        let has_run = slot.executions > 0;
        JobView {
            id: JobId::new(slot.created_at, self.place),
            queue: self.queue,
            spec,
            args,
            state: slot.state,
            wait_reason: self.wait_reason,
            priority: slot.priority,
            created_at: slot.created_at,
            run_at: slot.run_at,
            started_at: has_run.then_some(slot.started_at),
            ended_at: slot.state.is_terminal().then_some(slot.ended_at),
            attempts: slot.attempts,
            executions: slot.executions,
            losses: slot.losses,
            fence: slot.fence,
            worker: has_run.then_some(WorkerId(slot.worker)),
            dead_at: slot.dead_at,
            error: None,
            history: slot.history,
            history_in: self.history_in,
            has_result: slot.has_result,
        }
    }
}

/// Looks at a job.
pub fn see(book: &mut Book<'_>, place: Place) -> Result<Option<Seen>, Halt> {
    let Some(slot) = book.slot(place)?.cloned() else { return Ok(None) };
    let now = book.now();
    let head = book.head(place.partition)?;
    let wait_reason = match slot.state {
        State::Scheduled if slot.executions > 0 => Some(WaitReason::Retry),
        State::Scheduled => Some(WaitReason::Delayed),
        State::Pending if slot.blockers > 0 || slot.is_doomed => Some(WaitReason::Depends),
        State::Pending => Some(WaitReason::KeyLimit),
        State::Dispatched => Some(held_back(head, now).unwrap_or(WaitReason::NoWorker)),
        _ => None,
    };
    let (queue, history_in) = (head.name.clone(), head.history);
    Ok(Some(Seen { place, slot, queue, history_in, wait_reason }))
}

impl Jobs {
    /// A job as it stands.
    pub async fn get(&self, id: JobId) -> Result<JobView, Error> {
        let seen = self.shared.decide(move |book| look(book, id)).await?;
        self.filled(vec![seen]).await?.pop().ok_or_else(|| Error::no_job(id))
    }

    /// A job with its history, progress and result.
    pub async fn detail(&self, id: JobId) -> Result<JobDetail, Error> {
        let (seen, progress) = self
            .shared
            .decide(move |book| {
                let seen = look(book, id)?;
                Ok((seen, book.record(&key::progress(id))?))
            })
            .await?;
        let slot = seen.slot.clone();
        let job = self.filled(vec![seen]).await?.pop().ok_or_else(|| Error::no_job(id))?;
        let (mut history, result) = self.history(&job).await?;
        let is_told = history.last().is_some_and(|last| last.number == slot.executions);
        if slot.executions > 0 && !is_told {
            history.push(last_of(&job, &slot));
        }
        let progress = progress.and_then(|value| serde_json::from_slice(&value).ok());
        Ok(JobDetail { job, history, progress, result })
    }

    /// What jobs are, read for those that were seen. One that was forgotten meanwhile is left out.
    pub(crate) async fn filled(&self, seen: Vec<Seen>) -> Result<Vec<JobView>, Error> {
        let payloads = self.payloads(seen.iter().map(Seen::spec_at)).await?;
        let kept = seen.into_iter().zip(payloads).filter_map(|(seen, payload)| Some((seen, payload?)));
        let filled = kept.map(|(seen, payload)| {
            let (spec, args) = Spec::decode(&payload)?;
            Ok(seen.with(spec, args))
        });
        let mut jobs = filled.collect::<Result<Vec<JobView>, Error>>()?;
        self.fill_errors(&mut jobs).await?;
        Ok(jobs)
    }

    /// Reads why jobs failed, from the last entry of the history of each.
    async fn fill_errors(&self, jobs: &mut [JobView]) -> Result<(), Error> {
        let is_failed = |job: &&mut JobView| job.state.is_terminal() && job.state != State::Completed;
        let (mut failed, mut places) = (Vec::new(), Vec::new());
        for job in jobs.iter_mut().filter(is_failed) {
            if let Some(at) = job.history {
                places.push((job.history_in, at.0));
                failed.push(job);
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        let entries = self.payloads(places.into_iter()).await?;
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

fn look(book: &mut Book<'_>, id: JobId) -> Result<Seen, Halt> {
    let place = book.expect(id)?;
    see(book, place)?.ok_or_else(|| Error::no_job(id).into())
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

/// The execution that only the slot tells of: one under way, or one that simply succeeded.
fn last_of(job: &JobView, slot: &Slot) -> Attempt {
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
