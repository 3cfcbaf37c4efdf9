//! Channels: events of jobs and nodes, as messages of ordinary queues that clients can consume.
//!
//! A node writes to a channel while the channel's queue exists: creating the queue subscribes, deleting it
//! unsubscribes. Without subscribers the cost is one lookup of queue names a second. Subscribers need nothing but a
//! queue client. Where a channel belongs to one job, the job's id is the partition, because a queue for each job
//! would cost a row for each job. Only the owner of a job publishes its events, from the journal that the commits of
//! all nodes write while a channel is watched. Always: the events of one job are published in the order of its
//! commits, each once, whichever nodes owned the job meanwhile; jobs run the same without readers. Deliberately
//! absent: commands by message (the store decides), and channels in encrypted queues. Start at [`publish`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use baton_store::{MessageBlock, NewMessage, Tx, TxError, run};
use baton_types::{PartitionId, QueueId};
use serde_json::{Value, json};

use crate::model::channel_names::{ACK, ASSIGNED, CANCEL, DISPATCH, HANDOFF, LOGS, STATUS, WORKER};
use crate::model::keys;
use crate::model::ownership::{Claimed, OwnershipTable, SLICES};
use crate::nodes::ownership_record;
use crate::runtime::context::Shared;

/// Journal entries published in one commit.
const AT_ONCE: usize = 100;
/// Journal entries removed in one commit.
const REMOVED_MAX: usize = 400;

/// Messages to publish, by queue and partition.
#[derive(Debug, Default)]
pub struct Outbox {
    messages: BTreeMap<(String, String), Vec<Value>>,
}

/// The messages with the queues that exist for them.
#[derive(Debug)]
pub struct Addressed {
    messages: Vec<(QueueId, Option<PartitionId>, String, Vec<Value>)>,
}

impl Outbox {
    /// Adds a message.
    pub fn add(&mut self, channel: impl Into<String>, partition: impl Into<String>, message: Value) {
        self.messages.entry((channel.into(), partition.into())).or_default().push(message);
    }

    /// Looks up the queues, before the decision writes anything. Drops messages without a queue.
    pub fn address(self, tx: &mut dyn Tx, prefix: &str) -> Result<Addressed, TxError> {
        let (mut messages, mut missing) = (Vec::new(), false);
        for ((channel, partition), list) in self.messages {
            let queue = tx.queue(&format!("{prefix}.{channel}"))?;
            let Some(queue) = queue.filter(|queue| !queue.spec.options.encryption_enabled) else { continue };
            match tx.partition(queue.id, &partition) {
                Ok(found) => messages.push((queue.id, found.map(|found| found.id), partition, list)),
                Err(TxError::RowsMissing) => missing = true,
                Err(other) => return Err(other),
            }
        }
        if missing { Err(TxError::RowsMissing) } else { Ok(Addressed { messages }) }
    }
}

impl Addressed {
    /// Writes the messages.
    pub fn write(self, tx: &mut dyn Tx) {
        for (queue, partition, name, messages) in self.messages {
            let partition = partition.unwrap_or_else(|| tx.create_partition(queue, &name));
            let mut block = MessageBlock::default();
            for message in messages {
                let payload = message.to_string();
                block.push(&NewMessage { payload: payload.as_bytes(), ..NewMessage::default() });
            }
            tx.append(partition, &block, Duration::ZERO);
        }
    }
}

/// Adds the channel messages of one journal entry, signed with the owner of its job.
fn add_entry_messages(outbox: &mut Outbox, entry: &Value, owner: &str, epoch: u64) {
    let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let mut message = entry.clone();
    if let Some(members) = message.as_object_mut() {
        members.remove("slice");
        members.remove("kind");
    }
    match entry["kind"].as_str() {
        Some("status") => {
            let job = text("jobId");
            match entry["status"].as_str() {
                Some("dispatched") => {
                    outbox.add(format!("{DISPATCH}{}", text("queue")), &*job, message.clone());
                    // The id of the execution that the next lease will start.
                    let history = entry["fence"].as_u64().map(|fence| format!("{job}.{}", fence + 1));
                    let assigned = json!({
                        "jobId": job, "historyId": history, "owner": owner, "epoch": epoch, "at": entry["at"],
                    });
                    outbox.add(ASSIGNED, &*job, assigned);
                }
                Some("cancelling" | "cancelled") => outbox.add(CANCEL, &*job, message.clone()),
                _ => {}
            }
            outbox.add(STATUS, job, message);
        }
        Some("logs") => outbox.add(LOGS, text("jobId"), message),
        Some("worker") => outbox.add(WORKER, text("workerId"), message),
        _ => {}
    }
}

/// Publishes journal entries for the slices of this node. Returns whether there may be more.
pub async fn publish(shared: &Shared) -> Result<bool, baton_store::Error> {
    let (node, prefix) = (Arc::clone(&shared.options.node), Arc::clone(&shared.options.channels));
    let sole = shared.options.sole;
    run(&*shared.store, move |tx| publish_in(tx, &node, sole, &prefix)).await
}

