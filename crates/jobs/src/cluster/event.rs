//! What happens in a cluster, for whoever watches: nodes that come and go, leaders, jobs that change their owner.
//!
//! An event is a record, written in the commit in which the thing happens, so events are told in its order and none is
//! told of what did not happen. Only so many are kept. Start at [`Log`].

use baton_store::{Tx, TxError, run};
use serde_json::Value;

use crate::error::Error;
use crate::jobs::Jobs;
use crate::key;

/// Events that are kept.
const KEPT: u64 = 10_000;
/// Events read at once.
const AT_ONCE: usize = 500;

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterEvent {
    /// Its place; the next one has a higher one.
    pub offset: u64,
    /// What happened, in a word: `leader`, `node`, `handoff`.
    pub kind: String,
    /// The particulars.
    pub data: Value,
}

/// Where events are written, looked up before anything else of the decision is written.
#[derive(Debug)]
pub struct Log {
    next: u64,
    at: String,
}

impl Log {
    /// Looks it up.
    pub fn open(tx: &mut dyn Tx) -> Result<Self, TxError> {
        let record = tx.record(key::EVENTS_END)?;
        let next = record.and_then(|record| std::str::from_utf8(&record.value).ok()?.parse().ok());
        Ok(Self { next: next.unwrap_or(0), at: tx.now().to_iso_millis() })
    }

    /// Writes events; each is a word and its particulars.
    pub fn write(mut self, tx: &mut dyn Tx, events: Vec<(&'static str, Value)>) -> Result<(), TxError> {
        if events.is_empty() {
            return Ok(());
        }
        for (kind, mut data) in events {
            data["type"] = kind.into();
            data["at"] = self.at.clone().into();
            tx.put_record(&key::event(self.next), data.to_string().into(), None)?;
            if let Some(old) = self.next.checked_sub(KEPT) {
                tx.remove_record(&key::event(old));
            }
            self.next += 1;
        }
        tx.put_record(key::EVENTS_END, self.next.to_string().into(), None).map(drop)
    }
}

impl Jobs {
    /// Where the next event will be.
    pub async fn events_end(&self) -> Result<u64, Error> {
        Ok(run(&*self.shared.store, Log::open).await?.next)
    }

    /// Events from a place on, as many as there are or fit one answer.
    pub async fn events(&self, from: u64) -> Result<Vec<ClusterEvent>, Error> {
        let after = from.checked_sub(1).map(key::event);
        let rows = run(&*self.shared.store, move |tx| tx.records(key::EVENTS, after.as_deref(), AT_ONCE));
        let event = |(key, record): (String, baton_store::Record)| {
            let offset = key.strip_prefix(key::EVENTS)?.parse().ok()?;
            let data: Value = serde_json::from_slice(&record.value).ok()?;
            Some(ClusterEvent { offset, kind: data["type"].as_str()?.to_owned(), data })
        };
        Ok(rows.await?.into_iter().filter_map(event).collect())
    }
}
