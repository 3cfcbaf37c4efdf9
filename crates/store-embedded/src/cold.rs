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
        mut keep: impl FnMut(&[u8], &Bytes) -> bool,
    ) -> Result<Scanned, Error> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after.to_vec()),
            _ => Bound::Included(prefix.to_vec()),
        };
        let mut pending = self
            .writes
            .range((from.clone(), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .peekable();
        let mut stored = table.range::<Vec<u8>, _>((from, Bound::Unbounded));
        let mut next_stored = || -> Result<Option<(Vec<u8>, Bytes)>, Error> {
            let Some(entry) = stored.next() else { return Ok(None) };
            let (key, value) = entry.into_inner().map_err(engine_error)?;
            Ok(key.starts_with(prefix).then(|| (key.to_vec(), Bytes::from(value))))
        };
        let (mut found, mut gate) = (Vec::new(), 0);
        let mut on_disk = next_stored()?;
        while found.len() < limit {
            let pending_first = match (pending.peek(), &on_disk) {
                (None, None) => break,
                (Some((key, _)), Some((stored_key, _))) => *key <= stored_key,
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
}
