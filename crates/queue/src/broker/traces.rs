//! Traces: writing, finding and forgetting them.

use std::sync::Arc;

use baton_store::{Store, StoredMessage, run};
use baton_types::{PartitionId, QueueId, limits};

use super::{Broker, PAGE, resolve};
use crate::Error;
use crate::rules::trace::{self, NameCount, NewTrace, Trace};

/// Names that a listing looks at.
const LISTED_NAMES_MAX: usize = 100_000;

/// A trace with the message that it is about.
#[derive(Clone, Debug)]
pub struct TracedMessage {
    /// The trace.
    pub trace: Trace,
    /// The queue's name.
    pub queue: Option<Arc<str>>,
    /// The partition's name.
    pub partition: Option<Arc<str>>,
    /// The message, if it is still kept and the answer has room for it.
    pub message: Option<StoredMessage>,
}

impl Broker {
    /// Keeps a trace of a message.
    pub async fn trace(&self, new: NewTrace) -> Result<(), Error> {
        let found = resolve::find_stored(&self.shared.store, new.partition, &new.transaction_id).await?;
        let Some(message) = found else { return Err(Error::NotFound("Message not found".into())) };
        let life = self.shared.trace_retention;
        let sealer = Arc::clone(&self.shared.sealer);
        self.run(move |tx| trace::record(tx, &sealer, &new, message.offset, life)).await?
    }

    /// The traces of a message, the oldest first.
    pub async fn traces(&self, partition: PartitionId, transaction_id: &str) -> Result<Vec<Trace>, Error> {
        let transaction_id = transaction_id.to_string();
        let found = self.run(move |tx| match tx.partition_by_id(partition)? {
            Some(row) => trace::of_message(tx, row.queue, partition, &transaction_id),
            None => Ok(Vec::new()),
        });
        let mut opener = self.shared.sealer.opener();
        Ok(found.await?.into_iter().map(|trace| trace.opened(&mut opener)).collect())
    }

    /// Traces with a name, the newest first, and how many there are in all.
    pub async fn traces_by_name(
        &self,
        name: &str,
        offset: usize,
        limit: usize,
    ) -> Result<(Vec<TracedMessage>, u64), Error> {
        let name = name.to_string();
        let (found, total) = self
            .run(move |tx| {
                let (traces, total) = trace::of_name(tx, &name, offset, limit)?;
                let mut found = Vec::with_capacity(traces.len());
                for trace in traces {
                    let queue = tx.queue_by_id(trace.queue)?.map(|queue| queue.spec.name.clone());
                    let partition = tx.partition_by_id(trace.partition)?.map(|partition| partition.name);
                    found.push(TracedMessage { trace, queue, partition, message: None });
                }
                Ok((found, total))
            })
            .await?;
        let (mut traced, mut bytes) = (Vec::with_capacity(found.len()), 0);
        let mut opener = self.shared.sealer.opener();
        for mut found in found {
            found.trace = found.trace.opened(&mut opener);
            if let Some(partition) = &found.partition
                && bytes < limits::POP_BYTES_MAX
            {
                let (id, offset) = (found.trace.partition, found.trace.offset);
                found.message = resolve::read_one(&self.shared.store, id, offset).await?;
                let queue = found.queue.as_deref().unwrap_or_default();
                if let Some(message) = &mut found.message
                    && opener.open_message(queue, partition, message).is_err()
                {
                    found.message = None;
                }
                bytes += found.message.as_ref().map_or(0, |message| message.payload.len());
            }
            traced.push(found);
        }
        Ok((traced, total))
    }

    /// All names of traces with their counts, the one seen last first.
    pub async fn trace_names(&self) -> Result<Vec<NameCount>, Error> {
        let mut names: Vec<NameCount> = Vec::new();
        while names.len() < LISTED_NAMES_MAX {
            let after = names.last().map(|last| last.name.clone());
            let page = self.run(move |tx| trace::names(tx, after.as_deref(), PAGE)).await?;
            if page.is_empty() {
                break;
            }
            names.extend(page);
        }
        names.sort_by_key(|count| std::cmp::Reverse(count.last_seen));
        Ok(names)
    }

    /// Forgets the traces of a queue that has gone.
    pub(super) async fn forget_traces(&self, queue: QueueId) -> Result<(), Error> {
        while self.run(move |tx| trace::forget_queue(tx, queue)).await? {}
        Ok(())
    }
}

/// Forgets the traces whose time is over.
pub async fn expire(store: &dyn Store) -> Result<(), baton_store::Error> {
    while run(store, trace::expire).await? {}
    Ok(())
}
