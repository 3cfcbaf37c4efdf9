//! The log of cluster events: nodes that join and leave, leaders, slices that change their owner.
//!
//! An event is a record, written in the commit of the change, so events are ordered and none reports a change that
//! did not happen. Only a bounded number is kept. Start at [`Log`].

use baton_store::{Tx, TxError};
use serde_json::Value;

use crate::model::keys;

/// Events that are kept.
const KEPT: u64 = 10_000;
/// Where to write events; opened before the decision writes anything.
#[derive(Debug)]
pub struct Log {
    /// The number of the next event.
    pub next: u64,
    at: String,
}

impl Log {
    /// Reads the next number.
    pub fn open(tx: &mut dyn Tx) -> Result<Self, TxError> {
        let record = tx.record(keys::EVENTS_END)?;
        let next = record.and_then(|record| std::str::from_utf8(&record.value).ok()?.parse().ok());
        Ok(Self { next: next.unwrap_or(0), at: tx.now().to_iso_millis() })
    }

    /// Writes events; each has a kind and its data.
    pub fn write(mut self, tx: &mut dyn Tx, events: Vec<(&'static str, Value)>) -> Result<(), TxError> {
        if events.is_empty() {
            return Ok(());
        }
        for (kind, mut data) in events {
            data["type"] = kind.into();
            data["at"] = self.at.clone().into();
            tx.put_record(&keys::event(self.next), data.to_string().into(), None)?;
            if let Some(old) = self.next.checked_sub(KEPT) {
                tx.remove_record(&keys::event(old));
            }
            self.next += 1;
        }
        tx.put_record(keys::EVENTS_END, self.next.to_string().into(), None).map(drop)
    }
}
