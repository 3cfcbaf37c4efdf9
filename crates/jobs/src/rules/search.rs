//! Searches jobs: by label, or by queue and state, a page at a time.
//!
//! Always: a page reads a bounded number of jobs, whatever the filter. A short page has a cursor to go on. So no
//! search delays other work. Labels (tag, correlation id, schedule) are indexed; every other search reads the chunks
//! of all queues backwards and merges them, the newest job first. A cursor holds the acceptance time of the last job,
//! so jobs that are accepted between two pages do not shift the others.

use std::collections::BTreeMap;

use baton_types::{PartitionId, Timestamp};

use crate::model::error::Error;
use crate::model::ids::{CHUNK, JobId, JobPosition};
use crate::model::keys::{self, Label};
use crate::model::limits::{PAGE_CHUNKS_MAX, PAGE_MAX};
use crate::model::slot::Slot;
use crate::model::state::State;
use crate::rules::job_view::{JobView, PartialView, partial_view};
use crate::storage::{Abort, JobsTx, each};

/// Chunks prefetched, of all queues together.
const AHEAD: u64 = 16;
/// Queues that a cursor names: with two numbers each, they fit a URL.
const CURSOR_QUEUES_MAX: usize = 128;

/// Which jobs to find.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In one of these states.
    pub states: Vec<State>,
    /// Of this queue.
    pub queue: Option<String>,
    /// Of this type.
    pub job_type: Option<String>,
    /// With this tag.
    pub tag: Option<String>,
    /// Fired by this schedule.
    pub schedule_id: Option<String>,
    /// With this correlation id.
    pub correlation_id: Option<String>,
    /// Accepted after this time.
    pub created_after: Option<Timestamp>,
    /// With this text in their arguments or type.
    pub text: Option<String>,
}

/// A page of jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobPage {
    /// The jobs.
    pub jobs: Vec<JobView>,
    /// The cursor of the next page; `None` when there is no more.
    pub next: Option<String>,
}

/// Jobs that a search found, without specifications, and the cursor of the next page.
#[derive(Debug)]
pub struct Found {
    pub seen: Vec<PartialView>,
    pub next: Option<String>,
}

impl Filter {
    pub(crate) fn label(&self) -> Option<(Label, &str)> {
        let labels = [
            (Label::Correlation, &self.correlation_id),
            (Label::Schedule, &self.schedule_id),
            (Label::Tag, &self.tag),
        ];
        labels.into_iter().find_map(|(label, text)| Some((label, text.as_deref()?)))
    }

    fn fits_slot(&self, slot: &Slot) -> bool {
        slot.state != State::Gone
            && (self.states.is_empty() || self.states.contains(&slot.state))
            && self.created_after.is_none_or(|after| slot.created_at > after)
    }

    /// Whether a job matches the parts of the filter that its slot could not decide.
    pub(crate) fn fits(&self, job: &JobView) -> bool {
        let is = |wanted: &Option<String>, given: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| given == Some(wanted))
        };
        is(&self.queue, Some(&job.queue))
            && is(&self.job_type, Some(&job.spec.job_type))
            && is(&self.schedule_id, job.spec.schedule_id.as_deref())
            && is(&self.correlation_id, job.spec.correlation_id.as_deref())
            && self.tag.as_ref().is_none_or(|tag| job.spec.tags.contains(tag))
            && self
                .text
                .as_ref()
                .is_none_or(|text| job.spec.job_type.contains(text) || contains(&job.args, text.as_bytes()))
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window == part)
}

/// Finds jobs by one label.
pub fn by_label(
    tx: &mut JobsTx<'_>,
    filter: &Filter,
    label: Label,
    text: &str,
    cursor: Option<&str>,
    limit: usize,
) -> Result<Found, Abort> {
    let prefix = keys::labels(label, text);
    let after = cursor.map(|cursor| format!("{prefix}{cursor}"));
    let rows = tx.stored(&prefix, after.as_deref(), limit)?;
    let next = rows.last().filter(|_| rows.len() == limit).and_then(|(key, _)| key.strip_prefix(&prefix));
    let next = next.map(str::to_owned);
    let jobs = rows.iter().filter_map(|(key, _)| keys::read_newest_first(key.strip_prefix(&prefix)?));
    let jobs: Vec<JobId> = jobs.collect();
    tx.prefetch_slots(jobs.iter().filter_map(|job| job.position()))?;
    let mut seen = Vec::with_capacity(jobs.len());
    for job in jobs {
        let Some(position) = tx.find(job)? else { continue };
        seen.extend(partial_view(tx, position)?.filter(|seen| filter.fits_slot(&seen.slot)));
    }
    Ok(Found { seen, next })
}

