//! Dead letters.

use std::collections::BTreeMap;

use baton_store::{DeadLetter, DeadLetterKey, Durability, TxError};
use baton_types::{QueueId, Timestamp};

use super::{PostgresTx, SPARE_ROWS};
use crate::state::missing_rows::DeadLetterPosition;

pub fn put(tx: &mut PostgresTx<'_>, letter: DeadLetter) {
    tx.mark_write(Durability::Now);
    tx.batch.put_dead_letter(letter.key.clone(), Some(letter));
}

pub fn get(tx: &mut PostgresTx<'_>, key: &DeadLetterKey) -> Result<Option<DeadLetter>, TxError> {
    if !tx.batch.catalog.has_queue(key.queue) {
        return Ok(None);
    }
    match tx.batch.dead_letters.get(key) {
        Some(letter) => Ok(letter.clone()),
        None => {
            tx.batch.missing.dead_letters.insert(key.clone());
            Err(TxError::RowsMissing)
        }
    }
}

pub fn remove(tx: &mut PostgresTx<'_>, key: &DeadLetterKey) {
    tx.mark_write(Durability::Now);
    tx.batch.put_dead_letter(key.clone(), None);
}

pub fn page(
    tx: &mut PostgresTx<'_>,
    queue: QueueId,
    after: Option<&DeadLetter>,
    limit: usize,
) -> Result<Vec<DeadLetter>, TxError> {
    if !tx.batch.catalog.has_queue(queue) {
        return Ok(Vec::new());
    }
    let place_of = |letter: &DeadLetter| DeadLetterPosition::new(&letter.key, letter.failed_at);
    let after = after.map(place_of);
    let key = (queue, after.clone());
    let mut asked = limit.saturating_add(SPARE_ROWS);
    if let Some(page) = tx.batch.dead_letter_pages.get(&key) {
        let here = tx.batch.dead_letters.values().flatten().filter(|letter| letter.key.queue == queue);
        let mut found: Vec<(DeadLetterPosition, &DeadLetter)> = here.map(|l| (place_of(l), l)).collect();
        found.retain(|(place, _)| after.as_ref().is_none_or(|after| place > after));
        if !page.is_last_page {
            found.retain(|(place, _)| page.last.as_ref().is_some_and(|end| place <= end));
        }
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        if found.len() >= limit || page.is_last_page {
            return Ok(found.into_iter().take(limit).map(|(_, letter)| letter.clone()).collect());
        }
        asked = asked.max(page.rows * 2 + limit);
    }
    let missing = tx.batch.missing.dead_letter_pages.entry(key).or_default();
    *missing = asked.max(*missing);
    Err(TxError::RowsMissing)
}

pub fn keys(
    tx: &mut PostgresTx<'_>,
    queue: QueueId,
    after: Option<&DeadLetterKey>,
    limit: usize,
) -> Result<Vec<(DeadLetterKey, Timestamp)>, TxError> {
    if !tx.batch.catalog.has_queue(queue) {
        return Ok(Vec::new());
    }
    let place = (queue, after.cloned());
    let mut asked = limit.saturating_add(SPARE_ROWS);
    if let Some(page) = tx.batch.dead_letter_key_pages.get(&place) {
        let mut found: BTreeMap<_, _> = page.keys.iter().map(|(key, failed_at)| (key, *failed_at)).collect();
        let end = page.keys.last().map(|(key, _)| key).filter(|_| !page.is_last_page);
        let is_within = |key: &DeadLetterKey| {
            key.queue == queue && after.is_none_or(|after| key > after) && end.is_none_or(|end| key <= end)
        };
        for key in tx.batch.writes.dead_letters.iter().filter(|key| is_within(key)) {
            match tx.batch.dead_letters.get(key) {
                Some(Some(letter)) => found.insert(key, letter.failed_at),
                _ => found.remove(key),
            };
        }
        if found.len() >= limit || page.is_last_page {
            return Ok(found.into_iter().take(limit).map(|(key, at)| (key.clone(), at)).collect());
        }
        asked = asked.max(page.keys.len() * 2 + limit);
    }
    let missing = tx.batch.missing.dead_letter_key_pages.entry(place).or_default();
    *missing = asked.max(*missing);
    Err(TxError::RowsMissing)
}
