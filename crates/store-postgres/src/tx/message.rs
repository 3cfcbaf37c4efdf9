//! Messages of a partition: append, find by transaction id, offset or time, delete, trim.

use std::time::Duration;

use baton_store::{
    Appended, Durability, Error, Event, GroupStart, MessageBlock, RememberedId, Segment, SegmentHeader,
    StoredMessage, Tx, TxError,
};
use baton_types::{IdHash, Offset, PartitionId, Timestamp};
use bytes::Bytes;

use super::PostgresTx;
use crate::state::batch::OpenSegment;
use crate::state::dedup::{DedupId, DedupRun};

pub fn append(
    tx: &mut PostgresTx<'_>,
    partition: PartitionId,
    block: &MessageBlock,
    remember: Duration,
) -> Appended {
    let now = tx.now();
    tx.mark_write(Durability::Now);
    let nowhere = Appended { first: Offset(0), created_at: now };
    tx.require_partition(partition);
    let Some(entry) = tx.batch.entry(partition) else { return nowhere };
    let (mut row, count) = (entry.row.clone(), block.len() as u64);
    let created_at = tx.batch.open_segments.get(&partition).map_or(now, |open| open.header.created_at);
    let (first, was_last_at) = (row.tail, row.last_at);
    if row.start == row.tail {
        row.first_at = created_at;
    }
    row.tail = first.plus(count);
    row.last_at = created_at;
    for group in tx.batch.catalog.groups(row.queue) {
        let old = tx.batch.entry(partition).and_then(|entry| entry.slots.get(&group.id)).cloned();
        let existed = old.is_some();
        let mut slot = old.clone().unwrap_or_default();
        if let GroupStart::At(at) = group.start
            && !slot.is_written
            && !slot.is_placed
        {
            if created_at < at {
                continue;
            }
            if was_last_at < at {
                // All earlier messages are older than the group's start, so the group begins exactly here.
                (slot.is_placed, slot.cursor.next) = (true, first);
            }
        }
        slot.ready_at = tx.batch.ready_at_after_change(&slot, group.start, &row, false);
        if !existed || old.as_ref() != Some(&slot) {
            tx.batch.put_slot(partition, group.id, slot);
        }
    }
    let queue = row.queue;
    tx.batch.replace_row(row);
    let header = SegmentHeader { base: first, count: 0, created_at };
    let fresh = || OpenSegment { header, bytes: vec![0; Segment::BODY_OFFSET] };
    let is_new = !tx.batch.open_segments.contains_key(&partition);
    let open = tx.batch.open_segments.entry(partition).or_insert_with(fresh);
    let (had, length) = (open.header.count, open.bytes.len());
    open.header.count += u32::try_from(count).unwrap_or(u32::MAX);
    open.bytes.extend_from_slice(block.bytes());
    tx.batch.writes.summary.message_bytes += block.bytes().len();
    tx.batch.push_undo(move |batch| {
        if is_new {
            batch.open_segments.remove(&partition);
        } else if let Some(open) = batch.open_segments.get_mut(&partition) {
            open.header.count = had;
            open.bytes.truncate(length);
        }
    });
    remember_ids(tx, partition, Appended { first, created_at }, block, remember);
    tx.batch.record_event(Event::Appended { queue, partition });
    Appended { first, created_at }
}

pub fn remembered(
    tx: &mut PostgresTx<'_>,
    partition: PartitionId,
    id: IdHash,
) -> Result<Option<RememberedId>, TxError> {
    if tx.read_partition(partition)?.is_none() {
        return Ok(None);
    }
    let fresh = tx.batch.new_dedup_ids.get(&(partition, id));
    if let Some((known, _)) = fresh.filter(|(_, until)| *until > tx.batch.now) {
        return Ok(Some(*known));
    }
    let Some(entry) = tx.batch.entry(partition) else { return Ok(None) };
    if entry.original.tail > Offset(0)
        && let Some(from) = tx.dedup_index.unknown_from(partition, entry.original.tail)
    {
        tx.batch.missing.dedup_ids.insert(partition, from);
        return Err(TxError::RowsMissing);
    }
    Ok(tx.dedup_index.find(partition, id, tx.batch.now))
}

pub fn get(
    tx: &mut PostgresTx<'_>,
    partition: PartitionId,
    offset: Offset,
) -> Result<Option<StoredMessage>, TxError> {
    let Some(row) = tx.read_partition(partition)? else { return Ok(None) };
    if offset < row.start || offset >= row.tail {
        return Ok(None);
    }
    match find_segment(tx, partition, offset)? {
        Some(segment) => Ok(segment.message(offset).map_err(Error::from)?),
        None => Ok(None),
    }
}

