//! Whether there may be one more queue, partition or group.
//!
//! A rule that creates any asks here before its first write, and passes on what it is told. Not here: the bounds
//! (`baton_types::limits`).

use baton_store::{Error, Queue, Tx, TxError};

/// Says no when there are too many queues for so many more.
pub fn for_queues(tx: &mut dyn Tx, more: u64) -> Result<(), TxError> {
    let max = tx.limits().queues;
    if more == 0 || tx.queue_count()?.saturating_add(more) <= max {
        return Ok(());
    }
    refuse(format!("there are at most {max} queues; delete some"))
}

/// Says no when a queue, which may be a new one, cannot have so many partitions more.
pub fn for_partitions(tx: &mut dyn Tx, queue: Option<&Queue>, name: &str, more: u64) -> Result<(), TxError> {
    let max = tx.limits().partitions;
    let has_room = match queue {
        Some(queue) => tx.has_partition_room(queue.id, more)?,
        None => more <= max,
    };
    if has_room {
        return Ok(());
    }
    refuse(format!("queue {name:?} has at most {max} partitions; use fewer names, or another queue"))
}

/// Says no when a queue has too many groups for so many more.
pub fn for_groups(tx: &mut dyn Tx, queue: &Queue, more: u64) -> Result<(), TxError> {
    let max = tx.limits().groups;
    if more == 0 || tx.group_count(queue.id)?.saturating_add(more) <= max {
        return Ok(());
    }
    refuse(format!("queue {:?} has at most {max} groups; delete some", queue.spec.name))
}

fn refuse(problem: String) -> Result<(), TxError> {
    Err(Error::LimitReached(problem).into())
}
