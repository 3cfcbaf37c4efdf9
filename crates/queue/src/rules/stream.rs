//! Streams: the state of queries that read a queue, changed together with what they read and push.
//!
//! A query is registered under a name with the hash of its configuration; its state is one value per partition and
//! key. A cycle changes state, pushes results and finishes what was read in one decision, so after a crash either
//! all of it has happened or the messages come again and find the state as it was. Always: a cycle that shows a
//! lease changes nothing unless that lease is live, so one that is sent twice happens once. Not here: what a query
//! computes, which is the client's. Start at [`cycle`].
//!
//! Records: `stream/q/NAME` is a query, `stream/i/ID` its name, `stream/s/STATE/PARTITION/KEY` a value under the
//! query's present state number, and `stream/x/STATE` says that the values of a former one are to be cleared away.

use std::sync::Arc;

use baton_store::{Cursor, Durability, Group, Tx, TxError};
use baton_types::wire::AckStatus;
use baton_types::{LeaseId, Offset, PartitionId, Timestamp};
use bytes::{BufMut, Bytes};
use serde::{Deserialize, Serialize};

use crate::rules::ack::{self, BAD_LEASE, FINISHED, NOT_FOUND, RepeatedAck, Resolved};
use crate::rules::cursor::{current_cursor, settle};
use crate::rules::push::{self, PushBatch, Pushed};
use crate::{AckItem, Error, LeaseClaim};

/// Bytes of a state key: it becomes part of a key of the store.
pub const KEY_BYTES_MAX: usize = 1024;
/// Bytes of a state value, with room for its moment within a record.
pub const VALUE_BYTES_MAX: usize = baton_types::limits::RECORD_BYTES_MAX - MOMENT_BYTES;
const MOMENT_BYTES: usize = 8;
/// Values cleared away in one decision.
const CLEARED_AT_ONCE: usize = 1000;

/// A query to be registered.
#[derive(Clone, Debug)]
pub struct NewQuery {
    /// Its id, if the name is new.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The queue it reads.
    pub source: String,
    /// The queue it pushes to.
    pub sink: Option<String>,
    /// What it computes, as a hash.
    pub config_hash: String,
    /// Whether to give up the state of another configuration.
    pub reset: bool,
}

/// What a registration came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The query's id.
    pub id: String,
    /// Whether the name was new.
    pub fresh: bool,
    /// Whether state was given up.
    pub reset: bool,
    /// The hash it is registered under, if that is another and it was not reset: nothing was changed.
    pub mismatch: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Query {
    id: String,
    /// The number under which its values are kept; a reset takes a new one.
    state: u64,
    source: String,
    sink: Option<String>,
    config_hash: String,
}

fn query_key(name: &str) -> String {
    format!("stream/q/{name}")
}

fn id_key(id: &str) -> String {
    format!("stream/i/{id}")
}

fn state_prefix(state: u64) -> String {
    format!("stream/s/{state:016x}/")
}

fn partition_prefix(state: u64, partition: PartitionId) -> String {
    format!("{}{:016x}/", state_prefix(state), partition.0)
}

fn damaged(key: &str, problem: &impl std::fmt::Display) -> TxError {
    TxError::Failed(baton_store::Error::Corrupt(format!("the record {key}: {problem}")))
}

fn named(tx: &mut dyn Tx, name: &str) -> Result<Option<Query>, TxError> {
    let key = query_key(name);
    let Some(record) = tx.record(&key)? else { return Ok(None) };
    serde_json::from_slice(&record.value).map(Some).map_err(|e| damaged(&key, &e))
}

/// The number of the present state of a query.
fn state_of(tx: &mut dyn Tx, id: &str) -> Result<Option<u64>, TxError> {
    let Some(record) = tx.record(&id_key(id))? else { return Ok(None) };
    let name = String::from_utf8(record.value.to_vec()).map_err(|e| damaged(&id_key(id), &e))?;
    Ok(named(tx, &name)?.filter(|query| query.id == id).map(|query| query.state))
}

