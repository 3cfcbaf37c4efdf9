//! The journal: what a commit changes, for clients that watch jobs.
//!
//! Always: commits write it only while a client watches; an entry is part of the commit that it describes. The owner
//! of each job reads it (`nodes::channels`).

use std::sync::Arc;

use serde_json::{Value, json};

use crate::model::ids::{CHUNK, ExecutionId, JobId, Place, WorkerId};
use crate::model::keys;
use crate::storage::split_records::split;
use crate::storage::{Book, Halt, each};

impl Book<'_> {
    /// Adds a journal entry, if a client watches.
    pub fn say(&mut self, slice: u64, mut what: impl FnMut() -> Value) {
        if self.policy.watched {
            let mut said = what();
            said["slice"] = (slice % CHUNK).into();
            self.said.push(said);
        }
    }

    /// Writes journal entries for all changed jobs, if a client watches.
    pub(super) fn journal(&mut self) -> Result<(), Halt> {
        if !self.policy.watched {
            return Ok(());
        }
        let (mut places, at) = (self.news.changed.clone(), self.now().to_iso_millis());
        places.sort_unstable();
        places.dedup();
        let mut entries = each(places, |place| self.status(place, &at))?;
        entries.retain(|entry| !entry.is_null());
        entries.append(&mut self.said);
        if entries.is_empty() {
            return Ok(());
        }
        let last = self.record(keys::JOURNAL_END)?;
        let last = last.and_then(|value| std::str::from_utf8(&value).ok()?.parse().ok());
        let mut end = last.unwrap_or(0u64);
        for entries in split(entries) {
            end += 1;
            self.put(keys::journal(end), serde_json::to_vec(&entries).unwrap_or_default(), None);
        }
        self.put(keys::JOURNAL_END.to_owned(), end.to_string(), None);
        Ok(())
    }

    /// The new state of a job, for the journal; null for a deleted one.
    fn status(&mut self, place: Place, at: &str) -> Result<Value, Halt> {
        let Some(slot) = self.slot(place)?.cloned() else { return Ok(Value::Null) };
        let queue = Arc::clone(&self.head(place.partition)?.name);
        let kinds = self.kinds(place.partition)?;
        let kind = kinds.get(slot.kind as usize).map(|kind| kind.to_string());
        let id = JobId::new(slot.created_at, place);
        let has_run = slot.executions > 0;
        Ok(json!({
            "kind": "status", "slice": place.index(), "jobId": id, "queue": &*queue, "jobType": kind,
            "status": slot.state, "fence": slot.fence, "attempts": slot.attempts,
            "executionId": has_run.then_some(ExecutionId { job: id, fence: slot.fence }),
            "workerId": has_run.then_some(WorkerId(slot.worker)), "at": at,
        }))
    }
}
