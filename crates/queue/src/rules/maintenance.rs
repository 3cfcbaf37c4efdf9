//! Maintenance: pushes that wait in a spool, and pops that find nothing, for as long as an operator says so.
//!
//! While pushes are spooled, messages are appended to a hidden queue of the same store, which has one partition for
//! each that they are meant for. Afterwards the spool is drained: one decision pushes a run of messages and gives
//! them up in the spool, so each arrives once, whenever the server is killed. Always: the order of a partition is the
//! order in which its messages were answered, so while something is spooled for a partition everything later waits
//! behind it; the modes are a record of the store and survive restarts. Not here: when to drain
//! (`broker::maintenance`). Start at [`detour`] and [`drain`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use baton_store::{Partition, Queue, QueueSpec, Segment, Tx, TxError, collect_misses};
use baton_types::{Offset, PartitionId, QueueOptions};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::rules::push::{self, PushBatch};
use crate::rules::seal::Sealer;

/// The queue that spooled messages wait in. No call can name it, and no listing shows it.
pub const SPOOL: &str = "__baton_spool__";

const RECORD: &str = "system/maintenance";

/// The queue that jobs are kept in, by rules of their own.
const JOBS: &str = "__baton_jobs__";

/// Whether a queue is the server's own.
pub fn is_hidden(queue: &str) -> bool {
    queue == SPOOL || queue == JOBS
}

/// What becomes of pushed messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PushMode {
    /// They go where they are meant to.
    #[default]
    Direct,
    /// They wait in the spool.
    Spooled,
    /// They go where they are meant to, behind what still waits in the spool.
    Draining,
}

/// Both modes, as they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Maintenance {
    /// What becomes of pushed messages.
    pub push: PushMode,
    /// Whether every pop finds nothing.
    pub pops_stopped: bool,
}

/// Whether the stored mode has to be read at all. It is looked at with every push, so it costs next to nothing.
#[derive(Debug)]
pub struct Hint(AtomicBool);

impl Default for Hint {
    /// Until it is known better, the stored mode is read.
    fn default() -> Self {
        Self(AtomicBool::new(true))
    }
}

