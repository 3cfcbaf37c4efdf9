//! Finding jobs: by what they are labelled with, or by queue and state, a page at a time.
//!
//! Always: a page looks at a bounded number of jobs, whatever is asked for; when it finds fewer than it may tell, it
//! says where to go on. So no search is in the way of the work. Labels (tag, correlation id, schedule) lead to their
//! jobs directly; everything else looks through chunks, the newest first, queue by queue.

use baton_types::{PartitionId, Timestamp};

use crate::book::{Book, Halt};
use crate::chunk::{CHUNK, Slot};
use crate::error::Error;
use crate::id::{JobId, Place};
use crate::jobs::Jobs;
use crate::key::{self, Label};
use crate::limits::{PAGE_CHUNKS_MAX, PAGE_MAX};
use crate::state::State;
use crate::view::{JobView, Seen, see};

/// What jobs are looked for.
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
    /// Accepted after this moment.
    pub created_after: Option<Timestamp>,
    /// With this text in their arguments or type.
    pub text: Option<String>,
}

/// A page of jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The jobs.
    pub jobs: Vec<JobView>,
    /// Where to go on; `None` when there is no more.
    pub next: Option<String>,
}

struct Found {
    seen: Vec<Seen>,
    next: Option<String>,
}

impl Filter {
    fn label(&self) -> Option<(Label, &str)> {
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

    /// Whether a job is one of those, as far as its slot did not tell.
    fn fits(&self, job: &JobView) -> bool {
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

impl Jobs {
    /// A page of the jobs that `filter` describes, from where `cursor` says.
    pub async fn search(&self, filter: Filter, cursor: Option<String>, limit: usize) -> Result<Page, Error> {
        let limit = limit.clamp(1, PAGE_MAX);
        let queue = match &filter.queue {
            Some(queue) => Some(self.shared.existing_queue(queue).await?),
            None => None,
        };
        let asked = filter.clone();
        let found = self
            .shared
            .decide(move |book| match asked.label() {
                Some((label, text)) => by_label(book, &asked, label, text, cursor.as_deref(), limit),
                None => by_queue(book, &asked, queue, cursor.as_deref(), limit),
            })
            .await?;
        let mut jobs = self.filled(found.seen).await?;
        jobs.retain(|job| filter.fits(job));
        Ok(Page { jobs, next: found.next })
    }
}

fn by_label(
    book: &mut Book<'_>,
    filter: &Filter,
    label: Label,
    text: &str,
    cursor: Option<&str>,
    limit: usize,
) -> Result<Found, Halt> {
    let prefix = key::labels(label, text);
    let after = cursor.map(|cursor| format!("{prefix}{cursor}"));
    let rows = book.stored(&prefix, after.as_deref(), limit)?;
    let next = rows.last().filter(|_| rows.len() == limit).and_then(|(key, _)| key.strip_prefix(&prefix));
    let next = next.map(str::to_owned);
    let jobs = rows.iter().filter_map(|(key, _)| key::read_newest_first(key.strip_prefix(&prefix)?));
    let jobs: Vec<JobId> = jobs.collect();
    book.want_places(jobs.iter().filter_map(|job| job.place()))?;
    let mut seen = Vec::with_capacity(jobs.len());
    for job in jobs {
        let Some(place) = book.find(job)? else { continue };
        seen.extend(see(book, place)?.filter(|seen| filter.fits_slot(&seen.slot)));
    }
    Ok(Found { seen, next })
}

/// Looks through chunks from the newest job on, one queue after the other.
fn by_queue(
    book: &mut Book<'_>,
    filter: &Filter,
    queue: Option<PartitionId>,
    cursor: Option<&str>,
    limit: usize,
) -> Result<Found, Halt> {
    let from = cursor.map(read_cursor).transpose()?;
    let queues = match queue {
        Some(queue) => vec![queue],
        None => queues_from(book, from.map(|place| place.partition))?,
    };
    let (mut seen, mut looked_at) = (Vec::new(), 0);
    for partition in queues {
        let start = from.filter(|place| place.partition == partition).map(|place| place.offset.0);
        let mut end = match start {
            Some(start) => start,
            None => book.next_place(partition)?.offset.0,
        };
        let first = book.head(partition)?.removed.end * CHUNK;
        let kind = match &filter.job_type {
            Some(name) => match book.kinds(partition)?.iter().zip(0u32..).find(|(kind, _)| ***kind == **name)
            {
                Some((_, number)) => Some(number),
                None => continue,
            },
            None => None,
        };
        while end > first {
            if looked_at >= PAGE_CHUNKS_MAX || seen.len() >= limit {
                return Ok(Found { seen, next: Some(write_cursor(Place::new(partition, end))) });
            }
            let number = (end - 1) / CHUNK;
            let low = number.saturating_sub(15).max(first / CHUNK);
            let ahead: Vec<_> = (low..=number).map(|number| (partition, number)).collect();
            book.want_chunks(&ahead)?;
            looked_at += 1;
            let slots = book.chunk((partition, number))?.iter().enumerate().rev();
            let fits = |slot: &Slot| filter.fits_slot(slot) && kind.is_none_or(|kind| slot.kind == kind);
            let here = slots.map(|(index, slot)| (number * CHUNK + index as u64, slot));
            let found: Vec<u64> =
                here.filter(|(offset, slot)| *offset < end && fits(slot)).map(|(offset, _)| offset).collect();
            let too_old = |slot: &Slot| filter.created_after.is_some_and(|after| slot.created_at <= after);
            let is_past = book
                .chunk((partition, number))?
                .iter()
                .any(|slot| slot.state != State::Gone && too_old(slot));
            end = number * CHUNK;
            for offset in found {
                if seen.len() >= limit {
                    end = offset + 1;
                    break;
                }
                seen.extend(see(book, Place::new(partition, offset))?);
            }
            if is_past && end == number * CHUNK {
                break;
            }
        }
    }
    Ok(Found { seen, next: None })
}

/// The queues, from the one that a cursor stands in.
fn queues_from(book: &mut Book<'_>, from: Option<PartitionId>) -> Result<Vec<PartitionId>, Halt> {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = book.stored(key::QUEUES, after.as_deref(), PAGE_MAX)?;
        let number = |value: &[u8]| std::str::from_utf8(value).ok()?.parse().ok().map(PartitionId);
        all.extend(page.iter().filter_map(|(_, record)| number(&record.value)));
        after = page.last().map(|(key, _)| key.clone());
        if page.len() < PAGE_MAX {
            break;
        }
    }
    let skip = from.and_then(|from| all.iter().position(|queue| *queue == from)).unwrap_or(0);
    Ok(all.split_off(skip))
}

fn write_cursor(place: Place) -> String {
    format!("{}-{}", place.partition, place.offset)
}

fn read_cursor(text: &str) -> Result<Place, Error> {
    let wrong = || Error::invalid("cursor is not one that a page named as next");
    let (partition, offset) = text.split_once('-').ok_or_else(wrong)?;
    let partition = PartitionId(partition.parse().map_err(|_| wrong())?);
    Ok(Place::new(partition, offset.parse().map_err(|_| wrong())?))
}
