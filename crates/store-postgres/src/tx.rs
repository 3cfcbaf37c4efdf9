//! The transaction on what was fetched.
//!
//! A read that misses a row notes it and stops the decision. A write has no way to say so: it notes the row and
//! breaks the decision off by unwinding ([`Missing`]), which is caught right outside. Rules read before they write,
//! so that is rare.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use baton_store::{
    Appended, Block, Cache, Cursor, DeadLetter, DeadLetterKey, Durability, Error, Event, Group, GroupSpec,
    MessageView, Partition, Queue, QueueSpec, Record, Segment, SegmentHeader, Start, Stop, Tx,
};
use baton_types::{GroupId, LeaseId, Offset, PartitionId, QueueId, Timestamp, limits};
use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::clock::{moment_of, number_until};
use crate::memory::{Entry, Later, Line, Memory, Open, kept};
use crate::remembered::{Remembered, Run};
use crate::slot::Slot;
use crate::wanted::LetterPlace;

/// Rows fetched beyond what a page asked for, because some of them may have been removed or run out meanwhile.
const SPARE_ROWS: usize = 8;

/// From names to numbers, kept over groups: a partition never changes its number.
pub type Names = FxHashMap<QueueId, FxHashMap<Arc<str>, PartitionId>>;

/// What a write unwinds with that missed a row.
pub struct Missing;

fn break_off() -> ! {
    std::panic::resume_unwind(Box::new(Missing))
}

/// A look at memory, and the writes of one decision.
pub struct PostgresTx<'a> {
    pub memory: &'a mut Memory,
    pub names: &'a Names,
    pub remembered: &'a Remembered,
    pub cache: &'a Cache,
    /// Numbers that the decision has taken.
    pub ids: u64,
}

