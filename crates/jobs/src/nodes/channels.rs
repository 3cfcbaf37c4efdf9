//! Channels: what happens to jobs and nodes, as messages of ordinary queues that anybody can watch.
//!
//! A channel is written to while its queue exists: creating the queue is subscribing, deleting it is leaving. So whoever
//! does not watch pays one look at the names of queues a second, and an observer needs nothing but a queue client. The
//! names are those of the document that jobs were built from; where they hold a job's id, that id is the partition here,
//! because a queue for each job would be a row for each job. What a job's channels say is written by the owner of the job
//! alone, from the journal that the commits of all nodes leave while somebody watches. Always: the messages of one job
//! stand in the order of its commits, each once, whichever nodes owned it meanwhile; a message says what is so, and nobody
//! has to read it for jobs to run. Deliberately absent: commands by message (the store decides, not whoever reads first),
//! and channels in encrypted queues. Start at [`publish`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use baton_store::{MessageBlock, NewMessage, Tx, TxError, run};
use baton_types::{PartitionId, QueueId};
use serde_json::{Value, json};

use crate::model::channel_names::{ACK, ASSIGNED, CANCEL, DISPATCH, HANDOFF, LOGS, STATUS, WORKER};
use crate::model::keys;
use crate::model::ownership::{Claimed, SLICES, Table};
use crate::nodes::ownership_record;
use crate::runtime::context::Shared;

/// Entries of the journal published in one commit.
const AT_ONCE: usize = 100;
/// Entries of the journal removed in one commit.
const REMOVED_MAX: usize = 400;

/// Messages on their way into channels, by queue and partition.
#[derive(Debug, Default)]
pub struct Outbox {
    messages: BTreeMap<(String, String), Vec<Value>>,
}

/// The same, once it is known where they go.
#[derive(Debug)]
pub struct Addressed {
    messages: Vec<(QueueId, Option<PartitionId>, String, Vec<Value>)>,
}

impl Outbox {
    /// Adds a message.
    pub fn add(&mut self, channel: impl Into<String>, partition: impl Into<String>, message: Value) {
        self.messages.entry((channel.into(), partition.into())).or_default().push(message);
    }

