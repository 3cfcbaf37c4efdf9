//! Enqueues jobs.

use baton_types::{PartitionId, Timestamp};
use serde::Serialize;

use crate::model::concurrency_key;
use crate::model::error::Error;
use crate::model::ids::{JobId, JobPosition};
use crate::model::keys::{self, Label};
use crate::model::limits::{BATCH_BYTES_MAX, BATCH_JOBS_MAX, DELAY_MAX, DEPENDENTS_MAX};
use crate::model::new_job::{Dependency, NewJob, OnConflict, Unique, UniqueScope, When};
use crate::model::payload;
use crate::model::slot::Slot;
use crate::model::spec::Spec;
use crate::model::state::State;
use crate::rules::completion;
use crate::storage::{Abort, JobsTx, each};

/// The result of enqueuing one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Enqueued {
    /// The job, or the existing one with the same unique key.
    pub job_id: JobId,
    /// Its state.
    pub state: State,
    /// When it is due, if not at once.
    #[serde(skip)]
    pub run_at: Option<Timestamp>,
    /// Whether it is an existing job with the same unique key.
    pub deduplicated: bool,
}

/// Refuses a batch that is too large, or that has an invalid job.
pub fn check(jobs: &[NewJob]) -> Result<(), Error> {
    if jobs.len() > BATCH_JOBS_MAX {
        return Err(Error::TooLarge(format!("a call enqueues at most {BATCH_JOBS_MAX} jobs; split it")));
    }
    if jobs.iter().map(|job| job.args.len()).sum::<usize>() > BATCH_BYTES_MAX {
        return Err(Error::TooLarge(format!(
            "a call holds at most {BATCH_BYTES_MAX} bytes of args; split it"
        )));
    }
    jobs.iter().try_for_each(NewJob::check)
}

/// Enqueues jobs, each with the partition of its queue. An error refuses all of them.
pub fn add_all(tx: &mut JobsTx<'_>, jobs: &[(PartitionId, NewJob)]) -> Result<Vec<Enqueued>, Abort> {
    add_until_refused(tx, jobs, &mut None)
}

/// Enqueues jobs; `culprit` becomes the index of the job that is refused, if it is one.
pub fn add_until_refused(
    tx: &mut JobsTx<'_>,
    jobs: &[(PartitionId, NewJob)],
    culprit: &mut Option<usize>,
) -> Result<Vec<Enqueued>, Abort> {
    tx.admit(jobs.iter().map(|(_, job)| job.args.len()).sum())?;
    prefetch(tx, jobs)?;
    let mut accepted = Vec::with_capacity(jobs.len());
    *culprit = Some(0);
    each(jobs, |(partition, job)| {
        let enqueued = add(tx, *partition, job, &accepted)?;
        accepted.push(enqueued);
        *culprit = Some(accepted.len());
        Ok(())
    })?;
    Ok(accepted)
}

/// Prefetches in one round trip what the jobs will read one after the other.
fn prefetch(tx: &mut JobsTx<'_>, jobs: &[(PartitionId, NewJob)]) -> Result<(), Abort> {
    let (mut keys, mut chunks, mut permits, mut last) = (Vec::new(), Vec::new(), Vec::new(), None);
    let mut positions = Ok(());
    for (partition, job) in jobs {
        if last.replace(*partition) != Some(*partition) {
            // A queue whose end is not known yet must not stop the prefetch for the others.
            match tx.next_position(*partition) {
                Ok(position) => chunks.push(position.chunk()),
                Err(missing) => positions = Err(missing),
            }
            keys.extend([keys::head(*partition), keys::kinds(*partition)]);
        }
        keys.extend(job.unique.iter().map(|unique| keys::unique(keys::unique_hash(*partition, &unique.key))));
        permits.extend(job.spec.concurrency_key.iter().map(|text| keys::permit_hash(text)));
    }
    chunks.sort_unstable();
    chunks.dedup();
    let fetched = [
        positions,
        tx.prefetch_chunks(&chunks),
        tx.prefetch_permits(&permits),
        tx.prefetch(keys.iter().map(String::as_str)),
    ];
    fetched.into_iter().collect()
}

/// Enqueues one job; `before` are the results for earlier jobs of the same call.
pub fn add(
    tx: &mut JobsTx<'_>,
    partition: PartitionId,
    job: &NewJob,
    before: &[Enqueued],
) -> Result<Enqueued, Abort> {
    if let Some(unique) = &job.unique
        && let Some(there) = holder(tx, partition, unique)?
    {
        tx.effects.counts.deduplicated += 1;
        return Ok(there);
    }
    let (now, kind) = (tx.now(), tx.kind(partition, &job.spec.job_type)?);
    let parents = parents(tx, job, before)?;
    let run_at = run_at(now, job.when)?;
    let position = tx.next_position(partition)?;
    let (spec, depends_on) = (&job.spec, depends_on(tx, &parents)?);
    let mut slot = Slot::new(State::Pending, job.priority, kind, now);
    slot.run_at = run_at;
    slot.timeout_ms = spec.timeout_ms;
    slot.has_labels = labels(spec).next().is_some();
    slot.permit = concurrency_key::permit_of(spec);
    let id = JobId::new(now, position);
    if let Some(unique) = &job.unique {
        let hash = keys::unique_hash(partition, &unique.key);
        let (until, held) = match unique.scope {
            UniqueScope::Active => (None, Some(hash)),
            UniqueScope::Window => (Some(now.after(unique.window)), None),
        };
        slot.unique = held;
        tx.put(keys::unique(hash), id.as_uuid().as_bytes().to_vec(), until);
    }
    slot.blockers = depend(tx, position, &parents)?;
    for (label, text) in labels(spec) {
        tx.put(keys::label(label, text, id), Vec::new(), None);
    }
    let mut payload = std::mem::take(&mut tx.scratch);
    payload.0.clear();
    let unique_key = job.unique.as_ref().map(|unique| unique.key.as_str());
    payload::encode(&mut payload, spec, unique_key, &depends_on, &job.args);
    tx.add(partition, &payload.0, slot)?;
    tx.scratch = payload;
    completion::dispatch_or_wait(tx, position)?;
    tx.effects.counts.enqueued += 1;
    let state = tx.slot(position)?.map_or(State::Pending, |slot| slot.state);
    Ok(Enqueued { job_id: id, state, run_at, deduplicated: false })
}