impl Hint {
    /// Says whether the stored mode may be another than the usual one.
    pub fn set(&self, unusual: bool) {
        self.0.store(unusual, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// When messages wait in the spool instead of being pushed.
#[derive(Clone, Debug, Default)]
pub enum Detour {
    /// Never.
    #[default]
    Never,
    /// When there are others for the same partition already.
    Behind(Arc<Hint>),
    /// When there are, and in any case while pushes are spooled.
    Always(Arc<Hint>),
}

/// The stored modes.
pub fn stored(tx: &mut dyn Tx) -> Result<Maintenance, TxError> {
    let Some(record) = tx.record(RECORD)? else { return Ok(Maintenance::default()) };
    serde_json::from_slice(&record.value)
        .map_err(|e| TxError::Failed(baton_store::Error::Corrupt(format!("the record {RECORD}: {e}"))))
}

fn store(tx: &mut dyn Tx, modes: Maintenance) -> Result<(), TxError> {
    if modes == Maintenance::default() {
        tx.remove_record(RECORD);
        return Ok(());
    }
    let value = serde_json::to_vec(&modes).unwrap_or_default();
    tx.put_record(RECORD, Bytes::from(value), None).map(drop)
}

/// Switches pushes to the spool, or back; then what is spooled has to be drained.
pub fn spool_pushes(tx: &mut dyn Tx, on: bool) -> Result<Maintenance, TxError> {
    let old = stored(tx)?;
    let push = match (on, old.push) {
        (true, _) => PushMode::Spooled,
        (false, PushMode::Spooled) => PushMode::Draining,
        (false, other) => other,
    };
    let modes = Maintenance { push, ..old };
    if modes != old {
        store(tx, modes)?;
    }
    Ok(modes)
}

/// Switches pops off, or on again.
pub fn stop_pops(tx: &mut dyn Tx, on: bool) -> Result<Maintenance, TxError> {
    let old = stored(tx)?;
    let modes = Maintenance { pops_stopped: on, ..old };
    if modes != old {
        store(tx, modes)?;
    }
    Ok(modes)
}

/// How many messages wait in the spool.
pub fn spooled(tx: &mut dyn Tx) -> Result<u64, TxError> {
    match tx.queue(SPOOL)? {
        Some(spool) => tx.message_count(spool.id),
        None => Ok(0),
    }
}

/// Where messages for a partition wait instead of being pushed, if they have to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A partition of the spool.
    At(PartitionId),
    /// One that is yet to be created.
    New,
}

/// The mode that a push has to heed; the usual one when it has not.
pub fn heeded(tx: &mut dyn Tx, detour: &Detour) -> Result<PushMode, TxError> {
    let (hint, always) = match detour {
        Detour::Never => return Ok(PushMode::Direct),
        Detour::Behind(hint) => (hint, false),
        Detour::Always(hint) => (hint, true),
    };
    if !hint.is_set() {
        return Ok(PushMode::Direct);
    }
    Ok(match stored(tx)?.push {
        PushMode::Spooled if !always => PushMode::Draining,
        mode => mode,
    })
}

/// Where messages for a partition have to wait under a mode.
pub fn detour(
    tx: &mut dyn Tx,
    mode: PushMode,
    queue: &str,
    partition: &str,
) -> Result<Option<Place>, TxError> {
    if mode == PushMode::Direct {
        return Ok(None);
    }
    let found = match tx.queue(SPOOL)? {
        Some(spool) => tx.partition(spool.id, &spool_name(queue, partition))?,
        None => None,
    };
    Ok(match (mode, found) {
        (PushMode::Spooled, Some(row)) => Some(Place::At(row.id)),
        (PushMode::Spooled, None) => Some(Place::New),
        (_, Some(row)) if row.start < row.tail => Some(Place::At(row.id)),
        _ => None,
    })
}

/// The partition of the spool for a place that [`detour`] has found.
pub fn ensure_place(
    tx: &mut dyn Tx,
    place: Place,
    queue: &str,
    partition: &str,
) -> Result<PartitionId, TxError> {
    match place {
        Place::At(id) => Ok(id),
        Place::New => {
            let spool = ensure_spool(tx)?;
            Ok(tx.create_partition(spool.id, &spool_name(queue, partition)))
        }
    }
}

fn ensure_spool(tx: &mut dyn Tx) -> Result<Arc<Queue>, TxError> {
    if let Some(spool) = tx.queue(SPOOL)? {
        return Ok(spool);
    }
    // Nothing in it is ever forgotten, and nothing is compared: that happens when it is drained.
    let options = QueueOptions { dedup_window_seconds: 0, ..QueueOptions::default() };
    tx.put_queue(QueueSpec { name: SPOOL.into(), namespace: "".into(), task: "".into(), options })
}

/// The name in the spool of a partition: the length of the queue's name, that name, the partition's name.
pub fn spool_name(queue: &str, partition: &str) -> String {
    format!("{}:{queue}{partition}", queue.len())
}

fn meant_for(spool_name: &str) -> Option<(&str, &str)> {
    let (length, names) = spool_name.split_once(':')?;
    names.split_at_checked(length.parse().ok()?)
}

/// Gives up what is spooled for a queue, or for one of its partitions, among the partitions of the spool after
/// `after`; tells which was looked at last.
pub fn give_up(
    tx: &mut dyn Tx,
    queue: &str,
    partition: Option<&str>,
    after: Option<PartitionId>,
    limit: usize,
) -> Result<Option<PartitionId>, TxError> {
    let Some(spool) = tx.queue(SPOOL)? else { return Ok(None) };
    let page = tx.partitions(spool.id, after, limit)?;
    let is_meant = |row: &&Partition| {
        meant_for(&row.name)
            .is_some_and(|(to, name)| to == queue && partition.is_none_or(|partition| partition == name))
    };
    collect_misses(page.iter().filter(is_meant), |row| tx.trim(row.id, row.tail))?;
    Ok(page.last().map(|row| row.id))
}

/// A run of spooled messages of one partition, ready to be pushed.
#[derive(Debug)]
pub struct Run {
    /// The partition of the spool.
    pub partition: PartitionId,
    /// The offset of the first.
    pub from: Offset,
    /// The offset behind the last.
    pub to: Offset,
    messages: PushBatch,
}

impl Run {
    /// Puts at most `max` messages together that were read from `from` on.
    pub fn read(
        partition: PartitionId,
        spool_name: &str,
        from: Offset,
        segments: &[Segment],
        max: usize,
    ) -> Result<Self, Error> {
        let damaged = |problem| Error::Store(baton_store::Error::Corrupt(problem));
        let (queue, meant) =
            meant_for(spool_name).ok_or_else(|| damaged(format!("the spool's partition {spool_name:?}")))?;
        let mut run = Self { partition, from, to: from, messages: PushBatch::default() };
        for message in segments.iter().flat_map(Segment::messages) {
            let message = message.map_err(baton_store::Error::from)?;
            if message.offset < from {
                continue;
            }
            if run.messages.len() == max {
                break;
            }
            run.messages.add_stored(queue, meant, &message)?;
            run.to = message.offset.plus(1);
        }
        Ok(run)
    }

    /// The same run with every payload sealed.
    pub fn sealed(&self, sealer: &Sealer) -> Result<Self, Error> {
        let messages = self.messages.sealed(sealer, |_| true)?;
        Ok(Self { messages, ..*self })
    }

    /// What is to be pushed.
    pub fn messages(&self) -> &PushBatch {
        &self.messages
    }

    /// Whether there was nothing to read.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

/// What became of a run.
#[derive(Debug)]
pub enum Drained {
    /// It is where it was meant to go.
    Done,
    /// Nothing was done: the modes or the spool have changed.
    Stale,
    /// Nothing was done: the push was refused, and has to be tried again.
    Refused(Error),
}

/// How many messages of a refused run of `len` would have fit, if any: a run may be longer than a queue's `maxSize`.
pub fn room(refused: &Error, len: usize) -> Option<usize> {
    let Error::QueueFull { size, max, .. } = refused else { return None };
    let room = usize::try_from(max.checked_sub(*size)?).unwrap_or(usize::MAX);
    (1..len).contains(&room).then_some(room)
}

/// Pushes a run and gives it up in the spool.
pub fn drain(tx: &mut dyn Tx, run: &Run) -> Result<Drained, TxError> {
    let row = tx.partition_by_id(run.partition)?;
    if stored(tx)?.push != PushMode::Draining || row.is_none_or(|row| row.start != run.from) {
        return Ok(Drained::Stale);
    }
    let prepared = match push::prepare(tx, &run.messages)? {
        Ok(prepared) => prepared,
        Err(error) => return Ok(Drained::Refused(error)),
    };
    push::write(tx, &run.messages, &prepared)?;
    tx.trim(run.partition, run.to)?;
    Ok(Drained::Done)
}

/// Ends the draining when nothing is left; the modes as they are then.
pub fn end_draining(tx: &mut dyn Tx) -> Result<Maintenance, TxError> {
    let modes = stored(tx)?;
    if modes.push != PushMode::Draining || spooled(tx)? > 0 {
        return Ok(modes);
    }
    let spool = tx.queue(SPOOL)?;
    let modes = Maintenance { push: PushMode::Direct, ..modes };
    store(tx, modes)?;
    if let Some(spool) = spool {
        tx.remove_queue(spool.id);
    }
    Ok(modes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spooled_partition_knows_where_its_messages_are_meant_to_go() {
        for (queue, partition) in [("q", "p"), ("", ""), ("a:b", "1:2"), ("ä", "ö"), ("12", "3:4")] {
            assert_eq!(meant_for(&spool_name(queue, partition)), Some((queue, partition)));
        }
        assert_eq!(meant_for("9:short"), None);
        assert_eq!(meant_for("x:y"), None);
    }
}