/// Registers a query, or finds it registered.
pub fn register(tx: &mut dyn Tx, new: &NewQuery) -> Result<Registered, TxError> {
    let old = named(tx, &new.name)?;
    let is_other = old.as_ref().is_some_and(|old| old.config_hash != new.config_hash);
    let (id, fresh) = match &old {
        Some(old) => (old.id.clone(), false),
        None => (new.id.clone(), true),
    };
    if let Some(old) = old.as_ref().filter(|_| is_other && !new.reset) {
        return Ok(Registered { id, fresh, reset: false, mismatch: Some(old.config_hash.clone()) });
    }
    let state = match &old {
        Some(old) if !is_other => old.state,
        _ => tx.fresh_token(),
    };
    let query = Query {
        id: id.clone(),
        state,
        source: new.source.clone(),
        sink: new.sink.clone(),
        config_hash: new.config_hash.clone(),
    };
    let value = serde_json::to_vec(&query).unwrap_or_default();
    tx.put_record(&query_key(&new.name), Bytes::from(value), None)?;
    if fresh {
        tx.put_record(&id_key(&id), Bytes::copy_from_slice(new.name.as_bytes()), None)?;
    }
    if let Some(old) = old.filter(|_| is_other) {
        tx.put_record(&cleared_key(old.state), Bytes::new(), None)?;
    }
    Ok(Registered { id, fresh, reset: is_other, mismatch: None })
}

/// Gives up the state of the queries that read a queue which has gone, for its partitions never come again. Looks at
/// up to `limit` queries after `after`, and tells which was the last.
pub fn forget_source(
    tx: &mut dyn Tx,
    queue: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Option<String>, TxError> {
    let page = tx.records("stream/q/", after, limit)?;
    let last = page.last().map(|(key, _)| key.clone());
    for (key, record) in page {
        let query: Query = serde_json::from_slice(&record.value).map_err(|e| damaged(&key, &e))?;
        if query.source == queue {
            let former = query.state;
            let query = Query { state: tx.fresh_token(), ..query };
            let value = serde_json::to_vec(&query).unwrap_or_default();
            tx.put_record(&key, Bytes::from(value), None)?;
            tx.put_record(&cleared_key(former), Bytes::new(), None)?;
        }
    }
    Ok(last)
}

fn cleared_key(state: u64) -> String {
    format!("stream/x/{state:016x}")
}

/// Clears away values that a reset has left; whether there may be more.
pub fn clear(tx: &mut dyn Tx) -> Result<bool, TxError> {
    let Some((key, _)) = tx.records("stream/x/", None, 1)?.pop() else { return Ok(false) };
    let state = key.rsplit('/').next().and_then(|text| u64::from_str_radix(text, 16).ok());
    let state = state.ok_or_else(|| damaged(&key, &"not a number"))?;
    let values = tx.records(&state_prefix(state), None, CLEARED_AT_ONCE)?;
    if values.len() < CLEARED_AT_ONCE {
        tx.remove_record(&key);
    }
    values.iter().for_each(|(key, _)| tx.remove_record(key));
    Ok(true)
}

/// One value of a query's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRow {
    /// Its key.
    pub key: String,
    /// The value, as JSON.
    pub value: Bytes,
    /// When it was written.
    pub updated_at: Timestamp,
}

fn state_row(key: &str, mut value: Bytes) -> Result<StateRow, TxError> {
    let moment = value.get(..MOMENT_BYTES).and_then(|bytes| bytes.try_into().ok());
    let moment = i64::from_le_bytes(moment.ok_or_else(|| damaged(key, &"too short"))?);
    let value = value.split_off(MOMENT_BYTES);
    Ok(StateRow { key: key.into(), value, updated_at: Timestamp::from_micros(moment) })
}

/// Which values to read.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// Those with these keys.
    Keys(Vec<String>),
    /// Those whose keys begin so.
    Prefix(String),
}