/// How far a search has come. Its last job bounds it: jobs that were accepted later are not part of it.
struct Cursor {
    at: Timestamp,
    partition: PartitionId,
    /// The position in each queue, so that the next page need not skip jobs again.
    ends: Vec<(PartitionId, u64)>,
}

/// One queue of a search, read backwards.
struct Backwards {
    partition: PartitionId,
    first: u64,
    end: u64,
    /// The number of the job type to find.
    kind: Option<u32>,
    /// The acceptance time of the next job, no later than those before it.
    at: Timestamp,
    /// Whether the search has passed a job or a chunk of it.
    has_moved: bool,
}

impl Backwards {
    /// Moves to the next older job; `false` when there is none. `None` when the page may read no more chunks.
    fn next(&mut self, tx: &mut JobsTx<'_>, ahead: u64, budget: &mut usize) -> Result<Option<bool>, Abort> {
        while self.end > self.first {
            let number = (self.end - 1) / CHUNK;
            let low = number.saturating_sub(ahead).max(self.first / CHUNK);
            let chunks: Vec<_> = (low..=number).map(|number| (self.partition, number)).collect();
            tx.prefetch_chunks(&chunks)?;
            let slots = tx.chunk((self.partition, number))?;
            let count = usize::try_from(self.end - number * CHUNK).unwrap_or(usize::MAX).min(slots.len());
            if let Some(index) = slots[..count].iter().rposition(|slot| slot.state != State::Gone) {
                self.end = number * CHUNK + index as u64 + 1;
                self.at = self.at.min(slots[index].created_at);
                return Ok(Some(true));
            }
            (self.end, self.has_moved) = (number * CHUNK, true);
            match budget.checked_sub(1) {
                Some(left) => *budget = left,
                None => return Ok(None),
            }
        }
        Ok(Some(false))
    }
}

/// Merges the queues, the newest job first.
pub fn by_queue(
    tx: &mut JobsTx<'_>,
    filter: &Filter,
    queue: Option<PartitionId>,
    cursor: Option<&str>,
    limit: usize,
) -> Result<Found, Abort> {
    let from = cursor.map(read_cursor).transpose()?;
    let partitions = match queue {
        Some(queue) => vec![queue],
        None => all_queues(tx)?,
    };
    // Chunks and jobs that this page may still read.
    let (mut budget, mut left) = (PAGE_CHUNKS_MAX, PAGE_CHUNKS_MAX * CHUNK as usize);
    let opened = each(partitions, |partition| open(tx, filter, from.as_ref(), partition))?;
    let mut queues: Vec<Backwards> = opened.into_iter().flatten().collect();
    let ahead = (AHEAD / queues.len().max(1) as u64).max(1) - 1;
    let (mut is_cut, mut cut) = (false, None);
    let mut ready: BTreeMap<(Timestamp, PartitionId), usize> = BTreeMap::new();
    let found = each(0..queues.len(), |index| queues[index].next(tx, 0, &mut budget))?;
    for (index, found) in found.into_iter().enumerate() {
        match found {
            Some(true) => drop(ready.insert((queues[index].at, queues[index].partition), index)),
            Some(false) => {}
            None => (is_cut, cut) = (true, Some(index)),
        }
    }
    let (mut seen, mut last) = (Vec::new(), from.as_ref().map(|from| (from.at, from.partition)));
    while !is_cut && let Some((key @ (at, partition), index)) = ready.pop_last() {
        if filter.created_after.is_some_and(|after| at <= after) {
            ready.clear();
            break;
        }
        if seen.len() >= limit || left == 0 {
            is_cut = true;
            break;
        }
        let queue = &mut queues[index];
        let is_in_page = from.as_ref().is_none_or(|from| from.is_after(key));
        (queue.end, queue.has_moved) = (queue.end - 1, true);
        let position = JobPosition::new(partition, queue.end);
        let fits = |slot: &Slot| filter.fits_slot(slot) && queue.kind.is_none_or(|kind| slot.kind == kind);
        left -= 1;
        if is_in_page {
            last = Some(key);
            if tx.slot(position)?.is_some_and(fits) {
                seen.extend(partial_view(tx, position)?);
            }
        }
        match queue.next(tx, ahead, &mut budget)? {
            Some(true) => drop(ready.insert((queue.at, partition), index)),
            Some(false) => {}
            None => (is_cut, cut) = (true, Some(index)),
        }
    }
    let next = is_cut.then(|| write_cursor(last, &queues, cut));
    Ok(Found { seen, next })
}

