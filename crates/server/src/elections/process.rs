//! The records of processes: by the lease of one, a process holds what it coordinates in any number of groups.
//!
//! Always: what is written here is what participants beside the server write; a process that has long been silent makes
//! room for a new one.

use baton_election::lease;
use baton_election::record::{PROCESSES_PREFIX, ProcessRecord};

use super::{Elections, Refusal, key};

/// Processes that a server keeps.
pub(super) const PROCESSES_MAX: usize = 10_000;

impl Elections {
    /// All processes by their ids, each with the version of its record.
    pub async fn processes(&self) -> Result<Vec<(u64, ProcessRecord)>, Refusal> {
        self.run(|tx| {
            let found = tx.records(&key(PROCESSES_PREFIX), None, PROCESSES_MAX)?;
            let process = |(_, record): (String, baton_store::Record)| {
                Some((record.version, serde_json::from_slice(&record.value).ok()?))
            };
            Ok(found.into_iter().filter_map(process).collect())
        })
        .await
    }

    /// One process, with the version of its record.
    pub async fn process(&self, id: &str) -> Result<Option<(u64, ProcessRecord)>, Refusal> {
        let id = id.to_owned();
        self.run(move |tx| lease::read_process(tx, &id)).await
    }

    /// A compare-and-set of the record of a process; the new version, or `None` for a conflict.
    pub async fn swap_process(
        &self,
        expected: Option<u64>,
        process: ProcessRecord,
    ) -> Result<Option<u64>, Refusal> {
        let outcome = self.run(move |tx| {
            if expected.is_none() && lease::remove_silent_processes(tx, PROCESSES_MAX)? >= PROCESSES_MAX {
                return Ok(Err(Refusal::Full("there are as many processes of elections as there may be")));
            }
            lease::swap_process(tx, &process.id(), expected, &process).map(Ok)
        });
        let outcome = outcome.await?;
        self.tell();
        outcome
    }

    /// Removes the record of a process, which then counts as fenced.
    pub async fn remove_process(&self, id: &str) -> Result<(), Refusal> {
        let id = id.to_owned();
        let removed = self.run(move |tx| {
            lease::remove_process(tx, &id);
            Ok(())
        });
        removed.await?;
        self.tell();
        Ok(())
    }
}
