//! Records in memory, for tests and for many participants in one process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::{BoxFuture, Error, Store, SwapOutcome, Version, VersionedValue};

/// Records in memory. Clones share them.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    records: Arc<Mutex<Records>>,
    /// Counts the writes.
    writes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Records {
    by_key: BTreeMap<String, (u64, Vec<u8>)>,
    last: u64,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self { records: Arc::default(), writes: watch::Sender::new(0) }
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn version(&self, key: &str) -> Option<Version> {
        self.lock().by_key.get(key).map(|(number, _)| Version(number.to_string()))
    }

    fn write(&self, key: &str, value: Vec<u8>, may: impl FnOnce(Option<&u64>) -> bool) -> Option<Version> {
        let mut records = self.lock();
        if !may(records.by_key.get(key).map(|(number, _)| number)) {
            return None;
        }
        records.last += 1;
        let number = records.last;
        records.by_key.insert(key.to_owned(), (number, value));
        drop(records);
        self.writes.send_modify(|writes| *writes += 1);
        Some(Version(number.to_string()))
    }
}

impl Store for MemoryStore {
    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<VersionedValue>, Error>> {
        let found = self.lock().by_key.get(key).map(|(n, value)| (Version(n.to_string()), value.clone()));
        Box::pin(async { Ok(found) })
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        value: Vec<u8>,
    ) -> BoxFuture<'a, Result<SwapOutcome, Error>> {
        Box::pin(async move {
            let expected = expected.map(|version| version.0.as_str());
            let may = |number: Option<&u64>| number.map(u64::to_string).as_deref() == expected;
            Ok(self.write(key, value, may).map_or(SwapOutcome::Conflict, SwapOutcome::Done))
        })
    }

    fn put<'a>(&'a self, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.write(key, value, |_| true);
            Ok(())
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<(String, String)>, Error>> {
        Box::pin(async move {
            let records = self.lock();
            let from = records.by_key.range(prefix.to_owned()..);
            let found = from.take_while(|(key, _)| key.starts_with(prefix));
            Ok(found.map(|(key, (number, _))| (key.clone(), number.to_string())).collect())
        })
    }

    fn remove<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.lock().by_key.remove(key);
            self.writes.send_modify(|writes| *writes += 1);
            Ok(())
        })
    }

    fn wait_for_change<'a>(&'a self, key: &'a str, seen: Option<&'a Version>) -> BoxFuture<'a, ()> {
        let mut writes = self.writes.subscribe();
        Box::pin(async move {
            while self.version(key).as_ref() == seen {
                if writes.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        })
    }
}
