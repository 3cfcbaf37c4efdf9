//! Messages: append, read, delete and trim.

use std::time::Duration;

use baton_store::{Appended, Error, MessageBlock, Segment, SegmentHeader, StoredMessage, Tx, TxError};
use baton_types::{Offset, PartitionId, Timestamp};

use super::super::segment_builder::OpenSegment;
use super::{EmbeddedTx, Writer};
use crate::dedup::DedupRun;
use crate::rows::segment_key;

/// Segments that a trim removes with its own commit. More are removed later, some at a time.
const TRIM_SEGMENTS_MAX: usize = 5_000;

pub fn append(
    tx: &mut EmbeddedTx<'_>,
    partition: PartitionId,
    block: &MessageBlock,
    remember: Duration,
) -> Appended {
    let (now, count) = (tx.now(), block.len() as u64);
    let Writer { state, batch, events, dedup, .. } = &mut *tx.writer;
    let created_at = batch.segments.open_segment_time(partition).unwrap_or(now);
    let (first, starting) =
        state.append(partition, count, created_at, now, batch.seq(), |event| events.push(event));
    batch.changed_cursors.extend(starting.into_iter().map(|group| (group, partition)));
    batch.segments.add_messages(partition, first, created_at, block);
    batch.add_message_bytes(block.bytes().len());
    if !remember.is_zero() && block.hashes().any(|hash| hash.is_some()) {
        let run = DedupRun { partition, first, created_at: Some(created_at) };
        dedup.insert(now, remember, run, block.hashes());
    }
    tx.mark_durable_write();
    Appended { first, created_at }
}

pub fn read(
    tx: &mut EmbeddedTx<'_>,
    partition: PartitionId,
    offset: Offset,
) -> Result<Option<StoredMessage>, TxError> {
    tx.depend_on_partition(partition);
    let writer = &*tx.writer;
    if writer.state.start_offset(partition).is_none_or(|start| offset < start) {
        return Ok(None);
    }
    let young = young_segments(writer, partition).find(|s| s.header().base <= offset && offset < s.end());
    let young = young.map(|young| match young {
        YoungSegment::Unapplied(segment) => segment.clone(),
        YoungSegment::Open(segment) => writer.batch.segments.copy_segment(segment),
    });
    match young {
        Some(segment) => Ok(segment.message(offset).map_err(Error::from)?),
        None => Ok(writer.shared.segments.read_message(partition, offset)?),
    }
}

pub fn find_offset_at(
    tx: &mut EmbeddedTx<'_>,
    partition: PartitionId,
    at: Timestamp,
) -> Result<Offset, TxError> {
    tx.depend_on_partition(partition);
    let writer = &*tx.writer;
    let Some(row) = writer.state.partition(partition) else { return Ok(Offset(0)) };
    if row.last_at < at || row.start == row.tail {
        return Ok(row.tail);
    }
    if row.first_at >= at {
        return Ok(row.start);
    }
    let mut indexed_end = row.tail;
    for young in young_segments(writer, partition) {
        let header = young.header();
        indexed_end = indexed_end.min(header.base);
        if header.created_at >= at {
            if header.base > indexed_end {
                return Ok(header.base.max(row.start));
            }
            break;
        }
    }
    Ok(writer.shared.segments.offset_at(partition, row.start, indexed_end.max(row.start), at)?)
}

pub fn delete(tx: &mut EmbeddedTx<'_>, partition: PartitionId, offset: Offset) {
    tx.writer.state.delete_message(partition, offset);
    tx.mark_partition_change(partition);
}

pub fn trim(tx: &mut EmbeddedTx<'_>, partition: PartitionId, start: Offset) -> Result<(), TxError> {
    let writer = &mut *tx.writer;
    let Some(row) = writer.state.partition(partition) else { return Ok(()) };
    let start = start.min(row.tail);
    if start <= row.start {
        return Ok(());
    }
    let (mut indexed_end, mut kept_young_at, mut unapplied) = (row.tail, None, Vec::new());
    for young in young_segments(writer, partition) {
        let header = young.header();
        indexed_end = indexed_end.min(header.base);
        if young.end() > start {
            kept_young_at = Some(header.created_at);
            break;
        }
        if let YoungSegment::Unapplied(_) = young {
            unapplied.push(segment_key(partition, header.base, header.created_at));
        }
    }
    let shared = writer.shared.clone();
    let found = shared.segments.find_trimmed(partition, row.start, start, indexed_end, TRIM_SEGMENTS_MAX)?;
    found.segments.into_iter().for_each(|segment| writer.batch.remove_segment(&shared.tables, segment));
    writer.batch.remove_unapplied(unapplied);
    if found.more {
        writer.defer_trim(partition);
    }
    // Open segments before the start need not be written any more.
    writer.batch.segments.trim(partition, start);
    shared.segments.cache.remove_before(partition, start);
    writer.state.trim(partition, start, found.kept_at.or(kept_young_at).unwrap_or(row.first_at));
    tx.mark_partition_change(partition);
    Ok(())
}

/// Segments that the index does not have yet, oldest first.
fn young_segments(writer: &Writer, partition: PartitionId) -> impl Iterator<Item = YoungSegment<'_>> {
    let unapplied = writer.unapplied.segments_of(partition);
    let open = writer.batch.segments.segments_of(partition);
    unapplied.map(YoungSegment::Unapplied).chain(open.map(YoungSegment::Open))
}

/// A segment that the index does not have yet.
enum YoungSegment<'a> {
    /// Of a batch that was submitted.
    Unapplied(&'a Segment),
    /// Of the batch that is filling.
    Open(&'a OpenSegment),
}

impl YoungSegment<'_> {
    fn header(&self) -> &SegmentHeader {
        match self {
            Self::Unapplied(segment) => &segment.header,
            Self::Open(segment) => &segment.header,
        }
    }

    fn end(&self) -> Offset {
        self.header().base.plus(self.header().count.into())
    }
}