fn publish_in(tx: &mut dyn Tx, node: &Arc<str>, sole: bool, prefix: &str) -> Result<bool, TxError> {
    let Some(mut table) = owners(tx, node, sole)? else { return Ok(false) };
    let own: Vec<usize> = table.slices_of(node).collect();
    let Some(start) = own.iter().map(|slice| table.slices[*slice].read).min() else { return Ok(false) };
    let rows = tx.records(keys::JOURNAL, Some(&keys::journal(start)), AT_ONCE)?;
    let read = |(key, record): &(String, baton_store::Record)| {
        let number: u64 = key.strip_prefix(keys::JOURNAL)?.parse().ok()?;
        Some((number, serde_json::from_slice::<Vec<Value>>(&record.value).ok()?))
    };
    let entries: Vec<_> = rows.iter().filter_map(read).collect();
    let Some(last) = entries.last().map(|(number, _)| *number) else { return Ok(false) };
    let mut outbox = Outbox::default();
    for (number, journal_entries) in &entries {
        for entry in journal_entries {
            let slice =
                entry["slice"].as_u64().and_then(|slice| usize::try_from(slice).ok()).unwrap_or(SLICES);
            let Some(of) = table.slices.get(slice).filter(|of| of.owner == *node && of.read < *number) else {
                continue;
            };
            add_entry_messages(&mut outbox, entry, node, of.epoch);
        }
    }
    for slice in own {
        let epoch = table.slices[slice].epoch;
        table.advance(node, slice, epoch, last);
    }
    // Entries that all owners have published are garbage.
    let read = table.slices.iter().map(|slice| slice.read).min().unwrap_or(0);
    let old = tx.records(keys::JOURNAL, None, REMOVED_MAX)?;
    let addressed = outbox.address(tx, prefix)?;
    for (key, _) in old.iter().take_while(|(key, _)| *key.as_str() <= *keys::journal(read)) {
        tx.remove_record(key);
    }
    ownership_record::store(tx, &table)?;
    addressed.write(tx);
    Ok(entries.len() == AT_ONCE)
}

/// The ownership table; a node that is alone owns everything.
fn owners(tx: &mut dyn Tx, node: &Arc<str>, sole: bool) -> Result<Option<OwnershipTable>, TxError> {
    let table = ownership_record::load(tx)?;
    if !sole {
        return Ok(table);
    }
    let mut table = table.unwrap_or_else(|| OwnershipTable::new(tx.now()));
    for slice in table.slices.iter_mut().filter(|slice| slice.owner != *node) {
        (slice.owner, slice.offer) = (Arc::clone(node), None);
        slice.epoch += 1;
    }
    Ok(Some(table))
}

/// Publishes on a store with one server; elsewhere `membership` publishes between its other work.
pub async fn run_alone(shared: Arc<Shared>) {
    while !shared.stop.is_cancelled() {
        publish_if_watched(&shared).await;
        tokio::select! {
            () = shared.stop.cancelled() => {}
            () = baton_env::sleep(shared.options.times.refresh_interval()) => {}
        }
    }
}

/// Checks whether a client watches, and publishes.
pub async fn publish_if_watched(shared: &Shared) {
    let Ok((was_watched, watched)) = shared.find_watchers().await else { return };
    if !watched && !was_watched {
        return;
    }
    loop {
        match publish(shared).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return tracing::debug!(%error, "publishing to channels failed"),
        }
    }
}

/// Adds messages about offered slices.
pub fn add_offers(
    outbox: &mut Outbox,
    table: &OwnershipTable,
    from: &str,
    slices: impl Iterator<Item = usize>,
) {
    for number in slices {
        let Some(slice) = table.slices.get(number) else { continue };
        let Some(offer) = &slice.offer else { continue };
        let message = json!({
            "slice": number, "fromNode": from, "fromEpoch": slice.epoch, "reason": offer.reason, "try": offer.tries,
        });
        outbox.add(HANDOFF, number.to_string(), message);
    }
}

/// Adds a message to a former owner about the claim of its slice, once under its id and once under its name: the name
/// is the same after a restart.
pub fn add_claim(outbox: &mut Outbox, node: &str, claimed: &Claimed) {
    let name = claimed.from.rsplit_once('-').map_or(&*claimed.from, |(name, _)| name);
    let message = json!({
        "slice": claimed.slice, "newOwner": node, "epoch": claimed.epoch, "reason": claimed.reason,
    });
    for to in BTreeSet::from([name, &*claimed.from]).into_iter().filter(|to| !to.is_empty()) {
        outbox.add(format!("{ACK}{to}"), claimed.slice.to_string(), message.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_published_under_the_id_and_the_name_of_the_former_owner() {
        let mut outbox = Outbox::default();
        let claim = |from: &str| Claimed {
            slice: 3,
            from: from.into(),
            epoch: 8,
            reason: crate::model::ownership::OwnershipReason::NodeCrash,
            tries: 1,
        };
        add_claim(&mut outbox, "b", &claim("node-1-5f"));
        add_claim(&mut outbox, "b", &claim("plain"));
        add_claim(&mut outbox, "b", &claim(""));
        let names: Vec<_> = outbox.messages.keys().map(|(channel, _)| channel.as_str()).collect();
        assert_eq!(names, ["job.handoff.ack.node-1", "job.handoff.ack.node-1-5f", "job.handoff.ack.plain"]);
    }

    #[test]
    fn a_dispatched_job_is_published_to_workers_to_its_owner_and_to_its_watchers() {
        let mut outbox = Outbox::default();
        let entry = json!({"kind": "status", "slice": 3, "jobId": "j", "queue": "mail", "status": "dispatched", "fence": 4});
        add_entry_messages(&mut outbox, &entry, "n", 7);
        let names: Vec<_> =
            outbox.messages.keys().map(|(channel, partition)| (&**channel, &**partition)).collect();
        assert_eq!(names, [(ASSIGNED, "j"), ("job.dispatch.mail", "j"), (STATUS, "j")]);
        let assigned = &outbox.messages[&(ASSIGNED.to_owned(), "j".to_owned())][0];
        assert_eq!((assigned["owner"].as_str(), assigned["epoch"].as_u64()), (Some("n"), Some(7)));
        assert_eq!(assigned["historyId"], "j.5");
        assert!(outbox.messages.values().flatten().all(|message| message.get("slice").is_none()));
    }
}