/// Values of a query in a partition: those of the keys named, or up to `limit` after `after`, by key.
pub fn state(
    tx: &mut dyn Tx,
    query: &str,
    partition: PartitionId,
    wanted: &Wanted,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<StateRow>, TxError> {
    let Some(state) = state_of(tx, query)? else { return Ok(Vec::new()) };
    let all = partition_prefix(state, partition);
    match wanted {
        Wanted::Keys(keys) => {
            let mut rows = Vec::new();
            for key in keys {
                if let Some(record) = tx.record(&format!("{all}{key}"))? {
                    rows.push(state_row(key, record.value)?);
                }
            }
            Ok(rows)
        }
        Wanted::Prefix(prefix) => {
            let after = after.map(|after| format!("{all}{after}"));
            let found = tx.records(&format!("{all}{prefix}"), after.as_deref(), limit)?;
            found.into_iter().map(|(key, record)| state_row(&key[all.len()..], record.value)).collect()
        }
    }
}

/// A change of one value.
#[derive(Clone, Debug)]
pub enum StateChange {
    /// Writes a value, as JSON.
    Put {
        /// Its key.
        key: String,
        /// The value.
        value: Bytes,
    },
    /// Removes a value.
    Remove {
        /// Its key.
        key: String,
    },
}

/// What a cycle says of the messages that it has read.
#[derive(Clone, Debug)]
pub struct CycleAck {
    /// The transaction id of the last one.
    pub transaction_id: String,
    /// The lease they are held under.
    pub lease: Option<LeaseId>,
    /// What became of them: finished up to that one, or that one failed.
    pub status: AckStatus,
    /// Why it failed.
    pub error: Option<String>,
    /// Whether the lease ends with it.
    pub release: bool,
}

/// What a query does with a batch of one partition, all or nothing.
#[derive(Debug)]
pub struct Cycle {
    /// The query.
    pub query: String,
    /// The partition that was read.
    pub partition: PartitionId,
    /// The group that the query reads as.
    pub group: String,
    /// Changes of its state, in order.
    pub changes: Vec<StateChange>,
    /// What it pushes.
    pub pushes: PushBatch,
    /// What it has read; nothing when it only flushes.
    pub ack: Option<CycleAck>,
}

/// What became of the messages read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CycleAcked {
    /// How many were finished.
    pub finished: u64,
    /// Whether the lease has ended.
    pub lease_released: bool,
    /// Whether the message became a dead letter.
    pub dead_lettered: bool,
}

/// What a cycle came to.
#[derive(Clone, Debug, Default)]
pub struct Cycled {
    /// Why nothing was done; `None` is success.
    pub error: Option<String>,
    /// The queue that was read.
    pub queue: Option<Arc<str>>,
    /// One per message pushed.
    pub pushed: Vec<Pushed>,
    /// What became of the messages read.
    pub acked: Option<CycleAcked>,
}

/// What is finished, decided but not written.
enum Finish {
    Prefix { group: Arc<Group>, cursor: Box<Cursor>, acked: CycleAcked },
    One(ack::Prepared),
}

/// Decides a cycle; `offset` is that of the message its ack names.
pub fn cycle(
    tx: &mut dyn Tx,
    cycle: &Cycle,
    pushes: &PushBatch,
    offset: Option<Offset>,
) -> Result<Result<Cycled, Error>, TxError> {
    let partition = tx.partition_by_id(cycle.partition)?;
    let queue = match &partition {
        Some(partition) => tx.queue_by_id(partition.queue)?.map(|queue| queue.spec.name.clone()),
        None => None,
    };
    let refused = |error: String| Cycled { error: Some(error), queue: queue.clone(), ..Cycled::default() };
    let Some(state) = state_of(tx, &cycle.query)? else {
        return Ok(Ok(refused("Query not found; register it first".into())));
    };
    if queue.is_none() {
        return Ok(Ok(refused("Partition not found".into())));
    }
    let finish = match &cycle.ack {
        None => None,
        Some(ack) => match prepare_ack(tx, cycle, ack, offset)? {
            Ok(finish) => Some(finish),
            Err(error) => return Ok(Ok(refused(error.into()))),
        },
    };
    if let Some(key) = gone(tx, cycle, pushes, &partition_prefix(state, cycle.partition))? {
        return Ok(Ok(refused(format!("State of {key:?} is gone; somebody else has emitted it"))));
    }
    let prepared = match push::prepare(tx, pushes)? {
        Ok(prepared) => prepared,
        Err(error @ (Error::QueueFull { .. } | Error::Invalid(_) | Error::NoRoom { .. })) => {
            return Ok(Ok(refused(error.to_string())));
        }
        Err(error) => return Ok(Err(error)),
    };
    let pushed = push::write(tx, pushes, &prepared)?;
    write_changes(tx, &partition_prefix(state, cycle.partition), &cycle.changes)?;
    let acked = finish.map(|finish| write_ack(tx, cycle.partition, finish));
    Ok(Ok(Cycled { error: None, queue, pushed, acked }))
}

