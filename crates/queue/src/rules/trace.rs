//! Traces: what consumers say about a message while they work on it, kept beside it for a while.
//!
//! A trace is a record under its message, `trace/m/QUEUE/PARTITION/HASH/MOMENT`, where the hash is that of the
//! message's transaction id. Each of its names has a row of its own that points there, the newest first
//! (`trace/n/NAME/MOMENT`), and a row with counts (`trace/c/NAME`); `trace/t/MOMENT` tells what is due to be
//! forgotten. So a trace is found by message and by name without looking at others. Always: all rows of a trace are
//! written and removed together; moments are those of decisions, no two of which are the same; the data of a trace in an
//! encrypted queue is sealed. Not here: reading payloads (`broker::trace`). Start at [`record`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton_store::{Tx, TxError};
use baton_types::{Offset, PartitionId, QueueId, Timestamp, transaction_hash};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Error;
use crate::rules::seal::{Opener, Owner, Sealer, hex, unhex};

/// Bytes of a trace's data: it is a note, not a payload.
pub const DATA_BYTES_MAX: usize = 16 << 10;
/// Names of one trace: each costs two rows.
pub const NAMES_MAX: usize = 16;
/// Traces of one message: all are read when one is added.
pub const PER_MESSAGE_MAX: usize = 100;
/// Traces forgotten in one decision.
const FORGOTTEN_AT_ONCE: usize = 100;

/// A trace to be kept.
#[derive(Clone, Debug)]
pub struct NewTrace {
    /// Its id.
    pub id: String,
    /// The partition of its message.
    pub partition: PartitionId,
    /// The transaction id of its message.
    pub transaction_id: String,
    /// The group that works on the message.
    pub group: String,
    /// Of what kind it is.
    pub event_type: String,
    /// By which names it can be found.
    pub names: BTreeSet<String>,
    /// What it says, as JSON.
    pub data: Box<RawValue>,
    /// Who says so.
    pub worker: String,
}

/// A kept trace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trace {
    /// Its id.
    pub id: String,
    /// The queue of its message.
    pub queue: QueueId,
    /// The partition of its message.
    pub partition: PartitionId,
    /// The place of its message.
    pub offset: Offset,
    /// The transaction id of its message.
    pub transaction_id: String,
    /// The group that worked on the message.
    pub group: String,
    /// Of what kind it is.
    pub event_type: String,
    /// By which names it can be found.
    pub names: BTreeSet<String>,
    /// What it says, as JSON; where that is sealed, the text of the sealed bytes.
    pub data: Box<RawValue>,
    /// Whether the data is sealed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_sealed: bool,
    /// Who said so.
    pub worker: String,
    /// When.
    pub created_at: Timestamp,
}

/// How often a name was used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameCount {
    /// The name.
    pub name: String,
    /// Traces with it.
    pub traces: u64,
    /// Messages that have such traces.
    pub messages: u64,
    /// When the newest of them was written.
    pub last_seen: Timestamp,
}

/// What is due to be forgotten at a moment.
#[derive(Serialize, Deserialize)]
struct Due {
    message: String,
    moment: u64,
}

impl Trace {
    fn message_prefix(&self) -> String {
        message_prefix(self.queue, self.partition, &self.transaction_id)
    }

    /// The same trace with its data as it was given; `null` where that cannot be read.
    pub fn opened(mut self, opener: &mut Opener<'_>) -> Self {
        if std::mem::take(&mut self.is_sealed) {
            self.data = self.open(opener).unwrap_or_else(|| RawValue::NULL.to_owned());
        }
        self
    }

    fn open(&self, opener: &mut Opener<'_>) -> Option<Box<RawValue>> {
        let text: String = serde_json::from_str(self.data.get()).ok()?;
        let sealed = Bytes::from(unhex(&text)?);
        let data = opener.open(Owner::Record(&self.message_prefix()), &sealed).ok()?;
        serde_json::from_slice(&data).ok()
    }
}

fn message_prefix(queue: QueueId, partition: PartitionId, transaction_id: &str) -> String {
    let hash = transaction_hash(transaction_id.as_bytes());
    format!("{}{:016x}/{hash:016x}/", queue_prefix(queue), partition.0)
}

fn queue_prefix(queue: QueueId) -> String {
    format!("trace/m/{:016x}/", queue.0)
}

/// The length stands before the name, so no name is the beginning of another.
fn name_prefix(name: &str) -> String {
    format!("trace/n/{:02x}{name}/", name.len())
}

