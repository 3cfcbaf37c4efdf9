//! Reads of a table on disk, through writes that the index does not have yet.

use std::collections::BTreeMap;
use std::ops::Bound;

use baton_store::Error;
use bytes::Bytes;
use fjall::Keyspace;

use super::{RowWrite, Tables, engine_error};

/// Rows in the order of their keys, and the batch that must be durable before an answer may contain them.
pub type OverlayScan = (Vec<(Vec<u8>, Bytes)>, u64);

/// Writes to one table that the index may not have yet, each with the batch that commits it.
#[derive(Default)]
pub struct WriteOverlay {
    writes: BTreeMap<Vec<u8>, (u64, Option<Bytes>)>,
}

impl WriteOverlay {
    /// Adds a write of `batch`; `None` removes the row.
    pub fn put(&mut self, batch: u64, key: Vec<u8>, value: Option<Bytes>) {
        self.writes.insert(key, (batch, value));
    }

    /// The writes of `batch`: the last one for each key.
    pub fn writes_of(&self, batch: u64) -> impl Iterator<Item = (&[u8], Option<&Bytes>)> {
        let of_batch = self.writes.iter().filter(move |(_, (written_by, _))| *written_by == batch);
        of_batch.map(|(key, (_, value))| (&key[..], value.as_ref()))
    }

    /// Drops the writes of all batches up to `applied`, which the table has.
    pub fn drop_applied(&mut self, applied: u64) {
        if !self.writes.is_empty() {
            self.writes.retain(|_, (batch, _)| *batch > applied);
        }
    }

    /// The value under `key`, and the batch that must be durable before an answer may contain it.
    pub fn get(&self, table: &Keyspace, key: &[u8]) -> Result<(Option<Bytes>, u64), Error> {
        if let Some((batch, value)) = self.writes.get(key) {
            return Ok((value.clone(), *batch));
        }
        Ok((table.get(key).map_err(engine_error)?.map(Bytes::from), 0))
    }

    /// Up to `limit` rows that match `filter`, with keys that begin with `prefix` and follow `after`, in order.
    pub fn scan(
        &self,
        table: &Keyspace,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        filter: impl FnMut(&[u8], &Bytes) -> bool,
    ) -> Result<OverlayScan, Error> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after.to_vec()),
            _ => Bound::Included(prefix.to_vec()),
        };
        let pending = self.writes.range((from.clone(), Bound::Unbounded));
        let stored = table.range::<Vec<u8>, _>((from, Bound::Unbounded)).map(read_entry);
        merge_entries(pending, stored, |pending, stored| pending <= stored, prefix, limit, filter)
    }

    /// Up to `limit` rows with keys that begin with `prefix` and precede `before`, the last first.
    pub fn scan_back(
        &self,
        table: &Keyspace,
        prefix: &[u8],
        before: Option<&[u8]>,
        limit: usize,
    ) -> Result<OverlayScan, Error> {
        let until = match before {
            Some(before) => Bound::Excluded(before.to_vec()),
            None => end_of_prefix(prefix),
        };
        let pending = self.writes.range((Bound::Unbounded, until.clone())).rev();
        let stored = table.range::<Vec<u8>, _>((Bound::Unbounded, until)).rev().map(read_entry);
        merge_entries(pending, stored, |pending, stored| pending >= stored, prefix, limit, |_, _| true)
    }
}

/// The overlays of all tables that operations read from disk.
#[derive(Default)]
pub struct TableOverlays {
    pub records: WriteOverlay,
    pub dead_letters: WriteOverlay,
    pub dead_letter_times: WriteOverlay,
}

impl TableOverlays {
    /// The rows that `batch` writes.
    pub fn writes_of<'a>(&'a self, batch: u64, tables: &'a Tables) -> impl Iterator<Item = RowWrite> + 'a {
        let overlays = [
            (&self.records, &tables.records),
            (&self.dead_letters, &tables.letters),
            (&self.dead_letter_times, &tables.letter_times),
        ];
        overlays.into_iter().flat_map(move |(overlay, table)| {
            overlay.writes_of(batch).map(move |(key, value)| RowWrite {
                table: table.clone(),
                key: key.into(),
                value: value.cloned().map(Into::into),
            })
        })
    }

    /// Drops the writes of all batches up to `applied`, which the tables have.
    pub fn drop_applied(&mut self, applied: u64) {
        let Self { records, dead_letters, dead_letter_times } = self;
        [records, dead_letters, dead_letter_times]
            .into_iter()
            .for_each(|overlay| overlay.drop_applied(applied));
    }
}

type Entry = (Vec<u8>, Bytes);

fn read_entry(entry: fjall::Guard) -> Result<Entry, Error> {
    let (key, value) = entry.into_inner().map_err(engine_error)?;
    Ok((key.to_vec(), Bytes::from(value)))
}

/// The first bound beyond all keys that begin with `prefix`.
fn end_of_prefix(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Bound::Excluded(end);
        }
    }
    Bound::Unbounded
}

/// Merges pending writes with the rows of the table. Both come in the same order. `comes_first` says whether a pending
/// key precedes a stored key or equals it.
fn merge_entries<'w>(
    pending: impl Iterator<Item = (&'w Vec<u8>, &'w (u64, Option<Bytes>))>,
    mut stored: impl Iterator<Item = Result<Entry, Error>>,
    comes_first: impl Fn(&[u8], &[u8]) -> bool,
    prefix: &[u8],
    limit: usize,
    mut filter: impl FnMut(&[u8], &Bytes) -> bool,
) -> Result<OverlayScan, Error> {
    let mut pending = pending.take_while(|(key, _)| key.starts_with(prefix)).peekable();
    let mut next_stored = || -> Result<Option<Entry>, Error> {
        let entry = stored.next().transpose()?;
        Ok(entry.filter(|(key, _)| key.starts_with(prefix)))
    };
    let (mut found, mut depends_on) = (Vec::new(), 0);
    let mut on_disk = next_stored()?;
    while found.len() < limit {
        let pending_first = match (pending.peek(), &on_disk) {
            (None, None) => break,
            (Some((key, _)), Some((stored_key, _))) => comes_first(key, stored_key),
            (pending, _) => pending.is_some(),
        };
        let entry = if pending_first {
            let Some((key, (batch, value))) = pending.next() else { break };
            depends_on = depends_on.max(*batch);
            if on_disk.as_ref().is_some_and(|(stored_key, _)| stored_key == key) {
                on_disk = next_stored()?;
            }
            value.clone().map(|value| (key.clone(), value))
        } else {
            std::mem::replace(&mut on_disk, next_stored()?)
        };
        found.extend(entry.filter(|(key, value)| filter(key, value)));
    }
    Ok((found, depends_on))
}
