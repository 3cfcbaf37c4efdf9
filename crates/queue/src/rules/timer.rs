//! Timers: messages that are pushed later.
//!
//! A timer is a record under its queue and key, and an entry in the order of time that the alarm reads from the
//! front; timers that are far away cost their space and nothing else. When one is due, one commit pushes its message
//! and removes it, so it fires once. Always: not before its time; the message carries the timer's transaction id, so
//! de-duplication applies. Not here: when to look again (`broker::records`), repetition. Start at [`prepare`], then
//! [`fire`].

use std::sync::Arc;
use std::time::Duration;

use baton_store::{Error, NewMessage, Record, Tx, TxError, collect_misses};
use baton_types::Timestamp;
use baton_types::limits::RECORD_BYTES_MAX;
use bytes::{Buf, BufMut, Bytes};
use serde::{Deserialize, Serialize};

use crate::Error as QueueError;
use crate::rules::maintenance::Detour;
use crate::rules::push::{self, PushBatch};
use crate::rules::push_count::PushCount;
use crate::rules::seal::{Owner, Sealer, is_sealed};

const TIMERS: &str = "timer/";
const DUE: &str = "timer-due/";
/// Between two names in a key. No name can contain it.
const SEPARATOR: char = '\0';

/// Timers that fire in one decision.
const FIRED_MAX: usize = 100;
/// Bytes of payloads that one decision reads.
const READ_BYTES_MAX: usize = 8 << 20;
/// Timers that are due and read at once: few enough that they fit into memory however large they are.
const READ_AT_ONCE: usize = 32;
/// Bytes of the text that says why a timer could not be pushed; more is cut off.
const ERROR_BYTES_MAX: usize = 512;
/// What a failure may add to a timer's record: that text as JSON, and longer numbers.
const FAILURE_BYTES: usize = 6 * ERROR_BYTES_MAX + 64;
/// Timers read at once while they are listed.
const LISTED_AT_ONCE: usize = 16;
/// The pause after a timer's first failure; it doubles up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// One thing to do with a timer.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Sets it, in place of one with the same queue and key.
    Schedule {
        /// The queue that gets the message.
        queue: String,
        /// The timer's key in that queue.
        key: String,
        /// The partition that gets the message.
        partition: String,
        /// The message's transaction id.
        transaction_id: String,
        /// The message.
        payload: Bytes,
        /// Whom the caller's token speaks for.
        producer: Option<String>,
        /// How long from now.
        delay: Duration,
    },
    /// Removes it.
    Cancel {
        /// Its queue.
        queue: String,
        /// Its key.
        key: String,
    },
}

impl Operation {
    /// The queue and the key of the timer.
    pub fn place(&self) -> (&str, &str) {
        match self {
            Self::Schedule { queue, key, .. } | Self::Cancel { queue, key } => (queue, key),
        }
    }
}

/// A timer that has not fired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// The queue that gets the message.
    pub queue: String,
    /// Its key in that queue.
    pub key: String,
    /// The partition that gets the message.
    pub partition: String,
    /// The message's transaction id.
    pub transaction_id: String,
    /// Not before this moment.
    pub deliver_at: Timestamp,
    /// When it was first set.
    pub created_at: Timestamp,
    /// When it was last set or failed.
    pub updated_at: Timestamp,
    /// How often it could not be pushed.
    pub attempts: u32,
    /// Why.
    pub last_error: Option<String>,
    /// Who set it, which its message will say.
    pub producer: Option<String>,
    /// The message.
    #[serde(skip)]
    pub payload: Bytes,
}

/// What became of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It was set.
    Scheduled,
    /// It was set in place of an earlier one.
    Rescheduled,
    /// It was removed.
    Cancelled,
    /// There is none; it may have fired.
    Absent,
}

/// What an operation came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What became of the timer.
    pub status: Status,
    /// The timer that was set or removed.
    pub timer: Option<Timer>,
}

