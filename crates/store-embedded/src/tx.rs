//! The transaction on memory.

use std::sync::Arc;
use std::time::Duration;

use baton_store::{
    Appended, Cursor, DeadLetter, DeadLetterKey, Durability, Error, Group, GroupSpec, GroupStart,
    MessageBlock, Partition, Queue, QueueSpec, Record, RememberedId, Segment, SegmentHeader, StoreLimits,
    StoredMessage, Tx, TxError,
};
use baton_types::{GroupId, IdHash, LeaseId, Offset, PartitionId, QueueId, Timestamp, limits};
use bytes::{Buf, BufMut, Bytes};

use crate::filling::Run;
use crate::remembered::IdRun;
use crate::tables::{corrupt, group_value, number_key, queue_value, segment_key};
use crate::writer::Writer;

/// Segments that a trim removes with its own commit. More are cleared away later, a little at a time.
const TRIM_ROWS_MAX: usize = 5_000;

/// A look at memory, and the writes of one operation.
pub struct EmbeddedTx<'a> {
    writer: &'a mut Writer,
    /// Whether the operation has written anything.
    pub wrote: bool,
    /// Whether the operation has written something that must be on disk before it is answered.
    pub wrote_now: bool,
    /// The group that must be on disk before anything that was read may be told.
    pub gate: u64,
    /// Whether the operation may write when little of the disk is left.
    uses_reserve: bool,
}

impl<'a> EmbeddedTx<'a> {
    pub fn new(writer: &'a mut Writer) -> Self {
        Self { writer, wrote: false, wrote_now: false, gate: 0, uses_reserve: false }
    }

    fn fresh_id(&mut self) -> u64 {
        let id = self.writer.counters.next_id;
        self.writer.counters.next_id += 1;
        id
    }

    fn see(&mut self, partition: PartitionId) {
        self.gate = self.gate.max(self.writer.hot.changed_in(partition));
    }

    /// A queue, a group or the absence of one is being told.
    fn see_structure(&mut self) {
        self.gate = self.gate.max(self.writer.structure_changed_in);
    }

    /// Something that follows from many writes is being told.
    fn see_all(&mut self) {
        let group = &self.writer.group;
        self.gate = self.gate.max(if group.sync { group.seq } else { group.seq - 1 });
    }

    fn write_now(&mut self) {
        (self.wrote, self.wrote_now) = (true, true);
    }

    fn change_structure(&mut self) {
        self.write_now();
        self.writer.shared.context.change_structure();
        self.writer.structure_changed_in = self.writer.group.seq;
    }

    fn change(&mut self, partition: PartitionId) {
        self.write_now();
        self.writer.dirty_partitions.insert(partition);
        self.writer.hot.mark_changed(partition, self.writer.group.seq);
    }

    /// From now on appends get a time of their own, so that whoever starts "now" misses nothing and gets
    /// nothing older.
    fn close_open_segments(&mut self) {
        self.writer.filling.close();
    }

    /// Segments that the engine does not know of yet, oldest first.
    fn young(&self, partition: PartitionId) -> impl Iterator<Item = Young<'_>> {
        let in_flight = self.writer.in_flight(partition);
        let filling = self.writer.filling.runs(partition);
        in_flight.map(Young::InFlight).chain(filling.map(Young::Filling))
    }

    fn letters_of(&mut self, queue: QueueId) -> bool {
        self.see_structure();
        self.writer.hot.queue_by_id(queue).is_some()
    }
}

/// A segment that the engine does not know of yet.
enum Young<'a> {
    /// Of a group that was handed over.
    InFlight(&'a Segment),
    /// In the filling group.
    Filling(&'a Run),
}

impl Young<'_> {
    fn header(&self) -> &SegmentHeader {
        match self {
            Self::InFlight(segment) => &segment.header,
            Self::Filling(run) => &run.header,
        }
    }

    fn end(&self) -> Offset {
        self.header().base.plus(self.header().count.into())
    }
}

