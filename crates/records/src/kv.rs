//! Key-value records: small versioned values with an expiry, compare-and-set and counters.
//!
//! A call is one decision: its conditions are judged against what was there before it, its writes are made together,
//! and its reads see them. Always: a version is unique and rises with every write of a key, also over deletion and
//! expiry; a write that loses its condition changes nothing and tells what is there instead. Not here: JSON
//! (`baton-server` reads it; a value stays the bytes that came). Start at [`Operation`], then [`prepare`].

use std::time::Duration;

use baton_store::lease::Holder;
use baton_store::{Error, Record, Tx, TxError, collect_misses, expiry};
use baton_types::{Timestamp, limits};
use bytes::{BufMut, Bytes};

use crate::counter::{self, AddError, Addition};

/// The namespace in which the permits of locks can be read and checked, but not written.
pub const LOCKS: &str = "queen-locks";

/// Names a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The namespace.
    pub namespace: String,
    /// The key in it.
    pub key: String,
}

impl Place {
    /// The record that holds it.
    pub(crate) fn record(&self) -> String {
        record_key(&self.namespace, &self.key)
    }
}

fn record_key(namespace: &str, key: &str) -> String {
    format!("kv/{namespace}/{key}")
}

/// How long a record is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// For so long after it was written.
    For(Duration),
    /// Until it is deleted.
    Forever,
}

impl Life {
    fn end(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::For(life) => Some(now.after(life)),
            Self::Forever => None,
        }
    }
}

/// One thing to do with records.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Reads one.
    Get(Place),
    /// Reads several of a namespace.
    GetMany {
        /// The namespace.
        namespace: String,
        /// The keys.
        keys: Vec<String>,
    },
    /// Reads those whose key begins with a text, in order.
    GetPrefix {
        /// The namespace.
        namespace: String,
        /// The text.
        prefix: String,
        /// Only keys after this one.
        after: Option<String>,
        /// At most so many.
        limit: usize,
        /// Without values.
        keys_only: bool,
    },
    /// Writes one.
    Put {
        /// Which.
        place: Place,
        /// The value.
        value: Bytes,
        /// For how long.
        life: Life,
        /// The version that must be there; 0 when nothing may be there.
        expect: Option<u64>,
    },
    /// Deletes one.
    Delete {
        /// Which.
        place: Place,
        /// The version that must be there.
        expect: Option<u64>,
    },
    /// Adds to a number. One that is not there counts as zero, and only then is `life` used.
    Add {
        /// Which.
        place: Place,
        /// How much, and within which bounds.
        addition: Addition,
        /// For how long it is kept when it is new.
        life: Life,
    },
    /// Says whether a version is there, and writes nothing.
    Check {
        /// Which.
        place: Place,
        /// The version; 0 when nothing may be there.
        expect: u64,
    },
}

impl Operation {
    /// The record that it would write.
    pub fn written(&self) -> Option<&Place> {
        match self {
            Self::Put { place, .. } | Self::Delete { place, .. } | Self::Add { place, .. } => Some(place),
            Self::Get(_) | Self::GetMany { .. } | Self::GetPrefix { .. } | Self::Check { .. } => None,
        }
    }
}

/// An operation, and whether everything else depends on it.
#[derive(Clone, Debug)]
pub struct Step {
    /// What to do.
    pub operation: Operation,
    /// Whether the whole call is undone when its condition does not hold.
    pub required: bool,
}

/// Why a write was not made, or a check did not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// There is a record where none may be.
    Exists,
    /// There is none.
    Absent,
    /// It has another version.
    Version,
    /// The sum would leave its bounds.
    Limit,
    /// What is there is no number.
    Type,
}

impl From<AddError> for Lost {
    fn from(error: AddError) -> Self {
        match error {
            AddError::OutOfBounds => Self::Limit,
            AddError::NotANumber => Self::Type,
        }
    }
}

/// A record as a caller sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its key.
    pub key: String,
    /// Its value, as JSON.
    pub value: Bytes,
    /// Its version.
    pub version: u64,
    /// When it goes away.
    pub expires_at: Option<Timestamp>,
    /// When it was written.
    pub updated_at: Timestamp,
}

/// What an operation came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Of a read of one record.
    Found(Option<Row>),
    /// Of a read of several.
    Rows {
        /// Those that were found.
        rows: Vec<Row>,
        /// The keys that were asked for and are not there.
        missing: Vec<String>,
        /// Whether some were left out because the answer would be too large.
        truncated: bool,
    },
    /// Of a write or a check: what is there now, and why it was refused if it was.
    Judged {
        /// Why not.
        lost: Option<Lost>,
        /// The value that is there.
        value: Option<Bytes>,
        /// Its version; 0 when nothing is there.
        version: u64,
    },
}

/// The required operation that undid a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precondition {
    /// Which one.
    pub index: usize,
    /// Why.
    pub lost: Lost,
    /// The value that is there.
    pub value: Option<Bytes>,
    /// Its version; 0 when nothing is there.
    pub version: u64,
}

