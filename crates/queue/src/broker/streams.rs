//! Streams: registering queries, reading their state, running their cycles.

use std::sync::Arc;

use baton_store::{Store, Tx, run};
use baton_types::{PartitionId, limits};

use super::{Broker, PAGE};
use crate::rules::stream::{self, Cycle, Cycled, NewQuery, Registered, StateRow, Wanted};
use crate::{AckItem, Error, LeaseClaim, PushBatch};

impl Broker {
    /// Registers a query, or finds it registered.
    pub async fn register_query(&self, query: NewQuery) -> Result<Registered, Error> {
        self.run(move |tx| stream::register(tx, &query)).await
    }

    /// The state of a query in a partition, by key, as far as it is wanted.
    pub async fn query_state(
        &self,
        query: &str,
        partition: PartitionId,
        wanted: Wanted,
    ) -> Result<Vec<StateRow>, Error> {
        let mut rows: Vec<StateRow> = Vec::new();
        match wanted {
            Wanted::Keys(keys) => {
                for keys in keys.chunks(PAGE) {
                    let page = self.state_page(query, partition, Wanted::Keys(keys.to_vec()), None).await?;
                    add_page(&mut rows, page)?;
                }
                Ok(rows)
            }
            prefix @ Wanted::Prefix(_) => loop {
                let after = rows.last().map(|row| row.key.clone());
                let page = self.state_page(query, partition, prefix.clone(), after).await?;
                if page.is_empty() {
                    return Ok(rows);
                }
                add_page(&mut rows, page)?;
            },
        }
    }

    async fn state_page(
        &self,
        query: &str,
        partition: PartitionId,
        wanted: Wanted,
        after: Option<String>,
    ) -> Result<Vec<StateRow>, Error> {
        let query = query.to_string();
        self.run(move |tx| stream::state(tx, &query, partition, &wanted, after.as_deref(), PAGE)).await
    }

    /// Gives up the state of queries that read a queue which has gone.
    pub(super) async fn forget_source(&self, queue: &str) -> Result<(), Error> {
        let mut after = None;
        loop {
            let (queue, from) = (queue.to_string(), after.take());
            let last = self.run(move |tx| stream::forget_source(tx, &queue, from.as_deref(), PAGE)).await?;
            match last {
                Some(last) => after = Some(last),
                None => return Ok(()),
            }
        }
    }

    /// Changes state, pushes and finishes what was read, all or nothing.
    pub async fn cycle(&self, mut cycle: Cycle) -> Result<Cycled, Error> {
        let mut pushes = std::mem::take(&mut cycle.pushes);
        pushes.detour = self.shared.keeper.behind();
        let mut offset = None;
        let mut released = None;
        if let Some(ack) = &cycle.ack {
            let item = AckItem {
                partition: Some(cycle.partition),
                transaction_id: ack.transaction_id.clone(),
                group: cycle.group.clone(),
                lease: ack.lease.map_or(LeaseClaim::Unknown, LeaseClaim::Held),
                status: ack.status,
                error: None,
            };
            offset = self.resolve(vec![item]).await?.pop().and_then(|resolved| resolved.offset);
            released = ack.lease;
        }
        let partition = cycle.partition;
        let cycle = Arc::new(cycle);
        let decide = move |tx: &mut dyn Tx, pushes: &PushBatch| stream::cycle(tx, &cycle, pushes, offset);
        let mut pushes = Arc::new(self.sealed(pushes)?);
        let cycled = self.run_sealed(&mut pushes, decide).await?;
        if !cycled.pushed.is_empty() {
            let duplicates = cycled.pushed.iter().filter(|pushed| pushed.duplicate).count() as u64;
            self.shared.meters.pushed(&pushes.counted(&cycled.pushed), duplicates);
        }
        if let Some(lease) = released.filter(|_| cycled.acked.is_some_and(|acked| acked.lease_released)) {
            self.shared.deliveries.remove(lease, partition);
        }
        Ok(cycled)
    }
}

/// Adds rows, as far as an answer can hold them.
fn add_page(rows: &mut Vec<StateRow>, page: Vec<StateRow>) -> Result<(), Error> {
    rows.extend(page);
    let max = limits::POP_BYTES_MAX;
    if rows.iter().map(|row| row.key.len() + row.value.len()).sum::<usize>() > max {
        let problem = format!("the state asked for has more than {max} bytes; name keys or a key_prefix");
        return Err(Error::Invalid(problem));
    }
    Ok(())
}

/// Clears away state that was given up.
pub async fn clear(store: &dyn Store) -> Result<(), baton_store::Error> {
    while run(store, stream::clear).await? {}
    Ok(())
}