pub fn offset_at(tx: &mut PostgresTx<'_>, partition: PartitionId, at: Timestamp) -> Result<Offset, TxError> {
    let Some(row) = tx.read_partition(partition)? else { return Ok(Offset(0)) };
    if row.last_at < at || row.start == row.tail {
        return Ok(row.tail);
    }
    if row.first_at >= at {
        return Ok(row.start);
    }
    let mut stored_end = row.tail;
    for young in tx.batch.unwritten_segments(partition) {
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
    offset_at_in_database(tx, partition, row.start, stored_end, at)
}

pub fn delete(tx: &mut PostgresTx<'_>, partition: PartitionId, offset: Offset) {
    tx.mark_write(Durability::Now);
    tx.require_partition(partition);
    let Some(entry) = tx.batch.entry(partition) else { return };
    if (entry.row.start..entry.row.tail).contains(&offset) {
        let mut row = entry.row.clone();
        row.deleted.insert(offset);
        tx.batch.replace_row(row);
        tx.batch.update_ready_ats(partition);
    }
}

pub fn trim(tx: &mut PostgresTx<'_>, partition: PartitionId, start: Offset) -> Result<(), TxError> {
    let Some(mut row) = tx.read_partition(partition)? else { return Ok(()) };
    let start = start.min(row.tail);
    if start <= row.start {
        return Ok(());
    }
    if !tx.batch.prepare_to_change(partition) {
        return Err(TxError::RowsMissing);
    }
    let first_at = if start == row.tail { None } else { segment_time(tx, partition, start)? };
    tx.mark_write(Durability::Now);
    row.start = start;
    row.first_at = first_at.unwrap_or(row.first_at);
    row.deleted.remove_below(start);
    tx.batch.replace_row(row);
    tx.batch.update_ready_ats(partition);
    let old = tx.batch.trimmed.insert(partition, start);
    tx.batch.push_undo(move |batch| match old {
        Some(old) => drop(batch.trimmed.insert(partition, old)),
        None => drop(batch.trimmed.remove(&partition)),
    });
    Ok(())
}

/// The offset of the first message at or after a time, among the messages in the database.
fn offset_at_in_database(
    tx: &mut PostgresTx<'_>,
    partition: PartitionId,
    from: Offset,
    to: Offset,
    at: Timestamp,
) -> Result<Offset, TxError> {
    let known = tx.batch.time_lookups.get(&partition).into_iter().flatten();
    let found = known.rev().find(|moment| moment.after < at && at <= moment.until);
    if let Some(moment) = found {
        return Ok(moment.offset.clamp(from, to));
    }
    tx.batch.missing.times.insert((partition, from, to, at));
    Err(TxError::RowsMissing)
}

fn find_segment(
    tx: &mut PostgresTx<'_>,
    partition: PartitionId,
    offset: Offset,
) -> Result<Option<Segment>, TxError> {
    let young = tx.batch.unwritten_segments(partition).find(|o| o.header.base <= offset && offset < o.end());
    if let Some(open) = young {
        let body = Bytes::copy_from_slice(&open.bytes[Segment::BODY_OFFSET..]);
        return Ok(Some(Segment::new(partition, open.header, body)));
    }
    if let Some(segment) = tx.cache.get(partition, offset) {
        return Ok(Some(segment));
    }
    let before = tx.batch.segments.range((partition, Offset(0))..=(partition, offset)).next_back();
    if let Some((_, segment)) = before.filter(|(_, segment)| offset < segment.end()) {
        return Ok(Some(segment.clone()));
    }
    if tx.batch.absent_segments.contains(&(partition, offset)) {
        return Ok(None);
    }
    tx.batch.missing.segments.insert((partition, offset));
    Err(TxError::RowsMissing)
}

/// When the segment around an offset was stored.
fn segment_time(
    tx: &mut PostgresTx<'_>,
    partition: PartitionId,
    offset: Offset,
) -> Result<Option<Timestamp>, TxError> {
    let young = tx.batch.unwritten_segments(partition).find(|o| o.header.base <= offset && offset < o.end());
    if let Some(open) = young {
        return Ok(Some(open.header.created_at));
    }
    match tx.batch.segment_times.get(&(partition, offset)) {
        Some(time) => Ok(*time),
        None => {
            tx.batch.missing.segment_times.insert((partition, offset));
            Err(TxError::RowsMissing)
        }
    }
}

/// Remembers the transaction ids of messages.
fn remember_ids(
    tx: &mut PostgresTx<'_>,
    partition: PartitionId,
    Appended { first, created_at }: Appended,
    block: &MessageBlock,
    window: Duration,
) {
    let until = tx.batch.now.after(window);
    let ids: Vec<(IdHash, u32)> = block.hashes().zip(0u32..).filter_map(|(id, at)| Some((id?, at))).collect();
    if window.is_zero() || ids.is_empty() {
        return;
    }
    for (id, distance) in &ids {
        let key = (partition, *id);
        let known = RememberedId { offset: first.plus((*distance).into()), created_at: Some(created_at) };
        let old = tx.batch.new_dedup_ids.insert(key, (known, until));
        tx.batch.push_undo(move |batch| match old {
            Some(old) => drop(batch.new_dedup_ids.insert(key, old)),
            None => drop(batch.new_dedup_ids.remove(&key)),
        });
    }
    let at = |shift: u32| {
        move |(IdHash { hash, check }, distance): (IdHash, u32)| DedupId {
            hash,
            check,
            distance: shift.saturating_add(distance),
        }
    };
    // The ids that one batch appends to a partition with the same window share one row.
    let last = tx.batch.dedup_runs.iter().rposition(|(_, run)| run.partition == partition);
    let joins = last.filter(|last| {
        let (of, run) = &tx.batch.dedup_runs[*last];
        *of == window && run.created_at == Some(created_at)
    });
    if let Some(index) = joins {
        let run = &mut tx.batch.dedup_runs[index].1;
        let (before, was_until) = (run.ids.len(), run.until);
        let shift = u32::try_from(first.since(run.first)).unwrap_or(u32::MAX);
        run.ids.extend(ids.into_iter().map(at(shift)));
        run.until = until;
        tx.batch.push_undo(move |batch| {
            batch.dedup_runs[index].1.ids.truncate(before);
            batch.dedup_runs[index].1.until = was_until;
        });
    } else {
        let ids = ids.into_iter().map(at(0)).collect();
        let run = DedupRun { partition, first, until, created_at: Some(created_at), ids };
        tx.batch.dedup_runs.push((window, run));
        tx.batch.push_undo(|batch| drop(batch.dedup_runs.pop()));
    }
}