/// What a look at the clock came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fired {
    /// Timers whose message was pushed.
    pub fired: usize,
    /// Timers that could not be pushed and are tried again later.
    pub postponed: usize,
    /// How long until the next one is due; zero when it is, `None` when there is none.
    pub next: Option<Duration>,
    /// What was pushed, by queue.
    pub(crate) count: PushCount,
}

fn timer_key(queue: &str, key: &str) -> String {
    format!("{TIMERS}{queue}{SEPARATOR}{key}")
}

fn due_key(at: Timestamp, queue: &str, key: &str) -> String {
    format!("{DUE}{:020}{SEPARATOR}{queue}{SEPARATOR}{key}", at.micros())
}

/// The way of a timer's message into its queue.
pub struct Way {
    /// Encrypts it where that is wanted.
    pub sealer: Arc<Sealer>,
    /// When it waits in the spool.
    pub detour: Detour,
}

/// For each operation: the timer that is there, and the one to be set with its record.
pub struct Prepared(Vec<(Option<Timer>, Option<Encoded>)>);

type Encoded = (Timer, Bytes);

/// Reads what is needed, without writing. The inner error is that the payload of the operation with this number must be
/// encrypted and cannot be.
pub fn prepare(
    tx: &mut dyn Tx,
    operations: &[Operation],
    sealer: &Sealer,
) -> Result<Result<Prepared, (usize, QueueError)>, TxError> {
    if operations.iter().any(|operation| matches!(operation, Operation::Schedule { .. })) {
        tx.admit_bytes(0)?;
    }
    let mut timers = Vec::with_capacity(operations.len());
    let (mut unsealed, now) = (None, tx.now());
    collect_misses(operations.iter().enumerate(), |(number, operation)| {
        let (queue, key) = operation.place();
        let Operation::Schedule { partition, transaction_id, payload, producer, delay, .. } = operation
        else {
            timers.push((find(tx, queue, key)?, None));
            return Ok(());
        };
        let payload = sealed(tx, owner(queue, partition, transaction_id), queue, payload, sealer)?;
        let old = find(tx, queue, key)?;
        let payload = match payload {
            Ok(payload) => payload,
            Err(error) => {
                unsealed = unsealed.take().or(Some((number, error)));
                return Ok(());
            }
        };
        let timer = Timer {
            queue: queue.to_owned(),
            key: key.to_owned(),
            partition: partition.clone(),
            transaction_id: transaction_id.clone(),
            deliver_at: now.after(*delay),
            created_at: old.as_ref().map_or(now, |old| old.created_at),
            updated_at: now,
            attempts: 0,
            last_error: None,
            producer: producer.clone(),
            payload,
        };
        let (record, max) = (encode(&timer)?, RECORD_BYTES_MAX - FAILURE_BYTES);
        if record.len() > max {
            return Err(Error::TooLarge { bytes: record.len(), max }.into());
        }
        timers.push((old, Some((timer, record))));
        Ok(())
    })?;
    Ok(unsealed.map_or(Ok(Prepared(timers)), Err))
}

/// Where a timer's payload belongs: to the message that it becomes.
pub(crate) fn owner<'a>(queue: &'a str, partition: &'a str, transaction_id: &'a str) -> Owner<'a> {
    Owner::Message { queue, partition, transaction_id: Some(transaction_id.as_bytes()) }
}

/// The payload as a queue wants it to be kept.
fn sealed(
    tx: &mut dyn Tx,
    owner: Owner<'_>,
    queue: &str,
    payload: &Bytes,
    sealer: &Sealer,
) -> Result<Result<Bytes, QueueError>, TxError> {
    let is_secret = tx.queue(queue)?.is_some_and(|queue| queue.spec.options.encryption_enabled);
    Ok(if is_secret && !is_sealed(payload) {
        sealer.seal(owner, payload).map(Bytes::from)
    } else {
        Ok(payload.clone())
    })
}