impl Tx for EmbeddedTx<'_> {
    fn now(&self) -> Timestamp {
        self.writer.last_now
    }

    fn fresh_token(&mut self) -> u64 {
        self.writer.counters.next_token(&mut self.writer.tokens)
    }

    fn admit_bytes(&self, _bytes: usize) -> Result<(), TxError> {
        self.writer.shared.check_space();
        Ok(self.writer.shared.space.admit()?)
    }

    fn admit_update(&self) -> Result<(), TxError> {
        if self.wrote || self.uses_reserve {
            return Ok(());
        }
        self.writer.shared.check_space();
        Ok(self.writer.shared.space.admit_update()?)
    }

    fn use_reserve(&mut self) {
        self.uses_reserve = true;
    }

    fn record(&mut self, key: &str) -> Result<Option<Record>, TxError> {
        let (value, gate) = self.writer.records.get(&self.writer.shared.tables.records, key.as_bytes())?;
        self.gate = self.gate.max(gate);
        let record = value.map(read_record).transpose()?;
        Ok(record.filter(|record| record.expires_at.is_none_or(|at| at > self.now())))
    }

    fn put_record(&mut self, key: &str, value: Bytes, expires_at: Option<Timestamp>) -> Result<u64, TxError> {
        if value.len() > limits::RECORD_BYTES_MAX {
            return Err(Error::TooLarge { bytes: value.len(), max: limits::RECORD_BYTES_MAX }.into());
        }
        self.admit_update()?;
        let version = self.writer.counters.next_version;
        self.writer.counters.next_version += 1;
        self.write_now();
        let row = record_value(&Record { value, version, expires_at });
        self.writer.records.put(self.writer.group.seq, key.as_bytes().to_vec(), Some(row));
        Ok(version)
    }

    fn remove_record(&mut self, key: &str) {
        self.write_now();
        self.writer.records.put(self.writer.group.seq, key.as_bytes().to_vec(), None);
    }

    fn records(
        &mut self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Record)>, TxError> {
        let now = self.now();
        let live = |_: &[u8], value: &Bytes| {
            read_record(value.clone()).is_ok_and(|record| record.expires_at.is_none_or(|at| at > now))
        };
        let table = &self.writer.shared.tables.records;
        let (found, gate) =
            self.writer.records.scan(table, prefix.as_bytes(), after.map(str::as_bytes), limit, live)?;
        self.gate = self.gate.max(gate);
        let read = |(key, value): (Vec<u8>, Bytes)| {
            let key = String::from_utf8(key).map_err(|_| corrupt("record"))?;
            Ok((key, read_record(value)?))
        };
        Ok(found.into_iter().map(read).collect::<Result<_, Error>>()?)
    }

    fn limits(&self) -> StoreLimits {
        self.writer.shared.context.options.bounds
    }

    fn queue(&mut self, name: &str) -> Result<Option<Arc<Queue>>, TxError> {
        self.see_structure();
        Ok(self.writer.hot.queue(name))
    }

    fn queue_by_id(&mut self, id: QueueId) -> Result<Option<Arc<Queue>>, TxError> {
        self.see_structure();
        Ok(self.writer.hot.queue_by_id(id))
    }

    fn queues(&mut self) -> Result<Vec<Arc<Queue>>, TxError> {
        self.see_structure();
        Ok(self.writer.hot.queues())
    }

    fn queue_count(&mut self) -> Result<u64, TxError> {
        self.see_structure();
        Ok(self.writer.hot.queue_count())
    }

    fn put_queue(&mut self, spec: QueueSpec) -> Result<Arc<Queue>, TxError> {
        self.admit_update()?;
        let queue = match self.writer.hot.queue(&spec.name) {
            Some(old) => Queue { spec, ..(*old).clone() },
            None => Queue { id: QueueId(self.fresh_id()), created_at: self.now(), spec },
        };
        let queue = Arc::new(queue);
        self.change_structure();
        self.writer.hot.put_queue(queue.clone());
        let shared = self.writer.shared.clone();
        self.writer.put(&shared.tables.queues, number_key(queue.id.0), queue_value(&queue));
        Ok(queue)
    }

    fn remove_queue(&mut self, id: QueueId) {
        self.change_structure();
        let (partitions, groups) = self.writer.hot.remove_queue(id);
        let shared = self.writer.shared.clone();
        self.writer.remove(&shared.tables.queues, number_key(id.0).to_vec());
        for group in &groups {
            self.writer.remove(&shared.tables.groups, number_key(group.0).to_vec());
        }
        for partition in &partitions {
            // What is not written yet need not be.
            self.writer.dirty_partitions.remove(partition);
            shared.messages.cache.remove_before(*partition, Offset(u64::MAX));
        }
        let hot = &self.writer.hot;
        self.writer.filling.retain(|partition| hot.has_partition(partition));
        self.writer.leftovers.partitions.extend(partitions);
        self.writer.leftovers.groups.extend(groups);
        self.writer.leftovers.queues.push(id);
    }

    fn partition(&mut self, queue: QueueId, name: &str) -> Result<Option<Partition>, TxError> {
        self.see_structure();
        let id = self.writer.hot.partition_id(queue, name);
        id.map_or(Ok(None), |id| self.partition_by_id(id))
    }

    fn partition_id(&mut self, queue: QueueId, name: &str) -> Result<Option<PartitionId>, TxError> {
        self.see_structure();
        let id = self.writer.hot.partition_id(queue, name);
        if let Some(id) = id {
            self.see(id);
        }
        Ok(id)
    }

    fn partition_ids(&mut self, queue: QueueId, names: &[&str]) -> Result<Vec<Option<PartitionId>>, TxError> {
        self.see_structure();
        let found = self.writer.hot.partition_ids(queue, names);
        found.iter().flatten().for_each(|id| self.see(*id));
        Ok(found)
    }

    fn partition_by_id(&mut self, id: PartitionId) -> Result<Option<Partition>, TxError> {
        self.see(id);
        Ok(self.writer.hot.partition(id))
    }

    fn partitions(
        &mut self,
        queue: QueueId,
        after: Option<PartitionId>,
        limit: usize,
    ) -> Result<Vec<Partition>, TxError> {
        self.see_all();
        let members = self.writer.hot.members(queue, after, limit);
        Ok(members.into_iter().filter_map(|id| self.writer.hot.partition(id)).collect())
    }

    fn partition_count(&mut self, queue: QueueId) -> Result<u64, TxError> {
        self.see_all();
        Ok(self.writer.hot.partition_count(queue))
    }

    fn has_partition_room(&mut self, queue: QueueId, partitions: u64) -> Result<bool, TxError> {
        self.see_all();
        Ok(self.writer.hot.partition_count(queue).saturating_add(partitions) <= self.limits().partitions)
    }

    fn create_partition(&mut self, queue: QueueId, name: &str) -> PartitionId {
        let id = PartitionId(self.fresh_id());
        let now = self.now();
        self.writer.hot.put_partition(Partition {
            id,
            queue,
            name: name.into(),
            start: Offset(0),
            tail: Offset(0),
            created_at: now,
            first_at: now,
            last_at: Timestamp::MIN,
            deleted: Default::default(),
        });
        self.change(id);
        id
    }

    fn append(&mut self, partition: PartitionId, block: &MessageBlock, remember: Duration) -> Appended {
        let (now, seq, count) = (self.now(), self.writer.group.seq, block.len() as u64);
        let writer = &mut *self.writer;
        let created_at = writer.filling.created_at(partition).unwrap_or(now);
        let events = &mut writer.events;
        let (first, placed) =
            writer.hot.append(partition, count, created_at, now, seq, |event| events.push(event));
        writer.dirty_cursors.extend(placed.into_iter().map(|group| (group, partition)));
        writer.filling.add(partition, first, created_at, block);
        writer.group_bytes += block.bytes().len();
        if !remember.is_zero() && block.hashes().any(|hash| hash.is_some()) {
            let run = IdRun { partition, first, created_at: Some(created_at) };
            writer.remembered.insert(now, remember, run, block.hashes());
        }
        self.write_now();
        Appended { first, created_at }
    }

    fn find_remembered(
        &mut self,
        partition: PartitionId,
        id: IdHash,
    ) -> Result<Option<RememberedId>, TxError> {
        self.see(partition);
        Ok(self.writer.remembered.get(self.now(), partition, id))
    }

    fn find_all_remembered(
        &mut self,
        partition: PartitionId,
        block: &MessageBlock,
    ) -> Result<Vec<(usize, RememberedId)>, TxError> {
        self.see(partition);
        Ok(self.writer.remembered.get_all(self.now(), partition, block.hashes()))
    }

    fn message(&mut self, partition: PartitionId, offset: Offset) -> Result<Option<StoredMessage>, TxError> {
        self.see(partition);
        if self.writer.hot.start(partition).is_none_or(|start| offset < start) {
            return Ok(None);
        }
        let young = self.young(partition).find(|s| s.header().base <= offset && offset < s.end());
        let young = young.map(|young| match young {
            Young::InFlight(segment) => segment.clone(),
            Young::Filling(run) => self.writer.filling.segment(run),
        });
        match young {
            Some(segment) => Ok(segment.message(offset).map_err(Error::from)?),
            None => Ok(self.writer.shared.messages.message(partition, offset)?),
        }
    }

    fn offset_at(&mut self, partition: PartitionId, at: Timestamp) -> Result<Offset, TxError> {
        self.see(partition);
        let Some(row) = self.writer.hot.partition(partition) else { return Ok(Offset(0)) };
        if row.last_at < at || row.start == row.tail {
            return Ok(row.tail);
        }
        if row.first_at >= at {
            return Ok(row.start);
        }
        let mut on_disk_end = row.tail;
        for young in self.young(partition) {
            let header = young.header();
            on_disk_end = on_disk_end.min(header.base);
            if header.created_at >= at {
                if header.base > on_disk_end {
                    return Ok(header.base.max(row.start));
                }
                break;
            }
        }
        let found =
            self.writer.shared.messages.offset_at(partition, row.start, on_disk_end.max(row.start), at)?;
        Ok(found)
    }

    fn delete_message(&mut self, partition: PartitionId, offset: Offset) {
        self.writer.hot.delete_message(partition, offset);
        self.change(partition);
    }

    fn trim(&mut self, partition: PartitionId, start: Offset) -> Result<(), TxError> {
        let Some(row) = self.writer.hot.partition(partition) else { return Ok(()) };
        let start = start.min(row.tail);
        if start <= row.start {
            return Ok(());
        }
        let (mut on_disk_end, mut kept_young_at, mut in_flight) = (row.tail, None, Vec::new());
        for young in self.young(partition) {
            let header = young.header();
            on_disk_end = on_disk_end.min(header.base);
            if young.end() > start {
                kept_young_at = Some(header.created_at);
                break;
            }
            if let Young::InFlight(_) = young {
                in_flight.push(segment_key(partition, header.base, header.created_at));
            }
        }
        let shared = self.writer.shared.clone();
        let found = shared.messages.droppable(partition, row.start, start, on_disk_end, TRIM_ROWS_MAX)?;
        found.segments.into_iter().for_each(|segment| self.writer.remove_segment(segment));
        self.writer.removed_in_flight.extend(in_flight);
        if found.more {
            self.writer.leave_to_sweep(partition);
        }
        // What is not written yet need not be.
        self.writer.filling.trim(partition, start);
        shared.messages.cache.remove_before(partition, start);
        self.writer.hot.trim(partition, start, found.kept_at.or(kept_young_at).unwrap_or(row.first_at));
        self.change(partition);
        Ok(())
    }

    fn group(&mut self, queue: QueueId, name: &str) -> Result<Option<Arc<Group>>, TxError> {
        self.see_structure();
        Ok(self.writer.hot.group(queue, name))
    }

    fn group_by_id(&mut self, id: GroupId) -> Result<Option<Arc<Group>>, TxError> {
        self.see_structure();
        Ok(self.writer.hot.group_by_id(id))
    }

    fn groups(&mut self, queue: QueueId) -> Result<Vec<Arc<Group>>, TxError> {
        self.see_structure();
        Ok(self.writer.hot.groups(queue))
    }

    fn group_count(&mut self, queue: QueueId) -> Result<u64, TxError> {
        self.see_structure();
        Ok(self.writer.hot.group_count(queue))
    }

    fn put_group(&mut self, queue: QueueId, spec: &GroupSpec<'_>) -> Arc<Group> {
        self.close_open_segments();
        let group = Arc::new(Group {
            id: GroupId(self.fresh_id()),
            queue,
            name: spec.name.into(),
            start: spec.start,
            subscribed_at: spec.subscribed_at,
            conflation: spec.conflation,
        });
        self.change_structure();
        let now = self.now();
        let (added, replaced) = self.writer.hot.put_group(group.clone(), now);
        let shared = self.writer.shared.clone();
        if added {
            self.writer.put(&shared.tables.groups, number_key(group.id.0), group_value(&group));
        }
        if let Some(replaced) = replaced {
            self.writer.remove(&shared.tables.groups, number_key(replaced.0));
            self.writer.leftovers.groups.push(replaced);
        }
        group
    }

    fn set_group_start(&mut self, id: GroupId, start: GroupStart) {
        self.close_open_segments();
        let Some(old) = self.writer.hot.group_by_id(id) else { return };
        let group = Arc::new(Group { start, ..(*old).clone() });
        self.write_now();
        self.writer.shared.context.change_structure();
        let now = self.now();
        let shared = self.writer.shared.clone();
        self.writer.put(&shared.tables.groups, number_key(id.0), group_value(&group));
        self.writer.hot.change_group(group, now);
    }

    fn remove_group(&mut self, id: GroupId) {
        self.change_structure();
        self.writer.hot.remove_group(id);
        let shared = self.writer.shared.clone();
        self.writer.remove(&shared.tables.groups, number_key(id.0));
        self.writer.leftovers.groups.push(id);
    }

    fn cursor(&mut self, group: GroupId, partition: PartitionId) -> Result<Option<Cursor>, TxError> {
        self.see(partition);
        self.see_structure();
        Ok(self.writer.hot.cursor(group, partition))
    }

    fn put_cursor(&mut self, group: GroupId, partition: PartitionId, cursor: Cursor, durability: Durability) {
        let now = self.now();
        let Writer { hot, events, .. } = &mut *self.writer;
        hot.put_cursor(group, partition, cursor, now, |event| events.push(event));
        self.writer.dirty_cursors.insert((group, partition));
        self.wrote = true;
        if durability == Durability::Now {
            self.write_now();
            self.writer.hot.mark_changed(partition, self.writer.group.seq);
        }
    }

    fn ready_partitions(&mut self, group: GroupId, limit: usize) -> Result<Vec<PartitionId>, TxError> {
        let now = self.now();
        Ok(self.writer.hot.candidates(group, now, limit))
    }

    fn next_ready_at(&mut self, group: GroupId) -> Result<Option<Timestamp>, TxError> {
        let now = self.now();
        Ok(self.writer.hot.next_available(group, now))
    }

    fn leased_partitions(&mut self, lease: LeaseId) -> Result<Vec<(GroupId, PartitionId)>, TxError> {
        let held = self.writer.hot.leased(lease);
        if held.is_empty() {
            self.see_all();
        }
        Ok(held)
    }

    fn backlog(&mut self, group: GroupId) -> Result<u64, TxError> {
        self.see_all();
        Ok(self.writer.hot.backlog(group))
    }

    fn message_count(&mut self, queue: QueueId) -> Result<u64, TxError> {
        self.see_all();
        Ok(self.writer.hot.kept(queue))
    }

    fn put_dead_letter(&mut self, letter: DeadLetter) {
        self.remove_dead_letter(&letter.key);
        let seq = self.writer.group.seq;
        let time = Bytes::copy_from_slice(&letter.failed_at.micros().to_le_bytes());
        self.writer.letters.put(seq, letter_key(&letter), Some(letter_value(&letter)));
        self.writer.letter_times.put(seq, letter_time_key(&letter.key), Some(time));
    }

    fn dead_letter(&mut self, key: &DeadLetterKey) -> Result<Option<DeadLetter>, TxError> {
        if !self.letters_of(key.queue) {
            return Ok(None);
        }
        let tables = &self.writer.shared.tables;
        let (time, gate) = self.writer.letter_times.get(&tables.letter_times, &letter_time_key(key))?;
        self.gate = self.gate.max(gate);
        let Some(mut time) = time else { return Ok(None) };
        let failed_at = Timestamp::from_micros(time.try_get_i64_le().map_err(|_| corrupt("dead letter"))?);
        let (value, gate) = self.writer.letters.get(&tables.letters, &letter_key_at(key, failed_at))?;
        self.gate = self.gate.max(gate);
        Ok(value.map(read_letter).transpose()?)
    }

    fn remove_dead_letter(&mut self, key: &DeadLetterKey) {
        self.write_now();
        // A letter that cannot be read cannot be found by its time either: nothing to remove.
        let Ok(Some(letter)) = self.dead_letter(key) else { return };
        let seq = self.writer.group.seq;
        self.writer.letters.put(seq, letter_key(&letter), None);
        self.writer.letter_times.put(seq, letter_time_key(key), None);
    }

    fn dead_letters(
        &mut self,
        queue: QueueId,
        after: Option<&DeadLetter>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, TxError> {
        if !self.letters_of(queue) {
            return Ok(Vec::new());
        }
        let after = after.map(letter_key);
        let table = &self.writer.shared.tables.letters;
        let (found, gate) =
            self.writer.letters.scan(table, &number_key(queue.0), after.as_deref(), limit, |_, _| true)?;
        self.gate = self.gate.max(gate);
        Ok(found.into_iter().map(|(_, value)| read_letter(value)).collect::<Result<_, Error>>()?)
    }

    fn dead_letter_keys(
        &mut self,
        queue: QueueId,
        after: Option<&DeadLetterKey>,
        limit: usize,
    ) -> Result<Vec<(DeadLetterKey, Timestamp)>, TxError> {
        if !self.letters_of(queue) {
            return Ok(Vec::new());
        }
        // Their keys are in the order of the newest first.
        let after = after.map(letter_time_key);
        let table = &self.writer.shared.tables.letter_times;
        let (found, gate) =
            self.writer.letter_times.scan_back(table, &number_key(queue.0), after.as_deref(), limit)?;
        self.gate = self.gate.max(gate);
        let read = |(key, time): (Vec<u8>, Bytes)| read_letter_time(&key, time);
        Ok(found.into_iter().map(read).collect::<Option<_>>().ok_or_else(|| corrupt("dead letter"))?)
    }
}

