//! Tables that are not kept in memory: read from disk, seen through the writes that are still on their way.

use std::collections::BTreeMap;
use std::ops::Bound;

use baton_store::Error;
use bytes::Bytes;
use fjall::Keyspace;

use crate::tables::engine_error;

/// Rows in order, and the group to wait for before they may be told to anyone.
pub type Scanned = (Vec<(Vec<u8>, Bytes)>, u64);

/// Writes of one keyspace that may not be on disk yet, each with the group that carries it.
#[derive(Default)]
pub struct Overlay {
    writes: BTreeMap<Vec<u8>, (u64, Option<Bytes>)>,
}

impl Overlay {
    /// Notes a write, or a removal, made in `group`.
    pub fn put(&mut self, group: u64, key: Vec<u8>, value: Option<Bytes>) {
        self.writes.insert(key, (group, value));
    }

    /// The writes made in `group`: for each key the last.
    pub fn made_in(&self, group: u64) -> impl Iterator<Item = (&[u8], Option<&Bytes>)> {
        let of_group = self.writes.iter().filter(move |(_, (made_in, _))| *made_in == group);
        of_group.map(|(key, (_, value))| (&key[..], value.as_ref()))
    }

    /// Forgets what the table has, which are the writes of all groups up to `told`.
    pub fn forget(&mut self, told: u64) {
        if !self.writes.is_empty() {
            self.writes.retain(|_, (group, _)| *group > told);
        }
    }

    /// The value under `key`, and the group to wait for before it may be told to anyone.
    pub fn get(&self, table: &Keyspace, key: &[u8]) -> Result<(Option<Bytes>, u64), Error> {
        if let Some((group, value)) = self.writes.get(key) {
            return Ok((value.clone(), *group));
        }
        Ok((table.get(key).map_err(engine_error)?.map(Bytes::from), 0))
    }

    /// Up to `limit` entries with keys that begin with `prefix` and come after `after`, in order, and the
    /// group to wait for.
    pub fn scan(
        &self,
        table: &Keyspace,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        keep: impl FnMut(&[u8], &Bytes) -> bool,
    ) -> Result<Scanned, Error> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after.to_vec()),
            _ => Bound::Included(prefix.to_vec()),
        };
        let pending = self.writes.range((from.clone(), Bound::Unbounded));
        let stored = table.range::<Vec<u8>, _>((from, Bound::Unbounded)).map(read_entry);
        merge(pending, stored, |pending, stored| pending <= stored, prefix, limit, keep)
    }

    /// Up to `limit` entries with keys that begin with `prefix` and come before `before`, the last first, and the group to
    /// wait for.
    pub fn scan_back(
        &self,
        table: &Keyspace,
        prefix: &[u8],
        before: Option<&[u8]>,
        limit: usize,
    ) -> Result<Scanned, Error> {
        let until = match before {
            Some(before) => Bound::Excluded(before.to_vec()),
            None => end_of(prefix),
        };
        let pending = self.writes.range((Bound::Unbounded, until.clone())).rev();
        let stored = table.range::<Vec<u8>, _>((Bound::Unbounded, until)).rev().map(read_entry);
        merge(pending, stored, |pending, stored| pending >= stored, prefix, limit, |_, _| true)
    }
}

type Entry = (Vec<u8>, Bytes);

fn read_entry(entry: fjall::Guard) -> Result<Entry, Error> {
    let (key, value) = entry.into_inner().map_err(engine_error)?;
    Ok((key.to_vec(), Bytes::from(value)))
}

/// The first bound beyond all keys that begin with `prefix`.
fn end_of(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Bound::Excluded(end);
        }
    }
    Bound::Unbounded
}

/// What is stored, seen through what is pending. Both come in the same order; `comes_first` tells whether a pending key comes
/// before a stored one or is the same.
fn merge<'w>(
    pending: impl Iterator<Item = (&'w Vec<u8>, &'w (u64, Option<Bytes>))>,
    mut stored: impl Iterator<Item = Result<Entry, Error>>,
    comes_first: impl Fn(&[u8], &[u8]) -> bool,
    prefix: &[u8],
    limit: usize,
    mut keep: impl FnMut(&[u8], &Bytes) -> bool,
) -> Result<Scanned, Error> {
    let mut pending = pending.take_while(|(key, _)| key.starts_with(prefix)).peekable();
    let mut next_stored = || -> Result<Option<Entry>, Error> {
        let entry = stored.next().transpose()?;
        Ok(entry.filter(|(key, _)| key.starts_with(prefix)))
    };
    let (mut found, mut gate) = (Vec::new(), 0);
    let mut on_disk = next_stored()?;
    while found.len() < limit {
        let pending_first = match (pending.peek(), &on_disk) {
            (None, None) => break,
            (Some((key, _)), Some((stored_key, _))) => comes_first(key, stored_key),
            (pending, _) => pending.is_some(),
        };
        let entry = if pending_first {
            let Some((key, (group, value))) = pending.next() else { break };
            gate = gate.max(*group);
            if on_disk.as_ref().is_some_and(|(stored_key, _)| stored_key == key) {
                on_disk = next_stored()?;
            }
            value.clone().map(|value| (key.clone(), value))
        } else {
            std::mem::replace(&mut on_disk, next_stored()?)
        };
        found.extend(entry.filter(|(key, value)| keep(key, value)));
    }
    Ok((found, gate))
}