/// Sets and removes timers; each operation must be on another one.
pub fn write(tx: &mut dyn Tx, operations: &[Operation], prepared: Prepared) -> Result<Vec<Outcome>, TxError> {
    let mut outcomes = Vec::with_capacity(operations.len());
    for (operation, (old, set)) in operations.iter().zip(prepared.0) {
        if let Some(old) = &old {
            tx.remove_record(&due_key(old.deliver_at, &old.queue, &old.key));
        }
        let (queue, key) = operation.place();
        outcomes.push(match (set, old) {
            (Some((timer, record)), old) => {
                put(tx, &timer, record)?;
                let status = if old.is_some() { Status::Rescheduled } else { Status::Scheduled };
                Outcome { status, timer: Some(timer) }
            }
            (None, Some(old)) => {
                tx.remove_record(&timer_key(queue, key));
                Outcome { status: Status::Cancelled, timer: Some(old) }
            }
            (None, None) => Outcome { status: Status::Absent, timer: None },
        });
    }
    Ok(outcomes)
}

/// One timer.
pub fn find(tx: &mut dyn Tx, queue: &str, key: &str) -> Result<Option<Timer>, TxError> {
    Ok(tx.record(&timer_key(queue, key))?.map(|record| decode(&record)).transpose()?)
}

