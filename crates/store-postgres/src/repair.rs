//! Finds messages that a group has not finished in a partition in which it has no slot, and gives it one: without it no
//! pop is ever offered them.
//!
//! No such place comes to be: a group that begins and a partition that is created at the same time are a conflict. Servers
//! of earlier versions left some behind, so every server looks at its start, and now and then.

use std::sync::Arc;
use std::time::Duration;

use baton_store::{Cursor, Durability, Error, Operation, Start, Stop, Tx, look_at_all};
use baton_types::{GroupId, PartitionId};
use tokio::sync::oneshot;

use crate::failure::Failure;
use crate::lanes::Lanes;
use crate::link::{Link, call, param, unsigned};
use crate::store::Shared;

/// How often to look.
const EVERY: Duration = Duration::from_secs(3_600);
/// How soon to look again after a failure.
const AGAIN: Duration = Duration::from_secs(30);
/// Partitions looked at in one statement.
const PAGE: i64 = 1_000;

/// The partitions of a page, and for each the groups of its queue with messages and without a slot in it.
const MISSING: &str = "SELECT p.id, g.id FROM (
        SELECT id, queue_id, start < tail AS is_filled, last_at FROM partitions WHERE id > $1 ORDER BY id LIMIT $2) p
    LEFT JOIN groups g ON p.is_filled AND g.queue_id = p.queue_id
        AND coalesce((g.body->'start'->>'At')::bigint <= p.last_at, true)
        AND NOT EXISTS (SELECT 1 FROM slots s WHERE s.partition_id = p.id AND s.group_id = g.id)
    ORDER BY p.id";

/// Runs until its task is ended.
pub async fn run(shared: Arc<Shared>, lanes: Arc<Lanes>) {
    loop {
        let pause = match repair(&shared, &lanes).await {
            Ok(()) => EVERY,
            Err(failure) => {
                tracing::debug!(%failure, "looking for missing slots is put off");
                AGAIN
            }
        };
        baton_env::sleep(pause).await;
    }
}

async fn repair(shared: &Shared, lanes: &Lanes) -> Result<(), Failure> {
    let link = Link::open(&shared.address, &shared.schema).await?;
    let mut after = i64::MIN;
    loop {
        let rows = link.run(vec![call(MISSING, vec![param(after), param(PAGE)])]).await?;
        let Some(last) = rows[0].last() else { return Ok(()) };
        after = last.get(0);
        let missing = rows[0].iter().filter_map(|row| {
            let group = row.get::<Option<i64>>(1)?.cast_unsigned();
            Some((PartitionId(unsigned(row, 0)), GroupId(group)))
        });
        let missing: Vec<_> = missing.collect();
        if missing.is_empty() {
            continue;
        }
        let (reply, answer) = oneshot::channel();
        lanes.submit(Box::new(Repair { missing, begun: 0, reply }));
        let gone = |_| Error::Closed("the operation was dropped".into());
        match answer.await.map_err(gone).flatten() {
            Ok(0) => {}
            Ok(count) => {
                shared.count_missing_slots(count);
                tracing::warn!(
                    count,
                    "groups had no place in partitions with messages for them; they have one now"
                );
            }
            Err(error) => return Err(Failure::Lost(error.to_string())),
        }
    }
}

struct Repair {
    missing: Vec<(PartitionId, GroupId)>,
    begun: u64,
    reply: oneshot::Sender<Result<u64, Error>>,
}

impl Operation for Repair {
    fn apply(&mut self, tx: &mut dyn Tx) -> Result<(), Stop> {
        self.begun = begin_all(tx, &self.missing)?;
        Ok(())
    }

    fn finish(self: Box<Self>, outcome: Result<(), Error>) {
        // The store may be closing, so that nobody waits.
        let _ = self.reply.send(outcome.map(|()| self.begun));
    }
}

/// Lets groups begin in partitions in which they have messages and nothing else; tells in how many.
fn begin_all(tx: &mut dyn Tx, missing: &[(PartitionId, GroupId)]) -> Result<u64, Stop> {
    let mut begun = Vec::new();
    look_at_all(missing, |(partition, group)| {
        let (Some(row), Some(group)) = (tx.partition_by_id(*partition)?, tx.group_by_id(*group)?) else {
            return Ok(());
        };
        let next = match group.start {
            Start::Oldest => row.start,
            Start::At(at) => tx.offset_at(row.id, at)?,
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
