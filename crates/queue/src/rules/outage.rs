//! Pushes while the store is away: they wait in a store of this server's own, and follow when the other is back.
//!
//! Decisions only; when they are made is in `broker::outage`. Messages wait as they do in maintenance: in a hidden
//! queue with one partition for each that they are meant for. How far each of these has arrived is a record of the
//! store they are meant for, written in the commit that brings them. So each arrives once, whenever either side is
//! killed or the outcome of a commit is unknown. Always: what this server has answered for a partition arrives in the
//! order of the answers. Not promised: the order between servers while the store is away, for none hears of another.

use baton_store::{Error, Partition, Tx, TxError};
use baton_types::{Offset, PartitionId};
use bytes::Bytes;

use crate::rules::maintenance::{self, Detour, Drained, PushMode, Run, SPOOL};
use crate::rules::push::{self, PushBatch, Pushed};

/// Where a spool's own name is kept in it.
const NAME: &str = "spool/name";
/// Records that tell how far spools have arrived, in the store they are meant for.
const ARRIVED: &str = "system/spool/";
/// Progress records removed in one decision.
pub const PAGE: usize = 1_000;

/// The name of a spool, which nothing else has; `fresh` if it has none yet.
pub fn name(tx: &mut dyn Tx, fresh: &str) -> Result<String, TxError> {
    match tx.record(NAME)? {
        Some(record) => String::from_utf8(record.value.to_vec())
            .map_err(|_| TxError::Failed(Error::Corrupt(format!("the record {NAME}")))),
        None => {
            tx.put_record(NAME, Bytes::from(fresh.to_owned()), None)?;
            Ok(fresh.to_owned())
        }
    }
}

/// Lets all messages wait in the spool.
pub fn wait(tx: &mut dyn Tx, batch: &PushBatch) -> Result<Vec<Pushed>, TxError> {
    push::spool_all(tx, batch)
}

/// Partitions of the spool after `after`.
pub fn waiting(
    tx: &mut dyn Tx,
    after: Option<PartitionId>,
    limit: usize,
) -> Result<Option<Vec<Partition>>, TxError> {
    let Some(spool) = tx.queue(SPOOL)? else { return Ok(None) };
    Ok(Some(tx.partitions(spool.id, after, limit)?).filter(|page| !page.is_empty()))
}

/// Takes the spool itself away when nothing waits in it.
pub fn end(tx: &mut dyn Tx) -> Result<(), TxError> {
    if let Some(spool) = tx.queue(SPOOL)?
        && maintenance::spooled(tx)? == 0
    {
        tx.remove_queue(spool.id);
    }
    Ok(())
}

/// Gives up what has arrived.
pub fn give_up(tx: &mut dyn Tx, partition: PartitionId, to: Offset) -> Result<(), TxError> {
    tx.trim(partition, to)
}

fn key(spool: &str, partition: PartitionId) -> String {
    format!("{ARRIVED}{spool}/{}", partition.0)
}

/// How far a partition of a spool has arrived.
pub fn arrived(tx: &mut dyn Tx, spool: &str, partition: PartitionId) -> Result<Offset, TxError> {
    let Some(record) = tx.record(&key(spool, partition))? else { return Ok(Offset(0)) };
    let number = std::str::from_utf8(&record.value).ok().and_then(|text| text.parse().ok());
    number
        .map(Offset)
        .ok_or_else(|| TxError::Failed(Error::Corrupt(format!("the record {}", key(spool, partition)))))
}

/// Pushes a run where it is meant to go, and notes that it is there.
pub fn arrive(tx: &mut dyn Tx, spool: &str, run: &Run, detour: &Detour) -> Result<Drained, TxError> {
    if arrived(tx, spool, run.partition)? > run.from {
        return Ok(Drained::Stale);
    }
    if maintenance::heeded(tx, detour)? != PushMode::Direct {
        // A stop of pushes covers these too: they wait where they are, also behind what waits there.
        return Ok(Drained::Stale);
    }
    let prepared = match push::prepare(tx, run.messages())? {
        Ok(prepared) => prepared,
        Err(error) => return Ok(Drained::Refused(error)),
    };
    tx.put_record(&key(spool, run.partition), Bytes::from(run.to.0.to_string()), None)?;
    push::write(tx, run.messages(), &prepared)?;
    Ok(Drained::Done)
}

/// Forgets how far a spool had arrived, once nothing of it is left; tells whether there may be more to forget.
pub fn forget(tx: &mut dyn Tx, spool: &str) -> Result<bool, TxError> {
    let found = tx.records(&format!("{ARRIVED}{spool}/"), None, PAGE)?;
    for (key, _) in &found {
        tx.remove_record(key);
    }
    Ok(found.len() == PAGE)
}
