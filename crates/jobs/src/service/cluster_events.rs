//! Cluster events that a client can read in order.

use baton_store::run;
use serde_json::Value;

use crate::model::error::Error;
use crate::model::keys;
use crate::service::Jobs;
use crate::storage::event_log::Log;

/// Events read at once.
const AT_ONCE: usize = 500;

/// A cluster event.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterEvent {
    /// Its offset; later events have higher ones.
    pub offset: u64,
    /// Its kind: `leader`, `node`, `handoff`.
    pub kind: String,
    /// Its details.
    pub data: Value,
}

impl Jobs {
    /// The offset of the next event.
    pub async fn events_end(&self) -> Result<u64, Error> {
        Ok(run(&*self.shared.store, Log::open).await?.next)
    }

    /// Events from an offset on, as many as fit one answer.
    pub async fn events(&self, from: u64) -> Result<Vec<ClusterEvent>, Error> {
        let after = from.checked_sub(1).map(keys::event);
        let rows = run(&*self.shared.store, move |tx| tx.records(keys::EVENTS, after.as_deref(), AT_ONCE));
        let event = |(key, record): (String, baton_store::Record)| {
            let offset = key.strip_prefix(keys::EVENTS)?.parse().ok()?;
            let data: Value = serde_json::from_slice(&record.value).ok()?;
            Some(ClusterEvent { offset, kind: data["type"].as_str()?.to_owned(), data })
        };
        Ok(rows.await?.into_iter().filter_map(event).collect())
    }
}
