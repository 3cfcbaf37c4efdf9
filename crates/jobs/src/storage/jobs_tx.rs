//! The unit of work: what one decision reads of job queues, and what it changes, as one commit.
//!
//! A rule reads slots and heads here and changes slots; the unit of work derives lanes, counts, the due index and
//! garbage chunks. Always: nothing is written before [`JobsTx::commit`], so a rule that refuses leaves no trace;
//! everything is read before the first write, as [`Tx`] demands. Not here: what a transition means
//! (`rules::state_machine`). Start at [`JobsTx::slot`].

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_store::{Error as StoreError, MessageBlock, NewMessage, Record, Tx, TxError};
use baton_types::{Offset, PartitionId, Timestamp};
use bytes::Bytes;

use crate::model::chunk::Chunk;
use crate::model::codec::Writer;
use crate::model::error::Error;
use crate::model::ids::{CHUNK, JobId, JobPosition};
use crate::model::limits::KINDS_MAX;
use crate::model::policy::Policy;
use crate::model::queue_head::Head;
use crate::model::slot::Slot;
use crate::model::spec::Spec;
use crate::model::state::State;
use crate::model::{keys, payload};
use crate::storage::abort::Abort;
use crate::storage::changes::{Appends, Changes};
use crate::storage::chunk_cache::{CachedChunk, ChunkCache};
use crate::storage::commit_effects::CommitEffects;
use crate::storage::concurrency_keys::PermitPages;
use crate::storage::derived::ChunkSummary;

/// See the module.
pub struct JobsTx<'t> {
    pub(super) tx: &'t mut dyn Tx,
    /// Defaults for jobs.
    pub policy: Policy,
    pub(super) heads: BTreeMap<PartitionId, (Head, bool)>,
    pub(super) kinds: BTreeMap<PartitionId, (Vec<Arc<str>>, bool)>,
    pub(super) chunks: ChunkCache,
    pub(super) permits: PermitPages,
    pub(super) read: BTreeMap<String, Option<Record>>,
    pub(super) writes: BTreeMap<String, (Option<Bytes>, Option<Timestamp>)>,
    pub(super) appends: BTreeMap<PartitionId, Appends>,
    /// A buffer in which payloads are encoded.
    pub(crate) scratch: Writer,
    /// Journal entries besides changes of jobs, each with its slice.
    pub(super) journal_entries: Vec<serde_json::Value>,
    /// The effects of the commit.
    pub effects: CommitEffects,
}

impl<'t> JobsTx<'t> {
    /// Starts a unit of work.
    pub fn new(tx: &'t mut dyn Tx, policy: Policy) -> Self {
        Self {
            tx,
            policy,
            heads: BTreeMap::new(),
            kinds: BTreeMap::new(),
            chunks: ChunkCache::default(),
            permits: PermitPages::default(),
            read: BTreeMap::new(),
            writes: BTreeMap::new(),
            appends: BTreeMap::new(),
            scratch: Writer::default(),
            journal_entries: Vec::new(),
            effects: CommitEffects::default(),
        }
    }

    /// The store's time.
    pub fn now(&self) -> Timestamp {
        self.tx.now()
    }

    /// Refuses `bytes` more, if the store is full.
    pub fn admit(&self, bytes: usize) -> Result<(), Abort> {
        Ok(self.tx.admit_bytes(bytes)?)
    }

    // Records.

    /// A record as it will be after the commit.
    pub fn record(&mut self, key: &str) -> Result<Option<Bytes>, Abort> {
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

    /// Prefetches records.
    pub fn prefetch<'k>(&mut self, keys: impl IntoIterator<Item = &'k str>) -> Result<(), Abort> {
        let mut missing = None;
        for key in keys {
            match self.record(key) {
                Ok(_) => {}
                Err(Abort::Stop(TxError::RowsMissing)) => missing = Some(Abort::Stop(TxError::RowsMissing)),
                Err(other) => return Err(other),
            }
        }
        missing.map_or(Ok(()), Err)
    }

