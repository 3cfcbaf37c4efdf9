//! The store as its callers see it.

use std::sync::Arc;

use baton_store::{BoxFuture, Error, Listener, Operation, Segment, Statistics, Store};
use baton_types::{Offset, PartitionId, Timestamp};

use crate::context::StoreContext;
use crate::options::Options;
use crate::recovery::RecoverySupervisor;

/// The embedded store.
pub struct EmbeddedStore {
    recovery: Arc<RecoverySupervisor>,
}

impl EmbeddedStore {
    /// Opens the directory.
    pub fn open(options: Options) -> Result<Self, Error> {
        Ok(Self { recovery: RecoverySupervisor::start(Arc::new(StoreContext::new(options)))? })
    }

    /// Makes a checkpoint, so that the next start replays nothing. The store does this by itself from time to time.
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
        let instance = match self.recovery.instance() {
            Ok(instance) => instance,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        if let Some(found) = instance.shared.segments.cache.read(partition, from, to, bytes_max) {
            return Box::pin(std::future::ready(Ok(found)));
        }
        let read = tokio::task::spawn_blocking(move || {
            let shared = &instance.shared;
            shared.apply_to_index();
            match shared.refusal() {
                Some(refusal) => Err(refusal),
                None => shared.segments.read_segments(partition, from, to, bytes_max),
            }
        });
        Box::pin(async move { read.await.unwrap_or_else(|e| Err(Error::Closed(e.to_string()))) })
    }

    fn set_listener(&self, listener: Listener) {
        self.recovery.context.set_listener(listener);
    }

    fn catalog_version(&self) -> Option<u64> {
        Some(self.recovery.context.catalog_version())
    }

    fn now(&self) -> Timestamp {
        let now = self.recovery.context.now();
        self.recovery.instance().map_or(now, |instance| now.max(instance.shared.clock.now()))
    }

    fn statistics(&self) -> Statistics {
        let statistics = self.recovery.context.statistics();
        match self.recovery.instance() {
            Ok(instance) => Statistics {
                disk_bytes: instance.shared.disk_bytes(),
                remembered: instance.shared.dedup_len(),
                ..statistics
            },
            Err(_) => statistics,
        }
    }

    fn failure(&self) -> Option<String> {
        self.recovery.failure()
    }

    fn outage(&self) -> Option<String> {
        self.recovery.outage()
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
        // A caller that needs the outcome calls `close`.
        let _ = self.recovery.close();
    }
}