fn count_key(name: &str) -> String {
    format!("trace/c/{name}")
}

fn due_key(expires_at: Timestamp, moment: u64) -> String {
    format!("trace/t/{:016x}/{moment:016x}", expires_at.micros().unsigned_abs())
}

/// Where a name's row for a moment is: the later, the earlier in the order of keys.
fn name_key(name: &str, moment: u64) -> String {
    format!("{}{:016x}", name_prefix(name), u64::MAX - moment)
}

fn read<'a, T: Deserialize<'a>>(key: &str, value: &'a [u8]) -> Result<T, TxError> {
    serde_json::from_slice(value)
        .map_err(|e| TxError::Failed(baton_store::Error::Corrupt(format!("the record {key}: {e}"))))
}

fn put(tx: &mut dyn Tx, key: &str, value: &impl Serialize) -> Result<(), TxError> {
    let value = serde_json::to_vec(value).unwrap_or_default();
    tx.put_record(key, Bytes::from(value), None).map(drop)
}

/// Keeps a trace of the message at `offset` for `life`.
pub fn record(
    tx: &mut dyn Tx,
    sealer: &Sealer,
    new: &NewTrace,
    offset: Offset,
    life: Duration,
) -> Result<Result<(), Error>, TxError> {
    tx.admit_bytes(new.data.get().len())?;
    let now = tx.now();
    let Some(row) = tx.partition_by_id(new.partition)? else { return Ok(Err(not_found())) };
    let Some(queue) = tx.queue_by_id(row.queue)? else { return Ok(Err(not_found())) };
    let others = of_message(tx, row.queue, new.partition, &new.transaction_id)?;
    if others.len() >= PER_MESSAGE_MAX {
        return Ok(Err(Error::Invalid(format!("a message has at most {PER_MESSAGE_MAX} traces"))));
    }
    let mut counts = Vec::new();
    for name in &new.names {
        let mut count = name_count(tx, name)?;
        count.traces += 1;
        count.messages += u64::from(!others.iter().any(|other| other.names.contains(name)));
        count.last_seen = now;
        counts.push(count);
    }
    let moment = now.micros().unsigned_abs();
    let message = message_prefix(row.queue, new.partition, &new.transaction_id);
    let is_sealed = queue.spec.options.encryption_enabled;
    let data = match is_sealed.then(|| sealed(sealer, &message, &new.data)) {
        None => new.data.clone(),
        Some(Ok(data)) => data,
        Some(Err(error)) => return Ok(Err(error)),
    };
    let trace = Trace {
        id: new.id.clone(),
        queue: row.queue,
        partition: new.partition,
        offset,
        transaction_id: new.transaction_id.clone(),
        group: new.group.clone(),
        event_type: new.event_type.clone(),
        names: new.names.clone(),
        data,
        is_sealed,
        worker: new.worker.clone(),
        created_at: now,
    };
    put(tx, &format!("{message}{moment:016x}"), &trace)?;
    for count in &counts {
        put(tx, &count_key(&count.name), count)?;
        put(tx, &name_key(&count.name, moment), &format!("{message}{moment:016x}"))?;
    }
    put(tx, &due_key(now.after(life), moment), &Due { message, moment })?;
    Ok(Ok(()))
}

/// The data of a trace of a message as an encrypted queue wants it to be kept.
fn sealed(sealer: &Sealer, message: &str, data: &RawValue) -> Result<Box<RawValue>, Error> {
    let sealed = sealer.seal(Owner::Record(message), data.get().as_bytes())?;
    serde_json::value::to_raw_value(&hex(&sealed)).map_err(|e| Error::Invalid(e.to_string()))
}

fn not_found() -> Error {
    Error::NotFound("Message not found".into())
}

fn name_count(tx: &mut dyn Tx, name: &str) -> Result<NameCount, TxError> {
    let key = count_key(name);
    match tx.record(&key)? {
        Some(record) => read(&key, &record.value),
        None => Ok(NameCount { name: name.into(), traces: 0, messages: 0, last_seen: Timestamp::MIN }),
    }
}

/// The traces of a message, the oldest first.
pub fn of_message(
    tx: &mut dyn Tx,
    queue: QueueId,
    partition: PartitionId,
    transaction_id: &str,
) -> Result<Vec<Trace>, TxError> {
    let prefix = message_prefix(queue, partition, transaction_id);
    let mut traces = Vec::new();
    // Two messages can share a hash; there is room for the traces of a few of them.
    for (key, record) in tx.records(&prefix, None, 4 * PER_MESSAGE_MAX)? {
        let trace: Trace = read(&key, &record.value)?;
        if trace.transaction_id == transaction_id {
            traces.push(trace);
        }
    }
    Ok(traces)
}

