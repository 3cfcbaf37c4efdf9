//! Cursors, and the start offset of a group in a partition for which no cursor was written.

use baton_store::{Cursor, Error, Lease, OffsetRanges, Retries};
use baton_types::{LeaseId, Offset, Timestamp};
use bytes::{Buf, BufMut, Bytes};
use uuid::Uuid;

use super::partition::{put_ranges, read_ranges};
use super::{corrupt_row, read_time, read_u64};

/// A start offset's row is shorter than any cursor's.
const START_OFFSET_BYTES: usize = 16;

pub fn encode_cursor(cursor: &Cursor) -> Bytes {
    let mut row = Vec::with_capacity(64);
    row.put_u64_le(cursor.next.0);
    row.put_i64_le(cursor.available_at.micros());
    // Older servers kept one count per cursor here.
    row.put_u32_le(0);
    row.put_u32_le(cursor.attempts);
    row.put_u64_le(cursor.consumed);
    row.put_i64_le(cursor.last_pop_at.micros());
    match &cursor.lease {
        None => row.put_u8(0),
        Some(lease) => {
            row.put_u8(1);
            row.put_u128_le(lease.id.0.as_u128());
            row.put_u64_le(lease.token);
            row.put_i64_le(lease.until.micros());
            row.put_u64_le(lease.end.0);
        }
    }
    put_ranges(&mut row, cursor.finished.as_deref().unwrap_or(&OffsetRanges::default()));
    for (offset, spent) in cursor.retries.iter().flat_map(|retries| retries.entries()) {
        row.put_u64_le(*offset);
        row.put_u32_le(*spent);
    }
    row.into()
}

pub fn decode_cursor(mut row: &[u8]) -> Result<Cursor, Error> {
    let read = |row: &mut &[u8]| -> Option<Cursor> {
        let (next, available_at) = (Offset(read_u64(row)?), read_time(row)?);
        let (of_next, attempts) = (row.try_get_u32_le().ok()?, row.try_get_u32_le().ok()?);
        let (consumed, last_pop_at) = (read_u64(row)?, read_time(row)?);
        let lease = match row.try_get_u8().ok()? {
            0 => None,
            _ => Some(Box::new(Lease {
                id: LeaseId(Uuid::from_u128(row.try_get_u128_le().ok()?)),
                token: read_u64(row)?,
                until: read_time(row)?,
                end: Offset(read_u64(row)?),
            })),
        };
        let finished = Some(read_ranges(row)?).filter(|r| !r.is_empty()).map(Box::new);
        let mut retries: Vec<_> = (of_next > 0).then_some((next.0, of_next)).into_iter().collect();
        while !row.is_empty() {
            retries.push((read_u64(row)?, row.try_get_u32_le().ok()?));
        }
        let retries = (!retries.is_empty()).then(|| Box::new(Retries::from_entries(retries)));
        Some(Cursor { next, available_at, lease, finished, retries, attempts, consumed, last_pop_at })
    };
    read(&mut row).filter(|_| row.is_empty()).ok_or_else(|| corrupt_row("cursor"))
}

/// The offset at which a group that subscribed at the moment `at` begins in a partition.
pub fn encode_start_offset(next: Offset, at: Timestamp) -> Bytes {
    let mut row = Vec::with_capacity(START_OFFSET_BYTES);
    row.put_u64_le(next.0);
    row.put_i64_le(at.micros());
    row.into()
}

/// A start offset and its moment; `None` if the row is a cursor.
pub fn decode_start_offset(mut row: &[u8]) -> Option<(Offset, Timestamp)> {
    if row.len() != START_OFFSET_BYTES {
        return None;
    }
    Some((Offset(read_u64(&mut row)?), read_time(&mut row)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_as_it_was_written() {
        let lease = Lease {
            id: LeaseId(Uuid::from_u128(u128::MAX / 3)),
            token: 8,
            until: Timestamp::from_micros(4),
            end: Offset(12),
        };
        let cursor = Cursor {
            next: Offset(4),
            available_at: Timestamp::from_micros(5),
            lease: Some(Box::new(lease)),
            finished: Some(Box::new(OffsetRanges::from_ranges([(6, 8)]))),
            retries: Some(Box::new(Retries::from_entries([(4, 1), (9, 3)]))),
            attempts: 2,
            consumed: 3,
            last_pop_at: Timestamp::from_micros(6),
        };
        assert_eq!(decode_cursor(&encode_cursor(&cursor)).unwrap(), cursor);
        assert_eq!(decode_cursor(&encode_cursor(&Cursor::default())).unwrap(), Cursor::default());
        let mut older = encode_cursor(&Cursor { next: Offset(4), ..Cursor::default() }).to_vec();
        older[16] = 2;
        let retries = decode_cursor(&older).unwrap().retries.unwrap();
        assert_eq!(retries.entries(), [(4, 2)], "the count of an older server is that of the first message");
    }

    #[test]
    fn a_start_offset_is_not_taken_for_a_cursor() {
        assert_eq!(decode_start_offset(&encode_cursor(&Cursor::default())), None);
        let start = (Offset(3), Timestamp::from_micros(4));
        assert_eq!(decode_start_offset(&encode_start_offset(start.0, start.1)), Some(start));
    }

    #[test]
    fn a_cut_row_is_damage_not_a_panic() {
        let whole = encode_cursor(&Cursor::default());
        for length in 0..whole.len() {
            assert!(decode_cursor(&whole[..length]).is_err());
        }
    }
}
