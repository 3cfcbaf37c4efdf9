//! The book: one look at job queues, and what is to be changed in them, as one commit.
//!
//! A rule reads slots and heads here, changes slots, and the book works out what follows: lanes, counts, the order of
//! time, chunks that are not needed any more. Always: nothing is written before [`Book::commit`], so a rule may refuse
//! at any point and leaves nothing; everything is read before the first write, as [`Tx`] asks. Not here: what a
//! transition means (`machine`). Start at [`Book::slot`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_store::{Block, Error as StoreError, NewMessage, Record, Stop, Tx, expiry};
use baton_types::{Offset, PartitionId, Timestamp};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::chunk::{CHUNK, Chunk, Slot};
use crate::error::Error;
use crate::head::Head;
use crate::id::{ExecutionId, JobId, Place, WorkerId};
use crate::key;
use crate::lane::{Lane, Ranges};
use crate::limits::KINDS_MAX;
use crate::permit::Key;
use crate::policy::Policy;
use crate::spec::Spec;
use crate::state::State;

/// Why a rule did not come to its end. Nothing of it is kept.
#[derive(Debug)]
pub enum Halt {
    /// The store has to fetch something, or has failed.
    Stop(Stop),
    /// The request was refused.
    Refused(Error),
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

impl From<StoreError> for Halt {
    fn from(error: StoreError) -> Self {
        Self::Stop(error.into())
    }
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// Takes a step for each item. One that misses a row does not keep the others from saying what they miss, so that the
/// store fetches everything together; the rule is then run again from the start.
pub fn each<T, R>(
    items: impl IntoIterator<Item = T>,
    mut step: impl FnMut(T) -> Result<R, Halt>,
) -> Result<Vec<R>, Halt> {
    let (mut done, mut missing) = (Vec::new(), false);
    for item in items {
        match step(item) {
            Ok(answer) => done.push(answer),
            Err(Halt::Stop(Stop::Load)) => missing = true,
            // After a miss nothing that a step says counts.
            Err(_) if missing => {}
            Err(other) => return Err(other),
        }
    }
    if missing { Err(Halt::Stop(Stop::Load)) } else { Ok(done) }
}

/// What waits for a commit: who is to be woken by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Queues with newly dispatched jobs, and how many.
    pub ready: Vec<(PartitionId, u64)>,
    /// The first moment at which something new is due.
    pub due: Option<Timestamp>,
    /// Whether a schedule is to be looked at at another moment.
    pub fires: bool,
    /// Jobs that somebody may be watching.
    pub changed: Vec<Place>,
    /// Things to count.
    pub counts: Counts,
}

/// What happened to jobs in one commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs accepted.
    pub enqueued: u64,
    /// Jobs that were there already.
    pub deduplicated: u64,
    /// Jobs given to workers, each with how long it had waited.
    pub leased: Vec<Duration>,
    /// Executions that ended, by outcome, each with how long it ran.
    pub ended: Vec<(crate::state::Outcome, Duration)>,
    /// Reports, heartbeats and log lines under an old fence.
    pub stale: u64,
    /// Jobs that became dead letters.
    pub dead: u64,
    /// Jobs that were forgotten.
    pub forgotten: u64,
    /// Lines of logs, and those that were not kept.
    pub lines: (u64, u64),
    /// Fires of schedules that made a job, each with how late it was.
    pub fired: Vec<Duration>,
    /// Looks at schedules that found missed fires.
    pub misfires: u64,
    /// Fires that made no job because of the last one.
    pub overlapped: u64,
}

struct Page {
    chunk: Chunk,
    before: Summary,
    stored: bool,
    dirty: bool,
    /// Whether its place in the order of time is to be found anew.
    swept: bool,
}

#[derive(Default, PartialEq, Eq)]
struct Summary {
    counts: [u64; State::COUNT],
    /// Lanes with a job in the chunk, and when the oldest of them was accepted.
    lanes: Vec<(u8, u32, Timestamp)>,
    /// A bit for each job that has not ended.
    open: u64,
}