/// Traces with a name, the newest first, and how many there are.
pub fn of_name(
    tx: &mut dyn Tx,
    name: &str,
    offset: usize,
    limit: usize,
) -> Result<(Vec<Trace>, u64), TxError> {
    let total = name_count(tx, name)?.traces;
    let mut traces = Vec::new();
    for (key, pointer) in tx.records(&name_prefix(name), None, offset + limit)?.into_iter().skip(offset) {
        let at: String = read(&key, &pointer.value)?;
        if let Some(record) = tx.record(&at)? {
            traces.push(read(&at, &record.value)?);
        }
    }
    Ok((traces, total))
}

/// Up to `limit` names after `after`.
pub fn names(tx: &mut dyn Tx, after: Option<&str>, limit: usize) -> Result<Vec<NameCount>, TxError> {
    let after = after.map(count_key);
    let found = tx.records("trace/c/", after.as_deref(), limit)?;
    found.iter().map(|(key, record)| read(key, &record.value)).collect()
}

/// Forgets traces whose time is over; whether there may be more of them.
pub fn expire(tx: &mut dyn Tx) -> Result<bool, TxError> {
    let (now, mut due) = (due_key(tx.now(), 0), Vec::new());
    for (key, record) in tx.records("trace/t/", None, FORGOTTEN_AT_ONCE)? {
        if key < now {
            let Due { message, moment } = read(&key, &record.value)?;
            due.push((key, format!("{message}{moment:016x}")));
        }
    }
    let more = due.len() == FORGOTTEN_AT_ONCE;
    let (over, traces): (Vec<_>, Vec<_>) = due.into_iter().unzip();
    let forgotten = Forgotten::prepare(tx, traces)?;
    over.iter().for_each(|key| tx.remove_record(key));
    forgotten.write(tx)?;
    Ok(more)
}

/// Forgets traces of a queue that has gone; whether there may be more of them.
pub fn forget_queue(tx: &mut dyn Tx, queue: QueueId) -> Result<bool, TxError> {
    // What says when they are due stays behind, and is removed then.
    let found = tx.records(&queue_prefix(queue), None, FORGOTTEN_AT_ONCE)?;
    let more = found.len() == FORGOTTEN_AT_ONCE;
    Forgotten::prepare(tx, found.into_iter().map(|(key, _)| key).collect())?.write(tx)?;
    Ok(more)
}

/// Traces to be removed with the rows of their names.
#[derive(Default)]
struct Forgotten {
    keys: Vec<String>,
    counts: BTreeMap<String, NameCount>,
}

impl Forgotten {
    /// Finds all that belongs to the traces under `keys`.
    fn prepare(tx: &mut dyn Tx, keys: Vec<String>) -> Result<Self, TxError> {
        let (mut forgotten, mut remaining) = (Self::default(), BTreeMap::new());
        for key in keys {
            let Some(record) = tx.record(&key)? else { continue };
            let trace: Trace = read(&key, &record.value)?;
            let message = (trace.partition, trace.transaction_id.clone());
            if !remaining.contains_key(&message) {
                let all = of_message(tx, trace.queue, trace.partition, &trace.transaction_id)?;
                remaining.insert(message.clone(), all);
            }
            let others = remaining.entry(message).or_default();
            others.retain(|other| other.id != trace.id);
            for name in &trace.names {
                if !forgotten.counts.contains_key(name) {
                    forgotten.counts.insert(name.clone(), name_count(tx, name)?);
                }
                if let Some(count) = forgotten.counts.get_mut(name) {
                    let last = !others.iter().any(|other| other.names.contains(name));
                    count.traces = count.traces.saturating_sub(1);
                    count.messages = count.messages.saturating_sub(u64::from(last));
                }
                forgotten.keys.push(name_key(name, trace.created_at.micros().unsigned_abs()));
            }
            forgotten.keys.push(key);
        }
        Ok(forgotten)
    }

    fn write(self, tx: &mut dyn Tx) -> Result<(), TxError> {
        self.keys.iter().for_each(|key| tx.remove_record(key));
        for (name, count) in &self.counts {
            if count.traces == 0 {
                tx.remove_record(&count_key(name));
            } else {
                put(tx, &count_key(name), count)?;
            }
        }
        Ok(())
    }
}
