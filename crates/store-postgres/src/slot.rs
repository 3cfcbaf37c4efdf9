//! A partition as one group sees it, and its row.
//!
//! Always: a group has a slot wherever it has work; a slot stands in line exactly when it has work, and its place
//! in line is the moment from which it stands there. So one index answers what is ready, in which order, and
//! when the next one will be.

use baton_store::{Cursor, Error, Lease, OffsetRanges, Partition, Retries, Start};
use baton_types::{LeaseId, Offset, Timestamp};
use bytes::{Buf, BufMut, Bytes};
use uuid::Uuid;

const WRITTEN: u8 = 1;
const PLACED: u8 = 2;
const LEASED: u8 = 4;
const RETRIED: u8 = 8;

/// One partition as one group sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    pub cursor: Cursor,
    /// Whether `cursor` was written; otherwise the group's start counts.
    pub written: bool,
    /// Whether the place in `cursor` is known to be where the group begins, though nobody wrote it.
    pub placed: bool,
    /// Its place in the group's line, if it has work.
    pub line: Option<i64>,
}

impl Slot {
    /// The first message that the group may not have finished, if there is one. For a group that begins in the
    /// middle of a partition without a cursor, that is the oldest kept.
    fn first_unfinished(&self, start: Start, partition: &Partition) -> Option<Offset> {
        let known = self.written || self.placed;
        if !known && matches!(start, Start::At(at) if partition.last_at < at) {
            return None;
        }
        let place = if known { self.cursor.next } else { Offset(0) };
        Some(place.max(partition.start)).filter(|place| *place < partition.tail)
    }

    /// Whether there is a message that the group has not finished. It may be a deleted one, which the group
    /// must still move over.
    pub fn has_work(&self, start: Start, partition: &Partition) -> bool {
        let Some(from) = self.first_unfinished(start, partition) else { return false };
        let finished = self.cursor.finished.as_deref().map_or(0, |finished| finished.len_from(from));
        partition.tail.since(from) > finished
    }

    /// Messages of the partition that the group has not finished and that are not deleted.
    pub fn unfinished(&self, start: Start, partition: &Partition) -> u64 {
        let Some(from) = self.first_unfinished(start, partition) else { return 0 };
        partition.tail.since(from).saturating_sub(self.done_from(from, partition))
    }

    /// Messages from the group's place on that are finished or deleted.
    pub fn done(&self, partition: &Partition) -> u64 {
        self.done_from(self.cursor.next.max(partition.start), partition)
    }

    fn done_from(&self, from: Offset, partition: &Partition) -> u64 {
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

    /// What has no column of its own.
    pub fn body(&self) -> Vec<u8> {
        let cursor = &self.cursor;
        let mut body = Vec::with_capacity(64);
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let leased = flag(cursor.lease.is_some(), LEASED);
        let retried = flag(cursor.retries.is_some(), RETRIED);
        body.put_u8(flag(self.written, WRITTEN) | flag(self.placed, PLACED) | leased | retried);
        body.put_i64(cursor.available_at.micros());
        body.put_i64(cursor.last_pop_at.micros());
        // Older servers kept one count per cursor here.
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
        body.extend(ranges_value(cursor.finished.as_deref()));
        body
    }

    /// From its columns.
    pub fn read(
        next: Offset,
        line: Option<i64>,
        lease_id: Option<Uuid>,
        body: Vec<u8>,
    ) -> Result<Self, Error> {
        Self::parse(next, line, lease_id, body.into())
            .ok_or_else(|| Error::Corrupt("a slot is cut short".into()))
    }

    fn parse(next: Offset, line: Option<i64>, lease_id: Option<Uuid>, mut body: Bytes) -> Option<Self> {
        let flags = body.try_get_u8().ok()?;
        let available_at = Timestamp::from_micros(body.try_get_i64().ok()?);
        let last_pop_at = Timestamp::from_micros(body.try_get_i64().ok()?);
        let (of_next, attempts) = (body.try_get_u32().ok()?, body.try_get_u32().ok()?);
        let consumed = body.try_get_u64().ok()?;
        let lease = if flags & LEASED == 0 {
            None
        } else {
            let token = body.try_get_u64().ok()?;
            let until = Timestamp::from_micros(body.try_get_i64().ok()?);
            let end = Offset(body.try_get_u64().ok()?);
            Some(Box::new(Lease { id: LeaseId(lease_id?), token, until, end }))
        };
        let mut retries: Vec<_> = (of_next > 0).then_some((next.0, of_next)).into_iter().collect();
        let entries = if flags & RETRIED == 0 { 0 } else { body.try_get_u32().ok()? };
        for _ in 0..entries {
            retries.push((body.try_get_u64().ok()?, body.try_get_u32().ok()?));
        }
        let retries = (!retries.is_empty()).then(|| Box::new(Retries::from_entries(retries)));
        let finished = Some(read_ranges(body)?).filter(|ranges| !ranges.is_empty()).map(Box::new);
        let cursor = Cursor { next, available_at, lease, finished, retries, attempts, consumed, last_pop_at };
        Some(Self { cursor, written: flags & WRITTEN != 0, placed: flags & PLACED != 0, line })
    }
}

/// A set of offsets as it stands in a row.
pub fn ranges_value(ranges: Option<&OffsetRanges>) -> Vec<u8> {
    let ranges = ranges.map(OffsetRanges::ranges).unwrap_or_default();
    let mut value = Vec::with_capacity(16 * ranges.len());
    for (start, end) in ranges {
        value.put_u64(*start);
        value.put_u64(*end);
    }
    value
}

/// A set of offsets from its row.
pub fn read_ranges(mut value: Bytes) -> Option<OffsetRanges> {
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
        let slot = Slot { cursor, written: true, placed: false, line: Some(9) };
        assert_eq!(Slot::read(Offset(4), Some(9), Some(id), slot.body()).unwrap(), slot);
        let mut older = Slot::default().body();
        older[20] = 2;
        let retries = Slot::read(Offset(4), None, None, older).unwrap().cursor.retries.unwrap();
        assert_eq!(retries.entries(), [(4, 2)], "the count of an older server is that of the first message");
        let plain = Slot { placed: true, ..Slot::default() };
        assert_eq!(Slot::read(Offset(0), None, None, plain.body()).unwrap(), plain);
        assert!(Slot::read(Offset(0), None, None, plain.body()[..9].to_vec()).is_err());
    }
}