/// What is decided about a step before anything is written.
enum Plan {
    Read,
    Lose(Lost, Option<Row>),
    Hold(Option<Row>),
    Put { old: Option<Record>, value: Bytes, expires_at: Option<Timestamp> },
    Delete(Record),
}

/// A call that has been checked and can no longer fail.
pub struct Prepared(Vec<Plan>);

/// Judges a call without writing. The inner error is the required step that was lost.
pub fn prepare(tx: &mut dyn Tx, steps: &[Step]) -> Result<Result<Prepared, Precondition>, TxError> {
    let mut plans = Vec::with_capacity(steps.len());
    collect_misses(steps, |step| {
        plans.push(plan(tx, &step.operation)?);
        Ok(())
    })?;
    for (index, (step, plan)) in steps.iter().zip(&plans).enumerate() {
        if let (Plan::Lose(lost, row), true) = (plan, step.required) {
            let (value, version) = seen(row.as_ref());
            return Ok(Err(Precondition { index, lost: *lost, value, version }));
        }
    }
    if plans.iter().any(|plan| matches!(plan, Plan::Put { .. } | Plan::Delete(_))) {
        // What is read after the writes is looked at now, so that it is at hand then.
        collect_misses(steps, |step| {
            read(tx, &step.operation, &mut limits::KV_READ_BYTES_MAX.clone()).map(drop)
        })?;
        if plans.iter().any(|plan| matches!(plan, Plan::Put { .. })) {
            tx.admit_bytes(0)?;
        }
    }
    Ok(Ok(Prepared(plans)))
}

fn plan(tx: &mut dyn Tx, operation: &Operation) -> Result<Plan, TxError> {
    let now = tx.now();
    let (place, expect) = match operation {
        Operation::Get(_) | Operation::GetMany { .. } | Operation::GetPrefix { .. } => return Ok(Plan::Read),
        Operation::Put { place, expect, .. } => (place, *expect),
        // Deleting what is not there is told apart, whatever was expected.
        Operation::Delete { place, expect } => (place, *expect),
        Operation::Add { place, .. } => (place, None),
        Operation::Check { place, expect } => (place, Some(*expect)),
    };
    let old = tx.record(&place.record())?;
    let version = old.as_ref().map(|old| version_of(&place.namespace, old)).transpose()?.unwrap_or(0);
    let lost = match (expect, version) {
        (Some(0), 1..) => Some(Lost::Exists),
        (Some(1..), 0) => Some(Lost::Absent),
        (Some(expected), _) if expected != version => Some(Lost::Version),
        _ => None,
    };
    let row = |old: Option<&Record>| old.map(|old| row(&place.namespace, &place.key, old)).transpose();
    if let Some(lost) = lost {
        return Ok(Plan::Lose(lost, row(old.as_ref())?));
    }
    Ok(match operation {
        Operation::Put { value, life, .. } => {
            Plan::Put { old, value: value.clone(), expires_at: life.end(now) }
        }
        Operation::Delete { .. } => match old {
            Some(old) => Plan::Delete(old),
            None => Plan::Lose(Lost::Absent, None),
        },
        Operation::Add { addition, life, .. } => {
            let before = row(old.as_ref())?;
            let expires_at = old.as_ref().map_or_else(|| life.end(now), |old| old.expires_at);
            match counter::add(before.as_ref().map(|row| &row.value[..]), addition) {
                Ok(value) => Plan::Put { old, value: value.into(), expires_at },
                Err(error) => Plan::Lose(error.into(), before),
            }
        }
        _ => Plan::Hold(row(old.as_ref())?),
    })
}

/// Writes a checked call, then reads what it asked for.
pub fn write(tx: &mut dyn Tx, steps: &[Step], prepared: Prepared) -> Result<Vec<Outcome>, TxError> {
    let mut outcomes = Vec::with_capacity(steps.len());
    for (step, plan) in steps.iter().zip(prepared.0) {
        let record = step.operation.written().map(Place::record).unwrap_or_default();
        outcomes.push(match plan {
            Plan::Read => None,
            Plan::Lose(lost, row) => Some(judged(Some(lost), row.as_ref())),
            Plan::Hold(row) => Some(judged(None, row.as_ref())),
            Plan::Put { old, value, expires_at } => {
                let stored = stored(tx.now(), &value);
                let version = expiry::put(tx, &record, old.as_ref(), stored, expires_at)?;
                Some(Outcome::Judged { lost: None, value: Some(value), version })
            }
            Plan::Delete(old) => {
                expiry::remove(tx, &record, &old);
                Some(judged(None, None))
            }
        });
    }
    let mut budget = limits::KV_READ_BYTES_MAX;
    let mut results = Vec::with_capacity(steps.len());
    for (step, outcome) in steps.iter().zip(outcomes) {
        results.push(match outcome {
            Some(outcome) => outcome,
            None => read(tx, &step.operation, &mut budget)?.unwrap_or(Outcome::Found(None)),
        });
    }
    Ok(results)
}

/// A whole call in one decision.
pub fn run(tx: &mut dyn Tx, steps: &[Step]) -> Result<Result<Vec<Outcome>, Precondition>, TxError> {
    match prepare(tx, steps)? {
        Ok(prepared) => write(tx, steps, prepared).map(Ok),
        Err(lost) => Ok(Err(lost)),
    }
}