/// Timers of a queue in the order of their keys, without payloads, and whether there are more: at most `limit`, and
/// fewer when they are large. Only keys that begin with `prefix` and stand after `after`.
pub fn list(
    tx: &mut dyn Tx,
    queue: &str,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<(Vec<Timer>, bool), TxError> {
    let mut after = after.map(|after| timer_key(queue, after));
    let (mut timers, mut bytes) = (Vec::new(), 0);
    loop {
        let found = tx.records(&timer_key(queue, prefix), after.as_deref(), LISTED_AT_ONCE)?;
        let is_last = found.len() < LISTED_AT_ONCE;
        for (key, record) in found {
            if timers.len() == limit || bytes > READ_BYTES_MAX {
                return Ok((timers, true));
            }
            bytes += record.value.len();
            timers.push(Timer { payload: Bytes::new(), ..decode(&record)? });
            after = Some(key);
        }
        if is_last {
            return Ok((timers, false));
        }
    }
}

/// Pushes the messages of timers that are due, and removes the timers.
pub fn fire(tx: &mut dyn Tx, way: &Way) -> Result<Fired, TxError> {
    let now = tx.now();
    let (mut due, mut bytes, mut next) = (Vec::new(), 0, None);
    let entries = tx.records(DUE, None, FIRED_MAX + 1)?;
    for entries in entries.chunks(READ_AT_ONCE) {
        collect_misses(entries, |(entry, _)| {
            let (at, queue, key) = read_due(entry)?;
            if next.is_some() || at > now || due.len() == FIRED_MAX || bytes > READ_BYTES_MAX {
                next.get_or_insert(at.since(now));
                return Ok(());
            }
            let timer = find(tx, queue, key)?;
            bytes += timer.as_ref().map_or(0, |timer| timer.payload.len());
            due.push((entry, timer));
            Ok(())
        })?;
    }
    if due.is_empty() {
        return Ok(Fired { next, ..Fired::default() });
    }
    let timers: Vec<_> = due.iter().filter_map(|(_, timer)| timer.as_ref()).collect();
    if let Ok(count) = push_all(tx, &timers, way)? {
        let fired = timers.len();
        for (entry, timer) in &due {
            tx.remove_record(entry);
            if let Some(timer) = timer {
                tx.remove_record(&timer_key(&timer.queue, &timer.key));
            }
        }
        return Ok(Fired { fired, postponed: 0, next, count });
    }
    // Some queue is full, or needs a key that is missing. The first timer is pushed alone, so that it delays no other.
    let (entry, timer) = &due[0];
    let more = Some(if due.len() > 1 { Duration::ZERO } else { next.unwrap_or(RETRY_FIRST) });
    let pushed = push_all(tx, timer.as_ref().as_slice(), way)?;
    tx.remove_record(entry);
    let Some(timer) = timer else { return Ok(Fired { next: more, ..Fired::default() }) };
    match pushed {
        Ok(count) => {
            tx.remove_record(&timer_key(&timer.queue, &timer.key));
            Ok(Fired { fired: 1, postponed: 0, next: more, count })
        }
        Err(error) => {
            let timer = postponed(timer, now, error.to_string());
            put(tx, &timer, encode(&timer)?)?;
            let next = more.map(|more| more.min(RETRY_FIRST));
            Ok(Fired { postponed: 1, next, ..Fired::default() })
        }
    }
}

/// The same timer, to be tried again later.
fn postponed(timer: &Timer, now: Timestamp, mut error: String) -> Timer {
    error.truncate(error.floor_char_boundary(ERROR_BYTES_MAX));
    let pause = RETRY_FIRST.saturating_mul(1 << timer.attempts.min(6)).min(RETRY_MAX);
    Timer {
        deliver_at: now.after(pause),
        updated_at: now,
        attempts: timer.attempts.saturating_add(1),
        last_error: Some(error),
        ..timer.clone()
    }
}

/// Pushes the messages of timers, all or none; how many timers that were.
fn push_all(tx: &mut dyn Tx, timers: &[&Timer], way: &Way) -> Result<Result<PushCount, QueueError>, TxError> {
    let mut batch = PushBatch::default();
    batch.detour = way.detour.clone();
    for timer in timers {
        let owner = owner(&timer.queue, &timer.partition, &timer.transaction_id);
        let payload = match sealed(tx, owner, &timer.queue, &timer.payload, &way.sealer)? {
            Ok(payload) => payload,
            Err(error) => return Ok(Err(error)),
        };
        let message = NewMessage {
            transaction_id: Some(&timer.transaction_id),
            trace_id: None,
            producer: timer.producer.as_deref(),
            payload: &payload,
        };
        if let Err(error) = batch.add(&timer.queue, &timer.partition, &message) {
            return Ok(Err(error));
        }
    }
    Ok(push::push(tx, &batch)?.map(|pushed| batch.counted(&pushed)))
}

fn put(tx: &mut dyn Tx, timer: &Timer, record: Bytes) -> Result<(), TxError> {
    tx.put_record(&timer_key(&timer.queue, &timer.key), record, None)?;
    tx.put_record(&due_key(timer.deliver_at, &timer.queue, &timer.key), Bytes::new(), None)?;
    Ok(())
}

fn read_due(entry: &str) -> Result<(Timestamp, &str, &str), Error> {
    let parts = entry.strip_prefix(DUE).and_then(|rest| {
        let (at, rest) = rest.split_once(SEPARATOR)?;
        let (queue, key) = rest.split_once(SEPARATOR)?;
        Some((Timestamp::from_micros(at.parse().ok()?), queue, key))
    });
    parts.ok_or_else(|| corrupt("its entry"))
}

/// The bytes of a record: the length of the head, the head as JSON, the payload.
fn encode(timer: &Timer) -> Result<Bytes, Error> {
    let head = serde_json::to_vec(timer).map_err(corrupt)?;
    let mut bytes = Vec::with_capacity(4 + head.len() + timer.payload.len());
    bytes.put_u32_le(u32::try_from(head.len()).map_err(corrupt)?);
    bytes.put_slice(&head);
    bytes.put_slice(&timer.payload);
    Ok(bytes.into())
}

fn decode(record: &Record) -> Result<Timer, Error> {
    let mut bytes = record.value.clone();
    let length = bytes.try_get_u32_le().map_err(corrupt)? as usize;
    if bytes.len() < length {
        return Err(corrupt("it is too short"));
    }
    let head = bytes.split_to(length);
    let timer: Timer = serde_json::from_slice(&head).map_err(corrupt)?;
    Ok(Timer { payload: bytes, ..timer })
}

fn corrupt(why: impl std::fmt::Display) -> Error {
    Error::Corrupt(format!("a timer cannot be read: {why}"))
}
