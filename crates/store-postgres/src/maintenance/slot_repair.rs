//! Finds partitions that have unfinished messages for a group but no slot of that group, and adds the slot.
//! Without a slot no pop is offered these messages.
//!
//! Current servers leave no such gap: creating a group and creating a partition at the same time conflict.
//! Servers of earlier versions left some, so each server searches at its start and every hour.

use std::sync::Arc;
use std::time::Duration;

use baton_store::{Cursor, Durability, Error, GroupStart, Operation, Tx, TxError, collect_misses};
use baton_types::{GroupId, PartitionId};
use tokio::sync::oneshot;

use crate::client::connection::{PgConnection, param, read_u64, statement};
use crate::client::error::DatabaseError;
use crate::context::StoreContext;
use crate::writer::task::WriterTask;

/// Pause between searches.
const INTERVAL: Duration = Duration::from_secs(3_600);
/// Pause after a failed search.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Partitions per statement.
const PAGE_ROWS: i64 = 1_000;

/// The partitions of a page, each with the groups of its queue that have messages in it and no slot.
const MISSING_SLOTS: &str = "SELECT p.id, g.id FROM (
        SELECT id, queue_id, start < tail AS is_filled, last_at FROM partitions WHERE id > $1 ORDER BY id LIMIT $2) p
    LEFT JOIN groups g ON p.is_filled AND g.queue_id = p.queue_id
        AND coalesce((g.body->'start'->>'At')::bigint <= p.last_at, true)
        AND NOT EXISTS (SELECT 1 FROM slots s WHERE s.partition_id = p.id AND s.group_id = g.id)
    ORDER BY p.id";

/// Runs until its task is aborted.
pub async fn run(shared: Arc<StoreContext>, writer: Arc<WriterTask>) {
    loop {
        let pause = match repair_all(&shared, &writer).await {
            Ok(()) => INTERVAL,
            Err(failure) => {
                tracing::debug!(%failure, "the search for missing slots failed; it will be repeated");
                RETRY_AFTER
            }
        };
        baton_env::sleep(pause).await;
    }
}

async fn repair_all(shared: &StoreContext, writer: &WriterTask) -> Result<(), DatabaseError> {
    let connection = PgConnection::connect(&shared.address, &shared.schema).await?;
    let mut after = i64::MIN;
    loop {
        let rows =
            connection.run(vec![statement(MISSING_SLOTS, vec![param(after), param(PAGE_ROWS)])]).await?;
        let Some(last) = rows[0].last() else { return Ok(()) };
        after = last.get(0);
        let missing = rows[0].iter().filter_map(|row| {
            let group = row.get::<Option<i64>>(1)?.cast_unsigned();
            Some((PartitionId(read_u64(row, 0)), GroupId(group)))
        });
        let missing: Vec<_> = missing.collect();
        if missing.is_empty() {
            continue;
        }
        let (reply, answer) = oneshot::channel();
        writer.submit(Box::new(AddMissingSlots { missing, added: 0, reply }));
        let gone = |_| Error::Closed("the operation was dropped".into());
        match answer.await.map_err(gone).flatten() {
            Ok(0) => {}
            Ok(count) => {
                shared.count_missing_slots(count);
                tracing::warn!(count, "added missing slots of groups in partitions with messages for them");
            }
            Err(error) => return Err(DatabaseError::ConnectionLost(error.to_string())),
        }
    }
}

struct AddMissingSlots {
    missing: Vec<(PartitionId, GroupId)>,
    added: u64,
    reply: oneshot::Sender<Result<u64, Error>>,
}

impl Operation for AddMissingSlots {
    fn apply(&mut self, tx: &mut dyn Tx) -> Result<(), TxError> {
        self.added = add_missing_slots(tx, &self.missing)?;
        Ok(())
    }

    fn finish(self: Box<Self>, outcome: Result<(), Error>) {
        // A store that closes drops the receiver.
        let _ = self.reply.send(outcome.map(|()| self.added));
    }
}

/// Adds a cursor where a group has messages and no slot. Returns how many it added.
fn add_missing_slots(tx: &mut dyn Tx, missing: &[(PartitionId, GroupId)]) -> Result<u64, TxError> {
    let mut begun = Vec::new();
    collect_misses(missing, |(partition, group)| {
        let (Some(row), Some(group)) = (tx.partition_by_id(*partition)?, tx.group_by_id(*group)?) else {
            return Ok(());
        };
        let next = match group.start {
            GroupStart::Oldest => row.start,
            GroupStart::At(at) => tx.offset_at(row.id, at)?,
        };
        if next < row.tail && tx.cursor(group.id, row.id)?.is_none() {
            begun.push((group.id, row.id, Cursor { next, available_at: tx.now(), ..Cursor::default() }));
        }
        Ok(())
    })?;
    let count = begun.len() as u64;
    for (group, partition, cursor) in begun {
        tx.put_cursor(group, partition, cursor, Durability::Now);
    }
    Ok(count)
}
