//! Dead letters.

use baton_store::{DeadLetter, DeadLetterKey, Error, TxError};
use baton_types::{QueueId, Timestamp};
use bytes::{Buf, Bytes};

use super::EmbeddedTx;
use crate::rows::{
    corrupt_row, dead_letter_key, dead_letter_key_at, dead_letter_time_key, decode_dead_letter,
    decode_dead_letter_time, encode_dead_letter, number_key,
};

pub fn put(tx: &mut EmbeddedTx<'_>, letter: &DeadLetter) {
    remove(tx, &letter.key);
    let batch = tx.writer.batch.seq();
    let time = Bytes::copy_from_slice(&letter.failed_at.micros().to_le_bytes());
    let overlays = &mut tx.writer.overlays;
    overlays.dead_letters.put(batch, dead_letter_key(letter), Some(encode_dead_letter(letter)));
    overlays.dead_letter_times.put(batch, dead_letter_time_key(&letter.key), Some(time));
}

pub fn get(tx: &mut EmbeddedTx<'_>, key: &DeadLetterKey) -> Result<Option<DeadLetter>, TxError> {
    if !queue_exists(tx, key.queue) {
        return Ok(None);
    }
    let writer = &tx.writer;
    let (tables, overlays) = (&writer.shared.tables, &writer.overlays);
    let (time, batch) = overlays.dead_letter_times.get(&tables.letter_times, &dead_letter_time_key(key))?;
    tx.depends_on = tx.depends_on.max(batch);
    let Some(mut time) = time else { return Ok(None) };
    let failed_at = Timestamp::from_micros(time.try_get_i64_le().map_err(|_| corrupt_row("dead letter"))?);
    let (value, batch) = overlays.dead_letters.get(&tables.letters, &dead_letter_key_at(key, failed_at))?;
    tx.depends_on = tx.depends_on.max(batch);
    Ok(value.map(decode_dead_letter).transpose()?)
}

pub fn remove(tx: &mut EmbeddedTx<'_>, key: &DeadLetterKey) {
    tx.mark_durable_write();
    // A letter that cannot be decoded cannot be found by its time either, so there is nothing to remove.
    let Ok(Some(letter)) = get(tx, key) else { return };
    let batch = tx.writer.batch.seq();
    let overlays = &mut tx.writer.overlays;
    overlays.dead_letters.put(batch, dead_letter_key(&letter), None);
    overlays.dead_letter_times.put(batch, dead_letter_time_key(key), None);
}

pub fn page(
    tx: &mut EmbeddedTx<'_>,
    queue: QueueId,
    after: Option<&DeadLetter>,
    limit: usize,
) -> Result<Vec<DeadLetter>, TxError> {
    if !queue_exists(tx, queue) {
        return Ok(Vec::new());
    }
    let after = after.map(dead_letter_key);
    let (table, overlay) = (&tx.writer.shared.tables.letters, &tx.writer.overlays.dead_letters);
    let (found, batch) = overlay.scan(table, &number_key(queue.0), after.as_deref(), limit, |_, _| true)?;
    tx.depend_on(batch);
    Ok(found.into_iter().map(|(_, value)| decode_dead_letter(value)).collect::<Result<_, Error>>()?)
}

pub fn key_page(
    tx: &mut EmbeddedTx<'_>,
    queue: QueueId,
    after: Option<&DeadLetterKey>,
    limit: usize,
) -> Result<Vec<(DeadLetterKey, Timestamp)>, TxError> {
    if !queue_exists(tx, queue) {
        return Ok(Vec::new());
    }
    // The keys have the newest message of a partition first, so a backward scan returns the oldest first.
    let after = after.map(dead_letter_time_key);
    let (table, overlay) = (&tx.writer.shared.tables.letter_times, &tx.writer.overlays.dead_letter_times);
    let (found, batch) = overlay.scan_back(table, &number_key(queue.0), after.as_deref(), limit)?;
    tx.depend_on(batch);
    let decode = |(key, time): (Vec<u8>, Bytes)| decode_dead_letter_time(&key, time);
    Ok(found.into_iter().map(decode).collect::<Option<_>>().ok_or_else(|| corrupt_row("dead letter"))?)
}

fn queue_exists(tx: &mut EmbeddedTx<'_>, queue: QueueId) -> bool {
    tx.depend_on_catalog();
    tx.writer.state.queue_by_id(queue).is_some()
}
