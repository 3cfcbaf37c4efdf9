//! The cursor of a group in a partition: where the group begins, what it has finished, and how much it has not.
//!
//! Always: a message that is finished, deleted, or older than the beginning of the group is not counted. Not here: what may
//! be delivered now (`pop`).

use baton_store::{Cursor, Group, GroupStart, OffsetRanges, Partition, Tx, TxError};
use baton_types::Offset;

/// The group's cursor, or where it begins.
pub fn current_cursor(tx: &mut dyn Tx, group: &Group, partition: &Partition) -> Result<Cursor, TxError> {
    let mut cursor = match tx.cursor(group.id, partition.id)? {
        Some(cursor) => cursor,
        None => Cursor { next: beginning(tx, group, partition)?, ..Cursor::default() },
    };
    if cursor.next < partition.start {
        skip_to(&mut cursor, partition.start);
    }
    Ok(cursor)
}

/// Where the group begins in a partition that it has never read.
pub fn beginning(tx: &mut dyn Tx, group: &Group, partition: &Partition) -> Result<Offset, TxError> {
    match group.start {
        GroupStart::Oldest => Ok(partition.start),
        GroupStart::At(at) => tx.offset_at(partition.id, at),
    }
}

/// Moves the cursor to `next` or further.
pub fn skip_to(cursor: &mut Cursor, next: Offset) {
    cursor.next = next;
    settle(cursor);
}

/// Moves the cursor over its finished prefix, and drops what was kept about finished messages.
pub fn settle(cursor: &mut Cursor) {
    if let Some(finished) = &mut cursor.finished {
        cursor.next = finished.first_missing(cursor.next);
        finished.remove_below(cursor.next);
    }
    let (next, finished) = (cursor.next, cursor.finished.take_if(|finished| !finished.is_empty()));
    if let Some(retries) = &mut cursor.retries {
        let is_finished = |offset| finished.as_ref().is_some_and(|finished| finished.contains(offset));
        retries.retain(|offset| offset >= next && !is_finished(offset));
    }
    cursor.finished = finished;
    cursor.retries.take_if(|retries| retries.is_empty());
}

/// The messages from a cursor's place on that are finished or deleted.
pub fn passed_over(cursor: &Cursor, partition: &Partition) -> OffsetRanges {
    let mut passed = cursor.finished.as_deref().cloned().unwrap_or_default();
    for (start, end) in partition.deleted.ranges() {
        passed.insert_range(Offset(*start).max(cursor.next), Offset(*end));
    }
    passed
}

/// Messages of a partition that a group has not finished and that are not deleted.
pub fn unfinished(tx: &mut dyn Tx, group: &Group, partition: &Partition) -> Result<u64, TxError> {
    let cursor = current_cursor(tx, group, partition)?;
    let passed = passed_over(&cursor, partition).len_from(cursor.next);
    Ok(partition.tail.since(cursor.next).saturating_sub(passed))
}
