//! What happened in each minute, kept in the store so that a restart does not forget it.
//!
//! Once a minute the difference between two readings of the [`Meters`] becomes one record, whatever number of
//! queues there are; queues in which nothing happened are left out. Each node writes its own records. Always: a
//! minute that is written twice, before and after a restart, is the sum of both. Records older than [`KEPT`] are
//! removed. Not here: how minutes become the points of a plot (`baton-server`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_store::{Store, Tx, TxError, run};
use baton_types::Timestamp;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::broker::metrics::{Meters, Tally};

/// How long a minute is kept.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// The length of a minute.
const MINUTE: Duration = Duration::from_secs(60);
/// What the keys of the records begin with.
const PREFIX: &str = "series/";
/// Queues that one record tells of: those in which most happened.
const QUEUES_MAX: usize = 2_000;
/// Records read in one decision.
const PAGE: usize = 200;
/// Outdated records removed with each new one.
const REMOVED_AT_ONCE: usize = 50;

/// One minute on one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Minute {
    /// When it began.
    pub at: Timestamp,
    /// The node.
    pub node: Arc<str>,
    /// What happened in each queue.
    pub queues: BTreeMap<Arc<str>, Tally>,
    /// What happened in all.
    pub total: Tally,
    /// Numbers about the process that the node adds, by name.
    pub gauges: BTreeMap<Arc<str>, f64>,
}

/// Reads numbers about the process.
pub type Gauges = Arc<dyn Fn() -> BTreeMap<Arc<str>, f64> + Send + Sync>;

/// Tells how many pops wait for each queue.
pub type Waiting<'a> = &'a (dyn Fn() -> BTreeMap<String, u64> + Send + Sync);

/// Turns readings into minutes.
pub struct Series {
    node: Arc<str>,
    last: Mutex<Reading>,
    gauges: Mutex<Option<Gauges>>,
}

#[derive(Default)]
struct Reading {
    minute: i64,
    total: Tally,
    queues: FxHashMap<Arc<str>, Tally>,
}

impl Series {
    pub fn new(node: &str, now: Timestamp) -> Self {
        let last = Reading { minute: minute_of(now), ..Reading::default() };
        Self { node: node.into(), last: Mutex::new(last), gauges: Mutex::default() }
    }

    /// Sets who tells numbers about the process.
    pub fn set_gauges(&self, gauges: Gauges) {
        *self.gauges.lock().unwrap_or_else(PoisonError::into_inner) = Some(gauges);
    }

    /// What happened since the last minute was written, as the minute in which that began.
    fn current(&self, meters: &Meters, waiting: Waiting<'_>) -> Minute {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut queues = BTreeMap::new();
        for (name, tally) in meters.by_queue() {
            let grown = tally.since(&last.queues.get(&name).copied().unwrap_or_default());
            if !grown.is_zero() {
                queues.insert(name, grown);
            }
        }
        let mut total = meters.total().since(&last.total);
        for (name, parked) in waiting() {
            queues.entry(name.into()).or_default().parked = parked;
            total.parked += parked;
        }
        if queues.len() > QUEUES_MAX {
            let mut busiest: Vec<_> = queues.into_iter().collect();
            busiest.sort_by_key(|(_, tally)| std::cmp::Reverse(tally.push_messages + tally.pop_messages));
            busiest.truncate(QUEUES_MAX);
            queues = busiest.into_iter().collect();
        }
        let gauges = self.gauges.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Minute {
            at: Timestamp::from_micros(last.minute.saturating_mul(60_000_000)),
            node: self.node.clone(),
            queues,
            total,
            gauges: gauges.map(|read| read()).unwrap_or_default(),
        }
    }

    /// Takes what happened so far as a minute of its own and begins the next at `now`.
    fn close(&self, meters: &Meters, waiting: Waiting<'_>, now: Timestamp) -> Minute {
        let minute = self.current(meters, waiting);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Reading { minute: minute_of(now), total: meters.total(), queues: meters.by_queue() };
        meters.forget_longest();
        minute
    }

    /// Writes a minute whenever one is over, and what there is of the last one at the end.
    pub async fn keep(
        &self,
        store: &dyn Store,
        meters: &Meters,
        waiting: Waiting<'_>,
        stop: CancellationToken,
    ) {
        loop {
            let into = store.now().micros().rem_euclid(60_000_000);
            let rest = MINUTE.saturating_sub(Duration::from_micros(u64::try_from(into).unwrap_or(0)));
            let stopped = tokio::select! {
                () = stop.cancelled() => true,
                () = baton_env::sleep(rest) => false,
            };
            let minute = self.close(meters, waiting, store.now());
            if (!minute.total.is_zero() || !stopped)
                && let Err(error) = run(store, move |tx| write(tx, &minute)).await
            {
                tracing::warn!(%error, "could not keep the numbers of the last minute");
            }
            if stopped {
                return;
            }
        }
    }

