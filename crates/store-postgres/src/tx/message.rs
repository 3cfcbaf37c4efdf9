//! Messages of a partition: appended, remembered by their ids, found by place or moment, given up.

use std::time::Duration;

use baton_store::{
    Appended, Block, Durability, Error, Event, MessageView, RememberedId, Segment, SegmentHeader, Start,
    Stop, Tx,
};
use baton_types::{IdHash, Offset, PartitionId, Timestamp};
use bytes::Bytes;

use super::PostgresTx;
use crate::memory::Open;
use crate::remembered::{Run, RunId};

pub fn append(
    tx: &mut PostgresTx<'_>,
    partition: PartitionId,
    block: &Block,
    remember: Duration,
) -> Appended {
    let now = tx.now();
    tx.write(Durability::Now);
    let nowhere = Appended { first: Offset(0), created_at: now };
    tx.need(partition);
    let Some(entry) = tx.memory.entry(partition) else { return nowhere };
    let (mut row, count) = (entry.row.clone(), block.len() as u64);
    let created_at = tx.memory.open.get(&partition).map_or(now, |open| open.header.created_at);
    let (first, was_last_at) = (row.tail, row.last_at);
    if row.start == row.tail {
        row.first_at = created_at;
    }
    row.tail = first.plus(count);
    row.last_at = created_at;
    for group in tx.memory.structure.groups(row.queue) {
        let old = tx.memory.entry(partition).and_then(|entry| entry.slots.get(&group.id)).cloned();
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
        slot.line = tx.memory.place(&slot, group.start, &row, false);
        if !existed || old.as_ref() != Some(&slot) {
            tx.memory.put_slot(partition, group.id, slot);
        }
    }
    let queue = row.queue;
    tx.memory.put_row(row);
    let header = SegmentHeader { base: first, count: 0, created_at };
    let fresh = || Open { header, bytes: vec![0; Segment::BODY_AT] };
    let is_new = !tx.memory.open.contains_key(&partition);
    let open = tx.memory.open.entry(partition).or_insert_with(fresh);
    let (had, length) = (open.header.count, open.bytes.len());
    open.header.count += u32::try_from(count).unwrap_or(u32::MAX);
    open.bytes.extend_from_slice(block.bytes());
    tx.memory.changed.marks.bytes += block.bytes().len();
    tx.memory.undo(move |memory| {
        if is_new {
            memory.open.remove(&partition);
        } else if let Some(open) = memory.open.get_mut(&partition) {
            open.header.count = had;
            open.bytes.truncate(length);
        }
    });
    note_ids(tx, partition, Appended { first, created_at }, block, remember);
    tx.memory.tell(Event::Appended { queue, partition });
    Appended { first, created_at }
}

pub fn remembered(
    tx: &mut PostgresTx<'_>,
    partition: PartitionId,
    id: IdHash,
) -> Result<Option<RememberedId>, Stop> {
    if tx.row(partition)?.is_none() {
        return Ok(None);
    }
    let fresh = tx.memory.fresh_ids.get(&(partition, id));
    if let Some((known, _)) = fresh.filter(|(_, until)| *until > tx.memory.now) {
        return Ok(Some(*known));
    }
    let Some(entry) = tx.memory.entry(partition) else { return Ok(None) };
    if entry.original.tail > Offset(0)
        && let Some(from) = tx.remembered.missing(partition, entry.original.tail)
    {
        tx.memory.wanted.remembered.insert(partition, from);
        return Err(Stop::Load);
    }
    Ok(tx.remembered.get(partition, id, tx.memory.now))
}

pub fn get(
    tx: &mut PostgresTx<'_>,
    partition: PartitionId,
    offset: Offset,
) -> Result<Option<MessageView>, Stop> {
    let Some(row) = tx.row(partition)? else { return Ok(None) };
    if offset < row.start || offset >= row.tail {
        return Ok(None);
    }
    match segment(tx, partition, offset)? {
        Some(segment) => Ok(segment.message(offset).map_err(Error::from)?),
        None => Ok(None),
    }
}