fn record_value(record: &Record) -> Bytes {
    let mut row = Vec::with_capacity(16 + record.value.len());
    row.put_u64_le(record.version);
    row.put_i64_le(record.expires_at.map_or(i64::MAX, Timestamp::micros));
    row.put_slice(&record.value);
    row.into()
}

fn read_record(mut row: Bytes) -> Result<Record, Error> {
    let version = row.try_get_u64_le().map_err(|_| corrupt("record"))?;
    let expires_at = row.try_get_i64_le().map_err(|_| corrupt("record"))?;
    let expires_at = (expires_at != i64::MAX).then_some(Timestamp::from_micros(expires_at));
    Ok(Record { value: row, version, expires_at })
}

/// Letters of a queue stand together, the newest first.
fn letter_key(letter: &DeadLetter) -> Vec<u8> {
    letter_key_at(&letter.key, letter.failed_at)
}

fn letter_key_at(key: &DeadLetterKey, failed_at: Timestamp) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40 + key.group.len());
    bytes.put_u64(key.queue.0);
    bytes.put_u64(u64::MAX - failed_at.micros().max(0).cast_unsigned());
    bytes.put_slice(&letter_time_key(key)[8..]);
    bytes
}

fn letter_time_key(key: &DeadLetterKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32 + key.group.len());
    bytes.put_u64(key.queue.0);
    bytes.put_u64(key.partition.0);
    bytes.put_u64(u64::MAX - key.offset.0);
    bytes.put_slice(key.group.as_bytes());
    bytes
}

