//! The journal: what a commit changes, for clients that watch jobs.
//!
//! Always: commits write it only while a client watches; an entry is part of the commit that it describes. The owner
//! of each job reads it (`nodes::channels`).

use std::sync::Arc;

use serde_json::{Value, json};

use crate::model::ids::{CHUNK, ExecutionId, JobId, JobPosition, WorkerId};
use crate::model::keys;
use crate::storage::split_records::split;
use crate::storage::{Abort, JobsTx, each};

impl JobsTx<'_> {
    /// Adds a journal entry, if a client watches.
    pub fn add_journal_entry(&mut self, slice: u64, mut what: impl FnMut() -> Value) {
        if self.policy.watched {
            let mut journal_entries = what();
            journal_entries["slice"] = (slice % CHUNK).into();
            self.journal_entries.push(journal_entries);
        }
    }

    /// Writes journal entries for all changed jobs, if a client watches.
    pub(super) fn journal(&mut self) -> Result<(), Abort> {
        if !self.policy.watched {
            return Ok(());
        }
        let (mut positions, at) = (self.effects.changed.clone(), self.now().to_iso_millis());
        positions.sort_unstable();
        positions.dedup();
        let mut entries = each(positions, |position| self.status(position, &at))?;
        entries.retain(|entry| !entry.is_null());
        entries.append(&mut self.journal_entries);
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
    fn status(&mut self, position: JobPosition, at: &str) -> Result<Value, Abort> {
        let Some(slot) = self.slot(position)?.cloned() else { return Ok(Value::Null) };
        let queue = Arc::clone(&self.head(position.partition)?.name);
        let kinds = self.kinds(position.partition)?;
        let kind = kinds.get(slot.kind as usize).map(|kind| kind.to_string());
        let id = JobId::new(slot.created_at, position);
        let has_run = slot.executions > 0;
        Ok(json!({
            "kind": "status", "slice": position.index(), "jobId": id, "queue": &*queue, "jobType": kind,
            "status": slot.state, "fence": slot.fence, "attempts": slot.attempts,
            "executionId": has_run.then_some(ExecutionId { job: id, fence: slot.fence }),
            "workerId": has_run.then_some(WorkerId(slot.worker)), "at": at,
        }))
    }
}