impl PostgresTx<'_> {
    fn write(&mut self, durability: Durability) {
        self.memory.changed.marks.any = true;
        self.memory.changed.marks.now |= durability == Durability::Now;
        self.memory.undo(|_| ());
    }

    /// A number for something new. A block of them was fetched before the decision.
    fn fresh_id(&mut self) -> u64 {
        match self.memory.ids.pop() {
            Some(id) => {
                self.ids += 1;
                self.memory.undo(move |memory| memory.ids.push(id));
                id
            }
            None => {
                self.memory.wanted.ids += 2 * self.ids + 1;
                break_off()
            }
        }
    }

    /// Makes sure that the partition can be changed.
    fn need(&mut self, id: PartitionId) {
        if !self.memory.has_all_of(id) {
            break_off();
        }
    }

    /// Makes sure that all partitions of a queue are here.
    fn need_whole(&mut self, queue: QueueId) {
        if !self.memory.all_of.contains(&queue) {
            self.memory.wanted.all_of.insert(queue);
            break_off();
        }
    }

    /// A partition that can be read, or `None` when there is none.
    fn row(&mut self, id: PartitionId) -> Result<Option<Partition>, Stop> {
        if !self.memory.partitions.contains_key(&id) {
            self.memory.wanted.partitions.insert(id);
            return Err(Stop::Load);
        }
        self.memory.relied.insert(id);
        Ok(self.memory.entry(id).map(|entry| entry.row.clone()))
    }

    /// Gives every partition of a queue a slot for a group that begins, or begins elsewhere.
    fn begin_group(&mut self, group: &Group) {
        let of_queue: Vec<PartitionId> =
            self.memory.entries_of(group.queue).map(|entry| entry.row.id).collect();
        for id in of_queue {
            let Some(entry) = self.memory.entry(id) else { continue };
            let old = entry.slots.get(&group.id);
            if old.is_some_and(|slot| slot.written) {
                continue;
            }
            let (row, existed) = (entry.row.clone(), old.is_some());
            let mut slot = Slot { line: old.and_then(|slot| slot.line), ..Slot::default() };
            slot.line = self.memory.place(&slot, group.start, &row, false);
            if existed || slot.line.is_some() {
                self.memory.put_slot(id, group.id, slot);
            }
        }
    }

    fn line(&mut self, group: GroupId) -> &mut Line {
        self.memory.lines.entry(group).or_default()
    }

    /// The offset of the first stored message at or after a moment between two offsets, in the database.
    fn stored_offset_at(
        &mut self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        at: Timestamp,
    ) -> Result<Offset, Stop> {
        let known = self.memory.moments.get(&partition).into_iter().flatten();
        let found = known.rev().find(|moment| moment.after < at && at <= moment.until);
        if let Some(moment) = found {
            return Ok(moment.offset.clamp(from, to));
        }
        self.memory.wanted.moments.insert((partition, from, to, at));
        Err(Stop::Load)
    }

    fn segment(&mut self, partition: PartitionId, offset: Offset) -> Result<Option<Segment>, Stop> {
        let young = self.memory.young(partition).find(|o| o.header.base <= offset && offset < o.end());
        if let Some(open) = young {
            let body = Bytes::copy_from_slice(&open.bytes[Segment::BODY_AT..]);
            return Ok(Some(Segment::new(partition, open.header, body)));
        }
        if let Some(segment) = self.cache.get(partition, offset) {
            return Ok(Some(segment));
        }
        let before = self.memory.segments.range((partition, Offset(0))..=(partition, offset)).next_back();
        if let Some((_, segment)) = before.filter(|(_, segment)| offset < segment.end()) {
            return Ok(Some(segment.clone()));
        }
        if self.memory.no_segment.contains(&(partition, offset)) {
            return Ok(None);
        }
        self.memory.wanted.segments.insert((partition, offset));
        Err(Stop::Load)
    }

    /// When the segment around an offset was stored.
    fn time_of(&mut self, partition: PartitionId, offset: Offset) -> Result<Option<Timestamp>, Stop> {
        let young = self.memory.young(partition).find(|o| o.header.base <= offset && offset < o.end());
        if let Some(open) = young {
            return Ok(Some(open.header.created_at));
        }
        match self.memory.times.get(&(partition, offset)) {
            Some(time) => Ok(*time),
            None => {
                self.memory.wanted.times.insert((partition, offset));
                Err(Stop::Load)
            }
        }
    }

    fn live(&self, record: &Record) -> bool {
        record.expires_at.is_none_or(|at| at > self.memory.now)
    }

    fn remember(&mut self, partition: PartitionId, first: Offset, block: &Block, window: Duration) {
        let until = self.memory.now.after(window);
        let ids: Vec<(u64, u32)> =
            block.hashes().zip(0u32..).filter_map(|(hash, at)| Some((hash?, at))).collect();
        if window.is_zero() || ids.is_empty() {
            return;
        }
        for (hash, distance) in &ids {
            let key = (partition, *hash);
            let old = self.memory.fresh_ids.insert(key, (first.plus((*distance).into()), until));
            self.memory.undo(move |memory| match old {
                Some(old) => drop(memory.fresh_ids.insert(key, old)),
                None => drop(memory.fresh_ids.remove(&key)),
            });
        }
        // What one group appends to a partition for the same window is one row.
        let last = self.memory.runs.iter().rposition(|(_, run)| run.partition == partition);
        let joins = last.filter(|last| self.memory.runs[*last].0 == window);
        if let Some(index) = joins {
            let run = &mut self.memory.runs[index].1;
            let (before, was_until) = (run.ids.len(), run.until);
            let shift = u32::try_from(first.since(run.first)).unwrap_or(u32::MAX);
            run.ids.extend(ids.into_iter().map(|(hash, distance)| (hash, shift.saturating_add(distance))));
            run.until = until;
            self.memory.undo(move |memory| {
                memory.runs[index].1.ids.truncate(before);
                memory.runs[index].1.until = was_until;
            });
        } else {
            self.memory.runs.push((window, Run { partition, first, until, ids }));
            self.memory.undo(|memory| drop(memory.runs.pop()));
        }
    }
}