const _: () = assert!(CHUNK == u64::BITS as u64, "a bit for each slot");

impl Summary {
    fn of(chunk: &Chunk) -> Self {
        let mut summary = Self::default();
        for (index, slot) in chunk.slots.iter().enumerate() {
            summary.counts[slot.state as usize] += 1;
            summary.open |= u64::from(!slot.state.is_terminal()) << index;
            if slot.state == State::Dispatched {
                let lane = (slot.priority, slot.kind);
                if !summary.lanes.iter().any(|(priority, kind, _)| (*priority, *kind) == lane) {
                    summary.lanes.push((slot.priority, slot.kind, slot.created_at));
                }
            }
        }
        summary
    }
}

struct Appends {
    first: u64,
    block: Block,
}

/// See the module.
pub struct Book<'t> {
    tx: &'t mut dyn Tx,
    /// What holds where a job does not say otherwise.
    pub policy: Policy,
    heads: BTreeMap<PartitionId, (Head, bool)>,
    kinds: BTreeMap<PartitionId, (Vec<Arc<str>>, bool)>,
    pages: BTreeMap<(PartitionId, u64), Page>,
    permits: FxHashMap<u64, (Key, bool)>,
    read: BTreeMap<String, Option<Record>>,
    writes: BTreeMap<String, (Option<Bytes>, Option<Timestamp>)>,
    appends: BTreeMap<PartitionId, Appends>,
    /// What goes into the journal besides changes of jobs, each with the slice it belongs to.
    said: Vec<Value>,
    /// What the commit is news of.
    pub news: News,
}

impl<'t> Book<'t> {
    /// Opens the book.
    pub fn new(tx: &'t mut dyn Tx, policy: Policy) -> Self {
        Self {
            tx,
            policy,
            heads: BTreeMap::new(),
            kinds: BTreeMap::new(),
            pages: BTreeMap::new(),
            permits: FxHashMap::default(),
            read: BTreeMap::new(),
            writes: BTreeMap::new(),
            appends: BTreeMap::new(),
            said: Vec::new(),
            news: News::default(),
        }
    }

    /// The store's time.
    pub fn now(&self) -> Timestamp {
        self.tx.now()
    }

    /// Says whether `bytes` more can be taken in.
    pub fn admit(&self, bytes: usize) -> Result<(), Halt> {
        Ok(self.tx.admit(bytes)?)
    }

    // Records.

    /// A record as it will be after the commit.
    pub fn record(&mut self, key: &str) -> Result<Option<Bytes>, Halt> {
        if let Some((value, _)) = self.writes.get(key) {
            return Ok(value.clone());
        }
        if let Some(record) = self.read.get(key) {
            return Ok(record.as_ref().map(|record| record.value.clone()));
        }
        let record = self.tx.record(key)?;
        let value = record.as_ref().map(|record| record.value.clone());
        self.read.insert(key.to_owned(), record);
        Ok(value)
    }

