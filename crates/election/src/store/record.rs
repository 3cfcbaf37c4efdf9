//! Any Baton store: its records table, in the same process.

use std::sync::Arc;

use baton_store::{Tx, TxError};
use bytes::Bytes;

use super::{BoxFuture, Error, Store, SwapOutcome, Version, VersionedValue};
use crate::lease::{self, PREFIX};
use crate::record::PROCESSES_PREFIX;

/// Records of one list; more workers than that only delay a claim.
const LIST_MAX: usize = 10_000;

/// Records in a Baton store.
#[derive(Clone)]
pub struct RecordStore(Arc<dyn baton_store::Store>);

impl RecordStore {
    /// Keeps records in `store`, where the server's own routes find them too.
    pub fn new(store: Arc<dyn baton_store::Store>) -> Self {
        Self(store)
    }

    async fn run<R: Send + 'static>(
        &self,
        decide: impl FnMut(&mut dyn Tx) -> Result<R, TxError> + Send + 'static,
    ) -> Result<R, Error> {
        baton_store::run(&*self.0, decide).await.map_err(|e| Error(e.to_string()))
    }
}

/// A version as text, and back.
fn version(number: u64) -> Version {
    Version(number.to_string())
}

impl Store for RecordStore {
    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<VersionedValue>, Error>> {
        let key = format!("{PREFIX}{key}");
        Box::pin(self.run(move |tx| {
            Ok(tx.record(&key)?.map(|record| (version(record.version), record.value.to_vec())))
        }))
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        value: Vec<u8>,
    ) -> BoxFuture<'a, Result<SwapOutcome, Error>> {
        let expected = expected.map(|version| version.0.parse().unwrap_or(u64::MAX));
        let name = key.strip_prefix("epochs/").map(str::to_owned);
        let process = key.strip_prefix(PROCESSES_PREFIX).map(str::to_owned);
        let (key, value) = (format!("{PREFIX}{key}"), Bytes::from(value));
        let swapped = self.run(move |tx| {
            if let Some(name) = &name
                && let Ok(epoch) = serde_json::from_slice(&value)
            {
                return lease::swap_epoch(tx, name, expected, epoch);
            }
            if let Some(id) = &process
                && let Ok(process) = serde_json::from_slice(&value)
            {
                return lease::swap_process(tx, id, expected, &process);
            }
            if tx.record(&key)?.map(|record| record.version) != expected {
                return Ok(None);
            }
            tx.put_record(&key, value.clone(), None).map(Some)
        });
        Box::pin(async {
            Ok(swapped.await?.map_or(SwapOutcome::Conflict, |number| SwapOutcome::Done(version(number))))
        })
    }

    fn put<'a>(&'a self, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>> {
        let (key, value) = (format!("{PREFIX}{key}"), Bytes::from(value));
        Box::pin(self.run(move |tx| tx.put_record(&key, value.clone(), None).map(|_| ())))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<(String, String)>, Error>> {
        let prefix = format!("{PREFIX}{prefix}");
        Box::pin(self.run(move |tx| {
            let found = tx.records(&prefix, None, LIST_MAX)?;
            let entry = |(key, record): (String, baton_store::Record)| {
                (key.strip_prefix(PREFIX).unwrap_or(&key).to_owned(), record.version.to_string())
            };
            Ok(found.into_iter().map(entry).collect())
        }))
    }

    fn remove<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        let process = key.strip_prefix(PROCESSES_PREFIX).map(str::to_owned);
        let key = format!("{PREFIX}{key}");
        Box::pin(self.run(move |tx| {
            match &process {
                Some(id) => lease::remove_process(tx, id),
                None => tx.remove_record(&key),
            }
            Ok(())
        }))
    }

    /// The store's own suite shows it.
    fn is_trusted(&self) -> bool {
        true
    }
}

impl std::fmt::Debug for RecordStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordStore").finish_non_exhaustive()
    }
}