pub fn offset_at(tx: &mut PostgresTx<'_>, partition: PartitionId, at: Timestamp) -> Result<Offset, Stop> {
    let Some(row) = tx.row(partition)? else { return Ok(Offset(0)) };
    if row.last_at < at || row.start == row.tail {
        return Ok(row.tail);
    }
    if row.first_at >= at {
        return Ok(row.start);
    }
    let mut stored_end = row.tail;
    for young in tx.memory.young(partition) {
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
    stored_offset_at(tx, partition, row.start, stored_end, at)
}

pub fn delete(tx: &mut PostgresTx<'_>, partition: PartitionId, offset: Offset) {
    tx.write(Durability::Now);
    tx.need(partition);
    let Some(entry) = tx.memory.entry(partition) else { return };
    if (entry.row.start..entry.row.tail).contains(&offset) {
        let mut row = entry.row.clone();
        row.deleted.insert(offset);
        tx.memory.put_row(row);
        tx.memory.place_all(partition);
    }
}

pub fn trim(tx: &mut PostgresTx<'_>, partition: PartitionId, start: Offset) -> Result<(), Stop> {
    let Some(mut row) = tx.row(partition)? else { return Ok(()) };
    let start = start.min(row.tail);
    if start <= row.start {
        return Ok(());
    }
    if !tx.memory.has_all_of(partition) {
        return Err(Stop::Load);
    }
    let first_at = if start == row.tail { None } else { time_of(tx, partition, start)? };
    tx.write(Durability::Now);
    row.start = start;
    row.first_at = first_at.unwrap_or(row.first_at);
    row.deleted.remove_below(start);
    tx.memory.put_row(row);
    tx.memory.place_all(partition);
    let old = tx.memory.trimmed.insert(partition, start);
    tx.memory.undo(move |memory| match old {
        Some(old) => drop(memory.trimmed.insert(partition, old)),
        None => drop(memory.trimmed.remove(&partition)),
    });
    Ok(())
}

/// The offset of the first stored message at or after a moment between two offsets, in the database.
fn stored_offset_at(
    tx: &mut PostgresTx<'_>,
    partition: PartitionId,
    from: Offset,
    to: Offset,
    at: Timestamp,
) -> Result<Offset, Stop> {
    let known = tx.memory.moments.get(&partition).into_iter().flatten();
    let found = known.rev().find(|moment| moment.after < at && at <= moment.until);
    if let Some(moment) = found {
        return Ok(moment.offset.clamp(from, to));
    }
    tx.memory.wanted.moments.insert((partition, from, to, at));
    Err(Stop::Load)
}

fn segment(tx: &mut PostgresTx<'_>, partition: PartitionId, offset: Offset) -> Result<Option<Segment>, Stop> {
    let young = tx.memory.young(partition).find(|o| o.header.base <= offset && offset < o.end());
    if let Some(open) = young {
        let body = Bytes::copy_from_slice(&open.bytes[Segment::BODY_AT..]);
        return Ok(Some(Segment::new(partition, open.header, body)));
    }
    if let Some(segment) = tx.cache.get(partition, offset) {
        return Ok(Some(segment));
    }
    let before = tx.memory.segments.range((partition, Offset(0))..=(partition, offset)).next_back();
    if let Some((_, segment)) = before.filter(|(_, segment)| offset < segment.end()) {
        return Ok(Some(segment.clone()));
    }
    if tx.memory.no_segment.contains(&(partition, offset)) {
        return Ok(None);
    }
    tx.memory.wanted.segments.insert((partition, offset));
    Err(Stop::Load)
}

/// When the segment around an offset was stored.
fn time_of(
    tx: &mut PostgresTx<'_>,
    partition: PartitionId,
    offset: Offset,
) -> Result<Option<Timestamp>, Stop> {
    let young = tx.memory.young(partition).find(|o| o.header.base <= offset && offset < o.end());
    if let Some(open) = young {
        return Ok(Some(open.header.created_at));
    }
    match tx.memory.times.get(&(partition, offset)) {
        Some(time) => Ok(*time),
        None => {
            tx.memory.wanted.times.insert((partition, offset));
            Err(Stop::Load)
        }
    }
}

/// Remembers the transaction ids of messages.
fn note_ids(
    tx: &mut PostgresTx<'_>,
    partition: PartitionId,
    Appended { first, created_at }: Appended,
    block: &Block,
    window: Duration,
) {
    let until = tx.memory.now.after(window);
    let ids: Vec<(IdHash, u32)> = block.hashes().zip(0u32..).filter_map(|(id, at)| Some((id?, at))).collect();
    if window.is_zero() || ids.is_empty() {
        return;
    }
    for (id, distance) in &ids {
        let key = (partition, *id);
        let known = RememberedId { offset: first.plus((*distance).into()), created_at: Some(created_at) };
        let old = tx.memory.fresh_ids.insert(key, (known, until));
        tx.memory.undo(move |memory| match old {
            Some(old) => drop(memory.fresh_ids.insert(key, old)),
            None => drop(memory.fresh_ids.remove(&key)),
        });
    }
    let at = |shift: u32| {
        move |(IdHash { hash, check }, distance): (IdHash, u32)| RunId {
            hash,
            check,
            distance: shift.saturating_add(distance),
        }
    };
    // What one group appends to a partition for the same window is one row.
    let last = tx.memory.runs.iter().rposition(|(_, run)| run.partition == partition);
    let joins = last.filter(|last| {
        let (of, run) = &tx.memory.runs[*last];
        *of == window && run.created_at == Some(created_at)
    });
    if let Some(index) = joins {
        let run = &mut tx.memory.runs[index].1;
        let (before, was_until) = (run.ids.len(), run.until);
        let shift = u32::try_from(first.since(run.first)).unwrap_or(u32::MAX);
        run.ids.extend(ids.into_iter().map(at(shift)));
        run.until = until;
        tx.memory.undo(move |memory| {
            memory.runs[index].1.ids.truncate(before);
            memory.runs[index].1.until = was_until;
        });
    } else {
        let ids = ids.into_iter().map(at(0)).collect();
        let run = Run { partition, first, until, created_at: Some(created_at), ids };
        tx.memory.runs.push((window, run));
        tx.memory.undo(|memory| drop(memory.runs.pop()));
    }
}