impl Tx for PostgresTx<'_> {
    fn now(&self) -> Timestamp {
        self.memory.now
    }

    fn fresh_token(&mut self) -> u64 {
        self.memory.changed.marks.any = true;
        self.memory.clock.number().cast_unsigned()
    }

    fn admit(&self, _bytes: usize) -> Result<(), Stop> {
        Ok(())
    }

    fn record(&mut self, key: &str) -> Result<Option<Record>, Stop> {
        self.memory.relies_on_records = true;
        match self.memory.records.get(key) {
            Some(record) => Ok(record.clone().filter(|record| self.live(record))),
            None => {
                self.memory.wanted.records.insert(key.into());
                Err(Stop::Load)
            }
        }
    }

    fn put_record(&mut self, key: &str, value: Bytes, expires_at: Option<Timestamp>) -> Result<u64, Stop> {
        if value.len() > limits::RECORD_BYTES_MAX {
            return Err(Error::TooLarge { bytes: value.len(), max: limits::RECORD_BYTES_MAX }.into());
        }
        if !self.memory.knows_records() {
            return Err(Stop::Load);
        }
        // Higher than the one that is there, for the clock has seen the number of the last commit that wrote records.
        let version = self.fresh_token();
        self.write(Durability::Now);
        self.memory.put_record(key, Some(Record { value, version, expires_at }));
        Ok(version)
    }

    fn remove_record(&mut self, key: &str) {
        if !self.memory.knows_records() {
            break_off();
        }
        self.write(Durability::Now);
        self.memory.put_record(key, None);
    }

    fn records(
        &mut self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Record)>, Stop> {
        self.memory.relies_on_records = true;
        let place = (prefix.to_owned(), after.map(str::to_owned));
        let mut asked = limit.saturating_add(SPARE_ROWS);
        if let Some(page) = self.memory.record_pages.get(&place) {
            let end = page.end.as_ref().filter(|_| !page.all);
            let from = after.filter(|after| *after >= prefix);
            let here = self.memory.records.range(from.unwrap_or(prefix).to_owned()..);
            let mut found = Vec::new();
            for (key, record) in here.take_while(|(key, _)| key.starts_with(prefix)) {
                if found.len() >= limit || end.is_some_and(|end| key > end) {
                    break;
                }
                if let Some(record) = record
                    && from != Some(key)
                    && self.live(record)
                {
                    found.push((key.clone(), record.clone()));
                }
            }
            if found.len() >= limit || page.all {
                return Ok(found);
            }
            asked = asked.max(page.rows * 2 + limit);
        }
        let wanted = self.memory.wanted.record_pages.entry(place).or_default();
        *wanted = asked.max(*wanted);
        Err(Stop::Load)
    }

    fn queue(&mut self, name: &str) -> Result<Option<Arc<Queue>>, Stop> {
        Ok(self.memory.structure.queue(name))
    }

    fn queue_by_id(&mut self, id: QueueId) -> Result<Option<Arc<Queue>>, Stop> {
        Ok(self.memory.structure.queue_by_id(id))
    }

    fn queues(&mut self) -> Result<Vec<Arc<Queue>>, Stop> {
        Ok(self.memory.structure.queues())
    }

    fn put_queue(&mut self, spec: QueueSpec) -> Result<Arc<Queue>, Stop> {
        let old = self.memory.structure.queue(&spec.name);
        let queue = Arc::new(match &old {
            Some(old) => Queue { spec, ..(**old).clone() },
            None => Queue { id: QueueId(self.fresh_id()), created_at: self.now(), spec },
        });
        self.write(Durability::Now);
        let id = queue.id;
        self.memory.structure.put_queue(queue.clone());
        self.memory.changed.queues.insert(id);
        if old.is_none() {
            self.memory.all_of.insert(id);
        }
        self.memory.undo(move |memory| match old {
            Some(old) => drop(memory.structure.put_queue(old)),
            None => drop(memory.structure.remove_queue(id)),
        });
        Ok(queue)
    }

    fn remove_queue(&mut self, id: QueueId) {
        self.write(Durability::Now);
        let of_queue: Vec<PartitionId> = self.memory.entries_of(id).map(|entry| entry.row.id).collect();
        for partition in of_queue {
            self.memory.put_entry(partition, None);
        }
        let (queue, groups) = self.memory.structure.remove_queue(id);
        let Some(queue) = queue else { return };
        self.memory.changed.queues.insert(id);
        self.memory.changed.groups.extend(groups.iter().map(|group| group.id));
        self.memory.undo(move |memory| {
            memory.structure.put_queue(queue);
            for group in groups {
                memory.structure.put_group(group);
            }
        });
    }

    fn partition(&mut self, queue: QueueId, name: &str) -> Result<Option<Partition>, Stop> {
        if !self.memory.structure.has_queue(queue) {
            return Ok(None);
        }
        let name: Arc<str> = name.into();
        let key = (queue, name.clone());
        let known = match self.memory.names.get(&key) {
            // One that was created in a decision that was taken back is not there.
            Some(Some(id)) if matches!(self.memory.partitions.get(id), Some(None)) => Some(None),
            Some(known) => Some(*known),
            None => self.names.get(&queue).and_then(|names| names.get(&name)).map(|id| Some(*id)),
        };
        match known {
            Some(Some(id)) => self.row(id),
            Some(None) => Ok(None),
            None if self.memory.all_of.contains(&queue) => Ok(None),
            None => {
                self.memory.wanted.names.insert(key);
                Err(Stop::Load)
            }
        }
    }

    fn partition_by_id(&mut self, id: PartitionId) -> Result<Option<Partition>, Stop> {
        self.row(id)
    }

    fn partitions(
        &mut self,
        queue: QueueId,
        after: Option<PartitionId>,
        limit: usize,
    ) -> Result<Vec<Partition>, Stop> {
        if !self.memory.structure.has_queue(queue) {
            return Ok(Vec::new());
        }
        let mut ids: Vec<PartitionId> = if self.memory.all_of.contains(&queue) {
            self.memory.entries_of(queue).map(|entry| entry.row.id).collect()
        } else if let Some(page) = self.memory.pages.get(&(queue, after, limit)) {
            let fresh = self.memory.changed_of(queue).filter(|entry| entry.fresh).map(|entry| entry.row.id);
            page.iter().copied().chain(fresh).collect()
        } else {
            self.memory.wanted.pages.insert((queue, after, limit));
            return Err(Stop::Load);
        };
        ids.sort_unstable();
        ids.retain(|id| after.is_none_or(|after| *id > after));
        ids.truncate(limit);
        self.memory.relied.extend(&ids);
        Ok(ids.into_iter().filter_map(|id| self.memory.entry(id).map(|entry| entry.row.clone())).collect())
    }

    fn partition_count(&mut self, queue: QueueId) -> Result<u64, Stop> {
        if !self.memory.structure.has_queue(queue) {
            return Ok(0);
        }
        if self.memory.all_of.contains(&queue) {
            return Ok(self.memory.entries_of(queue).count() as u64);
        }
        let Some(stored) = self.memory.counts.get(&queue).copied() else {
            self.memory.wanted.counts.insert(queue);
            return Err(Stop::Load);
        };
        Ok(stored + self.memory.changed_of(queue).filter(|entry| entry.fresh).count() as u64)
    }

    fn create_partition(&mut self, queue: QueueId, name: &str) -> PartitionId {
        let id = PartitionId(self.fresh_id());
        let now = self.now();
        let row = Partition {
            id,
            queue,
            name: name.into(),
            start: Offset(0),
            tail: Offset(0),
            created_at: now,
            first_at: now,
            last_at: Timestamp::MIN,
            deleted: Default::default(),
        };
        self.write(Durability::Now);
        let key = (queue, row.name.clone());
        let old = self.memory.names.insert(key.clone(), Some(id));
        self.memory.undo(move |memory| match old {
            Some(old) => drop(memory.names.insert(key, old)),
            None => drop(memory.names.remove(&key)),
        });
        self.memory.put_entry(id, Some(Entry::fresh(row)));
        self.memory.changed.partitions.insert(id);
        self.memory.changed.created = true;
        id
    }

    fn append(&mut self, partition: PartitionId, block: &Block, remember: Duration) -> Appended {
        let now = self.now();
        self.write(Durability::Now);
        let nowhere = Appended { first: Offset(0), created_at: now };
        self.need(partition);
        let Some(entry) = self.memory.entry(partition) else { return nowhere };
        let (mut row, count) = (entry.row.clone(), block.len() as u64);
        let created_at = self.memory.open.get(&partition).map_or(now, |open| open.header.created_at);
        let (first, was_last_at) = (row.tail, row.last_at);
        if row.start == row.tail {
            row.first_at = created_at;
        }
        row.tail = first.plus(count);
        row.last_at = created_at;
        for group in self.memory.structure.groups(row.queue) {
            let old = self.memory.entry(partition).and_then(|entry| entry.slots.get(&group.id)).cloned();
            let existed = old.is_some();
            let mut slot = old.clone().unwrap_or_default();
            if let Start::At(at) = group.start
                && !slot.written
                && !slot.placed
            {
                if created_at < at {
                    continue;
                }
                if was_last_at < at {
                    // Everything before is older than where the group begins, so it begins exactly here.
                    (slot.placed, slot.cursor.next) = (true, first);
                }
            }
            slot.line = self.memory.place(&slot, group.start, &row, false);
            if !existed || old.as_ref() != Some(&slot) {
                self.memory.put_slot(partition, group.id, slot);
            }
        }
        let queue = row.queue;
        self.memory.put_row(row);
        let header = SegmentHeader { base: first, count: 0, created_at };
        let fresh = || Open { header, bytes: vec![0; Segment::BODY_AT] };
        let is_new = !self.memory.open.contains_key(&partition);
        let open = self.memory.open.entry(partition).or_insert_with(fresh);
        let (had, length) = (open.header.count, open.bytes.len());
        open.header.count += u32::try_from(count).unwrap_or(u32::MAX);
        open.bytes.extend_from_slice(block.bytes());
        self.memory.changed.marks.bytes += block.bytes().len();
        self.memory.undo(move |memory| {
            if is_new {
                memory.open.remove(&partition);
            } else if let Some(open) = memory.open.get_mut(&partition) {
                open.header.count = had;
                open.bytes.truncate(length);
            }
        });
        self.remember(partition, first, block, remember);
        self.memory.tell(Event::Appended { queue, partition });
        Appended { first, created_at }
    }

    fn remembered(&mut self, partition: PartitionId, hash: u64) -> Result<Option<Offset>, Stop> {
        if self.row(partition)?.is_none() {
            return Ok(None);
        }
        let fresh = self.memory.fresh_ids.get(&(partition, hash));
        if let Some((offset, _)) = fresh.filter(|(_, until)| *until > self.memory.now) {
            return Ok(Some(*offset));
        }
        let Some(entry) = self.memory.entry(partition) else { return Ok(None) };
        if entry.original.tail > Offset(0)
            && let Some(from) = self.remembered.missing(partition, entry.original.tail)
        {
            self.memory.wanted.remembered.insert(partition, from);
            return Err(Stop::Load);
        }
        Ok(self.remembered.get(partition, hash, self.memory.now))
    }

    fn message(&mut self, partition: PartitionId, offset: Offset) -> Result<Option<MessageView>, Stop> {
        let Some(row) = self.row(partition)? else { return Ok(None) };
        if offset < row.start || offset >= row.tail {
            return Ok(None);
        }
        match self.segment(partition, offset)? {
            Some(segment) => Ok(segment.message(offset).map_err(Error::from)?),
            None => Ok(None),
        }
    }

    fn offset_at(&mut self, partition: PartitionId, at: Timestamp) -> Result<Offset, Stop> {
        let Some(row) = self.row(partition)? else { return Ok(Offset(0)) };
        if row.last_at < at || row.start == row.tail {
            return Ok(row.tail);
        }
        if row.first_at >= at {
            return Ok(row.start);
        }
        let mut stored_end = row.tail;
        for young in self.memory.young(partition) {
            stored_end = stored_end.min(young.header.base);
            if young.header.created_at >= at {
                if young.header.base > stored_end {
                    return Ok(young.header.base.max(row.start));
                }
                break;
            }
        }
        let stored_end = stored_end.max(row.start);
        if row.start == stored_end {
            return Ok(stored_end);
        }
        self.stored_offset_at(partition, row.start, stored_end, at)
    }

    fn delete_message(&mut self, partition: PartitionId, offset: Offset) {
        self.write(Durability::Now);
        self.need(partition);
        let Some(entry) = self.memory.entry(partition) else { return };
        if (entry.row.start..entry.row.tail).contains(&offset) {
            let mut row = entry.row.clone();
            row.deleted.insert(offset);
            self.memory.put_row(row);
            self.memory.place_all(partition);
        }
    }

    fn trim(&mut self, partition: PartitionId, start: Offset) -> Result<(), Stop> {
        let Some(mut row) = self.row(partition)? else { return Ok(()) };
        let start = start.min(row.tail);
        if start <= row.start {
            return Ok(());
        }
        if !self.memory.has_all_of(partition) {
            return Err(Stop::Load);
        }
        let first_at = if start == row.tail { None } else { self.time_of(partition, start)? };
        self.write(Durability::Now);
        row.start = start;
        row.first_at = first_at.unwrap_or(row.first_at);
        row.deleted.remove_below(start);
        self.memory.put_row(row);
        self.memory.place_all(partition);
        let old = self.memory.trimmed.insert(partition, start);
        self.memory.undo(move |memory| match old {
            Some(old) => drop(memory.trimmed.insert(partition, old)),
            None => drop(memory.trimmed.remove(&partition)),
        });
        Ok(())
    }

    fn group(&mut self, queue: QueueId, name: &str) -> Result<Option<Arc<Group>>, Stop> {
        Ok(self.memory.structure.group(queue, name))
    }

    fn group_by_id(&mut self, id: GroupId) -> Result<Option<Arc<Group>>, Stop> {
        Ok(self.memory.structure.group_by_id(id))
    }

    fn groups(&mut self, queue: QueueId) -> Result<Vec<Arc<Group>>, Stop> {
        Ok(self.memory.structure.groups(queue))
    }

    fn put_group(&mut self, queue: QueueId, spec: &GroupSpec<'_>) -> Arc<Group> {
        let id = GroupId(self.fresh_id());
        let (name, start, subscribed_at) = (spec.name.into(), spec.start, spec.subscribed_at);
        let group = Arc::new(Group { id, queue, name, start, subscribed_at, conflation: spec.conflation });
        self.write(Durability::Now);
        if !self.memory.structure.has_queue(queue) {
            return group;
        }
        self.need_whole(queue);
        self.memory.close_open();
        let replaced = self.memory.structure.put_group(group.clone());
        self.memory.changed.groups.insert(id);
        self.memory.changed.groups.extend(replaced.as_ref().map(|replaced| replaced.id));
        let later = Some(Later { places: Vec::new(), all: true });
        self.memory.lines.insert(id, Line { covered: i64::MAX, later, ..Line::default() });
        self.memory.undo(move |memory| {
            memory.structure.remove_group(id);
            if let Some(replaced) = replaced {
                memory.structure.put_group(replaced);
            }
        });
        self.begin_group(&group);
        group
    }

    fn set_start(&mut self, id: GroupId, start: Start) {
        self.write(Durability::Now);
        let Some(old) = self.memory.structure.group_by_id(id) else { return };
        self.need_whole(old.queue);
        self.memory.close_open();
        let group = Arc::new(Group { start, ..(*old).clone() });
        self.memory.structure.put_group(group.clone());
        self.memory.changed.groups.insert(id);
        self.memory.undo(move |memory| drop(memory.structure.put_group(old)));
        self.begin_group(&group);
    }

    fn remove_group(&mut self, id: GroupId) {
        self.write(Durability::Now);
        let Some(group) = self.memory.structure.remove_group(id) else { return };
        self.memory.changed.groups.insert(id);
        self.memory.undo(move |memory| drop(memory.structure.put_group(group)));
    }

    fn cursor(&mut self, group: GroupId, partition: PartitionId) -> Result<Option<Cursor>, Stop> {
        if self.memory.structure.group_by_id(group).is_none() || self.row(partition)?.is_none() {
            return Ok(None);
        }
        let Some(entry) = self.memory.entry(partition) else { return Ok(None) };
        match entry.slots.get(&group) {
            Some(slot) => Ok(slot.written.then(|| slot.cursor.clone())),
            None if entry.complete => Ok(None),
            None => {
                self.memory.wanted.partitions.insert(partition);
                Err(Stop::Load)
            }
        }
    }

    fn put_cursor(&mut self, group: GroupId, partition: PartitionId, cursor: Cursor, durability: Durability) {
        self.write(durability);
        let Some(start) = self.memory.structure.group_by_id(group).map(|group| group.start) else { return };
        let known = |entry: &Entry| entry.held && (entry.complete || entry.slots.contains_key(&group));
        if !self.memory.entry(partition).is_some_and(known) {
            self.need(partition);
        }
        let Some(entry) = self.memory.entry(partition) else { return };
        let (row, old) = (entry.row.clone(), entry.slots.get(&group).cloned().unwrap_or_default());
        let mut slot = Slot { cursor, written: true, placed: false, line: old.line };
        slot.line = self.memory.place(&slot, start, &row, true);
        let (now, free) = (self.memory.now, slot.cursor.available_at);
        if slot.line.is_some() && free <= now && (old.line.is_none() || old.cursor.available_at > now) {
            self.memory.tell(Event::Freed { queue: row.queue, group, partition });
        }
        self.memory.put_slot(partition, group, slot);
    }

    fn candidates(&mut self, group: GroupId, limit: usize) -> Result<Vec<PartitionId>, Stop> {
        if self.memory.structure.group_by_id(group).is_none() || limit == 0 {
            return Ok(Vec::new());
        }
        let (until, now) = (number_until(self.memory.clock.last()), self.memory.now);
        let Line { covered, asked, is_carried, .. } = *self.line(group);
        let places = self.line(group).places.range(..=(until.min(covered), PartitionId(u64::MAX)));
        let places: Vec<PartitionId> = places.map(|(_, partition)| *partition).collect();
        let available = |id: &PartitionId| {
            let slot = self.memory.entry(*id).and_then(|entry| entry.slots.get(&group));
            slot.is_some_and(|slot| slot.cursor.available_at <= now)
        };
        let found: Vec<PartitionId> = places.into_iter().filter(available).take(limit).collect();
        if found.len() < limit && covered < until {
            let ready = self.memory.wanted.ready.entry(group).or_insert(asked);
            *ready += limit;
            self.memory.wanted.later.entry(group).or_insert(SPARE_ROWS);
            return Err(Stop::Load);
        }
        self.memory.relied.extend(&found);
        self.memory.relies_on_lines |= is_carried && found.len() < limit;
        Ok(found)
    }

    fn next_available(&mut self, group: GroupId) -> Result<Option<Timestamp>, Stop> {
        if self.memory.structure.group_by_id(group).is_none() {
            return Ok(None);
        }
        let until = number_until(self.memory.now);
        // What was carried over of those that are here is believed: if it is out of date, somebody looks again a moment
        // too late or in vain, and that is cheaper than comparing all who wait.
        let here = |id: &PartitionId| self.memory.partitions.contains_key(id);
        let line = self.memory.lines.get(&group);
        let Some(later) = line.and_then(|line| line.later.as_ref()) else {
            self.memory.wanted.later.entry(group).or_insert(SPARE_ROWS);
            return Err(Stop::Load);
        };
        self.memory.relies_on_lines |= line.is_some_and(|line| line.is_carried);
        let stored = later.places.iter().find(|(place, id)| *place > until && !here(id));
        if stored.is_none() && !later.all {
            let asked = later.places.len() * 2;
            self.memory.wanted.later.insert(group, asked);
            return Err(Stop::Load);
        }
        let now = self.memory.now;
        let waits = |id: &PartitionId| {
            let slot = self.memory.entry(*id).and_then(|entry| entry.slots.get(&group))?;
            Some(slot.cursor.available_at).filter(|at| *at > now)
        };
        let places = line.into_iter().flat_map(|line| line.places.range((until, PartitionId(u64::MAX))..));
        let here = places.filter_map(|(_, id)| waits(id)).next();
        Ok(stored.map(|(place, _)| moment_of(*place)).into_iter().chain(here).min())
    }

    fn leased(&mut self, lease: LeaseId) -> Result<Vec<(GroupId, PartitionId)>, Stop> {
        let Some(stored) = self.memory.leases.get(&lease).cloned() else {
            self.memory.wanted.leases.insert(lease);
            return Err(Stop::Load);
        };
        let mut all = true;
        for partition in &stored {
            all &= self.memory.has_all_of(*partition);
        }
        if !all {
            return Err(Stop::Load);
        }
        let mut held = Vec::new();
        let changed = self.memory.changed.partitions.iter().copied();
        for id in stored.into_iter().chain(changed).collect::<BTreeSet<_>>() {
            let Some(entry) = self.memory.entry(id) else { continue };
            for (group, slot) in &entry.slots {
                let holds = slot.cursor.lease.as_ref().is_some_and(|held| held.id == lease);
                if holds && self.memory.structure.group_by_id(*group).is_some() {
                    held.push((*group, id));
                }
            }
        }
        held.sort_unstable();
        Ok(held)
    }

    fn backlog(&mut self, group: GroupId) -> Result<u64, Stop> {
        let Some(row) = self.memory.structure.group_by_id(group) else { return Ok(0) };
        let unfinished =
            |entry: &Entry| entry.slots.get(&group).map_or(0, |slot| slot.unfinished(row.start, &entry.row));
        if self.memory.all_of.contains(&row.queue) {
            return Ok(self.memory.entries_of(row.queue).map(unfinished).sum());
        }
        let Some(stored) = self.memory.backlogs.get(&group).copied() else {
            self.memory.wanted.backlogs.insert(group);
            return Err(Stop::Load);
        };
        let (mut more, mut less) = (0, 0);
        for entry in self.memory.changed_of(row.queue) {
            more += unfinished(entry);
            less += entry.original_unfinished.get(&group).copied().unwrap_or(0);
        }
        Ok((stored + more).saturating_sub(less))
    }

    fn kept(&mut self, queue: QueueId) -> Result<u64, Stop> {
        if !self.memory.structure.has_queue(queue) {
            return Ok(0);
        }
        if self.memory.all_of.contains(&queue) {
            return Ok(self.memory.entries_of(queue).map(|entry| kept(&entry.row)).sum());
        }
        let Some(stored) = self.memory.kept.get(&queue).copied() else {
            self.memory.wanted.kept.insert(queue);
            return Err(Stop::Load);
        };
        let now: u64 = self.memory.changed_of(queue).map(|entry| kept(&entry.row)).sum();
        let stored_before = self.memory.changed_of(queue).filter(|entry| !entry.fresh);
        let before: u64 = stored_before.map(|entry| kept(&entry.original)).sum();
        Ok((stored + now).saturating_sub(before))
    }

    fn put_dead_letter(&mut self, letter: DeadLetter) {
        self.write(Durability::Now);
        self.memory.put_letter(letter.key.clone(), Some(letter));
    }

    fn dead_letter(&mut self, key: &DeadLetterKey) -> Result<Option<DeadLetter>, Stop> {
        if !self.memory.structure.has_queue(key.queue) {
            return Ok(None);
        }
        match self.memory.letters.get(key) {
            Some(letter) => Ok(letter.clone()),
            None => {
                self.memory.wanted.letters.insert(key.clone());
                Err(Stop::Load)
            }
        }
    }

    fn remove_dead_letter(&mut self, key: &DeadLetterKey) {
        self.write(Durability::Now);
        self.memory.put_letter(key.clone(), None);
    }

    fn dead_letters(
        &mut self,
        queue: QueueId,
        after: Option<&DeadLetter>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, Stop> {
        if !self.memory.structure.has_queue(queue) {
            return Ok(Vec::new());
        }
        let place_of = |letter: &DeadLetter| LetterPlace::new(&letter.key, letter.failed_at);
        let after = after.map(place_of);
        let key = (queue, after.clone());
        let mut asked = limit.saturating_add(SPARE_ROWS);
        if let Some(page) = self.memory.letter_pages.get(&key) {
            let here = self.memory.letters.values().flatten().filter(|letter| letter.key.queue == queue);
            let mut found: Vec<(LetterPlace, &DeadLetter)> = here.map(|l| (place_of(l), l)).collect();
            found.retain(|(place, _)| after.as_ref().is_none_or(|after| place > after));
            if !page.all {
                found.retain(|(place, _)| page.end.as_ref().is_some_and(|end| place <= end));
            }
            found.sort_by(|(one, _), (other, _)| one.cmp(other));
            if found.len() >= limit || page.all {
                return Ok(found.into_iter().take(limit).map(|(_, letter)| letter.clone()).collect());
            }
            asked = asked.max(page.rows * 2 + limit);
        }
        let wanted = self.memory.wanted.letter_pages.entry(key).or_default();
        *wanted = asked.max(*wanted);
        Err(Stop::Load)
    }
}