    /// Fetches several records at once.
    pub fn want<'k>(&mut self, keys: impl IntoIterator<Item = &'k str>) -> Result<(), Halt> {
        let mut missing = None;
        for key in keys {
            match self.record(key) {
                Ok(_) => {}
                Err(Halt::Stop(Stop::Load)) => missing = Some(Halt::Stop(Stop::Load)),
                Err(other) => return Err(other),
            }
        }
        missing.map_or(Ok(()), Err)
    }

    /// Records as they are stored, without what the book is about to change.
    pub fn stored(
        &mut self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Record)>, Halt> {
        Ok(self.tx.records(prefix, after, limit)?)
    }

    /// Writes a record. One that expires must have been read before.
    pub fn put(&mut self, key: String, value: impl Into<Bytes>, expires_at: Option<Timestamp>) {
        self.writes.insert(key, (Some(value.into()), expires_at));
    }

    /// Removes a record.
    pub fn remove(&mut self, key: String) {
        self.writes.insert(key, (None, None));
    }

    // Queues.

    /// The head of a queue.
    pub fn head(&mut self, partition: PartitionId) -> Result<&Head, Halt> {
        self.load_head(partition)?;
        self.heads.get(&partition).map(|(head, _)| head).ok_or_else(|| no_queue(partition))
    }

    /// The head of a queue, to be changed.
    pub fn head_mut(&mut self, partition: PartitionId) -> Result<&mut Head, Halt> {
        self.load_head(partition)?;
        let (head, dirty) = self.heads.get_mut(&partition).ok_or_else(|| no_queue(partition))?;
        *dirty = true;
        Ok(head)
    }

    fn load_head(&mut self, partition: PartitionId) -> Result<(), Halt> {
        if !self.heads.contains_key(&partition) {
            let value = self.record(&key::head(partition))?.ok_or_else(|| no_queue(partition))?;
            self.heads.insert(partition, (Head::decode(&value)?, false));
        }
        Ok(())
    }

    /// The names of a queue's job types, by number.
    pub fn kinds(&mut self, partition: PartitionId) -> Result<&[Arc<str>], Halt> {
        if !self.kinds.contains_key(&partition) {
            let kinds = match self.record(&key::kinds(partition))? {
                Some(value) => serde_json::from_slice(&value)
                    .map_err(|error| StoreError::Corrupt(format!("job types cannot be read: {error}")))?,
                None => Vec::new(),
            };
            self.kinds.insert(partition, (kinds, false));
        }
        Ok(self.kinds.get(&partition).map_or(&[], |(kinds, _)| kinds))
    }

    /// The number of a job type, which is given one if it has none.
    pub fn kind(&mut self, partition: PartitionId, name: &str) -> Result<u32, Halt> {
        let known = self.kinds(partition)?;
        let number = known.iter().position(|kind| **kind == *name).unwrap_or(known.len());
        if number == known.len() {
            if number >= KINDS_MAX {
                let message = format!("a queue has at most {KINDS_MAX} job types; use another queue");
                return Err(Error::Full(message).into());
            }
            if let Some((kinds, dirty)) = self.kinds.get_mut(&partition) {
                kinds.push(name.into());
                *dirty = true;
            }
        }
        Ok(u32::try_from(number).unwrap_or(u32::MAX))
    }

    // Concurrency keys.

    /// What is known of a concurrency key.
    pub fn permit(&mut self, hash: u64) -> Result<Key, Halt> {
        if let Some((known, _)) = self.permits.get(&hash) {
            return Ok(*known);
        }
        let value = self.record(&key::permit(hash))?;
        let known = value.map(|value| Key::decode(&value)).transpose()?.unwrap_or_default();
        self.permits.insert(hash, (known, false));
        Ok(known)
    }

    /// Fetches several at once.
    pub fn want_permits(&mut self, mut hashes: Vec<u64>) -> Result<(), Halt> {
        hashes.sort_unstable();
        hashes.dedup();
        let keys: Vec<String> = hashes.into_iter().map(key::permit).collect();
        self.want(keys.iter().map(String::as_str))
    }

    /// Changes one.
    pub fn put_permit(&mut self, hash: u64, known: Key) {
        self.permits.insert(hash, (known, true));
    }

    // Slots.

    /// Fetches the chunks of several places at once.
    pub fn want_places(&mut self, places: impl IntoIterator<Item = Place>) -> Result<(), Halt> {
        let mut chunks: Vec<_> = places.into_iter().map(Place::chunk).collect();
        chunks.sort_unstable();
        chunks.dedup();
        self.want_chunks(&chunks)
    }

    /// Fetches several chunks, and the heads of their queues, at once.
    pub fn want_chunks(&mut self, chunks: &[(PartitionId, u64)]) -> Result<(), Halt> {
        let missing = chunks.iter().filter(|chunk| !self.pages.contains_key(chunk));
        let mut keys: Vec<String> =
            missing.map(|(partition, number)| key::chunk(*partition, *number)).collect();
        let mut last = None;
        for (partition, _) in chunks {
            if last.replace(*partition) != Some(*partition) && !self.heads.contains_key(partition) {
                keys.push(key::head(*partition));
            }
        }
        self.want(keys.iter().map(String::as_str))
    }

    fn page(&mut self, at: (PartitionId, u64)) -> Result<&mut Page, Halt> {
        if !self.pages.contains_key(&at) {
            let stored = self.record(&key::chunk(at.0, at.1))?;
            let chunk = stored.as_ref().map(|value| Chunk::decode(value)).transpose()?;
            let (stored, chunk) = (chunk.is_some(), chunk.unwrap_or_default());
            let before = Summary::of(&chunk);
            self.pages.insert(at, Page { chunk, before, stored, dirty: false, swept: false });
        }
        self.pages.get_mut(&at).ok_or_else(|| StoreError::Corrupt("a chunk is missing".into()).into())
    }

    /// Whether a chunk has been looked at.
    pub fn has_chunk(&self, at: (PartitionId, u64)) -> bool {
        self.pages.contains_key(&at)
    }

    /// The slots of a chunk.
    pub fn chunk(&mut self, at: (PartitionId, u64)) -> Result<&[Slot], Halt> {
        Ok(&self.page(at)?.chunk.slots)
    }

    /// The slots of a chunk, and under which moment it stands in the order of time.
    pub fn chunk_as_stored(
        &mut self,
        at: (PartitionId, u64),
    ) -> Result<(Vec<Slot>, Option<Timestamp>), Halt> {
        let chunk = &self.page(at)?.chunk;
        Ok((chunk.slots.clone(), chunk.indexed))
    }

    /// What is known of a job; `None` when it is forgotten or never was.
    pub fn slot(&mut self, place: Place) -> Result<Option<&Slot>, Halt> {
        let slot = self.page(place.chunk())?.chunk.slots.get(place.index());
        Ok(slot.filter(|slot| slot.state != State::Gone))
    }

    /// The slot of a place, to be changed; also one without a job.
    pub fn slot_mut(&mut self, place: Place) -> Result<&mut Slot, Halt> {
        let page = self.page(place.chunk())?;
        page.dirty = true;
        let slot = page.chunk.slots.get_mut(place.index());
        slot.ok_or_else(|| StoreError::Corrupt(format!("there is no slot at {place:?}")).into())
    }

    /// Notes that somebody may want to hear of a job's change.
    pub fn tell(&mut self, place: Place) {
        self.news.changed.push(place);
    }

    /// Where a job is, if it is there under this very id.
    pub fn find(&mut self, id: JobId) -> Result<Option<Place>, Halt> {
        let Some(place) = id.place() else { return Ok(None) };
        let found = self.slot(place)?.is_some_and(|slot| JobId::new(slot.created_at, place) == id);
        Ok(found.then_some(place))
    }

    /// The same, or an error that says so.
    pub fn expect(&mut self, id: JobId) -> Result<Place, Halt> {
        self.find(id)?.ok_or_else(|| Error::no_job(id).into())
    }

    /// The id of the job in a place.
    pub fn id(&mut self, place: Place) -> Result<JobId, Halt> {
        let created_at = self.slot(place)?.map(|slot| slot.created_at);
        Ok(JobId::new(created_at.unwrap_or_default(), place))
    }

    /// Says that a chunk was looked at because something in it was due.
    pub fn sweep(&mut self, at: (PartitionId, u64)) -> Result<(), Halt> {
        let page = self.page(at)?;
        (page.dirty, page.swept) = (true, true);
        Ok(())
    }

    /// Says that a chunk was looked at for dispatched jobs, so that lanes forget it if it has none.
    pub fn look_at(&mut self, at: (PartitionId, u64)) -> Result<(), Halt> {
        self.page(at)?.dirty = true;
        Ok(())
    }

    // Messages.

    /// The specification of a job and its arguments.
    pub fn spec(&mut self, place: Place) -> Result<(Spec, Bytes), Halt> {
        let at = self.slot(place)?.and_then(|slot| slot.spec).unwrap_or(place.offset);
        let message = self.tx.message(place.partition, at)?;
        let message =
            message.ok_or_else(|| StoreError::Corrupt(format!("the job at {place:?} is missing")))?;
        Ok(Spec::decode(&message.payload)?)
    }

    fn next_offset(&mut self, partition: PartitionId) -> Result<u64, Halt> {
        if let Some(appends) = self.appends.get(&partition) {
            return Ok(appends.first + appends.block.len() as u64);
        }
        let row = self.tx.partition_by_id(partition)?.ok_or_else(|| no_queue(partition))?;
        self.appends.insert(partition, Appends { first: row.tail.0, block: Block::default() });
        Ok(row.tail.0)
    }

    fn append(&mut self, partition: PartitionId, payload: &[u8]) -> Result<u64, Halt> {
        let offset = self.next_offset(partition)?;
        if let Some(appends) = self.appends.get_mut(&partition) {
            appends.block.push(&NewMessage { payload, ..NewMessage::default() });
        }
        Ok(offset)
    }

    /// Adds a job to a queue: its specification, and its slot as told by `slot`.
    pub fn add(&mut self, partition: PartitionId, payload: &[u8], slot: Slot) -> Result<Place, Halt> {
        let place = Place::new(partition, self.next_offset(partition)?);
        let page = self.page(place.chunk())?;
        // What the store has and no job knows of can only be what a rule never finished: none is.
        while page.chunk.slots.len() < place.index() {
            page.chunk.slots.push(Slot::gone());
        }
        page.chunk.slots.push(slot);
        page.dirty = true;
        self.append(partition, payload)?;
        Ok(place)
    }

    /// Where the next job of a queue will be.
    pub fn next_place(&mut self, partition: PartitionId) -> Result<Place, Halt> {
        Ok(Place::new(partition, self.next_offset(partition)?))
    }

    /// Adds an entry to the history of a queue.
    pub fn add_history(&mut self, partition: PartitionId, payload: &[u8]) -> Result<Offset, Halt> {
        let history = self.head(partition)?.history;
        self.append(history, payload).map(Offset)
    }

    // The end.

    /// Writes everything; tells what it is news of.
    pub fn commit(mut self) -> Result<News, Stop> {
        let trims = self.settled()?;
        let Self { tx, heads, kinds, pages, read, writes, appends, news, .. } = self;
        Changes { heads, kinds, pages, read, writes, appends, trims, news }.write(tx)
    }

    /// What is to be written, for a decision that has other things to write, too.
    pub fn close(mut self) -> Result<Changes, Stop> {
        let trims = self.settled()?;
        let Self { heads, kinds, pages, read, writes, appends, news, .. } = self;
        Ok(Changes { heads, kinds, pages, read, writes, appends, trims, news })
    }

    fn settled(&mut self) -> Result<Vec<(PartitionId, u64)>, Stop> {
        self.journal().and_then(|()| self.settle()).map_err(|halt| match halt {
            Halt::Stop(stop) => stop,
            Halt::Refused(error) => StoreError::Corrupt(error.to_string()).into(),
        })
    }

    /// Has the journal say something, if somebody watches.
    pub fn say(&mut self, slice: u64, mut what: impl FnMut() -> Value) {
        if self.policy.watched {
            let mut said = what();
            said["slice"] = (slice % CHUNK).into();
            self.said.push(said);
        }
    }

    /// Leaves word of what the commit changes, if somebody watches.
    fn journal(&mut self) -> Result<(), Halt> {
        if !self.policy.watched {
            return Ok(());
        }
        let (mut places, at) = (self.news.changed.clone(), self.now().to_iso_millis());
        places.sort_unstable();
        places.dedup();
        let mut entries = each(places, |place| self.status(place, &at))?;
        entries.retain(|entry| !entry.is_null());
        entries.append(&mut self.said);
        if entries.is_empty() {
            return Ok(());
        }
        let last = self.record(key::JOURNAL_END)?;
        let last = last.and_then(|value| std::str::from_utf8(&value).ok()?.parse().ok());
        let next = last.unwrap_or(0u64) + 1;
        let value = serde_json::to_vec(&entries).unwrap_or_default();
        self.put(key::journal(next), value, None);
        self.put(key::JOURNAL_END.to_owned(), next.to_string(), None);
        Ok(())
    }

    /// How a job will stand, for the journal; nothing of one that is forgotten.
    fn status(&mut self, place: Place, at: &str) -> Result<Value, Halt> {
        let Some(slot) = self.slot(place)?.cloned() else { return Ok(Value::Null) };
        let queue = Arc::clone(&self.head(place.partition)?.name);
        let kinds = self.kinds(place.partition)?;
        let kind = kinds.get(slot.kind as usize).map(|kind| kind.to_string());
        let id = JobId::new(slot.created_at, place);
        let has_run = slot.executions > 0;
        Ok(json!({
            "kind": "status", "slice": place.index(), "jobId": id, "queue": &*queue, "jobType": kind,
            "status": slot.state, "fence": slot.fence, "attempts": slot.attempts,
            "executionId": has_run.then_some(ExecutionId { job: id, fence: slot.fence }),
            "workerId": has_run.then_some(WorkerId(slot.worker)), "at": at,
        }))
    }

    /// Works out what follows from the changed slots; tells what can be trimmed.
    fn settle(&mut self) -> Result<Vec<(PartitionId, u64)>, Halt> {
        let dirty: Vec<_> = self.pages.iter().filter(|(_, page)| page.dirty).map(|(at, _)| *at).collect();
        for (partition, _) in &dirty {
            self.load_head(*partition)?;
        }
        let (mut trims, mut ready) = (BTreeMap::new(), BTreeMap::<PartitionId, u64>::new());
        for at in dirty {
            let Some(page) = self.pages.get_mut(&at) else { continue };
            let Some((head, head_dirty)) = self.heads.get_mut(&at.0) else { continue };
            let after = Summary::of(&page.chunk);
            let dispatched = State::Dispatched as usize;
            let more = after.counts[dispatched].saturating_sub(page.before.counts[dispatched]);
            *ready.entry(at.0).or_default() += more;
            *head_dirty |= count(head, &page.before, &after);
            if self.policy.shared && after.open != page.before.open {
                head.tally(page.before.open, after.open);
            }
            let newest = page.chunk.slots.last().map(|slot| slot.created_at);
            *head_dirty |= place_in_lanes(head, at.1, &after, newest);
            page.before = after;
            let is_full = page.chunk.slots.len() as u64 == CHUNK;
            let spent = is_full && page.chunk.slots.iter().all(Slot::is_spent);
            if is_full && !head.freed.contains(at.1) && page.chunk.slots.iter().all(Slot::is_free) {
                *head_dirty = true;
                if head.freed.insert(at.1) {
                    trims.insert(at.0, head.freed.end * CHUNK);
                }
            }
            let due = page.chunk.slots.iter().filter_map(Slot::due).min();
            let moves = page.swept || due.is_some_and(|due| page.chunk.indexed.is_none_or(|at| due < at));
            if moves || spent {
                let place = due.filter(|_| !spent);
                if page.chunk.indexed != place {
                    if let Some(old) = page.chunk.indexed {
                        self.writes.insert(key::due(old, at.0, at.1), (None, None));
                    }
                    if let Some(due) = place {
                        self.writes.insert(key::due(due, at.0, at.1), (Some(Bytes::new()), None));
                        self.news.due = Some(self.news.due.map_or(due, |first| first.min(due)));
                    }
                    page.chunk.indexed = place;
                }
            }
            if spent {
                page.chunk.slots.clear();
                *head_dirty = true;
                head.removed.insert(at.1);
            }
        }
        for (hash, (known, dirty)) in &self.permits {
            if *dirty {
                let value = (!known.is_idle()).then(|| known.encode().into());
                self.writes.insert(key::permit(*hash), (value, None));
            }
        }
        self.news.ready.extend(ready.into_iter().filter(|(_, jobs)| *jobs > 0));
        Ok(trims.into_iter().collect())
    }
}

