//! A group's slot in a partition, and its encoding as a row.
//!
//! Always: a group has a slot in each partition that has work for it. A slot has a `ready_at` exactly when it
//! has work: the time from which the partition may be offered. One index over `ready_at` (column `line`)
//! therefore answers what is ready, in which order, and when the next partition becomes ready.

use baton_store::{Cursor, Error, GroupStart, Lease, OffsetRanges, Partition, Retries};
use baton_types::{LeaseId, Offset, Timestamp};
use bytes::{Buf, BufMut, Bytes};
use uuid::Uuid;

const FLAG_WRITTEN: u8 = 1;
const FLAG_PLACED: u8 = 2;
const FLAG_LEASED: u8 = 4;
const FLAG_RETRIED: u8 = 8;

/// The state of one group in one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupSlot {
    pub cursor: Cursor,
    /// Whether `cursor` was written. If not, the group begins at its start.
    pub is_written: bool,
    /// Whether `cursor.next` is where the group begins, though no decision wrote the cursor.
    pub is_placed: bool,
    /// Its key in the ready index, if it has work.
    pub ready_at: Option<i64>,
}

impl GroupSlot {
    /// The first message that the group may not have finished. For a group without a cursor that begins in
    /// the middle of the partition, this is the oldest kept message.
    fn first_unfinished(&self, start: GroupStart, partition: &Partition) -> Option<Offset> {
        let known = self.is_written || self.is_placed;
        if !known && matches!(start, GroupStart::At(at) if partition.last_at < at) {
            return None;
        }
        let next = if known { self.cursor.next } else { Offset(0) };
        Some(next.max(partition.start)).filter(|next| *next < partition.tail)
    }

    /// Whether the group has an unfinished message. A deleted message counts: the cursor must still move past
    /// it.
    pub fn has_work(&self, start: GroupStart, partition: &Partition) -> bool {
        let Some(from) = self.first_unfinished(start, partition) else { return false };
        let finished = self.cursor.finished.as_deref().map_or(0, |finished| finished.len_from(from));
        partition.tail.since(from) > finished
    }

    /// Counts the messages that the group has not finished and that are not deleted.
    pub fn unfinished_count(&self, start: GroupStart, partition: &Partition) -> u64 {
        let Some(from) = self.first_unfinished(start, partition) else { return 0 };
        partition.tail.since(from).saturating_sub(self.finished_from(from, partition))
    }

    /// Counts the finished or deleted messages from the cursor on.
    pub fn finished_count(&self, partition: &Partition) -> u64 {
        self.finished_from(self.cursor.next.max(partition.start), partition)
    }

    fn finished_from(&self, from: Offset, partition: &Partition) -> u64 {
        match self.cursor.finished.as_deref() {
            None => partition.deleted.len_from(from),
            Some(finished) if partition.deleted.is_empty() => finished.len_from(from),
            Some(finished) => {
                let mut both = finished.clone();
                for (start, end) in partition.deleted.ranges() {
                    both.insert_range(Offset(*start), Offset(*end));
                }
                both.len_from(from)
            }
        }
    }

    /// Encodes the fields that have no column of their own.
    pub fn encode(&self) -> Vec<u8> {
        let cursor = &self.cursor;
        let mut body = Vec::with_capacity(64);
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let leased = flag(cursor.lease.is_some(), FLAG_LEASED);
        let retried = flag(cursor.retries.is_some(), FLAG_RETRIED);
        body.put_u8(
            flag(self.is_written, FLAG_WRITTEN) | flag(self.is_placed, FLAG_PLACED) | leased | retried,
        );
        body.put_i64(cursor.available_at.micros());
        body.put_i64(cursor.last_pop_at.micros());
        // Older servers stored one retry count per cursor here.
        body.put_u32(0);
        body.put_u32(cursor.attempts);
        body.put_u64(cursor.consumed);
        if let Some(lease) = &cursor.lease {
            body.put_u64(lease.token);
            body.put_i64(lease.until.micros());
            body.put_u64(lease.end.0);
        }
        if let Some(retries) = &cursor.retries {
            body.put_u32(u32::try_from(retries.len()).unwrap_or(u32::MAX));
            for (offset, spent) in retries.entries() {
                body.put_u64(*offset);
                body.put_u32(*spent);
            }
        }
        body.extend(encode_ranges(cursor.finished.as_deref()));
        body
    }

