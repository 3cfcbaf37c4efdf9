//! The store as its callers see it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use baton_env::{BootClock, Clock};
use baton_store::{BoxFuture, Error, Listener, Operation, Segment, Statistics, Store, StoreLimits};
use baton_types::{Offset, PartitionId, Timestamp};

use crate::context::Context;
use crate::recovery::Recovery;

/// When to try again at a full intake, or while the store recovers.
pub const BUSY_FOR: Duration = Duration::from_millis(100);

/// How to open a store.
#[derive(Clone)]
pub struct Options {
    /// Where it lives; created when missing.
    pub directory: PathBuf,
    /// Free space on the disk below which no more messages are taken in.
    pub min_free_disk: u64,
    /// Bytes of young messages kept in memory.
    pub cache_bytes: usize,
    /// A file of the log that has become this long is followed by another. Space is given back file by file.
    pub log_file_bytes: u64,
    /// Transaction ids kept in memory, about 40 bytes each.
    pub remembered_max: usize,
    /// Rows that tell where messages are, kept in memory before many are written at once, about 48 bytes each.
    pub index_rows: usize,
    /// How many queues, partitions and groups there may be.
    pub bounds: StoreLimits,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Whether the machine's clock counts, however far it is from the time that is stored.
    pub resets_clock: bool,
}

impl Options {
    /// The usual options for a directory.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            min_free_disk: 256 << 20,
            cache_bytes: 64 << 20,
            log_file_bytes: 32 << 20,
            remembered_max: 20_000_000,
            index_rows: 128 << 10,
            bounds: StoreLimits::default(),
            clock: Arc::new(BootClock::default()),
            resets_clock: false,
        }
    }
}

/// The embedded store.
pub struct EmbeddedStore {
    recovery: Arc<Recovery>,
}

impl EmbeddedStore {
    /// Opens the directory, or says why it cannot be used.
    pub fn open(options: Options) -> Result<Self, Error> {
        Ok(Self { recovery: Recovery::begin(Arc::new(Context::new(options)))? })
    }

    /// Makes a checkpoint, so that the next opening has nothing to do again. For a store that is otherwise idle; it is
    /// done by itself in time.
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.recovery.instance()?.shared.checkpoint()
    }
}

impl Store for EmbeddedStore {
    fn submit(&self, operation: Box<dyn Operation>) {
        match self.recovery.instance() {
            Ok(instance) => instance.submit(operation),
            Err(error) => operation.finish(Err(error)),
        }
    }

    fn read(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Segment>, Error>> {
        if let Some(found) = self.read_cached(partition, from, to, bytes_max) {
            return Box::pin(std::future::ready(Ok(found)));
        }
        let instance = match self.recovery.instance() {
            Ok(instance) => instance,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let read = tokio::task::spawn_blocking(move || {
            let shared = &instance.shared;
            shared.tell_engine();
            match shared.refusal() {
                Some(refusal) => Err(refusal),
                None => shared.messages.read(partition, from, to, bytes_max),
            }
        });
        Box::pin(async move { read.await.unwrap_or_else(|e| Err(Error::Closed(e.to_string()))) })
    }

    fn read_cached(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> Option<Vec<Segment>> {
        self.recovery.instance().ok()?.shared.messages.cache.read(partition, from, to, bytes_max)
    }

    fn set_listener(&self, listener: Listener) {
        self.recovery.context.listen(listener);
    }

    fn catalog_version(&self) -> Option<u64> {
        Some(self.recovery.context.structure())
    }

    fn now(&self) -> Timestamp {
        let now = self.recovery.context.now();
        self.recovery.instance().map_or(now, |instance| now.max(instance.shared.time.now()))
    }

    fn statistics(&self) -> Statistics {
        let statistics = self.recovery.context.statistics();
        match self.recovery.instance() {
            Ok(instance) => Statistics {
                disk_bytes: instance.shared.disk_bytes(),
                remembered: instance.shared.remembered(),
                ..statistics
            },
            Err(_) => statistics,
        }
    }

    fn failure(&self) -> Option<String> {
        self.recovery.failure()
    }

    fn outage(&self) -> Option<String> {
        self.recovery.away()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        let recovery = self.recovery.clone();
        Box::pin(async move {
            let closed = tokio::task::spawn_blocking(move || recovery.close());
            closed.await.unwrap_or_else(|e| Err(Error::Closed(e.to_string())))
        })
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        // A caller that wants to know whether it worked calls `close`.
        let _ = self.recovery.close();
    }
}