fn judged(lost: Option<Lost>, row: Option<&Row>) -> Outcome {
    let (value, version) = seen(row);
    Outcome::Judged { lost, value, version }
}

fn seen(row: Option<&Row>) -> (Option<Bytes>, u64) {
    row.map_or((None, 0), |row| (Some(row.value.clone()), row.version))
}

/// The answer to a read; `None` for an operation that is none. `budget` is how many bytes it may still hold.
fn read(tx: &mut dyn Tx, operation: &Operation, budget: &mut usize) -> Result<Option<Outcome>, TxError> {
    Ok(Some(match operation {
        Operation::Get(place) => {
            let found = tx.record(&place.record())?;
            let row = found.map(|record| row(&place.namespace, &place.key, &record)).transpose()?;
            *budget = budget.saturating_sub(row.as_ref().map_or(0, |row| row.value.len()));
            Outcome::Found(row)
        }
        Operation::GetMany { namespace, keys } => {
            let (mut rows, mut missing, mut truncated) = (Vec::new(), Vec::new(), false);
            collect_misses(keys, |key| {
                match tx.record(&record_key(namespace, key))? {
                    Some(record) if take(budget, &record) => rows.push(row(namespace, key, &record)?),
                    Some(_) => truncated = true,
                    None => missing.push(key.clone()),
                }
                Ok(())
            })?;
            rows.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            Outcome::Rows { rows, missing, truncated }
        }
        Operation::GetPrefix { namespace, prefix, after, limit, keys_only } => {
            let (rows, truncated) =
                page(tx, namespace, prefix, after.as_deref(), *limit, *keys_only, budget)?;
            Outcome::Rows { rows, missing: Vec::new(), truncated }
        }
        _ => return Ok(None),
    }))
}

/// Up to `limit` namespaces that hold records, in order; that of the permits of locks is not one of them.
pub fn namespaces(tx: &mut dyn Tx, limit: usize) -> Result<Vec<String>, TxError> {
    let all = "kv/";
    let (mut found, mut after) = (Vec::new(), None::<String>);
    while found.len() < limit {
        let Some((key, _)) = tx.records(all, after.as_deref(), 1)?.pop() else { break };
        let Some((namespace, _)) = key.strip_prefix(all).and_then(|rest| rest.split_once('/')) else { break };
        // A slash follows the namespace, and `0` sorts right behind it.
        after = Some(format!("{all}{namespace}0"));
        if namespace != LOCKS {
            found.push(namespace.to_owned());
        }
    }
    Ok(found)
}

/// Rows read at once while a page is put together.
const PAGE: usize = 100;

fn page(
    tx: &mut dyn Tx,
    namespace: &str,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
    keys_only: bool,
    budget: &mut usize,
) -> Result<(Vec<Row>, bool), TxError> {
    let all = record_key(namespace, "");
    let prefix = record_key(namespace, prefix);
    let mut after = after.map(|after| record_key(namespace, after));
    let mut rows = Vec::new();
    loop {
        let wanted = (limit + 1 - rows.len()).min(PAGE);
        let found = tx.records(&prefix, after.as_deref(), wanted)?;
        let is_last = found.len() < wanted;
        after = found.last().map(|(key, _)| key.clone());
        for (key, record) in found {
            if rows.len() == limit || (!take(budget, &record) && !rows.is_empty()) {
                return Ok((rows, true));
            }
            let mut row = row(namespace, key.strip_prefix(&all).unwrap_or(&key), &record)?;
            if keys_only {
                row.value = Bytes::new();
            }
            rows.push(row);
        }
        if is_last {
            return Ok((rows, false));
        }
    }
}

fn take(budget: &mut usize, record: &Record) -> bool {
    let left = budget.checked_sub(record.value.len());
    *budget = left.unwrap_or(*budget);
    left.is_some()
}

/// The bytes of a record: when it was written, then the value.
fn stored(now: Timestamp, value: &[u8]) -> Bytes {
    let mut bytes = Vec::with_capacity(8 + value.len());
    bytes.put_i64(now.micros());
    bytes.put_slice(value);
    bytes.into()
}

/// The version that a caller expects: that of a permit is its token.
fn version_of(namespace: &str, record: &Record) -> Result<u64, Error> {
    if namespace == LOCKS { Ok(Holder::from_record(record)?.token) } else { Ok(record.version) }
}

fn row(namespace: &str, key: &str, record: &Record) -> Result<Row, Error> {
    let (updated_at, value) = if namespace == LOCKS {
        (Holder::from_record(record)?.renewed_at, record.value.clone())
    } else {
        let at =
            record.value.first_chunk::<8>().ok_or_else(|| Error::Corrupt("a record is too short".into()))?;
        (Timestamp::from_micros(i64::from_be_bytes(*at)), record.value.slice(8..))
    };
    let version = version_of(namespace, record)?;
    Ok(Row { key: key.into(), value, version, expires_at: record.expires_at, updated_at })
}