    /// Records as they are stored, without the changes of this unit of work.
    pub fn stored(
        &mut self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Record)>, Abort> {
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

    pub fn head(&mut self, partition: PartitionId) -> Result<&Head, Abort> {
        self.load_head(partition)?;
        self.heads.get(&partition).map(|(head, _)| head).ok_or_else(|| no_queue(partition))
    }

    /// The head of a queue, to change it.
    pub fn head_mut(&mut self, partition: PartitionId) -> Result<&mut Head, Abort> {
        self.load_head(partition)?;
        let (head, dirty) = self.heads.get_mut(&partition).ok_or_else(|| no_queue(partition))?;
        *dirty = true;
        Ok(head)
    }

    pub(super) fn load_head(&mut self, partition: PartitionId) -> Result<(), Abort> {
        if !self.heads.contains_key(&partition) {
            let value = self.record(&keys::head(partition))?.ok_or_else(|| no_queue(partition))?;
            self.heads.insert(partition, (Head::decode(&value)?, false));
        }
        Ok(())
    }

    /// The names of a queue's job types, by number.
    pub fn kinds(&mut self, partition: PartitionId) -> Result<&[Arc<str>], Abort> {
        if !self.kinds.contains_key(&partition) {
            let kinds = match self.record(&keys::kinds(partition))? {
                Some(value) => serde_json::from_slice(&value)
                    .map_err(|error| StoreError::Corrupt(format!("job types cannot be read: {error}")))?,
                None => Vec::new(),
            };
            self.kinds.insert(partition, (kinds, false));
        }
        Ok(self.kinds.get(&partition).map_or(&[], |(kinds, _)| kinds))
    }

    /// The number of a job type; a new type gets one.
    pub fn kind(&mut self, partition: PartitionId, name: &str) -> Result<u32, Abort> {
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

    // Slots.

    /// Prefetches the chunks of several jobs.
    pub fn prefetch_slots(&mut self, positions: impl IntoIterator<Item = JobPosition>) -> Result<(), Abort> {
        let mut chunks: Vec<_> = positions.into_iter().map(JobPosition::chunk).collect();
        chunks.sort_unstable();
        chunks.dedup();
        self.prefetch_chunks(&chunks)
    }

    /// Prefetches chunks and the heads of their queues.
    pub fn prefetch_chunks(&mut self, chunks: &[(PartitionId, u64)]) -> Result<(), Abort> {
        let missing = chunks.iter().filter(|chunk| !self.chunks.contains(**chunk) && !self.is_new(**chunk));
        let mut keys: Vec<String> =
            missing.map(|(partition, number)| keys::chunk(*partition, *number)).collect();
        let mut last = None;
        for (partition, _) in chunks {
            if last.replace(*partition) != Some(*partition) && !self.heads.contains_key(partition) {
                keys.push(keys::head(*partition));
            }
        }
        self.prefetch(keys.iter().map(String::as_str))
    }

    /// Whether a chunk is beyond the end of its queue and so does not exist yet. This saves a lookup for each new
    /// chunk of a batch.
    fn is_new(&self, at: (PartitionId, u64)) -> bool {
        self.appends.get(&at.0).is_some_and(|appends| at.1 * CHUNK >= appends.first)
    }

    fn page(&mut self, at: (PartitionId, u64)) -> Result<&mut CachedChunk, Abort> {
        let index = match self.chunks.find(at) {
            Ok(index) => index,
            Err(index) => {
                let stored = if self.is_new(at) { None } else { self.record(&keys::chunk(at.0, at.1))? };
                let chunk = stored.as_ref().map(|value| Chunk::decode(value)).transpose()?;
                let (stored, chunk) = (chunk.is_some(), chunk.unwrap_or_default());
                let before = ChunkSummary::from_chunk(&chunk);
                self.chunks.insert(
                    index,
                    at,
                    CachedChunk { chunk, before, stored, dirty: false, swept: false },
                );
                index
            }
        };
        self.chunks.get_mut(index).ok_or_else(|| StoreError::Corrupt("a chunk is missing".into()).into())
    }

    /// Whether the unit of work has read a chunk.
    pub fn has_chunk(&self, at: (PartitionId, u64)) -> bool {
        self.chunks.contains(at)
    }

    /// The slots of a chunk.
    pub fn chunk(&mut self, at: (PartitionId, u64)) -> Result<&[Slot], Abort> {
        Ok(&self.page(at)?.chunk.slots)
    }

    /// The slots of a chunk, and the time of its entry in the due index.
    pub fn chunk_as_stored(
        &mut self,
        at: (PartitionId, u64),
    ) -> Result<(Vec<Slot>, Option<Timestamp>), Abort> {
        let chunk = &self.page(at)?.chunk;
        Ok((chunk.slots.clone(), chunk.indexed))
    }

    /// The slot of a job; `None` when it was deleted or never existed.
    pub fn slot(&mut self, position: JobPosition) -> Result<Option<&Slot>, Abort> {
        let slot = self.page(position.chunk())?.chunk.slots.get(position.index());
        Ok(slot.filter(|slot| slot.state != State::Gone))
    }

    /// The slot at an offset, to change it; also one without a job.
    pub fn slot_mut(&mut self, position: JobPosition) -> Result<&mut Slot, Abort> {
        let page = self.page(position.chunk())?;
        page.dirty = true;
        let slot = page.chunk.slots.get_mut(position.index());
        slot.ok_or_else(|| StoreError::Corrupt(format!("there is no slot at {position:?}")).into())
    }

    /// Records that watchers of a job may want a wake-up.
    pub fn notify_watchers(&mut self, position: JobPosition) {
        self.effects.changed.push(position);
    }

    /// The position of a job, if it exists under this id.
    pub fn find(&mut self, id: JobId) -> Result<Option<JobPosition>, Abort> {
        let Some(position) = id.position() else { return Ok(None) };
        let found = self.slot(position)?.is_some_and(|slot| JobId::new(slot.created_at, position) == id);
        Ok(found.then_some(position))
    }

    /// The position of a job, or an error.
    pub fn expect(&mut self, id: JobId) -> Result<JobPosition, Abort> {
        self.find(id)?.ok_or_else(|| Error::no_job(id).into())
    }

    /// The id of the job at an offset.
    pub fn id(&mut self, position: JobPosition) -> Result<JobId, Abort> {
        let created_at = self.slot(position)?.map(|slot| slot.created_at);
        Ok(JobId::new(created_at.unwrap_or_default(), position))
    }

    /// Has a chunk's entry in the due index recomputed.
    pub fn recompute_due(&mut self, at: (PartitionId, u64)) -> Result<(), Abort> {
        let page = self.page(at)?;
        (page.dirty, page.swept) = (true, true);
        Ok(())
    }

    /// Has the lanes of a chunk recomputed, because it was searched for dispatched jobs.
    pub fn recompute_lanes(&mut self, at: (PartitionId, u64)) -> Result<(), Abort> {
        self.page(at)?.dirty = true;
        Ok(())
    }

    // Messages.

    /// The specification of a job and its arguments.
    pub fn spec(&mut self, position: JobPosition) -> Result<(Spec, Bytes), Abort> {
        let at = self.slot(position)?.and_then(|slot| slot.spec).unwrap_or(position.offset);
        let message = self.tx.message(position.partition, at)?;
        let message =
            message.ok_or_else(|| StoreError::Corrupt(format!("the job at {position:?} is missing")))?;
        Ok(payload::decode(&message.payload)?)
    }

    fn next_offset(&mut self, partition: PartitionId) -> Result<u64, Abort> {
        if let Some(appends) = self.appends.get(&partition) {
            return Ok(appends.first + appends.block.len() as u64);
        }
        let row = self.tx.partition_by_id(partition)?.ok_or_else(|| no_queue(partition))?;
        self.appends.insert(partition, Appends { first: row.tail.0, block: MessageBlock::default() });
        Ok(row.tail.0)
    }

    fn append(&mut self, partition: PartitionId, payload: &[u8]) -> Result<u64, Abort> {
        let offset = self.next_offset(partition)?;
        if let Some(appends) = self.appends.get_mut(&partition) {
            appends.block.push(&NewMessage { payload, ..NewMessage::default() });
        }
        Ok(offset)
    }

    /// Adds a job to a queue: its specification and its slot.
    pub fn add(&mut self, partition: PartitionId, payload: &[u8], slot: Slot) -> Result<JobPosition, Abort> {
        let position = JobPosition::new(partition, self.next_offset(partition)?);
        let page = self.page(position.chunk())?;
        if page.chunk.slots.is_empty() {
            page.chunk.slots.reserve_exact(CHUNK as usize);
        }
        // A message without a slot belongs to a rule that did not finish: its slot is empty.
        while page.chunk.slots.len() < position.index() {
            page.chunk.slots.push(Slot::gone());
        }
        // The rows are of different snapshots. The store discards this run.
        if page.chunk.slots.len() > position.index() {
            return Err(StoreError::Corrupt(format!("a job is already at {position:?}")).into());
        }
        page.chunk.slots.push(slot);
        page.dirty = true;
        self.append(partition, payload)?;
        Ok(position)
    }

    /// The position of the next job of a queue.
    pub fn next_position(&mut self, partition: PartitionId) -> Result<JobPosition, Abort> {
        Ok(JobPosition::new(partition, self.next_offset(partition)?))
    }

    /// Appends an entry to the history of a queue.
    pub fn add_history(&mut self, partition: PartitionId, payload: &[u8]) -> Result<Offset, Abort> {
        let history = self.head(partition)?.history;
        self.append(history, payload).map(Offset)
    }

    // The end.

    /// Writes everything. Returns the effects.
    pub fn commit(mut self) -> Result<CommitEffects, TxError> {
        let trims = self.settled()?;
        let Self { tx, heads, kinds, chunks, read, writes, appends, effects, .. } = self;
        Changes { heads, kinds, chunks, read, writes, appends, trims, effects }.write(tx)
    }

    /// The changes to write, for a decision that has other writes, too.
    pub fn into_changes(mut self) -> Result<Changes, TxError> {
        let trims = self.settled()?;
        let Self { heads, kinds, chunks, read, writes, appends, effects, .. } = self;
        Ok(Changes { heads, kinds, chunks, read, writes, appends, trims, effects })
    }
}

fn no_queue(partition: PartitionId) -> Abort {
    Error::NotFound(format!("there is no job queue with the number {partition}")).into()
}