fn read_letter_time(mut key: &[u8], mut time: Bytes) -> Option<(DeadLetterKey, Timestamp)> {
    let queue = QueueId(key.try_get_u64().ok()?);
    let partition = PartitionId(key.try_get_u64().ok()?);
    let offset = Offset(u64::MAX - key.try_get_u64().ok()?);
    let group = std::str::from_utf8(key).ok()?.into();
    let failed_at = Timestamp::from_micros(time.try_get_i64_le().ok()?);
    Some((DeadLetterKey { queue, partition, offset, group }, failed_at))
}

fn letter_value(letter: &DeadLetter) -> Bytes {
    let meta = serde_json::to_vec(letter).unwrap_or_default();
    let mut row = Vec::with_capacity(4 + meta.len() + letter.payload.len());
    row.put_u32_le(u32::try_from(meta.len()).unwrap_or(u32::MAX));
    row.put_slice(&meta);
    row.put_slice(&letter.payload);
    row.into()
}

fn read_letter(mut row: Bytes) -> Result<DeadLetter, Error> {
    let length = row.try_get_u32_le().map_err(|_| corrupt("dead letter"))?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > row.len() {
        return Err(corrupt("dead letter"));
    }
    let meta = row.split_to(length);
    let letter: DeadLetter = serde_json::from_slice(&meta).map_err(|_| corrupt("dead letter"))?;
    Ok(DeadLetter { payload: row, ..letter })
}