    /// Looks up where the messages go, before anything of the decision is written; those that nobody watches are dropped.
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

/// What an entry of the journal tells the channels, in the words of the owner of its job.
fn tell(outbox: &mut Outbox, entry: &Value, owner: &str, epoch: u64) {
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
                    // The execution that the next lease begins.
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

/// Publishes what the journal has for the slices of this node; whether there may be more.
pub async fn publish(shared: &Shared) -> Result<bool, baton_store::Error> {
    let (node, prefix) = (Arc::clone(&shared.options.node), Arc::clone(&shared.options.channels));
    let sole = shared.options.sole;
    run(&*shared.store, move |tx| publish_in(tx, &node, sole, &prefix)).await
}

fn publish_in(tx: &mut dyn Tx, node: &Arc<str>, sole: bool, prefix: &str) -> Result<bool, TxError> {
    let Some(mut table) = owners(tx, node, sole)? else { return Ok(false) };
    let own: Vec<usize> = table.of(node).collect();
    let Some(start) = own.iter().map(|slice| table.slices[*slice].read).min() else { return Ok(false) };
    let rows = tx.records(keys::JOURNAL, Some(&keys::journal(start)), AT_ONCE)?;
    let read = |(key, record): &(String, baton_store::Record)| {
        let number: u64 = key.strip_prefix(keys::JOURNAL)?.parse().ok()?;
        Some((number, serde_json::from_slice::<Vec<Value>>(&record.value).ok()?))
    };
    let entries: Vec<_> = rows.iter().filter_map(read).collect();
    let Some(last) = entries.last().map(|(number, _)| *number) else { return Ok(false) };
    let mut outbox = Outbox::default();
    for (number, said) in &entries {
        for entry in said {
            let slice =
                entry["slice"].as_u64().and_then(|slice| usize::try_from(slice).ok()).unwrap_or(SLICES);
            let Some(of) = table.slices.get(slice).filter(|of| of.owner == *node && of.read < *number) else {
                continue;
            };
            tell(&mut outbox, entry, node, of.epoch);
        }
    }
    for slice in own {
        let epoch = table.slices[slice].epoch;
        table.advance(node, slice, epoch, last);
    }
    // What all owners have read is not needed any more.
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

/// The owners; a node that is alone owns everything.
fn owners(tx: &mut dyn Tx, node: &Arc<str>, sole: bool) -> Result<Option<Table>, TxError> {
    let table = ownership_record::load(tx)?;
    if !sole {
        return Ok(table);
    }
    let mut table = table.unwrap_or_else(|| Table::new(tx.now()));
    for slice in table.slices.iter_mut().filter(|slice| slice.owner != *node) {
        (slice.owner, slice.offer) = (Arc::clone(node), None);
        slice.epoch += 1;
    }
    Ok(Some(table))
}

/// Watches and publishes on a store that has one user; elsewhere `follower` does that along with everything else.
pub async fn keep_alone(shared: Arc<Shared>) {
    while !shared.stop.is_cancelled() {
        look(&shared).await;
        tokio::select! {
            () = shared.stop.cancelled() => {}
            () = baton_env::sleep(shared.options.times.look()) => {}
        }
    }
}

/// Finds out whether somebody watches, and publishes what there is.
pub async fn look(shared: &Shared) {
    let Ok((was_watched, watched)) = shared.find_watchers().await else { return };
    if !watched && !was_watched {
        return;
    }
    loop {
        match publish(shared).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return tracing::debug!(%error, "channels could not be written to"),
        }
    }
}

/// Tells of slices that are offered.
pub fn offered(outbox: &mut Outbox, table: &Table, from: &str, slices: impl Iterator<Item = usize>) {
    for number in slices {
        let Some(slice) = table.slices.get(number) else { continue };
        let Some(offer) = &slice.offer else { continue };
        let message = json!({
            "slice": number, "fromNode": from, "fromEpoch": slice.epoch, "reason": offer.reason, "try": offer.tries,
        });
        outbox.add(HANDOFF, number.to_string(), message);
    }
}

/// Tells a former owner that its slice was claimed, under its id and under its name, which has no mark of one start.
pub fn claimed(outbox: &mut Outbox, node: &str, claimed: &Claimed) {
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
    fn a_claim_is_told_under_the_id_and_the_name_of_the_former_owner() {
        let mut outbox = Outbox::default();
        let claim = |from: &str| Claimed {
            slice: 3,
            from: from.into(),
            epoch: 8,
            reason: crate::model::ownership::Reason::NodeCrash,
            tries: 1,
        };
        claimed(&mut outbox, "b", &claim("node-1-5f"));
        claimed(&mut outbox, "b", &claim("plain"));
        claimed(&mut outbox, "b", &claim(""));
        let names: Vec<_> = outbox.messages.keys().map(|(channel, _)| channel.as_str()).collect();
        assert_eq!(names, ["job.handoff.ack.node-1", "job.handoff.ack.node-1-5f", "job.handoff.ack.plain"]);
    }

    #[test]
    fn a_dispatched_job_is_told_to_workers_to_its_owner_and_to_whoever_watches_it() {
        let mut outbox = Outbox::default();
        let entry = json!({"kind": "status", "slice": 3, "jobId": "j", "queue": "mail", "status": "dispatched", "fence": 4});
        tell(&mut outbox, &entry, "n", 7);
        let names: Vec<_> =
            outbox.messages.keys().map(|(channel, partition)| (&**channel, &**partition)).collect();
        assert_eq!(names, [(ASSIGNED, "j"), ("job.dispatch.mail", "j"), (STATUS, "j")]);
        let assigned = &outbox.messages[&(ASSIGNED.to_owned(), "j".to_owned())][0];
        assert_eq!((assigned["owner"].as_str(), assigned["epoch"].as_u64()), (Some("n"), Some(7)));
        assert_eq!(assigned["historyId"], "j.5");
        assert!(outbox.messages.values().flatten().all(|message| message.get("slice").is_none()));
    }
}
