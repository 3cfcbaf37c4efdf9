//! Messages that were granted to a consumer and cannot be read, because their key is gone.
//!
//! They become dead letters, still sealed, with the reason; so they block no consumer, and can be pushed again
//! once the key is back. Always: also where the queue keeps no dead letters, for nothing may be lost because a
//! setting was. Start at [`bury`].

use baton_store::{Tx, TxError};
use baton_types::wire::AckStatus;
use baton_types::{LeaseId, Offset, PartitionId};

use crate::rules::ack::{self, AckItem, LeaseClaim, RepeatedAck, Resolved};

/// A message that cannot be read.
#[derive(Clone, Debug)]
pub struct Unreadable {
    pub partition: PartitionId,
    pub offset: Offset,
    pub reason: String,
}

/// Makes dead letters of them for a group that holds them under `lease`, or has finished them without one.
pub fn bury(
    tx: &mut dyn Tx,
    group: &str,
    lease: Option<LeaseId>,
    messages: &[Unreadable],
) -> Result<(), TxError> {
    let Some(lease) = lease else { return bury_finished(tx, group, messages) };
    let acks: Vec<_> = messages
        .iter()
        .map(|message| Resolved {
            item: AckItem {
                partition: Some(message.partition),
                transaction_id: String::new(),
                group: group.to_string(),
                lease: LeaseClaim::Held(lease),
                status: AckStatus::Dlq,
                error: Some(message.reason.clone()),
            },
            offset: Some(message.offset),
            namesakes: Vec::new(),
            by_server: true,
        })
        .collect();
    let prepared = ack::prepare(tx, &acks, RepeatedAck::Fails)?;
    ack::write(tx, prepared);
    Ok(())
}

fn bury_finished(tx: &mut dyn Tx, group: &str, messages: &[Unreadable]) -> Result<(), TxError> {
    let mut letters = Vec::new();
    for dead in messages {
        let Some(partition) = tx.partition_by_id(dead.partition)? else { continue };
        let Some(queue) = tx.queue_by_id(partition.queue)? else { continue };
        let Some(group) = tx.group(queue.id, group)? else { continue };
        let Some(message) = tx.message(dead.partition, dead.offset)? else { continue };
        letters.push(ack::letter(&queue, &partition, &group, &message, Some(&dead.reason), 0, tx.now()));
    }
    letters.into_iter().for_each(|letter| tx.put_dead_letter(letter));
    Ok(())
}
