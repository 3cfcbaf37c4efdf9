//! Job queues: their partitions and settings.

use std::sync::Arc;

use baton_store::{Error as StoreError, QueueSpec, Tx, TxError};
use baton_types::{PartitionId, QueueId, QueueOptions, Timestamp};
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::model::error::Error;
use crate::model::keys;
use crate::model::limits::{PAGE_MAX, QUEUES_MAX, WEIGHT_MAX};
use crate::model::queue_head::{Head, QueueSettings};
use crate::model::state::State;
use crate::storage::{Abort, JobsTx};

/// The store's queue that holds the partitions of all job queues. No client can name it, and no listing shows it.
pub const HIDDEN: &str = "__baton_jobs__";

/// The partition of a queue.
pub fn find(tx: &mut JobsTx<'_>, name: &str) -> Result<Option<PartitionId>, Abort> {
    Ok(tx.record(&keys::queue(name))?.map(|value| read_number(&value)).transpose()?)
}

fn read_number(value: &[u8]) -> Result<PartitionId, StoreError> {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    number
        .map(PartitionId)
        .ok_or_else(|| StoreError::Corrupt("the number of a job queue cannot be read".into()))
}

/// The id of the hidden queue, which is created if it does not exist.
pub fn hidden(tx: &mut dyn Tx) -> Result<QueueId, TxError> {
    if let Some(hidden) = tx.queue(HIDDEN)? {
        return Ok(hidden.id);
    }
    let (name, none) = (HIDDEN.into(), Arc::<str>::from(""));
    let options = QueueOptions::default();
    Ok(tx.put_queue(QueueSpec { name, namespace: Arc::clone(&none), task: none, options })?.id)
}

/// Creates a queue. Returns its partition.
pub fn create(tx: &mut dyn Tx, name: &str) -> Result<Result<PartitionId, Error>, TxError> {
    if let Some(record) = tx.record(&keys::queue(name))? {
        return Ok(Ok(read_number(&record.value)?));
    }
    let hidden = tx.queue(HIDDEN)?;
    if let Some(hidden) = &hidden
        && tx.partition_count(hidden.id)? >= 2 * QUEUES_MAX as u64
    {
        return Ok(Err(Error::Full(format!("there are {QUEUES_MAX} job queues, which is the limit"))));
    }
    let hidden = match hidden {
        Some(hidden) => hidden.id,
        None => self::hidden(tx)?,
    };
    let partition = tx.create_partition(hidden, &format!("jobs:{name}"));
    let history = tx.create_partition(hidden, &format!("history:{name}"));
    let mut head = Head::new(name, history, tx.now());
    tx.put_record(&keys::head(partition), head.encode().into(), None)?;
    tx.put_record(&keys::queue(name), partition.0.to_string().into(), None)?;
    Ok(Ok(partition))
}

/// A queue as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueView {
    /// Its name.
    pub name: Arc<str>,
    /// Its settings.
    #[serde(flatten)]
    pub settings: QueueSettings,
    /// Jobs by state.
    pub counts: std::collections::BTreeMap<&'static str, u64>,
    /// How long the oldest dispatched job has waited, approximately, in milliseconds.
    pub oldest_ms: u64,
}

impl QueueView {
    /// Jobs that have not ended.
    pub fn open(&self) -> u64 {
        let is_open = |word: &str| State::from_word(word).is_some_and(|state| !state.is_terminal());
        self.counts.iter().filter(|(word, _)| is_open(word)).map(|(_, count)| count).sum()
    }

    /// The ETag of its settings.
    pub fn tag(&self) -> u64 {
        tag(&self.settings)
    }

    fn from_head(head: &Head, now: Timestamp) -> Self {
        let states = State::ALL.iter().filter(|state| **state != State::Gone);
        let oldest = head.lanes.iter().map(|lane| lane.since).min();
        Self {
            name: head.name.clone(),
            settings: head.settings.clone(),
            counts: states.map(|state| (state.word(), head.count(*state))).collect(),
            oldest_ms: oldest.map_or(0, |at| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// The queues after `after`, by name, and whether there are more.
pub fn list(tx: &mut JobsTx<'_>, after: Option<&str>) -> Result<(Vec<QueueView>, bool), Abort> {
    let after = after.map(keys::queue);
    let rows = tx.stored(keys::QUEUES, after.as_deref(), PAGE_MAX)?;
    let is_full = rows.len() == PAGE_MAX;
    let partitions = rows.iter().map(|(_, record)| read_number(&record.value));
    let partitions = partitions.collect::<Result<Vec<_>, _>>()?;
    let keys: Vec<String> = partitions.iter().copied().map(keys::head).collect();
    tx.prefetch(keys.iter().map(String::as_str))?;
    let now = tx.now();
    let views = partitions.into_iter().map(|partition| Ok(QueueView::from_head(tx.head(partition)?, now)));
    Ok((views.collect::<Result<_, Abort>>()?, is_full))
}

/// One queue.
pub fn view(tx: &mut JobsTx<'_>, partition: PartitionId) -> Result<QueueView, Abort> {
    let now = tx.now();
    Ok(QueueView::from_head(tx.head(partition)?, now))
}

fn tag(settings: &QueueSettings) -> u64 {
    xxh3_64(&serde_json::to_vec(settings).unwrap_or_default())
}

/// The error code for settings that another client changed meanwhile.
pub const OTHER_SETTINGS: &str = "other_settings";

/// The error for settings that another client changed meanwhile.
pub fn other_settings() -> Error {
    Error::conflict(OTHER_SETTINGS, "the queue does not have the settings that were read: read it again")
}

/// Changes the settings of a queue; with a `read` tag only if the present settings have that tag.
pub fn set(
    tx: &mut JobsTx<'_>,
    partition: PartitionId,
    settings: &QueueSettings,
    read: Option<u64>,
) -> Result<QueueView, Abort> {
    if settings.concurrency == Some(0)
        || settings.rate_limit.is_some_and(|rate| rate.count == 0 || rate.per_ms == 0)
    {
        return Err(
            Error::invalid("concurrency and rateLimit are at least 1; to stop a queue, pause it").into()
        );
    }
    if settings.weight.is_some_and(|weight| weight == 0 || weight > WEIGHT_MAX) {
        let message = format!("weight is 1 to {WEIGHT_MAX}; to stop a queue, pause it");
        return Err(Error::invalid(message).into());
    }
    let now = tx.now();
    let head = tx.head_mut(partition)?;
    if read.is_some_and(|read| read != tag(&head.settings)) {
        return Err(other_settings().into());
    }
    let woken = head.settings != *settings && !settings.paused;
    head.settings = settings.clone();
    let view = QueueView::from_head(head, now);
    if woken {
        tx.effects.ready.push((partition, u64::MAX));
    }
    Ok(view)
}

/// Trims history that is older than any job.
pub fn trim_history(tx: &mut dyn Tx, partition: PartitionId, before: Timestamp) -> Result<(), TxError> {
    let Some(record) = tx.record(&keys::head(partition))? else { return Ok(()) };
    let history = Head::decode(&record.value)?.history;
    let start = tx.offset_at(history, before)?;
    tx.trim(history, start)
}
