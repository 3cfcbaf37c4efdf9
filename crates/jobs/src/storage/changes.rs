//! The changes of a unit of work, and how they are written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_store::{Error as StoreError, MessageBlock, Record, Tx, TxError, expiry};
use baton_types::limits::RECORD_BYTES_MAX;
use baton_types::{Offset, PartitionId, Timestamp};
use bytes::Bytes;

use crate::model::keys;
use crate::model::queue_head::Head;
use crate::storage::chunk_cache::ChunkCache;
use crate::storage::commit_effects::CommitEffects;

/// Messages to append to a partition, from offset `first` on.
pub(super) struct Appends {
    pub first: u64,
    pub block: MessageBlock,
}

/// The changes of a unit of work, before they are written.
pub struct Changes {
    pub(super) heads: BTreeMap<PartitionId, (Head, bool)>,
    pub(super) kinds: BTreeMap<PartitionId, (Vec<Arc<str>>, bool)>,
    pub(super) chunks: ChunkCache,
    pub(super) read: BTreeMap<String, Option<Record>>,
    pub(super) writes: BTreeMap<String, (Option<Bytes>, Option<Timestamp>)>,
    pub(super) appends: BTreeMap<PartitionId, Appends>,
    pub(super) trims: Vec<(PartitionId, u64)>,
    pub(super) effects: CommitEffects,
}

/// Records to write, each with its value and expiry.
#[cfg(test)]
pub(crate) type Writes = BTreeMap<String, (Option<Bytes>, Option<Timestamp>)>;

impl Changes {
    /// Removes the writes whose keys have these prefixes, as a broken rule would that uses two commits.
    #[cfg(test)]
    pub(crate) fn withhold(&mut self, prefixes: &[&str]) -> Writes {
        let is_withheld = |key: &String| prefixes.iter().any(|prefix| key.starts_with(prefix));
        let (withheld, writes) =
            std::mem::take(&mut self.writes).into_iter().partition(|(key, _)| is_withheld(key));
        self.writes = writes;
        withheld
    }

    /// Writes everything. Returns the effects. A value that is too large for a record is refused before the first
    /// write.
    pub fn write(mut self, tx: &mut dyn Tx) -> Result<CommitEffects, TxError> {
        let mut records: Vec<(String, Bytes)> = Vec::new();
        let mut emptied = Vec::new();
        for (at, page) in self.chunks.iter() {
            if page.dirty && !page.chunk.slots.is_empty() {
                records.push((keys::chunk(at.0, at.1), page.chunk.encode().into()));
            } else if page.dirty && page.stored {
                emptied.push(keys::chunk(at.0, at.1));
            }
        }
        for (partition, (head, dirty)) in &mut self.heads {
            if *dirty {
                records.push((keys::head(*partition), head.encode().into()));
            }
        }
        for (partition, (kinds, dirty)) in &self.kinds {
            if *dirty {
                let bytes = serde_json::to_vec(kinds).unwrap_or_default();
                records.push((keys::kinds(*partition), bytes.into()));
            }
        }
        let put = self.writes.values().filter_map(|(value, _)| value.as_ref());
        for value in records.iter().map(|(_, value)| value).chain(put) {
            if value.len() > RECORD_BYTES_MAX {
                return Err(StoreError::TooLarge { bytes: value.len(), max: RECORD_BYTES_MAX }.into());
            }
        }
        if !self.trims.is_empty() || !emptied.is_empty() {
            tx.use_reserve();
        }
        for (partition, appends) in self.appends {
            if !appends.block.is_empty() {
                tx.admit_update()?;
                tx.append(partition, &appends.block, Duration::ZERO);
            }
        }
        for (partition, start) in self.trims {
            tx.trim(partition, Offset(start))?;
        }
        for (key, value) in records {
            tx.put_record(&key, value, None)?;
        }
        emptied.iter().for_each(|key| tx.remove_record(key));
        for (key, (value, expires_at)) in self.writes {
            let old = self.read.get(&key).and_then(Option::as_ref);
            match value {
                Some(value) => drop(expiry::put(tx, &key, old, value, expires_at)?),
                None => match old {
                    Some(old) => expiry::remove(tx, &key, old),
                    None => tx.remove_record(&key),
                },
            }
        }
        Ok(self.effects)
    }
}