/// What a book has come to, before it is written.
pub struct Changes {
    heads: BTreeMap<PartitionId, (Head, bool)>,
    kinds: BTreeMap<PartitionId, (Vec<Arc<str>>, bool)>,
    pages: BTreeMap<(PartitionId, u64), Page>,
    read: BTreeMap<String, Option<Record>>,
    writes: BTreeMap<String, (Option<Bytes>, Option<Timestamp>)>,
    appends: BTreeMap<PartitionId, Appends>,
    trims: Vec<(PartitionId, u64)>,
    news: News,
}

impl Changes {
    /// Writes everything; tells what it is news of.
    pub fn write(mut self, tx: &mut dyn Tx) -> Result<News, Stop> {
        for (partition, appends) in self.appends {
            if !appends.block.is_empty() {
                tx.append(partition, &appends.block, Duration::ZERO);
            }
        }
        for (partition, start) in self.trims {
            tx.trim(partition, Offset(start))?;
        }
        for (at, page) in &self.pages {
            if page.dirty && !page.chunk.slots.is_empty() {
                let bytes = page.chunk.encode();
                tx.put_record(&key::chunk(at.0, at.1), bytes.into(), None)?;
            } else if page.dirty && page.stored {
                tx.remove_record(&key::chunk(at.0, at.1));
            }
        }
        for (partition, (head, dirty)) in &mut self.heads {
            if *dirty {
                tx.put_record(&key::head(*partition), head.encode().into(), None)?;
            }
        }
        for (partition, (kinds, dirty)) in &self.kinds {
            if *dirty {
                let bytes = serde_json::to_vec(kinds).unwrap_or_default();
                tx.put_record(&key::kinds(*partition), bytes.into(), None)?;
            }
        }
        for (key, (value, expires_at)) in self.writes {
            let old = self.read.get(&key).and_then(Option::as_ref);
            match value {
                Some(value) => drop(expiry::put(tx, &key, old, value, expires_at)?),
                None => match old {
                    Some(old) => expiry::remove(tx, &key, old),
                    None => tx.remove_record(&key),
                },
            }
        }
        Ok(self.news)
    }
}

