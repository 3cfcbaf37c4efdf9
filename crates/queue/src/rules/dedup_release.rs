//! Transaction ids whose messages an operator has deleted: they are accepted again although their window goes on.
//!
//! A message that retention removes keeps its id for the whole window; one that was deleted does not. While a deleted
//! message has its place in the partition, that tells; once retention has gone over the place, a record does, which
//! expires when the store has forgotten the id. It is read only when an id meets a message that is gone. Not here:
//! what a duplicate is (`push`).

use std::time::Duration;

use baton_store::{Queue, Record, Tx, TxError, expiry};
use baton_types::{IdHash, Offset, PartitionId};
use bytes::Bytes;

/// A store remembers an id for less than this many windows.
const WINDOWS_MAX: u32 = 2;

/// A withdrawal that has been looked up and can no longer fail.
pub struct Withdrawal {
    key: String,
    old: Option<Record>,
    end: Offset,
    life: Duration,
}

impl Withdrawal {
    /// Of one id, of messages before `end`; nothing where no ids are remembered.
    pub fn of_id(
        tx: &mut dyn Tx,
        queue: &Queue,
        partition: PartitionId,
        transaction_id: &[u8],
        end: Offset,
    ) -> Result<Option<Self>, TxError> {
        Self::of(tx, queue, id_key(partition, IdHash::new(transaction_id)), end)
    }

    /// Of the ids of all messages before `end`.
    pub fn of_all(
        tx: &mut dyn Tx,
        queue: &Queue,
        partition: PartitionId,
        end: Offset,
    ) -> Result<Option<Self>, TxError> {
        Self::of(tx, queue, partition_key(partition), end)
    }

    fn of(tx: &mut dyn Tx, queue: &Queue, key: String, end: Offset) -> Result<Option<Self>, TxError> {
        let window = Duration::from_secs(queue.spec.options.dedup_window_seconds.into());
        if window.is_zero() {
            return Ok(None);
        }
        let old = tx.record(&key)?;
        Ok(Some(Self { key, old, end, life: window.saturating_mul(WINDOWS_MAX) }))
    }

    pub fn write(self, tx: &mut dyn Tx) -> Result<(), TxError> {
        let until = tx.now().after(self.life);
        let value = Bytes::copy_from_slice(&self.end.0.to_le_bytes());
        expiry::put(tx, &self.key, self.old.as_ref(), value, Some(until)).map(drop)
    }
}

/// Whether the message at `offset`, which is gone, was deleted together with its id.
pub fn is_withdrawn(
    tx: &mut dyn Tx,
    partition: PartitionId,
    id: IdHash,
    offset: Offset,
) -> Result<bool, TxError> {
    let (of_id, of_all) = (tx.record(&id_key(partition, id))?, tx.record(&partition_key(partition))?);
    Ok([of_id, of_all].into_iter().flatten().any(|record| end_of(&record) > offset))
}

fn end_of(record: &Record) -> Offset {
    Offset(record.value[..].try_into().map_or(0, u64::from_le_bytes))
}

fn partition_key(partition: PartitionId) -> String {
    format!("dedup/{:016x}/", partition.0)
}

fn id_key(partition: PartitionId, id: IdHash) -> String {
    format!("{}{:016x}{:08x}", partition_key(partition), id.hash, id.check)
}
