//! Partitions. The id is the key and is not part of the value.

use baton_store::{Error, OffsetRanges, Partition};
use baton_types::{Offset, PartitionId, QueueId, Timestamp};
use bytes::{Buf, BufMut, Bytes};

use super::{corrupt_row, read_time, read_u64};

/// The fields of a partition's row.
pub struct PartitionFields<'a> {
    pub queue: QueueId,
    pub name: &'a str,
    pub start: Offset,
    pub tail: Offset,
    pub created_at: Timestamp,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    pub deleted: &'a OffsetRanges,
}

pub fn encode_partition(fields: &PartitionFields<'_>) -> Bytes {
    let PartitionFields { queue, name, deleted, .. } = *fields;
    let mut row = Vec::with_capacity(54 + name.len() + 16 * deleted.ranges().len());
    row.put_u64_le(queue.0);
    [fields.start, fields.tail].iter().for_each(|offset| row.put_u64_le(offset.0));
    let times = [fields.created_at, fields.first_at, fields.last_at];
    times.iter().for_each(|time| row.put_i64_le(time.micros()));
    row.put_u16_le(u16::try_from(name.len()).unwrap_or(u16::MAX));
    row.put_slice(name.as_bytes());
    put_ranges(&mut row, deleted);
    row.into()
}

pub fn decode_partition(id: u64, mut row: &[u8]) -> Result<Partition, Error> {
    let read = |row: &mut &[u8]| -> Option<Partition> {
        let (queue, start, tail) = (read_u64(row)?, read_u64(row)?, read_u64(row)?);
        let (created_at, first_at, last_at) = (read_time(row)?, read_time(row)?, read_time(row)?);
        let length = usize::from(row.try_get_u16_le().ok()?);
        let name = std::str::from_utf8(row.get(..length)?).ok()?.into();
        row.advance(length);
        let deleted = read_ranges(row)?;
        Some(Partition {
            id: PartitionId(id),
            queue: QueueId(queue),
            name,
            start: Offset(start),
            tail: Offset(tail),
            created_at,
            first_at,
            last_at,
            deleted,
        })
    };
    read(&mut row).filter(|_| row.is_empty()).ok_or_else(|| corrupt_row("partition"))
}

pub(super) fn put_ranges(row: &mut Vec<u8>, ranges: &OffsetRanges) {
    row.put_u32_le(u32::try_from(ranges.ranges().len()).unwrap_or(u32::MAX));
    for (start, end) in ranges.ranges() {
        row.put_u64_le(*start);
        row.put_u64_le(*end);
    }
}

pub(super) fn read_ranges(row: &mut &[u8]) -> Option<OffsetRanges> {
    let count = row.try_get_u32_le().ok()?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        pairs.push((read_u64(row)?, read_u64(row)?));
    }
    Some(OffsetRanges::from_ranges(pairs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_read_back_as_it_was_written() {
        let partition = Partition {
            id: PartitionId(7),
            queue: QueueId(3),
            name: "kunde-42 ü".into(),
            start: Offset(5),
            tail: Offset(9),
            created_at: Timestamp::from_micros(1),
            first_at: Timestamp::from_micros(2),
            last_at: Timestamp::from_micros(3),
            deleted: OffsetRanges::from_ranges([(6, 7)]),
        };
        let row = encode_partition(&PartitionFields {
            queue: partition.queue,
            name: &partition.name,
            start: partition.start,
            tail: partition.tail,
            created_at: partition.created_at,
            first_at: partition.first_at,
            last_at: partition.last_at,
            deleted: &partition.deleted,
        });
        assert_eq!(decode_partition(7, &row).unwrap(), partition);
    }
}