/// Brings a head's counts up to date; tells whether they changed.
fn count(head: &mut Head, before: &Summary, after: &Summary) -> bool {
    for ((count, before), after) in head.counts.iter_mut().zip(before.counts).zip(after.counts) {
        *count = (*count + after).saturating_sub(before);
    }
    before.counts != after.counts
}

/// Brings a head's lanes up to date for one chunk; tells whether they changed.
fn place_in_lanes(head: &mut Head, number: u64, after: &Summary, newest: Option<Timestamp>) -> bool {
    let mut changed = false;
    for lane in &mut head.lanes {
        let oldest =
            after.lanes.iter().find(|(priority, kind, _)| (*priority, *kind) == (lane.priority, lane.kind));
        let (is_first, is_in) = (lane.chunks.first() == Some(number), lane.chunks.contains(number));
        let since = match oldest {
            None if is_in => {
                lane.chunks.remove(number);
                changed = true;
                // Chunks are in the order of time, so the next one is no older than what this one held.
                newest.filter(|_| is_first)
            }
            Some((_, _, since)) if is_first => Some(*since),
            _ => None,
        };
        if let Some(since) = since.filter(|since| *since != lane.since) {
            lane.since = since;
            changed = true;
        }
    }
    for (priority, kind, since) in &after.lanes {
        let known = head.lanes.iter_mut().find(|lane| (lane.priority, lane.kind) == (*priority, *kind));
        let lane = match known {
            Some(lane) => lane,
            None => {
                head.lanes.push(Lane {
                    priority: *priority,
                    kind: *kind,
                    since: *since,
                    chunks: Ranges::default(),
                });
                let Some(lane) = head.lanes.last_mut() else { continue };
                lane
            }
        };
        if !lane.chunks.contains(number) {
            if lane.chunks.first().is_none_or(|first| number < first) {
                lane.since = *since;
            }
            lane.chunks.insert(number);
            changed = true;
        }
    }
    changed
}

fn no_queue(partition: PartitionId) -> Halt {
    Error::NotFound(format!("there is no job queue with the number {partition}")).into()
}