    /// The minutes that began at or after `from` and before `to`, of all nodes, oldest first; the one that is
    /// under way is the last.
    pub async fn minutes(
        &self,
        store: &dyn Store,
        meters: &Meters,
        waiting: Waiting<'_>,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<Minute>, baton_store::Error> {
        let from = from.max(store.now().before(KEPT));
        let mut found = Vec::new();
        // A slash follows the number, and a dot sorts before it.
        let mut after = format!("{PREFIX}{:010}.", minute_of(from).max(0));
        loop {
            let last = after.clone();
            let page = run(store, move |tx| tx.records(PREFIX, Some(&last), PAGE)).await?;
            let Some((key, _)) = page.last() else { break };
            after.clone_from(key);
            let full = page.len() == PAGE;
            let before = found.len();
            found.extend(page.iter().filter_map(|(key, record)| read(key, &record.value)));
            found.retain(|minute: &Minute| minute.at < to);
            if !full || found.len() < before + page.len() {
                break;
            }
        }
        let current = self.current(meters, waiting);
        if current.at >= from && current.at < to && !current.total.is_zero() {
            found.push(current);
        }
        Ok(found)
    }
}

fn minute_of(at: Timestamp) -> i64 {
    at.micros().div_euclid(60_000_000)
}

fn key(minute: &Minute) -> String {
    format!("{PREFIX}{:010}/{}", minute_of(minute.at).max(0), minute.node)
}

/// Adds a minute to what is kept, and removes what is too old.
fn write(tx: &mut dyn Tx, minute: &Minute) -> Result<(), TxError> {
    let key = key(minute);
    let mut whole = minute.clone();
    if let Some(earlier) = tx.record(&key)?.and_then(|record| read(&key, &record.value)) {
        whole.total += earlier.total;
        for (queue, tally) in earlier.queues {
            *whole.queues.entry(queue).or_default() += tally;
        }
    }
    let outdated = format!("{PREFIX}{:010}", minute_of(tx.now().before(KEPT)).max(0));
    let old = tx.records(PREFIX, None, REMOVED_AT_ONCE)?.into_iter().map(|(key, _)| key);
    let old: Vec<_> = old.take_while(|key| **key < *outdated).collect();
    tx.put_record(&key, encode(&whole), None)?;
    old.iter().for_each(|key| tx.remove_record(key));
    Ok(())
}

fn encode(minute: &Minute) -> Bytes {
    let queues: serde_json::Map<_, _> =
        minute.queues.iter().map(|(name, tally)| (name.to_string(), json!(tally.numbers()))).collect();
    let gauges: serde_json::Map<_, _> =
        minute.gauges.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
    let value = json!({"total": minute.total.numbers(), "queues": queues, "gauges": gauges});
    serde_json::to_vec(&value).unwrap_or_default().into()
}

/// A minute from its record; `None` for what was not written here.
fn read(key: &str, value: &[u8]) -> Option<Minute> {
    let (number, node) = key.strip_prefix(PREFIX)?.split_once('/')?;
    let at = Timestamp::from_micros(number.parse::<i64>().ok()?.saturating_mul(60_000_000));
    let value: Value = serde_json::from_slice(value).ok()?;
    let tally = |value: &Value| {
        let numbers: Vec<_> = value.as_array()?.iter().filter_map(Value::as_u64).collect();
        Some(Tally::from_numbers(&numbers))
    };
    let queues = value.get("queues")?.as_object()?.iter();
    let gauges = value.get("gauges")?.as_object()?.iter();
    Some(Minute {
        at,
        node: node.into(),
        queues: queues.filter_map(|(name, value)| Some((name.as_str().into(), tally(value)?))).collect(),
        total: tally(value.get("total")?)?,
        gauges: gauges.filter_map(|(name, value)| Some((name.as_str().into(), value.as_f64()?))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::push_count::PushCount;

    fn pushes(meters: &Meters, queue: &str, messages: u64) {
        let mut count = PushCount::default();
        count.add(&queue.into(), messages);
        meters.pushed(&count, 0);
    }

    fn none() -> BTreeMap<String, u64> {
        BTreeMap::new()
    }

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_micros(minute * 60_000_000 + 5)
    }

    #[test]
    fn a_minute_holds_what_happened_in_it_and_nothing_else() {
        let (meters, series) = (Meters::default(), Series::new("n", at(10)));
        pushes(&meters, "a", 3);
        let first = series.close(&meters, &none, at(11));
        pushes(&meters, "b", 2);
        let second = series.close(&meters, &none, at(12));
        assert_eq!((first.at, first.total.push_messages), (Timestamp::from_micros(600_000_000), 3));
        assert_eq!(second.total.push_messages, 2);
        assert_eq!(second.queues.keys().map(|name| &**name).collect::<Vec<_>>(), ["b"]);
        assert!(series.close(&meters, &none, at(13)).total.is_zero());
    }

    #[test]
    fn a_minute_tells_who_waits_at_its_end() {
        let (meters, series) = (Meters::default(), Series::new("n", at(10)));
        let minute = series.close(&meters, &|| [("a".to_owned(), 3), ("b".to_owned(), 4)].into(), at(11));
        assert_eq!((minute.queues["a"].parked, minute.queues["b"].parked, minute.total.parked), (3, 4, 7));
        assert!(series.close(&meters, &none, at(12)).total.is_zero());
    }

    #[test]
    fn a_minute_survives_the_way_to_disk_and_back() {
        let (meters, series) = (Meters::default(), Series::new("n/1", at(10)));
        series.set_gauges(Arc::new(|| [("memory".into(), 1.5)].into()));
        pushes(&meters, "a/b", 3);
        let minute = series.close(&meters, &none, at(11));
        assert_eq!(read(&key(&minute), &encode(&minute)), Some(minute));
        assert_eq!(read("series/x", b"{}"), None);
        assert_eq!(read("series/0000000010/n", b"not json"), None);
    }
}