/// A value that a cycle emits and removes, though it is not there any more. A cycle that acks is told apart from others
/// by its lease. One that only flushes has nothing but the state that it has read: when that is gone, another flush or
/// cycle has emitted it, and emitting it again would be once too often.
fn gone(tx: &mut dyn Tx, cycle: &Cycle, pushes: &PushBatch, prefix: &str) -> Result<Option<String>, TxError> {
    if cycle.ack.is_some() || pushes.is_empty() {
        return Ok(None);
    }
    let mut written = Vec::new();
    for change in &cycle.changes {
        match change {
            StateChange::Put { key, .. } => written.push(key),
            StateChange::Remove { key } if written.contains(&key) => {}
            StateChange::Remove { key } => {
                if tx.record(&format!("{prefix}{key}"))?.is_none() {
                    return Ok(Some(key.clone()));
                }
            }
        }
    }
    Ok(None)
}

fn write_changes(tx: &mut dyn Tx, prefix: &str, changes: &[StateChange]) -> Result<(), TxError> {
    for change in changes {
        match change {
            StateChange::Put { key, value } => {
                let mut row = Vec::with_capacity(MOMENT_BYTES + value.len());
                row.put_i64_le(tx.now().micros());
                row.put_slice(value);
                tx.put_record(&format!("{prefix}{key}"), Bytes::from(row), None)?;
            }
            StateChange::Remove { key } => tx.remove_record(&format!("{prefix}{key}")),
        }
    }
    Ok(())
}

fn prepare_ack(
    tx: &mut dyn Tx,
    cycle: &Cycle,
    ack: &CycleAck,
    offset: Option<Offset>,
) -> Result<Result<Finish, &'static str>, TxError> {
    if ack.status == AckStatus::Completed {
        return prepare_prefix(tx, cycle, ack, offset);
    }
    let item = AckItem {
        partition: Some(cycle.partition),
        transaction_id: ack.transaction_id.clone(),
        group: cycle.group.clone(),
        lease: ack.lease.map_or(LeaseClaim::Unknown, LeaseClaim::Held),
        status: ack.status,
        error: ack.error.clone(),
    };
    let prepared = ack::prepare(
        tx,
        &[Resolved { item, offset, namesakes: Vec::new(), by_server: false }],
        RepeatedAck::Fails,
    )?;
    Ok(match prepared.results.iter().find_map(|acked| acked.error) {
        Some(error) => Err(error),
        None => Ok(Finish::One(prepared)),
    })
}

/// Finishes everything up to the message named.
fn prepare_prefix(
    tx: &mut dyn Tx,
    cycle: &Cycle,
    ack: &CycleAck,
    offset: Option<Offset>,
) -> Result<Result<Finish, &'static str>, TxError> {
    let Some(partition) = tx.partition_by_id(cycle.partition)? else { return Ok(Err(NOT_FOUND)) };
    let Some(group) = tx.group(partition.queue, &cycle.group)? else { return Ok(Err(BAD_LEASE)) };
    let mut cursor = current_cursor(tx, &group, &partition)?;
    let now = tx.now();
    let live = cursor.lease.as_ref().filter(|lease| lease.until > now && Some(lease.id) == ack.lease);
    let Some(end) = live.map(|lease| lease.end) else { return Ok(Err(BAD_LEASE)) };
    let Some(offset) = offset.filter(|offset| *offset < partition.tail) else { return Ok(Err(NOT_FOUND)) };
    if offset >= end {
        return Ok(Err(BAD_LEASE));
    }
    if offset < cursor.next {
        return Ok(Err(FINISHED));
    }
    tx.admit_update()?;
    let finished = cursor.finished.get_or_insert_default();
    let before = finished.len();
    finished.insert_range(cursor.next, offset.plus(1));
    let count = finished.len() - before;
    cursor.consumed += count;
    settle(&mut cursor);
    let released = ack.release || cursor.next >= end;
    if released {
        cursor.lease = None;
        cursor.available_at = now;
        cursor.attempts = 0;
    }
    let acked = CycleAcked { finished: count, lease_released: released, dead_lettered: false };
    Ok(Ok(Finish::Prefix { group, cursor: Box::new(cursor), acked }))
}

fn write_ack(tx: &mut dyn Tx, partition: PartitionId, finish: Finish) -> CycleAcked {
    match finish {
        Finish::Prefix { group, cursor, acked } => {
            tx.put_cursor(group.id, partition, *cursor, Durability::Now);
            acked
        }
        Finish::One(prepared) => {
            let acked = ack::write(tx, prepared).pop().unwrap_or_default();
            CycleAcked {
                finished: u64::from(acked.dead_lettered),
                lease_released: acked.lease_released,
                dead_lettered: acked.dead_lettered,
            }
        }
    }
}