    /// Decodes the columns of a row.
    pub fn decode(
        next: Offset,
        line: Option<i64>,
        lease_id: Option<Uuid>,
        body: Vec<u8>,
    ) -> Result<Self, Error> {
        Self::parse(next, line, lease_id, body.into())
            .ok_or_else(|| Error::Corrupt("a slot row is truncated".into()))
    }

    fn parse(next: Offset, line: Option<i64>, lease_id: Option<Uuid>, mut body: Bytes) -> Option<Self> {
        let flags = body.try_get_u8().ok()?;
        let available_at = Timestamp::from_micros(body.try_get_i64().ok()?);
        let last_pop_at = Timestamp::from_micros(body.try_get_i64().ok()?);
        let (of_next, attempts) = (body.try_get_u32().ok()?, body.try_get_u32().ok()?);
        let consumed = body.try_get_u64().ok()?;
        let lease = if flags & FLAG_LEASED == 0 {
            None
        } else {
            let token = body.try_get_u64().ok()?;
            let until = Timestamp::from_micros(body.try_get_i64().ok()?);
            let end = Offset(body.try_get_u64().ok()?);
            Some(Box::new(Lease { id: LeaseId(lease_id?), token, until, end }))
        };
        let mut retries: Vec<_> = (of_next > 0).then_some((next.0, of_next)).into_iter().collect();
        let entries = if flags & FLAG_RETRIED == 0 { 0 } else { body.try_get_u32().ok()? };
        for _ in 0..entries {
            retries.push((body.try_get_u64().ok()?, body.try_get_u32().ok()?));
        }
        let retries = (!retries.is_empty()).then(|| Box::new(Retries::from_entries(retries)));
        let finished = Some(decode_ranges(body)?).filter(|ranges| !ranges.is_empty()).map(Box::new);
        let cursor = Cursor { next, available_at, lease, finished, retries, attempts, consumed, last_pop_at };
        Some(Self {
            cursor,
            is_written: flags & FLAG_WRITTEN != 0,
            is_placed: flags & FLAG_PLACED != 0,
            ready_at: line,
        })
    }
}

/// Encodes a set of offsets.
pub fn encode_ranges(ranges: Option<&OffsetRanges>) -> Vec<u8> {
    let ranges = ranges.map(OffsetRanges::ranges).unwrap_or_default();
    let mut value = Vec::with_capacity(16 * ranges.len());
    for (start, end) in ranges {
        value.put_u64(*start);
        value.put_u64(*end);
    }
    value
}

/// Decodes a set of offsets.
pub fn decode_ranges(mut value: Bytes) -> Option<OffsetRanges> {
    let mut ranges = Vec::with_capacity(value.len() / 16);
    while value.has_remaining() {
        ranges.push((value.try_get_u64().ok()?, value.try_get_u64().ok()?));
    }
    Some(OffsetRanges::from_ranges(ranges))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_read_as_it_was_written() {
        let id = Uuid::from_u128(77);
        let until = Timestamp::from_micros(5_000);
        let cursor = Cursor {
            next: Offset(4),
            available_at: until,
            lease: Some(Box::new(Lease { id: LeaseId(id), token: u64::MAX, until, end: Offset(9) })),
            finished: Some(Box::new(OffsetRanges::from_ranges([(5, 6), (8, 9)]))),
            retries: Some(Box::new(Retries::from_entries([(4, 1), (9, 3)]))),
            attempts: 2,
            consumed: 3,
            last_pop_at: Timestamp::MIN,
        };
        let slot = GroupSlot { cursor, is_written: true, is_placed: false, ready_at: Some(9) };
        assert_eq!(GroupSlot::decode(Offset(4), Some(9), Some(id), slot.encode()).unwrap(), slot);
        let mut older = GroupSlot::default().encode();
        older[20] = 2;
        let retries = GroupSlot::decode(Offset(4), None, None, older).unwrap().cursor.retries.unwrap();
        assert_eq!(retries.entries(), [(4, 2)], "the count of an older server is that of the first message");
        let plain = GroupSlot { is_placed: true, ..GroupSlot::default() };
        assert_eq!(GroupSlot::decode(Offset(0), None, None, plain.encode()).unwrap(), plain);
        assert!(GroupSlot::decode(Offset(0), None, None, plain.encode()[..9].to_vec()).is_err());
    }
}