/// The labels of a job.
pub fn labels(spec: &Spec) -> impl Iterator<Item = (Label, &str)> {
    let tags = spec.tags.iter().map(|tag| (Label::Tag, tag.as_str()));
    let correlation = spec.correlation_id.iter().map(|id| (Label::Correlation, id.as_str()));
    tags.chain(correlation).chain(spec.schedule_id.iter().map(|id| (Label::Schedule, id.as_str())))
}

fn run_at(now: Timestamp, when: When) -> Result<Option<Timestamp>, Abort> {
    let at = match when {
        When::Now => return Ok(None),
        When::After(delay) => now.after(delay),
        When::At(at) if at > now.after(DELAY_MAX) => {
            return Err(Error::invalid("runAt is more than five years ahead").into());
        }
        When::At(at) => at,
    };
    Ok((at > now).then_some(at))
}

/// The job that holds the unique key, unless the new job replaces it.
fn holder(tx: &mut JobsTx<'_>, partition: PartitionId, unique: &Unique) -> Result<Option<Enqueued>, Abort> {
    let hash = keys::unique_hash(partition, &unique.key);
    let Some(value) = tx.record(&keys::unique(hash))? else { return Ok(None) };
    let id: Option<JobId> = uuid::Uuid::from_slice(&value).ok().and_then(|id| id.to_string().parse().ok());
    let Some(id) = id else { return Ok(None) };
    let Some(position) = tx.find(id)? else {
        // A deleted job keeps its key until its window ends.
        let there = Enqueued { job_id: id, state: State::Gone, run_at: None, deduplicated: true };
        return Ok(Some(there).filter(|_| unique.scope == UniqueScope::Window));
    };
    let slot = tx.slot(position)?.map(|slot| (slot.state, slot.run_at));
    let Some((state, run_at)) = slot else { return Ok(None) };
    match unique.on_conflict {
        OnConflict::Reject => {
            let message = format!("job {id} has the uniqueKey {:?}", unique.key);
            return Err(Error::conflict("unique_key_taken", message).into());
        }
        OnConflict::Replace if !state.is_held() && !state.is_terminal() => {
            completion::cancel_unleased(tx, position)?;
            return Ok(None);
        }
        OnConflict::Replace | OnConflict::Return => {}
    }
    Ok(Some(Enqueued { job_id: id, state, run_at, deduplicated: true }))
}

// Dependencies.

fn parents(tx: &mut JobsTx<'_>, job: &NewJob, before: &[Enqueued]) -> Result<Vec<JobPosition>, Abort> {
    let mut parents = each(&job.depends_on, |dependency| {
        let id = match dependency {
            Dependency::Job(id) => *id,
            Dependency::Item(index) => {
                let item = before.get(*index);
                item.ok_or_else(|| {
                    Error::invalid(format!("dependsOn names item {index}, which is not before it"))
                })?
                .job_id
            }
        };
        let position = tx.find(id)?;
        Ok(position.ok_or_else(|| Error::invalid(format!("dependsOn names {id}, which is no job")))?)
    })?;
    parents.sort_unstable();
    parents.dedup();
    Ok(parents)
}

fn depends_on(tx: &mut JobsTx<'_>, parents: &[JobPosition]) -> Result<Vec<JobId>, Abort> {
    parents.iter().map(|position| tx.id(*position)).collect()
}

/// Records with each parent that has not completed that `position` depends on it. Returns the number of such parents.
fn depend(tx: &mut JobsTx<'_>, position: JobPosition, parents: &[JobPosition]) -> Result<u32, Abort> {
    let mut blockers = 0;
    for parent in parents {
        let state = tx.slot(*parent)?.map_or(State::Gone, |slot| slot.state);
        match state {
            State::Completed => continue,
            state if state.is_terminal() => {
                let message = format!("dependsOn names {}, which is {}", tx.id(*parent)?, state.word());
                return Err(Error::conflict("dependency_failed", message).into());
            }
            _ => {}
        }
        let mut dependents = completion::dependents(tx, *parent)?;
        if dependents.len() >= DEPENDENTS_MAX {
            let message = format!("at most {DEPENDENTS_MAX} jobs can depend on one");
            return Err(Error::Full(message).into());
        }
        dependents.push(position);
        completion::put_dependents(tx, *parent, &dependents);
        tx.slot_mut(*parent)?.has_dependents = true;
        blockers += 1;
    }
    Ok(blockers)
}