/// Where to read a queue from; `None` if it has no matching job.
fn open(
    tx: &mut JobsTx<'_>,
    filter: &Filter,
    from: Option<&Cursor>,
    partition: PartitionId,
) -> Result<Option<Backwards>, Abort> {
    let known = from.and_then(|from| from.ends.iter().find(|(of, _)| *of == partition));
    let (end, at) = match known {
        Some((_, end)) => (*end, from.map_or(Timestamp::MAX, |from| from.at)),
        None => (tx.next_position(partition)?.offset.0, Timestamp::MAX),
    };
    let first = tx.head(partition)?.removed.end * CHUNK;
    let kind = match &filter.job_type {
        Some(name) => {
            let kinds = tx.kinds(partition)?;
            match kinds.iter().zip(0u32..).find(|(kind, _)| ***kind == **name) {
                Some((_, number)) => Some(number),
                None => return Ok(None),
            }
        }
        None => None,
    };
    let has_moved = known.is_some();
    Ok((end > first).then_some(Backwards { partition, first, end, kind, at, has_moved }))
}

/// The partitions of all queues.
fn all_queues(tx: &mut JobsTx<'_>) -> Result<Vec<PartitionId>, Abort> {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = tx.stored(keys::QUEUES, after.as_deref(), PAGE_MAX)?;
        let number = |value: &[u8]| std::str::from_utf8(value).ok()?.parse().ok().map(PartitionId);
        all.extend(page.iter().filter_map(|(_, record)| number(&record.value)));
        after = page.last().map(|(key, _)| key.clone());
        if page.len() < PAGE_MAX {
            return Ok(all);
        }
    }
}

impl Cursor {
    /// Whether a job comes after the earlier pages. In a queue that the cursor names, every job does.
    fn is_after(&self, key: (Timestamp, PartitionId)) -> bool {
        key <= (self.at, self.partition) || self.ends.iter().any(|(named, _)| *named == key.1)
    }
}

/// The cursor for a page that was cut. It names as many queues as fit a URL; the others are read from their end.
fn write_cursor(last: Option<(Timestamp, PartitionId)>, queues: &[Backwards], cut: Option<usize>) -> String {
    let (at, partition) = last.unwrap_or((Timestamp::MAX, PartitionId(u64::MAX)));
    let mut text = format!("{:x}-{:x}", at.micros(), partition.0);
    let mut moved: Vec<_> = queues.iter().enumerate().filter(|(_, queue)| queue.has_moved).collect();
    // The next page makes no progress without these two.
    moved.sort_by_key(|(index, queue)| Some(*index) != cut && queue.partition != partition);
    for (_, queue) in moved.into_iter().take(CURSOR_QUEUES_MAX) {
        text.push_str(&format!("-{:x}-{:x}", queue.partition.0, queue.end));
    }
    text
}

fn read_cursor(text: &str) -> Result<Cursor, Error> {
    let wrong = || Error::invalid("cursor is invalid: pass the `next` of the page before");
    let numbers = text.split('-').map(|number| u64::from_str_radix(number, 16).map_err(|_| wrong()));
    let numbers = numbers.collect::<Result<Vec<_>, Error>>()?;
    let [at, partition, ends @ ..] = numbers.as_slice() else { return Err(wrong()) };
    if ends.len() % 2 != 0 {
        return Err(wrong());
    }
    let ends = ends.chunks_exact(2).map(|end| (PartitionId(end[0]), end[1])).collect();
    let at = Timestamp::from_micros(i64::try_from(*at).map_err(|_| wrong())?);
    Ok(Cursor { at, partition: PartitionId(*partition), ends })
}
